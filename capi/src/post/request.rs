//! A send request of a program in the library's form, for the queue's run-time entry point.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use uverbs::op::{CompareSwap, FetchAdd};
use uverbs::qp::{
    EthChecksum, EthernetOffload, Immediate, PostError, PostFlags, RunTimeDestination,
    RunTimeOperation, SendRequest,
};
use uverbs::qp_type::QpType;
use uverbs::{DatagramAddress, Remote, Sge};

use crate::abi::*;
use crate::ah::Ah;
use crate::usual::Posts;
use crate::window;

/// Most SGEs that a request of any queue can have.
pub(crate) const MAX_SGE: usize = 64;

/// Calls `run` with a request in the library's form. It reads only fields that the opcode and the
/// type of queue pair have: see [`InC`](crate::usual::InC).
///
/// # Safety
/// The request and what it points to are a program's, and it is for a queue pair of type `T`.
#[inline(always)]
pub(super) unsafe fn with_request<T: Posts>(
    wr: *const ibv_send_wr,
    run: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let mut address = None;
    // SAFETY: the caller's promise.
    let (operation, destination) =
        unsafe { (operation::<T>(wr)?, destination::<T>(wr, &mut address)?) };
    // SAFETY: the caller's promise.
    let (wr_id, asked) = unsafe { ((*wr).wr_id, (*wr).send_flags) };
    let request = SendRequest {
        wr_id,
        operation,
        destination,
        flags: flags(asked),
        inline: asked & send_flags::INLINE != 0,
        data: &[],
    };
    // SAFETY: the caller's promise.
    let (list, count, opcode) = unsafe { ((*wr).sg_list, (*wr).num_sge, (*wr).opcode) };
    match count {
        0 => run(&request),
        1 => {
            // SAFETY: the caller's list of one.
            let sge = unsafe { *list };
            let is_atomic =
                matches!(opcode, wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD);
            // libmlx5 takes any length for the result of an atomic, which is always 8 bytes.
            let length = if is_atomic { 8 } else { sge.length };
            run(&SendRequest { data: &[Sge::new(sge.addr, length, sge.lkey)], ..request })
        }
        // SAFETY: the caller's list of `count`.
        count => unsafe {
            with_converted(list, count, |data| run(&SendRequest { data, ..request }))
        },
    }
}

/// Calls `run` with a list of SGEs in the library's form.
///
/// # Safety
/// `from` has `count` entries.
#[inline(always)]
pub(crate) unsafe fn with_converted(
    from: *const ibv_sge,
    count: c_int,
    run: impl FnOnce(&[Sge]) -> Result<(), PostError>,
) -> Result<(), PostError> {
    // Most lists are short, so the rest is left as it is.
    let mut list = [const { MaybeUninit::uninit() }; MAX_SGE];
    let count = usize::try_from(count).map_err(|_| PostError::BadOpcode)?;
    let Some(used) = list.get_mut(..count) else { return Err(PostError::TooManySge) };
    for (place, to) in used.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let sge = unsafe { *from.add(place) };
        to.write(Sge::new(sge.addr, sge.length, sge.lkey));
    }
    // SAFETY: all of them were just written.
    run(unsafe { std::slice::from_raw_parts(used.as_ptr().cast::<Sge>(), count) })
}

/// `enum ibv_send_flags` as the control segment has them.
#[inline(always)]
pub(crate) fn flags(flags: u32) -> PostFlags {
    const TABLE: [u8; 8] = {
        let mut table = [0; 8];
        let mut flags = 0;
        while flags < 8 {
            if flags & send_flags::FENCE != 0 {
                table[flags as usize] |= PostFlags::FENCE.bits();
            }
            if flags & send_flags::SIGNALED != 0 {
                table[flags as usize] |= PostFlags::SIGNALED.bits();
            }
            if flags & send_flags::SOLICITED != 0 {
                table[flags as usize] |= PostFlags::SOLICITED.bits();
            }
            flags += 1;
        }
        table
    };
    PostFlags::from_bits_retain(TABLE[flags as usize % TABLE.len()])
}

/// The operation of a request.
///
/// # Safety
/// As for [`with_request`].
#[inline(always)]
unsafe fn operation<'w, T: Posts>(
    wr: *const ibv_send_wr,
) -> Result<RunTimeOperation<'w>, PostError> {
    use RunTimeOperation as O;
    if T::TYPE == QpType::RawPacket {
        // SAFETY: the caller's promise.
        return unsafe { packet(wr) };
    }
    // SAFETY: the opcode says which part of the unions a program has filled.
    unsafe {
        let remote = || Remote::new((*wr).wr.rdma.remote_addr, (*wr).wr.rdma.rkey);
        let counter = || Remote::new((*wr).wr.atomic.remote_addr, (*wr).wr.atomic.rkey);
        Ok(match (*wr).opcode {
            wr_opcode::RDMA_WRITE => O::Write(remote()),
            wr_opcode::SEND => O::Send,
            wr_opcode::RDMA_READ => O::Read(remote()),
            wr_opcode::SEND_WITH_IMM => O::SendImmediate(immediate((*wr).imm_data)),
            wr_opcode::RDMA_WRITE_WITH_IMM => {
                O::WriteImmediate(remote(), immediate((*wr).imm_data))
            }
            wr_opcode::ATOMIC_CMP_AND_SWP => O::CompareSwap(CompareSwap {
                remote: counter(),
                compare: (*wr).wr.atomic.compare_add,
                swap: (*wr).wr.atomic.swap,
            }),
            wr_opcode::ATOMIC_FETCH_AND_ADD => {
                O::FetchAdd(FetchAdd { remote: counter(), add: (*wr).wr.atomic.compare_add })
            }
            wr_opcode::SEND_WITH_INV => O::SendInvalidate((*wr).imm_data),
            wr_opcode::LOCAL_INV => O::LocalInvalidate((*wr).imm_data),
            wr_opcode::BIND_MW => {
                window::operation(&(*wr).bind_mw.bind_mw).map_err(|_| PostError::BadOpcode)?
            }
            _ => return Err(PostError::BadOpcode),
        })
    }
}

/// Immediate data, which programs pass in network byte order.
#[inline(always)]
pub(crate) fn immediate(data: u32) -> Immediate {
    Immediate(data.to_ne_bytes())
}

/// The operation of a request of a raw packet queue pair.
///
/// # Safety
/// As for [`with_request`].
unsafe fn packet<'w>(wr: *const ibv_send_wr) -> Result<RunTimeOperation<'w>, PostError> {
    // SAFETY: the caller's promise.
    let (offload, opcode) = unsafe { (offload((*wr).send_flags), (*wr).opcode) };
    match opcode {
        // As in libmlx5, a frame has a header, which is in the first SGE.
        // SAFETY: the caller's promise.
        wr_opcode::SEND if unsafe { (*wr).num_sge } == 0 => Err(PostError::BadHeader),
        wr_opcode::SEND => Ok(RunTimeOperation::Packet(offload)),
        wr_opcode::TSO => {
            // SAFETY: the opcode says that this part of the union is filled; the header is the
            // program's.
            unsafe {
                let tso = (*wr).bind_mw.tso;
                let header = bytes(tso.hdr.cast(), tso.hdr_sz.into());
                Ok(RunTimeOperation::Segmented { offload, mss: tso.mss, header })
            }
        }
        _ => Err(PostError::BadOpcode),
    }
}

/// The offloads that the flags ask for.
pub(crate) fn offload(flags: u32) -> EthernetOffload {
    let checksum = match flags & send_flags::IP_CSUM {
        0 => EthChecksum::NONE,
        _ => EthChecksum::IP_CSUM,
    };
    EthernetOffload { checksum, ..EthernetOffload::default() }
}

/// # Safety
/// `start` is null or points to `length` bytes, which do not change while the result is used.
pub(crate) unsafe fn bytes<'a>(start: *const u8, length: usize) -> &'a [u8] {
    if start.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, length) }
}

/// Memory of the program's, to be written.
///
/// # Safety
/// `start` is null or points to `length` bytes, which nothing else uses while the result lives.
pub(crate) unsafe fn bytes_mut<'a>(start: *mut u8, length: usize) -> &'a mut [u8] {
    if start.is_null() || length == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(start, length) }
}

/// The peer that a request goes to.
///
/// # Safety
/// As for [`with_request`].
#[inline(always)]
unsafe fn destination<'a, T: Posts>(
    wr: *const ibv_send_wr,
    place: &'a mut Option<DatagramAddress>,
) -> Result<RunTimeDestination<'a>, PostError> {
    match T::TYPE {
        QpType::Ud => {
            // Other operations, which UD queue pairs do not have, use that part of the union for a
            // remote address.
            // SAFETY: the caller's promise.
            let opcode = unsafe { (*wr).opcode };
            if !matches!(opcode, wr_opcode::SEND | wr_opcode::SEND_WITH_IMM) {
                return Err(PostError::BadOpcode);
            }
            // SAFETY: messages of datagram queue pairs have this part of the union filled.
            let ud = unsafe { (*wr).wr.ud };
            // SAFETY: the caller's address handle.
            let address = unsafe { Ah::datagram(ud.ah, ud.remote_qpn, ud.remote_qkey) };
            let address = address.ok_or(PostError::BadDestination)?;
            Ok(RunTimeDestination::Datagram(place.insert(address)))
        }
        // SAFETY: the caller's promise.
        QpType::XrcSend => Ok(RunTimeDestination::Xrc(unsafe { (*wr).qp_type })),
        // `ibv_send_wr` has no field for a DC target: only `mlx5dv_wr_set_dc_addr` names one.
        QpType::DcInitiator => Err(PostError::BadDestination),
        _ => Ok(RunTimeDestination::Connected),
    }
}
