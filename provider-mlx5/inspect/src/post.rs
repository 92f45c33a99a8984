//! Converts work requests to ring bytes, with the real queues.
//!
//! A queue and its doorbell register are in ordinary memory. The queue starts at a given counter.
//! The result of posting requests to it are the bytes that a device would get.

#![allow(unsafe_code)]

use std::sync::LazyLock;

use super::plain_memory::Memory;
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::{
    BLUEFLAME_HALF_SIZE, BLUEFLAME_REGISTER_SIZE, ETH_INLINE_L2, WQEBB_SIZE,
};
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::queue_error::QueueError;
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::request::{ListError, PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{
    Batch, Dci, EthernetSendHeader, RawEthernet, Rc, RunTimeDestination, RunTimeOperation,
    SendQueue, SendQueueConfig, SendRequest, Service, Transport, Uc, Ud, Xrc,
};
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

/// A send queue to post to.
#[derive(Clone, Copy, Debug)]
pub struct SendQueueSpec {
    /// Its service.
    pub service: Service,
    /// Number of the QP (raw Ethernet: of the send queue), 24 bits.
    pub number: u32,
    /// Blocks of 64 bytes in the ring, a power of two, 2^15 at most.
    pub blocks: u32,
    /// The queue's counter at the start; all earlier requests have completed.
    pub start: u32,
    /// Whether the previous request changed a memory key, so that the next one waits for it.
    pub small_fence: bool,
    /// Whether every request generates a completion.
    pub signal_all: bool,
    /// Most scatter/gather entries per request.
    pub max_sge: u32,
    /// Most bytes of inline data per request.
    pub max_inline: u32,
    /// Raw Ethernet: header bytes that the device requires in the WQE, 0 or 18.
    pub min_inline_header: u8,
}

/// A buffer of a work request's data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffer<'a> {
    /// Address, length and key. The memory is not read.
    pub sge: Sge,
    /// The bytes to copy into the WQE: all of them if the data is inline; the first 18 of the
    /// packet on a queue that requires headers in the WQE.
    pub bytes: &'a [u8],
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The operation.
    pub operation: RunTimeOperation<'a>,
    /// Its destination.
    pub destination: RunTimeDestination<'a>,
    /// How it completes and is ordered.
    pub flags: PostFlags,
    /// Whether the data is copied into the WQE.
    pub inline: bool,
    /// The data.
    pub data: &'a [Buffer<'a>],
}

/// The result of posting a list of work requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// The request that was refused, and why. The requests before it were posted.
    pub refused: Option<ListError>,
    /// The WQEs, in order.
    pub wqes: Vec<PostedWqe>,
    /// The queue's counter afterwards.
    pub end: u32,
    /// The doorbell record's word, in memory order.
    pub doorbell_record: [u8; 4],
    /// The stores to the doorbell register: 8 bytes for a doorbell, whole blocks for BlueFlame.
    pub mmio: Vec<Vec<u8>>,
}

/// One WQE in its ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedWqe {
    /// Its first block, or its entry.
    pub slot: u32,
    /// Its bytes: whole blocks, or a whole entry. A WQE that wraps in the ring is contiguous here.
    pub bytes: Vec<u8>,
}

/// Why a queue cannot be set up, or a list of requests cannot be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The queue's memory and limits contradict each other.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The data of a request must be copied, but is not given.
    #[error("request {index} copies data into the WQE, but its bytes are not given")]
    NoBytes {
        /// Index of the request.
        index: usize,
    },
    /// The queue is larger than supported here.
    #[error("a ring has at most 32768 entries, a receive WQE at most 512 bytes")]
    TooLarge,
}

/// Posts work requests in order, with one doorbell.
///
/// # Errors
/// See [`SpecError`]. A request that the queue refuses is not an error: see [`Posted::refused`].
pub fn post_sends(spec: &SendQueueSpec, works: &[Work<'_>]) -> Result<Posted, SpecError> {
    // Post twice, into differently filled memory: bytes that are the same afterwards were stored.
    let zeros = run(spec, works, 0)?;
    let ones = run(spec, works, !0)?;
    Ok(Posted { mmio: stored(&zeros.register, &ones.register), ..zeros.posted })
}

type RegisterBytes = [u8; BLUEFLAME_REGISTER_SIZE];

/// Contents of a ring and a register after posting. Both were filled with one byte value before.
struct Run {
    posted: Posted,
    register: RegisterBytes,
    #[cfg(test)]
    ring: Vec<u8>,
}

fn run(spec: &SendQueueSpec, works: &[Work<'_>], fill: u8) -> Result<Run, SpecError> {
    match spec.service {
        Service::Rc => run_on::<Rc>(spec, works, fill),
        Service::Uc => run_on::<Uc>(spec, works, fill),
        Service::Ud => run_on::<Ud>(spec, works, fill),
        Service::Xrc => run_on::<Xrc>(spec, works, fill),
        Service::Dci => run_on::<Dci>(spec, works, fill),
        Service::RawEthernet => run_on::<RawEthernet>(spec, works, fill),
    }
}

fn run_on<T: Transport>(
    spec: &SendQueueSpec,
    works: &[Work<'_>],
    fill: u8,
) -> Result<Run, SpecError> {
    if spec.blocks > 1 << 15 {
        return Err(SpecError::TooLarge);
    }
    let ring = Memory::new(spec.blocks as usize * WQEBB_SIZE, fill);
    let record = Memory::new(WQEBB_SIZE, 0);
    let register = Memory::new(BLUEFLAME_REGISTER_SIZE, fill);
    // SAFETY: the three exist until the queue has been dropped, and only the queue uses them.
    let (memory, doorbell, blue_flame) = unsafe {
        (
            ring.dma(),
            DoorbellWord::new(record.start()),
            BlueFlame::new(register.start(), BLUEFLAME_HALF_SIZE as u32),
        )
    };
    let shape = Shape { send_wqebbs: spec.blocks, recv_wqes: 0, shared_receive: false };
    let mut queue = SendQueue::<T>::new(SendQueueConfig {
        memory,
        doorbell,
        register: blue_flame,
        handle: handle(shape)?,
        number: spec.number,
        max_requests: spec.blocks,
        max_sge: spec.max_sge,
        max_inline: spec.max_inline,
        signal_all: spec.signal_all,
        min_inline_header: spec.min_inline_header,
        scatter_to_cqe: false,
    })?;
    // SAFETY: the queue is new and in plain memory that no device reads.
    unsafe { queue.continue_at(spec.start, spec.small_fence) };
    let (refused, ends) = post_all(&mut queue, spec, works)?;
    let end = queue.head();
    drop(queue);
    let wqes = ends.windows(2).map(|ends| PostedWqe {
        slot: ends[0] & (spec.blocks - 1),
        bytes: ring.wrapped(ends[0], ends[1].wrapping_sub(ends[0]), spec.blocks, WQEBB_SIZE),
    });
    let posted = Posted {
        refused,
        wqes: wqes.collect(),
        end,
        doorbell_record: record.array(),
        mmio: Vec::new(),
    };
    Ok(Run {
        posted,
        register: register.array(),
        #[cfg(test)]
        ring: ring.bytes(0, spec.blocks as usize * WQEBB_SIZE),
    })
}

/// Posts, and returns the refusal and the counter before the first and after each request.
fn post_all<T: Transport>(
    queue: &mut SendQueue<T>,
    spec: &SendQueueSpec,
    works: &[Work<'_>],
) -> Result<(Option<ListError>, Vec<u32>), SpecError> {
    let mut ends = vec![queue.head()];
    let mut batch = match queue.batch() {
        Ok(batch) => batch,
        Err(reason) => return Ok((Some(ListError { index: 0, reason }), ends)),
    };
    for (index, work) in works.iter().enumerate() {
        let prepared = Prepared::of(spec, work).ok_or(SpecError::NoBytes { index })?;
        if let Err(reason) = prepared.post(&mut batch) {
            batch.publish();
            return Ok((Some(ListError { index, reason }), ends));
        }
        ends.push(batch.head());
    }
    batch.publish();
    Ok((None, ends))
}

/// A work request whose entries refer to the bytes that will be copied.
struct Prepared<'a> {
    work: Work<'a>,
    data: Vec<Sge>,
    /// A packet's headers, if the data itself stays in memory.
    header: Option<[u8; ETH_INLINE_L2]>,
}

impl<'a> Prepared<'a> {
    /// `None` if bytes are missing.
    fn of(spec: &SendQueueSpec, work: &Work<'a>) -> Option<Self> {
        let packet = matches!(work.operation, RunTimeOperation::Packet(_));
        let header_inline = packet && spec.min_inline_header != 0;
        let (header, data) = match (work.inline, header_inline) {
            (true, _) => (None, own_bytes(work.data, header_inline)?),
            (false, true) => cut_header(work.data)?,
            (false, false) => (None, work.data.iter().map(|buffer| buffer.sge).collect()),
        };
        Some(Self { work: *work, data, header })
    }

    fn post<T: Transport>(&self, batch: &mut Batch<'_, T, BlueFlame>) -> Result<(), PostError> {
        if let (Some(header), RunTimeOperation::Packet(offload)) =
            (&self.header, self.work.operation)
        {
            if !matches!(self.work.destination, RunTimeDestination::Connected) {
                return Err(PostError::BadDestination);
            }
            let operation = EthernetSendHeader(offload, header);
            // SAFETY: no device reads the ring, so the data is never accessed.
            return unsafe { batch.build_any(0, operation, self.data.as_slice(), self.work.flags) };
        }
        let request = SendRequest {
            wr_id: 0,
            operation: self.work.operation,
            destination: self.work.destination,
            flags: self.work.flags,
            inline: self.work.inline,
            data: &self.data,
        };
        // SAFETY: no device reads the ring, so data that stays in memory is never accessed; inline
        // data is read from the buffers' own bytes (`own_bytes`); and a packet on a queue that
        // wants headers inline is inline, or has taken the branch above, or is too short, and
        // `cut_header` has left it entries without length.
        unsafe { batch.build_request(&request) }
    }
}

/// Entries that refer to the buffers' `bytes`. `None` if bytes are missing.
fn own_bytes(buffers: &[Buffer<'_>], header_inline: bool) -> Option<Vec<Sge>> {
    let entry = |buffer: &Buffer<'_>| {
        let there = buffer.bytes.len() == buffer.sge.length() as usize;
        // A length above the limit of inline data is refused before any byte is read. Headers,
        // however, are read first.
        let refused =
            buffer.sge.length() > uverbs_mlx5::format::INLINE_LENGTH_MASK && !header_inline;
        let address = buffer.bytes.as_ptr().expose_provenance() as u64;
        (there || refused).then_some(buffer.sge.with_address(address))
    };
    buffers.iter().map(entry).collect()
}

type Cut = (Option<[u8; ETH_INLINE_L2]>, Vec<Sge>);

/// Removes the first 18 bytes from the buffers. Shorter data results in no header and empty
/// entries, which the queue refuses.
fn cut_header(buffers: &[Buffer<'_>]) -> Option<Cut> {
    let mut header = Vec::new();
    let mut rest = Vec::new();
    for Buffer { sge, bytes } in buffers {
        let take = (ETH_INLINE_L2 - header.len()).min(sge.length() as usize);
        header.extend_from_slice(bytes.get(..take)?);
        rest.push(sge.skip(take as u32));
    }
    match header.try_into() {
        Ok(header) => Some((Some(header), rest)),
        Err(_) => Some((None, vec![Sge::default(); rest.len()])),
    }
}

/// The table for the queues of all calls. A new table in each call would take longer than the rest
/// of the call.
pub(super) static TABLE: LazyLock<UserIndexTable> = LazyLock::new(UserIndexTable::new);

pub(super) fn handle(shape: Shape) -> Result<QueueHandle, SpecError> {
    // A queue leaves the table at the end of its call, so an index is free.
    let handle = TABLE.register(shape, &[], None, 0);
    let handle = handle.map_err(|_| SpecError::TooLarge)?;
    handle.set_state(QpState::Rts);
    Ok(handle)
}

/// The stored ranges of a register, found by comparing its two contents.
fn stored(zeros: &RegisterBytes, ones: &RegisterBytes) -> Vec<Vec<u8>> {
    let mut stores: Vec<Vec<u8>> = Vec::new();
    let mut inside = false;
    for (at, (zero, one)) in zeros.iter().zip(ones).enumerate() {
        let written = zero == one;
        if written && (!inside || at == BLUEFLAME_HALF_SIZE) {
            stores.push(Vec::new());
        }
        inside = written;
        if let (true, Some(last)) = (written, stores.last_mut()) {
            last.push(*zero);
        }
    }
    stores
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use uverbs_mlx5::format::MAX_DS;
    use uverbs_mlx5::request::Remote;

    const BLOCKS: u32 = 32;

    fn spec(start: u32) -> SendQueueSpec {
        SendQueueSpec {
            service: Service::Rc,
            number: 0x123,
            blocks: BLOCKS,
            start,
            small_fence: false,
            signal_all: false,
            max_sge: 8,
            max_inline: 300,
            min_inline_header: 0,
        }
    }

    /// For each request the lengths of the buffers, and whether they are inline.
    fn shapes() -> impl Strategy<Value = Vec<(Vec<u32>, bool)>> {
        let lengths = prop::collection::vec(0u32..100, 0..8);
        prop::collection::vec((lengths, any::<bool>()), 1..8)
    }

    /// Posts writes of these shapes to a queue that was filled with `fill` before.
    fn run_shapes(start: u32, shapes: &[(Vec<u32>, bool)], fill: u8) -> Run {
        const DATA: [u8; 100] = [0x5a; 100];
        let buffer = |length: &u32| Buffer {
            sge: Sge::new(0x1000, *length, 7),
            bytes: &DATA[..*length as usize],
        };
        let buffers: Vec<Vec<Buffer<'_>>> =
            shapes.iter().map(|(lengths, _)| lengths.iter().map(buffer).collect()).collect();
        let works: Vec<Work<'_>> = shapes
            .iter()
            .zip(&buffers)
            .map(|((_, inline), data)| Work {
                operation: RunTimeOperation::Write(Remote::new(0x2000, 9)),
                destination: RunTimeDestination::Connected,
                flags: PostFlags::SIGNALED,
                inline: *inline,
                data,
            })
            .collect();
        run(&spec(start), &works, fill).expect("the queue can be made")
    }

    /// Number of bytes of a WQE that the device reads, without padding after inline data.
    fn meant(wqe: &PostedWqe, (lengths, inline): &(Vec<u32>, bool)) -> usize {
        let data = lengths.iter().sum::<u32>() as usize;
        match *inline && data > 0 {
            true => 16 + 16 + 4 + data,
            false => 16 * usize::from(wqe.bytes[7] & MAX_DS),
        }
    }

    proptest! {
        /// In two differently filled rings the bytes that the device reads are equal, so all of
        /// them were written. Bytes outside of the posted blocks are unchanged.
        #[test]
        fn exactly_the_slots_are_written(start in any::<u32>(), shapes in shapes()) {
            let (mut zeros, mut ones) = (run_shapes(start, &shapes, 0), run_shapes(start, &shapes, !0));
            prop_assert_eq!(zeros.posted.wqes.len(), ones.posted.wqes.len());
            for (wqes, shape) in zeros.posted.wqes.iter_mut().zip(&mut ones.posted.wqes).zip(&shapes) {
                for wqe in [wqes.0, wqes.1] {
                    let bytes = meant(wqe, shape);
                    prop_assert!(bytes <= wqe.bytes.len());
                    wqe.bytes.truncate(bytes);
                }
            }
            prop_assert_eq!(&zeros.posted, &ones.posted);
            let posted = zeros.posted.end.wrapping_sub(start);
            for slot in 0..BLOCKS {
                let written = slot.wrapping_sub(start) % BLOCKS < posted;
                let at = slot as usize * WQEBB_SIZE;
                let (zeros, ones) = (&zeros.ring[at..][..WQEBB_SIZE], &ones.ring[at..][..WQEBB_SIZE]);
                prop_assert!(written || zeros.iter().all(|byte| *byte == 0), "slot {}", slot);
                prop_assert!(written || ones.iter().all(|byte| *byte == !0), "slot {}", slot);
                // The device reads the first byte of each block.
                prop_assert!(!written || zeros[0] == ones[0], "slot {}", slot);
            }
        }

        /// WQEs that wrap at the ring's end differ from others only in the index in the control
        /// segment.
        #[test]
        fn wrapped_is_unwrapped_rotated(start in any::<u32>(), shapes in shapes()) {
            let straight = run_shapes(0, &shapes, 0).posted;
            let wrapped = run_shapes(start, &shapes, 0).posted;
            prop_assert_eq!(straight.refused, wrapped.refused);
            prop_assert_eq!(straight.wqes.len(), wrapped.wqes.len());
            for (straight, wrapped) in straight.wqes.iter().zip(&wrapped.wqes) {
                let slot = straight.slot.wrapping_add(start) % BLOCKS;
                prop_assert_eq!(wrapped.slot, slot);
                let mut bytes = wrapped.bytes.clone();
                bytes[1..3].copy_from_slice(&straight.bytes[1..3]);
                prop_assert_eq!(&bytes, &straight.bytes);
            }
        }
    }
}
