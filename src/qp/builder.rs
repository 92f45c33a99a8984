//! Making queue pairs.

use std::marker::PhantomData;
use std::sync::Arc;

use uverbs_mlx5::memory::DmaMemory;
use uverbs_mlx5::mmio::SharedBlueFlame;
use uverbs_mlx5::queue_state::Shape;
use uverbs_mlx5::recv_queue::{RecvQueue, RecvQueueConfig};
use uverbs_mlx5::send_queue::{SendQueue, SendQueueConfig};
use uverbs_mlx5::size::Operations;
use uverbs_mlx5::user_index::QueueHandle;
use uverbs_uapi::mlx5::{CreateQp as DriverRequest, QpFlags};

use super::core::{Core, Parents};
use super::create::{Creation, Parents as Handles};
use super::ece::{self, EceState};
use super::path::{LocalPath, PathOptions, Requirement};
use super::queue_pair::{QueuePair, Queues};
use super::raw_packet::{self, RawOptions};
use super::safe::Slots;
use super::sizes::{Capacities, Rings};
use super::thread_domain::ThreadDomain;
use super::{AccessFlags, QpType, QueuePairType};
use crate::cq::CqHandle;
use crate::device::address::Mtu;
use crate::device::context::Context;
use crate::device::layer::{Layer, Raw, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::host::events::{ObjectId, Observer};
use crate::host::queue_memory::{self, QueueUse};
use crate::memory::flight::Serial;
use crate::memory::pd::ProtectionDomain;
use crate::mlx5::queues::{Doorbell, RingMemory, Words};
use crate::mlx5::uar::Register;
use crate::srq::SrqHandle;

const VERB: &str = "create_qp";
/// Page size of the device, in bytes.
const PAGE: usize = 4096;

/// Makes a queue pair of type `T`: from [`ProtectionDomain::create_qp`].
///
/// The defaults suit a first program: 128 sends and 128 receives of one SGE each, at least 60 bytes
/// of inline data, its own doorbell register, port 1, the most widely routable GID, no remote
/// access.
///
/// ```no_run
/// use uverbs::{AccessFlags, qp::AckTimeout, qp_type::Rc};
/// # fn example(pd: &uverbs::ProtectionDomain, cq: &uverbs::CqHandle) -> uverbs::Result<()> {
/// let qp = pd.create_qp::<Rc>(cq, cq)
///     .max_send_wr(16)
///     .max_inline_data(128)
///     .access(AccessFlags::REMOTE_READ) // what the peer may do
///     .path(|path| path.timeout = AckTimeout::from_code(16))
///     .build()?;
/// println!("{:?}", qp.capacities());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is created until build() is called"]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpBuilder<T, L: Layer = Safe> {
    pd: ProtectionDomain,
    send_cq: CqHandle<L>,
    receive_cq: CqHandle<L>,
    srq: Option<SrqHandle<L>>,
    pub(super) wanted: Capacities,
    pub(super) raw: RawOptions,
    operations: Operations,
    signal_all: bool,
    scatter: Scatter,
    path: PathOptions,
    gid: Requirement,
    user_context: u64,
    kind: PhantomData<T>,
}

/// For which requests the device may put small data into the completion instead of memory (scatter
/// to CQE). The poller copies it to memory.
#[derive(Debug, Clone, Copy)]
struct Scatter {
    receives: bool,
    /// READs and atomics.
    reads: bool,
}

impl ProtectionDomain {
    /// Starts building a queue pair of type `T`. Its sends complete to `send_cq` and its receives
    /// to `receive_cq`, which may be the same.
    ///
    /// ```no_run
    /// use uverbs::qp_type::Rc;
    /// let context = uverbs::open_default()?;
    /// let cq = context.create_cq(256).build()?;
    /// let mut qp = context.alloc_pd()?.create_qp::<Rc>(cq.handle(), cq.handle()).build()?;
    /// let mine = qp.endpoint().to_bytes(); // to the peer …
    /// # let theirs = mine;
    /// qp.connect(&uverbs::Endpoint::from_bytes(&theirs)?)?;
    /// # Ok::<(), uverbs::Error>(())
    /// ```
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp<T: QueuePairType>(
        &self,
        send_cq: &CqHandle,
        receive_cq: &CqHandle,
    ) -> QpBuilder<T> {
        QpBuilder::new(self, send_cq, receive_cq)
    }

    /// As [`ProtectionDomain::create_qp`], of the raw layer.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_raw_qp<T: QueuePairType>(
        &self,
        send_cq: &CqHandle<Raw>,
        receive_cq: &CqHandle<Raw>,
    ) -> QpBuilder<T, Raw> {
        QpBuilder::new(self, send_cq, receive_cq)
    }
}

impl<T: QueuePairType, L: Layer> QpBuilder<T, L> {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        send_cq: &CqHandle<L>,
        receive_cq: &CqHandle<L>,
    ) -> Self {
        Self {
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            receive_cq: receive_cq.clone(),
            srq: None,
            wanted: Capacities {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 60,
            },
            raw: RawOptions::default(),
            operations: Operations::VERBS,
            signal_all: false,
            scatter: Scatter { receives: true, reads: false },
            path: PathOptions::default(),
            gid: Requirement::Needed,
            user_context: 0,
            kind: PhantomData,
        }
    }
}

/// All parts of a queue pair except its posting sides.
struct Made<L: Layer> {
    core: Core,
    rings: Rings,
    user: QueueHandle,
    signal_all: bool,
    scatter: Scatter,
    slots: L::IfSafe<Slots>,
}

impl<T: QueuePairType, L: Layer> QpBuilder<T, L> {
    /// Sends that may be outstanding, 128 by default. If the ring has space for more, more are
    /// granted ([`Capacities`]); the completion queue should hold the granted number.
    pub fn max_send_wr(mut self, requests: u32) -> Self {
        self.wanted.max_send_wr = requests;
        self
    }

    /// SGEs per send, 1 by default.
    pub fn max_send_sge(mut self, sges: u32) -> Self {
        self.wanted.max_send_sge = sges;
        self
    }

    /// Receives that may be outstanding, 128 by default.
    pub fn max_recv_wr(mut self, requests: u32) -> Self {
        self.wanted.max_recv_wr = requests;
        self
    }

    /// SGEs per receive, 1 by default.
    pub fn max_recv_sge(mut self, sges: u32) -> Self {
        self.wanted.max_recv_sge = sges;
        self
    }

    /// Bytes of inline data per send, 60 by default.
    pub fn max_inline_data(mut self, bytes: u32) -> Self {
        self.wanted.max_inline_data = bytes;
        self
    }

    /// Operations, in addition to sends, of which the queue can hold `max_send_wr` requests
    /// (`send_ops_flags`). By default all verbs operations of the transport
    /// ([`Operations::VERBS`]). Binding a memory window takes the most space: 3 blocks of 64 bytes
    /// per request.
    pub fn operations(mut self, operations: Operations) -> Self {
        self.operations = operations;
        self
    }

    /// Receives come from `srq`; the queue pair has no receive queue of its own.
    pub fn shared_receive_queue(mut self, srq: &SrqHandle<L>) -> Self {
        self.srq = Some(srq.clone());
        self.wanted.max_recv_wr = 0;
        self
    }

    /// Every send generates a completion, signaled or not (`sq_sig_all`).
    pub fn signal_all(mut self) -> Self {
        self.signal_all = true;
        self
    }

    /// The device writes data to memory only, never into a completion.
    ///
    /// By default the device may deliver small receives of an RC queue pair (up to 32 bytes, or 64
    /// with CQEs of 128 bytes) inside the completion; the poller copies them to memory. With
    /// [`signal_all`](Self::signal_all) it may not, because then the kernel's flag would also apply
    /// to READs and atomics (`configure_requester_scat_cqe` in the kernel's mlx5_ib).
    pub fn no_scatter_to_cqe(mut self) -> Self {
        self.scatter = Scatter { receives: false, reads: false };
        self
    }

    /// Lets the device deliver the result of a signaled small READ or atomic inside its completion,
    /// which saves a write to memory. RC queue pairs only; small receives may be delivered the same
    /// way.
    ///
    /// **[`PostFlags::FENCE`](crate::qp::PostFlags::FENCE) then no longer orders such a READ or
    /// atomic before a request that sends its buffer**: the result stays in the completion queue
    /// until it is polled, and a fenced request sends the old contents of the buffer. Poll the
    /// completion first. The addresses of these requests must be this process's own (see
    /// [`QueuePair::post_send`]).
    pub fn scatter_reads_to_cqe(mut self) -> Self {
        self.scatter = Scatter { receives: true, reads: true };
        self
    }

    /// The program or the connection manager sets the path's attributes later. The port is queried
    /// only when a caller needs one of its values.
    pub(crate) fn given_path(mut self) -> Self {
        self.gid = Requirement::Optional;
        self
    }

    /// The local port, from 1.
    pub fn port(mut self, port: u8) -> Self {
        self.path.port = port;
        self
    }

    /// Index of the GID to use, instead of the most widely routable one.
    pub fn gid_index(mut self, index: u32) -> Self {
        self.path.gid_index = Some(index);
        self
    }

    /// What peers may do through this queue pair (`qp_access_flags`): nothing by default. A peer's
    /// READ, WRITE or atomic needs the right both here, else it fails with
    /// [`Status::RemoteInvalidRequest`](crate::cq::Status::RemoteInvalidRequest), and at the memory
    /// region, else it fails with [`Status::RemoteAccess`](crate::cq::Status::RemoteAccess).
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.path.access = access;
        self
    }

    /// Path MTU, instead of the port's.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.path.mtu = Some(mtu);
        self
    }

    /// Changes any other option of the path.
    pub fn path(mut self, change: impl FnOnce(&mut PathOptions)) -> Self {
        change(&mut self.path);
        self
    }

    /// Creates the queue pair in INIT, with its own doorbell register. Receives may be posted;
    /// [`QueuePair::connect`] moves it to RTS.
    ///
    /// # Errors
    /// `InvalidInput` beyond the device's limits; `NotFound` without a usable GID; ENOMEM, with the
    /// memlock limit if that is the likely reason; ENOMEM of `alloc_uar` if no register is left
    /// (only [`QpBuilder::build_in`] shares one); other errors of the kernel.
    pub fn build(self) -> Result<QueuePair<T, L>> {
        let mut qp = self.build_in_reset()?;
        qp.to_init()?;
        Ok(qp)
    }

    /// As [`QpBuilder::build`], but leaves the queue pair in RESET.
    ///
    /// # Errors
    /// As for [`QpBuilder::build`].
    pub fn build_in_reset(self) -> Result<QueuePair<T, L>> {
        let register = self.pd.context().inner().uars.dedicated()?.map(Arc::new);
        let made = self.make(register)?;
        let page = made.core.register.clone();
        let page =
            page.ok_or_else(|| Error::invalid(VERB, "the queue pair has no doorbell register"))?;
        made.finish(Doorbell::of(VERB, page)?)
    }

    /// As [`QpBuilder::build`], with the doorbell register of `domain`, which several queue pairs
    /// share under a spin lock.
    ///
    /// # Errors
    /// As for [`QpBuilder::build`].
    pub fn build_in(self, domain: &ThreadDomain) -> Result<QueuePair<T, L, SharedBlueFlame>> {
        self.pd.context().require_same(VERB, domain.context(), "thread domain")?;
        let doorbell = domain.doorbell();
        let made = self.make(Some(doorbell.page.clone()))?;
        let mut qp = made.finish(doorbell)?;
        qp.to_init()?;
        Ok(qp)
    }

    fn make(&self, register: Option<Arc<Register>>) -> Result<Made<L>> {
        let context = self.pd.context().clone();
        context.commands().require_opener(VERB)?;
        self.check_parents(&context)?;
        let rings = self.rings(&context)?;
        let path = LocalPath::resolve(&context, T::TYPE, self.path, self.gid)?;
        if T::TYPE == QpType::RawPacket {
            raw_packet::check(&context, path.found(&context)?.link, self.raw)?;
        }
        let serial = Serial::new(VERB)?;
        let mut slots = L::if_safe(|| self.slots(serial));
        let user_context = L::get(&mut slots).map_or(self.user_context, |_| serial.get());
        let length = send_offset::<T>(&rings) + rings.send.bytes();
        let from = self.pd.queue_memory();
        let memory = queue_memory::allocate(VERB, from, length, QueueUse::WorkRequests)?;
        let memory = RingMemory::new(memory, context.inner().records.allocate(VERB, from)?);
        let user = self.register_user(&context, &rings, user_context)?;
        if let Some(slots) = L::get(&mut slots) {
            slots.mark(&user);
        }
        let events = context.register(Observer::Queue(user.clone()));
        let creation = self.creation(&rings, &memory, register.as_deref(), &user, events.id());
        let capacities = creation.capacities;
        let created = creation.send(&context)?;
        events.set_name(&format!("QP {:#x}", created.number));
        user.set_number(created.number);
        let receives = if self.srq.is_some() { 0 } else { rings.receive.entries };
        user.set_capacity(capacities.max_send_wr, receives);
        let numbers = [created.handle, created.number];
        let mut core = Core::in_reset(context, T::TYPE, numbers, events, path, self.parents());
        core.queue = Some(user.clone());
        core.capacities = capacities;
        core.ece = EceState { wanted: None, granted: created.ece };
        core.memory = Some(memory);
        core.register = register;
        if core.register.is_none() {
            // The kernel chose the register.
            let chosen = core.context.inner().uars.chosen(created.bfreg)?;
            core.register = Some(Arc::new(chosen));
        }
        let (signal_all, scatter) = (self.signal_all, self.scatter());
        Ok(Made { core, rings, user, signal_all, scatter, slots })
    }

    fn slots(&self, serial: Serial) -> Slots {
        let (sends, receives) = (self.send_cq.number(), self.receive_cq.number());
        Slots::new(serial, &self.pd, [sends, receives], self.signal_all)
    }

    /// The options that apply: only RC has any. If all requests are signaled, the kernel makes a
    /// queue pair that scatters receives scatter READs too (`configure_requester_scat_cqe`).
    fn scatter(&self) -> Scatter {
        let connected = T::TYPE == QpType::Rc;
        let reads = connected && self.scatter.reads;
        let receives = connected && self.scatter.receives && (reads || !self.signal_all);
        Scatter { receives, reads }
    }

    fn check_parents(&self, context: &Context) -> Result<()> {
        context.require_same(VERB, self.send_cq.context(), "send completion queue")?;
        context.require_same(VERB, self.receive_cq.context(), "receive completion queue")?;
        match &self.srq {
            Some(_) if T::TYPE == QpType::RawPacket => {
                let cause = "raw packet queue pairs take no shared receive queue";
                Err(Error::unsupported(VERB, cause))
            }
            Some(_) if T::TYPE == QpType::DcInitiator => {
                Err(Error::unsupported(VERB, "DC initiators receive nothing"))
            }
            Some(srq) => context.require_same(VERB, srq.context(), "shared receive queue"),
            None => Ok(()),
        }
    }

    fn rings(&self, context: &Context) -> Result<Rings> {
        let mut wanted = self.wanted;
        if !T::HAS_RECEIVES {
            (wanted.max_recv_wr, wanted.max_recv_sge) = (0, 0);
        }
        let service = <T as uverbs_mlx5::send_queue::Transport>::SERVICE;
        Rings::new(service, self.operations, &wanted, self.raw.tso_header, &context.queue_limits()?)
    }

    fn register_user(
        &self,
        context: &Context,
        rings: &Rings,
        user_context: u64,
    ) -> Result<QueueHandle> {
        let shape = Shape {
            send_wqebbs: rings.send.wqebbs,
            recv_wqes: rings.receive.entries,
            shared_receive: false,
        };
        let monitors = [self.send_cq.monitor(), self.receive_cq.monitor()];
        let srq = self.srq.as_ref().map(SrqHandle::user);
        let users = context.inner().users(L::TAKES_SLOTS);
        let user = users
            .register(shape, &monitors, srq, user_context)
            .map_err(|error| Error::new(VERB, ErrorKind::Refused, error.to_string()))?;
        if T::TYPE.sends_fail_alone() {
            user.set_sends_fail_alone();
        }
        if T::TYPE == QpType::RawPacket {
            user.set_short_receives_fail_alone();
        }
        Ok(user)
    }

    fn creation(
        &self,
        rings: &Rings,
        memory: &RingMemory,
        register: Option<&Register>,
        user: &QueueHandle,
        id: ObjectId,
    ) -> Creation {
        let mut flags = QpFlags::empty();
        let scatter = self.scatter();
        flags.set(QpFlags::SCATTER_CQE, scatter.receives);
        // Needed only if not all requests are signaled; older kernels refuse the flag.
        flags.set(QpFlags::ALLOW_SCATTER_CQE, scatter.reads && !self.signal_all);
        flags.set(QpFlags::UAR_PAGE_INDEX, register.is_some());
        flags.set(QpFlags::TYPE_DCI, T::TYPE == QpType::DcInitiator);
        Creation {
            id,
            kind: T::TYPE.of_kernel(),
            parents: Handles {
                pd: Some(self.pd.kernel_handle()),
                send_cq: Some(self.send_cq.kernel_handle()),
                // The kernel requires one for all other types, even if they do not receive.
                receive_cq: (T::TYPE != QpType::XrcSend).then_some(self.receive_cq.kernel_handle()),
                srq: self.srq.as_ref().map(SrqHandle::kernel_handle),
                ..Handles::default()
            },
            capacities: rings.capacities(),
            signal_all: self.signal_all,
            flags: self.raw.flags,
            driver: DriverRequest {
                buf_addr: memory.address(),
                sq_buf_addr: self.send_address(rings, memory),
                db_addr: memory.record_address(),
                sq_wqe_count: rings.send.wqebbs,
                rq_wqe_count: rings.receive.entries,
                rq_wqe_shift: rings.receive.stride.checked_ilog2().unwrap_or_default(),
                flags,
                uidx: user.user_index(),
                ece_options: ece::at_creation(self.pd.context()),
                bfreg_index: register.map_or(0, Register::page_id),
                ..DriverRequest::default()
            },
        }
    }

    /// Address of the send ring of a raw packet queue pair, which the kernel handles as a separate
    /// queue; 0 for other types, whose sends follow the receives (`set_user_buf_size` of
    /// drivers/infiniband/hw/mlx5/qp.c).
    fn send_address(&self, rings: &Rings, memory: &RingMemory) -> u64 {
        match T::TYPE {
            QpType::RawPacket => memory.address() + send_offset::<T>(rings) as u64,
            _ => 0,
        }
    }

    fn parents(&self) -> Parents {
        Parents {
            pd: Some(self.pd.clone()),
            send_cq: Some(self.send_cq.clone().into_shared()),
            receive_cq: Some(self.receive_cq.clone().into_shared()),
            srq: self.srq.clone().map(SrqHandle::into_shared),
            ..Parents::default()
        }
    }
}

impl<T: QueuePairType> QpBuilder<T, Raw> {
    /// A value that completions of this queue pair carry.
    pub fn user_context(mut self, value: u64) -> Self {
        self.user_context = value;
        self
    }

    /// Creates it even if its port has no usable GID: for a program that sets every address itself,
    /// by [`QueuePair::modify`].
    pub fn without_gid(self) -> Self {
        self.given_path()
    }
}

/// Byte offset of the send ring in the rings' memory. As a separate queue (raw packets) it begins
/// at a page: the offset of such a queue in its page has only five bits, in units of 64 bytes
/// (`page_offset` of `mlx5_ifc_wq_bits`, include/linux/mlx5/mlx5_ifc.h).
fn send_offset<T: QueuePairType>(rings: &Rings) -> usize {
    match T::TYPE {
        QpType::RawPacket => rings.receive.bytes().next_multiple_of(PAGE),
        _ => rings.receive.bytes(),
    }
}

impl<L: Layer> Made<L> {
    /// Makes the send and receive queue over the rings.
    fn finish<T: QueuePairType, R: uverbs_mlx5::mmio::Register>(
        self,
        doorbell: Doorbell<R>,
    ) -> Result<QueuePair<T, L, R>> {
        let Some(memory) = self.core.memory.clone() else {
            return Err(Error::invalid(VERB, "the queue pair has no memory"));
        };
        let Doorbell { register, page } = doorbell;
        let queues = memory
            .queues(VERB, page, |memory, words| self.queues::<T, R>(memory, words, register))?;
        Ok(QueuePair::new(queues, self.core, self.slots))
    }

    /// The doorbell record's first word is the receive queue's, the second the send queue's.
    fn queues<T: QueuePairType, R: uverbs_mlx5::mmio::Register>(
        &self,
        memory: DmaMemory,
        (receive_word, send_word): Words,
        register: R,
    ) -> Result<Queues<T, R>> {
        let receive_bytes = self.rings.receive.bytes();
        let parts = memory.split_at(send_offset::<T>(&self.rings)).and_then(|(first, send)| {
            let (receive, _) = first.split_at(receive_bytes)?;
            Some((receive, send))
        });
        let (receive_ring, send_ring) =
            parts.ok_or_else(|| Error::invalid(VERB, "the rings do not fit their buffer"))?;
        let bad =
            |error: uverbs_mlx5::queue_error::QueueError| Error::invalid(VERB, error.to_string());
        let send = (self.rings.send.wqebbs > 0).then(|| {
            SendQueue::new(SendQueueConfig {
                memory: send_ring,
                doorbell: send_word,
                register,
                handle: self.user.clone(),
                number: self.core.number,
                max_requests: self.core.capacities.max_send_wr,
                max_sge: self.core.capacities.max_send_sge,
                max_inline: self.core.capacities.max_inline_data,
                signal_all: self.signal_all,
                scatter_to_cqe: self.scatter.reads,
                min_inline_header: match T::TYPE {
                    QpType::RawPacket => raw_packet::inline_header(&self.core.context),
                    _ => 0,
                },
            })
        });
        let receive = (self.rings.receive.entries > 0).then(|| {
            RecvQueue::new(RecvQueueConfig {
                memory: receive_ring,
                doorbell: receive_word,
                handle: self.user.clone(),
                stride: self.rings.receive.stride,
                head_octowords: 0,
                scatter_to_cqe: self.scatter.receives,
            })
        });
        let (send, receive) = (send.transpose().map_err(bad)?, receive.transpose().map_err(bad)?);
        Ok(Queues { send, receive })
    }
}
