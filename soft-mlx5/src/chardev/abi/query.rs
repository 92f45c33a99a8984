//! Queries of port, GIDs and handles.
//! Kernel: core/uverbs_std_types_device.c, `mlx5_query_port_roce` and `mlx5_query_hca_port`
//! (hw/mlx5/main.c).
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::enums::{
    GidType as UserGidType, LinkLayer, Mtu, PhysState, PortSpeed, PortState, PortWidth,
};
use uverbs_uapi::flags::{PortCapFlags, QueryPortFlags};
use uverbs_uapi::objects::ObjectId;
use uverbs_uapi::objects::device::{info_handles, query_gid_entry, query_gid_table, query_port};
use uverbs_uapi::write::device::{
    GidEntry as UserGidEntry, QueryPort, QueryPortResp, QueryPortRespEx,
};
use zerocopy::IntoBytes;

use super::call::Call;
use super::spec::Attribute;
use crate::chardev::device::DeviceShared;
use crate::chardev::device::options::Options;
use crate::chardev::objects::object::Kind;

pub(crate) const QUERY_PORT: &[Attribute] = &[
    Attribute::constant(query_port::PORT_NUM),
    Attribute::output_struct(
        query_port::RESP,
        size_of::<QueryPortRespEx>(),
        size_of::<QueryPortRespEx>(),
    ),
];

pub(crate) const QUERY_GID_TABLE: &[Attribute] = &[
    Attribute::constant(query_gid_table::ENTRY_SIZE),
    Attribute::flags(query_gid_table::FLAGS),
    Attribute::output_min(query_gid_table::RESP_ENTRIES, 0),
    Attribute::output(query_gid_table::RESP_NUM_ENTRIES, 8),
];

pub(crate) const QUERY_GID_ENTRY: &[Attribute] = &[
    Attribute::constant(query_gid_entry::PORT),
    Attribute::constant(query_gid_entry::GID_INDEX),
    Attribute::flags(query_gid_entry::FLAGS).required(),
    Attribute::output_struct(
        query_gid_entry::RESP_ENTRY,
        size_of::<UserGidEntry>(),
        size_of::<UserGidEntry>(),
    ),
];

pub(crate) const INFO_HANDLES: &[Attribute] = &[
    Attribute::constant(info_handles::OBJECT_ID),
    Attribute::output(info_handles::TOTAL_HANDLES, 4).optional(),
    Attribute::output_min(info_handles::HANDLES_LIST, 4).optional(),
];

/// `UVERBS_METHOD_QUERY_PORT`.
pub(crate) fn port(call: &mut Call<'_>) -> Result<(), Errno> {
    call.context()?;
    let number = call.constant(query_port::PORT_NUM, u8::MAX.into())?;
    let device = &call.file.device;
    let legacy_resp = port_attributes(device, number)?;
    let (_, speed) = device.options().model.speed();
    let active_speed_ex = PortSpeed(speed.into());
    call.output_struct(
        query_port::RESP,
        &QueryPortRespEx { legacy_resp, active_speed_ex, ..QueryPortRespEx::default() },
    )
}

/// `IB_USER_VERBS_CMD_QUERY_PORT`.
pub(crate) fn port_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    call.context()?;
    let request: QueryPort = call.request()?;
    call.response(&port_attributes(&call.file.device, request.port_num.into())?)
}

/// `ib_query_port`; EINVAL for a port that does not exist.
fn port_attributes(device: &DeviceShared, number: u64) -> Result<QueryPortResp, Errno> {
    if number != 1 {
        return Err(Errno::EINVAL);
    }
    let options = device.options();
    let (width, speed) = options.model.speed();
    let (state, phys_state) = match device.is_port_down() {
        true => (PortState::DOWN, PhysState::DISABLED),
        false => (PortState::ACTIVE, PhysState::LINK_UP),
    };
    let roce = options.is_roce();
    // A counter of 16 bits, on either link (`qkey_violation_counter`).
    let violations = device.core(|core| Ok(core.counters().qkey_violations))?;
    Ok(QueryPortResp {
        qkey_viol_cntr: violations.min(u16::MAX.into()) as u32,
        port_cap_flags: port_capabilities(options),
        max_msg_sz: 1 << 30,
        gid_tbl_len: Options::GID_TABLE as u32,
        pkey_tbl_len: options.pkeys.len() as u16,
        lid: options.lid,
        sm_lid: options.sm_lid,
        state,
        max_mtu: Mtu(5),
        active_mtu: Mtu(options.active_mtu.code()),
        max_vl_num: if roce { 0 } else { 4 },
        subnet_timeout: if roce { 0 } else { 18 },
        active_width: PortWidth(width),
        active_speed: speed,
        phys_state,
        link_layer: if roce { LinkLayer::ETHERNET } else { LinkLayer::INFINIBAND },
        flags: if roce { QueryPortFlags::GRH_REQUIRED } else { QueryPortFlags::empty() },
        ..QueryPortResp::default()
    })
}

/// `make_port_cap_flags`. An InfiniBand port of a ConnectX shows 0x2651e848 or similar; bits that
/// are not named here are unconfirmed.
pub(crate) fn port_capabilities(options: &Options) -> PortCapFlags {
    match options.is_roce() {
        true => PortCapFlags::CM_SUP | PortCapFlags::IP_BASED_GIDS,
        false => {
            PortCapFlags::SL_MAP_SUP
                | PortCapFlags::SYS_IMAGE_GUID_SUP
                | PortCapFlags::EXTENDED_SPEEDS_SUP
                | PortCapFlags::CM_SUP
                | PortCapFlags::CLIENT_REG_SUP
        }
    }
}

fn gid_entry(options: &Options, index: u32) -> Option<UserGidEntry> {
    let entry = options.gid(index)?;
    Some(UserGidEntry {
        gid: entry.gid.0,
        gid_index: index,
        port_num: 1,
        gid_type: UserGidType(entry.kind as u32),
        netdev_ifindex: if options.is_roce() { options.ifindex } else { 0 },
    })
}

/// `UVERBS_METHOD_QUERY_GID_TABLE`: the entries in use; EINVAL if they do not fit in the buffer.
pub(crate) fn gid_table(call: &mut Call<'_>) -> Result<(), Errno> {
    call.flags(query_gid_table::FLAGS, 0)?;
    let size = call.constant(query_gid_table::ENTRY_SIZE, u64::MAX)? as usize;
    let buffer = call.given(query_gid_table::RESP_ENTRIES.id())?;
    let length = usize::from(buffer.length);
    if size == 0 || length % size != 0 || length == 0 {
        return Err(Errno::EINVAL);
    }
    call.context()?;
    let options = call.file.device.options();
    let entries: Vec<_> =
        (0..options.gids.len() as u32).filter_map(|index| gid_entry(options, index)).collect();
    if entries.len() > length / size {
        return Err(Errno::EINVAL);
    }
    for (at, entry) in entries.iter().enumerate() {
        let address = buffer.data.wrapping_add((at * size) as u64);
        let known = size.min(size_of::<UserGidEntry>());
        call.user.write(address, &entry.as_bytes()[..known])?;
        call.user.clear(address.wrapping_add(known as u64), size - known)?;
    }
    call.mark_valid(&buffer)?;
    call.output(query_gid_table::RESP_NUM_ENTRIES, &(entries.len() as u64))
}

/// `UVERBS_METHOD_QUERY_GID_ENTRY`: EINVAL outside of the table, ENODATA for an unused entry.
pub(crate) fn one_gid(call: &mut Call<'_>) -> Result<(), Errno> {
    call.flags(query_gid_entry::FLAGS, 0)?;
    let port = call.constant(query_gid_entry::PORT, u32::MAX.into())?;
    let index = call.constant(query_gid_entry::GID_INDEX, u32::MAX.into())? as u32;
    call.context()?;
    if port != 1 || index as usize >= Options::GID_TABLE {
        return Err(Errno::EINVAL);
    }
    let entry = gid_entry(call.file.device.options(), index).ok_or(Errno::ENODATA)?;
    call.output_struct(query_gid_entry::RESP_ENTRY, &entry)
}

/// `UVERBS_METHOD_INFO_HANDLES`. Highest handle first, as the kernel lists them.
pub(crate) fn handles(call: &mut Call<'_>) -> Result<(), Errno> {
    let buffer = call.given(info_handles::HANDLES_LIST.id()).map_err(|_| Errno::EINVAL)?;
    if buffer.length == 0 || buffer.length % 4 != 0 {
        return Err(Errno::EINVAL);
    }
    let object = ObjectId(call.constant(info_handles::OBJECT_ID, u16::MAX.into())? as u16);
    let kind = Kind::from_id(object).ok_or(Errno::EINVAL)?;
    let of_kind = call.state.handles.iter().filter(|(_, entry)| entry.object.kind() == kind);
    let mut list: Vec<u32> = of_kind.map(|(handle, _)| handle).collect();
    list.reverse();
    list.truncate(usize::from(buffer.length) / 4);
    call.output(info_handles::HANDLES_LIST, list.as_slice())?;
    call.output(info_handles::TOTAL_HANDLES, &(list.len() as u32))
}
