//! Steering rules, which lead frames to raw packet queue pairs (ibv_create_flow(3)).
//!
//! A rule has conditions on header fields and an action for the frames that meet them: to deliver
//! them to the queue pair, with an optional tag, or to drop them. A raw packet queue pair without a
//! rule receives nothing.
//!
//! ```no_run
//! # use std::net::Ipv4Addr;
//! # use uverbs::flow::{Ethernet, Ipv4, Ports};
//! # use uverbs::{raw::QueuePair, qp_type::RawPacket};
//! # fn listen(qp: &mut QueuePair<RawPacket>) -> uverbs::Result<()> {
//! let market_data = Ipv4Addr::new(239, 1, 2, 3);
//! let rule = qp
//!     .create_flow()
//!     .ethernet(Ethernet { destination: [1, 0, 0x5e, 1, 2, 3].into(), ..Ethernet::default() })
//!     .ipv4(Ipv4 { destination: market_data.into(), ..Ipv4::default() })
//!     .udp(Ports { destination: 14310.into(), ..Ports::default() })
//!     .tag(7)
//!     .build()?;
//! # drop(rule);
//! # Ok(())
//! # }
//! ```
//!
//! How mlx5 combines rules
//! (`mlx5_ib_create_flow` of drivers/infiniband/hw/mlx5/fs.c, `check_conflicting_ftes` of
//! drivers/net/ethernet/mellanox/mlx5/core/fs_core.c):
//!
//! - Each priority is a table. In one table a frame finds at most one match. The queue pairs of all
//!   rules with exactly this match get a copy; rules with other masks get none. So give the rules
//!   of all receivers of a multicast group the same parts.
//! - Rules of one match and priority share a flow tag: a second rule with another tag is refused
//!   with EEXIST, and a rule without a tag gets the tag of the first. A rule that drops and a rule
//!   that delivers exclude each other in the same way.
//! - A rule is multicast-only if its first part is an Ethernet header whose destination has the
//!   group bit, or an IPv4 header whose destination is a group. Such rules are in a table after all
//!   others, and their priority is ignored: any other rule that matches the frame wins.
//! - A rule does not make the port join a group: a [`Membership`] does.
//! - A rule takes frames from the kernel. A rule with only Ethernet fields also takes ARP, IGMP and
//!   PTP, without which the port's address, groups and clock stop working.
//!
//! [`UdpMulticast`], [`FiveTuple`], [`Port`] and [`Sniffer`] make rules with the right parts for
//! common kinds of traffic ([`Traffic`]).
//!
//! A [`Matcher`] and its rules have the device's format, with more fields and actions.
//!
//! A rule is destroyed when its [`Flow`] or its queue pair is dropped. Explicitly destroying the
//! queue pair fails while rules lead to it. Rules need CAP_NET_RAW.

mod action;
mod anchor;
mod build;
pub mod counters;
mod matcher;
mod matches;
mod membership;
mod spread;
mod traffic;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::objects::flow::destroy;

pub use action::FlowAction;
pub use anchor::SteeringAnchor;
pub use build::{FlowBuilder, FlowKind};
pub use matcher::{MatchedFlowBuilder, Matcher, MatcherOptions};
pub use matches::{Ethernet, Ipv4, Ipv6, Masked, Ports};
pub use membership::Membership;
pub use spread::Spread;
pub use traffic::{
    FiveTuple, FiveTupleV6, Leftovers, Port, Protocol, Sharing, Sniffer, Traffic, UdpMulticast,
};
pub use uverbs_uapi::flags::FlowFlags;
pub use uverbs_uapi::mlx5::enums::{FlowTableType, PacketReformatType};

use self::counters::Counters;
use crate::device::context::Context;
use crate::error::{DestroyError, Result};
use crate::host::events::log_failed_drop;
use crate::qp::SteeringRule;

const DESTROY: &str = "destroy_flow";

/// A steering rule (`struct ibv_flow`): from
/// [`QueuePair::create_flow`](crate::raw::QueuePair::create_flow).
#[derive(Debug)]
pub struct Flow {
    rule: Arc<Rule>,
}

/// A rule, shared by its handle and its queue pair, and destroyed with the first of them.
#[derive(Debug)]
pub(super) struct Rule {
    context: Context,
    handle: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    live: bool,
    parts: Parts,
}

/// The objects of a rule, kept as long as the rule exists.
#[derive(Debug, Default)]
struct Parts {
    counters: Option<Counters>,
    #[allow(dead_code, reason = "held for their lifetime")]
    matcher: Option<Matcher>,
    #[allow(dead_code, reason = "held for their lifetime")]
    actions: Vec<FlowAction>,
}

impl Flow {
    /// Whether the rule still exists: false after its queue pair was dropped, and in a forked
    /// child.
    pub fn is_live(&self) -> bool {
        self.rule.is_live()
    }

    /// Destroys it (ibv_destroy_flow). A rule whose queue pair was dropped no longer exists.
    ///
    /// # Errors
    /// Errors of the kernel. The error contains it unchanged.
    #[doc(alias = "ibv_destroy_flow")]
    pub fn destroy(self) -> std::result::Result<(), DestroyError<Self>> {
        self.rule.end().map_err(|error| DestroyError::new(self, error))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.rule.end_in_drop();
    }
}

impl Rule {
    fn new(context: Context, handle: u32, parts: Parts) -> Self {
        Self { context, handle, state: Mutex::new(State { live: true, parts }) }
    }

    /// Locks the state. Fails in a forked child: the rule is the parent's, and another thread may
    /// have held the lock at the fork.
    fn state(&self) -> Result<MutexGuard<'_, State>> {
        self.context.commands().require_opener(DESTROY)?;
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn end(&self) -> Result<()> {
        let mut state = self.state()?;
        if !state.live {
            return Ok(());
        }
        self.context.commands().destroy_handle(DESTROY, destroy::HANDLE, self.handle)?;
        state.live = false;
        if let Some(counters) = std::mem::take(&mut state.parts).counters {
            counters.unbind();
        }
        Ok(())
    }
}

impl SteeringRule for Rule {
    fn is_live(&self) -> bool {
        self.state().is_ok_and(|state| state.live)
    }

    fn end_in_drop(&self) {
        if let Err(error) = self.end() {
            log_failed_drop("steering rule", &error);
        }
    }
}

#[cfg(test)]
impl Flow {
    /// Holds the lock, so that all other threads wait.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.rule.state.lock()
    }
}
