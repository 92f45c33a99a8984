//! Paths: the subnet administration's path records, in the kernel's two forms.

use zerocopy::big_endian::{U16, U32, U64};

use super::address::SockaddrIn6;

crate::macros::abi_enums! {
    /// What a path is used for: a set of bits.
    enum PathFlags: u32 {
        /// For management datagrams.
        GMP = 1 IB_PATH_GMP,
        /// The primary path.
        PRIMARY = 2 IB_PATH_PRIMARY,
        /// The alternate path.
        ALTERNATE = 4 IB_PATH_ALTERNATE,
        /// From here to the peer.
        OUTBOUND = 8 IB_PATH_OUTBOUND,
        /// From the peer to here.
        INBOUND = 16 IB_PATH_INBOUND,
        /// From the peer to here; the record describes the opposite direction.
        INBOUND_REVERSE = 32 IB_PATH_INBOUND_REVERSE,
        /// Both directions: `OUTBOUND` and `INBOUND_REVERSE`.
        BIDIRECTIONAL = 40 IB_PATH_BIDIRECTIONAL,
    }
}

impl PathFlags {
    /// The only flags of paths that the kernel returns and accepts: GMP, primary, bidirectional.
    pub const USABLE: Self = Self(Self::GMP.0 | Self::PRIMARY.0 | Self::BIDIRECTIONAL.0);
}

crate::macros::abi_structs! {
    /// A path record with a field per attribute.
    struct UserPathRec = "struct ib_user_path_rec", 64 {
        /// The peer's GID.
        @0 dgid: [u8; 16],
        /// The local GID.
        @16 sgid: [u8; 16],
        /// The peer's LID; 0 on RoCE.
        @32 dlid: U16,
        /// The local LID; 0 on RoCE.
        @34 slid: U16,
        /// Zero.
        @36 raw_traffic: u32,
        @40 flow_label: U32,
        /// 1; the kernel stores it big endian though its header says host order.
        @44 reversible: U32,
        /// An [`Mtu`](crate::enums::Mtu) code, stored like `reversible`.
        @48 mtu: U32,
        @52 pkey: U16,
        @54 hop_limit: u8,
        @55 traffic_class: u8,
        /// Number of paths asked for.
        @56 numb_path: u8,
        /// Service level.
        @57 sl: u8,
        /// How `mtu` is compared: 2 means exactly.
        @58 mtu_selector: u8,
        /// How `rate` is compared.
        @59 rate_selector: u8,
        /// A [`Rate`](crate::enums::Rate) code.
        @60 rate: u8,
        /// How the lifetime is compared.
        @61 packet_life_time_selector: u8,
        /// Lifetime of a packet: 4.096 us << n.
        @62 packet_life_time: u8,
        @63 preference: u8,
    }

    /// A path record in the packed form of management datagrams, and what it is used for.
    struct PathRecData = "struct ib_path_rec_data", 72 {
        @0 flags: PathFlags,
        @4 reserved: u32,
        /// The attribute PathRecord (IBTA volume 1, 15.2.5.16), big endian.
        @8 path_rec: [u8; 64],
    }

    /// The head of the answer to a query for paths. [`PathRecData`] follow, as many as the
    /// buffer holds; the kernel writes no byte beyond them.
    struct QueryPathResp = "struct rdma_ucm_query_path_resp", 8 {
        /// How many paths follow.
        @0 num_paths: u32,
        @4 reserved: u32,
    }

    /// Asks for the paths and addresses of an id: the older form of
    /// [`Query`](super::address::Query), the same struct.
    struct QueryRoute = "struct rdma_ucm_query", 16 {
        @0 response: u64,
        @8 id: u32,
        /// Unused.
        @12 option: u32,
    }

    /// Paths and addresses.
    struct QueryRouteResp = "struct rdma_ucm_query_route_resp", 208 {
        /// GUID of the device; 0 while the id has none.
        @0 node_guid: U64,
        /// Primary and alternate path. Before the route is resolved there are only GIDs and P_Key,
        /// in the first.
        @8 ib_route: [UserPathRec; 2],
        @136 src_addr: SockaddrIn6,
        @164 dst_addr: SockaddrIn6,
        /// How many of `ib_route` are valid.
        @192 num_paths: u32,
        @196 port_num: u8,
        @197 reserved: [u8; 3],
        /// The kernel's index of the RDMA device.
        @200 ibdev_index: u32,
        @204 reserved1: u32,
    }
}

impl QueryRouteResp {
    /// Lengths in use, newest kernel first: the whole struct, then the part before `ibdev_index`.
    pub const LENGTHS: [usize; 2] = [size_of::<Self>(), core::mem::offset_of!(Self, ibdev_index)];
}
