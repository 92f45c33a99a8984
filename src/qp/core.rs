//! The common part of all queue pairs: the kernel's object, memory, parents and state.

use std::fmt;
use std::sync::Arc;

use uverbs_mlx5::user_index::QueueHandle;
use uverbs_uapi::mlx5::qp::BurstInfo;
use uverbs_uapi::objects::qp::destroy;
use uverbs_uapi::write::qp::DestroyQpResp;

use super::attributes::QpAttributes;
use super::ece::EceState;
use super::endpoint::Endpoint;
use super::modify::{self, QpInfo};
use super::path::{Found, LocalPath};
use super::sizes::Capacities;
use super::{QpType, State};
use crate::cq::CqHandle;
use crate::device::context::Context;
use crate::device::kept::ReleaseSomeOnDrop;
use crate::device::layer::Raw;
use crate::error::{Error, ErrorKind, Result};
use crate::host::events::{Registered, Wait};
use crate::memory::pd::ProtectionDomain;
use crate::mlx5::queues::RingMemory;
use crate::mlx5::uar::Register;
use crate::srq::SrqHandle;

const DESTROY: &str = "destroy_qp";

/// A queue pair's view of a steering rule that leads to it.
pub(crate) trait SteeringRule: fmt::Debug + Send + Sync {
    /// Whether the rule still exists.
    fn is_live(&self) -> bool;
    /// Destroys the rule; a failure is only logged.
    fn end_in_drop(&self);
}

/// The destination of a steering rule.
pub(crate) trait SteeringTarget: fmt::Debug + Send {
    /// The context it belongs to.
    fn context(&self) -> &Context;
    /// The kernel's handle.
    fn kernel_handle(&self) -> u32;
    /// Records a rule that leads here.
    fn keep_rule(&mut self, rule: Arc<dyn SteeringRule>);
}

impl SteeringTarget for Core {
    fn context(&self) -> &Context {
        &self.context
    }

    fn kernel_handle(&self) -> u32 {
        self.handle
    }

    fn keep_rule(&mut self, rule: Arc<dyn SteeringRule>) {
        self.rules.retain(|rule| rule.is_live());
        self.rules.push(rule);
    }
}

/// Everything but the queues themselves.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) context: Context,
    pub(super) qp_type: QpType,
    pub(super) handle: u32,
    pub(super) number: u32,
    pub(super) events: Arc<Registered>,
    pub(super) queue: Option<QueueHandle>,
    pub(super) path: LocalPath,
    pub(super) capacities: Capacities,
    pub(super) state: State,
    pub(super) live: bool,
    pub(super) ece: EceState,
    /// Rings that the device reads as long as the queue pair exists.
    pub(super) memory: Option<Arc<RingMemory>>,
    /// The queue pair's doorbell register.
    pub(super) register: Option<Arc<Register>>,
    /// Steering rules that lead here. Ended ones are removed when the next rule is made.
    pub(super) rules: Vec<Arc<dyn SteeringRule>>,
    #[allow(dead_code, reason = "held for their lifetime")]
    pub(super) parents: Parents,
    #[allow(dead_code, reason = "for its drop")]
    pub(super) releases: ReleaseSomeOnDrop,
}

/// Parents, kept alive.
#[derive(Debug, Default)]
#[allow(dead_code, reason = "held for their lifetime")]
pub(super) struct Parents {
    pub(super) pd: Option<ProtectionDomain>,
    pub(super) send_cq: Option<CqHandle<Raw>>,
    pub(super) receive_cq: Option<CqHandle<Raw>>,
    pub(super) srq: Option<SrqHandle<Raw>>,
    pub(super) xrcd: Option<crate::srq::xrcd::XrcDomain>,
    pub(super) table: Option<super::rss::IndirectionTable>,
}

impl Core {
    /// The queue pair that the kernel made with this handle and number: in RESET, still without
    /// queues.
    pub(super) fn in_reset(
        context: Context,
        qp_type: QpType,
        [handle, number]: [u32; 2],
        events: Registered,
        path: LocalPath,
        parents: Parents,
    ) -> Self {
        Self {
            qp_type,
            handle,
            number,
            events: Arc::new(events),
            queue: None,
            path,
            capacities: Capacities::default(),
            state: State::Reset,
            live: true,
            ece: EceState::default(),
            memory: None,
            register: None,
            rules: Vec::new(),
            parents,
            releases: ReleaseSomeOnDrop(context.clone()),
            context,
        }
    }

    /// The values found for the queue pair's port; defaults if the port cannot be queried.
    pub(super) fn found(&self) -> &Found {
        self.path.found_or_nothing(&self.context)
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.path.endpoint(&self.context, self.number)
    }

    /// The state as this process knows it, from its own changes, events and completions.
    pub(super) fn known_state(&self) -> State {
        match &self.queue {
            Some(queue) if queue.state().state() == State::Err => State::Err,
            Some(queue) if queue.state().state() == State::Sqe => State::Sqe,
            _ => self.state,
        }
    }

    pub(super) fn modify(&mut self, attributes: &QpAttributes) -> Result<()> {
        self.modify_with_burst(attributes, BurstInfo::default())
    }

    pub(super) fn modify_with_burst(
        &mut self,
        attributes: &QpAttributes,
        burst: BurstInfo,
    ) -> Result<()> {
        let current = self.known_state();
        let target = modify::Target {
            handle: self.handle,
            qp_type: self.qp_type,
            current,
            ece: self.ece.wanted,
            burst,
        };
        let answer = modify::modify(&self.context, target, attributes)?;
        if let Some(granted) = answer.ece {
            self.ece = EceState { wanted: None, granted };
        }
        if let Some(number) = answer.target_number {
            self.number = number;
            self.queue.iter().for_each(|queue| queue.set_number(number));
        }
        if let Some(state) = attributes.state {
            self.note_state(state);
        }
        Ok(())
    }

    pub(super) fn note_state(&mut self, state: State) {
        self.state = state;
        if let Some(queue) = &self.queue {
            queue.set_state(state);
        }
    }

    pub(super) fn query(&self) -> Result<QpInfo> {
        modify::query(&self.context, (self.handle, self.qp_type), self.capacities)
    }

    /// Moves the queue pair from INIT to RTS. Errors about its state name `verb`.
    pub(super) fn connect(&mut self, verb: &'static str, peer: Option<&Endpoint>) -> Result<()> {
        if self.state != State::Init {
            let cause = format!("the queue pair is in {}, not RESET or INIT", self.known_state());
            return Err(Error::new(verb, ErrorKind::BadState, cause)
                .cure_with("reset() it first, or make another queue pair"));
        }
        self.move_to_rtr(peer)?;
        self.move_to_rts(peer)
    }

    pub(super) fn move_to_rtr(&mut self, peer: Option<&Endpoint>) -> Result<()> {
        let needs_peer = matches!(self.qp_type, QpType::Rc | QpType::Uc | QpType::XrcSend);
        if needs_peer && peer.is_none() {
            return Err(Error::invalid("modify_qp", "a connected queue pair needs a peer"));
        }
        if needs_peer && peer.is_some_and(|peer| peer.qkey != 0) {
            let cause = "the peer's endpoint is that of a datagram queue pair: it has a Q_Key";
            return Err(Error::invalid("modify_qp", cause));
        }
        let peer = peer.copied().unwrap_or_else(|| self.endpoint());
        let attributes = self.path.to_rtr(&self.context, &peer)?;
        self.modify(&attributes)
    }

    pub(super) fn move_to_rts(&mut self, peer: Option<&Endpoint>) -> Result<()> {
        self.modify(&self.path.to_rts(&self.context, peer)?)
    }

    /// Destroys the kernel's object and closes its user index. On failure nothing has changed.
    pub(super) fn destroy(&mut self, wait: Wait) -> Result<()> {
        self.context.commands().require_opener(DESTROY)?;
        let rules = self.rules.iter().filter(|rule| rule.is_live()).count();
        if rules != 0 {
            let cause = format!("{rules} steering rule(s) still lead to it");
            return Err(Error::new(DESTROY, ErrorKind::Busy, cause).cure_with("destroy them first"));
        }
        let commands = self.context.commands();
        self.events.destroy(DESTROY, wait, || {
            let method = (destroy::HANDLE, destroy::RESP);
            commands.destroy_with_events::<_, DestroyQpResp>(DESTROY, method, self.handle)
        })?;
        self.live = false;
        if let Some(queue) = &self.queue {
            queue.close();
        }
        Ok(())
    }

    /// As `destroy`, for a `Drop`: steering rules to the queue pair are destroyed first. Does
    /// nothing the second time.
    pub(super) fn end(&mut self) -> Result<()> {
        if !self.live {
            return Ok(());
        }
        self.rules.iter().for_each(|rule| rule.end_in_drop());
        self.destroy(Wait::Forever)
    }

    /// Keeps the kernel's object until the context is closed, because a `Drop` could not destroy it
    /// (`error`). The device may still use the memory and complete requests. So no other queue gets
    /// the user index, and the rings of `queues` stay visible to pollers. (In a forked child,
    /// hiding the rings could wait for ever for the parent's poller.)
    pub(super) fn keep(&mut self, error: &Error, queues: impl Send + 'static) {
        self.live = false;
        let kept = &self.context.inner().until_close;
        kept.keep_mapped(self.register.take());
        let memory = (self.memory.take(), self.queue.take(), self.events.clone());
        kept.keep("queue pair", error, (queues, memory));
    }
}

impl Drop for Core {
    /// Destroys a queue pair whose send and receive queue were never made, or that has none. Other
    /// queue pairs have already called `end`.
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            self.keep(&error, ());
        }
    }
}
