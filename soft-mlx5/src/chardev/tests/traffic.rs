//! Two RC queue pairs of one context, without a library: a SEND in a WQE written by hand,
//! completions read from the rings by hand, with and without events.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use uverbs_uapi::enums::{MigState, Mtu, QpState};
use uverbs_uapi::flags::{AccessFlags, QpAttrMask};
use uverbs_uapi::write::qp::{ModifyQp, QpDest};

use super::super::SoftDevice;
use super::bench::{Client, Cq, Memory, Qp, QpRequest, Uar, builder, read_event, wait_for};

const MESSAGE: &[u8; 13] = b"from a to b.\n";

/// Moves a QP to RTS, connected to another QP of the same port.
pub(super) fn connect(
    device: &SoftDevice,
    client: &Client,
    qp: Qp,
    peer: u32,
) -> Result<(), Errno> {
    let lid = device.lid();
    let dest = QpDest {
        dgid: device.gids().last().unwrap().gid.0,
        sgid_index: (device.gids().len() - 1) as u8,
        is_global: (lid == 0).into(),
        hop_limit: 64,
        dlid: lid,
        port_num: 1,
        ..QpDest::default()
    };
    let base = ModifyQp { qp_handle: qp.handle, port_num: 1, ..ModifyQp::default() };
    client.write(&ModifyQp {
        attr_mask: QpAttrMask::STATE
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::PORT
            | QpAttrMask::ACCESS_FLAGS,
        qp_state: QpState::INIT,
        qp_access_flags: AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE,
        ..base
    })?;
    client.write(&ModifyQp {
        attr_mask: QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN
            | QpAttrMask::MAX_DEST_RD_ATOMIC
            | QpAttrMask::MIN_RNR_TIMER,
        qp_state: QpState::RTR,
        dest,
        path_mtu: Mtu(3),
        dest_qp_num: peer,
        rq_psn: 5,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        ..base
    })?;
    client.write(&ModifyQp {
        attr_mask: QpAttrMask::STATE
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::SQ_PSN
            | QpAttrMask::MAX_QP_RD_ATOMIC,
        qp_state: QpState::RTS,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        sq_psn: 5,
        max_rd_atomic: 1,
        path_mig_state: MigState(0),
        ..base
    })
}

/// `struct mlx5_wqe_data_seg`.
fn data_segment(length: u32, key: u32, address: u64) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[..4].copy_from_slice(&length.to_be_bytes());
    segment[4..8].copy_from_slice(&key.to_be_bytes());
    segment[8..].copy_from_slice(&address.to_be_bytes());
    segment
}

/// Posts one receive into slot 0.
fn post_receive(ring: &Memory, key: u32, address: u64, length: u32) {
    ring.put(0, &data_segment(length, key, address));
    ring.put(4088, &1u32.to_be_bytes());
}

/// Posts one signaled SEND into block 0, which follows 4 receives of 16 bytes, and rings the
/// doorbell.
fn post_send(ring: &Memory, uar: &Uar, qpn: u32, key: u32, address: u64, length: u32) {
    let mut control = [0; 16];
    control[..4].copy_from_slice(&0x0a_u32.to_be_bytes());
    control[4..8].copy_from_slice(&(qpn << 8 | 2).to_be_bytes());
    control[11] = 0x08;
    ring.put(64, &control);
    ring.put(80, &data_segment(length, key, address));
    ring.put(4092, &1u32.to_be_bytes());
    uar.ring(0x800, control[..8].try_into().unwrap());
}

/// Waits for the CQE in a slot in the first lap: opcode and byte count.
fn completion(ring: &Memory, slot: usize) -> (u8, u32) {
    wait_for("completion", || {
        let [last] = ring.get::<1>(slot * 64 + 63);
        let there = last >> 4 != 0xf && last & 1 == 0;
        there.then(|| (last >> 4, u32::from_be_bytes(ring.get(slot * 64 + 44))))
    })
}

struct Pair {
    client: Client,
    uar: Uar,
    rings: [Memory; 2],
    cqs: [(Memory, Cq); 2],
    qps: [Qp; 2],
    data: Memory,
    key: u32,
}

fn pair(device: &SoftDevice, channel: bool) -> (Pair, Option<i32>) {
    let client = Client::open(device);
    let pd = client.alloc_pd();
    let uar = client.uar();
    let channel = channel.then(|| client.comp_channel());
    let data = Memory::pages(1);
    let key = client.reg_mr(pd, data.at(0), 4096).unwrap().lkey;
    let rings = [Memory::pages(1), Memory::pages(1)];
    let cqs = [0, 1].map(|index| {
        let memory = Memory::pages(2);
        let cq = client.create_cq(&memory, &uar, channel, 0xc0 + index).unwrap();
        (memory, cq)
    });
    let qps = [0, 1].map(|index| {
        let request = QpRequest::rc(&rings[index], &uar, pd, cqs[index].1.handle);
        client.create_qp(&request).unwrap()
    });
    connect(device, &client, qps[0], qps[1].qpn).unwrap();
    connect(device, &client, qps[1], qps[0].qpn).unwrap();
    (Pair { client, uar, rings, cqs, qps, data, key }, channel)
}

/// Arms the receiving CQ for any completion: sequence number 0, consumer index 0, command 0.
fn arm(pair: &Pair) {
    let (memory, cq) = &pair.cqs[1];
    memory.put(8188, &0u32.to_be_bytes());
    let mut arm = [0; 8];
    arm[4..].copy_from_slice(&cq.cqn.to_be_bytes());
    pair.uar.ring(0x20, arm);
}

fn send(pair: &Pair) {
    pair.data.put(0, MESSAGE);
    post_receive(&pair.rings[1], pair.key, pair.data.at(1024), 64);
    let length = MESSAGE.len() as u32;
    post_send(&pair.rings[0], &pair.uar, pair.qps[0].qpn, pair.key, pair.data.at(0), length);
}

fn one_message(device: &SoftDevice) {
    let (pair, _) = pair(device, false);
    send(&pair);
    assert_eq!(completion(&pair.cqs[1].0, 0), (2, MESSAGE.len() as u32), "receive completed");
    assert_eq!(completion(&pair.cqs[0].0, 0).0, 0, "send completed");
    assert_eq!(&pair.data.get(1024), MESSAGE);

    for qp in pair.qps {
        assert_eq!(pair.client.destroy_qp(qp.handle), Ok(0));
    }
    for (_, cq) in &pair.cqs {
        assert_eq!(pair.client.destroy_cq(cq.handle), Ok((0, 0)));
    }
}

#[test]
fn a_message_arrives_on_roce() {
    one_message(&builder().build().unwrap());
}

#[test]
fn a_message_arrives_on_infiniband() {
    one_message(&builder().infiniband().build().unwrap());
}

#[test]
fn an_armed_cq_raises_an_event_on_its_channel() {
    let device = builder().build().unwrap();
    let (pair, channel) = pair(&device, true);
    let channel = channel.unwrap();
    let (memory, cq) = &pair.cqs[1];
    arm(&pair);
    send(&pair);
    let record = wait_for("completion event", || read_event::<8>(channel));
    assert_eq!(u64::from_ne_bytes(record), 0xc1, "the user handle of the receiving CQ");
    assert_eq!(completion(memory, 0).0, 2);
    assert_eq!(read_event::<8>(channel), None, "one event per arming");
    for qp in pair.qps {
        pair.client.destroy_qp(qp.handle).unwrap();
    }
    assert_eq!(pair.client.destroy_cq(cq.handle), Ok((1, 0)), "one completion event was read");
    // SAFETY: the channel's descriptor is this test's own.
    unsafe { libc::close(channel) };
}

/// The device makes progress only in the thread that calls `poll_idle`.
#[test]
fn poll_idle_executes_a_send_and_raises_its_event() {
    let device = builder().without_thread().build().unwrap();
    let (pair, channel) = pair(&device, true);
    arm(&pair);
    send(&pair);
    let memory = &pair.cqs[1].0;
    let arrived = || memory.get::<1>(63)[0] >> 4 != 0xf && memory.get::<1>(63)[0] & 1 == 0;
    assert!(!arrived());
    (0..10).for_each(|_| pair.client.file.poll_idle());
    assert!(arrived());
    assert_eq!(completion(memory, 0).1, MESSAGE.len() as u32);
    assert!(read_event::<8>(channel.unwrap()).is_some());
    // SAFETY: the channel's descriptor is this test's own.
    unsafe { libc::close(channel.unwrap()) };
}

/// As on a NIC, which executes a request within microseconds of the doorbell. Programs send a last
/// message and disconnect at once.
#[test]
fn what_was_rung_is_sent_before_a_queue_pair_stops() {
    for qp_state in [QpState::ERR, QpState::RESET] {
        let device = builder().without_thread().build().unwrap();
        let (pair, _) = pair(&device, false);
        send(&pair);
        let attr_mask = QpAttrMask::STATE;
        let change =
            ModifyQp { qp_handle: pair.qps[0].handle, attr_mask, qp_state, ..ModifyQp::default() };
        pair.client.write(&change).unwrap();
        (0..10).for_each(|_| pair.client.file.poll_idle());
        assert_eq!(completion(&pair.cqs[1].0, 0), (2, MESSAGE.len() as u32), "{qp_state}");
    }
}

/// Only the thread that waits for the event makes the device's progress.
#[test]
fn a_thread_that_waits_for_an_event_does_the_devices_work() {
    let device = builder().without_thread().build().unwrap();
    let (pair, channel) = pair(&device, true);
    // SAFETY: the channel's descriptor is this test's own, and has no other owner.
    let channel = unsafe { OwnedFd::from_raw_fd(channel.unwrap()) };
    let wait = |timeout| pair.client.file.wait_readable(&[channel.as_fd()], timeout);
    assert_eq!(wait(Some(Duration::ZERO)), Ok(None));
    assert_eq!(wait(Some(Duration::from_millis(1))), Ok(None), "nothing was sent");
    arm(&pair);
    send(&pair);
    assert_eq!(wait(None), Ok(Some(0)));
    assert_eq!(wait(None), Ok(Some(0)), "it is still there");
    assert!(read_event::<8>(channel.as_raw_fd()).is_some());
    assert_eq!(completion(&pair.cqs[1].0, 0).1, MESSAGE.len() as u32);
}

/// The event is then not written to the file.
#[test]
fn a_thread_that_raises_the_event_it_waits_for_is_handed_it() {
    let device = builder().without_thread().build().unwrap();
    let (pair, channel) = pair(&device, true);
    // SAFETY: the channel's descriptor is this test's own, and has no other owner.
    let channel = unsafe { OwnedFd::from_raw_fd(channel.unwrap()) };
    let (file, other) = (&pair.client.file, std::fs::File::open("/dev/null").unwrap());
    assert!(file.event_reader(other.as_fd()).is_none());
    let reader = file.event_reader(channel.as_fd()).unwrap();
    let mut record = [0; 16];
    assert_eq!(reader.wait(&[channel.as_fd()], Some(Duration::ZERO)), Ok(None));
    assert_eq!(reader.read(&mut record), None, "nothing was sent");
    arm(&pair);
    send(&pair);
    assert_eq!(reader.wait(&[channel.as_fd()], None), Ok(Some(0)));
    assert_eq!(reader.wait(&[channel.as_fd()], None), Ok(Some(0)), "it was not taken");
    let in_file = file.wait_readable(&[channel.as_fd()], Some(Duration::ZERO));
    assert_eq!((in_file, reader.read(&mut record)), (Ok(None), Some(8)));
    assert_eq!(reader.read(&mut record), None);
}
