//! Building steering rules from typed parts.

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_mlx5::mmio::Register;
use uverbs_mlx5::send_queue::RawEthernet;
use uverbs_uapi::enums::{FlowAttrType, FlowSpecType};
use uverbs_uapi::flags::FlowFlags;
use uverbs_uapi::write::flow::{
    CreateFlow, CreateFlowResp, FlowAttr, FlowSpecActionCount, FlowSpecActionDrop,
    FlowSpecActionTag, FlowSpecIpv6,
};
use uverbs_uapi::write::{WriteCmd, WriteCommand};
use zerocopy::{Immutable, IntoBytes};

use super::counters::{Bound, Counters};
use super::matches::{Ethernet, Ipv4, Ipv6, Ports, head};
use super::{Flow, Parts, Rule, Traffic};
use crate::device::layer::Layer;
use crate::error::{Error, Result};
use crate::host::privilege;
use crate::qp::rss::RssTarget;
use crate::qp::{QueuePair, SteeringTarget};

pub(super) const VERB: &str = "create_flow";
/// Most parts of a rule (`IB_FLOW_SPEC_SUPPORT_LAYERS`).
const MAX_PARTS: usize = 10;
/// Bytes of the longest list of parts; the longest part is IPv6.
const SPACE: usize = MAX_PARTS * size_of::<FlowSpecIpv6>();
/// `MLX5_IB_FLOW_LAST_PRIO`.
const LAST_PRIORITY: u16 = 15;

/// The type of a rule (`enum ibv_flow_attr_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FlowKind {
    /// Takes the frames that its parts match.
    #[default]
    Normal,
    /// Takes all frames that no other rule takes.
    AllDefault,
    /// Takes all multicast frames that no other rule takes.
    MulticastDefault,
    /// Gets copies of all frames of the port, in and out.
    Sniffer,
}

/// Builds a steering rule: from [`QueuePair::create_flow`] or [`RssTarget::create_flow`].
///
/// The defaults: a normal rule of priority 0, on the queue pair's own port. Parts that are not
/// given match everything.
#[derive(Debug)]
#[must_use = "nothing is created until build() is called"]
pub struct FlowBuilder<'q> {
    target: &'q mut dyn SteeringTarget,
    attr: FlowAttr,
    parts: Vec<u8>,
    tag: u32,
    counters: Option<Counters>,
}

impl<L: Layer, R: Register> QueuePair<RawEthernet, L, R> {
    /// Starts building a rule that leads here (ibv_create_flow).
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&mut self) -> FlowBuilder<'_> {
        FlowBuilder::new(self.port(), self.steering_target())
    }
}

impl RssTarget {
    /// Starts building a rule that leads here (ibv_create_flow). It should match only frames that
    /// the target hashes, see [`rss`](crate::qp::rss).
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&mut self) -> FlowBuilder<'_> {
        FlowBuilder::new(self.port(), self.steering_target())
    }

    /// Adds a steering rule, whose frames are spread over the table's queues. Dropping the result
    /// destroys the rule. For a priority or counters, use [`Traffic::describe`] with
    /// [`create_flow`](Self::create_flow).
    ///
    /// # Errors
    /// Those of [`FlowBuilder::build`] and of the rule itself.
    pub fn steer(&mut self, rule: &impl Traffic) -> Result<Flow> {
        rule.describe(self.create_flow())?.build()
    }
}

impl<'q> FlowBuilder<'q> {
    fn new(port: u8, target: &'q mut dyn SteeringTarget) -> Self {
        let attr = FlowAttr { port, ..FlowAttr::default() };
        Self { target, attr, parts: Vec::new(), tag: 0, counters: None }
    }

    fn part(mut self, part: impl IntoBytes + Immutable) -> Self {
        self.parts.extend_from_slice(part.as_bytes());
        self.attr.num_of_specs = self.attr.num_of_specs.saturating_add(1);
        self
    }

    /// Adds conditions on the Ethernet header.
    pub fn ethernet(self, fields: Ethernet) -> Self {
        self.part(fields.spec())
    }

    /// Adds conditions on the IPv4 header.
    pub fn ipv4(self, fields: Ipv4) -> Self {
        self.part(fields.spec())
    }

    /// Adds conditions on the IPv6 header.
    pub fn ipv6(self, fields: Ipv6) -> Self {
        self.part(fields.spec())
    }

    /// Adds conditions on TCP ports.
    pub fn tcp(self, ports: Ports) -> Self {
        self.part(ports.spec(FlowSpecType::TCP))
    }

    /// Adds conditions on UDP ports.
    pub fn udp(self, ports: Ports) -> Self {
        self.part(ports.spec(FlowSpecType::UDP))
    }

    /// Drops the frames instead of delivering them.
    pub fn drop_frames(self) -> Self {
        self.part(FlowSpecActionDrop { hdr: head::<FlowSpecActionDrop>(FlowSpecType::ACTION_DROP) })
    }

    /// Sets the tag in completions of the frames, 24 bits
    /// ([`flow_tag`](crate::cq::WorkCompletion::flow_tag)). Rules of the same match and priority
    /// share one tag, see the [module](super). mlx5 ignores the tag of default rules.
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = tag;
        let hdr = head::<FlowSpecActionTag>(FlowSpecType::ACTION_TAG);
        self.part(FlowSpecActionTag { hdr, tag_id: tag, reserved1: 0 })
    }

    /// Counts the frames in `counters`, at the indices set by [`Counters::attach`].
    pub fn count(mut self, counters: &Counters) -> Self {
        self.counters = Some(counters.clone());
        let hdr = head::<FlowSpecActionCount>(FlowSpecType::ACTION_COUNT);
        self.part(FlowSpecActionCount { hdr, handle: counters.kernel_handle(), reserved1: 0 })
    }

    /// Sets the type of the rule.
    pub fn kind(mut self, kind: FlowKind) -> Self {
        self.attr.kind = match kind {
            FlowKind::Normal => FlowAttrType::NORMAL,
            FlowKind::AllDefault => FlowAttrType::ALL_DEFAULT,
            FlowKind::MulticastDefault => FlowAttrType::MC_DEFAULT,
            FlowKind::Sniffer => FlowAttrType::SNIFFER,
        };
        self
    }

    /// Sets the priority. Of several rules that match a frame, the one with the smallest number
    /// wins. mlx5 allows 0 to 15, and ignores the priority of multicast-only rules, see the
    /// [module](super).
    pub fn priority(mut self, priority: u16) -> Self {
        self.attr.priority = priority;
        self
    }

    /// Sets the port, from 1.
    pub fn port(mut self, port: u8) -> Self {
        self.attr.port = port;
        self
    }

    /// Lets later rules get the frames as well (`IBV_FLOW_ATTR_FLAGS_DONT_TRAP`).
    pub fn pass_on(mut self) -> Self {
        self.attr.flags |= FlowFlags::DONT_TRAP;
        self
    }

    /// Makes a rule for sent frames (`IBV_FLOW_ATTR_FLAGS_EGRESS`).
    pub fn egress(mut self) -> Self {
        self.attr.flags |= FlowFlags::EGRESS;
        self
    }

    /// Adds the rule.
    ///
    /// # Errors
    /// `InvalidInput` for too many parts, a tag of more than 24 bits, or a default rule with flags;
    /// EEXIST if a rule of the same match and priority has another tag, or only one of the two
    /// drops the frames; `Unsupported` for features that the device lacks; EPERM without
    /// CAP_NET_RAW; other errors of the kernel.
    pub fn build(self) -> Result<Flow> {
        self.check()?;
        let context = self.target.context().clone();
        if let Some(counters) = &self.counters {
            context.require_same(VERB, counters.context(), "counter set")?;
        }
        let mut bound = self.counters.as_ref().map(Counters::bind).transpose()?;
        let driver = bound.as_ref().map(Bound::request).unwrap_or_default();
        let made: CreateFlowResp = context
            .commands()
            .write_with(VERB, &self.command(), driver.as_bytes(), &mut [])
            .map_err(|error| self.explain(error))?;
        if let Some(bound) = &mut bound {
            bound.keep();
        }
        drop(bound);
        let parts = Parts { counters: self.counters, ..Parts::default() };
        let rule = Arc::new(Rule::new(context, made.flow_handle, parts));
        self.target.keep_rule(rule.clone());
        Ok(Flow { rule })
    }

    fn check(&self) -> Result<()> {
        let is_default =
            matches!(self.attr.kind, FlowAttrType::ALL_DEFAULT | FlowAttrType::MC_DEFAULT);
        if usize::from(self.attr.num_of_specs) > MAX_PARTS {
            return Err(Error::invalid(VERB, "a rule has at most 10 parts, actions included"));
        }
        if self.tag >= 1 << 24 {
            return Err(Error::invalid(VERB, "a flow tag has 24 bits"));
        }
        if is_default && !self.attr.flags.is_empty() {
            let cause = "a default rule is for incoming frames that no other rule takes";
            return Err(Error::invalid(VERB, cause));
        }
        Ok(())
    }

    fn command(&self) -> Command {
        let mut parts = [0; SPACE];
        for (to, from) in parts.iter_mut().zip(&self.parts) {
            *to = *from;
        }
        let flow_attr = FlowAttr { size: self.parts.len() as u16, ..self.attr };
        let qp_handle = self.target.kernel_handle();
        Command { head: CreateFlow { comp_mask: 0, qp_handle, flow_attr }, parts }
    }

    /// Explains the kernel's error for this rule: `ib_uverbs_ex_create_flow`
    /// (drivers/infiniband/core/uverbs_cmd.c), `mlx5_ib_create_flow` and `parse_flow_attr`
    /// (drivers/infiniband/hw/mlx5/fs.c).
    fn explain(&self, error: Error) -> Error {
        let (kind, priority) = (self.attr.kind, self.attr.priority);
        let asked = format!("{kind}, priority {priority}, {} parts", self.attr.num_of_specs);
        let error = error.asked(asked);
        match Errno::from_raw(error.errno()) {
            Errno::EPERM => error.because(privilege::lacking()),
            Errno::ENOMEM if priority > LAST_PRIORITY => {
                error.because("mlx5 knows priorities 0 to 15")
            }
            Errno::EOPNOTSUPP if self.attr.kind == FlowAttrType::SNIFFER => error
                .because("the device has no sniffer rules")
                .cure_with("a rule of the same match as a program's gets copies of its frames"),
            Errno::EOPNOTSUPP => error.because(self.lacking()),
            Errno::EEXIST => error.because(
                "a rule of the same match and priority has another flow tag, or one drops the frames that the other \
                 delivers: give them the same tag, or leave it out of the later rule",
            ),
            Errno::EINVAL => error.because(
                "the port does not exist, or a value has bits outside its mask, or the parts contradict each other (two \
                 protocols, an Ethernet type that is not the IP version's), or the counter set has nothing attached",
            ),
            _ => error,
        }
    }

    fn lacking(&self) -> &'static str {
        if self.attr.flags.contains(FlowFlags::EGRESS) {
            return "the device has no rules for frames that leave";
        }
        "the device has no such match or action"
    }
}

/// The command with its parts. The kernel ignores zeros after them (`uverbs_request_finish`).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    head: CreateFlow,
    parts: [u8; SPACE],
}

impl WriteCommand for Command {
    const COMMAND: WriteCmd = CreateFlow::COMMAND;
    type Response = CreateFlowResp;
}
