//! Receive work queues: receive queues without a queue pair. Frames reach them through an
//! [`IndirectionTable`](super::rss::IndirectionTable).

mod builder;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::queue_state::QpState;
use uverbs_mlx5::recv_queue::RecvQueue;
use uverbs_mlx5::user_index::QueueHandle;
use uverbs_uapi::enums::WqState as KernelState;
use uverbs_uapi::flags::{WqAttrMask, WqFlags};
use uverbs_uapi::mlx5::wq::ModifyWq as DriverChange;
use uverbs_uapi::objects::wq::destroy;
use uverbs_uapi::write::wq::{ExDestroyWq, ExModifyWq};
use zerocopy::IntoBytes;

use super::qp_type::RawPacket;
use super::queue_pair::Queues;
use super::safe::Slots;
use crate::cq::CqHandle;
use crate::device::context::Context;
use crate::device::identity::identity_methods;
use crate::device::kept::ReleaseOnDrop;
use crate::device::layer::{Layer, Raw, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::host::events::{Registered, Wait};
use crate::host::lifetime::{Destroy, destroy_methods, destroy_unshared};
use crate::memory::pd::ProtectionDomain;
use crate::mlx5::queues::{Anchored, RingMemory};

pub use builder::WqBuilder;

const MODIFY: &str = "modify_wq";
const DESTROY: &str = "destroy_wq";

/// A queue pair's queues. A work queue has only the receive queue.
type Receives = Queues<RawPacket, BlueFlame>;

/// A handle to a work queue, for indirection tables: it keeps the queue alive, and cannot post.
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
    pub(super) events: Arc<Registered>,
    current: Mutex<Current>,
    receives: u32,
    sge: u32,
    /// The receive queue and the safe layer's state, once the owner has dropped them.
    left: Mutex<Option<(Receives, Option<Slots>)>>,
    /// The posted buffers of a dropped queue of Ethernet frames.
    buffers: Mutex<Option<Box<dyn Buffers>>>,
    memory: Arc<RingMemory>,
    live: bool,
}

/// Memory that a work queue keeps.
pub(crate) trait Buffers: fmt::Debug + Send {}

impl<T: fmt::Debug + Send> Buffers for T {}

/// The fields that a change of state replaces.
#[derive(Debug)]
pub(super) struct Current {
    state: WqState,
    pub(super) user: QueueHandle,
}

/// States of a work queue (`enum ibv_wq_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WqState {
    /// It accepts no receives and no frames, and its posted receives are discarded.
    Reset,
    /// It accepts receives and frames.
    Rdy,
    /// Receives are flushed. The only next state is RESET.
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

    /// The queue pair state with the same posting and completion behaviour.
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
    identity_methods! { 0 }

    /// The device's number for it.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// The state as this process knows it, from its own changes and from events and completions.
    pub fn state(&self) -> WqState {
        self.0.current().known()
    }

    /// Keeps the posted buffers until the work queue is destroyed.
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

impl Current {
    fn known(&self) -> WqState {
        match self.user.state().state() {
            QpState::Err => WqState::Err,
            _ => self.state,
        }
    }
}

/// A receive work queue (`struct ibv_wq`): a receive queue of raw Ethernet frames without a queue
/// pair. Steering rules lead frames to an [`RssTarget`](crate::qp::rss::RssTarget), whose
/// [`IndirectionTable`](crate::qp::rss::IndirectionTable) names work queues.
///
/// Receives are posted and complete as those of a queue pair. Dereferences to its [`WqHandle`]. It
/// may be dropped before the tables that name it: frames continue to fill posted receives, and it
/// is destroyed with the last table. Until then its slots stay in flight, and the device uses the
/// memory that raw receives name.
///
/// ```no_run
/// let context = uverbs::open_default()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(256).build()?);
/// let mut wq = pd.create_wq(cq.handle(), 128).build()?;
/// let slab = pd.create_slab(128, 2048)?;
/// while let Some(slot) = slab.take() {
///     wq.post_receive(slot)?;
/// }
/// let table = context.create_indirection_table(&[wq.handle()])?;
/// # let _ = table;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// The provider's queue. The caller must not swap it with another one.
    pub(crate) fn receive_queue(&mut self) -> Option<&mut RecvQueue> {
        self.queue.receive.as_mut()
    }
}

impl<L: Layer> WorkQueue<L> {
    /// Its handle, for indirection tables and other threads.
    pub fn handle(&self) -> &WqHandle {
        &self.handle
    }

    /// Receives that were posted and whose completion was not polled yet.
    pub fn outstanding_receives(&mut self) -> u32 {
        self.queue.receive.as_mut().map_or(0, RecvQueue::outstanding)
    }

    /// Changes its state (ibv_modify_wq). A change to RESET discards all posted receives. Their
    /// completions that are still in the completion queue are not reported, unless another thread
    /// is polling them at that moment.
    ///
    /// # Errors
    /// `BadState` from ERR to RDY; errors of the kernel. On an error nothing has changed.
    #[doc(alias = "ibv_modify_wq")]
    pub fn modify(&mut self, state: WqState) -> Result<()> {
        self.modify_flags(Some(state), 0, 0)
    }

    /// As [`modify`](Self::modify), and also changes the flags (`enum ibv_wq_flags`) in `mask`.
    ///
    /// # Errors
    /// As for [`modify`](Self::modify).
    pub fn modify_flags(&mut self, state: Option<WqState>, flags: u32, mask: u32) -> Result<()> {
        self.modify_or_reset(state, flags, mask)
    }

    destroy_methods! {
        "ibv_destroy_wq",
        "`Busy` while indirection tables or other handles hold it; `Deadlock` if this thread holds an event of it; \
         errors of the kernel. The error contains it unchanged."
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
    pub(super) fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, Option<(Receives, Option<Slots>)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffers(&self) -> MutexGuard<'_, Option<Box<dyn Buffers>>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn modify(&self, state: Option<WqState>, flags: u32, flags_mask: u32) -> Result<()> {
        let mut current = self.current();
        let from = current.known();
        let to = state.unwrap_or(from);
        if (from, to) == (WqState::Err, WqState::Rdy) {
            let cause = "a work queue in ERR is reset before it is used again";
            return Err(Error::new(MODIFY, ErrorKind::BadState, cause)
                .cure_with("change it to RESET first"));
        }
        let command = ExModifyWq {
            attr_mask: match flags_mask {
                0 => WqAttrMask::STATE | WqAttrMask::CURR_STATE,
                _ => WqAttrMask::all(),
            },
            wq_handle: self.handle,
            wq_state: to.kernel(),
            curr_wq_state: from.kernel(),
            flags: WqFlags::from_bits_retain(flags),
            flags_mask: WqFlags::from_bits_retain(flags_mask),
        };
        let driver = DriverChange::default();
        let commands = self.context.commands();
        commands
            .write_with(MODIFY, &command, driver.as_bytes(), &mut [])
            .map_err(|error| error.asked(format!("{from} to {to}")))?;
        if state.is_some() {
            current.state = to;
            current.user.set_state(to.of_posting());
        }
        Ok(())
    }

    fn destroy(&mut self, wait: Wait) -> Result<()> {
        self.context.commands().require_opener(DESTROY)?;
        let events = self.events.clone();
        events.destroy(DESTROY, wait, || match self.destroy_native() {
            Err(error) if error.kind() == ErrorKind::Unsupported => self.destroy_write(),
            result => result,
        })?;
        self.live = false;
        self.current().user.close();
        Ok(())
    }

    fn destroy_native(&self) -> Result<()> {
        let method = (destroy::HANDLE, destroy::RESP);
        self.context.commands().destroy_with_events::<_, u32>(DESTROY, method, self.handle)
    }

    /// Kernels before 5.9 have only the write command.
    fn destroy_write(&self) -> Result<()> {
        let command = ExDestroyWq { comp_mask: 0, wq_handle: self.handle };
        self.context.commands().write(DESTROY, &command).map(drop)
    }

    /// Keeps the kernel's object, which a `Drop` could not destroy because of `error`, until the
    /// context is closed: the device may still use the memory and complete receives.
    fn keep(&mut self, error: &Error) {
        let user = self.current().user.clone();
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
        let user = self.current().user.clone();
        if let Some((mut queues, Some(slots))) = self.left().take() {
            self.context.inner().kept.defer(slots.abandoned(Some(user), &mut queues));
        }
    }
}
