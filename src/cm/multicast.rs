//! Multicast groups.

use std::net::SocketAddr;
use std::sync::Arc;

use uverbs_uapi::cm::JoinFlags;
use uverbs_uapi::cm::multicast::{JoinMcast, LeaveMcast};

use super::address::storage;
use super::id::{Handle, Id, IdKey};
use super::refusal::explain;
use crate::error::{Error, ErrorKind, Result};

/// The kind of a membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JoinMode {
    /// To send and to receive.
    #[default]
    FullMember,
    /// Only to send.
    SendOnly,
}

/// A membership in a multicast group. Dropping it leaves the group.
///
/// Receiving queue pairs also have to be attached, with the group's GID and LID:
/// [`QueuePair::attach_multicast`](crate::QueuePair::attach_multicast).
#[derive(Debug)]
#[doc(alias = "rdma_leave_multicast")]
pub struct Membership {
    number: u32,
    key: IdKey,
    id: Arc<Handle>,
}

impl Id {
    /// Joins the group of an IP multicast address: [`Joined`](super::EventKind::Joined) or
    /// [`MulticastError`](super::EventKind::MulticastError) follows, with the membership's key. The
    /// id is a datagram id that is bound to an address or has resolved one.
    ///
    /// # Errors
    /// `InvalidInput` for an address that is not multicast; EINVAL for an id that cannot join.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join(&self, group: SocketAddr, mode: JoinMode) -> Result<Membership> {
        const VERB: &str = "join_multicast";
        if !group.ip().is_multicast() {
            let cause = format!("{} is not a multicast address", group.ip());
            return Err(Error::invalid(VERB, cause));
        }
        let key = IdKey::new(true);
        let join_flags = match mode {
            JoinMode::FullMember => JoinFlags::FULL_MEMBER,
            JoinMode::SendOnly => JoinFlags::SEND_ONLY_FULL_MEMBER,
        };
        let (addr, addr_size) = storage(group);
        let uid = key.uid();
        let joined = self
            .handle()
            .ask(VERB, |id| JoinMcast { response: 0, uid, id, addr_size, join_flags, addr })
            .map_err(|error| match explain(error, Some(group)) {
                error if error.kind() == ErrorKind::Unsupported => {
                    error.because("over RoCE, groups have IPv4 addresses")
                }
                error => error,
            })?;
        Ok(Membership { number: joined.id, key, id: self.handle().clone() })
    }
}

impl Membership {
    /// Its key in events.
    pub fn key(&self) -> IdKey {
        self.key
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let id = self.number;
        let left = self.id.ask("leave_multicast", |_| LeaveMcast { response: 0, id, reserved: 0 });
        match left {
            Err(error) if error.kind() != ErrorKind::ForkedChild => {
                tracing::warn!(%error, "multicast group not left");
            }
            _ => {}
        }
    }
}
