//! Computes the sizes of rings from the limits that a program requests.
//!
//! A ring has space for the granted number of requests of the longest kind that the limits allow.
//! Sizes that the device does not support are refused here, with the limit that they exceed.

use crate::format::{INLINE_LENGTH_MASK, MAX_DS, OCTOWORD, WQEBB_SIZE};
use crate::send_queue::Service;

/// The limits that the device reports (`mlx5_ib_query_device_resp`, HCA capabilities).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Most requests of a send or receive queue (`max_qp_wr`).
    pub requests: u32,
    /// Longest send WQE in bytes (`max_sq_desc_sz`).
    pub send_wqe_bytes: u32,
    /// Longest receive WQE in bytes (`max_rq_desc_sz`).
    pub recv_wqe_bytes: u32,
    /// Most blocks of a send queue (`max_send_wqebb`).
    pub send_wqebbs: u32,
    /// Most entries of a receive queue (`max_recv_wr`).
    pub recv_wqes: u32,
    /// Most entries of a shared receive queue (`max_srq_recv_wr`).
    pub srq_wqes: u32,
    /// Most entries of a completion queue's ring (`max_cqe`, plus the one that stays unused).
    pub cqes: u32,
}

bitflags::bitflags! {
    /// Operations besides sends for which a send queue has space at its full depth. Others can
    /// still be posted if the service supports them, but each may then take more blocks than were
    /// planned for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Operations: u8 {
        /// RDMA writes and reads.
        const RDMA = 1;
        /// Atomics: up to 2 blocks of 64 bytes each.
        const ATOMIC = 2;
        /// Binding memory windows, and invalidating keys: 3 blocks each.
        const WINDOW = 4;
        /// Changing memory keys (`mlx5dv_wr_mkey_configure`): 2 blocks, and the list of the key's
        /// translation, which may be as long as inline data.
        const KEY = 8;
    }
}

impl Operations {
    /// Those of verbs: all but [`Operations::KEY`].
    pub const VERBS: Self = Self::RDMA.union(Self::ATOMIC).union(Self::WINDOW);

    /// All operations that a service supports.
    pub const fn of(service: Service) -> Self {
        match service {
            Service::Rc => Self::all(),
            Service::Xrc => Self::VERBS,
            Service::Uc => Self::RDMA.union(Self::WINDOW),
            Service::Dci => Self::RDMA.union(Self::ATOMIC),
            Service::Ud | Service::RawEthernet => Self::empty(),
        }
    }
}

/// The limits that a program requests for a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWanted {
    /// Requests at a time.
    pub requests: u32,
    /// Scatter/gather entries per request.
    pub sge: u32,
    /// Bytes of inline data per request.
    pub inline: u32,
    /// Bytes of the header of a packet to be segmented; 0 if there are none.
    pub tso_header: u32,
    /// Operations.
    pub operations: Operations,
}

/// The size of a send queue, and the limits that it grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSize {
    /// Blocks of the ring, a power of two; 0 if no requests were asked for.
    pub wqebbs: u32,
    /// Requests at a time, at least as many as requested.
    pub requests: u32,
    /// Scatter/gather entries per request.
    pub sge: u32,
    /// Bytes of inline data per request.
    pub inline: u32,
}

impl SendSize {
    /// Bytes of the ring.
    pub const fn bytes(&self) -> usize {
        self.wqebbs as usize * WQEBB_SIZE
    }
}

/// The size of a receive queue or SRQ, and the limits that it grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvSize {
    /// Entries of the ring, a power of two; 0 if no requests were asked for.
    pub entries: u32,
    /// Bytes per entry.
    pub stride: u32,
    /// Requests at a time.
    pub requests: u32,
    /// Scatter entries per request.
    pub sge: u32,
}

impl RecvSize {
    /// Bytes of the ring.
    pub const fn bytes(&self) -> usize {
        self.entries as usize * self.stride as usize
    }
}

/// Why a queue of the requested size cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// One request would be longer than the device's WQEs.
    #[error(
        "a request of that many scatter/gather entries or bytes of inline data takes {needed} bytes; the device's WQEs have {limit}"
    )]
    RequestTooLong {
        /// Bytes needed.
        needed: u32,
        /// Bytes that the device supports.
        limit: u32,
    },
    /// More inline data than the segment's length field can hold.
    #[error(
        "a request carries at most 1023 bytes of inline data (its length field has 10 bits), not {wanted}"
    )]
    InlineTooLong {
        /// Bytes requested.
        wanted: u32,
    },
    /// The ring would be longer than the device's.
    #[error(
        "the queue is too deep: it needs {needed} entries, and the device's queues have at most {limit} ({most} such requests)"
    )]
    TooManyRequests {
        /// Entries needed.
        needed: u64,
        /// Entries that the device supports.
        limit: u32,
        /// Requests of this size that fit the device.
        most: u32,
    },
}

/// Most entries of a ring: more would be ambiguous in the 16-bit counters of doorbell records.
const MAX_RING: u32 = 1 << 15;
/// Most entries of a CQ that devices offer (`log_max_cq_sz`) and the poller supports.
const MAX_COMPLETIONS: u32 = 1 << 22;

/// The size of a send queue.
///
/// # Errors
/// [`SizeError`].
pub fn send_queue(
    service: Service,
    wanted: SendWanted,
    limits: &DeviceLimits,
) -> Result<SendSize, SizeError> {
    if wanted.requests == 0 {
        return Ok(SendSize { wqebbs: 0, requests: 0, sge: 0, inline: 0 });
    }
    if wanted.inline > INLINE_LENGTH_MASK {
        return Err(SizeError::InlineTooLong { wanted: wanted.inline });
    }
    let operations = wanted.operations.intersection(Operations::of(service));
    let header = data_header(service, operations);
    let header_and_tso = header + wanted.tso_header.saturating_sub(2).div_ceil(16);
    let gathered = header_and_tso.saturating_add(wanted.sge.max(1));
    let copied = inline_header(header, operations);
    let inlined = if wanted.inline == 0 { 0 } else { copied + inline_octowords(wanted.inline) };
    let octowords = gathered.max(inlined).max(fixed_octowords(service, operations));
    // The limits must fit into a WQE with any operation, because the queue checks that.
    let spare = data_header(service, Operations::of(service)) - header;
    let limit = limits.send_wqe_bytes.min((u32::from(MAX_DS) - spare) * OCTOWORD as u32);
    let needed = octowords.saturating_mul(OCTOWORD as u32);
    if needed > limit {
        return Err(SizeError::RequestTooLong { needed, limit });
    }
    let blocks = octowords.div_ceil(4);
    let most = limits.send_wqebbs.min(MAX_RING);
    check_requests(wanted.requests, most / blocks, limits)?;
    let wqebbs = ring(u64::from(wanted.requests) * u64::from(blocks), most, blocks, 0)?;
    // Grant all that fits into the blocks that a request occupies in any case.
    let room = (4 * blocks).min(limit / OCTOWORD as u32);
    Ok(SendSize {
        wqebbs,
        requests: (wqebbs / blocks).min(limits.requests),
        sge: room - header_and_tso,
        inline: (16 * (room - copied)).saturating_sub(4).min(INLINE_LENGTH_MASK),
    })
}

/// Refuses more requests than the device announces, even if a ring could hold them, because the
/// kernel driver may refuse them too. The longest ring holds `fitting` requests.
fn check_requests(requests: u32, fitting: u32, limits: &DeviceLimits) -> Result<(), SizeError> {
    let limit = limits.requests;
    if requests > limit {
        let most = limit.min(fitting);
        return Err(SizeError::TooManyRequests { needed: requests.into(), limit, most });
    }
    Ok(())
}

/// Octowords of this many bytes of inline data and their length field.
const fn inline_octowords(bytes: u32) -> u32 {
    (bytes + 4).div_ceil(16)
}

/// Octowords before the data in the longest request that carries data.
fn data_header(service: Service, operations: Operations) -> u32 {
    let has_operation = u32::from(operations.contains(Operations::RDMA));
    let without =
        if Operations::of(service).contains(Operations::RDMA) { 1 - has_operation } else { 0 };
    1 + service.data_overhead() as u32 - without
}

/// Octowords before the data copied into a request: inline data, or a memory key's translation.
const fn inline_header(data_header: u32, operations: Operations) -> u32 {
    // Control, UMR control, mkey context.
    if operations.contains(Operations::KEY) { 1 + 3 + 4 } else { data_header }
}

/// Octowords of the longest request whose size is fixed.
fn fixed_octowords(service: Service, operations: Operations) -> u32 {
    let address = service.address_octowords() as u32;
    // Control, address, remote address, operands of a masked compare-and-swap, result.
    let atomic = if operations.contains(Operations::ATOMIC) { 1 + address + 1 + 2 + 1 } else { 0 };
    // Control, UMR control, mkey context, translation: no address.
    let keys = Operations::WINDOW.union(Operations::KEY);
    let window = if operations.intersects(keys) { 1 + 3 + 4 + 4 } else { 0 };
    u32::max(atomic, window)
}

/// The size of a receive queue. `head_octowords` precede the scatter entries (1 in a linked-list
/// striding queue, else 0).
///
/// # Errors
/// [`SizeError`].
pub fn recv_queue(
    requests: u32,
    sge: u32,
    head_octowords: u32,
    limits: &DeviceLimits,
) -> Result<RecvSize, SizeError> {
    if requests == 0 {
        return Ok(RecvSize { entries: 0, stride: 0, requests: 0, sge: 0 });
    }
    check_requests(requests, limits.requests, limits)?;
    let stride = stride(head_octowords, sge.max(1), limits)?;
    // The send queue after it in the same buffer must start at a multiple of 64 bytes.
    let least = (WQEBB_SIZE as u32).div_ceil(stride);
    let entries = ring(u64::from(requests.max(least)), limits.recv_wqes.min(MAX_RING), 1, 0)?;
    Ok(RecvSize { entries, stride, requests: entries, sge: stride / 16 - head_octowords })
}

/// The size of a shared receive queue.
///
/// # Errors
/// [`SizeError`].
pub fn shared_recv_queue(
    requests: u32,
    sge: u32,
    limits: &DeviceLimits,
) -> Result<RecvSize, SizeError> {
    let stride = stride(1, sge.max(1), limits)?;
    // One entry stays free, since each posted one links to the next (see `free_list.rs`).
    let needed = u64::from(requests.max(1)) + 1;
    let entries = ring(needed, limits.srq_wqes.min(MAX_RING), 1, 1)?;
    Ok(RecvSize { entries, stride, requests: entries - 1, sge: stride / 16 - 1 })
}

/// Entries of a completion queue that holds `completions` at a time; it grants one less than it
/// returns.
///
/// # Errors
/// [`SizeError::TooManyRequests`].
pub fn completion_queue(completions: u32, limits: &DeviceLimits) -> Result<u32, SizeError> {
    // The program may still read one entry while the next is polled.
    ring(u64::from(completions.max(1)) + 1, limits.cqes.min(MAX_COMPLETIONS), 1, 1)
}

fn stride(head: u32, sge: u32, limits: &DeviceLimits) -> Result<u32, SizeError> {
    let limit = limits.recv_wqe_bytes;
    let needed = head.saturating_add(sge).saturating_mul(OCTOWORD as u32);
    if needed > limit {
        return Err(SizeError::RequestTooLong { needed, limit });
    }
    Ok(needed.next_power_of_two())
}

/// The power of two that holds `needed` entries, of which each request takes `each` and `free` stay
/// free.
fn ring(needed: u64, limit: u32, each: u32, free: u32) -> Result<u32, SizeError> {
    let entries = needed.next_power_of_two();
    match u32::try_from(entries) {
        Ok(entries) if entries <= limit => Ok(entries),
        _ => {
            let largest = limit.checked_ilog2().map_or(0, |log| 1 << log);
            let most = u32::saturating_sub(largest, free) / each;
            Err(SizeError::TooManyRequests { needed: entries, limit, most })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DeviceLimits = DeviceLimits {
        requests: 1 << 15,
        send_wqe_bytes: 1024,
        recv_wqe_bytes: 512,
        send_wqebbs: 1 << 15,
        recv_wqes: 1 << 15,
        srq_wqes: 1 << 15,
        cqes: 1 << 22,
    };
    const ALL: Operations = Operations::VERBS;

    fn wanted(requests: u32, sge: u32, inline: u32, operations: Operations) -> SendWanted {
        SendWanted { requests, sge, inline, tso_header: 0, operations }
    }

    #[test]
    fn grants_at_least_what_was_asked_and_what_it_grants_fits() {
        for service in Service::ALL {
            for (requests, sge, inline) in
                [(1, 1, 0), (7, 4, 0), (128, 1, 64), (512, 16, 220), (1000, 30, 512), (1, 55, 880)]
            {
                let size = send_queue(service, wanted(requests, sge, inline, ALL), &LIMITS);
                let size = size.expect("within the limits");
                assert!(size.requests >= requests && size.sge >= sge && size.inline >= inline);
                let header = data_header(service, ALL);
                let longest = header + size.sge.max((size.inline + 4).div_ceil(16));
                assert!(longest <= u32::from(MAX_DS));
                let fixed = fixed_octowords(service, Operations::of(service));
                assert!(size.requests * longest.max(fixed).div_ceil(4) <= size.wqebbs);
            }
        }
    }

    #[test]
    fn small_requests_take_one_block() {
        let rdma = Operations::RDMA;
        let size = send_queue(Service::Rc, wanted(64, 1, 28, rdma), &LIMITS).expect("fits");
        assert_eq!((size.wqebbs, size.requests, size.sge, size.inline), (64, 64, 2, 28));
    }

    /// A list of four entries is as long as 60 bytes of inline data, and is at the same offset as a
    /// window's.
    #[test]
    fn lists_of_memory_keys_are_as_long_as_inline_data() {
        for (inline, blocks, granted) in [(0, 3, 60), (60, 3, 60), (61, 4, 124), (512, 11, 572)] {
            let size = send_queue(Service::Rc, wanted(1, 1, inline, Operations::KEY), &LIMITS);
            let size = size.expect("fits");
            assert_eq!((size.wqebbs, size.inline), (u32::next_power_of_two(blocks), granted));
        }
        let size = send_queue(Service::Uc, wanted(1, 1, 0, Operations::KEY), &LIMITS);
        assert_eq!(size.expect("fits").wqebbs, 1);
    }

    #[test]
    fn refuses_with_the_limit() {
        let rc = |wanted| send_queue(Service::Rc, wanted, &LIMITS);
        assert_eq!(
            rc(wanted(1 << 20, 1, 0, ALL)),
            Err(SizeError::TooManyRequests {
                needed: 1 << 20,
                limit: 1 << 15,
                most: (1 << 15) / 3
            })
        );
        assert_eq!(
            rc(wanted(1, 62, 0, ALL)),
            Err(SizeError::RequestTooLong { needed: 64 * 16, limit: 63 * 16 })
        );
        assert_eq!(rc(wanted(1, 1, 2000, ALL)), Err(SizeError::InlineTooLong { wanted: 2000 }));
        assert_eq!(
            rc(wanted(u32::MAX, 1, 0, Operations::empty())),
            Err(SizeError::TooManyRequests {
                needed: u32::MAX.into(),
                limit: 1 << 15,
                most: 1 << 15
            })
        );
        assert_eq!(
            recv_queue(1, 33, 0, &LIMITS),
            Err(SizeError::RequestTooLong { needed: 33 * 16, limit: 512 })
        );
        assert!(rc(wanted(1, u32::MAX, u32::MAX, ALL)).is_err());
        assert!(recv_queue(u32::MAX, u32::MAX, 0, &LIMITS).is_err());
        assert!(shared_recv_queue(u32::MAX, 1, &LIMITS).is_err());
        assert!(completion_queue(u32::MAX, &LIMITS).is_err());
    }

    #[test]
    fn receive_queues() {
        let size = recv_queue(3, 31, 0, &LIMITS).expect("fits");
        assert_eq!((size.entries, size.stride, size.requests, size.sge), (4, 512, 4, 32));
        let size = recv_queue(1, 1, 0, &LIMITS).expect("fits");
        assert_eq!(size.entries * size.stride, 64);
        let size = shared_recv_queue(3, 4, &LIMITS).expect("fits");
        assert_eq!((size.entries, size.stride, size.requests, size.sge), (4, 128, 3, 7));
        assert_eq!(completion_queue(1023, &LIMITS), Ok(1024));
        assert_eq!(completion_queue(1024, &LIMITS), Ok(2048));
    }

    /// The operations' types define the lengths of their WQEs.
    #[test]
    fn every_operation_fits_the_blocks_that_it_is_granted() {
        use crate::send_queue as q;
        fn octowords<O: q::Operation>(payload: usize) -> u32 {
            (1 + O::OCTOWORDS + payload) as u32
        }
        let longest = |service| match service {
            Service::Rc => octowords::<q::BindWindow>(0).max(octowords::<q::MaskedCompareSwap>(1)),
            Service::Uc => octowords::<q::BindWindow>(0),
            Service::Ud => octowords::<q::To<q::Datagram<'_>, q::SendImmediate>>(1),
            Service::Xrc => octowords::<q::To<q::XrcTarget, q::MaskedCompareSwap>>(1)
                .max(octowords::<q::BindWindow>(0)),
            Service::Dci => octowords::<q::To<q::DcTarget<'_>, q::MaskedCompareSwap>>(1),
            Service::RawEthernet => octowords::<q::EthernetSendHeader<'_>>(1),
        };
        for service in Service::ALL {
            let size = send_queue(service, wanted(64, 1, 0, ALL), &LIMITS).expect("fits");
            let blocks = longest(service).div_ceil(4);
            assert!(size.requests * blocks <= size.wqebbs, "{service:?}: {size:?}, {blocks} each");
        }
        let xrc = Operations::RDMA | Operations::ATOMIC;
        let size = send_queue(Service::Xrc, wanted(64, 1, 0, xrc), &LIMITS).expect("fits");
        assert_eq!((size.wqebbs, size.requests), (128, 64));
    }

    #[test]
    fn what_is_left_out_leaves_space_for_data_but_never_too_much() {
        let sends = Operations::empty();
        let size = send_queue(Service::Rc, wanted(64, 1, 44, sends), &LIMITS).expect("fits");
        assert_eq!((size.wqebbs, size.inline, size.sge), (64, 44, 3));
        let most = send_queue(Service::Rc, wanted(1, 61, 0, sends), &LIMITS).expect("fits");
        assert!(1 + Service::Rc.data_overhead() as u32 + most.sge <= u32::from(MAX_DS));
        assert!(send_queue(Service::Rc, wanted(1, 62, 0, sends), &LIMITS).is_err());
    }

    #[test]
    fn no_requests_no_ring() {
        let size = send_queue(Service::Rc, wanted(0, 9, 9, ALL), &LIMITS).expect("fits");
        assert_eq!(size.wqebbs, 0);
        assert_eq!(recv_queue(0, 9, 0, &LIMITS).expect("fits").entries, 0);
    }
}
