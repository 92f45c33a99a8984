//! A connected queue pair, as a driver creates it.

use uverbs_mlx5_format::{
    ControlFlags, ControlSegment, InlineHeader, Opcode, RemoteAddressSegment, U32,
};
use zerocopy::IntoBytes;

use super::driver::{Cq, Driver, Input};
use crate::bits::field;
use crate::layout::command::{modify_qp_in, roce_addr_layout};
use crate::layout::context::{ads, qpc};
use uverbs_soft::core::LinkLayer;
use uverbs_soft::memory::HostMemory;
use uverbs_soft::packet::Gid;

/// Offsets of the context in commands, and of the primary address path, in bits.
const CONTEXT: usize = 0xc0;
const PATH: usize = CONTEXT + 0xc0;

const LOG_BLOCKS: u32 = 6;
const LOG_RECEIVES: u32 = 6;
const LOG_STRIDE: u32 = 4;

/// A reliable connection's end.
pub(super) struct Qp {
    pub(super) number: u32,
    pub(super) cq: Cq,
    ring: u64,
    record: u64,
    sent: u16,
}

/// The address of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) link: LinkLayer,
    pub(super) lid: u16,
    pub(super) gid: Gid,
}

impl Qp {
    pub(super) fn new(driver: &mut Driver) -> Self {
        let cq = driver.create_cq();
        let (receive, send) = (1 << (LOG_RECEIVES + LOG_STRIDE), 64 << LOG_BLOCKS);
        let ring = driver.alloc(receive + send);
        let record = driver.alloc(8);
        let input = Input::new(0x500, 272)
            .set(qpc::PD.at(CONTEXT), driver.pd.into())
            .set(qpc::LOG_RQ_SIZE.at(CONTEXT), LOG_RECEIVES.into())
            .set(qpc::LOG_RQ_STRIDE.at(CONTEXT), (LOG_STRIDE - 4).into())
            .set(qpc::LOG_SQ_SIZE.at(CONTEXT), LOG_BLOCKS.into())
            .set(qpc::UAR_PAGE.at(CONTEXT), driver.uar.into())
            .set(qpc::CQN_SND.at(CONTEXT), cq.number.into())
            .set(qpc::CQN_RCV.at(CONTEXT), cq.number.into())
            .set(qpc::DBR_ADDR.at(CONTEXT), record)
            .pages(ring, receive + send);
        let number = driver.create(input);
        Self { number, cq, ring: ring + receive, record, sent: 0 }
    }

    /// Moves the QP from RESET to RTS, connected to QP `remote` at `peer`.
    pub(super) fn connect(&self, driver: &mut Driver, remote: u32, peer: Address) {
        let step = |opcode| {
            Input::new(opcode, 272)
                .set(modify_qp_in::QPN, self.number.into())
                .set(ads::VHCA_PORT_NUM.at(PATH), 1)
        };
        let init = [qpc::RRE, qpc::RWE, qpc::RAE];
        let input =
            init.into_iter().fold(step(0x502), |input, right| input.set(right.at(CONTEXT), 1));
        driver.done(input, 8);
        let input = step(0x503)
            .set(qpc::MTU.at(CONTEXT), 3)
            .set(qpc::REMOTE_QPN.at(CONTEXT), remote.into())
            .set(ads::RLID.at(PATH), peer.lid.into())
            .set(ads::GRH.at(PATH), u64::from(peer.link == LinkLayer::Ethernet))
            .set(ads::HOP_LIMIT.at(PATH), 64)
            .set(field(PATH + 0x80, 64), u64::from_be_bytes(peer.gid.0[..8].try_into().unwrap()))
            .set(field(PATH + 0xc0, 64), u64::from_be_bytes(peer.gid.0[8..].try_into().unwrap()));
        driver.done(input, 8);
        let input = step(0x504)
            .set(ads::ACK_TIMEOUT.at(PATH), 14)
            .set(qpc::RETRY_COUNT.at(CONTEXT), 7)
            .set(qpc::RNR_RETRY.at(CONTEXT), 7);
        driver.done(input, 8);
    }

    /// Posts an RDMA write with its data in the WQE.
    pub(super) fn write(&mut self, driver: &mut Driver, to: (u64, u32), data: &[u8]) {
        self.post(driver, Opcode::RDMA_WRITE, to, data);
    }

    /// Posts an RDMA write with this opcode.
    pub(super) fn post(
        &mut self,
        driver: &mut Driver,
        opcode: Opcode,
        to: (u64, u32),
        data: &[u8],
    ) {
        let mut wqe = RemoteAddressSegment::new(to.0, to.1).as_bytes().to_vec();
        wqe.extend_from_slice(InlineHeader::new(data.len() as u32).as_bytes());
        wqe.extend_from_slice(data);
        let ds = 1 + wqe.len().div_ceil(16) as u8;
        let (flags, number) = (ControlFlags::COMPLETION, self.number);
        let control = ControlSegment::new(opcode, self.sent, number, ds, flags, U32::new(0));
        wqe.splice(..0, control.as_bytes().iter().copied());
        assert!(wqe.len() <= 64);
        let slot = u64::from(self.sent) & ((1 << LOG_BLOCKS) - 1);
        driver.memory.write(self.ring + slot * 64, &wqe).unwrap();
        self.sent += 1;
        driver.memory.write(self.record + 4, &u32::from(self.sent).to_be_bytes()).unwrap();
        driver.doorbell(&wqe);
    }
}

/// SET_ROCE_ADDRESS of entry 0.
pub(super) fn set_gid(driver: &mut Driver, gid: Gid) {
    let input = Input::new(0x761, 48)
        .set(field(0x80, 64), u64::from_be_bytes(gid.0[..8].try_into().unwrap()))
        .set(field(0xc0, 64), u64::from_be_bytes(gid.0[8..].try_into().unwrap()))
        .set(roce_addr_layout::ROCE_VERSION.at(0x80), 2);
    driver.done(input, 8);
}
