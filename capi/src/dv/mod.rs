//! mlx5's direct verbs: names that programs import from `libmlx5.so.1`, which is another name of
//! this file.
//!
//! Programs query the device's capabilities, create queues with mlx5-specific attributes, and get
//! the addresses of rings, doorbell records and registers, to write requests and read completions
//! themselves. Programs' own firmware commands (DEVX) go to the kernel unchanged. The library
//! creates memory keys by a firmware command. docs/drop-in.md describes each name; software
//! steering fails with EOPNOTSUPP.

mod anchor;
mod build;
mod channels;
mod dc_reads;
mod devx;
mod keys;
mod matchers;
mod objects;
mod pages;
mod queues;
mod reserved;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::ffi::c_int;

use uverbs::DeviceAttributes;

use crate::abi::*;
use crate::context;
use crate::context::Context;
use crate::grown::{self, grown};
use crate::result::{code, null, refused};

pub(crate) use anchor::Anchor;
pub(crate) use build::DirectQp;
pub(crate) use channels::{Answers, Events};
pub(crate) use devx::{Memory, Object};
pub(crate) use keys::{Key, mkey_check};
pub(crate) use matchers::{Matcher, destroy_flow_action};
pub(crate) use pages::{Pacing, Uar, Var};
pub(crate) use reserved::Range;

/// `struct mlx5dv_context_attr`, as far as all releases have it.
#[repr(C)]
pub(crate) struct ContextAttr {
    flags: u32,
    comp_mask: u64,
}

/// `struct mlx5dv_context` of rdma-core 65, as far as fields are filled in.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct DeviceContext {
    version: u8,
    flags: u64,
    comp_mask: u64,
    cqe_comp_caps: [u32; 2],
    sw_parsing_caps: [u32; 2],
    striding_rq_caps: [u32; 5],
    tunnel_offloads_caps: u32,
    max_dynamic_bfregs: u32,
    max_clock_info_update_nsec: u64,
    flow_action_flags: u32,
    dc_odp_caps: u32,
    hca_core_clock: usize,
    num_lag_ports: u8,
    sig_caps: [u64; 2],
    dci_streams_caps: [u8; 2],
    max_wr_memcpy_length: usize,
    crypto_caps: [u32; 3],
    max_dc_rd_atom: u64,
    max_dc_init_rd_atom: u64,
}

fields! {
    DeviceContext {
        version flags comp_mask cqe_comp_caps sw_parsing_caps striding_rq_caps
        tunnel_offloads_caps max_dynamic_bfregs max_clock_info_update_nsec flow_action_flags
        dc_odp_caps hca_core_clock num_lag_ports sig_caps dci_streams_caps max_wr_memcpy_length
        crypto_caps max_dc_rd_atom max_dc_init_rd_atom
    }
}

grown! {
    DeviceContext until cqe_comp_caps by comp_mask {
        asks::CQE_COMPRESSION => cqe_comp_caps,
        asks::SOFTWARE_PARSING => sw_parsing_caps,
        asks::STRIDING_RECEIVES => striding_rq_caps,
        asks::TUNNEL_OFFLOADS => tunnel_offloads_caps,
        asks::DYNAMIC_REGISTERS => max_dynamic_bfregs,
        asks::CLOCK_UPDATE => max_clock_info_update_nsec,
        asks::DCI_STREAMS => dci_streams_caps,
        asks::DC_READS => max_dc_rd_atom,
        asks::DC_READS => max_dc_init_rd_atom,
    }
}

/// `enum mlx5dv_context_comp_mask`: fields that are filled in only if the program asks for them.
mod asks {
    pub(super) const CQE_COMPRESSION: u64 = 1;
    pub(super) const SOFTWARE_PARSING: u64 = 1 << 1;
    pub(super) const STRIDING_RECEIVES: u64 = 1 << 2;
    pub(super) const TUNNEL_OFFLOADS: u64 = 1 << 3;
    pub(super) const DYNAMIC_REGISTERS: u64 = 1 << 4;
    pub(super) const CLOCK_UPDATE: u64 = 1 << 5;
    pub(super) const DCI_STREAMS: u64 = 1 << 11;
    /// Newer than rdma-core 44.
    pub(super) const DC_READS: u64 = 1 << 14;
}

/// `enum mlx5dv_context_flags`.
const CQE_V1: u64 = 1;
const MULTI_PACKET_ALLOWED: u64 = 1 << 2;
const ENHANCED_MULTI_PACKET: u64 = 1 << 3;
const CQE_128B_COMPRESSION: u64 = 1 << 4;
const CQE_128B_PADDING: u64 = 1 << 5;
const PACKET_BASED_CREDITS: u64 = 1 << 6;
/// Registers that programs may allocate, as in libmlx5 (the default of `MLX5_MAX_DYN_BFREGS`).
const DYNAMIC_REGISTERS: u32 = 1024;

/// `mlx5dv_is_supported`: whether mlx5 drives the device. No other device is listed.
pub(crate) unsafe extern "C" fn is_supported(device: *mut ibv_device) -> c_int {
    (!device.is_null()).into()
}

/// `MLX5DV_CONTEXT_FLAGS_DEVX`.
const DEVX: u32 = 1;
/// `MLX5DV_CONTEXT_ATTR_MASK_FD_ARRAY` of rdma-core 65: files for the new context.
const FILES: u64 = 1;

/// `mlx5dv_open_device`. Fails with EOPNOTSUPP if DEVX is requested and the device has none, so
/// that programs try again without DEVX.
pub(crate) unsafe extern "C" fn open_device(
    device: *mut ibv_device,
    attr: *const ContextAttr,
) -> *mut ibv_context {
    // SAFETY: null, or the caller's struct.
    let (flags, mask) =
        unsafe { attr.as_ref() }.map_or((0, 0), |attr| (attr.flags, attr.comp_mask));
    if flags & !DEVX != 0 || mask & !FILES != 0 {
        return null(libc::EINVAL);
    }
    if mask != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's device, and the context just opened.
    unsafe {
        let opened = context::open_device(device);
        if opened.is_null() || flags & DEVX == 0 || Context::of(opened).library.has_devx() {
            return opened;
        }
        context::close_device(opened);
    }
    null(libc::EOPNOTSUPP)
}

/// `mlx5dv_query_device`: fills in the fields that the caller's mask names, and clears the bits of
/// those that it leaves out.
pub(crate) unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    into: *mut DeviceContext,
) -> c_int {
    // SAFETY: the caller's context and struct, which has the fields that its mask names.
    unsafe {
        let asked = (*into).comp_mask;
        code(Context::of(context).library.attributes().map(|attributes| {
            let mut answer = filled(attributes);
            if asked & asks::CLOCK_UPDATE != 0 {
                fill_clock(Context::of(context), &mut answer);
            }
            if asked & asks::DC_READS != 0 {
                dc_reads::fill(context, &mut answer);
            }
            answer.comp_mask &= asked;
            grown::write(&answer, into);
        }))
    }
}

/// The fields that need no further call; `comp_mask` names them.
fn filled(attributes: &DeviceAttributes) -> DeviceContext {
    let own = &attributes.mlx5;
    let (parsing, strides) = (own.sw_parsing_caps, own.striding_rq_caps);
    let (compression, streams) = (own.cqe_comp_caps, own.dci_streams_caps);
    DeviceContext {
        flags: flags(attributes),
        comp_mask: asks::CQE_COMPRESSION
            | asks::SOFTWARE_PARSING
            | asks::STRIDING_RECEIVES
            | asks::TUNNEL_OFFLOADS
            | asks::DYNAMIC_REGISTERS
            | asks::DCI_STREAMS,
        cqe_comp_caps: [compression.max_num, compression.supported_format.bits()],
        sw_parsing_caps: [parsing.sw_parsing_offloads.bits(), parsing.supported_qpts],
        striding_rq_caps: [
            strides.min_single_stride_log_num_of_bytes,
            strides.max_single_stride_log_num_of_bytes,
            strides.min_single_wqe_log_num_of_strides,
            strides.max_single_wqe_log_num_of_strides,
            strides.supported_qpts,
        ],
        tunnel_offloads_caps: own.tunnel_offloads_caps.bits(),
        max_dynamic_bfregs: DYNAMIC_REGISTERS,
        dci_streams_caps: [streams.max_log_num_concurent, streams.max_log_num_errored],
        ..DeviceContext::default()
    }
}

fn fill_clock(context: &Context, answer: &mut DeviceContext) {
    if let Some(Ok(conversion)) = context.clock().map(|clock| clock.conversion()) {
        answer.max_clock_info_update_nsec = conversion.page().overflow_period;
        answer.comp_mask |= asks::CLOCK_UPDATE;
    }
}

fn flags(attributes: &DeviceAttributes) -> u64 {
    use uverbs_uapi::mlx5::flags::{MpwCaps, QueryDevRespFlags};
    let own = &attributes.mlx5;
    let bit = |flag, is_set: bool| if is_set { flag } else { 0 };
    let packets = own.mlx5_ib_support_multi_pkt_send_wqes;
    CQE_V1
        | bit(MULTI_PACKET_ALLOWED, packets.contains(MpwCaps::ALLOW_MPW))
        | bit(ENHANCED_MULTI_PACKET, packets.contains(MpwCaps::SUPPORT_EMPW))
        | bit(CQE_128B_COMPRESSION, own.flags.contains(QueryDevRespFlags::CQE_128B_COMP))
        | bit(CQE_128B_PADDING, own.flags.contains(QueryDevRespFlags::CQE_128B_PAD))
        | bit(PACKET_BASED_CREDITS, own.flags.contains(QueryDevRespFlags::PACKET_BASED_CREDIT_MODE))
}

/// `struct mlx5dv_clock_info`.
#[repr(C)]
pub(crate) struct ClockInfo {
    nsec: u64,
    last_cycles: u64,
    frac: u64,
    mult: u32,
    shift: u32,
    mask: u64,
}

/// `mlx5dv_get_clock_info`: the current conversion from the device's clock to time.
pub(crate) unsafe extern "C" fn get_clock_info(
    context: *mut ibv_context,
    into: *mut ClockInfo,
) -> c_int {
    // SAFETY: the caller's context.
    let Some(clock) = unsafe { Context::of(context) }.clock() else {
        return refused(libc::EOPNOTSUPP);
    };
    code(clock.conversion().map(|conversion| {
        let page = conversion.page();
        let info = ClockInfo {
            nsec: page.nsec,
            last_cycles: page.cycles,
            frac: page.frac,
            mult: page.mult,
            shift: page.shift,
            mask: page.mask,
        };
        // SAFETY: the caller's struct, to be written.
        unsafe { into.write(info) };
    }))
}

/// `mlx5dv_reg_dmabuf_mr`: as `ibv_reg_dmabuf_mr`. mlx5's own access flags (data direct) are
/// refused.
pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    own_access: c_int,
) -> *mut ibv_mr {
    if own_access != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promises.
    unsafe { crate::memory::reg_dmabuf_mr(pd, offset, length, iova, fd, access) }
}

/// `mlx5dv_get_data_direct_sysfs_path`: ENODEV, as in libmlx5 for devices without it.
pub(crate) unsafe extern "C" fn no_data_direct(
    _: *mut ibv_context,
    _: *mut std::ffi::c_char,
    _: usize,
) -> c_int {
    refused(libc::ENODEV)
}
