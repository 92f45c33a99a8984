//! Spreading frames over queues in shares that change while frames arrive.

use std::fmt;
use std::mem;

use super::{Flow, Traffic};
use crate::error::Result;
use crate::memory::pd::ProtectionDomain;
use crate::qp::rss::{IndirectionTable, RssOptions, RssTarget};
use crate::qp::work_queue::WqHandle;

/// Steering rules whose frames a hash spreads over queues, and that can be moved to other queues
/// while frames arrive: from [`ProtectionDomain::create_spread`].
///
/// The kernel changes neither indirection tables nor targets, so [`Spread::rebalance`] makes new
/// ones:
///
/// 1. a table with the new places, and a target over it;
/// 2. each rule again, at that target. It has the other one of the priorities 0 and 1;
/// 3. the old rules end, then the old target and table.
///
/// At each moment there is a rule for every frame. For one frame a rule of priority 0 wins over one
/// of priority 1, so frames move from the old queues to the new ones at once, when the new rule is
/// made (of priority 0) or when the old one ends. None is lost and none comes twice. Rules only for
/// multicast ([`UdpMulticast`](super::UdpMulticast)) and default rules have no priorities: between
/// steps 2 and 3 their frames come to the old queue and to the new one.
///
/// Frames that a queue has received stay in it, also if it has no place any more. Poll it until
/// [`FrameError::Empty`](crate::ethernet::FrameError::Empty). If the order of frames of one
/// connection matters, do so before polling the queue that has its place now. A device may still
/// deliver frames to the old queue that it steered just before the old rule ended (nothing has
/// confirmed it): keep polling the old queue for as long as a frame may take.
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
/// // The second thread is late: three quarters go to the first one.
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

/// Declared in this order: rules end before their target, and that before its table.
#[derive(Debug)]
struct Steered {
    flows: Vec<Flow>,
    target: RssTarget,
    table: IndirectionTable,
    priority: u16,
}

impl ProtectionDomain {
    /// Spreads the frames of rules over queues: `places` are those of an indirection table, of
    /// which a queue may have several.
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
    /// Adds a steering rule, for as long as this value lives. It should match what the target
    /// hashes ([`RssOptions`]). Its priority is this value's to choose.
    ///
    /// # Errors
    /// Those of [`RssTarget::steer`].
    pub fn steer(&mut self, rule: impl Traffic + Send + Sync + 'static) -> Result<()> {
        self.now.steer(&rule)?;
        self.rules.push(Box::new(rule));
        Ok(())
    }

    /// Gives the places to other queues, with all rules, without losing a frame: see [`Spread`].
    ///
    /// # Errors
    /// Those of [`ProtectionDomain::create_spread`] and [`Spread::steer`]; nothing has changed
    /// then. Errors of destroying an old rule, the old target or the old table; the new places are
    /// in force then, and the old objects are dropped.
    pub fn rebalance(&mut self, places: &[&WqHandle]) -> Result<()> {
        let priority = 1 - self.now.priority;
        let mut next = Steered::new(&self.pd, places, &self.options, priority)?;
        self.rules.iter().try_for_each(|rule| next.steer(&**rule))?;
        mem::replace(&mut self.now, next).end()
    }

    /// The queue of each place.
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
        // First, because a rule that stays keeps the target.
        ended?;
        destroyed?;
        Ok(table.destroy()?)
    }
}
