//! Multicast groups of datagram queue pairs.

use uverbs_mlx5::mmio::Register;
use uverbs_mlx5::send_queue::Ud;
use uverbs_uapi::write::qp::{AttachMcast, DetachMcast};

use super::QueuePair;
use crate::device::address::{Gid, LinkLayer};
use crate::device::layer::Layer;
use crate::error::{Error, Result};

/// LIDs of multicast groups. 0xffff is not one: it is the permissive LID.
const GROUP_LIDS: std::ops::RangeInclusive<u16> = 0xc000..=0xfffe;

impl<L: Layer, R: Register> QueuePair<Ud, L, R> {
    /// Joins a multicast group, to receive its datagrams. On InfiniBand the subnet manager must
    /// know the group already, and `lid` is the LID that it gave the group (0xc000 to 0xfffe). RoCE
    /// ignores `lid`.
    ///
    /// Sending to the group needs no membership: take [`QueuePair::address_of`] any peer, set the
    /// group as its global destination (and its LID), and send to queue pair number 0xffffff.
    ///
    /// # Errors
    /// `InvalidInput` for a GID or an InfiniBand LID that is not multicast; errors of the
    /// kernel.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&mut self, group: Gid, lid: u16) -> Result<()> {
        const VERB: &str = "attach_mcast";
        require_multicast(VERB, group)?;
        self.require_group_lid(VERB, lid)?;
        let command =
            AttachMcast { gid: group.0, qp_handle: self.kernel_handle(), mlid: lid, reserved: 0 };
        self.context().commands().write(VERB, &command)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// `InvalidInput` for a GID or an InfiniBand LID that is not multicast; EINVAL if it was not
    /// joined.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_multicast(&mut self, group: Gid, lid: u16) -> Result<()> {
        const VERB: &str = "detach_mcast";
        require_multicast(VERB, group)?;
        self.require_group_lid(VERB, lid)?;
        let command =
            DetachMcast { gid: group.0, qp_handle: self.kernel_handle(), mlid: lid, reserved: 0 };
        self.context().commands().write(VERB, &command)
    }
}

impl<L: Layer, R: Register> QueuePair<Ud, L, R> {
    /// The kernel's rule (`is_valid_mcast_lid`), with an error that explains it.
    fn require_group_lid(&self, verb: &'static str, lid: u16) -> Result<()> {
        if self.link_layer() != LinkLayer::InfiniBand || GROUP_LIDS.contains(&lid) {
            return Ok(());
        }
        let cause = format!("an InfiniBand group has a LID from 0xc000 to 0xfffe, not {lid:#x}");
        Err(Error::invalid(verb, cause)
            .cure_with("take the LID that the subnet manager gave the group"))
    }
}

fn require_multicast(verb: &'static str, group: Gid) -> Result<()> {
    let ipv4 = group.ipv4().is_some_and(|address| address.is_multicast());
    if group.is_multicast() || ipv4 {
        return Ok(());
    }
    Err(Error::invalid(verb, format!("{group} is not a multicast GID")))
}
