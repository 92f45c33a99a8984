//! Raw packet queue pairs: whole Ethernet frames that bypass the kernel's network stack.
//!
//! The memory of a send request is the frame, beginning with the destination address. The device
//! adds the check sequence (FCS). On request it also adds checksums
//! ([`EthernetOffload`](super::EthernetOffload)) or a VLAN tag, or cuts a large packet into
//! segments ([`segmented`](super::segmented)). Frames arrive only through steering rules
//! ([`crate::flow`]). Each fills one receive, and its completion has [`ip_checksum_ok`], [`vlan`]
//! and [`flow_tag`]. A frame for which no receive is posted is dropped, and only the port's counter
//! `out_of_buffer` shows it.
//!
//! Such queue pairs need an Ethernet port and CAP_NET_RAW. The port is the only attribute that they
//! need on the way to RTS ([`QueuePair::activate`]). Their receive queue works from INIT on
//! (`modify_raw_packet_qp` of drivers/infiniband/hw/mlx5/qp.c moves it to RDY there), so frames may
//! arrive before RTR.
//!
//! [`ip_checksum_ok`]: crate::cq::WorkCompletion::ip_checksum_ok
//! [`vlan`]: crate::cq::WorkCompletion::vlan
//! [`flow_tag`]: crate::cq::WorkCompletion::flow_tag

use uverbs_mlx5::format::ETH_INLINE_L2;
use uverbs_mlx5::mmio::Register;
use uverbs_mlx5::send_queue::RawEthernet;
use uverbs_uapi::flags::{QpCreateFlags, RawPacketCaps};
use uverbs_uapi::mlx5::enums::InlineMode;
use uverbs_uapi::mlx5::qp::BurstInfo;

use super::attributes::QpAttributes;
use super::builder::QpBuilder;
use super::queue_pair::QueuePair;
use crate::device::address::LinkLayer;
use crate::device::context::Context;
use crate::device::layer::Layer;
use crate::error::{Error, Result};

const VERB: &str = "create_qp";
const RATE: &str = "modify_qp_rate_limit";

/// Options of raw packet queue pairs only.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RawOptions {
    pub(super) flags: QpCreateFlags,
    /// Bytes of the longest header of a packet to be segmented; 0: no segmentation.
    pub(super) tso_header: u32,
}

impl<L: Layer> QpBuilder<RawEthernet, L> {
    /// Delivers a frame's customer VLAN tag in the completion instead of in memory
    /// (`IBV_QP_CREATE_CVLAN_STRIPPING`).
    pub fn strip_vlan(mut self) -> Self {
        self.raw.flags |= QpCreateFlags::CVLAN_STRIPPING;
        self
    }

    /// Delivers frames with their check sequence (FCS) of 4 bytes (`IBV_QP_CREATE_SCATTER_FCS`).
    pub fn keep_check_sequence(mut self) -> Self {
        self.raw.flags |= QpCreateFlags::SCATTER_FCS;
        self
    }

    /// Lets the device cut packets into segments, with headers of up to `header` bytes, 14 to 1023
    /// (`max_tso_header`). The limit of inline data becomes at least as large.
    pub fn segmentation(mut self, header: u32) -> Self {
        self.raw.tso_header = header;
        self.wanted.max_inline_data = self.wanted.max_inline_data.max(header);
        self
    }
}

/// Refuses options that the device or the port does not support.
pub(super) fn check(context: &Context, link: LinkLayer, options: RawOptions) -> Result<()> {
    if link != LinkLayer::Ethernet {
        let cause = format!("raw packet queue pairs are for Ethernet ports, not for {link}");
        return Err(Error::unsupported(VERB, cause));
    }
    check_capabilities(VERB, context, options)
}

/// Refuses options that the device does not support for raw packets.
pub(super) fn check_capabilities(
    verb: &'static str,
    context: &Context,
    options: RawOptions,
) -> Result<()> {
    let attributes = context.attributes()?;
    let has = attributes.raw_packets();
    let wants = |flag| options.flags.contains(flag);
    if wants(QpCreateFlags::CVLAN_STRIPPING) && !has.contains(RawPacketCaps::CVLAN_STRIPPING) {
        return Err(Error::unsupported(verb, "the device cannot strip VLAN tags"));
    }
    if wants(QpCreateFlags::SCATTER_FCS) && !has.contains(RawPacketCaps::SCATTER_FCS) {
        return Err(Error::unsupported(verb, "the device cannot deliver check sequences"));
    }
    if options.tso_header != 0 && attributes.max_segmented_packet().is_none() {
        return Err(Error::unsupported(verb, "the device cannot cut packets into segments"));
    }
    Ok(())
}

/// Bytes of a frame that each request must carry inline: 18 unless the kernel reports that none are
/// needed, as in libmlx5 (`mlx5_set_context` of rdma-core).
pub(super) fn inline_header(context: &Context) -> u8 {
    match context.driver_limits().eth_min_inline {
        InlineMode::NONE => 0,
        _ => ETH_INLINE_L2 as u8,
    }
}

/// The rate limit of a raw packet queue pair (`struct ibv_qp_rate_limit_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimit {
    /// Kbit/s; 0 is unlimited.
    pub kbits_per_second: u32,
    /// Bytes that may be sent at full speed in one burst; 0: the device chooses.
    pub max_burst: u32,
    /// Bytes of a typical packet, a hint that improves accuracy; 0 if unknown.
    pub typical_packet: u16,
}

impl RateLimit {
    /// A limit in kbit/s without burst or packet size.
    pub const fn kbits_per_second(rate: u32) -> Self {
        Self { kbits_per_second: rate, max_burst: 0, typical_packet: 0 }
    }

    fn burst(self) -> BurstInfo {
        let (max_burst_sz, typical_pkt_sz) = (self.max_burst, self.typical_packet);
        BurstInfo { max_burst_sz, typical_pkt_sz, reserved: 0 }
    }
}

impl<L: Layer, R: Register> QueuePair<RawEthernet, L, R> {
    /// Bytes of each frame that its request must carry inline: 0 or 18. If it is 18, send frames by
    /// [`EthernetSendHeader`](crate::op::EthernetSendHeader), because
    /// [`EthernetSend`](crate::op::EthernetSend) fails with `BadHeader`. [`QueuePair::post_list`]
    /// works in both cases.
    pub fn inline_header(&self) -> usize {
        inline_header(self.context()).into()
    }

    /// Sets or, with 0 kbit/s, removes the rate limit (ibv_modify_qp_rate_limit). In RTS only.
    ///
    /// # Errors
    /// `Unsupported` if the device cannot pace raw packets or set a burst size; `InvalidInput` for
    /// a rate out of the device's range, or a burst size without a rate; errors of the kernel.
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn modify_rate_limit(&mut self, limit: RateLimit) -> Result<()> {
        let pacing = self.context().attributes()?.pacing();
        let burst = limit.burst();
        if burst != BurstInfo::default() {
            if limit.kbits_per_second == 0 {
                return Err(Error::invalid(RATE, "a burst size needs a rate"));
            }
            if !pacing.is_some_and(|pacing| pacing.bursts) {
                return Err(Error::unsupported(RATE, "the device bounds no bursts"));
            }
        }
        let attributes = QpAttributes::default().rate_limit(limit.kbits_per_second);
        self.core.modify_with_burst(&attributes, burst)
    }
}
