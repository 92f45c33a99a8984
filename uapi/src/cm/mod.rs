//! The ABI of the connection manager's character device, `/dev/infiniband/rdma_cm`
//! (`rdma/rdma_user_cm.h`, `drivers/infiniband/core/ucma.c`).
//!
//! Unlike the verbs, these commands are passed to `write(2)`: a [`CmdHdr`], then the body. The
//! kernel stores the answer at the address in the body's `response` field, and `write` returns the
//! length that it was given. Each open file is an event channel, with its own ids and one queue of
//! events.
//!
//! Each module has the structs of one topic. [`Command`] gives the number and the answer of a body;
//! [`Message`] adds the header. Events are fetched with [`event::GetEvent`]: `read(2)` fails with
//! EINVAL.
//!
//! A client sends whole structs, because the kernel copies a whole struct whatever
//! [`CmdHdr::input`] says. Only [`connect::Connect`] and [`connect::Accept`] may be shorter. An
//! answer is shorter than its struct if the caller's buffer is, or if the kernel is older;
//! `LENGTHS` lists the lengths in use.

pub mod address;
pub mod connect;
pub mod event;
pub mod id;
pub mod multicast;
pub mod path;
pub mod service;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The ABI's version (`RDMA_USER_CM_ABI_VERSION`), as sysfs has it in
/// `class/misc/rdma_cm/abi_version`.
pub const ABI_VERSION: u32 = 4;

/// The most bytes of private data in a body. A CM message has space for fewer.
pub const MAX_PRIVATE_DATA: usize = 256;

pub(crate) const PLAIN: &[crate::layout::Constant] = &[
    crate::layout::Constant { c_name: "RDMA_USER_CM_ABI_VERSION", value: ABI_VERSION as u64 },
    crate::layout::Constant { c_name: "RDMA_MAX_PRIVATE_DATA", value: MAX_PRIVATE_DATA as u64 },
];

crate::macros::abi_enums! {
    /// Number of a command.
    enum Cmd: u32 {
        CREATE_ID = 0 RDMA_USER_CM_CMD_CREATE_ID,
        DESTROY_ID = 1 RDMA_USER_CM_CMD_DESTROY_ID,
        BIND_IP = 2 RDMA_USER_CM_CMD_BIND_IP,
        RESOLVE_IP = 3 RDMA_USER_CM_CMD_RESOLVE_IP,
        RESOLVE_ROUTE = 4 RDMA_USER_CM_CMD_RESOLVE_ROUTE,
        QUERY_ROUTE = 5 RDMA_USER_CM_CMD_QUERY_ROUTE,
        CONNECT = 6 RDMA_USER_CM_CMD_CONNECT,
        LISTEN = 7 RDMA_USER_CM_CMD_LISTEN,
        ACCEPT = 8 RDMA_USER_CM_CMD_ACCEPT,
        REJECT = 9 RDMA_USER_CM_CMD_REJECT,
        DISCONNECT = 10 RDMA_USER_CM_CMD_DISCONNECT,
        INIT_QP_ATTR = 11 RDMA_USER_CM_CMD_INIT_QP_ATTR,
        GET_EVENT = 12 RDMA_USER_CM_CMD_GET_EVENT,
        /// The kernel has no handler for it: ENOSYS.
        GET_OPTION = 13 RDMA_USER_CM_CMD_GET_OPTION,
        SET_OPTION = 14 RDMA_USER_CM_CMD_SET_OPTION,
        NOTIFY = 15 RDMA_USER_CM_CMD_NOTIFY,
        JOIN_IP_MCAST = 16 RDMA_USER_CM_CMD_JOIN_IP_MCAST,
        LEAVE_MCAST = 17 RDMA_USER_CM_CMD_LEAVE_MCAST,
        MIGRATE_ID = 18 RDMA_USER_CM_CMD_MIGRATE_ID,
        QUERY = 19 RDMA_USER_CM_CMD_QUERY,
        BIND = 20 RDMA_USER_CM_CMD_BIND,
        RESOLVE_ADDR = 21 RDMA_USER_CM_CMD_RESOLVE_ADDR,
        JOIN_MCAST = 22 RDMA_USER_CM_CMD_JOIN_MCAST,
        /// Kernels newer than Linux 6.12 have it; older ones answer EINVAL.
        RESOLVE_IB_SERVICE = 23 RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE,
        /// Kernels newer than Linux 6.12 have it; older ones answer EINVAL.
        WRITE_CM_EVENT = 24 RDMA_USER_CM_CMD_WRITE_CM_EVENT,
    }

    /// Port space of an id. It decides the service type and is part of the service id.
    enum PortSpace: u16 {
        /// UD over IPoIB.
        IPOIB = 0x0002 RDMA_PS_IPOIB,
        /// Any QP type: [`id::CreateId`] names it.
        IB = 0x013f RDMA_PS_IB,
        /// RC.
        TCP = 0x0106 RDMA_PS_TCP,
        /// UD.
        UDP = 0x0111 RDMA_PS_UDP,
    }

    /// What [`address::Query`] asks for.
    enum QueryOption: u32 {
        /// [`address::QueryAddrResp`] with the addresses as they were given.
        ADDR = 0 RDMA_USER_CM_QUERY_ADDR,
        /// [`path::QueryPathResp`].
        PATH = 1 RDMA_USER_CM_QUERY_PATH,
        /// [`address::QueryAddrResp`] with GIDs as [`address::SockaddrIb`].
        GID = 2 RDMA_USER_CM_QUERY_GID,
        /// [`service::QueryIbServiceResp`]; kernels newer than Linux 6.12 have it.
        IB_SERVICE = 3 RDMA_USER_CM_QUERY_IB_SERVICE,
    }

    /// Level of an option: the enumeration that its number belongs to.
    enum OptionLevel: u32 {
        /// An [`IdOption`].
        ID = 0 RDMA_OPTION_ID,
        /// An [`IbOption`].
        IB = 1 RDMA_OPTION_IB,
    }

    /// Option of an id.
    enum IdOption: u32 {
        /// Type of service, a byte.
        TOS = 0 RDMA_OPTION_ID_TOS,
        /// Other ids may bind to the same address; an int.
        REUSEADDR = 1 RDMA_OPTION_ID_REUSEADDR,
        /// IPv6 only; an int, before listen.
        AFONLY = 2 RDMA_OPTION_ID_AFONLY,
        /// Local ACK timeout as a code of 5 bits; a byte, before the route is resolved, RC and XRC
        /// initiators only.
        ACK_TIMEOUT = 3 RDMA_OPTION_ID_ACK_TIMEOUT,
    }

    /// Option of the InfiniBand path.
    enum IbOption: u32 {
        /// The path records to use, an array of [`path::PathRecData`]; replaces
        /// [`Cmd::RESOLVE_ROUTE`].
        PATH = 1 RDMA_OPTION_IB_PATH,
    }

    /// How an id joins a multicast group.
    enum JoinFlags: u16 {
        /// Sends and receives.
        FULL_MEMBER = 0 RDMA_MC_JOIN_FLAG_FULLMEMBER,
        /// Only sends.
        SEND_ONLY_FULL_MEMBER = 1 RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
    }

    /// Why a connection is refused. User space may only send these two (`ucma_reject`); their
    /// values are `IB_CM_REJ_…` of `include/rdma/ib_cm.h`.
    enum RejectReason: u8 {
        /// The program's own reason, which its private data may explain.
        CONSUMER_DEFINED = 28 _,
        /// Enhanced connection establishment: the vendor's option is not supported.
        VENDOR_OPTION_NOT_SUPPORTED = 35 _,
    }
}

crate::macros::abi_structs! {
    /// The header in front of every body.
    struct CmdHdr = "struct rdma_ucm_cmd_hdr", 8 {
        /// The command.
        @0 cmd: Cmd,
        /// Bytes of the body. More than `write(2)` was given fails with EINVAL.
        @4 input: u16 as "in",
        /// Bytes of the buffer at the body's response address. Too few fail with ENOSPC.
        @6 output: u16 as "out",
    }
}

/// Body of a command.
pub trait Command: IntoBytes + FromBytes + Immutable + KnownLayout {
    /// The command.
    const COMMAND: Cmd;
    /// What the kernel writes to the body's response address; `()` where there is none.
    type Response: FromBytes + IntoBytes;

    /// Stores the address and length of the memory that the body points to: of its answer or, for
    /// [`Cmd::SET_OPTION`], of the value. Does nothing for other bodies.
    fn name_memory(&mut self, address: u64, length: usize);
}

macro_rules! commands {
    ($( $module:ident::$body:ident $(($address:ident $($length:ident)?))? => $command:ident
        -> $response:ty, )*) => { $(
        impl Command for $module::$body {
            const COMMAND: Cmd = Cmd::$command;
            type Response = $response;

            #[allow(unused_variables, reason = "unused for bodies without an address")]
            fn name_memory(&mut self, address: u64, length: usize) {
                $(
                    self.$address = address;
                    $(self.$length = length.try_into().unwrap_or(u32::MAX);)?
                )?
            }
        }

        const _: () = assert!(size_of::<$module::$body>() <= LONGEST);
    )* };
}

commands! {
    id::CreateId (response) => CREATE_ID -> id::CreateIdResp,
    id::DestroyId (response) => DESTROY_ID -> id::DestroyIdResp,
    id::MigrateId (response) => MIGRATE_ID -> id::MigrateResp,
    id::SetOption (optval optlen) => SET_OPTION -> (),
    address::BindIp => BIND_IP -> (),
    address::Bind => BIND -> (),
    address::ResolveIp => RESOLVE_IP -> (),
    address::ResolveAddr => RESOLVE_ADDR -> (),
    address::ResolveRoute => RESOLVE_ROUTE -> (),
    path::QueryRoute (response) => QUERY_ROUTE -> path::QueryRouteResp,
    address::Query (response) => QUERY -> address::QueryAddrResp,
    connect::Connect => CONNECT -> (),
    connect::Listen => LISTEN -> (),
    connect::Accept => ACCEPT -> (),
    connect::Reject => REJECT -> (),
    connect::Disconnect => DISCONNECT -> (),
    connect::InitQpAttr (response) => INIT_QP_ATTR -> crate::write::qp::QpAttr,
    connect::Notify => NOTIFY -> (),
    event::GetEvent (response) => GET_EVENT -> event::EventResp,
    event::WriteCmEvent => WRITE_CM_EVENT -> (),
    multicast::JoinIpMcast (response) => JOIN_IP_MCAST -> id::CreateIdResp,
    multicast::JoinMcast (response) => JOIN_MCAST -> id::CreateIdResp,
    multicast::LeaveMcast (response) => LEAVE_MCAST -> id::DestroyIdResp,
    service::ResolveIbService => RESOLVE_IB_SERVICE -> (),
}

/// Bytes of the longest body.
pub const LONGEST: usize = 320;

/// The bytes written to the device for one command: header and body.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: [u8; size_of::<CmdHdr>() + LONGEST],
    len: usize,
}

impl Message {
    /// A command whose whole answer is wanted.
    pub fn new<C: Command>(body: &C) -> Self {
        Self::with_output(body, size_of::<C::Response>())
    }

    /// A command with a buffer of `output` bytes for its answer, for [`Cmd::QUERY`], whose answer
    /// has several types. A length above 65535 becomes 65535.
    pub fn with_output<C: Command>(body: &C, output: usize) -> Self {
        let header = CmdHdr {
            cmd: C::COMMAND,
            input: size_of::<C>() as u16,
            output: output.min(usize::from(u16::MAX)) as u16,
        };
        let mut bytes = [0; size_of::<CmdHdr>() + LONGEST];
        let (head, rest) = bytes.split_at_mut(size_of::<CmdHdr>());
        head.copy_from_slice(header.as_bytes());
        rest[..size_of::<C>()].copy_from_slice(body.as_bytes());
        Self { bytes, len: size_of::<CmdHdr>() + size_of::<C>() }
    }

    /// The bytes for `write(2)`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
