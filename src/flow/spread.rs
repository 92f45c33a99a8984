//! Spreading frames over queues, with shares that can change while frames arrive.

use std::fmt;
use std::mem;

use super::{Flow, Traffic};
use crate::error::Result;
use crate::memory::pd::ProtectionDomain;
use crate::qp::rss::{IndirectionTable, RssOptions, RssTarget};
use crate::qp::work_queue::WqHandle;

/// Steering rules whose frames a hash spreads over queues; the queues can be changed while frames
/// arrive. From [`ProtectionDomain::create_spread`].
///
/// The kernel cannot modify indirection tables or targets, so [`Spread::rebalance`] makes new ones:
///
/// 1. It makes a table with the new entries, and a target over it.
/// 2. It makes each rule again, to the new target, with the other one of the priorities 0 and 1.
/// 3. It destroys the old rules, then the old target and table.
///
/// At each moment there is a rule for every frame. A rule of priority 0 wins over one of priority
/// 1, so frames move from the old queues to the new ones at one moment: when a new rule of priority
/// 0 is made, or when an old rule of priority 0 is destroyed. No frame is lost or duplicated.
/// Multicast-only rules ([`UdpMulticast`](super::UdpMulticast)) and default rules have no priority:
/// between steps 2 and 3 the old queue and the new one each get a copy of their frames.
///
/// Frames that a queue has received stay in it, even if it has no entry any more. Poll it until
/// [`FrameError::Empty`](crate::ethernet::FrameError::Empty). If the order of frames of one
/// connection matters, do so before polling the new queue. The device may still deliver frames to
/// the old queue that it steered just before the old rule was destroyed (unconfirmed): keep polling
/// the old queue for as long as that may take.
///
/// Other rules of the program for the same frames must not use the priorities 0 and 1.
///
/// ```no_run
/// use uverbs::ethernet::RxQueue;
/// use uverbs::flow::{Port, Protocol};
/// use uverbs::qp::rss::{RssOptions, RssTraffic};
/// let context = uverbs::open_default()?;
/// let pd = context.alloc_pd()?;
/// let queue = || pd.create_rx_queue(512).spread().build();
/// let queues = [queue()?, queue()?];
/// let [one, two] = [&queues[0], &queues[1]].map(|queue| queue.work_queue().cloned());
/// let (one, two) = (one.expect("it is spread to"), two.expect("it is spread to"));
/// let mut spread = pd.create_spread(&[&one, &two], &RssOptions::new(RssTraffic::Ipv4Udp))?;
/// spread.steer(Port { protocol: Protocol::Udp, port: 14310, tag: None })?;
/// // The second thread is slow, so the first one gets three quarters.
/// spread.rebalance(&[&one, &one, &one, &two])?;
/// # Ok::<(), uverbs::Error>(())
/// ```
pub struct Spread {
    pd: ProtectionDomain,
    options: RssOptions,
    rules: Vec<Box<dyn Traffic + Send + Sync>>,
    now: Steered,
}

impl fmt::Debug for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spread")
            .field("rules", &self.rules.len())
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// The order of the fields matters: rules are destroyed before their target, and the target before
/// its table.
#[derive(Debug)]
struct Steered {
    flows: Vec<Flow>,
    target: RssTarget,
    table: IndirectionTable,
    priority: u16,
}

impl ProtectionDomain {
    /// Spreads the frames of rules over the queues in `places`, the entries of an indirection
    /// table. A queue may have several entries.
    ///
    /// # Errors
    /// Those of [`Context::create_indirection_table`](crate::Context::create_indirection_table) and
    /// [`ProtectionDomain::create_rss_target`].
    pub fn create_spread(&self, places: &[&WqHandle], options: &RssOptions) -> Result<Spread> {
        let now = Steered::new(self, places, options, 0)?;
        Ok(Spread { pd: self.clone(), options: *options, rules: Vec::new(), now })
    }
}

impl Spread {
    /// Adds a steering rule, which exists as long as this value. It should match only frames that
    /// the target hashes ([`RssOptions`]). This value sets its priority.
    ///
    /// # Errors
    /// Those of [`RssTarget::steer`].
    pub fn steer(&mut self, rule: impl Traffic + Send + Sync + 'static) -> Result<()> {
        self.now.steer(&rule)?;
        self.rules.push(Box::new(rule));
        Ok(())
    }

    /// Replaces the entries, without losing a frame of any rule: see [`Spread`].
    ///
    /// # Errors
    /// Those of [`ProtectionDomain::create_spread`] and [`Spread::steer`], after which nothing has
    /// changed. Errors of destroying an old rule, the old target or the old table; then the new
    /// entries are in force, and the old objects have been dropped.
    pub fn rebalance(&mut self, places: &[&WqHandle]) -> Result<()> {
        let priority = 1 - self.now.priority;
        let mut next = Steered::new(&self.pd, places, &self.options, priority)?;
        self.rules.iter().try_for_each(|rule| next.steer(&**rule))?;
        mem::replace(&mut self.now, next).end()
    }

    /// The queue of each entry.
    pub fn places(&self) -> &[WqHandle] {
        self.now.table.queues()
    }
}

impl Steered {
    fn new(
        pd: &ProtectionDomain,
        places: &[&WqHandle],
        options: &RssOptions,
        priority: u16,
    ) -> Result<Self> {
        let table = pd.context().create_indirection_table(places)?;
        let target = pd.create_rss_target(&table, options)?;
        Ok(Self { flows: Vec::new(), target, table, priority })
    }

    fn steer(&mut self, rule: &dyn Traffic) -> Result<()> {
        let rule = rule.describe(self.target.create_flow())?;
        self.flows.push(rule.priority(self.priority).build()?);
        Ok(())
    }

    fn end(self) -> Result<()> {
        let Self { flows, target, table, .. } = self;
        let ended: Result<Vec<()>> = flows.into_iter().map(|flow| Ok(flow.destroy()?)).collect();
        let destroyed = target.destroy();
        // The rule's error first: a remaining rule is the reason why the target remains.
        ended?;
        destroyed?;
        Ok(table.destroy()?)
    }
}
