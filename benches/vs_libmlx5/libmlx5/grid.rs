//! The points of the grid with libmlx5: requests by `ibv_wr_*` calls, lists by `ibv_post_send`,
//! receives by `ibv_post_recv` and `ibv_post_srq_recv`. Polls are in `polls.rs`.

use std::ptr::{null, null_mut};

use uverbs_libmlx5_harness::abi::{Context, QpEx, RecvWr, SendWr, SendWrTail, Sge, TsoWr};

use super::cases::{RKEY, address, drain, shared_order};
use super::{Libmlx5Queues, OPERATIONS};
use crate::measured;

const INLINE: u32 = 8;

/// The data of a request.
#[derive(Clone, Copy, Debug)]
enum Data {
    Inline(usize),
    Sges(usize),
}

impl Data {
    /// Octowords in the WQE.
    fn octowords(self) -> usize {
        match self {
            Self::Inline(bytes) => (bytes + 4).div_ceil(16),
            Self::Sges(count) => count,
        }
    }
}

/// Runs the point of this name 256 times; `None` if libmlx5 has no counterpart here.
pub(crate) fn run(theirs: &mut Libmlx5Queues, name: &str) -> Option<u64> {
    let words: Vec<&str> = name.split(' ').collect();
    let (form, rest) = words.split_first()?;
    let digits = form.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    let count = if matches!(*form, "alone" | "built") { 1 } else { digits.parse().ok()? };
    let number = || rest.last()?.parse::<usize>().ok();
    let (operation, data) = match *rest {
        ["template", "write", _] | ["write", "const" | "run", _] => {
            ("write", Data::Inline(number()?))
        }
        ["poll", form, _] => return super::polls::point(theirs, count, form, number()?),
        ["receive", "sges", _] => return Some(receive(theirs, count, number()?)),
        ["srq", "receive", "sges", "1"] => return Some(shared_receive(theirs, count)),
        ["ud", "const", _] => return Some(ud(theirs, count, Data::Inline(number()?))),
        ["ud", "one"] => return Some(ud(theirs, count, Data::Sges(1))),
        [operation, "sge" | "sges", _] => (operation, Data::Sges(number()?)),
        [operation, "one" | "result"] => (operation, Data::Sges(1)),
        [operation, "nothing"] => (operation, Data::Sges(0)),
        _ => return None,
    };
    match (operation, form.starts_with("list")) {
        ("write", true) => Some(listed(theirs, count, data)),
        (_, true) => None,
        _ => called(theirs, count, operation, data),
    }
}

/// Octowords between control segment and data. `None` for operations that are not compared.
fn header(operation: &str) -> Option<usize> {
    Some(match operation {
        "send" | "send_imm" => 0,
        "write" | "write_imm" | "read" => 1,
        "fetch_add" | "compare_swap" => 2,
        _ => return None,
    })
}

fn blocks(header: usize, data: Data) -> usize {
    (1 + header + data.octowords()).div_ceil(4)
}

/// `ibv_wr_start` … `ibv_wr_complete` around each `count` requests.
fn called(theirs: &mut Libmlx5Queues, count: usize, operation: &str, data: Data) -> Option<u64> {
    let blocks = blocks(header(operation)?, data);
    let list = sges(theirs, data);
    macro_rules! run {
        (|$qp:ident, $i:ident| $call:expr) => {
            requests(theirs, count, data, &list, |$qp, $i| {
                // SAFETY: a QP of libmlx5, used by this thread alone.
                unsafe { $call }
            })
        };
    }
    let time = match operation {
        "send" => run!(|qp, _i| ((*qp).send)(qp)),
        "send_imm" => run!(|qp, _i| ((*qp).send_imm)(qp, 7)),
        "write" => run!(|qp, i| ((*qp).rdma_write)(qp, RKEY, address(i))),
        "write_imm" => run!(|qp, i| ((*qp).rdma_write_imm)(qp, RKEY, address(i), 7)),
        "read" => run!(|qp, i| ((*qp).rdma_read)(qp, RKEY, address(i))),
        "fetch_add" => run!(|qp, i| ((*qp).fetch_add)(qp, RKEY, address(i), 1)),
        _ => run!(|qp, i| ((*qp).compare_swap)(qp, RKEY, address(i), 1, 2)),
    };
    theirs.retire_wide(blocks);
    Some(time)
}

/// The SGEs of one request: an atomic's result, or 64 bytes each.
fn sges(theirs: &Libmlx5Queues, data: Data) -> Vec<Sge> {
    let Data::Sges(count) = data else { return Vec::new() };
    let sge = |i: usize| Sge {
        address: theirs.data.wrapping_add(64 * i) as u64,
        length: 64,
        lkey: theirs.lkey,
    };
    (0..count).map(sge).collect()
}

#[inline(always)]
fn requests(
    theirs: &mut Libmlx5Queues,
    count: usize,
    data: Data,
    list: &[Sge],
    operation: impl Fn(*mut QpEx, usize),
) -> u64 {
    let (qp, bytes) = (theirs.wide, theirs.data);
    measured(|| {
        for first in (0..OPERATIONS).step_by(count) {
            // SAFETY: a QP of libmlx5, used by this thread alone.
            unsafe { ((*qp).start)(qp) };
            for i in first..first + count {
                // SAFETY: as above; the data is the theirs's.
                unsafe {
                    (*qp).wr_id = i as u64;
                    (*qp).wr_flags = 0;
                    operation(qp, i);
                    match (data, list) {
                        (Data::Inline(length), _) => {
                            ((*qp).set_inline_data)(qp, bytes.add(8 * i), length);
                        }
                        (_, [one]) => ((*qp).set_sge)(qp, one.lkey, one.address, one.length),
                        (_, list) => ((*qp).set_sge_list)(qp, list.len(), list.as_ptr()),
                    }
                }
            }
            // SAFETY: as above.
            assert_eq!(unsafe { ((*qp).complete)(qp) }, 0);
        }
    })
}

/// Fills the list of send requests, chained in lists of `count`.
fn prepare(theirs: &mut Libmlx5Queues, count: usize, data: Data, opcode: u32, target: [u64; 4]) {
    let (lengths, flags) = match data {
        Data::Inline(bytes) => (vec![bytes as u32], INLINE),
        Data::Sges(count) => (vec![64; count], 0),
    };
    let start = theirs.data as u64;
    theirs.sges =
        lengths.iter().map(|&length| Sge { address: start, length, lkey: theirs.lkey }).collect();
    let sges = theirs.sges.as_mut_ptr();
    let send = |i: usize| SendWr {
        wr_id: i as u64,
        next: null_mut(),
        sges,
        sge_count: lengths.len() as i32,
        opcode,
        flags,
        immediate: 0,
        target,
        remote_srqn: 0,
        tail: SendWrTail { tso: TsoWr { header: null(), header_length: 0, mss: 0 } },
    };
    theirs.sends = (0..OPERATIONS).map(send).collect();
    let sends = theirs.sends.as_mut_ptr();
    for i in (0..OPERATIONS).filter(|i| (i + 1) % count != 0) {
        theirs.sends[i].next = sends.wrapping_add(i + 1);
    }
}

/// `ibv_post_send` of lists of writes.
fn listed(theirs: &mut Libmlx5Queues, count: usize, data: Data) -> u64 {
    prepare(theirs, count, data, super::cases::WRITE, [address(0), u64::from(RKEY), 0, 0]);
    let time = post_sends(theirs, theirs.wide.cast(), count);
    theirs.retire_wide(blocks(1, data));
    time
}

fn ud(theirs: &mut Libmlx5Queues, count: usize, data: Data) -> u64 {
    let target = [theirs.ah as u64, 1 | 2 << 32, 0, 0];
    prepare(theirs, count, data, super::cases::SEND, target);
    let time = post_sends(theirs, theirs.ud, count);
    let blocks = blocks(3, data) as u32;
    theirs.retire_ud(blocks);
    time
}

fn post_sends(theirs: &mut Libmlx5Queues, queue: *mut super::Qp, count: usize) -> u64 {
    let (requests, mut bad) = (theirs.sends.as_mut_ptr(), null_mut());
    measured(|| {
        for i in (0..OPERATIONS).step_by(count) {
            // SAFETY: a queue of libmlx5, used by this thread alone, and a list for it.
            unsafe {
                let context: *mut Context = (*queue).context;
                assert_eq!(((*context).post_send)(queue, requests.add(i), &mut bad), 0);
            }
        }
    })
}

/// Fills the list of receives, chained in lists of `count`.
fn prepare_receives(theirs: &mut Libmlx5Queues, count: usize, sges: usize) {
    theirs.sges = self::sges(theirs, Data::Sges(sges));
    let list = theirs.sges.as_mut_ptr();
    let receive =
        |i: usize| RecvWr { wr_id: i as u64, next: null_mut(), sges: list, sge_count: sges as i32 };
    theirs.receives = (0..OPERATIONS).map(receive).collect();
    let receives = theirs.receives.as_mut_ptr();
    for i in (0..OPERATIONS).filter(|i| (i + 1) % count != 0) {
        theirs.receives[i].next = receives.wrapping_add(i + 1);
    }
}

/// `$call` of each list of receives on `$queue`.
macro_rules! post_receives {
    ($theirs:ident, $count:ident, $call:ident, $queue:expr) => {{
        let (queue, requests) = ($queue, $theirs.receives.as_mut_ptr());
        let mut bad = null_mut();
        measured(|| {
            for i in (0..OPERATIONS).step_by($count) {
                // SAFETY: a queue of libmlx5, used by this thread alone, and a list for it.
                unsafe {
                    let context: *mut Context = (*queue).context;
                    assert_eq!(((*context).$call)(queue, requests.add(i), &mut bad), 0);
                }
            }
        })
    }};
}

fn receive(theirs: &mut Libmlx5Queues, count: usize, sges: usize) -> u64 {
    prepare_receives(theirs, count, sges);
    let time = post_receives!(theirs, count, post_recv, theirs.wide.cast::<super::Qp>());
    drain(theirs, theirs.wide_numbers, std::iter::repeat_n(0, OPERATIONS));
    time
}

fn shared_receive(theirs: &mut Libmlx5Queues, count: usize) -> u64 {
    prepare_receives(theirs, count, 1);
    let order = shared_order(theirs);
    let time = post_receives!(theirs, count, post_srq_recv, theirs.srq);
    drain(theirs, theirs.srq_numbers, order.into_iter());
    time
}
