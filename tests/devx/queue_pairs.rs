//! Queue pairs in the program's memory.

use uverbs::MemoryRegion;
use uverbs::devx::{Devx, DevxObject, DevxUar, UarKind};
use uverbs_soft_adapter::firmware::bits::Field;
use uverbs_soft_adapter::firmware::layout::command::{create_qp_in, modify_qp_in, object};
use uverbs_soft_adapter::firmware::layout::context::{ads, qpc};

use crate::common::{self, Setup};
use crate::firmware::{Cq, Input, Memory, RECORD, create, free, segment};
use crate::setup;

/// Offsets in bits of contexts in commands about queue pairs, and of paths in contexts.
pub(crate) const QP_CONTEXT: usize = 0xc0;
const PATH: usize = QP_CONTEXT + 0xc0;
const PATH_BYTES: usize = 44;

pub(crate) const LOG_WQES: u64 = 4;
const SEND_RING: usize = 64 << LOG_WQES;

/// A reliable connected queue pair: receive ring, send ring and doorbell record in one page.
pub(crate) struct Qp {
    pub(crate) object: DevxObject,
    pub(crate) number: u32,
    pub(crate) memory: Memory,
}

impl Qp {
    pub(crate) fn input(uar: &DevxUar, memory: &Memory, pd: u32, cq: u32) -> Input {
        let context = [
            (qpc::PD, u64::from(pd)),
            (qpc::PM_STATE, 3),
            (qpc::LOG_RQ_SIZE, LOG_WQES),
            (qpc::LOG_RQ_STRIDE, 2),
            (qpc::LOG_SQ_SIZE, LOG_WQES),
            (qpc::UAR_PAGE, uar.id().into()),
            (qpc::CQN_SND, cq.into()),
            (qpc::CQN_RCV, cq.into()),
            (qpc::DBR_UMEM_ID, memory.umem.id().into()),
            (qpc::DBR_ADDR, RECORD as u64),
        ];
        let input = Input::new(0x500, 272).set(create_qp_in::WQ_UMEM_ID, memory.umem.id());
        context
            .into_iter()
            .fold(input, |input, (field, value)| input.set(field.at(QP_CONTEXT), value))
    }

    pub(crate) fn new(devx: &Devx, uar: &DevxUar, pd: u32, cq: &Cq) -> Self {
        let memory = Memory::new(devx);
        let (object, number) = create(devx, &Self::input(uar, &memory, pd, cq.number));
        Self { object, number, memory }
    }

    pub(crate) fn step(&self, opcode: u64, path: &[u8], fields: &[(Field, u64)]) {
        let mut input = Input::new(opcode, 256).set(modify_qp_in::QPN, self.number);
        input.0[PATH / 8..][..PATH_BYTES].copy_from_slice(path);
        for (field, value) in fields {
            input = input.set(field.at(QP_CONTEXT), *value);
        }
        self.object.modify(&input.0, &mut [0; 16]).unwrap();
    }

    /// Connects to queue pair `remote` with the path of another queue pair.
    pub(crate) fn connect(&self, remote: u32, path: &[u8]) {
        self.step(0x502, path, &[(qpc::RRE, 1), (qpc::RWE, 1)]);
        self.ready_to_receive(remote, path);
        self.step(0x504, path, &[(qpc::RETRY_COUNT, 7), (qpc::RNR_RETRY, 7)]);
    }

    pub(crate) fn ready_to_receive(&self, remote: u32, path: &[u8]) {
        let receive = [
            (qpc::MTU, 3),
            (qpc::LOG_MSG_MAX, 20),
            (qpc::REMOTE_QPN, remote.into()),
            (qpc::MIN_RNR_NAK, 12),
        ];
        self.step(0x503, path, &receive);
    }

    pub(crate) fn close(self) {
        self.object.destroy().unwrap();
        free(self.memory);
    }

    fn state(&self) -> u64 {
        let mut answer = [0; 272];
        let query = Input::new(0x50b, 16).set(object::NUMBER, self.number);
        self.object.query(&query.0, &mut answer).unwrap();
        qpc::STATE.at(QP_CONTEXT).get(&answer)
    }

    pub(crate) fn receive(&self, index: usize, region: &MemoryRegion) {
        self.memory.put((index & 15) * 64, &segment(region));
        // The rest of the list is empty.
        self.memory.put((index & 15) * 64 + 16, &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        self.memory.publish_receives(index + 1);
    }

    pub(crate) fn send(&self, index: usize, region: &MemoryRegion, uar: &DevxUar) {
        let mut control = [0; 16];
        control[..4].copy_from_slice(&((index as u32 & 0xffff) << 8 | 0x0a).to_be_bytes());
        control[4..8].copy_from_slice(&(self.number << 8 | 2).to_be_bytes());
        control[11] = 8;
        let at = SEND_RING + (index & 15) * 64;
        self.memory.put(at, &control);
        self.memory.put(at + 16, &segment(region));
        self.memory.publish_sends(index + 1, *control.first_chunk().unwrap(), uar);
    }
}

/// The path of a queue pair of verbs that is connected to another on the same device.
pub(crate) fn path_of(devx: &Devx, setup: &Setup) -> Vec<u8> {
    let (a, _b) = setup.rc_pair();
    let mut answer = [0; 272];
    let query = Input::new(0x50b, 16).set(object::NUMBER, a.number());
    devx.query(a.kernel_handle(), &query.0, &mut answer).unwrap();
    assert_eq!(qpc::STATE.at(QP_CONTEXT).get(&answer), 3);
    let path = answer[PATH / 8..][..PATH_BYTES].to_vec();
    assert_eq!(ads::VHCA_PORT_NUM.get(&path), 1);
    path
}

#[test]
fn queues_created_by_commands_transfer_messages() {
    let Some((setup, devx)) = setup() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let (mut cq_a, mut cq_b) = (Cq::new(&devx, &uar), Cq::new(&devx, &uar));
    let pd = setup.pd.number();
    let (a, b) = (Qp::new(&devx, &uar, pd, &cq_a), Qp::new(&devx, &uar, pd, &cq_b));
    assert_eq!(a.state(), 0);
    a.connect(b.number, &path);
    b.connect(a.number, &path);
    assert_eq!((a.state(), b.state()), (3, 3));
    let (from, to) = (setup.region(64), setup.region(64));
    for index in 0..40 {
        let sent = common::pattern(64, index as u8);
        from.view().write(0, &sent).unwrap();
        b.receive(index, &to);
        a.send(index, &from, &uar);
        assert_eq!(cq_a.opcode(), 0, "a send is complete");
        assert_eq!(cq_b.opcode(), 2, "a send has arrived");
        let mut received = [0; 64];
        to.view().read(0, &mut received).unwrap();
        assert_eq!(received[..], sent);
    }
    for (queue, cq) in [(a, cq_a), (b, cq_b)] {
        queue.close();
        cq.close();
    }
}
