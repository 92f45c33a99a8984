//! Copies between the kernel's structs and C's. librdmacm calls these functions.

use uverbs_uapi::write::ah::AhAttr;
use uverbs_uapi::write::qp::QpAttr;

use crate::abi::*;
use crate::query::{gid_bytes, words};

/// `struct ib_user_path_rec`.
#[repr(C)]
pub(crate) struct KernelPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `struct ibv_sa_path_rec`.
#[repr(C)]
pub(crate) struct Path {
    dgid: [u64; 2],
    sgid: [u64; 2],
    dlid: u16,
    slid: u16,
    raw_traffic: i32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: i32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `ibv_copy_ah_attr_from_kern`.
pub(crate) unsafe extern "C" fn ah_from_kernel(to: *mut ibv_ah_attr, from: *const AhAttr) {
    // SAFETY: the caller's structs.
    unsafe { *to = ah(&*from) };
}

fn ah(from: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: words(from.grh.dgid),
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// `ibv_copy_qp_attr_from_kern`: as in libibverbs, `qp_state` and `rate_limit` stay unchanged.
pub(crate) unsafe extern "C" fn qp_from_kernel(to: *mut ibv_qp_attr, from: *const QpAttr) {
    // SAFETY: the caller's structs.
    let (to, from) = unsafe { (&mut *to, &*from) };
    to.cur_qp_state = from.cur_qp_state;
    to.path_mtu = from.path_mtu;
    to.path_mig_state = from.path_mig_state;
    to.qkey = from.qkey;
    to.rq_psn = from.rq_psn;
    to.sq_psn = from.sq_psn;
    to.dest_qp_num = from.dest_qp_num;
    to.qp_access_flags = from.qp_access_flags.bits();
    to.cap = ibv_qp_cap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_recv_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_recv_sge,
        max_inline_data: from.max_inline_data,
    };
    to.ah_attr = ah(&from.ah_attr);
    to.alt_ah_attr = ah(&from.alt_ah_attr);
    to.pkey_index = from.pkey_index;
    to.alt_pkey_index = from.alt_pkey_index;
    to.en_sqd_async_notify = from.en_sqd_async_notify;
    to.sq_draining = from.sq_draining;
    to.max_rd_atomic = from.max_rd_atomic;
    to.max_dest_rd_atomic = from.max_dest_rd_atomic;
    to.min_rnr_timer = from.min_rnr_timer;
    to.port_num = from.port_num;
    to.timeout = from.timeout;
    to.retry_cnt = from.retry_cnt;
    to.rnr_retry = from.rnr_retry;
    to.alt_port_num = from.alt_port_num;
    to.alt_timeout = from.alt_timeout;
}

/// `ibv_copy_path_rec_from_kern`.
pub(crate) unsafe extern "C" fn path_from_kernel(to: *mut Path, from: *const KernelPath) {
    // SAFETY: the caller's structs.
    let from = unsafe { &*from };
    let path = Path {
        dgid: words(from.dgid),
        sgid: words(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as i32,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible as i32,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the caller's struct, to be written.
    unsafe { to.write(path) };
}

/// `ibv_copy_path_rec_to_kern`.
pub(crate) unsafe extern "C" fn path_to_kernel(to: *mut KernelPath, from: *const Path) {
    // SAFETY: the caller's structs.
    let from = unsafe { &*from };
    let path = KernelPath {
        dgid: gid_bytes(from.dgid),
        sgid: gid_bytes(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as u32,
        flow_label: from.flow_label,
        reversible: from.reversible as u32,
        mtu: from.mtu.into(),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the caller's struct, to be written.
    unsafe { to.write(path) };
}
