//! Ids: creating, destroying, moving to another file, options.

use super::{OptionLevel, PortSpace};
use crate::enums::QpType;

crate::macros::abi_structs! {
    /// Creates an id.
    struct CreateId = "struct rdma_ucm_create_id", 24 {
        /// A value of the user's choice, returned in the id's events.
        @0 uid: u64,
        @8 response: u64,
        /// Port space.
        @16 ps: PortSpace,
        /// QP type; the kernel reads it for [`PortSpace::IB`] only, and does not check it there.
        @18 qp_type: QpType,
        @19 reserved: [u8; 5],
    }

    /// The new id, or the new membership of a multicast group.
    struct CreateIdResp = "struct rdma_ucm_create_id_resp", 4 {
        /// The lowest free number among the ids of all processes.
        @0 id: u32,
    }

    /// Destroys an id. If it is connected, the peer is notified.
    struct DestroyId = "struct rdma_ucm_destroy_id", 16 {
        @0 response: u64,
        @8 id: u32,
        @12 reserved: u32,
    }

    /// How many events of an id were fetched before it was destroyed.
    struct DestroyIdResp = "struct rdma_ucm_destroy_id_resp", 4 {
        /// Events fetched; events still queued are dropped and do not count.
        @0 events_reported: u32,
    }

    /// Moves an id, with its queued events, to the file that this command is written to.
    struct MigrateId = "struct rdma_ucm_migrate_id", 16 {
        @0 response: u64,
        @8 id: u32,
        /// Descriptor of the file that currently has the id.
        @12 fd: u32,
    }

    /// How many events of an id were fetched through its former file.
    struct MigrateResp = "struct rdma_ucm_migrate_resp", 4 {
        /// Events fetched.
        @0 events_reported: u32,
    }

    /// Sets an option. An unknown level or option fails with ENOSYS, a wrong length with EINVAL.
    struct SetOption = "struct rdma_ucm_set_option", 24 {
        /// Address of the value.
        @0 optval: u64,
        @8 id: u32,
        /// Selects the enumeration that `optname` belongs to.
        @12 level: OptionLevel,
        /// An [`IdOption`](super::IdOption) or an [`IbOption`](super::IbOption).
        @16 optname: u32,
        /// Bytes of the value.
        @20 optlen: u32,
    }
}
