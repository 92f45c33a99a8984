//! Address handles: destinations of datagrams.

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_mlx5::format::{AddressVector as WireVector, RoutingHeader, U16, U32};
use uverbs_uapi::mlx5::CreateAhResp as DriverAnswer;
use uverbs_uapi::objects::ah::destroy;
use uverbs_uapi::write::ah::{AhAttr, CreateAh, GlobalRoute as KernelRoute};

use super::dc_receiver::DcEndpoint;
use super::endpoint::Endpoint;
use crate::device::address::{AddressVector, Gid, GidKind, GlobalRoute, LinkLayer};
use crate::device::gid::GidEntry;
use crate::error::{DestroyError, Error, ErrorKind, Result};
use crate::host::lifetime::{Kind, Object, destroy_unshared, object_kind};
use crate::memory::pd::ProtectionDomain;
use uverbs_mlx5::completion_queue::Completion;

const VERB: &str = "create_ah";
/// UDP source ports of RoCE v2 are 0xc000 to 0xffff (IBTA annex 17).
const FIRST_SOURCE_PORT: u16 = 0xc000;
/// Bytes that a global routing header takes at the start of a datagram's receive buffer.
pub const GRH_BYTES: usize = RoutingHeader::BYTES;

/// A destination of datagrams.
///
/// Clones share one object of the kernel.
///
/// ```no_run
/// # use uverbs::{Endpoint, ProtectionDomain, QueuePair, Slot, op, qp_type::Ud};
/// use uverbs::qp::{Datagram, PostFlags};
/// # fn send(pd: &ProtectionDomain, qp: &mut QueuePair<Ud>, peer: &Endpoint, slot: Slot)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let handle = pd.create_ah(&qp.address_of(peer)?)?;
/// let to = handle.datagram_to(peer);
/// qp.post_send(op::To(Datagram(&to), op::Send), slot, PostFlags::SIGNALED)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AddressHandle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// On InfiniBand there is no object of the kernel: the address is written into each request.
    object: Object<ProtectionDomain>,
    vector: WireVector,
}

const KIND: Kind = object_kind!("destroy_ah", "address handle", destroy::HANDLE);

/// The address in the form of a request, remote queue pair included: 48 bytes without a pointer. It
/// is valid while its [`AddressHandle`] lives; a device may refuse it afterwards.
pub type DatagramAddress = WireVector;

/// As [`DatagramAddress`], with a DC target instead of a queue pair: for
/// [`DcTarget`](crate::qp::DcTarget).
pub type DcAddress = WireVector;

impl ProtectionDomain {
    /// Makes an address handle. On RoCE the kernel resolves the destination's MAC address.
    ///
    /// # Errors
    /// `InvalidInput` for a RoCE address without a global route; ETIMEDOUT if no neighbour answers
    /// within a second, ENETUNREACH without a route, EINVAL if only one of the two GIDs is an IPv4
    /// address.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, address: &AddressVector) -> Result<AddressHandle> {
        let link = self.context().query_port(address.port)?.link_layer();
        let mut vector = wire_vector(self, link, address)?;
        let mut object = Object::borrowed(self.clone(), 0, &KIND);
        if link == LinkLayer::Ethernet {
            let command = CreateAh {
                pd_handle: self.kernel_handle(),
                attr: kernel_address(address),
                ..CreateAh::default()
            };
            let sent = self.context().commands().write_for(VERB, &command);
            let (core, driver): (_, DriverAnswer) =
                sent.map_err(|error| explain(error, address))?;
            object = Object::new(self.clone(), core.ah_handle, &KIND);
            vector.remote_mac = driver.dmac;
        }
        let inner = Inner { object, vector };
        Ok(AddressHandle { inner: Arc::new(inner) })
    }

    /// Makes an address handle for the sender of a received datagram (ibv_create_ah_from_wc). `grh`
    /// is the first 40 bytes of its buffer.
    ///
    /// # Errors
    /// As [`ProtectionDomain::create_ah`]; `InvalidInput` for bytes that are not a routing header.
    #[doc(alias = "ibv_create_ah_from_wc")]
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn create_ah_from_completion(
        &self,
        completion: &Completion<'_>,
        grh: &[u8; GRH_BYTES],
        port: u8,
    ) -> Result<AddressHandle> {
        let context = self.context();
        let mut address = AddressVector {
            port,
            lid: completion.slid(),
            service_level: completion.remote().service_level(),
            source_path_bits: completion.dlid_path_bits(),
            ..AddressVector::default()
        };
        if completion.has_grh() || context.query_port(port)?.link_layer() == LinkLayer::Ethernet {
            let header = RoutingHeader::parse(grh).ok_or_else(|| {
                Error::invalid(VERB, "the first 40 bytes are not a routing header")
            })?;
            let table = context.gid_table(port)?;
            let own = answering(&table, &header).ok_or_else(|| {
                Error::new(VERB, ErrorKind::NotFound, "no GID of the port fits the datagram")
            })?;
            address.global = Some(GlobalRoute {
                destination: Gid(header.source),
                source_index: own.index as u8,
                hop_limit: 64,
                flow_label: header.flow_label,
                traffic_class: header.traffic_class,
            });
        }
        self.create_ah(&address)
    }
}

/// The GID that a datagram was sent to. If that is a multicast group, no port has it: then the
/// first GID of the sender's address family, because the kernel resolves no address of another
/// family.
fn answering<'t>(table: &'t [GidEntry], header: &RoutingHeader) -> Option<&'t GidEntry> {
    let mut fitting = table.iter().filter(|own| (own.kind == GidKind::RoceV2) == header.is_udp);
    let is_ipv4 = Gid(header.source).ipv4().is_some();
    fitting
        .clone()
        .find(|own| own.gid.0 == header.destination)
        .or_else(|| fitting.find(|own| own.gid.ipv4().is_some() == is_ipv4))
}

fn kernel_address(address: &AddressVector) -> AhAttr {
    let route = address.global.unwrap_or_default();
    AhAttr {
        grh: KernelRoute {
            dgid: route.destination.0,
            flow_label: route.flow_label,
            sgid_index: route.source_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            reserved: 0,
        },
        dlid: address.lid,
        sl: address.service_level,
        src_path_bits: address.source_path_bits,
        static_rate: address.static_rate,
        is_global: address.global.is_some().into(),
        port_num: address.port,
        reserved: 0,
    }
}

fn explain(error: Error, address: &AddressVector) -> Error {
    let error = error.asked(format!("{address:?}"));
    match address.global {
        Some(route) if error.errno() == Errno::ETIMEDOUT as i32 => {
            unanswered(error, route.destination)
        }
        _ => error,
    }
}

/// ETIMEDOUT of neighbour discovery, which RTR and address handles wait for
/// (`rdma_addr_find_l2_eth_by_grh` in drivers/infiniband/core/addr.c).
pub(crate) fn unanswered(error: Error, destination: Gid) -> Error {
    error.because(format!("no neighbour answers for {destination}")).cure_with(
        "check the peer's GID, that the peer's device is open and its port is up, and that the \
         source GID is of the peer's network and RoCE version",
    )
}

/// The address as requests carry it (as in libmlx5's `mlx5_create_ah`).
fn wire_vector(
    pd: &ProtectionDomain,
    link: LinkLayer,
    address: &AddressVector,
) -> Result<WireVector> {
    let ethernet = link == LinkLayer::Ethernet;
    let mut vector = WireVector::default();
    let rate = device_rate(address.static_rate) << 4;
    if ethernet {
        let route = address.global.as_ref().ok_or_else(|| {
            Error::invalid(VERB, "RoCE needs a global route: source GID index and remote GID")
        })?;
        vector.static_rate_sl = rate | (address.service_level & 7) << 1;
        vector.remote_lid_udp_port = U16::new(source_port(pd, address.port, route)?);
    } else {
        vector.static_rate_sl = rate | address.service_level & 15;
        vector.loopback_path_bits = address.source_path_bits & 0x7f;
        vector.remote_lid_udp_port = U16::new(address.lid);
    }
    if let Some(route) = &address.global {
        // RoCE packets always have a GRH, so the bit is reserved.
        let grh = if ethernet { 0 } else { WireVector::GRH };
        let index = u32::from(route.source_index) << 20;
        vector.grh_gid_flow = U32::new(grh | index | route.flow_label & 0xf_ffff);
        vector.traffic_class = route.traffic_class;
        vector.hop_limit = route.hop_limit;
        vector.remote_gid = route.destination.0;
    }
    Ok(vector)
}

/// The UDP source port of RoCE v2, derived from the flow label so that flows spread over paths; 0
/// for RoCE v1.
fn source_port(pd: &ProtectionDomain, port: u8, route: &GlobalRoute) -> Result<u16> {
    let table = pd.context().gid_table(port)?;
    let index = u32::from(route.source_index);
    let kind = table.iter().find(|entry| entry.index == index).map(|entry| entry.kind);
    Ok(match kind {
        Some(GidKind::RoceV2) => flow_label_to_source_port(route.flow_label),
        _ => 0,
    })
}

/// As in the kernel and libibverbs: XOR of the upper six bits and the lower fourteen.
fn flow_label_to_source_port(flow_label: u32) -> u16 {
    let folded = (flow_label & 0x3fff) ^ (flow_label >> 14 & 0x3f);
    folded as u16 | FIRST_SOURCE_PORT
}

/// Converts the verbs' code of a static rate to mlx5's. A rate that mlx5 does not have becomes the
/// next higher one, or unlimited (as in libmlx5's `ib_to_mlx5_rate_table`).
fn device_rate(rate: u8) -> u8 {
    match rate {
        2..=10 => rate + 5,
        11 => 11,
        12 | 20 => 13,
        13 | 16 => 15,
        15 | 19 => 9,
        _ => 0,
    }
}

impl AddressHandle {
    /// The address of a remote queue pair, for requests.
    ///
    /// If the top bit of `qkey` is set, the sending queue pair's own Q_Key is used.
    pub fn datagram(&self, remote_qpn: u32, qkey: u32) -> DatagramAddress {
        self.inner.vector.for_datagram(remote_qpn, qkey)
    }

    /// The address of the queue pair at `peer`.
    pub fn datagram_to(&self, peer: &Endpoint) -> DatagramAddress {
        self.datagram(peer.qpn, peer.qkey)
    }

    /// The address of a DC target, for requests of initiators (`mlx5dv_wr_set_dc_addr`).
    #[doc(alias = "mlx5dv_wr_set_dc_addr")]
    pub fn dc_target(&self, number: u32, access_key: u64) -> DcAddress {
        self.inner.vector.for_dc(number, access_key)
    }

    /// The address of the DC target at `peer`.
    pub fn dc_target_at(&self, peer: &DcEndpoint) -> DcAddress {
        self.dc_target(peer.endpoint.qpn, peer.access_key)
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.object.parent
    }

    /// Destroys it.
    ///
    /// # Errors
    /// `Busy` while clones exist; errors of the kernel. The handle is returned unchanged.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        let destroy = |inner: &mut Inner| inner.object.destroy();
        destroy_unshared(&mut self.inner, KIND.verb, ("object", "the address"), destroy)
            .map_err(|error| DestroyError::new(self, error))
    }
}

#[cfg(test)]
mod tests;
