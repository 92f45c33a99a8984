//! Observed `ibv_wr_*` calls: which thread builds requests of a queue pair, and which memory they
//! use.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::thread::{self, ThreadId};

use super::data::{Posted, enter, entered, leave, of_qp, take_back, trace};
use super::misuse::{self, Kind, Seen, complain};
use super::words::lkeys;
use super::{sees_data, wanted};
use crate::abi::*;
use crate::qp::Qp;
use crate::table::Table;

/// Replaces the functions of a queue pair that build requests by observed ones, if checks are
/// requested.
pub(crate) fn building(ex: &mut ibv_qp_ex) {
    if sees_data() {
        ex.wr_start = wr_start;
        ex.wr_complete = wr_complete;
        ex.wr_abort = wr_abort;
    }
    if wanted().check {
        ex.wr_set_sge = wr_set_sge;
        ex.wr_set_sge_list = wr_set_sge_list;
        ex.wr_set_inline_data = wr_set_inline_data;
        ex.wr_set_inline_data_list = wr_set_inline_data_list;
    }
}

/// Requests that are being built.
#[derive(Debug)]
struct Batch {
    thread: ThreadId,
    requests: Vec<Posted>,
}

/// Batches by the queue pair's address.
static BATCHES: Table<HashMap<usize, Batch>> = Table::new();

/// Whether this thread builds requests of the queue pair.
fn is_building(qp: *mut ibv_qp_ex) -> bool {
    let this = thread::current().id();
    BATCHES.lock().get(&qp.addr()).is_some_and(|batch| batch.thread == this)
}

fn begin(qp: *mut ibv_qp_ex) {
    let batch = Batch { thread: thread::current().id(), requests: Vec::new() };
    BATCHES.lock().insert(qp.addr(), batch);
}

/// Ends a batch and returns its requests; `None` if no batch was begun.
fn end(qp: *mut ibv_qp_ex) -> Option<Vec<Posted>> {
    BATCHES.lock().remove(&qp.addr()).map(|batch| batch.requests)
}

/// Records a request's memory.
///
/// # Safety
/// The caller's queue pair.
unsafe fn note(qp: *mut ibv_qp_ex, lkeys: Vec<u32>) {
    // SAFETY: the caller's promise. The program has set the id before.
    let wr_id = unsafe { (*qp).wr_id };
    if let Some(batch) = BATCHES.lock().get_mut(&qp.addr()) {
        batch.requests.push(Posted { wr_id, lkeys });
    }
}

/// The plain functions of a queue pair that build requests.
///
/// # Safety
/// A queue pair that is alive.
unsafe fn plain(qp: *mut ibv_qp_ex) -> ibv_qp_ex {
    // SAFETY: the caller's promise; the copy is used for its functions only.
    unsafe {
        let queue_pair = Qp::of(qp.cast());
        (queue_pair.send.wr)((&raw const (*qp).qp_base).read(), queue_pair.send_lock.is_needed())
    }
}

/// Observed `ibv_wr_start`.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    const VERB: &str = "ibv_wr_start";
    let seen = Seen { address: qp.expose_provenance(), kind: Kind::Qp };
    if wanted().check && misuse::is_alive(VERB, seen).is_err() {
        return;
    }
    if wanted().check && is_building(qp) {
        complain(
            VERB,
            "this thread builds requests of this queue pair already: ibv_wr_complete or \
             ibv_wr_abort comes before the next start",
        );
        return;
    }
    enter(VERB, qp.cast());
    // SAFETY: the caller's queue pair.
    unsafe { (plain(qp).wr_start)(qp) };
    if wanted().check {
        begin(qp);
    }
}

/// Observed `ibv_wr_complete`.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    const VERB: &str = "ibv_wr_complete";
    let mut count = 0;
    if wanted().check {
        let Some(requests) = end(qp) else {
            complain(VERB, "nothing was begun: ibv_wr_start comes before");
            return libc::EINVAL;
        };
        count = requests.len();
        // Before they are posted: another thread may poll their completions.
        entered(qp.expose_provenance(), of_qp(qp.cast()), true, requests);
    }
    // SAFETY: the caller's queue pair, after start.
    let errno = unsafe { (plain(qp).wr_complete)(qp) };
    if errno != 0 {
        take_back(qp.addr(), true, count);
    }
    leave(qp.cast());
    trace(VERB, &format!("qp={qp:p} -> {errno}"));
    errno
}

/// Observed `ibv_wr_abort`.
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    const VERB: &str = "ibv_wr_abort";
    if wanted().check && end(qp).is_none() {
        complain(VERB, "nothing was begun: ibv_wr_start comes before");
        return;
    }
    // SAFETY: the caller's queue pair, after start.
    unsafe { (plain(qp).wr_abort)(qp) };
    leave(qp.cast());
    trace(VERB, &format!("qp={qp:p}"));
}

/// Checked `ibv_wr_set_sge`.
unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller's queue pair, after start.
    unsafe {
        note(qp, vec![lkey]);
        (plain(qp).wr_set_sge)(qp, lkey, addr, length);
    }
}

/// Checked `ibv_wr_set_sge_list`.
unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller's queue pair, after start, and list.
    unsafe {
        note(qp, lkeys(list, c_int::try_from(count).unwrap_or(c_int::MAX)));
        (plain(qp).wr_set_sge_list)(qp, count, list);
    }
}

/// Checked `ibv_wr_set_inline_data`.
unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, data: *mut c_void, length: usize) {
    // SAFETY: the caller's queue pair, after start, and memory.
    unsafe {
        note(qp, Vec::new());
        (plain(qp).wr_set_inline_data)(qp, data, length);
    }
}

/// Checked `ibv_wr_set_inline_data_list`.
unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the caller's queue pair, after start, and list.
    unsafe {
        note(qp, Vec::new());
        (plain(qp).wr_set_inline_data_list)(qp, count, list);
    }
}
