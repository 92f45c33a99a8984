//! Compares receive requests of a queue pair, of a shared receive queue and of a work queue.

use std::ptr::null_mut;

use arbitrary::{Result, Unstructured};
use uverbs_libmlx5_harness::Service;
use uverbs_libmlx5_harness::abi::{RecvWr, Sge};
use uverbs_mlx5::format::{OCTOWORD, TERMINATOR_LKEY};
use uverbs_mlx5_inspect::{
    Posted, RecvQueueSpec, SharedRecvQueueSpec, post_receives, post_shared_receives, receive_errno,
};

use super::{Libmlx5Queues, UNWRITTEN, assert_same};

/// Lists of entries, some of them with too many.
fn lists(u: &mut Unstructured<'_>, shortest: u32) -> Result<Vec<Vec<Sge>>> {
    let entry = |u: &mut Unstructured<'_>| {
        let length = u.int_in_range(shortest..=i32::MAX as u32)?;
        Ok(Sge { address: u.arbitrary()?, length, lkey: u.arbitrary()? })
    };
    let list = |u: &mut Unstructured<'_>| {
        (0..u.int_in_range(0..=9)?).map(|_| entry(u)).collect::<Result<Vec<_>>>()
    };
    (0..u.int_in_range(1..=4)?).map(|_| list(u)).collect()
}

/// The same lists as linked requests for libmlx5.
fn linked(lists: &mut [Vec<Sge>]) -> Vec<RecvWr> {
    let request = |list: &mut Vec<Sge>| {
        let (sges, sge_count) = (list.as_mut_ptr(), list.len() as i32);
        RecvWr { wr_id: 0, next: null_mut(), sges, sge_count }
    };
    let mut requests: Vec<RecvWr> = lists.iter_mut().map(request).collect();
    let first = requests.as_mut_ptr();
    for index in 1..requests.len() {
        requests[index - 1].next = first.wrapping_add(index);
    }
    requests
}

type Ours = Vec<Vec<uverbs_mlx5::request::Sge>>;

fn ours(lists: &[Vec<Sge>]) -> Ours {
    let entry = |sge: &Sge| uverbs_mlx5::request::Sge::new(sge.address, sge.length, sge.lkey);
    lists.iter().map(|list| list.iter().map(entry).collect()).collect()
}

/// errno and index of the refused request.
fn outcome(posted: &Posted, count: usize) -> (i32, usize) {
    posted.refused.map_or((0, count), |refused| (receive_errno(refused.reason), refused.index))
}

fn index_of(bad: *mut RecvWr, requests: &[RecvWr]) -> usize {
    if bad.is_null() {
        requests.len()
    } else {
        (bad as usize - requests.as_ptr() as usize) / size_of::<RecvWr>()
    }
}

/// Bytes of a WQE up to and including its terminator, after which the device reads nothing. The
/// list starts after `head` units of 16 bytes.
fn used(wqe: &[u8], head: usize) -> usize {
    let is_terminator = |unit: &[u8]| unit[4..8] == TERMINATOR_LKEY.to_be_bytes();
    let end = wqe.chunks(OCTOWORD).skip(head).position(is_terminator);
    end.map_or(wqe.len(), |entries| (head + entries + 1) * OCTOWORD)
}

pub(super) fn run(queues: &mut Libmlx5Queues, u: &mut Unstructured<'_>) -> Result<()> {
    let with_receives = |(service, signal_all, _): &&mut (Service, bool, _)| {
        !matches!(service, Service::XrcSend | Service::Dci) && !*signal_all
    };
    let count = queues.pairs.iter_mut().filter(with_receives).count();
    let index = u.choose_index(count)?;
    let Some((_, _, pair)) = queues.pairs.iter_mut().filter(with_receives).nth(index) else {
        return Ok(());
    };
    let mut lists = lists(u, 0)?;
    let ring = &pair.direct.recv;
    let (entries, stride) = (ring.entries, ring.stride);
    let spec = RecvQueueSpec { entries, stride, start: 0, striding: false };
    let (buffer, length) = (ring.buffer as *mut u8, (ring.entries * ring.stride) as usize);
    let ours = ours(&lists);
    let borrowed: Vec<_> = ours.iter().map(Vec::as_slice).collect();
    let posted = post_receives(&spec, &borrowed).expect("libmlx5 made such a queue");

    queues.libmlx5.restart(pair);
    let mut requests = linked(&mut lists);
    let mut bad = null_mut();
    // SAFETY: the ring, which only libmlx5 writes, in this thread; whole requests with their lists.
    let (errno, theirs) = unsafe {
        buffer.write_bytes(UNWRITTEN, length);
        let post = (*pair.context()).post_recv;
        let errno = post(pair.qp, requests.as_mut_ptr(), &raw mut bad);
        (errno, std::slice::from_raw_parts(buffer, length).to_vec())
    };
    assert_eq!(outcome(&posted, lists.len()), (errno, index_of(bad, &requests)));
    for wqe in &posted.wqes {
        let place = &theirs[(wqe.slot * spec.stride) as usize..][..spec.stride as usize];
        let used = used(&wqe.bytes, 0);
        assert_same(&wqe.bytes[..used], &place[..used], "a receive WQE");
    }
    assert_eq!(pair.record()[..4], posted.doorbell_record);
    Ok(())
}

/// Each input gets a new shared receive queue.
pub(super) fn run_shared(queues: &Libmlx5Queues, u: &mut Unstructured<'_>) -> Result<()> {
    let mut lists = lists(u, 1)?;
    let srq = queues.libmlx5.create_srq(u.int_in_range(4..=20)?, u.int_in_range(1..=6)?);
    let srq = srq.expect("a shared receive queue");
    let spec = SharedRecvQueueSpec { entries: srq.entries(), stride: srq.direct.stride };
    let length = (spec.entries * spec.stride) as usize;
    let ours = ours(&lists);
    let borrowed: Vec<_> = ours.iter().map(Vec::as_slice).collect();
    let posted = post_shared_receives(&spec, &borrowed).expect("libmlx5 made such a queue");

    let mut requests = linked(&mut lists);
    let mut bad = null_mut();
    let buffer = srq.direct.buffer as *const u8;
    // SAFETY: whole requests with their lists; the ring, which only libmlx5 writes, in this thread;
    // the record.
    let (errno, theirs, record) = unsafe {
        let post = (*queues.libmlx5.context).post_srq_recv;
        let errno = post(srq.srq, requests.as_mut_ptr(), &raw mut bad);
        let ring = std::slice::from_raw_parts(buffer, length).to_vec();
        (errno, ring, (srq.direct.record as *const [u8; 4]).read())
    };
    assert_eq!(outcome(&posted, lists.len()), (errno, index_of(bad, &requests)));
    for wqe in &posted.wqes {
        let place = &theirs[(wqe.slot * spec.stride) as usize..][..spec.stride as usize];
        let used = used(&wqe.bytes, 1);
        assert_same(&wqe.bytes[..used], &place[..used], "a shared receive WQE");
    }
    assert_eq!(record, posted.doorbell_record);
    queues.libmlx5.destroy_srq(srq);
    Ok(())
}

/// Each input gets a new receive work queue.
pub(super) fn run_work_queue(queues: &Libmlx5Queues, u: &mut Unstructured<'_>) -> Result<()> {
    let mut lists = lists(u, 0)?;
    let striding: bool = u.arbitrary()?;
    let wq = queues.libmlx5.create_wq(u.int_in_range(4..=20)?, u.int_in_range(1..=6)?, striding);
    let wq = wq.expect("a work queue");
    let (entries, stride) = (wq.direct.entries, wq.direct.stride);
    let spec = RecvQueueSpec { entries, stride, start: 0, striding };
    let ours = ours(&lists);
    let borrowed: Vec<_> = ours.iter().map(Vec::as_slice).collect();
    let posted = post_receives(&spec, &borrowed).expect("libmlx5 made such a queue");

    let mut requests = linked(&mut lists);
    let mut bad = null_mut();
    let (buffer, length) = (wq.direct.buffer as *mut u8, (entries * stride) as usize);
    // SAFETY: the ring, which only libmlx5 writes, in this thread; whole requests with their lists;
    // the record.
    let (errno, theirs, record) = unsafe {
        buffer.write_bytes(UNWRITTEN, length);
        let errno = ((*wq.wq).post_recv)(wq.wq, requests.as_mut_ptr(), &raw mut bad);
        let ring = std::slice::from_raw_parts(buffer, length).to_vec();
        (errno, ring, (wq.direct.record as *const [u8; 4]).read())
    };
    assert_eq!(outcome(&posted, lists.len()), (errno, index_of(bad, &requests)));
    // libmlx5 does not write the link, and puts the list in its place.
    let head = usize::from(striding);
    for wqe in &posted.wqes {
        let (link, list) = wqe.bytes.split_at(head * OCTOWORD);
        assert_eq!(link, &[0; OCTOWORD][..link.len()]);
        let place = &theirs[(wqe.slot * stride) as usize..][..list.len()];
        let used = used(list, 0);
        assert_same(&list[..used], &place[..used], "a WQE of a work queue");
    }
    assert_eq!(record, posted.doorbell_record);
    queues.libmlx5.destroy_wq(wq);
    Ok(())
}
