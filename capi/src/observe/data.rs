//! Observed posts and polls: functions that replace the plain ones.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::thread::ThreadId;

use super::misuse::{self, Kind, Seen, complain};
use super::words::{completion, lkeys, request, show_data, tag_change};
use super::{sees_data, wanted};
use crate::abi::*;
use crate::cq::Cq;
use crate::qp::Qp;
use crate::table::Table;
use crate::{poll, post, receive, srq, tags, wq};

/// `ibv_post_wq_recv`.
type PostWorkQueue =
    unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// `ibv_post_srq_ops`.
type PostChanges =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int;

/// `IBV_QPS_RESET` and `IBV_QPS_ERR`.
const RESET: u32 = 0;
const ERR: u32 = 6;

/// The functions of a context that post and poll. They are observed if that is requested.
pub(crate) fn operations(plain: ibv_context_ops) -> ibv_context_ops {
    if !sees_data() {
        return plain;
    }
    ibv_context_ops { poll_cq, post_srq_recv, post_send, post_recv, ..plain }
}

/// Observes the poll functions of a completion queue, if that is requested.
pub(crate) fn polling(ex: &mut ibv_cq_ex) {
    if sees_data() {
        ex.start_poll = start_poll;
        ex.next_poll = next_poll;
    }
}

/// A request that has not completed.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) lkeys: Vec<u32>,
}

/// The requests posted to a queue pair or to a shared receive queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    context: usize,
    /// The queue pair's number; `None` for a shared receive queue or a work queue.
    number: Option<u32>,
    sends: VecDeque<Posted>,
    receives: VecDeque<Posted>,
}

impl Queue {
    fn shared(context: usize) -> Self {
        Self { context, ..Self::default() }
    }
}

static QUEUES: Table<HashMap<usize, Queue>> = Table::new();

/// Queue pairs without locks, and the threads that are posting to them.
static BUSY: Table<HashMap<usize, ThreadId>> = Table::new();

/// Records that this thread posts to a queue pair, and reports if another thread is posting to it
/// now.
pub(super) fn enter(verb: &str, qp: *mut ibv_qp) {
    // SAFETY: a queue pair that is alive.
    if !wanted().check || unsafe { Qp::of(qp) }.send_lock.is_needed() {
        return;
    }
    let this = std::thread::current().id();
    let before = BUSY.lock().insert(qp.addr(), this);
    if before.is_some_and(|before| before != this) {
        complain(
            verb,
            "posting from two threads: this queue pair has no lock (a thread domain, or \
             MLX5_SINGLE_THREADED), and another thread is posting to it now",
        );
    }
}

pub(super) fn leave(qp: *mut ibv_qp) {
    if wanted().check {
        BUSY.lock().remove(&qp.addr());
    }
}

/// Reports a memory region that is deregistered while a request uses it.
pub(super) fn going(verb: &str, seen: Seen) {
    if seen.kind != Kind::Mr {
        return;
    }
    let mr = std::ptr::with_exposed_provenance::<ibv_mr>(seen.address);
    // SAFETY: a memory region that is alive.
    let (context, lkey) = unsafe { ((*mr).context.addr(), (*mr).lkey) };
    let queues = QUEUES.lock();
    for (address, queue) in queues.iter().filter(|(_, queue)| queue.context == context) {
        complain_of_flight(verb, *address, queue, lkey);
    }
}

fn complain_of_flight(verb: &str, address: usize, queue: &Queue, lkey: u32) {
    let qp = std::ptr::with_exposed_provenance::<ibv_qp>(address);
    // SAFETY: a queue of the list may just have been destroyed; its memory stays (`gone.rs`).
    if queue.number.is_some() && unsafe { (*qp).state } == ERR {
        return;
    }
    let mut using = queue.sends.iter().chain(&queue.receives);
    let Some(first) = using.find(|posted| posted.lkeys.contains(&lkey)) else { return };
    let (more, wr_id) = (using.filter(|posted| posted.lkeys.contains(&lkey)).count(), first.wr_id);
    let of = match queue.number {
        Some(number) => format!("queue pair {number:#x}"),
        None => "a shared receive queue".to_owned(),
    };
    complain(
        verb,
        &format!(
            "the memory region (lkey {lkey:#x}) goes while {} of {of} in flight, the first with \
             wr_id {wr_id:#x}: poll their completions, or destroy the queue, before",
            if more == 0 {
                "a request is".to_owned()
            } else {
                format!("{} requests are", more + 1)
            },
        ),
    );
}

/// Removes the requests posted to a destroyed queue, including those posted while its destruction
/// waited.
pub(super) fn forget(seen: Seen) {
    if matches!(seen.kind, Kind::Qp | Kind::Srq | Kind::Wq) {
        QUEUES.lock().remove(&seen.address);
    }
}

/// Removes the requests posted to a queue pair that was reset.
pub(super) fn modified(seen: Seen) {
    let qp = std::ptr::with_exposed_provenance::<ibv_qp>(seen.address);
    // SAFETY: a queue pair that is alive.
    if unsafe { (*qp).state } == RESET {
        QUEUES.lock().remove(&seen.address);
    }
}

/// Records a list of requests, and returns how many there are.
pub(super) fn entered(address: usize, queue: Queue, sends: bool, posted: Vec<Posted>) {
    let mut queues = QUEUES.lock();
    let queue = queues.entry(address).or_insert(queue);
    if sends { queue.sends.extend(posted) } else { queue.receives.extend(posted) }
}

/// Removes the last requests, which were refused.
pub(super) fn take_back(address: usize, sends: bool, count: usize) {
    let mut queues = QUEUES.lock();
    let Some(queue) = queues.get_mut(&address) else { return };
    let list = if sends { &mut queue.sends } else { &mut queue.receives };
    list.truncate(list.len().saturating_sub(count));
}

pub(super) fn of_qp(qp: *mut ibv_qp) -> Queue {
    // SAFETY: a queue pair that is alive.
    let (context, number) = unsafe { ((*qp).context.addr(), (*qp).qp_num) };
    Queue { number: Some(number), ..Queue::shared(context) }
}

/// Stores the address of the first request that was not posted.
///
/// # Safety
/// Null, or a place to write to.
unsafe fn refused<W>(wr: *mut W, bad: *mut *mut W) -> c_int {
    if !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *bad = wr };
    }
    libc::EINVAL
}

/// Observed `ibv_post_send`.
unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    const VERB: &str = "ibv_post_send";
    let wanted = wanted();
    if wanted.check
        && misuse::is_alive(VERB, Seen { address: qp.expose_provenance(), kind: Kind::Qp }).is_err()
    {
        // SAFETY: the caller's place.
        return unsafe { refused(first, bad) };
    }
    let (mut posted, mut lines) = (Vec::new(), Vec::new());
    // SAFETY: the caller's list.
    unsafe {
        for wr in list(first, |wr| (*wr).next) {
            if wanted.check {
                let is_inline = (*wr).send_flags & send_flags::INLINE != 0;
                let named = || lkeys((*wr).sg_list, (*wr).num_sge);
                let lkeys = if is_inline { Vec::new() } else { named() };
                posted.push(Posted { wr_id: (*wr).wr_id, lkeys });
            }
            if wanted.trace_data {
                lines.push((wr, request(qp, wr)));
            }
        }
    }
    let count = posted.len();
    if wanted.check {
        // Before they are posted: another thread may poll their completions.
        entered(qp.expose_provenance(), of_qp(qp), true, posted);
    }
    enter(VERB, qp);
    let mut refused_at = std::ptr::null_mut();
    // SAFETY: the caller's.
    let errno = unsafe { post::post_send(qp, first, &raw mut refused_at) };
    leave(qp);
    let good = lines.iter().position(|(wr, _)| errno != 0 && *wr == refused_at);
    for (place, (_, line)) in lines.iter().enumerate() {
        let answer = if good.is_some_and(|good| place >= good) { errno } else { 0 };
        trace(VERB, &format!("{line} -> {answer}"));
    }
    if errno != 0 {
        if wanted.check {
            // SAFETY: the caller's list.
            let left = unsafe { not_before(refused_at, first, |wr| (*wr).next, count) };
            take_back(qp.addr(), true, left);
        }
        if !bad.is_null() {
            // SAFETY: the caller's place.
            unsafe { *bad = refused_at };
        }
    }
    errno
}

/// Longer than any list that is posted: the counters of mlx5's queues have 16 bits. A cyclic list
/// is also refused before that many requests; then all of it counts as not posted.
const LONGEST: usize = 1 << 16;

/// The requests of a list, up to [`LONGEST`].
///
/// # Safety
/// A program's list, whose successors `next` reads.
unsafe fn list<W>(first: *mut W, next: impl Fn(*mut W) -> *mut W) -> impl Iterator<Item = *mut W> {
    let not_null = |wr: *mut W| (!wr.is_null()).then_some(wr);
    std::iter::successors(not_null(first), move |wr| not_null(next(*wr))).take(LONGEST)
}

/// How many of the `count` requests of a list are not before the one that was refused.
///
/// # Safety
/// As for [`list`].
unsafe fn not_before<W>(
    refused: *mut W,
    first: *mut W,
    next: impl Fn(*mut W) -> *mut W,
    count: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let good = unsafe { list(first, next) }.position(|wr| wr == refused);
    count - good.unwrap_or(count)
}

pub(super) fn trace(verb: &str, what: &str) {
    if let (Some(trace), true) = (&wanted().trace, wanted().trace_data) {
        trace.line(verb, what);
    }
}

/// The parameter name of the queue in verbs that post receives.
fn parameter(kind: Kind) -> &'static str {
    match kind {
        Kind::Srq => "srq",
        Kind::Wq => "wq",
        _ => "qp",
    }
}

/// Observes a list of receives, which `plain` posts.
///
/// # Safety
/// A program's list.
unsafe fn receives(
    verb: &'static str,
    target: Seen,
    queue: impl FnOnce() -> Queue,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    plain: impl FnOnce(*mut *mut ibv_recv_wr) -> c_int,
) -> c_int {
    let check = wanted().check;
    if check && misuse::is_alive(verb, target).is_err() {
        // SAFETY: the caller's place.
        return unsafe { refused(first, bad) };
    }
    let mut posted = Vec::new();
    let shown = format!("{}={:#x}", parameter(target.kind), target.address);
    // SAFETY: the caller's list.
    unsafe {
        for one in list(first, |wr| (*wr).next) {
            let one = &*one;
            let mut line = format!("{shown}, wr_id={:#x}", one.wr_id);
            show_data(one.sg_list, one.num_sge, &mut line);
            trace(verb, &line);
            posted.push(Posted { wr_id: one.wr_id, lkeys: lkeys(one.sg_list, one.num_sge) });
        }
    }
    let count = posted.len();
    if check {
        entered(target.address, queue(), false, posted);
    }
    let mut refused_at = std::ptr::null_mut();
    let errno = plain(&raw mut refused_at);
    if errno != 0 {
        trace(verb, &format!("{shown}, refused from {refused_at:p} on -> {errno}"));
        if check {
            // SAFETY: the caller's list.
            let left = unsafe { not_before(refused_at, first, |wr| (*wr).next, count) };
            take_back(target.address, false, left);
        }
        if !bad.is_null() {
            // SAFETY: the caller's place.
            unsafe { *bad = refused_at };
        }
    }
    errno
}

/// Observed `ibv_post_recv`.
unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let target = Seen { address: qp.expose_provenance(), kind: Kind::Qp };
    // SAFETY: the caller's.
    unsafe {
        let plain = |bad| receive::post_recv(qp, first, bad);
        receives("ibv_post_recv", target, || of_qp(qp), first, bad, plain)
    }
}

/// The post function of a work queue, observed if that is requested.
pub(crate) fn work_queue_receives(plain: PostWorkQueue) -> PostWorkQueue {
    if sees_data() { post_wq_recv } else { plain }
}

/// Observed `ibv_post_wq_recv`.
unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let target = Seen { address: wq.expose_provenance(), kind: Kind::Wq };
    // SAFETY: a queue that is alive.
    let queue = || Queue::shared(unsafe { (*wq).context.addr() });
    // SAFETY: the caller's.
    unsafe {
        let plain = |bad| wq::post_wq_recv(wq, first, bad);
        receives("ibv_post_wq_recv", target, queue, first, bad, plain)
    }
}

/// Observed `ibv_post_srq_recv`.
unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let target = Seen { address: srq.expose_provenance(), kind: Kind::Srq };
    // SAFETY: a queue that is alive.
    let queue = || Queue::shared(unsafe { (*srq).context.addr() });
    // SAFETY: the caller's.
    unsafe {
        let plain = |bad| srq::post_srq_recv(srq, first, bad);
        receives("ibv_post_srq_recv", target, queue, first, bad, plain)
    }
}

/// The function that changes lists of tags, observed if that is requested.
pub(crate) fn tag_changes() -> PostChanges {
    if sees_data() { post_srq_ops } else { tags::post_srq_ops }
}

/// Observed `ibv_post_srq_ops`.
unsafe extern "C" fn post_srq_ops(
    srq: *mut ibv_srq,
    first: *mut ibv_ops_wr,
    bad: *mut *mut ibv_ops_wr,
) -> c_int {
    const VERB: &str = "ibv_post_srq_ops";
    let target = Seen { address: srq.expose_provenance(), kind: Kind::Srq };
    // SAFETY: the caller's queue, list and place.
    unsafe {
        if wanted().check && misuse::is_alive(VERB, target).is_err() {
            return refused(first, bad);
        }
        let changes = || list(first, |wr| (*wr).next);
        let lines: Vec<_> = match wanted().trace_data {
            true => changes().map(|wr| (wr, tag_change(srq, wr))).collect(),
            false => Vec::new(),
        };
        let mut refused_at = std::ptr::null_mut();
        let errno = tags::post_srq_ops(srq, first, &raw mut refused_at);
        let mut is_posted = true;
        for (wr, line) in &lines {
            is_posted &= errno == 0 || *wr != refused_at;
            trace(VERB, &format!("{line} -> {}", if is_posted { 0 } else { errno }));
        }
        if errno != 0 && !bad.is_null() {
            *bad = refused_at;
        }
        errno
    }
}

/// Records a completion.
fn completed(context: usize, number: u32, wr_id: u64, is_send: bool) {
    let mut queues = QUEUES.lock();
    let own = |queue: &&mut Queue| queue.context == context && queue.number == Some(number);
    if let Some(queue) = queues.values_mut().find(own) {
        let list = if is_send { &mut queue.sends } else { &mut queue.receives };
        if let Some(place) = list.iter().position(|posted| posted.wr_id == wr_id) {
            // Earlier sends have completed, too; receives complete one by one.
            list.drain(if is_send { 0 } else { place }..=place);
            return;
        }
        if is_send {
            // A request without data is not recorded. Those before it have completed, and those
            // after it are forgotten, too.
            list.clear();
            return;
        }
    }
    let shared = |queue: &&mut Queue| queue.context == context && queue.number.is_none();
    for queue in queues.values_mut().filter(shared).filter(|_| !is_send) {
        if let Some(place) = queue.receives.iter().position(|posted| posted.wr_id == wr_id) {
            queue.receives.remove(place);
            return;
        }
    }
}

/// Observed `ibv_poll_cq`.
unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, into: *mut ibv_wc) -> c_int {
    const VERB: &str = "ibv_poll_cq";
    let seen = Seen { address: cq.expose_provenance(), kind: Kind::Cq };
    if wanted().check && misuse::is_alive(VERB, seen).is_err() {
        return -1;
    }
    // SAFETY: the caller's.
    let count = unsafe { poll::poll_cq(cq, most, into) };
    for place in 0..count.max(0) as usize {
        // SAFETY: just written.
        let (wc, context) = unsafe { (&*into.add(place), (*cq).context.addr()) };
        if wanted().check {
            completed(context, wc.qp_num, wc.wr_id, wc.opcode & wc_opcode::RECV == 0);
        }
        if wanted().trace_data {
            trace(VERB, &format!("cq={cq:p}, {}", completion(wc)));
        }
    }
    if count < 0 {
        trace(VERB, &format!("cq={cq:p} -> {count}"));
    }
    count
}

/// Observed `ibv_start_poll`.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attributes: *mut c_void) -> c_int {
    let seen = Seen { address: cq.expose_provenance(), kind: Kind::Cq };
    if wanted().check && misuse::is_alive("ibv_start_poll", seen).is_err() {
        return libc::EINVAL;
    }
    // SAFETY: the caller's.
    let errno = unsafe {
        let start_poll = poll::start_poll_of(&Cq::of(cq.cast()).lock);
        start_poll(cq, attributes)
    };
    // SAFETY: between start and end, if it is 0.
    unsafe { shown("ibv_start_poll", cq, errno) }
}

/// Observed `ibv_next_poll`.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's.
    let errno = unsafe { poll::next_poll(cq) };
    // SAFETY: between start and end.
    unsafe { shown("ibv_next_poll", cq, errno) }
}

/// Whether a completion is one of a request that was recorded: changes of a list of tags are not,
/// nor are entries that take messages.
fn holds_request(opcode: u32, flags: u32) -> bool {
    let is_change = matches!(opcode, wc_opcode::TM_ADD | wc_opcode::TM_DEL | wc_opcode::TM_SYNC);
    let is_of_entry = flags & (wc_flags::TM_MATCH | wc_flags::TM_DATA_VALID) != 0;
    !is_change && !is_of_entry
}

/// # Safety
/// Between start and end of a poll, if `errno` is 0.
unsafe fn shown(verb: &str, cq: *mut ibv_cq_ex, errno: c_int) -> c_int {
    if errno != 0 {
        return errno;
    }
    // SAFETY: the caller's promise.
    let (wr_id, status, opcode, number, context, flags) = unsafe {
        let (opcode, number) = (((*cq).read_opcode)(cq), poll::read_qp_num(cq));
        let flags = ((*cq).read_wc_flags)(cq);
        ((*cq).wr_id, (*cq).status, opcode, number, (*cq).context, flags)
    };
    if wanted().check && holds_request(opcode, flags) {
        completed(context.addr(), number, wr_id, opcode & wc_opcode::RECV == 0);
    }
    let what = format!(
        "cq={cq:p}, wr_id={wr_id:#x}, status={status}, opcode={opcode}, qp_num={number:#x}"
    );
    trace(verb, &what);
    0
}
