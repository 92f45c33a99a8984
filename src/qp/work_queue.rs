//! Receive work queues: receive queues without a queue pair. Frames reach them through an
//! [`IndirectionTable`](super::rss::IndirectionTable).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::size::{self, RecvSize};
use uverbs_mlx5::user_index::QueueHandle;
use uverbs_uapi::enums::{WqState as KernelState, WqType};
use uverbs_uapi::flags::{QpCreateFlags, WqAttrMask, WqFlags};
use uverbs_uapi::mlx5::wq::{
    CreateWq as DriverRequest, CreateWqResp as DriverAnswer, ModifyWq as DriverChange,
};
use uverbs_uapi::objects::wq::{create, destroy};
use uverbs_uapi::write::wq::{ExCreateWq, ExDestroyWq, ExModifyWq};
use zerocopy::IntoBytes;

use super::qp_type::RawPacket;
use super::queue_pair::Queues;
use super::raw_packet::{self, RawOptions};
use super::safe::Slots;
use super::striding::Striding;
use crate::cq::CqHandle;
use crate::device::context::Context;
use crate::device::kept::ReleaseOnDrop;
use crate::device::layer::{Layer, Raw, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::host::command::or_older;
use crate::host::events::{ObjectId, Observer, Registered, Wait};
use crate::host::lifetime::{Destroy, destroy_methods, destroy_unshared};
use crate::host::queue_memory::{self, QueueUse};
use crate::memory::flight::Serial;
use crate::memory::pd::ProtectionDomain;
use crate::mlx5::queues::{Anchored, RingMemory};
use crate::mlx5::sizes;

const CREATE: &str = "create_wq";
const MODIFY: &str = "modify_wq";
const DESTROY: &str = "destroy_wq";

/// A queue pair's posting sides, of which a work queue has the receive queue.
type Receives = Queues<RawPacket, BlueFlame>;

/// Makes a receive work queue: from [`ProtectionDomain::create_wq`] or, of the raw layer,
/// [`ProtectionDomain::create_raw_wq`].
#[derive(Debug, Clone)]
#[must_use = "nothing is created until build() is called"]
pub struct WqBuilder<L: Layer = Safe> {
    pd: ProtectionDomain,
    cq: CqHandle<L>,
    receives: u32,
    sge: u32,
    flags: WqFlags,
    striding: Option<Striding>,
    user_context: u64,
}

impl ProtectionDomain {
    /// Begins to make a receive work queue for at least `receives` slots at a time, which complete
    /// to `cq`.
    #[doc(alias = "ibv_create_wq")]
    pub fn create_wq(&self, cq: &CqHandle, receives: u32) -> WqBuilder {
        WqBuilder::new(self, cq, receives)
    }

    /// Begins to make a receive work queue of the raw layer, for at least `receives` outstanding
    /// receives, which complete to `cq`.
    #[doc(alias = "ibv_create_wq")]
    pub fn create_raw_wq(&self, cq: &CqHandle<Raw>, receives: u32) -> WqBuilder<Raw> {
        WqBuilder::new(self, cq, receives)
    }
}

impl WqBuilder<Raw> {
    /// SGEs per receive, 1 if not said.
    pub fn max_sge(mut self, sge: u32) -> Self {
        self.sge = sge;
        self
    }

    /// Each receive is a buffer of strides that many frames fill, of
    /// [`Striding::wqe_bytes`] bytes.
    ///
    /// Its completions count strides and not receives, which
    /// [`CompletionQueue::poll`](crate::raw::CompletionQueue::poll) does not understand: poll with
    /// a [`StridingQueue`](crate::ethernet::StridingQueue), or read the ring yourself.
    #[doc(alias = "mlx5dv_create_wq")]
    pub fn striding(mut self, striding: Striding) -> Self {
        self.striding = Some(striding);
        self
    }

    /// A value that completions of this queue hand back.
    pub fn user_context(mut self, value: u64) -> Self {
        self.user_context = value;
        self
    }
}

impl<L: Layer> WqBuilder<L> {
    fn new(pd: &ProtectionDomain, cq: &CqHandle<L>, receives: u32) -> Self {
        let (pd, cq) = (pd.clone(), cq.clone());
        let (flags, striding) = (WqFlags::empty(), None);
        Self { pd, cq, receives, sge: 1, flags, striding, user_context: 0 }
    }

    /// VLAN tags go into the completion instead of into memory.
    pub fn strip_vlan(mut self) -> Self {
        self.flags |= WqFlags::CVLAN_STRIPPING;
        self
    }

    /// Frames are delivered with their check sequence of four bytes.
    pub fn keep_check_sequence(mut self) -> Self {
        self.flags |= WqFlags::SCATTER_FCS;
        self
    }

    /// Creates it in RDY: receives may be posted, and it takes frames as soon as a target leads to
    /// it.
    ///
    /// # Errors
    /// `InvalidInput` beyond what the device can; `Unsupported` where it has no Ethernet port, or
    /// lacks what was asked for; ENOMEM, with the memlock limit where that is the likely reason;
    /// other errors of the kernel.
    pub fn build(self) -> Result<WorkQueue<L>> {
        let mut queue = self.build_in_reset()?;
        queue.modify(WqState::Rdy)?;
        Ok(queue)
    }

    /// As [`WqBuilder::build`], in RESET: it takes neither receives nor frames before
    /// [`WorkQueue::modify`] took it to RDY.
    ///
    /// # Errors
    /// As there.
    pub fn build_in_reset(self) -> Result<WorkQueue<L>> {
        let context = self.pd.context().clone();
        context.commands().require_opener(CREATE)?;
        context.require_same(CREATE, self.cq.context(), "completion queue")?;
        self.check_flags(&context)?;
        let ring = self.ring()?;
        let serial = Serial::new(CREATE)?;
        let cqs = [self.cq.number(); 2];
        let mut slots = L::if_safe(|| Slots::new(serial, &self.pd, cqs, false));
        let user_context = L::get(&mut slots).map_or(self.user_context, |_| serial.get());
        let from = self.pd.queue_memory();
        let rings = queue_memory::allocate(CREATE, from, ring.bytes(), QueueUse::WorkRequests)?;
        let memory = RingMemory::new(rings, context.inner().records.allocate(CREATE, from)?);
        let user = self.register(&context, ring, user_context)?;
        if let Some(slots) = L::get(&mut slots) {
            slots.mark(&user);
        }
        let queue = posting_side(ring, self.head_octowords(), &memory, user.clone())?;
        let registry = context.inner().events.registry().clone();
        let events = Registered::new([(registry, Observer::Queue(user.clone()))]);
        let (handle, number) = self.create(&context, ring, &memory, &user, events.id())?;
        events.set_name(&format!("WQ {number:#x}"));
        user.set_number(number);
        user.set_capacity(0, ring.entries);
        let shared = Shared {
            pd: self.pd,
            cq: self.cq.into_shared(),
            handle,
            number,
            events: Arc::new(events),
            now: Mutex::new(Now { state: WqState::Reset, user }),
            receives: ring.requests,
            sge: ring.sge,
            left: Mutex::new(None),
            buffers: Mutex::default(),
            memory,
            live: true,
            context: context.clone(),
        };
        let handle = WqHandle(Arc::new(shared));
        let releases = ReleaseOnDrop(context);
        Ok(WorkQueue { queue, slots, handle, releases })
    }

    fn check_flags(&self, context: &Context) -> Result<()> {
        let mut flags = QpCreateFlags::empty();
        flags.set(QpCreateFlags::CVLAN_STRIPPING, self.flags.contains(WqFlags::CVLAN_STRIPPING));
        flags.set(QpCreateFlags::SCATTER_FCS, self.flags.contains(WqFlags::SCATTER_FCS));
        let options = RawOptions { flags, tso_header: 0 };
        raw_packet::check_capabilities(CREATE, context, options)?;
        self.striding.map_or(Ok(()), |striding| striding.check(CREATE, context))
    }

    fn ring(&self) -> Result<RecvSize> {
        let asked = format!("{} receives of {} SGEs", self.receives, self.sge);
        if self.receives == 0 {
            return Err(Error::invalid(CREATE, "a work queue holds at least one receive"));
        }
        let limits = self.pd.context().queue_limits()?;
        size::recv_queue(self.receives, self.sge, self.head_octowords(), &limits)
            .map_err(|error| sizes::refused(CREATE, error, asked))
    }

    /// The link that a striding queue's WQEs begin with.
    fn head_octowords(&self) -> u32 {
        u32::from(self.striding.is_some())
    }

    fn register(
        &self,
        context: &Context,
        ring: RecvSize,
        user_context: u64,
    ) -> Result<QueueHandle> {
        let shape = Shape { send_wqebbs: 0, recv_wqes: ring.entries, shared_receive: false };
        let monitors = [self.cq.monitor()];
        let users = context.inner().users(L::TAKES_SLOTS);
        let user = users
            .register(shape, &monitors, None, user_context)
            .map_err(|error| Error::new(CREATE, ErrorKind::Refused, error.to_string()))?;
        user.set_short_receives_fail_alone();
        Ok(user)
    }

    /// Sends the command; the kernel's handle and the device's number.
    fn create(
        &self,
        context: &Context,
        ring: RecvSize,
        memory: &RingMemory,
        user: &QueueHandle,
        id: ObjectId,
    ) -> Result<(u32, u32)> {
        let mut driver = DriverRequest {
            buf_addr: memory.address(),
            db_addr: memory.record_address(),
            rq_wqe_count: ring.entries,
            rq_wqe_shift: ring.stride.checked_ilog2().unwrap_or_default(),
            user_index: user.user_index(),
            ..DriverRequest::default()
        };
        if let Some(striding) = self.striding {
            striding.describe(&mut driver);
        }
        let made = or_older(
            || self.create_native(context, ring, &driver, id),
            || self.create_write(context, ring, &driver, id),
        );
        made.map_err(|error| {
            let error = error.pinning(memory.len() as u64);
            explain(error).asked(format!("{} receives of {} SGEs", self.receives, self.sge))
        })
    }

    fn create_native(
        &self,
        context: &Context,
        ring: RecvSize,
        driver: &DriverRequest,
        id: ObjectId,
    ) -> Result<(u32, u32)> {
        let (mut receives, mut sge, mut number) = (0u32, 0u32, 0u32);
        let mut answer = DriverAnswer::default();
        let mut request = context.commands().request::<create::Call>();
        request.new_handle(create::HANDLE);
        request.handle(create::PD_HANDLE, self.pd.kernel_handle());
        request.handle(create::CQ_HANDLE, self.cq.kernel_handle());
        request.value(create::USER_HANDLE, id.0);
        request.constant(create::TYPE, WqType::RQ.0);
        request.value(create::MAX_WR, ring.requests);
        request.value(create::MAX_SGE, ring.sge);
        request.flags(create::FLAGS, self.flags.bits());
        request.output(create::RESP_MAX_WR, &mut receives);
        request.output(create::RESP_MAX_SGE, &mut sge);
        request.output(create::RESP_WQ_NUM, &mut number);
        let stored = request.driver_data(driver.as_bytes(), answer.as_mut_bytes());
        stored.map_err(|error| Error::invalid(CREATE, error.to_string()))?;
        context.commands().send(CREATE, &mut request)?;
        let handle = request.created(create::HANDLE).unwrap_or_default();
        Ok((handle, number))
    }

    /// For kernels before 5.9, where work queues are created by a write command.
    fn create_write(
        &self,
        context: &Context,
        ring: RecvSize,
        driver: &DriverRequest,
        id: ObjectId,
    ) -> Result<(u32, u32)> {
        let command = ExCreateWq {
            wq_type: WqType::RQ,
            user_handle: id.0,
            pd_handle: self.pd.kernel_handle(),
            cq_handle: self.cq.kernel_handle(),
            max_wr: ring.requests,
            max_sge: ring.sge,
            create_flags: self.flags,
            ..ExCreateWq::default()
        };
        let (made, _): (_, DriverAnswer) =
            context.commands().write_driver(CREATE, &command, driver)?;
        Ok((made.wq_handle, made.wqn))
    }
}

fn explain(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unsupported => {
            error.because("work queues are for Ethernet ports of devices that receive raw packets")
        }
        _ => error,
    }
}

fn posting_side(
    ring: RecvSize,
    head_octowords: u32,
    memory: &Arc<RingMemory>,
    handle: QueueHandle,
) -> Result<Anchored<Receives, (Arc<RingMemory>, ())>> {
    memory.queues(CREATE, (), |memory, (doorbell, _)| {
        let receive = RecvQueue::new(RecvQueueConfig {
            memory,
            doorbell,
            handle,
            stride: ring.stride,
            head_octowords,
            scatter_to_cqe: false,
        });
        let receive = receive.map_err(|error| Error::invalid(CREATE, error.to_string()))?;
        Ok(Queues { send: None, receive: Some(receive) })
    })
}

/// A handle to a work queue, for indirection tables: it keeps the queue, and cannot post to it.
#[derive(Clone)]
pub struct WqHandle(pub(super) Arc<Shared>);

impl fmt::Debug for WqHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WqHandle")
            .field("number", &format_args!("{:#x}", self.0.number))
            .finish_non_exhaustive()
    }
}

pub(super) struct Shared {
    pub(super) context: Context,
    #[allow(dead_code, reason = "held for its lifetime")]
    pd: ProtectionDomain,
    #[allow(dead_code, reason = "held for its lifetime")]
    cq: CqHandle<Raw>,
    pub(super) handle: u32,
    number: u32,
    events: Arc<Registered>,
    now: Mutex<Now>,
    receives: u32,
    sge: u32,
    /// What its owner left: the posting side, and what the safe layer knows of its slots.
    left: Mutex<Option<(Receives, Option<Slots>)>>,
    /// What a queue of frames had posted when it was dropped.
    buffers: Mutex<Option<Box<dyn Buffers>>>,
    memory: Arc<RingMemory>,
    live: bool,
}

/// Memory that a work queue keeps.
pub(crate) trait Buffers: fmt::Debug + Send {}

impl<T: fmt::Debug + Send> Buffers for T {}

/// What a change of state replaces.
#[derive(Debug)]
struct Now {
    state: WqState,
    user: QueueHandle,
}

/// States of a work queue (`enum ibv_wq_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WqState {
    /// It takes nothing, and has forgotten what was posted.
    Reset,
    /// It takes receives and frames.
    Rdy,
    /// Receives are flushed; leads to RESET only.
    Err,
}

impl WqState {
    fn kernel(self) -> KernelState {
        match self {
            Self::Reset => KernelState::RESET,
            Self::Rdy => KernelState::RDY,
            Self::Err => KernelState::ERR,
        }
    }

    /// The state of a queue pair that posts and completes the same way.
    fn of_posting(self) -> QpState {
        match self {
            Self::Reset => QpState::Reset,
            Self::Rdy => QpState::Rtr,
            Self::Err => QpState::Err,
        }
    }
}

impl fmt::Display for WqState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Rdy => "RDY",
            Self::Err => "ERR",
        })
    }
}

impl WqHandle {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The device's number for it.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// The id by which events name it.
    pub fn id(&self) -> ObjectId {
        self.0.events.id()
    }

    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.0.handle
    }

    /// The state as far as this process knows: what it asked for, or what an event or a completion
    /// told since.
    pub fn state(&self) -> WqState {
        self.0.now().known()
    }

    /// Keeps what was posted until the device has forgotten the queue.
    pub(crate) fn keep_buffers(&self, buffers: impl Buffers + 'static) {
        *self.0.buffers() = Some(Box::new(buffers));
    }

    pub(super) fn record_address(&self) -> u64 {
        self.0.memory.record_address()
    }

    /// Receives that may be outstanding.
    pub fn capacity(&self) -> u32 {
        self.0.receives
    }

    /// SGEs per receive.
    pub fn max_sge(&self) -> u32 {
        self.0.sge
    }
}

impl Now {
    fn known(&self) -> WqState {
        match self.user.state().state() {
            QpState::Err => WqState::Err,
            _ => self.state,
        }
    }
}

/// A receive work queue (`struct ibv_wq`): a receive queue of raw Ethernet frames that belongs to
/// no queue pair. Frames come to it through an
/// [`IndirectionTable`](crate::qp::rss::IndirectionTable) that names it and an
/// [`RssTarget`](crate::qp::rss::RssTarget) that steering rules lead to.
///
/// Receives are posted and complete as those of a queue pair. Dereferences to its [`WqHandle`]. It
/// may be dropped before the tables that name it: frames then go on to fill what is posted, and it
/// is destroyed with the last table. Slots that are left go back to their slabs then; the memory
/// that raw receives name is in use until then.
pub struct WorkQueue<L: Layer = Safe> {
    pub(super) queue: Anchored<Receives, (Arc<RingMemory>, ())>,
    pub(super) slots: L::IfSafe<Slots>,
    pub(super) handle: WqHandle,
    #[allow(dead_code, reason = "for its drop")]
    releases: ReleaseOnDrop,
}

impl<L: Layer> fmt::Debug for WorkQueue<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl<L: Layer> std::ops::Deref for WorkQueue<L> {
    type Target = WqHandle;
    fn deref(&self) -> &WqHandle {
        &self.handle
    }
}

impl WorkQueue<Raw> {
    /// The provider's queue, which stays in its place.
    pub(crate) fn receive_queue(&mut self) -> Option<&mut RecvQueue> {
        self.queue.receive.as_mut()
    }
}

impl<L: Layer> WorkQueue<L> {
    /// Its handle, for indirection tables and other threads.
    pub fn handle(&self) -> &WqHandle {
        &self.handle
    }

    /// Receives that were posted and whose completion was not polled.
    pub fn outstanding_receives(&mut self) -> u32 {
        self.queue.receive.as_mut().map_or(0, RecvQueue::outstanding)
    }

    /// Changes its state (ibv_modify_wq). A change to RESET takes what was posted before: its
    /// completions that the completion queue still holds are not reported, unless another thread is
    /// polling them at that moment.
    ///
    /// # Errors
    /// `BadState` from ERR to RDY; errors of the kernel. Nothing has changed then.
    #[doc(alias = "ibv_modify_wq")]
    pub fn modify(&mut self, state: WqState) -> Result<()> {
        self.handle.0.modify(state)?;
        if state == WqState::Reset { self.start_over() } else { Ok(()) }
    }

    /// Starts over after a reset.
    fn start_over(&mut self) -> Result<()> {
        let shared = &self.handle.0;
        let mut now = shared.now();
        let new = now.user.renew();
        let old = std::mem::replace(&mut now.user, new.clone());
        drop(now);
        shared.events.set_observer(Observer::Queue(new.clone()));
        if let Some(slots) = L::get(&mut self.slots) {
            let left = slots.start_over(&old, &new, &mut self.queue)?;
            shared.context.inner().kept.defer(left);
        }
        self.queue.receive.iter_mut().for_each(|receive| receive.reset(new.clone()));
        Ok(())
    }

    destroy_methods! {
        "`Busy` while indirection tables or other handles hold it; `Deadlock` if this thread holds an event of it; \
         errors of the kernel. It comes back unharmed."
    }
}

impl<L: Layer> Destroy for WorkQueue<L> {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        let name = format!("WQ {:#x}", self.handle.number());
        let users = ("indirection table", name.as_str());
        destroy_unshared(&mut self.handle.0, DESTROY, users, |shared| shared.destroy(wait))
    }
}

impl<L: Layer> Drop for WorkQueue<L> {
    fn drop(&mut self) {
        let queues = Queues { send: None, receive: self.queue.receive.take() };
        let slots = L::get(&mut self.slots).map(Slots::move_out);
        *self.handle.0.left() = Some((queues, slots));
    }
}

impl Shared {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, Option<(Receives, Option<Slots>)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffers(&self) -> MutexGuard<'_, Option<Box<dyn Buffers>>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn modify(&self, to: WqState) -> Result<()> {
        let mut now = self.now();
        let from = now.known();
        if (from, to) == (WqState::Err, WqState::Rdy) {
            let cause = "a work queue in ERR is reset before it is used again";
            return Err(Error::new(MODIFY, ErrorKind::BadState, cause)
                .cure_with("change it to RESET first"));
        }
        let command = ExModifyWq {
            attr_mask: WqAttrMask::STATE | WqAttrMask::CURR_STATE,
            wq_handle: self.handle,
            wq_state: to.kernel(),
            curr_wq_state: from.kernel(),
            ..ExModifyWq::default()
        };
        let driver = DriverChange::default();
        let commands = self.context.commands();
        commands
            .write_with(MODIFY, &command, driver.as_bytes(), &mut [])
            .map_err(|error| error.asked(format!("{from} to {to}")))?;
        now.state = to;
        now.user.set_state(to.of_posting());
        Ok(())
    }

    fn destroy(&mut self, wait: Wait) -> Result<()> {
        self.context.commands().require_opener(DESTROY)?;
        let events = self.events.clone();
        events.destroy(DESTROY, wait, || {
            or_older(|| self.destroy_native(), || self.destroy_write())
        })?;
        self.live = false;
        self.now().user.close();
        Ok(())
    }

    fn destroy_native(&self) -> Result<()> {
        let mut events = 0u32;
        let commands = self.context.commands();
        let mut request = commands.request::<destroy::Call>();
        request.handle(destroy::HANDLE, self.handle);
        request.output(destroy::RESP, &mut events);
        commands.destroy(DESTROY, &mut request)
    }

    /// For kernels before 5.9.
    fn destroy_write(&self) -> Result<()> {
        let command = ExDestroyWq { comp_mask: 0, wq_handle: self.handle };
        self.context.commands().write(DESTROY, &command).map(drop)
    }

    /// Leaves the kernel's object, which a `Drop` could not destroy because of `error`, until the
    /// context is closed: the device may go on to use the memory and to complete.
    fn keep(&mut self, error: &Error) {
        let user = self.now().user.clone();
        let left = (self.left().take(), self.buffers().take());
        let memory = (left, self.memory.clone(), user, self.events.clone());
        self.context.inner().until_close.keep("work queue", error, memory);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.live {
            if let Err(error) = self.destroy(Wait::Forever) {
                return self.keep(&error);
            }
        }
        let user = self.now().user.clone();
        if let Some((mut queues, Some(slots))) = self.left().take() {
            self.context.inner().kept.defer(slots.left(Some(user), &mut queues));
        }
    }
}
