//! Converts receive requests to ring bytes, with the real queues; see `post.rs`.

#![allow(unsafe_code)]

use super::plain_memory::Memory;
use super::post::{Posted, PostedWqe, SpecError, handle};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::WQEBB_SIZE;
use uverbs_mlx5::queue_state::Shape;
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::request::{ListError, PostError, Sge};
use uverbs_mlx5::shared_recv_queue::{SharedRecvQueue, SharedRecvQueueConfig};

/// A receive queue to post to.
#[derive(Clone, Copy, Debug)]
pub struct RecvQueueSpec {
    /// Entries, a power of two, 2^15 at most.
    pub entries: u32,
    /// Bytes per entry, a power of two from 16 to 512.
    pub stride: u32,
    /// The queue's counter at the start; all earlier requests have completed.
    pub start: u32,
    /// Whether many frames share an entry. Its buffers then follow 16 zero bytes (`struct
    /// mlx5_wqe_srq_next_seg`).
    pub striding: bool,
}

/// A new shared receive queue to post to. Its entries are used in order.
#[derive(Clone, Copy, Debug)]
pub struct SharedRecvQueueSpec {
    /// Entries, a power of two from 2 to 2^15. One of them is never used.
    pub entries: u32,
    /// Bytes per entry, a power of two from 32 to 512.
    pub stride: u32,
}

/// Posts receives, each a scatter list.
///
/// # Errors
/// See [`SpecError`]. A request that the queue refuses is not an error: see [`Posted::refused`].
pub fn post_receives(spec: &RecvQueueSpec, lists: &[&[Sge]]) -> Result<Posted, SpecError> {
    let RecvQueueSpec { entries, stride, start, striding } = *spec;
    let (ring, record) = memory(entries, stride)?;
    // SAFETY: both exist until the queue has been dropped, and only the queue uses them.
    let (memory, doorbell) = unsafe { (ring.dma(), DoorbellWord::new(record.start())) };
    let handle = handle(Shape { send_wqebbs: 0, recv_wqes: entries, shared_receive: false })?;
    let (head_octowords, scatter_to_cqe) = (striding.into(), false);
    let config =
        RecvQueueConfig { memory, doorbell, handle, stride, head_octowords, scatter_to_cqe };
    let mut queue = RecvQueue::new(config)?;
    // SAFETY: the queue is new and in plain memory that no device reads.
    unsafe { queue.continue_at(start) };
    // SAFETY: no device writes to the memory that is named.
    let refused = post_all(lists, |data| unsafe { queue.build(0, data) });
    queue.publish();
    let end = queue.head();
    drop(queue);
    let count = end.wrapping_sub(start);
    let places = (0..count).map(|index| start.wrapping_add(index));
    let wqes = places.map(|place| entry(&ring, place, entries, stride)).collect();
    Ok(Posted { refused, wqes, end, doorbell_record: record.array(), mmio: Vec::new() })
}

/// Posts receives to a shared receive queue, each a scatter list. The WQEs are linked in the order
/// in which the device uses them.
///
/// # Errors
/// See [`SpecError`]. A request that the queue refuses is not an error: see [`Posted::refused`].
pub fn post_shared_receives(
    spec: &SharedRecvQueueSpec,
    lists: &[&[Sge]],
) -> Result<Posted, SpecError> {
    let SharedRecvQueueSpec { entries, stride } = *spec;
    let (ring, record) = memory(entries, stride)?;
    // SAFETY: both exist until the queue has been dropped, and only the queue uses them.
    let (memory, doorbell) = unsafe { (ring.dma(), DoorbellWord::new(record.start())) };
    let handle = handle(Shape { send_wqebbs: 0, recv_wqes: entries, shared_receive: true })?;
    let config = SharedRecvQueueConfig { memory, doorbell, handle, stride, scatter_to_cqe: false };
    let mut queue = SharedRecvQueue::new(config)?;
    // SAFETY: no device writes to the memory that is named.
    let refused = post_all(lists, |data| unsafe { queue.build(0, data) });
    queue.publish();
    drop(queue);
    let end = refused.map_or(lists.len(), |refused| refused.index) as u32;
    let wqes = (0..end).map(|place| entry(&ring, place, entries, stride)).collect();
    Ok(Posted { refused, wqes, end, doorbell_record: record.array(), mmio: Vec::new() })
}

/// Ring and doorbell record.
fn memory(entries: u32, stride: u32) -> Result<(Memory, Memory), SpecError> {
    if entries > 1 << 15 || stride > 512 {
        return Err(SpecError::TooLarge);
    }
    Ok((Memory::new((entries * stride) as usize, 0), Memory::new(WQEBB_SIZE, 0)))
}

/// Posts the lists one after the other, up to the first that is refused.
fn post_all(
    lists: &[&[Sge]],
    mut post: impl FnMut(&[Sge]) -> Result<(), PostError>,
) -> Option<ListError> {
    let refusal = |(index, data): (usize, &&[Sge])| {
        post(data).err().map(|reason| ListError { index, reason })
    };
    lists.iter().enumerate().find_map(refusal)
}

fn entry(ring: &Memory, place: u32, entries: u32, stride: u32) -> PostedWqe {
    let bytes = ring.wrapped(place, 1, entries, stride as usize);
    PostedWqe { slot: place & (entries - 1), bytes }
}
