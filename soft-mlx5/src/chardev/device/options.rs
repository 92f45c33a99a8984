//! The options of a software device: model, link, addresses, kernel version.
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;
use std::time::Duration;

use uverbs_soft_adapter::firmware::tag_matching::LOG_TAGS;

use crate::core::{LinkLayer, Mtu};
use crate::packet::Gid;
use crate::wire::{Place, Station};
use zerocopy::big_endian::U64;

/// The ConnectX generation that the device presents.
///
/// Part numbers are those of the public PCI id list; limits are what `ibv_devinfo -v` prints for
/// such cards in public bug reports, and are unconfirmed where reports differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// ConnectX-5.
    ConnectX5,
    /// ConnectX-6 Dx.
    #[default]
    ConnectX6Dx,
    /// ConnectX-7.
    ConnectX7,
}

impl Model {
    /// PCI device id.
    pub const fn part_id(self) -> u32 {
        match self {
            Self::ConnectX5 => 0x1017,
            Self::ConnectX6Dx => 0x101d,
            Self::ConnectX7 => 0x1021,
        }
    }

    /// Firmware version: major, minor, sub-minor.
    pub const fn firmware(self) -> (u16, u16, u16) {
        match self {
            Self::ConnectX5 => (16, 35, 4030),
            Self::ConnectX6Dx => (22, 41, 1000),
            Self::ConnectX7 => (28, 41, 1000),
        }
    }

    /// The board's parameter set id.
    pub const fn board_id(self) -> &'static str {
        match self {
            Self::ConnectX5 => "MT_0000000008",
            Self::ConnectX6Dx => "MT_0000000359",
            Self::ConnectX7 => "MT_0000000838",
        }
    }

    /// Port speed in kbit/s.
    const fn kbits_per_second(self) -> u32 {
        match self {
            Self::ConnectX5 | Self::ConnectX6Dx => 100_000_000,
            Self::ConnectX7 => 400_000_000,
        }
    }

    /// Name in `hca_type`.
    pub const fn hca_type(self) -> &'static str {
        match self {
            Self::ConnectX5 => "MT4119",
            Self::ConnectX6Dx => "MT4125",
            Self::ConnectX7 => "MT4129",
        }
    }

    /// Port speed as the codes of `ib_port_attr`: width, and speed per lane.
    pub(crate) const fn speed(self) -> (u8, u8) {
        match self {
            Self::ConnectX5 => (WIDTH_4X, SPEED_EDR),
            Self::ConnectX6Dx => (WIDTH_2X, SPEED_HDR),
            Self::ConnectX7 => (WIDTH_4X, SPEED_NDR),
        }
    }

    /// Port speed as text, for sysfs.
    pub(crate) const fn rate(self) -> &'static str {
        match self {
            Self::ConnectX5 => "100 Gb/sec (4X EDR)",
            Self::ConnectX6Dx => "100 Gb/sec (2X HDR)",
            Self::ConnectX7 => "400 Gb/sec (4X NDR)",
        }
    }
}

const WIDTH_4X: u8 = 2;
const WIDTH_2X: u8 = 16;
const SPEED_EDR: u8 = 32;
const SPEED_HDR: u8 = 64;
const SPEED_NDR: u8 = 128;

/// Features of the kernel behind the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// UARs are objects (Linux 5.7). Otherwise a context has a fixed set of them, and `lib_caps` is
    /// unknown.
    pub dynamic_uar: bool,
    /// Native methods create CQs, QPs and SRQs and query ports and GIDs (5.4 to 5.10). Otherwise
    /// write commands do it, and GIDs are only in sysfs.
    pub native_methods: bool,
    /// Known size of the driver's GET_CONTEXT request in bytes: 16, 24 or 32. A longer one is
    /// EINVAL.
    pub context_request: usize,
    /// Contexts may send firmware commands of their own (DEVX, Linux 5.1): the device's firmware
    /// has user contexts.
    pub devx: bool,
}

impl Kernel {
    /// A current kernel.
    pub const CURRENT: Self =
        Self { dynamic_uar: true, native_methods: true, context_request: 32, devx: true };
    /// Linux 5.4: no dynamic UARs.
    pub const STATIC_UAR: Self = Self { dynamic_uar: false, ..Self::CURRENT };
    /// Linux 5.0: no native creation either.
    pub const WRITE_COMMANDS: Self =
        Self { dynamic_uar: false, native_methods: false, context_request: 32, devx: false };
    /// A kernel that knows only the shortest second version of the context request.
    pub const SHORT_CONTEXT: Self =
        Self { dynamic_uar: false, native_methods: false, context_request: 16, devx: false };
}

impl Default for Kernel {
    fn default() -> Self {
        Self::CURRENT
    }
}

/// The protocol of a GID (`enum ib_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidType {
    /// InfiniBand.
    InfiniBand = 0,
    /// RoCE version 1. Only in the GID table: the wire uses version 2.
    RoceV1 = 1,
    /// RoCE version 2.
    RoceV2 = 2,
}

/// One entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Its protocol.
    pub kind: GidType,
}

/// Rates that raw packet QPs can be limited to.
#[derive(Clone, Debug)]
pub(crate) enum PacketPacing {
    /// 1 kbit/s up to the port's speed. Which range each ConnectX announces is unconfirmed.
    Port,
    Range(RangeInclusive<u32>),
    Absent,
}

/// The options of a software device.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) model: Model,
    pub(crate) kernel: Kernel,
    pub(crate) link: LinkLayer,
    pub(crate) gids: Vec<GidEntry>,
    pub(crate) pkeys: Vec<u16>,
    pub(crate) seed: Option<u64>,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) active_mtu: Mtu,
    pub(crate) node_guid: [u8; 8],
    /// The device's address on the wire; `None` without a wire.
    pub(crate) place: Option<Place>,
    pub(crate) mac: [u8; 6],
    pub(crate) netdev: String,
    pub(crate) ifindex: u32,
    pub(crate) completion_vectors: u32,
    pub(crate) srq_resize: bool,
    /// The device's options of enhanced connection establishment, 0 for none.
    pub(crate) connection_options: u32,
    pub(crate) send_queue_drain: bool,
    /// Whether there are dynamically connected queue pairs.
    pub(crate) dynamically_connected: bool,
    /// Whether each Ethernet packet's first 18 bytes must be inside the WQE.
    pub(crate) inline_headers: bool,
    /// Rates in kbit/s that raw packet QPs can be limited to.
    pub(crate) packet_pacing: PacketPacing,
    /// Whether timestamps of CQs can be real time.
    pub(crate) real_time_clock: bool,
    /// Nanoseconds since 1970 at the device's time 0; by default those of the machine's clock.
    pub(crate) real_time_start: Option<u64>,
    /// The free-running counter at the device's time 0.
    pub(crate) counter_start: u64,
    pub(crate) memfds_as_dma_bufs: bool,
    pub(crate) locked_memory: Option<u64>,
    /// How long a path waits for a neighbour that does not answer.
    pub(crate) neighbour_wait: Duration,
}

impl Options {
    /// log2 of the largest number of QPs.
    pub(crate) const LOG_MAX_QP: u32 = 17;
    /// Size of the GID table.
    pub(crate) const GID_TABLE: usize = 256;
    /// log2 of the deepest send queue in units of 64 bytes, and of the deepest receive queue in
    /// WQEs.
    pub(crate) const LOG_MAX_QP_SIZE: u32 = 15;
    /// log2 of the deepest CQ.
    pub(crate) const LOG_MAX_CQ_SIZE: u32 = 22;
    /// log2 of the deepest SRQ.
    pub(crate) const LOG_MAX_SRQ_SIZE: u32 = 15;
    /// log2 of the longest list of a tag matching SRQ.
    pub(crate) const LOG_MAX_TAGS: u32 = LOG_TAGS;
    /// Bytes of the longest send WQE.
    pub(crate) const MAX_SEND_WQE: u16 = 1024;
    /// Bytes of the longest receive WQE.
    pub(crate) const MAX_RECV_WQE: u16 = 512;
    /// Outstanding READs and atomics of a QP, as requester and as responder.
    pub(crate) const MAX_READ_ATOMIC: u8 = 16;
    /// Device clock in kHz: one tick is a nanosecond.
    pub(crate) const CLOCK_KHZ: u64 = 1_000_000;
    /// Bytes of on-device memory.
    pub(crate) const DEVICE_MEMORY: u64 = 128 << 10;

    pub(crate) fn is_roce(&self) -> bool {
        self.link == LinkLayer::Ethernet
    }

    /// Whether there are tag matching SRQs. On RoCE libmlx5 could not use them: it connects the
    /// command QP by LID (`create_cmd_qp`), which the kernel refuses (`rdma_check_ah_attr`).
    pub(crate) fn matches_tags(&self) -> bool {
        !self.is_roce()
    }

    /// The rates that raw packet QPs can be limited to, in kbit/s.
    pub(crate) fn rates(&self) -> Option<RangeInclusive<u32>> {
        match &self.packet_pacing {
            _ if !self.is_roce() => None,
            PacketPacing::Port => Some(1..=self.model.kbits_per_second()),
            PacketPacing::Range(rates) => Some(rates.clone()),
            PacketPacing::Absent => None,
        }
    }

    /// The device's station, if it is on the loopback network.
    pub(crate) fn station(&self) -> Option<Station> {
        match self.place {
            Some(Place::Loopback(station)) => Some(station),
            _ => None,
        }
    }

    /// Maps the GID of a device to the source GID in its packets.
    pub(crate) fn gid_on_wire(&self) -> fn(Gid) -> Gid {
        match self.place {
            Some(Place::Interface(_)) => |gid| gid,
            _ => Station::gid_on_wire,
        }
    }

    /// A GID table entry that is in use.
    pub(crate) fn gid(&self, index: u32) -> Option<GidEntry> {
        self.gids.get(index as usize).copied().filter(|entry| !entry.gid.is_zero())
    }

    pub(crate) fn node_guid(&self) -> U64 {
        U64::from_bytes(self.node_guid)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "soft0".into(),
            index: 0,
            model: Model::default(),
            kernel: Kernel::default(),
            link: LinkLayer::Ethernet,
            gids: Vec::new(),
            pkeys: vec![0xffff],
            seed: None,
            lid: 0,
            sm_lid: 0,
            active_mtu: Mtu::M4096,
            place: None,
            node_guid: [0x50, 0x6f, 0x66, 0x74, 0, 0, 0, 1],
            mac: [0x52, 0x6f, 0x66, 0, 0, 1],
            netdev: "lo".into(),
            ifindex: 1,
            completion_vectors: 8,
            srq_resize: false,
            connection_options: 0,
            send_queue_drain: false,
            dynamically_connected: true,
            inline_headers: false,
            packet_pacing: PacketPacing::Port,
            real_time_clock: false,
            real_time_start: None,
            counter_start: 0,
            memfds_as_dma_bufs: false,
            locked_memory: None,
            neighbour_wait: Duration::from_secs(1),
        }
    }
}
