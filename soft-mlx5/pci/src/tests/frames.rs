//! Ethernet frames between two devices: send queue, cable, flow table, receive queue.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};
use uverbs_mlx5_format::{
    ControlFlags, ControlSegment, Cqe, CqeFormat, DataSegment, EthSegment, INLINE_FLAG, MiniCqe,
    Opcode, U32,
};
use zerocopy::{FromBytes, IntoBytes};

use super::driver::{Cq, Driver, Input, run};
use crate::bits::field;
use crate::layout::capability::general;
use crate::layout::context::{cqc, wq};
use crate::layout::ethernet::{
    create_flow_group_in, flow_context, flow_table_context, modify_flow_table_in, modify_sq_in,
    rqc, rqtc, set_fte_in, sqc, tirc,
};
use crate::{Cable, Fabric, Settings, Trace};
use uverbs_soft::core::LinkLayer;
use uverbs_soft::memory::HostMemory;
use uverbs_soft::wire::Station;

const CONTEXT: usize = 0x100;
const QUEUE: usize = CONTEXT + 0x180;
const TAG: u64 = 0x51;

pub(super) fn station(n: u32) -> Station {
    Station::candidate(n)
}

pub(super) fn pair() -> [Driver; 2] {
    let fabric = Fabric::new();
    [1, 2].map(|n| {
        let settings = Settings::at(station(n), LinkLayer::Ethernet);
        let cable = Cable::to_fabric(&settings, &fabric).unwrap();
        Driver::ready(settings, cable)
    })
}

/// A work queue of 16 entries of `1 << log_stride` bytes.
fn work_queue(driver: &mut Driver, input: Input, log_stride: u32) -> (Input, u64, u64) {
    let (ring, record) = (driver.alloc(16 << log_stride), driver.alloc(8));
    let input = input
        .set(wq::WQ_TYPE.at(QUEUE), 1)
        .set(wq::PD.at(QUEUE), driver.pd.into())
        .set(wq::UAR_PAGE.at(QUEUE), driver.uar.into())
        .set(wq::DBR_ADDR.at(QUEUE), record)
        .set(wq::LOG_WQ_STRIDE.at(QUEUE), log_stride.into())
        .set(wq::LOG_WQ_SZ.at(QUEUE), 4)
        .pages(ring, 16 << log_stride);
    (input, ring, record)
}

fn make_ready(driver: &mut Driver, opcode: u64, number: u32) {
    let input = Input::new(opcode, 272).number(number).set(sqc::STATE.at(CONTEXT), 1);
    driver.done(input.set(modify_sq_in::SQ_STATE, 0), 8);
}

pub(super) struct Sender {
    number: u32,
    pub(super) cq: Cq,
    ring: u64,
    record: u64,
    sent: u16,
}

impl Sender {
    pub(super) fn new(driver: &mut Driver) -> Self {
        let tis = driver.create(Input::new(0x912, 192));
        let cq = driver.create_cq();
        let input = Input::new(0x904, 272)
            .set(sqc::CQN.at(CONTEXT), cq.number.into())
            .set(sqc::TIS_LST_SZ.at(CONTEXT), 1)
            .set(sqc::TIS_NUM_0.at(CONTEXT), tis.into());
        let (input, ring, record) = work_queue(driver, input, 6);
        let number = driver.create(input);
        make_ready(driver, 0x905, number);
        Self { number, cq, ring, record, sent: 0 }
    }

    pub(super) fn send(&mut self, driver: &mut Driver, frame: &[u8]) {
        let at = driver.alloc(frame.len() as u64);
        driver.memory.write(at, frame).unwrap();
        let (flags, number) = (ControlFlags::COMPLETION, self.number);
        let control = ControlSegment::new(Opcode::SEND, self.sent, number, 3, flags, U32::new(0));
        let mut wqe = control.as_bytes().to_vec();
        wqe.extend_from_slice(EthSegment::default().as_bytes());
        let data = DataSegment::new(at, frame.len() as u32, driver.lkey);
        wqe.extend_from_slice(data.as_bytes());
        driver.memory.write(self.ring + u64::from(self.sent % 16) * 64, &wqe).unwrap();
        self.sent += 1;
        driver.memory.write(self.record + 4, &u32::from(self.sent).to_be_bytes()).unwrap();
        driver.doorbell(&wqe);
    }
}

pub(super) struct Receiver {
    pub(super) number: u32,
    pub(super) cq: Cq,
    buffers: u64,
}

const BUFFER: u64 = 2048;

impl Receiver {
    /// A receive queue with all its entries posted.
    pub(super) fn new(driver: &mut Driver) -> Self {
        let cq = driver.create_cq();
        Self::with(driver, cq)
    }

    fn with(driver: &mut Driver, cq: Cq) -> Self {
        let input = Input::new(0x908, 272).set(rqc::CQN.at(CONTEXT), cq.number.into());
        let (input, ring, record) = work_queue(driver, input, 4);
        let number = driver.create(input);
        make_ready(driver, 0x909, number);
        let buffers = driver.alloc(16 * BUFFER);
        for slot in 0..16 {
            // The kernel's network device requests padding (`MLX5_HW_START_PADDING`).
            let length = BUFFER as u32 | INLINE_FLAG;
            let data = DataSegment::new(buffers + slot * BUFFER, length, driver.lkey);
            driver.memory.write(ring + slot * 16, data.as_bytes()).unwrap();
        }
        driver.memory.write(record, &16u32.to_be_bytes()).unwrap();
        Self { number, cq, buffers }
    }

    fn frame(&self, driver: &Driver, cqe: &Cqe) -> Vec<u8> {
        let slot = u64::from(cqe.wqe_counter.get() % 16);
        driver.bytes(self.buffers + slot * BUFFER, cqe.byte_count.get().into())
    }
}

/// The level of tables that do not forward to others.
const LAST: u64 = 2;

/// Creates a table of a level.
fn table_input(level: u64) -> Input {
    Input::new(0x930, 64).set(flow_table_context::LEVEL.at(0xc0), level)
}

/// Creates a table in which frames for `mac` go to `tir`. Returns the table's number.
pub(super) fn steer(driver: &mut Driver, mac: [u8; 6], tir: u32) -> u32 {
    steer_with(driver, mac, tir, |entry| entry)
}

/// [`steer`] with an entry that `change` modifies.
pub(super) fn steer_with(
    driver: &mut Driver,
    mac: [u8; 6],
    tir: u32,
    change: impl FnOnce(Input) -> Input,
) -> u32 {
    let table = driver.create(table_input(LAST).set(flow_table_context::LOG_SIZE.at(0xc0), 4));
    let named = |input: Input| input.set(create_flow_group_in::TABLE_ID, table.into());
    let mac_field = |at: usize| field(at + 0x40, 48);
    let group = named(Input::new(0x933, 1024))
        .set(create_flow_group_in::END_FLOW_INDEX, 3)
        .set(create_flow_group_in::MATCH_CRITERIA_ENABLE, 1)
        .set(mac_field(0x200), (1 << 48) - 1);
    let group = driver.create(group);
    let [a, b, c, d, e, f] = mac;
    let entry = named(Input::new(0x936, 848))
        .set(set_fte_in::FLOW_INDEX, 2)
        .set(flow_context::GROUP_ID.at(0x200), group.into())
        .set(flow_context::FLOW_TAG.at(0x200), TAG)
        .set(flow_context::ACTION.at(0x200), 4)
        .set(flow_context::DESTINATION_LIST_SIZE.at(0x200), 1)
        .set(mac_field(0x400), u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
        .set(field(0x1a00, 8), 2)
        .set(field(0x1a08, 24), tir.into());
    driver.done(change(entry), 8);
    driver.done(named(Input::new(0x92f, 64)), 8);
    table
}

/// A frame with a UDP datagram over IPv4.
pub(super) fn frame(to: [u8; 6], port: u16) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend(station(1).mac());
    frame.extend([8, 0]);
    frame.extend([0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 7, 0, 30, 0, 0]);
    frame.extend((0..22).map(|byte| byte ^ port as u8));
    frame
}

#[test]
fn a_frame_reaches_the_queue_of_its_table_entry() {
    let mut drivers = pair();
    let mut sender = Sender::new(&mut drivers[0]);
    let mut receiver = Receiver::new(&mut drivers[1]);
    let tir = queue_tir(&mut drivers[1], receiver.number);
    steer(&mut drivers[1], station(2).mac(), tir);
    // The first frame has another address and must not arrive.
    sender.send(&mut drivers[0], &frame(station(3).mac(), 1));
    let wanted = frame(station(2).mac(), 2);
    sender.send(&mut drivers[0], &wanted);
    let mut arrived = None;
    run(&mut drivers, |drivers| {
        arrived = arrived.or(drivers[1].poll(&mut receiver.cq));
        arrived.is_some()
    });
    let cqe = arrived.unwrap();
    assert_eq!(receiver.frame(&drivers[1], &cqe), wanted);
    assert_eq!(u64::from(cqe.opcode_qpn_flow_tag.get() & 0xff_ffff), TAG);
    assert_eq!((0..2).filter_map(|_| drivers[0].poll(&mut sender.cq)).count(), 2);
    assert!(drivers[1].poll(&mut receiver.cq).is_none());
}

#[test]
fn a_hash_chooses_among_queues() {
    let mut drivers = pair();
    let mut sender = Sender::new(&mut drivers[0]);
    let mut receivers = [0, 1].map(|_| Receiver::new(&mut drivers[1]));
    let table = Input::new(0x916, 0x100 / 8 + 248)
        .set(rqtc::RQT_MAX_SIZE.at(CONTEXT), 2)
        .set(rqtc::RQT_ACTUAL_SIZE.at(CONTEXT), 2)
        .set(field(CONTEXT + 0x788, 24), receivers[0].number.into())
        .set(field(CONTEXT + 0x7a8, 24), receivers[1].number.into());
    let table = drivers[1].create(table);
    let tir = Input::new(0x900, 272)
        .set(tirc::DISP_TYPE.at(CONTEXT), 1)
        .set(tirc::INDIRECT_TABLE.at(CONTEXT), table.into())
        .set(tirc::RX_HASH_FN.at(CONTEXT), 2)
        // UDP ports.
        .set(tirc::RX_HASH_FIELD_SELECTOR_OUTER.at(CONTEXT), 1 << 30 | 12);
    let key = |index: usize| 0x6d5a_56dau64.rotate_left(5 * index as u32) & 0xffff_ffff;
    let tir = (0..10).fold(tir, |tir, index| {
        tir.set(tirc::RX_HASH_TOEPLITZ_KEY.element(index, 32).at(CONTEXT), key(index))
    });
    let tir = drivers[1].create(tir);
    steer(&mut drivers[1], station(2).mac(), tir);
    for port in 0..8 {
        sender.send(&mut drivers[0], &frame(station(2).mac(), port << 5));
    }
    let mut counts = [0; 2];
    run(&mut drivers, |drivers| {
        for (index, receiver) in receivers.iter_mut().enumerate() {
            while let Some(cqe) = drivers[1].poll(&mut receiver.cq) {
                assert_eq!(cqe.rss_hash.get() as usize % 2, index);
                assert_eq!(cqe.rss_hash_type, 2 << 6 | 1 << 2);
                counts[index] += 1;
            }
        }
        counts[0] + counts[1] == 8
    });
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
}

/// A TIR for the receive queue `number`.
pub(super) fn queue_tir(driver: &mut Driver, number: u32) -> u32 {
    driver.create(Input::new(0x900, 272).set(tirc::INLINE_RQN.at(CONTEXT), number.into()))
}

/// Steers frames for the second station to the queue `number` of its device.
fn steer_to(drivers: &mut [Driver], number: u32) {
    let tir = queue_tir(&mut drivers[1], number);
    steer(&mut drivers[1], station(2).mac(), tir);
}

/// A CQ that compresses in the format with this number of `MLX5_CQE_FORMAT_*`.
fn compressing(format: u64) -> impl Fn(Input) -> Input {
    move |input| {
        let input = input.set(cqc::CQE_COMP_EN.at(0x80), 1);
        input.set(cqc::MINI_CQE_RES_FORMAT.at(0x80), format)
    }
}

#[test]
fn completions_are_compressed_if_the_cq_requests_it() {
    let mut drivers = pair();
    let mut sender = Sender::new(&mut drivers[0]);
    let cq = drivers[1].create_cq_with(compressing(0));
    let mut receiver = Receiver::with(&mut drivers[1], cq);
    steer_to(&mut drivers, receiver.number);
    let frames: Vec<_> = (0..3).map(|port| frame(station(2).mac(), port)).collect();
    frames.iter().for_each(|frame| sender.send(&mut drivers[0], frame));
    let (mut title, mut sent) = (None, 0);
    run(&mut drivers, |drivers| {
        sent += usize::from(drivers[0].poll(&mut sender.cq).is_some());
        title = title.or(drivers[1].poll(&mut receiver.cq));
        title.is_some() && sent == 3
    });
    let title = title.unwrap();
    assert_eq!(title.op_own.format(), CqeFormat::COMPRESSED);
    assert_eq!(title.byte_count.get(), 3, "completions of the title");
    let array = drivers[1].bytes(receiver.cq.ring + 64, 64);
    for (index, frame) in frames.iter().enumerate() {
        let mini = MiniCqe::read_from_bytes(&array[index * 8..][..8]).unwrap();
        assert_eq!(mini.byte_count.get() as usize, frame.len());
        let at = receiver.buffers + index as u64 * BUFFER;
        assert_eq!(drivers[1].bytes(at, frame.len() as u64), *frame);
    }
}

#[test]
fn compressions_that_the_device_lacks_are_refused() {
    let mut driver = pair().into_iter().next().unwrap();
    let refused = |driver: &mut Driver, change: &dyn Fn(Input) -> Input| {
        let input = change(Input::new(0x400, 272).set(cqc::LOG_CQ_SIZE.at(0x80), 4));
        let input = input.set(cqc::C_EQN_OR_APU_ELEMENT.at(0x80), driver.eq.into());
        let input = input.set(cqc::UAR_PAGE.at(0x80), driver.uar.into());
        let (ring, record) = (driver.alloc(16 << 7), driver.alloc(8));
        let input = input.set(cqc::DBR_ADDR.at(0x80), record).pages(ring, 16 << 7);
        driver.command(input, 16).err().map(|refused| refused.0)
    };
    const PARAMETER: Option<u64> = Some(3);
    assert_eq!(refused(&mut driver, &compressing(1)), None);
    assert_eq!(refused(&mut driver, &compressing(2)), PARAMETER, "no such format");
    let enhanced = |input| compressing(0)(input).set(cqc::CQE_COMPRESSION_LAYOUT.at(0x80), 1);
    assert_eq!(refused(&mut driver, &enhanced), PARAMETER, "another layout");
    let long = |input| compressing(0)(input).set(cqc::CQE_SZ.at(0x80), 1);
    assert_eq!(refused(&mut driver, &long), PARAMETER, "entries of 128 bytes");
}

/// A receive queue of two WQEs, each of `strides` strides of 64 bytes; `strides` is encoded as in
/// CREATE_RQ.
fn strides(driver: &mut Driver, strides: u64) -> (Input, u64, u64) {
    let input = Input::new(0x908, 272);
    let (input, ring, record) = work_queue(driver, input, 5);
    let input = input
        .set(wq::WQ_TYPE.at(QUEUE), 3)
        .set(wq::LOG_WQE_NUM_OF_STRIDES.at(QUEUE), strides)
        .set(wq::TWO_BYTE_SHIFT_EN.at(QUEUE), 1);
    (input, ring, record)
}

#[test]
fn frames_share_the_strides_of_a_wqe() {
    let mut drivers = pair();
    let mut sender = Sender::new(&mut drivers[0]);
    let mut cq = drivers[1].create_cq();
    // The field is 10 for 8 strides.
    let (input, ring, record) = strides(&mut drivers[1], 10);
    let number = drivers[1].create(input.set(rqc::CQN.at(CONTEXT), cq.number.into()));
    make_ready(&mut drivers[1], 0x909, number);
    let buffers = drivers[1].alloc(2 * 512);
    for slot in 0..2 {
        let data = DataSegment::new(buffers + slot * 512, 512, drivers[1].lkey);
        drivers[1].memory.write(ring + slot * 32 + 16, data.as_bytes()).unwrap();
    }
    drivers[1].memory.write(record, &2u32.to_be_bytes()).unwrap();
    steer_to(&mut drivers, number);
    // A frame of 64 bytes with the two-byte shift needs two strides.
    let frames: Vec<_> = (0..5).map(|port| frame(station(2).mac(), port)).collect();
    assert_eq!(frames[0].len(), 64);
    frames.iter().for_each(|frame| sender.send(&mut drivers[0], frame));
    let (mut done, mut sent) = (Vec::new(), 0);
    run(&mut drivers, |drivers| {
        sent += usize::from(drivers[0].poll(&mut sender.cq).is_some());
        done.extend(drivers[1].poll(&mut cq));
        (done.len(), sent) == (5, 5)
    });
    for (index, (cqe, frame)) in done.iter().zip(&frames).enumerate() {
        let places = (cqe.wqe_id.get(), cqe.wqe_counter.get());
        assert_eq!(places, (index as u16 / 4, index as u16 % 4 * 2));
        assert_eq!(cqe.byte_count.get(), 2 << 16 | 64);
        assert_eq!(drivers[1].bytes(buffers + index as u64 * 128 + 2, 64), *frame);
    }
}

#[test]
fn more_strides_than_a_cqe_can_count_are_refused() {
    let mut driver = pair().into_iter().next().unwrap();
    let cq = driver.create_cq().number;
    let mut answer = |number, kind| {
        let (input, _, _) = strides(&mut driver, number);
        let input = input.set(rqc::CQN.at(CONTEXT), cq.into()).set(wq::WQ_TYPE.at(QUEUE), kind);
        driver.command(input, 16).err().map(|refused| refused.0)
    };
    assert_eq!((answer(5, 3), answer(15, 3)), (None, None), "16384 and 256");
    assert_eq!(answer(6, 3), Some(3), "32768");
    assert_eq!((answer(0, 2), answer(0, 0)), (Some(3), Some(3)), "lists of receives");
}

#[test]
fn a_table_forwards_frames_without_an_entry() {
    let mut drivers = pair();
    let mut sender = Sender::new(&mut drivers[0]);
    let mut receiver = Receiver::new(&mut drivers[1]);
    let tir = queue_tir(&mut drivers[1], receiver.number);
    let last = steer(&mut drivers[1], station(2).mac(), tir);
    // The new root table has no entry. It forwards to the earlier table.
    let first = table_input(0)
        .set(flow_table_context::TABLE_MISS_ACTION.at(0xc0), 1)
        .set(flow_table_context::TABLE_MISS_ID.at(0xc0), last.into());
    let first = drivers[1].create(first);
    let root = |table: u32| Input::new(0x92f, 64).set(create_flow_group_in::TABLE_ID, table.into());
    drivers[1].done(root(first), 8);
    sender.send(&mut drivers[0], &frame(station(2).mac(), 3));
    run(&mut drivers, |drivers| drivers[1].poll(&mut receiver.cq).is_some());
    let destroy = Input::new(0x931, 64).set(create_flow_group_in::TABLE_ID, last.into());
    assert_eq!(drivers[1].command(destroy, 8).unwrap_err().0, 6, "a table leads to it");
    // Without a table to forward to, the frame is lost.
    let forget = Input::new(0x93c, 64)
        .set(create_flow_group_in::TABLE_ID, first.into())
        .set(modify_flow_table_in::MODIFY_FIELD_SELECT, 1);
    drivers[1].done(forget, 8);
    sender.send(&mut drivers[0], &frame(station(2).mac(), 4));
    let mut completions = 0;
    run(&mut drivers, |drivers| {
        completions += usize::from(drivers[0].poll(&mut sender.cq).is_some());
        completions == 2
    });
    run(&mut drivers, |_| true);
    assert!(drivers[1].poll(&mut receiver.cq).is_none());
}

#[test]
fn modifying_a_tir_keeps_its_other_fields() {
    let mut driver = pair().into_iter().next().unwrap();
    let table = driver.create(Input::new(0x916, 272));
    let tir = Input::new(0x900, 272)
        .set(tirc::DISP_TYPE.at(CONTEXT), 1)
        .set(tirc::INDIRECT_TABLE.at(CONTEXT), table.into())
        .set(tirc::RX_HASH_FN.at(CONTEXT), 2);
    let number = driver.create(tir);
    let change = |mask: u64| {
        Input::new(0x901, 272)
            .number(number)
            .set(field(0x80, 64), mask)
            .set(tirc::RX_HASH_FIELD_SELECTOR_OUTER.at(CONTEXT), 0xf)
            .set(tirc::SELF_LB_BLOCK.at(CONTEXT), 3)
    };
    let query = |driver: &mut Driver| {
        let reply = driver.done(Input::new(0x903, 16).number(number), 272);
        let fields = [
            tirc::DISP_TYPE,
            tirc::INDIRECT_TABLE,
            tirc::RX_HASH_FN,
            tirc::RX_HASH_FIELD_SELECTOR_OUTER,
            tirc::SELF_LB_BLOCK,
        ];
        fields.map(|field| field.at(CONTEXT).get(&reply))
    };
    driver.done(change(1 << 4), 8);
    assert_eq!(query(&mut driver), [1, table.into(), 2, 0, 3]);
    driver.done(change(1 << 2), 8);
    assert_eq!(query(&mut driver), [1, table.into(), 0, 0xf, 3]);
    assert_eq!(driver.command(change(1 << 9), 8).unwrap_err().0, 3, "an unknown bit");
}

#[test]
fn tables_in_use_cannot_be_destroyed() {
    let mut driver = pair().into_iter().next().unwrap();
    let receiver = Receiver::new(&mut driver);
    let tir = queue_tir(&mut driver, receiver.number);
    let table = steer(&mut driver, [2; 6], tir);
    let destroy = Input::new(0x931, 64).set(create_flow_group_in::TABLE_ID, table.into());
    assert_eq!(driver.command(destroy, 8).unwrap_err().0, 6, "it has a group");
    let nowhere = Input::new(0x936, 840)
        .set(create_flow_group_in::TABLE_ID, table.into())
        .set(set_fte_in::FLOW_INDEX, 1)
        .set(flow_context::GROUP_ID.at(0x200), 1)
        .set(flow_context::ACTION.at(0x200), 4)
        .set(flow_context::DESTINATION_LIST_SIZE.at(0x200), 1)
        .set(field(0x1a00, 8), 2)
        .set(field(0x1a08, 24), 0x777);
    assert_eq!(driver.command(nowhere, 8).unwrap_err().0, 5, "no such TIR");
}

#[test]
fn a_root_in_use_stays_the_root() {
    let mut drivers = pair();
    let mut sender = Sender::new(&mut drivers[0]);
    let mut receiver = Receiver::new(&mut drivers[1]);
    let forward = |level, next: u32| {
        table_input(level)
            .set(flow_table_context::TABLE_MISS_ACTION.at(0xc0), 1)
            .set(flow_table_context::TABLE_MISS_ID.at(0xc0), next.into())
    };
    let tir = queue_tir(&mut drivers[1], receiver.number);
    let last = steer(&mut drivers[1], station(2).mac(), tir);
    let root = drivers[1].create(forward(1, last));
    drivers[1].create(forward(0, root));
    let named = |opcode, table: u32| {
        Input::new(opcode, 64).set(create_flow_group_in::TABLE_ID, table.into())
    };
    drivers[1].done(named(0x92f, root), 8);
    assert_eq!(drivers[1].command(named(0x931, root), 8).unwrap_err().0, 6, "a table leads to it");
    sender.send(&mut drivers[0], &frame(station(2).mac(), 3));
    let mut left = 0;
    run(&mut drivers, |drivers| {
        left += usize::from(drivers[0].poll(&mut sender.cq).is_some());
        left == 1
    });
    run(&mut drivers, |_| true);
    assert!(drivers[1].poll(&mut receiver.cq).is_some());
}

/// The kernel's network device rings the doorbell of a NOP and destroys the queue at once.
#[test]
fn a_doorbell_counted_after_its_queue_is_destroyed_causes_no_warning() {
    let mut driver = Driver::ready(Settings::at(station(1), LinkLayer::Ethernet), Cable::default());
    let trace = File::from(memfd_create(c"trace", MFdFlags::MFD_CLOEXEC).unwrap());
    driver.device.firmware.trace = Trace::new(trace.try_clone().unwrap());
    let [first, second] = [(); 2].map(|()| Sender::new(&mut driver).number);
    let nop = |number| {
        ControlSegment::new(Opcode::NOP, 0, number, 1, ControlFlags::default(), U32::new(0))
    };
    driver.doorbell(nop(first).as_bytes());
    driver.done(Input::new(0x906, 16).set(field(0x48, 24), first.into()), 8);
    // A second doorbell in place of the rest of a BlueFlame copy, so that the first store counts as
    // a doorbell.
    driver.doorbell(nop(second).as_bytes());
    let mut lines = vec![0; trace.metadata().unwrap().len() as usize];
    trace.read_exact_at(&mut lines, 0).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    assert!(lines.contains("DESTROY_SQ") && !lines.contains("WARNING"), "{lines}");
}

/// As the character device does by DEVX.
#[test]
fn a_port_for_frames_announces_pools_and_counters_in_bulk() {
    let [mut driver, _] = pair();
    let shown = driver.done(Input::new(0x100, 16), 16 + 4096);
    let announced = [
        (general::FLOW_COUNTER_BULK_ALLOC, 0b111),
        (general::MEM_RQ_RMP, 1),
        (general::BASIC_CYCLIC_RCV_WQE, 1),
    ];
    for (field, value) in announced {
        assert_eq!(field.at(0x80).get(&shown), value, "{field:?}");
    }
}
