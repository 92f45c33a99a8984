//! Making a receive work queue.

use std::sync::{Arc, Mutex};

use uverbs_mlx5::queue_state::Shape;
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::size::{self, RecvSize};
use uverbs_mlx5::user_index::QueueHandle;
use uverbs_uapi::enums::WqType;
use uverbs_uapi::flags::{QpCreateFlags, WqFlags};
use uverbs_uapi::mlx5::wq::{CreateWq as DriverRequest, CreateWqResp as DriverAnswer};
use uverbs_uapi::write::wq::ExCreateWq;

use super::{Current, Receives, Shared, WorkQueue, WqHandle, WqState};
use crate::cq::CqHandle;
use crate::device::context::Context;
use crate::device::kept::ReleaseOnDrop;
use crate::device::layer::{Layer, Raw, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::host::events::{ObjectId, Observer};
use crate::host::queue_memory::{self, QueueUse};
use crate::memory::flight::Serial;
use crate::memory::pd::ProtectionDomain;
use crate::mlx5::queues::{Anchored, RingMemory};
use crate::mlx5::sizes;
use crate::qp::queue_pair::Queues;
use crate::qp::raw_packet::{self, RawOptions};
use crate::qp::safe::Slots;
use crate::qp::striding::Striding;

const CREATE: &str = "create_wq";

/// Makes a receive work queue: from [`ProtectionDomain::create_wq`], or
/// [`ProtectionDomain::create_raw_wq`] on the raw layer.
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
    /// Starts building a receive work queue for at least `receives` outstanding receives, which
    /// complete to `cq`.
    #[doc(alias = "ibv_create_wq")]
    pub fn create_wq(&self, cq: &CqHandle, receives: u32) -> WqBuilder {
        WqBuilder::new(self, cq, receives)
    }

    /// As [`ProtectionDomain::create_wq`], of the raw layer.
    #[doc(alias = "ibv_create_wq")]
    pub fn create_raw_wq(&self, cq: &CqHandle<Raw>, receives: u32) -> WqBuilder<Raw> {
        WqBuilder::new(self, cq, receives)
    }
}

impl WqBuilder<Raw> {
    /// SGEs per receive, 1 by default.
    pub fn max_sge(mut self, sge: u32) -> Self {
        self.sge = sge;
        self
    }

    /// Each receive is a buffer of [`Striding::wqe_bytes`] bytes, divided into strides, for many
    /// frames.
    ///
    /// Its completions count strides instead of receives.
    /// [`CompletionQueue::poll`](crate::raw::CompletionQueue::poll) cannot handle these: poll with
    /// a [`StridingQueue`](crate::ethernet::StridingQueue), or read the ring yourself.
    #[doc(alias = "mlx5dv_create_wq")]
    pub fn striding(mut self, striding: Striding) -> Self {
        self.striding = Some(striding);
        self
    }

    /// A value that completions of this queue carry.
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

    /// Delivers VLAN tags in the completion instead of in memory.
    pub fn strip_vlan(mut self) -> Self {
        self.flags |= WqFlags::CVLAN_STRIPPING;
        self
    }

    /// Delivers frames with their check sequence (FCS) of four bytes.
    pub fn keep_check_sequence(mut self) -> Self {
        self.flags |= WqFlags::SCATTER_FCS;
        self
    }

    /// Creates it in RDY: receives may be posted, and frames arrive as soon as a target leads to
    /// it.
    ///
    /// # Errors
    /// `InvalidInput` beyond the device's limits; `Unsupported` if it has no Ethernet port or lacks
    /// an option; ENOMEM, with the memlock limit if that is the likely reason; other errors of the
    /// kernel.
    pub fn build(self) -> Result<WorkQueue<L>> {
        let mut queue = self.build_in_reset()?;
        queue.modify(WqState::Rdy)?;
        Ok(queue)
    }

    /// As [`WqBuilder::build`], in RESET: it accepts neither receives nor frames until
    /// [`WorkQueue::modify`] moves it to RDY.
    ///
    /// # Errors
    /// As for [`WqBuilder::build`].
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
        let events = context.register(Observer::Queue(user.clone()));
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
            current: Mutex::new(Current { state: WqState::Reset, user }),
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

    /// Octowords (16 bytes) of the link segment at the start of a striding queue's WQEs.
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

    /// Sends the command. Returns the kernel's handle and the device's number.
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
        let made = context.commands().write_driver(CREATE, &command, &driver);
        let (made, _): (_, DriverAnswer) = made.map_err(|error| {
            let error = error.pinning(memory.len() as u64);
            explain(error).asked(format!("{} receives of {} SGEs", self.receives, self.sge))
        })?;
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
