//! Shared receive queues (SRQs): their receives serve every queue pair made with them.

pub(crate) mod post;
pub(crate) mod xrcd;

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uverbs_mlx5::queue_state::{QpState as State, Shape};
use uverbs_mlx5::shared_recv_queue::{SharedRecvQueue, SharedRecvQueueConfig};
use uverbs_mlx5::size::{self, RecvSize};
use uverbs_mlx5::user_index::QueueHandle;
use uverbs_uapi::enums::SrqType;
use uverbs_uapi::flags::DeviceCapFlags;
pub use uverbs_uapi::flags::SrqAttrMask;
use uverbs_uapi::mlx5::{CreateSrq as DriverRequest, CreateSrqResp};
use uverbs_uapi::objects::srq::destroy;
use uverbs_uapi::write::srq::{CreateXsrq, DestroySrqResp, ModifySrq, QuerySrq};

use self::post::SlotReceives;
use self::xrcd::XrcDomain;
use crate::cq::CqHandle;
use crate::device::context::Context;
use crate::device::identity::identity_methods;
use crate::device::kept::ReleaseOnDrop;
use crate::device::layer::{Layer, Raw, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::host::events::{ObjectId, Observer, Registered, Wait};
use crate::host::lifetime::{Destroy, destroy_methods, destroy_unshared};
use crate::host::queue_memory::{self, QueueUse};
use crate::memory::flight::Serial;
use crate::memory::pd::ProtectionDomain;
use crate::mlx5::queues::{Anchored, RingMemory};
use crate::mlx5::sizes;

const CREATE: &str = "create_srq";
const MODIFY: &str = "modify_srq";
const DESTROY: &str = "destroy_srq";

impl<L: Layer> fmt::Debug for SharedReceiveQueue<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// The provider's queue, with the memory of its ring.
type PostingSide = Anchored<SharedRecvQueue, (Arc<RingMemory>, ())>;

/// Makes a shared receive queue: from [`ProtectionDomain::create_srq`], or
/// [`ProtectionDomain::create_raw_srq`] on the raw layer.
#[derive(Debug, Clone)]
#[must_use = "nothing is created until build() is called"]
pub struct SrqBuilder<L: Layer = Safe> {
    pd: ProtectionDomain,
    receives: u32,
    sge: u32,
    xrcd: Option<XrcDomain>,
    /// Only for XRC and tag matching queues.
    cq: Option<CqHandle<L>>,
    /// Only for tag matching queues.
    tags: Option<u16>,
    user_context: u64,
}

impl ProtectionDomain {
    /// Starts building a shared receive queue for at least `receives` outstanding receives. Its
    /// queue pairs may have any completion queues.
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq(&self, receives: u32) -> SrqBuilder {
        SrqBuilder::new(self, receives)
    }

    /// As [`ProtectionDomain::create_srq`], of the raw layer.
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_raw_srq(&self, receives: u32) -> SrqBuilder<Raw> {
        SrqBuilder::new(self, receives)
    }
}

impl SrqBuilder<Raw> {
    /// SGEs per receive, 1 by default.
    pub fn max_sge(mut self, sge: u32) -> Self {
        self.sge = sge;
        self
    }

    /// Makes it a tag matching queue: the device compares the tags of messages with a list of at
    /// most `tags` entries ([`SrqHandle::create_tag_queue`]). Messages complete to `cq`.
    #[doc(alias = "IBV_SRQT_TM")]
    pub fn match_tags(self, cq: &CqHandle<Raw>, tags: u16) -> Self {
        Self { cq: Some(cq.clone()), xrcd: None, tags: Some(tags), ..self }
    }

    /// A value that completions of an XRC shared receive queue carry. Completions of other shared
    /// receive queues carry the value of their queue pair.
    pub fn user_context(mut self, value: u64) -> Self {
        self.user_context = value;
        self
    }
}

impl<L: Layer> SrqBuilder<L> {
    fn new(pd: &ProtectionDomain, receives: u32) -> Self {
        Self { pd: pd.clone(), receives, sge: 1, xrcd: None, cq: None, tags: None, user_context: 0 }
    }

    /// Makes it an XRC shared receive queue: XRC targets of `domain` deliver to it, and receives
    /// complete to `cq`.
    pub fn xrc(self, domain: &XrcDomain, cq: &CqHandle<L>) -> Self {
        Self { xrcd: Some(domain.clone()), cq: Some(cq.clone()), tags: None, ..self }
    }

    fn kind(&self) -> SrqType {
        match self.tags {
            Some(_) => SrqType::TM,
            None if self.xrcd.is_some() => SrqType::XRC,
            None => SrqType::BASIC,
        }
    }

    fn check_tags(&self) -> Result<()> {
        let Some(tags) = self.tags else { return Ok(()) };
        let cause = match self.pd.context().attributes()?.kernel.tm_caps.max_num_tags {
            0 => "the device matches no tags".to_owned(),
            most if (1..=most).contains(&tags.into()) => return Ok(()),
            most => format!("a list of this device holds 1 to {most} tags"),
        };
        Err(Error::invalid(CREATE, cause).asked(format!("{tags} tags")))
    }

    fn max_tags(&self) -> u32 {
        self.tags.unwrap_or_default().into()
    }

    /// Creates the shared receive queue.
    ///
    /// # Errors
    /// `InvalidInput` beyond the device's limits; ENOMEM, with the memlock limit if that is the
    /// likely reason; other errors of the kernel.
    pub fn build(self) -> Result<SharedReceiveQueue<L>> {
        let context = self.pd.context().clone();
        context.commands().require_opener(CREATE)?;
        let ring = self.ring()?;
        self.check_tags()?;
        if let Some(domain) = &self.xrcd {
            context.require_same(CREATE, domain.context(), "XRC domain")?;
        }
        if let Some(cq) = &self.cq {
            context.require_same(CREATE, cq.context(), "completion queue")?;
        }
        let serial = Serial::new(CREATE)?;
        let mut slots = L::if_safe(|| SlotReceives::new(serial, &self.pd));
        let user_context = L::get(&mut slots).map_or(self.user_context, |_| serial.get());
        let from = self.pd.queue_memory();
        let rings = queue_memory::allocate(CREATE, from, ring.bytes(), QueueUse::SharedReceives)?;
        let memory = RingMemory::new(rings, context.inner().records.allocate(CREATE, from)?);
        let user = self.register(&context, ring, user_context)?;
        let queue = posting_side(ring, &memory, user.clone())?;
        let events = context.register(Observer::Shared(user.clone()));
        let (handle, number) = self.create(&context, ring, &memory, &user, events.id())?;
        events.set_name(&format!("SRQ {number:#x}"));
        user.set_number(number);
        // A message that matches an entry of the tag list makes up to two completions.
        user.set_capacity(0, ring.requests + 2 * self.max_tags());
        let shared = Shared {
            pd: self.pd,
            xrcd: self.xrcd,
            cq: self.cq.map(CqHandle::into_shared),
            handle,
            number,
            events: Arc::new(events),
            user,
            granted: AtomicU32::new(ring.requests),
            sge: ring.sge,
            ring: ring.requests,
            posting: Mutex::new(None),
            memory,
            live: true,
            context,
        };
        let releases = ReleaseOnDrop(shared.context.clone());
        let handle = SrqHandle(Arc::new(shared), PhantomData);
        Ok(SharedReceiveQueue { queue: ManuallyDrop::new(queue), slots, handle, releases })
    }

    fn ring(&self) -> Result<RecvSize> {
        let asked = format!("{} receives of {} SGEs", self.receives, self.sge);
        if self.receives == 0 {
            return Err(Error::invalid(
                CREATE,
                "a shared receive queue holds at least one receive",
            ));
        }
        let limits = self.pd.context().queue_limits()?;
        size::shared_recv_queue(self.receives, self.sge, &limits)
            .map_err(|error| sizes::refused(CREATE, error, asked))
    }

    fn register(
        &self,
        context: &Context,
        ring: RecvSize,
        user_context: u64,
    ) -> Result<QueueHandle> {
        let shape = Shape { send_wqebbs: 0, recv_wqes: ring.entries, shared_receive: true };
        let monitors: Vec<_> = self.cq.iter().map(CqHandle::monitor).collect();
        let users = context.inner().users(L::TAKES_SLOTS);
        let user = users
            .register(shape, &monitors, None, user_context)
            .map_err(|error| Error::new(CREATE, ErrorKind::Refused, error.to_string()))?;
        if let Some(tags) = self.tags {
            user.match_tags(tags);
        }
        Ok(user)
    }

    /// Sends the command. Returns the kernel's handle and the device's number.
    fn create(
        &self,
        context: &Context,
        ring: RecvSize,
        memory: &RingMemory,
        user: &QueueHandle,
        id: ObjectId,
    ) -> Result<(u32, u32)> {
        let driver = DriverRequest {
            buf_addr: memory.address(),
            db_addr: memory.record_address(),
            uidx: if self.cq.is_some() { user.user_index() } else { 0 },
            ..DriverRequest::default()
        };
        let command = CreateXsrq {
            user_handle: id.0,
            srq_type: self.kind(),
            pd_handle: self.pd.kernel_handle(),
            max_wr: ring.requests,
            max_sge: ring.sge,
            max_num_tags: self.max_tags(),
            xrcd_handle: self.xrcd.as_ref().map_or(0, XrcDomain::handle),
            cq_handle: self.cq.as_ref().map_or(0, CqHandle::kernel_handle),
            ..CreateXsrq::default()
        };
        let made = context.commands().write_driver(CREATE, &command, &driver);
        let (made, answer): (_, CreateSrqResp) = made.map_err(|error| {
            error.pinning(memory.len() as u64).asked(format!("{} receives", self.receives))
        })?;
        Ok((made.srq_handle, answer.srqn))
    }
}

fn posting_side(
    ring: RecvSize,
    memory: &Arc<RingMemory>,
    handle: QueueHandle,
) -> Result<PostingSide> {
    let stride = ring.stride;
    memory.queues(CREATE, (), |memory, (doorbell, _)| {
        // Some queue pairs may deliver data inside the completion; the others never make such
        // completions.
        let scatter_to_cqe = true;
        let config = SharedRecvQueueConfig { memory, doorbell, handle, stride, scatter_to_cqe };
        SharedRecvQueue::new(config).map_err(|error| Error::invalid(CREATE, error.to_string()))
    })
}

/// A handle to a shared receive queue, for making queue pairs and for query and modify. It cannot
/// post.
#[derive(Clone)]
pub struct SrqHandle<L = Safe>(Arc<Shared>, PhantomData<L>);

impl<L> fmt::Debug for SrqHandle<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqHandle")
            .field("number", &format_args!("{:#x}", self.0.number))
            .finish_non_exhaustive()
    }
}

struct Shared {
    context: Context,
    pd: ProtectionDomain,
    #[allow(dead_code, reason = "held for its lifetime")]
    xrcd: Option<XrcDomain>,
    cq: Option<CqHandle<Raw>>,
    handle: u32,
    number: u32,
    events: Arc<Registered>,
    user: QueueHandle,
    granted: AtomicU32,
    sge: u32,
    ring: u32,
    /// The provider's queue, after its owner was dropped.
    posting: Mutex<Option<PostingSide>>,
    memory: Arc<RingMemory>,
    live: bool,
}

/// Attributes of a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SrqAttributes {
    /// Receives that may be outstanding.
    pub max_wr: u32,
    /// SGEs per receive; modify ignores it.
    pub max_sge: u32,
    /// One event is raised when fewer receives than this are outstanding; 0: no limit is armed.
    pub limit: u32,
}

impl<L> SrqHandle<L> {
    identity_methods! { 0 }

    /// The device's number for it, which XRC peers need.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// The handle without its layer, to keep the queue alive.
    pub(crate) fn into_shared(self) -> SrqHandle<Raw> {
        SrqHandle(self.0, PhantomData)
    }

    /// Whether it is an XRC shared receive queue.
    pub(crate) fn is_xrc(&self) -> bool {
        self.0.xrcd.is_some()
    }

    /// Protection domain and completion queue of a tag matching queue.
    pub(crate) fn tag_parents(&self) -> Option<(&ProtectionDomain, &CqHandle<Raw>)> {
        let cq = self.0.cq.as_ref().filter(|_| !self.is_xrc())?;
        Some((&self.0.pd, cq))
    }

    pub(crate) fn user(&self) -> &QueueHandle {
        &self.0.user
    }

    /// Its current attributes (ibv_query_srq).
    ///
    /// # Errors
    /// `BadState` after SRQ_ERR; errors of the kernel.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttributes> {
        const VERB: &str = "query_srq";
        self.require_working(VERB)?;
        let command = QuerySrq { srq_handle: self.0.handle, ..QuerySrq::default() };
        let answer = self.0.context.commands().write(VERB, &command)?;
        Ok(SrqAttributes {
            max_wr: self.0.granted.load(Ordering::Relaxed),
            max_sge: self.0.sge,
            limit: answer.srq_limit,
        })
    }

    /// Changes the attributes in `mask` (ibv_modify_srq). On an error nothing has changed.
    ///
    /// # Errors
    /// `InvalidInput` for unknown bits, a limit above `max_wr`, or a size beyond the ring;
    /// `Unsupported` for MAX_WR if the device cannot resize (no mlx5 device can); `BadState` after
    /// SRQ_ERR; errors of the kernel.
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify(&self, mask: SrqAttrMask, attributes: SrqAttributes) -> Result<()> {
        self.require_working(MODIFY)?;
        self.check(mask, attributes)?;
        let command = ModifySrq {
            srq_handle: self.0.handle,
            attr_mask: mask,
            max_wr: attributes.max_wr,
            srq_limit: attributes.limit,
        };
        self.0.context.commands().write(MODIFY, &command)?;
        if mask.contains(SrqAttrMask::MAX_WR) {
            self.0.granted.store(attributes.max_wr, Ordering::Relaxed);
            self.0.user.set_granted_receives(attributes.max_wr);
        }
        Ok(())
    }

    /// Arms one SRQ_LIMIT_REACHED event, raised when fewer than `limit` receives are outstanding; 0
    /// disarms. Post receives first: if there are fewer already, the event is raised at once.
    ///
    /// # Errors
    /// As [`SrqHandle::modify`].
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        self.modify(SrqAttrMask::LIMIT, SrqAttributes { limit, ..SrqAttributes::default() })
    }

    fn check(&self, mask: SrqAttrMask, wanted: SrqAttributes) -> Result<()> {
        let known = SrqAttrMask::MAX_WR | SrqAttrMask::LIMIT;
        if !known.contains(mask) {
            let unknown = mask.difference(known).bits();
            return Err(Error::invalid(MODIFY, format!("unknown bits {unknown:#x} in the mask")));
        }
        let mut most = self.0.granted.load(Ordering::Relaxed);
        if mask.contains(SrqAttrMask::MAX_WR) {
            let capabilities = self.0.context.attributes()?.capabilities();
            if !capabilities.contains(DeviceCapFlags::SRQ_RESIZE) {
                let cause = "the device cannot resize shared receive queues (SRQ_RESIZE)";
                return Err(Error::unsupported(MODIFY, cause).cure_with("create a new one"));
            }
            if wanted.max_wr == 0 || wanted.max_wr > self.0.ring {
                let cause = format!("its ring holds 1 to {} receives", self.0.ring);
                return Err(Error::invalid(MODIFY, cause).asked(format!("{}", wanted.max_wr)));
            }
            most = wanted.max_wr;
        }
        if mask.contains(SrqAttrMask::LIMIT) && wanted.limit > most {
            let cause = format!("the limit is at most {most}, what was granted");
            return Err(Error::invalid(MODIFY, cause).asked(format!("limit {}", wanted.limit)));
        }
        Ok(())
    }

    fn require_working(&self, verb: &'static str) -> Result<()> {
        if self.0.user.state().state() != State::Err {
            return Ok(());
        }
        let cause = "the device reported a catastrophic error of this queue (SRQ_ERR)";
        Err(Error::new(verb, ErrorKind::BadState, cause).cure_with("destroy it and make a new one"))
    }
}

/// A shared receive queue: receives posted to it serve every queue pair that was made with it.
///
/// On the safe layer receives are slots. The completion of a message gives back the slot, on the
/// completion queue of the queue pair that received it.
///
/// Dereferences to its [`SrqHandle`], for query, modify and the limit. It may be dropped before its
/// queue pairs, which then continue to consume posted receives; remaining slots go back to their
/// slabs when the last queue pair is destroyed. If a queue pair is destroyed while it holds a
/// receive, the next [`SharedReceiveQueue::publish`] posts that receive again. If the device had
/// begun to fill it, it is given back only when the shared receive queue is destroyed.
///
/// ```no_run
/// use uverbs::qp_type::Rc;
/// let context = uverbs::open_default()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(256).build()?);
/// let mut srq = pd.create_srq(128).build()?;
/// let builder = || pd.create_qp::<Rc>(cq.handle(), cq.handle());
/// let a = builder().shared_receive_queue(srq.handle()).build()?;
/// let b = builder().shared_receive_queue(srq.handle()).build()?;
/// let slab = pd.create_slab(128, 2048)?;
/// while let Some(slot) = slab.take() {
///     srq.post(slot)?;
/// }
/// # let _ = (a, b);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedReceiveQueue<L: Layer = Safe> {
    queue: ManuallyDrop<PostingSide>,
    slots: L::IfSafe<SlotReceives>,
    handle: SrqHandle<L>,
    #[allow(dead_code, reason = "for its drop")]
    releases: ReleaseOnDrop,
}

impl<L: Layer> std::ops::Deref for SharedReceiveQueue<L> {
    type Target = SrqHandle<L>;
    fn deref(&self) -> &SrqHandle<L> {
        &self.handle
    }
}

impl<L: Layer> SharedReceiveQueue<L> {
    /// Its handle, for queue pairs and other threads.
    pub fn handle(&self) -> &SrqHandle<L> {
        &self.handle
    }

    /// Receives that may be outstanding.
    pub fn capacity(&self) -> u32 {
        self.handle.0.granted.load(Ordering::Relaxed)
    }

    /// Receives that were posted and whose completion was not polled yet. The call visits each of
    /// them; with [`SrqHandle::arm_limit`] the device counts instead.
    pub fn outstanding_receives(&self) -> u32 {
        let mut count = 0;
        self.queue.for_each_outstanding(|_| count += 1);
        count
    }

    /// SGEs per receive.
    pub fn max_sge(&self) -> u32 {
        self.queue.max_sge()
    }

    /// Publishes receives that a batch built and did not publish, and posts again those that a
    /// destroyed queue pair held unused.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.queue.publish();
    }

    destroy_methods! {
        "ibv_destroy_srq",
        "`Busy` while queue pairs or other handles hold it; `Deadlock` if this thread holds an event of it; \
         errors of the kernel. The error contains it unchanged."
    }
}

impl<L: Layer> Destroy for SharedReceiveQueue<L> {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        let name = format!("SRQ {:#x}", self.handle.number());
        destroy_unshared(&mut self.handle.0, DESTROY, ("queue pair", &name), |shared| {
            shared.destroy(wait)
        })
    }
}

impl Shared {
    /// Takes the provider's queue over from its dropped owner. Queue pairs may continue to receive
    /// through it, and the poller needs the ring to find the buffers of short messages.
    fn take_over(&self, queue: PostingSide) {
        *self.posting.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }

    fn destroy(&mut self, wait: Wait) -> Result<()> {
        let commands = self.context.commands();
        self.events.destroy(DESTROY, wait, || {
            let method = (destroy::HANDLE, destroy::RESP);
            commands.destroy_with_events::<_, DestroySrqResp>(DESTROY, method, self.handle)
        })?;
        self.live = false;
        self.user.close();
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        let Err(error) = self.destroy(Wait::Forever) else { return };
        // The device may still use this memory, so the ring stays visible to pollers. Its receives
        // may still complete, so the user index belongs to no other queue. (In a forked child,
        // hiding the ring could wait for ever for the parent's poller.)
        let queue = self.posting.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let memory = (queue, self.memory.clone(), self.user.clone(), self.events.clone());
        self.context.inner().until_close.keep("shared receive queue", &error, memory);
    }
}
