//! Tests that libmlx5 works in the harness: it posts into its ring, writes its doorbell register,
//! and returns the completions that the harness writes.

use std::ptr::null_mut;

use uverbs_libmlx5_harness::abi::{SendWr, SendWrTail, Sge, TsoWr};
use uverbs_libmlx5_harness::{Libmlx5, QueuePair, QueuePairSpec, Service};

const RDMA_WRITE: u32 = 0;
const SIGNALED: u32 = 2;

/// A signaled write of 64 bytes.
fn write_request(entry: &mut Sge, wr_id: u64) -> SendWr {
    SendWr {
        wr_id,
        next: null_mut(),
        sges: entry,
        sge_count: 1,
        opcode: RDMA_WRITE,
        flags: SIGNALED,
        immediate: 0,
        target: [0x2000, 9, 0, 0],
        remote_srqn: 0,
        tail: SendWrTail { tso: TsoWr { header: std::ptr::null(), header_length: 0, mss: 0 } },
    }
}

fn post(pair: &QueuePair, wr_id: u64) -> i32 {
    let mut entry = Sge { address: 0x1000, length: 64, lkey: 7 };
    let mut request = write_request(&mut entry, wr_id);
    let mut bad = null_mut();
    // SAFETY: a whole request, which the device does not see.
    unsafe { ((*pair.context()).post_send)(pair.qp, &raw mut request, &raw mut bad) }
}

/// A requester's CQE for the WQE at this counter.
fn requester(counter: u16) -> [u8; 64] {
    let mut cqe = [0; 64];
    cqe[56] = 8;
    cqe[60..62].copy_from_slice(&counter.to_be_bytes());
    cqe
}

#[test]
fn requests_are_posted_and_completed_over_several_laps() {
    let libmlx5 = match Libmlx5::load() {
        Ok(libmlx5) => libmlx5,
        Err(reason) => {
            assert!(std::env::var_os("CI").is_none(), "{reason}");
            return eprintln!("skipped: {reason}");
        }
    };
    let capacities = [16, 16, 2, 2, 64];
    let spec = QueuePairSpec { service: Service::Rc, capacities, signal_all: false, operations: 0 };
    let mut pair = libmlx5.create_qp(&spec).expect("a queue pair");
    libmlx5.restart(&mut pair);
    pair.fill(0xcc);
    let blocks = pair.direct.send.entries;
    for counter in 0..3 * blocks {
        assert_eq!(post(&pair, counter.into()), 0, "request {counter}");
        let slot = (counter % blocks) as usize * 64;
        let wqe = &pair.send_ring()[slot..][..48];
        assert_eq!(wqe[..4], (counter << 8 | 8).to_be_bytes());
        assert_eq!(wqe[16..24], 0x2000u64.to_be_bytes());
        assert_eq!(wqe[32..36], 64u32.to_be_bytes());
        assert_eq!(pair.record()[4..], (counter + 1).to_be_bytes());
        let done = pair.complete(requester(counter as u16)).expect("a completion");
        assert_eq!((done.wr_id, done.status, done.opcode), (counter.into(), 0, 1));
    }
    assert!(pair.register().iter().any(|byte| *byte != 0xcc), "no doorbell");
    libmlx5.restart(&mut pair);
    assert_eq!(post(&pair, 0), 0);
    assert_eq!(pair.record()[4..], 1u32.to_be_bytes());
}
