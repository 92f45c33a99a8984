//! Address handles, and checks of addresses. On RoCE a program creates them through the kernel,
//! which returns the destination's MAC address. On InfiniBand a program creates them without the
//! kernel.
//! Kernel: `ib_uverbs_create_ah`, `rdma_create_user_ah` (core/verbs.c), `mlx5_ib_create_ah`.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use nix::errno::Errno;
use uverbs_uapi::mlx5;
use uverbs_uapi::objects::ah::destroy as native_destroy;
use uverbs_uapi::write::ah::{CreateAh, CreateAhResp, DestroyAh};
use zerocopy::IntoBytes;

use super::object::{AddressHandle, Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::DeviceShared;
use crate::chardev::device::options::{GidEntry, GidType, Options};
use crate::packet::Gid;
use crate::runtime;
use crate::wire::Station;

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(native_destroy::HANDLE, Kind::Ah)];

/// `IB_USER_VERBS_CMD_CREATE_AH`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: CreateAh = call.request()?;
    let ah_handle = call.reserve()?;
    let device = call.file.device.clone();
    let attr = &request.attr;
    if attr.port_num != 1 {
        return Err(Errno::EINVAL);
    }
    call.pdn(request.pd_handle)?;
    let source = check_route(device.options(), attr.is_global != 0, attr.grh.sgid_index)?;
    require_neighbour(call, source, Gid(attr.grh.dgid))?;
    check_rate(attr.static_rate)?;
    if device.options().is_roce() {
        answer_mac(call, Gid(attr.grh.dgid))?;
    }
    call.commit(Object::Ah(AddressHandle { pd: request.pd_handle }))?;
    call.response(&CreateAhResp { ah_handle })
}

fn answer_mac(call: &Call<'_>, gid: Gid) -> Result<(), Errno> {
    let driver = call.driver();
    let length = std::mem::offset_of!(mlx5::CreateAhResp, reserved);
    if driver.output_length() < length {
        return Err(Errno::EINVAL);
    }
    let response = mlx5::CreateAhResp {
        response_length: length as u32,
        dmac: mac_of(gid),
        ..mlx5::CreateAhResp::default()
    };
    driver.write(&response.as_bytes()[..length])
}

/// `IB_USER_VERBS_CMD_DESTROY_AH`.
pub(crate) fn destroy(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: DestroyAh = call.request()?;
    call.destroy(Kind::Ah, request.ah_handle)
}

/// Checks a route (`rdma_fill_sgid_attr`) and returns its source GID, if it is global. EINVAL if a
/// RoCE route is not global or the index is outside the table, ENODATA if the entry is unused.
pub(crate) fn check_route(
    options: &Options,
    global: bool,
    index: u8,
) -> Result<Option<GidEntry>, Errno> {
    if !global {
        return if options.is_roce() { Err(Errno::EINVAL) } else { Ok(None) };
    }
    if usize::from(index) >= Options::GID_TABLE {
        return Err(Errno::EINVAL);
    }
    options.gid(index.into()).map(Some).ok_or(Errno::ENODATA)
}

/// Interval between two lookups of a neighbour that does not answer.
const NEIGHBOUR_LOOK: Duration = Duration::from_millis(20);

/// Fails if no neighbour has the destination of a RoCE path. If none answers at first, the call is
/// suspended and run again after the wait, so that other calls on the same file can run meanwhile.
pub(crate) fn require_neighbour(
    call: &mut Call<'_>,
    source: Option<GidEntry>,
    destination: Gid,
) -> Result<(), Errno> {
    let resolved = resolve(&call.file.device, source, destination);
    if resolved == Err(Errno::ETIMEDOUT) {
        call.silent_neighbour = Some(destination);
    }
    resolved
}

/// Whether a neighbour has the destination of a RoCE path. The kernel resolves it before the driver
/// sees the path (`ib_resolve_eth_dmac` in core/verbs.c, `addr_resolve` in core/addr.c):
///
/// - Multicast groups, and link-local GIDs from a RoCE v1 source, need no neighbour.
/// - EINVAL if only one of both GIDs is an IPv4 address.
/// - ENETUNREACH for an IPv6 destination outside of the source's /64: the loopback network has no
///   router. An IPv4 address is taken to be on the link, because the lookup names the interface
///   (`ip_route_output_key_hash_rcu` in net/ipv4/route.c).
/// - ETIMEDOUT if no neighbour answers.
///
/// Read from the kernel's source; no recording confirms these.
fn resolve(device: &DeviceShared, source: Option<GidEntry>, destination: Gid) -> Result<(), Errno> {
    let Some(source) = source.filter(|_| device.options().is_roce()) else { return Ok(()) };
    let by_address = destination.is_link_local() && source.kind == GidType::RoceV1;
    if destination.is_multicast() || by_address {
        return Ok(());
    }
    let (from, to) = (source.gid.to_ipv4(), destination.to_ipv4());
    if from.is_some() != to.is_some() {
        return Err(Errno::EINVAL);
    }
    let is_own = device.options().gids.iter().any(|entry| entry.gid == destination);
    if is_own || device.reach().has(destination, runtime::now()) {
        return Ok(());
    }
    if to.is_none() && source.gid.0[..8] != destination.0[..8] {
        return Err(Errno::ENETUNREACH);
    }
    Err(Errno::ETIMEDOUT)
}

/// Waits until a neighbour has the GID, at most as long as the kernel
/// (`rdma_addr_find_l2_eth_by_grh`), or until the device is removed. Returns at once if the peer's
/// process has ended. (With the kernel the command succeeds in that case, because the peer's
/// machine is still a neighbour.)
pub(crate) fn await_neighbour(device: &DeviceShared, destination: Gid) {
    let end = Instant::now() + device.options().neighbour_wait;
    let is_over = || device.is_removed() || device.has_ended(destination) || Instant::now() >= end;
    while !is_over() && !device.reach().has(destination, runtime::now()) {
        std::thread::sleep(NEIGHBOUR_LOOK);
    }
}

/// `mlx5r_ib_rate`: 0 is the port's rate, 2 is 2.5 Gbit/s, and 24 is the last code.
pub(crate) fn check_rate(rate: u8) -> Result<(), Errno> {
    if matches!(rate, 0 | 2..=24) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// The MAC address that belongs to a GID. A multicast address follows from the group (RFC 1112, RFC
/// 2464), a software device's from its station. Other GIDs cannot be reached and get an arbitrary
/// address.
pub(crate) fn mac_of(gid: Gid) -> [u8; 6] {
    let [.., a, b, c, d] = gid.0;
    if gid.is_multicast() {
        return if gid.to_ipv4().is_some() {
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        } else {
            [0x33, 0x33, a, b, c, d]
        };
    }
    Station::from_gid(gid).map_or([0x02, 0, a, b, c, d], Station::mac)
}

#[cfg(test)]
mod tests;
