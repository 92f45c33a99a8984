//! Copies between the kernel's structs and C's. librdmacm calls these functions.

use uverbs_uapi::write::ah::AhAttr;
use uverbs_uapi::write::qp::QpAttr;

use crate::abi::*;
use crate::fields::{copy_fields, with_fields_of};
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
#[derive(Clone, Copy)]
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

fields! {
    Path {
        dgid sgid dlid slid raw_traffic flow_label hop_limit traffic_class reversible numb_path pkey
        sl mtu_selector mtu rate_selector rate packet_life_time_selector packet_life_time preference
    }
}

/// `ibv_copy_ah_attr_from_kern`.
pub(crate) unsafe extern "C" fn ah_from_kernel(to: *mut ibv_ah_attr, from: *const AhAttr) {
    // SAFETY: the caller's structs.
    unsafe { write_padded(&ah(&*from), to) };
}

fn ah(from: &AhAttr) -> ibv_ah_attr {
    let route = &from.grh;
    with_fields_of! {
        from: dlid sl src_path_bits static_rate is_global port_num;
        ibv_ah_attr {
            grh: with_fields_of! {
                route: flow_label sgid_index hop_limit traffic_class;
                ibv_global_route { dgid: words(route.dgid), }
            },
        }
    }
}

/// `ibv_copy_qp_attr_from_kern`: as in libibverbs, `qp_state` and `rate_limit` stay unchanged.
pub(crate) unsafe extern "C" fn qp_from_kernel(to: *mut ibv_qp_attr, from: *const QpAttr) {
    // SAFETY: the caller's structs.
    let (to, from) = unsafe { (&mut *to, &*from) };
    copy_fields! {
        from => to: cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num pkey_index
            alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic
            min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout
    }
    to.qp_access_flags = from.qp_access_flags.bits();
    to.cap = with_fields_of! {
        from: max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data;
        ibv_qp_cap {}
    };
    // SAFETY: places in the caller's struct.
    unsafe {
        write_padded(&ah(&from.ah_attr), &raw mut to.ah_attr);
        write_padded(&ah(&from.alt_ah_attr), &raw mut to.alt_ah_attr);
    }
}

/// A path with the fields that both structs have.
macro_rules! path {
    ($from:ident; $($other:tt)*) => {
        with_fields_of! {
            $from: dlid slid flow_label hop_limit traffic_class numb_path pkey sl mtu_selector
                rate_selector rate packet_life_time_selector packet_life_time preference;
            $($other)*
        }
    };
}

/// `ibv_copy_path_rec_from_kern`.
pub(crate) unsafe extern "C" fn path_from_kernel(to: *mut Path, from: *const KernelPath) {
    // SAFETY: the caller's structs.
    let from = unsafe { &*from };
    let path = path! {
        from;
        Path {
            dgid: words(from.dgid),
            sgid: words(from.sgid),
            raw_traffic: from.raw_traffic as i32,
            reversible: from.reversible as i32,
            mtu: from.mtu as u8,
        }
    };
    // SAFETY: the caller's struct, to be written.
    unsafe { write_padded(&path, to) };
}

/// `ibv_copy_path_rec_to_kern`.
pub(crate) unsafe extern "C" fn path_to_kernel(to: *mut KernelPath, from: *const Path) {
    // SAFETY: the caller's structs.
    let from = unsafe { &*from };
    let path = path! {
        from;
        KernelPath {
            dgid: gid_bytes(from.dgid),
            sgid: gid_bytes(from.sgid),
            raw_traffic: from.raw_traffic as u32,
            reversible: from.reversible as u32,
            mtu: from.mtu.into(),
        }
    };
    // SAFETY: the caller's struct, to be written.
    unsafe { to.write(path) };
}
