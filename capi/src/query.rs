//! Queries of devices, ports, GIDs and partition keys.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use uverbs::gid::GidEntry;
use uverbs::{DeviceAttributes, GidKind, PortAttributes};

use crate::abi::*;
use crate::context::Context;
use crate::fields::with_fields_of;
use crate::result::{code, failed, refused, set_errno};

/// `IBV_VALUES_MASK_RAW_CLOCK`.
const RAW_CLOCK: u32 = 1;
/// The size of the port struct of libibverbs 1.1, which ends with the link layer.
const OLD_PORT_BYTES: usize = std::mem::offset_of!(ibv_port_attr, flags);

/// `ibv_query_device`.
pub(crate) unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    into: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) };
    code(context.library.attributes().map(|attributes| {
        // SAFETY: the caller's struct, to be written.
        unsafe { write_padded(&plain(attributes), into) };
    }))
}

fn plain(attributes: &DeviceAttributes) -> ibv_device_attr {
    let base = &attributes.kernel.base;
    let mut fw_ver = [0; 64];
    let (major, minor, sub) = attributes.firmware();
    for (to, from) in fw_ver.iter_mut().zip(format!("{major}.{minor}.{sub:04}").bytes()) {
        *to = from as std::ffi::c_char;
    }
    with_fields_of! {
        base: max_mr_size page_size_cap vendor_id vendor_part_id hw_ver device_cap_flags max_pkeys
            local_ca_ack_delay phys_port_cnt;
        as c_int: max_qp max_qp_wr max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom
            max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom max_ee max_rdd
            max_mw max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp max_mcast_qp_attach
            max_total_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq max_srq_wr max_srq_sge;
        ibv_device_attr {
            fw_ver,
            node_guid: base.node_guid.get().to_be(),
            sys_image_guid: base.sys_image_guid.get().to_be(),
            atomic_cap: base.atomic_cap.0,
        }
    }
}

/// `ibv_query_device_ex`. It fills in the fields that the caller's struct has.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    into: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: null or the caller's struct, which is a mask without any bit.
    let mask = unsafe { input.cast::<u32>().as_ref() };
    if mask.is_some_and(|mask| *mask != 0) || size < size_of::<ibv_device_attr>() {
        return refused(libc::EINVAL);
    }
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) };
    code(context.library.attributes().map(|attributes| {
        // SAFETY: the caller's struct of `size` bytes.
        unsafe { give(&extended(attributes), into, size) };
    }))
}

fn extended(attributes: &DeviceAttributes) -> ibv_device_attr_ex {
    let (kernel, mlx5) = (&attributes.kernel, &attributes.mlx5);
    let odp = &kernel.odp_caps;
    let pacing = &mlx5.packet_pacing_caps;
    ibv_device_attr_ex {
        orig_attr: plain(attributes),
        comp_mask: 0,
        odp_caps: ibv_odp_caps {
            general_caps: odp.general_caps.bits(),
            per_transport_caps: [odp.rc_odp_caps, odp.uc_odp_caps, odp.ud_odp_caps]
                .map(|caps| caps.bits()),
        },
        completion_timestamp_mask: kernel.timestamp_mask,
        hca_core_clock: kernel.hca_core_clock,
        device_cap_flags_ex: kernel.device_cap_flags_ex.bits(),
        tso_caps: ibv_tso_caps {
            max_tso: mlx5.tso_caps.max_tso,
            supported_qpts: mlx5.tso_caps.supported_qpts,
        },
        rss_caps: ibv_rss_caps {
            supported_qpts: kernel.rss_caps.supported_qpts,
            max_rwq_indirection_tables: kernel.rss_caps.max_rwq_indirection_tables,
            max_rwq_indirection_table_size: kernel.rss_caps.max_rwq_indirection_table_size,
            rx_hash_fields_mask: mlx5.rss_caps.rx_hash_fields_mask.bits(),
            rx_hash_function: mlx5.rss_caps.rx_hash_function.bits(),
        },
        max_wq_type_rq: kernel.max_wq_type_rq,
        packet_pacing_caps: ibv_packet_pacing_caps {
            qp_rate_limit_min: pacing.qp_rate_limit_min,
            qp_rate_limit_max: pacing.qp_rate_limit_max,
            supported_qpts: pacing.supported_qpts,
        },
        raw_packet_caps: kernel.raw_packet_caps.bits(),
        tm_caps: ibv_tm_caps {
            max_rndv_hdr_size: kernel.tm_caps.max_rndv_hdr_size,
            max_num_tags: kernel.tm_caps.max_num_tags,
            flags: kernel.tm_caps.flags,
            max_ops: kernel.tm_caps.max_ops,
            max_sge: kernel.tm_caps.max_sge,
        },
        cq_mod_caps: ibv_cq_moderation_caps {
            max_cq_count: kernel.cq_moderation_caps.max_cq_moderation_count,
            max_cq_period: kernel.cq_moderation_caps.max_cq_moderation_period,
        },
        max_dm_size: kernel.max_dm_size,
        pci_atomic_caps: ibv_pci_atomic_caps { fetch_add: 0, swap: 0, compare_swap: 0 },
        xrc_odp_caps: kernel.xrc_odp_caps.bits(),
        phys_port_cnt_ex: attributes.ports().into(),
    }
}

/// Copies the first `size` bytes of a struct that grew between releases. Fields of a newer
/// program's struct that this one lacks, and bytes between fields, are set to zero.
///
/// # Safety
/// `into` has `size` bytes.
unsafe fn give<T: Fields>(from: &T, into: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    let mut place = MaybeUninit::uninit();
    let whole = ptr::from_ref(padded(from, &mut place));
    // SAFETY: within both, and after the copied bytes.
    unsafe {
        into.cast::<u8>().copy_from_nonoverlapping(whole.cast(), known);
        into.cast::<u8>().add(known).write_bytes(0, size - known);
    }
}

/// `ibv_query_port` of current headers, which pass the size of their struct.
pub(crate) unsafe extern "C" fn query_port_ex(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) };
    code(context.library.query_port(port).map(|attributes| {
        // SAFETY: the caller's struct of `size` bytes.
        unsafe { give(&port_attributes(&attributes), into, size) };
    }))
}

/// `ibv_query_port@IBVERBS_1.1`: its struct ends with the kind of link.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's promises, for the bytes that the older struct has.
    unsafe { query_port_ex(context, port, into, OLD_PORT_BYTES) }
}

fn port_attributes(port: &PortAttributes) -> ibv_port_attr {
    let (old, new) = (&port.kernel.legacy_resp, &port.kernel);
    with_fields_of! {
        old: max_msg_sz bad_pkey_cntr qkey_viol_cntr pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl
            subnet_timeout init_type_reply active_speed;
        as c_int: gid_tbl_len;
        ibv_port_attr {
            state: old.state.0.into(),
            max_mtu: old.max_mtu.0.into(),
            active_mtu: old.active_mtu.0.into(),
            port_cap_flags: old.port_cap_flags.bits(),
            active_width: old.active_width.0,
            phys_state: old.phys_state.0,
            link_layer: old.link_layer.0,
            flags: old.flags.bits(),
            port_cap_flags2: new.port_cap_flags2.bits(),
            active_speed_ex: new.active_speed_ex.0,
        }
    }
}

/// `ibv_query_rt_values_ex`: the time of the device's clock.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller's context and struct.
    let (context, values) = unsafe { (Context::of(context), &mut *values) };
    if values.comp_mask & !RAW_CLOCK != 0 {
        return refused(libc::EINVAL);
    }
    if values.comp_mask == 0 {
        return 0;
    }
    let Some(clock) = context.clock() else { return refused(libc::EOPNOTSUPP) };
    code(clock.ticks().map(|ticks| {
        values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks as i64 };
        values.comp_mask = RAW_CLOCK;
    }))
}

/// The entry at `index` of the GID table of `port`, which may be empty, or an errno.
fn gid_at(context: &Context, port: u8, index: u32) -> Result<Option<GidEntry>, c_int> {
    let library = &context.library;
    let length = library.query_port(port).map_err(|error| failed(&error))?.gid_table_length();
    if index >= length {
        return Err(refused(libc::EINVAL));
    }
    let table = library.gid_table(port).map_err(|error| failed(&error))?;
    Ok(table.into_iter().find(|entry| entry.index == index))
}

/// `ibv_query_gid`: an empty entry is a GID of zeroes.
pub(crate) unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut [u8; 16],
) -> c_int {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) };
    match gid_at(context, port, index as u32) {
        Ok(entry) => {
            // SAFETY: the caller's union, to be written.
            unsafe { gid.write(entry.map_or([0; 16], |entry| entry.gid.0)) };
            0
        }
        Err(_) => -1,
    }
}

/// `_ibv_query_gid_ex`: an empty entry is ENODATA.
pub(crate) unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    into: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 || size < size_of::<ibv_gid_entry>() {
        return refused(libc::EINVAL);
    }
    let Ok(port) = u8::try_from(port) else { return refused(libc::EINVAL) };
    // SAFETY: the caller's context.
    match gid_at(unsafe { Context::of(context) }, port, index) {
        Ok(Some(entry)) => {
            // SAFETY: the caller's struct of `size` bytes.
            unsafe { give(&gid_entry(&entry), into, size) };
            0
        }
        Ok(None) => refused(libc::ENODATA),
        Err(errno) => errno,
    }
}

fn gid_entry(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: words(entry.gid.0),
        gid_index: entry.index,
        port_num: entry.port.into(),
        gid_type: entry.kind as u32,
        ndev_ifindex: entry.interface,
    }
}

/// The bytes of a GID as C's structs store them.
pub(crate) fn words(gid: [u8; 16]) -> [u64; 2] {
    let number = u128::from_ne_bytes(gid);
    if cfg!(target_endian = "little") {
        [number as u64, (number >> 64) as u64]
    } else {
        [(number >> 64) as u64, number as u64]
    }
}

/// The reverse of [`words`].
pub(crate) fn gid_bytes(words: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (first, second) = bytes.split_at_mut(8);
    first.copy_from_slice(&words[0].to_ne_bytes());
    second.copy_from_slice(&words[1].to_ne_bytes());
    bytes
}

/// `_ibv_query_gid_table`: the filled entries of all ports; their number, or an errno below zero.
pub(crate) unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    if flags != 0 {
        return -(refused(libc::EINVAL) as isize);
    }
    if size == 0 {
        return -(refused(libc::EINVAL) as isize);
    }
    // SAFETY: the caller's context.
    match all_gids(unsafe { Context::of(context) }) {
        Ok(all) if all.len() > most => -(refused(libc::EINVAL) as isize),
        Ok(all) => {
            for (place, entry) in all.iter().enumerate() {
                // SAFETY: within the caller's array of `most` entries of `size` bytes.
                unsafe { give(&gid_entry(entry), entries.byte_add(place * size), size) };
            }
            all.len() as isize
        }
        Err(errno) => -(errno as isize),
    }
}

fn all_gids(context: &Context) -> Result<Vec<GidEntry>, c_int> {
    let ports = context.library.attributes().map_err(|error| failed(&error))?.ports();
    let tables: Result<Vec<_>, _> =
        (1..=ports).map(|port| context.library.gid_table(port)).collect();
    Ok(tables.map_err(|error| failed(&error))?.concat())
}

/// `ibv_query_gid_type`, which `ibv_devinfo` and pyverbs import: 1 for RoCE v2, 0 for everything
/// else.
pub(crate) unsafe extern "C" fn query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    // SAFETY: the caller's context.
    match gid_at(unsafe { Context::of(context) }, port, index) {
        Ok(entry) => {
            let v2 = entry.is_some_and(|entry| entry.kind == GidKind::RoceV2);
            // SAFETY: the caller's enum, to be written.
            unsafe { kind.write(v2.into()) };
            0
        }
        Err(_) => -1,
    }
}

/// `ibv_query_pkey`, in network byte order.
pub(crate) unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) };
    let Ok(index) = u16::try_from(index) else {
        set_errno(libc::ENOENT);
        return -1;
    };
    match context.library.pkey(port, index) {
        Ok(found) => {
            // SAFETY: the caller's, to be written.
            unsafe { pkey.write(found.to_be()) };
            0
        }
        Err(error) => {
            failed(&error);
            -1
        }
    }
}

/// `ibv_get_pkey_index`, or −1.
pub(crate) unsafe extern "C" fn get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    // SAFETY: the caller's context.
    let library = &unsafe { Context::of(context) }.library;
    let length = library.query_port(port).map_or(0, |port| port.pkey_table_length());
    let place =
        (0..length).find(|index| library.pkey(port, *index).is_ok_and(|at| at.to_be() == pkey));
    place.map_or_else(
        || {
            // The errno for the entry after the last one, as in libibverbs.
            set_errno(libc::ENOENT);
            -1
        },
        c_int::from,
    )
}

/// `ibv_query_port_speed`: units of 100 Mbit/s.
pub(crate) unsafe extern "C" fn query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    let Ok(port) = u8::try_from(port) else { return refused(libc::EINVAL) };
    // SAFETY: the caller's context.
    let asked = unsafe { Context::of(context) }.library.query_port(port);
    code(asked.map(|port| {
        let tenths = port.gigabits().unwrap_or_default() * 10.0;
        // SAFETY: the caller's, to be written.
        unsafe { speed.write(tenths as u64) };
    }))
}
