//! Steering rules in the device's format: a matcher has a mask and a priority, each of its rules a
//! value. Mask and value have the layout of `fte_match_param` (PRM, and `struct
//! mlx5_ifc_fte_match_param_bits` of `include/linux/mlx5/mlx5_ifc.h`).
//!
//! The kernel's checks are in `drivers/infiniband/hw/mlx5/fs.c`.

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_mlx5::mmio::Register;
use uverbs_mlx5::send_queue::RawEthernet;
use uverbs_uapi::enums::FlowAttrType;
use uverbs_uapi::flags::FlowFlags;
use uverbs_uapi::mlx5::enums::FlowTableType;
use uverbs_uapi::mlx5::flags::CreateFlowFlags;
use uverbs_uapi::mlx5::object::{flow, flow_matcher};
use uverbs_uapi::request::TooLong;

use super::action::FlowAction;
use super::build::VERB;
use super::{Flow, Parts, Rule};
use crate::device::context::Context;
use crate::device::layer::Layer;
use crate::devx::DevxObject;
use crate::error::{DestroyError, Error, Result};
use crate::host::lifetime::{Kind, Object, destroy_unshared, object_kind};
use crate::host::privilege;
use crate::qp::rss::RssTarget;
use crate::qp::{QueuePair, SteeringTarget};

const CREATE: &str = "create_flow_matcher";
const KIND: Kind =
    object_kind!("destroy_flow_matcher", "flow matcher", flow_matcher::destroy::HANDLE);

/// The mask, the priority and the table of a matcher.
#[derive(Debug, Clone, Copy, Default)]
pub struct MatcherOptions<'a> {
    /// The bits to compare, as in `fte_match_param`. Bytes missing at its end count as 0.
    pub mask: &'a [u8],
    /// The parts of the mask that are used (`match_criteria_enable`): bit 0 is the outer headers,
    /// bit 1 miscellaneous parameters, bit 2 inner headers, and so on.
    pub criteria: u8,
    /// Of several rules that match a frame, the one with the smallest number wins.
    pub priority: u16,
    /// The table; by default that of received frames, or of sent frames with [`FlowFlags::EGRESS`].
    pub table: Option<FlowTableType>,
    /// The port, for tables of RDMA transport.
    pub port: Option<u32>,
    /// [`FlowFlags::EGRESS`], or none.
    pub flags: FlowFlags,
}

/// The mask and priority that rules share: from [`Context::create_flow_matcher`]. Clones share one
/// matcher.
#[derive(Debug, Clone)]
pub struct Matcher {
    object: Arc<Object<Context>>,
}

impl Context {
    /// Makes a matcher. [`QueuePair::create_flow_by`], [`RssTarget::create_flow_by`] and
    /// [`Matcher::create_flow`] make its rules.
    ///
    /// # Errors
    /// `Unsupported` for a table or fields that the device lacks; EPERM without CAP_NET_RAW; other
    /// errors of the kernel.
    #[doc(alias = "mlx5dv_create_flow_matcher")]
    pub fn create_flow_matcher(&self, options: &MatcherOptions<'_>) -> Result<Matcher> {
        use flow_matcher::create::*;
        let mut request = self.commands().request::<Call>();
        let stored = request.input_bytes(MATCH_MASK, options.mask).map(drop);
        stored.map_err(|error| too_long(CREATE, &error))?;
        request.select(FLOW_TYPE, FlowAttrType::NORMAL.0 as u8, &options.priority);
        request.value(MATCH_CRITERIA, options.criteria);
        if let Some(table) = options.table {
            request.constant(FT_TYPE, table.0);
        }
        if let Some(port) = options.port {
            request.value(IB_PORT, port);
        }
        if !options.flags.is_empty() {
            request.flags(FLOW_FLAGS, options.flags.bits());
        }
        let made = self.commands().create(CREATE, request, HANDLE);
        let handle = made.map_err(|error| match Errno::from_raw(error.errno()) {
            Errno::EPERM => error.because(privilege::lacking()),
            Errno::EOPNOTSUPP => error.because("the device has no such table or match"),
            _ => error,
        })?;
        Ok(Matcher { object: Arc::new(Object::new(self.clone(), handle, &KIND)) })
    }
}

impl Matcher {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.object.parent
    }

    /// Starts building a rule that does not lead to a queue pair: it drops frames, leads to a
    /// firmware object, or only has actions.
    #[doc(alias = "mlx5dv_create_flow")]
    pub fn create_flow(&self, value: &[u8]) -> MatchedFlowBuilder<'static> {
        MatchedFlowBuilder::new(self, value, Destination::None)
    }

    /// Destroys it.
    ///
    /// # Errors
    /// `Busy` while rules or clones of it exist; errors of the kernel. The error contains it,
    /// unchanged.
    #[doc(alias = "mlx5dv_destroy_flow_matcher")]
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        let users = ("rule", "this matcher");
        destroy_unshared(&mut self.object, KIND.verb, users, Object::destroy)
            .map_err(|error| DestroyError::new(self, error))
    }
}

impl<L: Layer, R: Register> QueuePair<RawEthernet, L, R> {
    /// Starts building a rule of `matcher` that leads here.
    #[doc(alias = "mlx5dv_create_flow")]
    pub fn create_flow_by(&mut self, matcher: &Matcher, value: &[u8]) -> MatchedFlowBuilder<'_> {
        MatchedFlowBuilder::new(matcher, value, Destination::Queue(self.steering_target()))
    }
}

impl RssTarget {
    /// Starts building a rule of `matcher` that leads here.
    #[doc(alias = "mlx5dv_create_flow")]
    pub fn create_flow_by(&mut self, matcher: &Matcher, value: &[u8]) -> MatchedFlowBuilder<'_> {
        MatchedFlowBuilder::new(matcher, value, Destination::Queue(self.steering_target()))
    }
}

/// The destination of a rule's frames.
#[derive(Debug)]
enum Destination<'q> {
    None,
    Queue(&'q mut dyn SteeringTarget),
    /// The firmware object with this handle.
    Object(u32),
    Flag(CreateFlowFlags),
}

/// A flow counter made by a firmware command, with the offset in a bulk of counters.
#[derive(Debug, Clone, Copy)]
struct Counter {
    handle: u32,
    offset: Option<u32>,
}

/// Makes a rule of a matcher.
#[derive(Debug)]
#[must_use = "nothing is created until build() is called"]
pub struct MatchedFlowBuilder<'q> {
    matcher: Matcher,
    value: Vec<u8>,
    destination: Destination<'q>,
    tag: Option<u32>,
    counter: Option<Counter>,
    actions: Vec<FlowAction>,
    /// The contexts of the firmware objects that it names.
    contexts: Vec<Context>,
}

impl<'q> MatchedFlowBuilder<'q> {
    fn new(matcher: &Matcher, value: &[u8], destination: Destination<'q>) -> Self {
        let (matcher, value) = (matcher.clone(), value.to_vec());
        let (tag, counter, actions, contexts) = Default::default();
        Self { matcher, value, destination, tag, counter, actions, contexts }
    }

    /// Leads the frames to a firmware object: a flow table or a TIR (transport interface receive).
    pub fn to_object(mut self, object: &DevxObject) -> Self {
        self.destination = Destination::Object(object.kernel_handle());
        self.contexts.push(object.context().clone());
        self
    }

    /// Drops the frames.
    pub fn drop_frames(mut self) -> Self {
        self.destination = Destination::Flag(CreateFlowFlags::DROP);
        self
    }

    /// Treats the frames like those that no rule of the table matches.
    pub fn default_miss(mut self) -> Self {
        self.destination = Destination::Flag(CreateFlowFlags::DEFAULT_MISS);
        self
    }

    /// Sets the tag in completions of the frames, 24 bits.
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Counts the frames with a firmware object: a flow counter, or counter `offset` of a bulk.
    pub fn count(mut self, counter: &DevxObject, offset: Option<u32>) -> Self {
        self.counter = Some(Counter { handle: counter.kernel_handle(), offset });
        self.contexts.push(counter.context().clone());
        self
    }

    /// Changes the headers of the frames.
    pub fn action(mut self, action: &FlowAction) -> Self {
        self.actions.push(action.clone());
        self
    }

    /// Adds the rule.
    ///
    /// # Errors
    /// EINVAL for a destination that the table does not have, a tag of more than 24 bits, or an
    /// object of another context; EEXIST if a rule of the same match and priority excludes it, see
    /// the [module](super); `Unsupported` for features that the device lacks; EPERM without
    /// CAP_NET_RAW; other errors of the kernel.
    pub fn build(self) -> Result<Flow> {
        use flow::create::*;
        let Self { matcher, value, destination, tag, counter, actions, contexts } = self;
        let context = matcher.context().clone();
        for action in &actions {
            context.require_same(VERB, action.context(), "flow action")?;
        }
        for other in &contexts {
            context.require_same(VERB, other, "firmware object")?;
        }
        let handles: Vec<_> = actions.iter().map(FlowAction::kernel_handle).collect();
        let counters: Vec<_> = counter.iter().map(|counter| counter.handle).collect();
        let offset = counter.and_then(|counter| counter.offset).map(u32::to_ne_bytes);
        let mut request = context.commands().request::<Call>();
        request.handle(MATCHER, matcher.object.handle);
        let stored = request.input_bytes(MATCH_VALUE, &value).map(drop);
        stored.map_err(|error| too_long(VERB, &error))?;
        match &destination {
            Destination::None => {}
            Destination::Queue(target) => {
                context.require_same(VERB, target.context(), "queue pair")?;
                request.handle(DEST_QP, target.kernel_handle());
            }
            Destination::Object(handle) => drop(request.handle(DEST_DEVX, *handle)),
            Destination::Flag(flag) => drop(request.flags(FLAGS, flag.bits())),
        }
        if let Some(tag) = tag {
            request.value(TAG, tag);
        }
        let lists = [(ARR_COUNTERS_DEVX, &counters), (ARR_FLOW_ACTIONS, &handles)];
        for (attribute, handles) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            let stored = request.handles(attribute, handles).map(drop);
            stored.map_err(|error| too_long(VERB, &error))?;
        }
        if let Some(offset) = &offset {
            request.input(ARR_COUNTERS_DEVX_OFFSET, offset);
        }
        let handle = context.commands().create(VERB, request, HANDLE).map_err(explain)?;
        let parts = Parts { matcher: Some(matcher), actions, ..Parts::default() };
        let rule = Arc::new(Rule::new(context, handle, parts));
        if let Destination::Queue(target) = destination {
            target.keep_rule(rule.clone());
        }
        Ok(Flow { rule })
    }
}

fn too_long(verb: &'static str, error: &TooLong) -> Error {
    Error::invalid(verb, error.to_string())
}

/// Explains the kernel's error: `MLX5_IB_METHOD_CREATE_FLOW` and `get_dests` of
/// drivers/infiniband/hw/mlx5/fs.c.
fn explain(error: Error) -> Error {
    match Errno::from_raw(error.errno()) {
        Errno::EPERM => error.because(privilege::lacking()),
        Errno::EOPNOTSUPP => error.because("the device has no such match, action or destination"),
        Errno::EEXIST => error.because(
            "a rule of the same match and priority has another flow tag, or one drops the frames that the other \
             delivers",
        ),
        Errno::EINVAL => error.because(
            "the rule has no destination, or several; or the flow tag has more than 24 bits",
        ),
        _ => error,
    }
}
