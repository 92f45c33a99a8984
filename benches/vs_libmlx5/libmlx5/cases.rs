//! The same operations by libmlx5: each case runs 256 of them and returns the nanoseconds of the
//! measured part.

use std::hint::black_box;
use std::ptr::{null, null_mut};

use uverbs_libmlx5_harness::abi::{
    Context, DirectSrq, QpEx, RecvWr, SendWr, SendWrTail, Sge, TsoWr,
};

use super::{Libmlx5Queues, OPERATIONS};
use crate::halted::QpNumbers;
use crate::measured;

pub(super) const WRITE: u32 = 0;
pub(super) const SEND: u32 = 2;
const SIGNALED: u32 = 2;
const INLINE: u32 = 8;
const REMOTE: u64 = 0x1000;
pub(super) const RKEY: u32 = 0x1234;

/// `ibv_wr_start` … `ibv_wr_complete` around `count` requests, 256 in all. Each takes `$blocks`
/// WQEBBs.
macro_rules! requests {
    ($theirs:ident, $count:expr, $blocks:expr, |$qp:ident, $i:ident| $build:expr) => {{
        let $qp: *mut QpEx = $theirs.qp_ex;
        let time = measured(|| {
            for first in (0..OPERATIONS).step_by($count) {
                // SAFETY: a QP of libmlx5, used by this thread alone.
                unsafe {
                    ((*$qp).start)($qp);
                    for $i in first..first + $count {
                        (*$qp).wr_id = $i as u64;
                        (*$qp).wr_flags = 0;
                        $build
                    }
                    assert_eq!(((*$qp).complete)($qp), 0);
                }
            }
        });
        $theirs.retire($blocks);
        time
    }};
}

pub(super) fn address(i: usize) -> u64 {
    REMOTE + 64 * i as u64
}

pub(crate) fn write_inline_16(theirs: &mut Libmlx5Queues) -> u64 {
    let data = theirs.data;
    requests!(theirs, 1, 1, |qp, i| {
        ((*qp).rdma_write)(qp, RKEY, address(i));
        ((*qp).set_inline_data)(qp, data.add(64 * i), 16);
    })
}

pub(crate) fn write_inline_64(theirs: &mut Libmlx5Queues) -> u64 {
    let data = theirs.data;
    requests!(theirs, 1, 2, |qp, i| {
        ((*qp).rdma_write)(qp, RKEY, address(i));
        ((*qp).set_inline_data)(qp, data.add(64 * i), 64);
    })
}

pub(crate) fn write_sge(theirs: &mut Libmlx5Queues) -> u64 {
    let (data, lkey) = (theirs.data, theirs.lkey);
    requests!(theirs, 1, 1, |qp, i| {
        ((*qp).rdma_write)(qp, RKEY, address(i));
        ((*qp).set_sge)(qp, lkey, data.add(64 * i) as u64, 64);
    })
}

pub(crate) fn send_sge(theirs: &mut Libmlx5Queues) -> u64 {
    let (data, lkey) = (theirs.data, theirs.lkey);
    requests!(theirs, 1, 1, |qp, i| {
        ((*qp).send)(qp);
        ((*qp).set_sge)(qp, lkey, data.add(64 * i) as u64, 64);
    })
}

pub(crate) fn write_sge_32(theirs: &mut Libmlx5Queues) -> u64 {
    let (data, lkey) = (theirs.data, theirs.lkey);
    requests!(theirs, 32, 1, |qp, i| {
        ((*qp).rdma_write)(qp, RKEY, address(i));
        ((*qp).set_sge)(qp, lkey, data.add(64 * i) as u64, 64);
    })
}

pub(crate) fn write_inline_16_32(theirs: &mut Libmlx5Queues) -> u64 {
    let data = theirs.data;
    requests!(theirs, 32, 1, |qp, i| {
        ((*qp).rdma_write)(qp, RKEY, address(i));
        ((*qp).set_inline_data)(qp, data.add(64 * i), 16);
    })
}

/// Prepares 256 sends and 256 receives, chained in lists of `list`.
fn prepare(theirs: &mut Libmlx5Queues, opcode: u32, flags: u32, length: u32, list: usize) {
    let sge = |i: usize| Sge {
        address: theirs.data.wrapping_add(64 * i) as u64,
        length,
        lkey: theirs.lkey,
    };
    theirs.sges = (0..OPERATIONS).map(sge).collect();
    let sges = theirs.sges.as_mut_ptr();
    let send = |i: usize| SendWr {
        wr_id: i as u64,
        next: null_mut(),
        sges: sges.wrapping_add(i),
        sge_count: 1,
        opcode,
        flags,
        immediate: 0,
        target: [address(i), u64::from(RKEY), 0, 0],
        remote_srqn: 0,
        tail: SendWrTail { tso: TsoWr { header: null(), header_length: 0, mss: 0 } },
    };
    let receive = |i: usize| RecvWr {
        wr_id: i as u64,
        next: null_mut(),
        sges: sges.wrapping_add(i),
        sge_count: 1,
    };
    theirs.sends = (0..OPERATIONS).map(send).collect();
    theirs.receives = (0..OPERATIONS).map(receive).collect();
    let (sends, receives) = (theirs.sends.as_mut_ptr(), theirs.receives.as_mut_ptr());
    for i in (0..OPERATIONS).filter(|i| (i + 1) % list != 0) {
        theirs.sends[i].next = sends.wrapping_add(i + 1);
        theirs.receives[i].next = receives.wrapping_add(i + 1);
    }
}

/// Posts each list by `ibv_post_send` (or the verb `$call`), inside `$run`.
macro_rules! post {
    ($theirs:ident, $call:ident, $queue:expr, $list:ident, $length:expr, $run:ident) => {{
        let queue = $queue;
        let (requests, mut bad) = ($theirs.$list.as_mut_ptr(), null_mut());
        $run(|| {
            for i in (0..OPERATIONS).step_by($length) {
                // SAFETY: a queue of libmlx5, used by this thread alone, and a list for it.
                unsafe {
                    let context: *mut Context = (*queue).context;
                    assert_eq!(((*context).$call)(queue, requests.add(i), &mut bad), 0);
                }
            }
        })
    }};
}

pub(crate) fn ud_send_inline_16(theirs: &mut Libmlx5Queues) -> u64 {
    prepare(theirs, SEND, INLINE, 16, 1);
    // Address handle; queue pair number 1, Q_Key 2.
    let target = [theirs.ah as u64, 1 | 2 << 32, 0, 0];
    theirs.sends.iter_mut().for_each(|request| request.target = target);
    let time = post!(theirs, post_send, theirs.ud, sends, 1, measured);
    theirs.retire_ud(2);
    time
}

pub(crate) fn recv(theirs: &mut Libmlx5Queues) -> u64 {
    prepare(theirs, SEND, 0, 64, 1);
    let time = post!(theirs, post_recv, theirs.qp, receives, 1, measured);
    drain_receives(theirs);
    time
}

pub(crate) fn recv_32(theirs: &mut Libmlx5Queues) -> u64 {
    prepare(theirs, SEND, 0, 64, 32);
    let time = post!(theirs, post_recv, theirs.qp, receives, 32, measured);
    drain_receives(theirs);
    time
}

fn drain_receives(theirs: &mut Libmlx5Queues) {
    drain(theirs, theirs.numbers, std::iter::repeat_n(0, OPERATIONS));
}

/// Writes and polls a receive's CQE for each of `entries`: entries of the QP's SRQ, or 0 without
/// one.
pub(super) fn drain(theirs: &mut Libmlx5Queues, qp: QpNumbers, entries: impl Iterator<Item = u32>) {
    for entry in entries {
        theirs.cqe.receive(qp.user_index, qp.number, entry);
        theirs.poll_one();
    }
}

/// The SRQ's entries in the order in which libmlx5 will use them. Its list of free entries is in
/// the ring.
pub(super) fn shared_order(theirs: &mut Libmlx5Queues) -> Vec<u32> {
    (0..OPERATIONS).map(|_| next_entry(&mut theirs.srq_direct)).collect()
}

/// Takes the SRQ entry that libmlx5 uses next. To be called once for each request.
pub(super) fn next_entry(direct: &mut DirectSrq) -> u32 {
    let entry = direct.head;
    let link = direct.buffer + entry as usize * direct.stride as usize + 2;
    // SAFETY: the link of an entry of the SRQ's ring.
    direct.head = unsafe { u16::from_be((link as *const u16).read_volatile()) }.into();
    entry
}

pub(crate) fn srq_recv(theirs: &mut Libmlx5Queues) -> u64 {
    prepare(theirs, SEND, 0, 64, 1);
    let order = shared_order(theirs);
    let time = post!(theirs, post_srq_recv, theirs.srq, receives, 1, measured);
    drain(theirs, theirs.srq_numbers, order.into_iter());
    time
}

/// Opcode of a WRITE in the word of a CQE that also has the queue pair's number.
const WRITTEN: u32 = 8 << 24;

/// Posts 256 signaled writes and writes their CQEs, which the caller polls.
fn complete_sends(theirs: &mut Libmlx5Queues) {
    prepare(theirs, WRITE, SIGNALED, 64, 1);
    post!(theirs, post_send, theirs.qp, sends, 1, plainly);
    for _ in 0..OPERATIONS {
        theirs.cqe.send(theirs.numbers.user_index, WRITTEN | theirs.numbers.number, theirs.posted);
        theirs.posted += 1;
    }
}

fn poll(theirs: &mut Libmlx5Queues, count: usize) -> u64 {
    let (cq, context) = (theirs.cq, theirs.context);
    let out = theirs.completions.as_mut_ptr();
    let mut sum = 0;
    let time = measured(|| {
        for _ in (0..OPERATIONS).step_by(count) {
            // SAFETY: space for 16 completions.
            let polled = unsafe { ((*context).poll_cq)(cq, count as i32, out) };
            assert_eq!(polled, count as i32);
            for i in 0..count {
                // SAFETY: as above; just written.
                let done = unsafe { &*out.add(i) };
                sum += done.wr_id + u64::from(done.status);
            }
        }
    });
    black_box(sum);
    time
}

pub(crate) fn poll_send_16(theirs: &mut Libmlx5Queues) -> u64 {
    complete_sends(theirs);
    poll(theirs, 16)
}

pub(crate) fn poll_recv_16(theirs: &mut Libmlx5Queues) -> u64 {
    prepare(theirs, SEND, 0, 64, 32);
    post!(theirs, post_recv, theirs.qp, receives, 32, plainly);
    for _ in 0..OPERATIONS {
        theirs.cqe.receive(theirs.numbers.user_index, theirs.numbers.number, 0);
    }
    poll(theirs, 16)
}

/// `ibv_start_poll` and `ibv_end_poll` around each completion.
pub(crate) fn poll_send_1(theirs: &mut Libmlx5Queues) -> u64 {
    prepare(theirs, WRITE, SIGNALED, 64, 1);
    post!(theirs, post_send, theirs.lazy, sends, 1, plainly);
    let (index, word) = (theirs.lazy_numbers.user_index, WRITTEN | theirs.lazy_numbers.number);
    for _ in 0..OPERATIONS {
        theirs.cqe_ex.send(index, word, theirs.lazy_posted);
        theirs.lazy_posted += 1;
    }
    let cq = theirs.cq_ex;
    let mut sum = 0;
    let time = measured(|| {
        for _ in 0..OPERATIONS {
            // SAFETY: a CQ of libmlx5, polled by this thread alone.
            unsafe {
                assert_eq!(((*cq).start_poll)(cq, &0), 0);
                sum += (*cq).wr_id + u64::from((*cq).status) + u64::from(((*cq).read_opcode)(cq));
                ((*cq).end_poll)(cq);
            }
        }
    });
    black_box(sum);
    time
}

pub(crate) fn poll_empty(theirs: &mut Libmlx5Queues) -> u64 {
    let cq = theirs.cq_ex;
    measured(|| {
        for _ in 0..OPERATIONS {
            // SAFETY: as above.
            assert_eq!(unsafe { ((*cq).start_poll)(cq, &0) }, libc::ENOENT);
        }
    })
}

/// Runs `work` without timing or counting it, unlike [`measured`].
fn plainly(work: impl FnOnce()) {
    work();
}
