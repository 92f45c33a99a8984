//! Properties of the device: link, addresses, limits.

use crate::packet::Gid;

/// The link of the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// Ethernet: RoCE, addressed by GIDs.
    #[default]
    Ethernet,
    /// InfiniBand: addressed by LIDs, and also by GIDs if a packet has a global route.
    InfiniBand,
}

/// A maximum transfer unit: bytes of payload per packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes.
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    #[default]
    M4096 = 5,
}

impl Mtu {
    /// Payload bytes per packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The MTU of a code as verbs and firmware number them, 1..=5.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::M256,
            2 => Self::M512,
            3 => Self::M1024,
            4 => Self::M2048,
            5 => Self::M4096,
            _ => return None,
        })
    }

    /// The code, 1..=5.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// Most payload bytes of a large send that is cut into segments (`max_lso_cap` 18 of a ConnectX-5
/// and later, as `ibv_devinfo -v` prints it).
pub const MAX_TSO: u32 = 1 << 18;

/// How many objects of each kind the device can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Protection domains.
    pub pds: usize,
    /// XRC domains.
    pub xrcds: usize,
    /// Memory keys.
    pub mkeys: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Memberships of QPs in multicast groups.
    pub multicast_members: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pds: 1 << 16,
            xrcds: 1 << 16,
            mkeys: 1 << 20,
            cqs: 1 << 16,
            qps: 1 << 17,
            srqs: 1 << 16,
            multicast_members: 1 << 14,
        }
    }
}

/// The properties on which the device's behaviour depends.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// The port's link.
    pub link: LinkLayer,
    /// The port's active MTU: the largest UD message, the upper bound of a path MTU.
    pub active_mtu: Mtu,
    /// The port's base LID (InfiniBand).
    pub lid: u16,
    /// LID mask count (InfiniBand): `1 << lmc` LIDs from `lid` belong to the port.
    pub lmc: u8,
    /// The GID table: entry 0 upwards, zero GIDs are unused entries.
    pub gids: Vec<Gid>,
    /// The P_Key table.
    pub pkeys: Vec<u16>,
    /// Upper bounds.
    pub limits: Limits,
    /// The most unacknowledged packets of a connection, at least 1.
    ///
    /// A ConnectX has no such bound. This one keeps senders from overrunning a wire with small
    /// buffers.
    pub window: u32,
    /// How many packets a QP may send before others get their turn, at least 1.
    pub turn: u32,
    /// log2 of the largest message in bytes, at most 30: with an MTU of 256 bytes the packets of a
    /// message must stay within half of the PSNs.
    pub log_max_message: u8,
    /// Frames that leave raw packet QPs wait for [`Core::take_frame`](super::Core::take_frame)
    /// instead of going to the wire: the front end steers and carries frames itself.
    pub frames_by_front_end: bool,
    /// The seed of the numbers of queue pairs and memory keys. `None` uses the operating system's
    /// randomness, so that other hosts cannot guess them.
    pub seed: Option<u64>,
    /// Maps a port's GID to the GID that receivers see as the source. Packets over IPv4 carry only
    /// an IPv4 address, whichever of its GIDs a port sends from.
    pub gid_on_wire: fn(Gid) -> Gid,
}

impl CoreConfig {
    /// Limits values to their ranges.
    pub(super) fn within_bounds(mut self) -> Self {
        self.window = self.window.clamp(1, 1 << 20);
        self.turn = self.turn.max(1);
        self.log_max_message = self.log_max_message.min(30);
        self.lmc = self.lmc.min(7);
        self
    }
}

impl Default for CoreConfig {
    fn default() -> Self {
        Self {
            link: LinkLayer::Ethernet,
            active_mtu: Mtu::M4096,
            lid: 0,
            lmc: 0,
            gids: Vec::new(),
            pkeys: vec![0xffff],
            limits: Limits::default(),
            window: 64,
            turn: 16,
            log_max_message: 30,
            frames_by_front_end: false,
            seed: None,
            gid_on_wire: |gid| gid,
        }
    }
}
