//! Attributes of devices and ports.

use std::fmt;
use std::ops::RangeInclusive;

use uverbs_uapi::enums::PortWidth;
pub use uverbs_uapi::enums::{AtomicCap, PhysState, PortState};
pub use uverbs_uapi::flags::{DeviceCapFlags, RawPacketCaps};
use uverbs_uapi::mlx5::flags::PacketPacingFlags;
use uverbs_uapi::write::device::{ExQueryDeviceResp, QueryPortRespEx};

use super::address::{LinkLayer, Mtu};

/// Defines getters for fields of the kernel's answer.
macro_rules! fields {
    ($($(#[$meta:meta])* $name:ident: $type:ty = $($field:ident).+;)*) => {$(
        $(#[$meta])*
        pub fn $name(&self) -> $type {
            self.$($field).+
        }
    )*};
}

/// Attributes of a device; [`Context::limits`](crate::Context::limits) lists every limit by name.
///
/// A device may be unable to reach several limits at once.
///
/// ```no_run
/// let context = uverbs::open_default()?;
/// let attributes = context.attributes()?;
/// println!("{} queue pairs at most", attributes.max_qp());
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceAttributes {
    /// Extended device attributes in the kernel's form; fields that an older kernel does not know
    /// are zero. For the C library, not part of the stable interface.
    #[doc(hidden)]
    pub kernel: ExQueryDeviceResp,
    /// Attributes of mlx5 (CQE compression, striding receive queues, packet pacing …).
    #[doc(hidden)]
    pub mlx5: uverbs_uapi::mlx5::device::QueryDeviceResp,
    /// Completion vectors (interrupts that completion queues may use).
    pub completion_vectors: u32,
}

impl DeviceAttributes {
    fields! {
        /// PCI vendor of the board (0x2c9 is Mellanox's OUI).
        vendor_id: u32 = kernel.base.vendor_id;
        /// PCI device id.
        vendor_part_id: u32 = kernel.base.vendor_part_id;
        /// Hardware revision.
        hardware_version: u32 = kernel.base.hw_ver;
        /// Number of physical ports.
        ports: u8 = kernel.base.phys_port_cnt;
        /// Most queue pairs.
        max_qp: u32 = kernel.base.max_qp;
        /// Most work requests per queue.
        max_qp_wr: u32 = kernel.base.max_qp_wr;
        /// Most scatter/gather entries per work request.
        max_sge: u32 = kernel.base.max_sge;
        /// Most completion queues.
        max_cq: u32 = kernel.base.max_cq;
        /// Most entries per completion queue.
        max_cqe: u32 = kernel.base.max_cqe;
        /// Largest memory region in bytes.
        max_mr_size: u64 = kernel.base.max_mr_size;
        /// Most work requests per shared receive queue.
        max_srq_wr: u32 = kernel.base.max_srq_wr;
        /// Most scatter entries per shared receive.
        max_srq_sge: u32 = kernel.base.max_srq_sge;
        /// The accesses that atomics are atomic with.
        atomics: AtomicCap = kernel.base.atomic_cap;
        /// Optional features of raw packet queue pairs.
        raw_packets: RawPacketCaps = kernel.raw_packet_caps;
        /// Frequency in kHz of the clock that timestamps completions; 0 if there is none.
        clock_khz: u64 = kernel.hca_core_clock;
    }

    /// Firmware version: major, minor, sub-minor.
    pub fn firmware(&self) -> (u16, u16, u16) {
        let version = self.kernel.base.fw_ver;
        ((version >> 32) as u16, (version >> 16) as u16, version as u16)
    }

    /// GUID of the node.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn node_guid(&self) -> Guid {
        Guid(self.kernel.base.node_guid.get())
    }

    /// GUID of the system.
    pub fn system_image_guid(&self) -> Guid {
        Guid(self.kernel.base.sys_image_guid.get())
    }

    /// Most outstanding READs and atomics that a queue pair accepts from its peer.
    pub fn max_responder_reads(&self) -> u8 {
        self.kernel.base.max_qp_rd_atom.min(255) as u8
    }

    /// Most outstanding READs and atomics of a queue pair.
    pub fn max_initiator_reads(&self) -> u8 {
        self.kernel.base.max_qp_init_rd_atom.min(255) as u8
    }

    /// Capability flags.
    pub fn capabilities(&self) -> DeviceCapFlags {
        let old = DeviceCapFlags::from_bits_retain(self.kernel.base.device_cap_flags.into());
        old | self.kernel.device_cap_flags_ex
    }

    /// Limits of packet pacing for raw packet queue pairs; `None` if the device has no pacing.
    pub fn pacing(&self) -> Option<Pacing> {
        let pacing = &self.mlx5.packet_pacing_caps;
        let least = pacing.qp_rate_limit_min;
        (pacing.supported_qpts & RAW_PACKET != 0).then_some(Pacing {
            kbits_per_second: least..=pacing.qp_rate_limit_max,
            bursts: pacing.cap_flags.contains(PacketPacingFlags::SUPPORT_BURST),
        })
    }

    /// Largest packet in bytes that the device can cut into segments; `None` without segmentation.
    pub fn max_segmented_packet(&self) -> Option<u32> {
        let segments = &self.mlx5.tso_caps;
        (segments.supported_qpts & RAW_PACKET != 0).then_some(segments.max_tso)
    }
}

/// Bit of raw packet queue pairs in masks of queue pair types (`enum ib_qp_type`).
const RAW_PACKET: u32 = 1 << 8;

/// Packet pacing of raw packet queue pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pacing {
    /// Rates that can be set, in kbit/s.
    pub kbits_per_second: RangeInclusive<u32>,
    /// Whether the burst size can be set.
    pub bursts: bool,
}

/// A 64-bit globally unique identifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (self.0 >> shift) as u16);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Attributes of a port.
///
/// ```no_run
/// let port = uverbs::open_default()?.query_port(1)?;
/// println!("{}, {:?} Gbit/s", port.state(), port.gigabits());
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct PortAttributes {
    /// Port attributes in the kernel's form. For the C library, not part of the stable interface.
    #[doc(hidden)]
    pub kernel: QueryPortRespEx,
}

impl PortAttributes {
    fields! {
        /// Logical state; messages flow in `ACTIVE` only.
        #[doc(alias = "ibv_port_state_str")]
        state: PortState = kernel.legacy_resp.state;
        /// Physical state.
        physical_state: PhysState = kernel.legacy_resp.phys_state;
        /// LID on InfiniBand; 0 on Ethernet.
        lid: u16 = kernel.legacy_resp.lid;
        /// LID of the subnet manager.
        sm_lid: u16 = kernel.legacy_resp.sm_lid;
        /// Largest message in bytes.
        max_message: u32 = kernel.legacy_resp.max_msg_sz;
        /// Entries of the GID table, empty ones included.
        gid_table_length: u32 = kernel.legacy_resp.gid_tbl_len;
        /// Entries of the partition table.
        pkey_table_length: u16 = kernel.legacy_resp.pkey_tbl_len;
        /// Datagrams that were dropped because of a wrong Q_Key, if the device counts them.
        q_key_violations: u32 = kernel.legacy_resp.qkey_viol_cntr;
    }

    /// Whether messages flow.
    pub fn is_active(&self) -> bool {
        self.state() == PortState::ACTIVE
    }

    /// The link layer.
    pub fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_code(self.kernel.legacy_resp.link_layer.0)
    }

    /// The active MTU; 256 bytes if the device reports an unknown code.
    pub fn active_mtu(&self) -> Mtu {
        Mtu::from_code(self.kernel.legacy_resp.active_mtu.0).unwrap_or(Mtu::B256)
    }

    /// Largest MTU of the hardware; 256 bytes if the device reports an unknown code.
    pub fn max_mtu(&self) -> Mtu {
        Mtu::from_code(self.kernel.legacy_resp.max_mtu.0).unwrap_or(Mtu::B256)
    }

    /// Link speed in Gbit/s (width times lane speed); `None` if the device reports an unknown code.
    #[doc(alias = "ibv_query_port_speed")]
    pub fn gigabits(&self) -> Option<f64> {
        Some(f64::from(lanes(self.kernel.legacy_resp.active_width)?) * lane_gigabits(self.speed())?)
    }

    fn speed(&self) -> u32 {
        match self.kernel.active_speed_ex.0 {
            0 => self.kernel.legacy_resp.active_speed.into(),
            extended => extended,
        }
    }
}

fn lanes(width: PortWidth) -> Option<u8> {
    Some(match width {
        PortWidth::X1 => 1,
        PortWidth::X2 => 2,
        PortWidth::X4 => 4,
        PortWidth::X8 => 8,
        PortWidth::X12 => 12,
        _ => return None,
    })
}

/// Data rate of a lane as vendors quote it: without line coding for the older rates.
fn lane_gigabits(code: u32) -> Option<f64> {
    Some(match code {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        256 => 200.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
