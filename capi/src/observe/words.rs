//! Requests and completions as text.

use std::ffi::c_int;
use std::fmt::Write;

use crate::abi::*;
use crate::post;

/// The SGEs of a request. If their number is negative, or more than any queue allows, the verb
/// refuses the request without reading the list, and so does this function.
///
/// # Safety
/// A program's list.
unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> &'a [ibv_sge] {
    match usize::try_from(count) {
        // SAFETY: the caller's promise.
        Ok(count @ 1..=post::MAX_SGE) => unsafe { std::slice::from_raw_parts(list, count) },
        _ => &[],
    }
}

/// The lkeys of a request's data.
///
/// # Safety
/// A program's list.
pub(super) unsafe fn lkeys(list: *const ibv_sge, count: c_int) -> Vec<u32> {
    // SAFETY: the caller's promise.
    unsafe { sges(list, count) }.iter().map(|sge| sge.lkey).collect()
}

/// Writes a request's data.
///
/// # Safety
/// A program's list.
pub(super) unsafe fn show_data(list: *const ibv_sge, count: c_int, to: &mut String) {
    to.push_str(", data=[");
    // SAFETY: the caller's promise.
    for (place, sge) in unsafe { sges(list, count) }.iter().enumerate() {
        let comma = if place > 0 { ", " } else { "" };
        let _ = write!(to, "{comma}{:#x}+{} lkey {:#x}", sge.addr, sge.length, sge.lkey);
    }
    to.push(']');
}

const OPCODES: [&str; 11] = [
    "RDMA_WRITE",
    "RDMA_WRITE_WITH_IMM",
    "SEND",
    "SEND_WITH_IMM",
    "RDMA_READ",
    "ATOMIC_CMP_AND_SWP",
    "ATOMIC_FETCH_AND_ADD",
    "LOCAL_INV",
    "BIND_MW",
    "SEND_WITH_INV",
    "TSO",
];
const FLAGS: [&str; 5] = ["FENCE", "SIGNALED", "SOLICITED", "INLINE", "IP_CSUM"];

/// A request as text.
///
/// # Safety
/// `wr` is a program's request for this queue pair.
pub(super) unsafe fn request(qp: *mut ibv_qp, wr: *const ibv_send_wr) -> String {
    // SAFETY: the caller's promise.
    let (wr_id, asked, number) = unsafe { ((*wr).wr_id, (*wr).send_flags, (*wr).opcode) };
    let flag = |(bit, name): (usize, &&'static str)| (asked >> bit & 1 != 0).then_some(*name);
    let flags: Vec<_> = FLAGS.iter().enumerate().filter_map(flag).collect();
    let opcode = OPCODES.get(number as usize).copied().unwrap_or("?");
    let mut text = format!("qp={qp:p}, wr_id={wr_id:#x}, {opcode}, {}", flags.join("|"));
    // SAFETY: the opcode says which part of the union is filled; the caller's promise.
    unsafe {
        match number {
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::RDMA_READ => {
                let rdma = (*wr).wr.rdma;
                let _ = write!(text, ", remote={:#x} rkey {:#x}", rdma.remote_addr, rdma.rkey);
            }
            wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
                let atomic = (*wr).wr.atomic;
                let _ = write!(
                    text,
                    ", remote={:#x} rkey {:#x}, compare_add={:#x}, swap={:#x}",
                    atomic.remote_addr, atomic.rkey, atomic.compare_add, atomic.swap
                );
            }
            _ => {}
        }
        show_data((*wr).sg_list, (*wr).num_sge, &mut text);
    }
    text
}

/// A change of a list of tags as text.
///
/// # Safety
/// `wr` is a program's request.
pub(super) unsafe fn tag_change(srq: *mut ibv_srq, wr: *const ibv_ops_wr) -> String {
    // SAFETY: the caller's promise.
    let (wr_id, opcode, flags, tm) = unsafe { ((*wr).wr_id, (*wr).opcode, (*wr).flags, (*wr).tm) };
    let opcode_name = ["TAG_ADD", "TAG_DEL", "TAG_SYNC"].get(opcode as usize).copied();
    let mut text = format!("srq={srq:p}, wr_id={wr_id:#x}, {}", opcode_name.unwrap_or("?"));
    if flags & ops_flags::SIGNALED != 0 {
        text.push_str(", SIGNALED");
    }
    if flags & ops_flags::TM_SYNC != 0 {
        let _ = write!(text, ", TM_SYNC {}", tm.unexpected_cnt);
    }
    match opcode {
        ops_opcode::TAG_ADD => {
            let OpsAdd { recv_wr_id, sg_list, num_sge, tag, mask } = tm.add;
            let _ = write!(text, ", recv_wr_id={recv_wr_id:#x}, tag={tag:#x}, mask={mask:#x}");
            // SAFETY: the caller's promise.
            unsafe { show_data(sg_list, num_sge, &mut text) };
        }
        ops_opcode::TAG_DEL => {
            let _ = write!(text, ", handle={}", tm.handle);
        }
        _ => {}
    }
    text
}

/// A completion as text.
pub(super) fn completion(wc: &ibv_wc) -> String {
    // SAFETY: a table of the library.
    let status = unsafe { std::ffi::CStr::from_ptr(crate::strings::wc_status_str(wc.status)) };
    let opcode = match wc.opcode {
        wc_opcode::SEND => "SEND",
        wc_opcode::RDMA_WRITE => "RDMA_WRITE",
        wc_opcode::RDMA_READ => "RDMA_READ",
        wc_opcode::COMP_SWAP => "COMP_SWAP",
        wc_opcode::FETCH_ADD => "FETCH_ADD",
        wc_opcode::BIND_MW => "BIND_MW",
        wc_opcode::LOCAL_INV => "LOCAL_INV",
        wc_opcode::TSO => "TSO",
        wc_opcode::RECV => "RECV",
        wc_opcode::RECV_RDMA_WITH_IMM => "RECV_RDMA_WITH_IMM",
        _ => "?",
    };
    if wc.status != 0 {
        let status = status.to_string_lossy();
        return format!(
            "wr_id={:#x}, {status}, vendor_err={:#x}, qp_num={:#x}",
            wc.wr_id, wc.vendor_err, wc.qp_num
        );
    }
    let mut text = format!("wr_id={:#x}, {opcode}, qp_num={:#x}", wc.wr_id, wc.qp_num);
    if wc.opcode & wc_opcode::RECV != 0 {
        let _ = write!(text, ", byte_len={}, wc_flags={:#x}", wc.byte_len, wc.wc_flags);
        if wc.wc_flags & wc_flags::WITH_IMM != 0 {
            let _ = write!(text, ", imm_data={:#x}", u32::from_be(wc.imm_data));
        }
    }
    text
}
