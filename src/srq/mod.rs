//! Shared receive queues.

pub(crate) mod safe;
pub(crate) mod xrcd;

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::memory::DmaMemory;
use uverbs_mlx5::queue_state::{QpState as State, Shape};
use uverbs_mlx5::request::{PostError, Sge};
use uverbs_mlx5::shared_recv_queue::{SharedRecvQueue, SharedRecvQueueConfig};
use uverbs_mlx5::size::{self, RecvSize};
use uverbs_mlx5::user_index::QueueHandle;
use uverbs_uapi::enums::SrqType;
use uverbs_uapi::flags::DeviceCapFlags;
pub use uverbs_uapi::flags::SrqAttrMask;
use uverbs_uapi::mlx5::{CreateSrq as DriverRequest, CreateSrqResp};
use uverbs_uapi::objects::srq::{create, destroy};
use uverbs_uapi::write::srq::{CreateXsrq, DestroySrqResp, ModifySrq, QuerySrq};
use zerocopy::IntoBytes;

use crate::cq::CqHandle;
use crate::device::context::Context;
use crate::device::layer::{Layer, Raw, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::host::events::{Behind, ObjectId, Wait, destroy_when_idle};
use crate::host::lifetime::{Destroy, destroy_methods, destroy_unshared};
use crate::host::pages::Buffer;
use crate::host::queue_memory::{self, QueueUse};
use crate::memory::pd::ProtectionDomain;
use crate::mlx5::records::Record;
use crate::mlx5::sizes;
use xrcd::XrcDomain;

const CREATE: &str = "create_srq";
const MODIFY: &str = "modify_srq";
const DESTROY: &str = "destroy_srq";

/// Makes a shared receive queue: from [`ProtectionDomain::create_srq`] or, of the raw layer,
/// [`ProtectionDomain::create_raw_srq`].
#[derive(Debug, Clone)]
#[must_use = "nothing is created until build() is called"]
pub struct SrqBuilder<L: Layer = Safe> {
    pd: ProtectionDomain,
    receives: u32,
    sge: u32,
    xrc: Option<(XrcDomain, CqHandle<L>)>,
    user_context: u64,
}

impl ProtectionDomain {
    /// Begins to make a shared receive queue for at least `receives` slots at a time. Queue pairs of any completion queue
    /// may be made with it.
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq(&self, receives: u32) -> SrqBuilder {
        SrqBuilder::new(self, receives)
    }

    /// Begins to make a shared receive queue of the raw layer, for at least `receives` outstanding receives.
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_raw_srq(&self, receives: u32) -> SrqBuilder<Raw> {
        SrqBuilder::new(self, receives)
    }
}

impl SrqBuilder<Raw> {
    /// SGEs per receive, 1 if not said.
    pub fn max_sge(mut self, sge: u32) -> Self {
        self.sge = sge;
        self
    }

    /// A value that completions of an XRC shared receive queue hand back; those of another hand back their queue
    /// pair's.
    pub fn user_context(mut self, value: u64) -> Self {
        self.user_context = value;
        self
    }

    /// Creates it.
    ///
    /// # Errors
    /// `InvalidInput` beyond what the device can; ENOMEM, with the memlock limit where that is the likely
    /// reason; what else the kernel says.
    pub fn build(self) -> Result<SharedReceiveQueue> {
        let context = self.user_context;
        self.build_queue(context)
    }
}

impl<L: Layer> SrqBuilder<L> {
    fn new(pd: &ProtectionDomain, receives: u32) -> Self {
        Self { pd: pd.clone(), receives, sge: 1, xrc: None, user_context: 0 }
    }

    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// An XRC shared receive queue: XRC targets of `domain` deliver to it, completions go to `cq`.
    pub fn xrc(mut self, domain: &XrcDomain, cq: &CqHandle<L>) -> Self {
        self.xrc = Some((domain.clone(), cq.clone()));
        self
    }

    /// Creates the queue that both layers post to; completions hand back `user_context`.
    pub(crate) fn build_queue(self, user_context: u64) -> Result<SharedReceiveQueue> {
        let context = self.pd.context().clone();
        context.commands().require_opener(CREATE)?;
        let ring = self.ring()?;
        if let Some((domain, cq)) = &self.xrc {
            context.require_same(CREATE, domain.context(), "XRC domain")?;
            context.require_same(CREATE, cq.context(), "completion queue")?;
        }
        let from = self.pd.queue_memory();
        let memory = queue_memory::allocate(CREATE, from, ring.bytes(), QueueUse::SharedReceives)?;
        let record = context.inner().records.allocate(CREATE, from)?;
        let user = self.register(&context, ring, user_context)?;
        let queue = receive_queue(ring, &memory, &record, user.clone())?;
        let id = ObjectId::new();
        context.inner().events.gate().admit(id, Behind::Shared(user.clone()));
        let created = self.create(&context, ring, &memory, &record, &user, id);
        let (handle, number) = created.inspect_err(|_| context.inner().events.gate().expel(id))?;
        context.inner().events.gate().rename(id, format!("SRQ {number:#x}"));
        user.set_number(number);
        let shared = Shared {
            context,
            pd: self.pd,
            xrc: self.xrc.map(|(domain, cq)| (domain, cq.into_shared())),
            handle,
            number,
            id,
            user,
            granted: AtomicU32::new(ring.requests),
            sge: ring.sge,
            ring: ring.requests,
            posting: Mutex::new(None),
            memory: Some(memory),
            record: Some(record),
            live: true,
        };
        let queue = ManuallyDrop::new(queue);
        Ok(SharedReceiveQueue { queue, handle: SrqHandle(Arc::new(shared), PhantomData) })
    }

    fn ring(&self) -> Result<RecvSize> {
        let asked = format!("{} receives of {} pieces", self.receives, self.sge);
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
        let monitors: Vec<_> = self.xrc.iter().map(|(_, cq)| cq.monitor()).collect();
        let registered =
            context.inner().users(L::TAKES_SLOTS).register(shape, &monitors, None, user_context);
        registered.map_err(|error| Error::new(CREATE, ErrorKind::Refused, error.to_string()))
    }

    fn create(
        &self,
        context: &Context,
        ring: RecvSize,
        memory: &Buffer,
        record: &Record,
        user: &QueueHandle,
        id: ObjectId,
    ) -> Result<(u32, u32)> {
        let driver = DriverRequest {
            buf_addr: memory.address(),
            db_addr: record.address(),
            uidx: if self.xrc.is_some() { user.user_index() } else { 0 },
            ..DriverRequest::default()
        };
        let made = match self.create_native(context, ring, &driver, id) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.create_write(context, ring, &driver, id)
            }
            result => result,
        };
        made.map_err(|error| {
            error.pinning(memory.len() as u64).asked(format!("{} receives", self.receives))
        })
    }

    fn create_native(
        &self,
        context: &Context,
        ring: RecvSize,
        driver: &DriverRequest,
        id: ObjectId,
    ) -> Result<(u32, u32)> {
        let (mut receives, mut sge, mut xrc_number) = (0u32, 0u32, 0u32);
        let mut answer = CreateSrqResp::default();
        let mut request = context.commands().request::<create::Call>();
        request.new_handle(create::HANDLE);
        request.handle(create::PD_HANDLE, self.pd.handle());
        let kind = if self.xrc.is_some() { SrqType::XRC } else { SrqType::BASIC };
        request.constant(create::TYPE, kind.0);
        if let Some((domain, cq)) = &self.xrc {
            request.handle(create::XRCD_HANDLE, domain.handle());
            request.handle(create::CQ_HANDLE, cq.kernel_handle());
            request.output(create::RESP_SRQ_NUM, &mut xrc_number);
        }
        request.value(create::USER_HANDLE, id.0);
        request.value(create::MAX_WR, ring.requests);
        request.value(create::MAX_SGE, ring.sge);
        request.value(create::LIMIT, 0u32);
        request.output(create::RESP_MAX_WR, &mut receives);
        request.output(create::RESP_MAX_SGE, &mut sge);
        let stored = request.driver_data(driver.as_bytes(), answer.as_mut_bytes());
        stored.map_err(|error| Error::invalid(CREATE, error.to_string()))?;
        context.commands().send(CREATE, &mut request)?;
        let handle = request.created(create::HANDLE).unwrap_or_default();
        Ok((handle, answer.srqn))
    }

    fn create_write(
        &self,
        context: &Context,
        ring: RecvSize,
        driver: &DriverRequest,
        id: ObjectId,
    ) -> Result<(u32, u32)> {
        let command = CreateXsrq {
            user_handle: id.0,
            srq_type: if self.xrc.is_some() { SrqType::XRC } else { SrqType::BASIC },
            pd_handle: self.pd.handle(),
            max_wr: ring.requests,
            max_sge: ring.sge,
            xrcd_handle: self.xrc.as_ref().map_or(0, |(domain, _)| domain.handle()),
            cq_handle: self.xrc.as_ref().map_or(0, |(_, cq)| cq.kernel_handle()),
            ..CreateXsrq::default()
        };
        let mut answer = CreateSrqResp::default();
        let made = context.commands().write_with(
            CREATE,
            &command,
            driver.as_bytes(),
            answer.as_mut_bytes(),
        )?;
        Ok((made.srq_handle, answer.srqn))
    }
}

fn receive_queue(
    ring: RecvSize,
    memory: &Buffer,
    record: &Record,
    handle: QueueHandle,
) -> Result<SharedRecvQueue> {
    // SAFETY: ring and record live in `Shared`, which the owner of this queue keeps until after it; nothing
    // else touches them.
    let (memory, doorbell) = unsafe {
        let start = NonNull::new_unchecked(memory.as_ptr());
        let word = NonNull::new_unchecked(record.as_ptr());
        (DmaMemory::new(start, memory.len()), DoorbellWord::new(word))
    };
    let stride = ring.stride;
    // Queue pairs on it may deliver inside the completion; those that do not never make such completions.
    let config = SharedRecvQueueConfig { memory, doorbell, handle, stride, scatter_to_cqe: true };
    SharedRecvQueue::new(config).map_err(|error| Error::invalid(CREATE, error.to_string()))
}

/// What queue pairs hold of a shared receive queue: enough to receive through it, and to ask and change it,
/// not to post.
#[derive(Debug, Clone)]
#[repr(transparent)]
pub struct SrqHandle<L = Safe>(Arc<Shared>, PhantomData<L>);

#[derive(Debug)]
struct Shared {
    context: Context,
    #[allow(dead_code, reason = "held for its lifetime")]
    pd: ProtectionDomain,
    #[allow(dead_code, reason = "held for its lifetime")]
    xrc: Option<(XrcDomain, CqHandle<Raw>)>,
    handle: u32,
    number: u32,
    id: ObjectId,
    user: QueueHandle,
    granted: AtomicU32,
    sge: u32,
    ring: u32,
    // Declared before `memory`: the queue goes before its memory.
    /// The posting side, once nobody posts any more.
    posting: Mutex<Option<SharedRecvQueue>>,
    memory: Option<Buffer>,
    record: Option<Record>,
    live: bool,
}

/// Attributes of a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SrqAttributes {
    /// Receives that may be outstanding, as granted.
    pub max_wr: u32,
    /// Pieces of memory per receive; not looked at by modify.
    pub max_sge: u32,
    /// Below how many outstanding receives one event is raised; 0: none is armed.
    pub limit: u32,
}

impl SrqHandle<Raw> {
    /// The same handle, for the safe layer: only a safe shared receive queue gives it out.
    pub(crate) fn for_slots(&self) -> &SrqHandle {
        let handle = std::ptr::from_ref(self).cast::<SrqHandle>();
        // SAFETY: both are transparent wrappers of the same, borrowed for as long as `self`.
        unsafe { &*handle }
    }
}

impl<L> SrqHandle<L> {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The device's number for it: what XRC peers need.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// What events call it.
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    /// What keeps the queue, whatever its layer.
    pub(crate) fn into_shared(self) -> SrqHandle<Raw> {
        SrqHandle(self.0, PhantomData)
    }

    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.0.handle
    }

    pub(crate) fn user(&self) -> &QueueHandle {
        &self.0.user
    }

    /// Its attributes now (ibv_query_srq): what was granted, and the limit if one is armed.
    ///
    /// # Errors
    /// `BadState` after SRQ_ERR; what the kernel says.
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

    /// Changes the attributes that `mask` names (ibv_modify_srq). If anything is wrong, nothing changes.
    ///
    /// # Errors
    /// `InvalidInput` for unknown bits, a limit above what was granted, a size beyond the ring;
    /// `Unsupported` for MAX_WR where the device cannot resize (no mlx5 can); `BadState` after SRQ_ERR; what
    /// the kernel says.
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

    /// Arms one SRQ_LIMIT_REACHED event for when fewer than `limit` receives are outstanding; 0 disarms.
    /// Post receives first: the event comes at once if there are too few already.
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
#[derive(Debug)]
pub struct SharedReceiveQueue {
    queue: ManuallyDrop<SharedRecvQueue>,
    handle: SrqHandle<Raw>,
}

impl std::ops::Deref for SharedReceiveQueue {
    type Target = SrqHandle<Raw>;
    fn deref(&self) -> &SrqHandle<Raw> {
        &self.handle
    }
}

impl SharedReceiveQueue {
    /// What queue pairs and other threads hold of it.
    pub fn handle(&self) -> &SrqHandle<Raw> {
        &self.handle
    }

    /// Receives that may be outstanding.
    pub fn capacity(&self) -> u32 {
        self.handle.0.granted.load(Ordering::Relaxed)
    }

    /// Receives that were posted and whose completion was not polled. Counts them one by one;
    /// [`SrqHandle::arm_limit`] has the device watch instead.
    pub fn outstanding_receives(&self) -> u32 {
        let mut count = 0;
        self.queue.for_each_outstanding(|_| count += 1);
        count
    }

    /// Pieces of memory per receive.
    pub fn max_sge(&self) -> u32 {
        self.queue.max_sge()
    }

    /// Posts one receive: the device may use it from now on, as it may what was built before and not yet published.
    ///
    /// # Errors
    /// Any [`PostError`]; nothing has been stored then.
    ///
    /// # Safety
    /// The memory that `data` names stays registered and is not read or written by this process until the
    /// receive has completed or the queue has been destroyed.
    #[inline(always)]
    #[doc(alias = "ibv_post_srq_recv")]
    pub unsafe fn post(&mut self, wr_id: u64, data: &[Sge]) -> std::result::Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.queue.submit(wr_id, data) }
    }

    /// Starts building receives, to be published together.
    #[inline(always)]
    pub fn batch(&mut self) -> SharedReceiveBatch<'_> {
        SharedReceiveBatch(&mut self.queue)
    }

    /// Tells the device of receives that a batch left behind when it was dropped, and of those that have to be posted
    /// again because nothing was received into them.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.queue.publish();
    }

    /// The provider's own queue.
    ///
    /// # Safety
    /// It stays where it is: it is not exchanged with another one (by `mem::swap` and the like), since it works
    /// on memory that `self` frees when it goes.
    pub unsafe fn provider(&mut self) -> &mut SharedRecvQueue {
        &mut self.queue
    }

    destroy_methods! {
        "`Busy` while queue pairs or other handles hold it; `Deadlock` if this thread holds an event of it; \
         what the kernel says. It comes back unharmed."
    }
}

/// Receives being built into a shared receive queue, published together.
///
/// Dropping it leaves what was built in the queue, unpublished: what is posted later publishes it.
#[derive(Debug)]
#[must_use = "receives reach the device when they are published"]
pub struct SharedReceiveBatch<'q>(&'q mut SharedRecvQueue);

impl SharedReceiveBatch<'_> {
    /// Builds one receive behind those built before.
    ///
    /// # Errors
    /// Any [`PostError`]; nothing has been stored then.
    ///
    /// # Safety
    /// As for [`SharedReceiveQueue::post`].
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, data: &[Sge]) -> std::result::Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.post(wr_id, data) }
    }

    /// Tells the device of everything built so far.
    #[inline(always)]
    pub fn publish(self) {
        self.0.publish();
    }
}

impl Destroy for SharedReceiveQueue {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        let name = format!("SRQ {:#x}", self.handle.number());
        destroy_unshared(&mut self.handle.0, DESTROY, ("queue pair", &name), |shared| {
            shared.destroy(wait)
        })
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped, so this is the last use of `queue`.
        let queue = unsafe { ManuallyDrop::take(&mut self.queue) };
        // Queue pairs may go on to receive through it, and short messages find their buffers by what it shows the poller.
        *self.handle.0.posting.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }
}

impl Shared {
    fn destroy(&mut self, wait: Wait) -> Result<()> {
        let gates = [(self.context.inner().events.gate(), self.id)];
        destroy_when_idle(&gates, DESTROY, wait, || self.send_destroy())?;
        self.live = false;
        self.user.close();
        Ok(())
    }

    fn send_destroy(&self) -> Result<()> {
        let mut answer = DestroySrqResp::default();
        let commands = self.context.commands();
        let mut request = commands.request::<destroy::Call>();
        request.handle(destroy::HANDLE, self.handle);
        request.output(destroy::RESP, &mut answer);
        commands.destroy(DESTROY, &mut request)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        let Err(error) = self.destroy(Wait::Forever) else { return };
        // The device may still use this memory, so pollers go on knowing the ring, and its receives may still complete, so
        // the block is no other queue's. In a forked child hiding the ring could wait for ever for the parent's poller.
        let queue = self.posting.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let memory = (queue, self.memory.take(), self.record.take(), self.user.clone());
        self.context.inner().until_close.keep("shared receive queue", &error, memory);
    }
}
