//! Completion queues: made by a builder, polled by one thread at a time, or waited on through
//! completion channels.

pub(crate) mod builder;
pub mod channel;
pub(crate) mod poll;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub use self::builder::{Compression, TimestampFormat};
use uverbs_mlx5::completion_queue::{Arm, CqMonitor};
pub use uverbs_mlx5::completion_queue::{CompletionOpcode, PollError, Status, WorkCompletion};
pub use uverbs_mlx5::format::{
    CqeChecksum, CqeFormat, CqeHeaderTypes, CqeOpcode, L3Type, L4Type, RemoteQpFlags, Syndrome,
    TagEvent, VendorSyndrome,
};
pub use uverbs_mlx5::queue_state::QueueState;
#[doc(no_inline)]
pub use uverbs_mlx5::request::Immediate;
use uverbs_mlx5::size;
use uverbs_uapi::flags::CqAttrMask;
use uverbs_uapi::mlx5::ResizeCq as DriverResize;
use uverbs_uapi::objects::cq::destroy;
use uverbs_uapi::write::cq::{CqModeration, DestroyCqResp, ExModifyCq, ResizeCq};
use zerocopy::IntoBytes;

use self::channel::CompletionChannel;
use crate::device::context::Context;
use crate::device::identity::identity_methods;
use crate::device::kept::ReleaseOnDrop;
use crate::device::layer::{Layer, Raw, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::host::events::{Registered, Wait};
use crate::host::lifetime::{Destroy, destroy_methods, destroy_unshared};
use crate::host::queue_memory::{self, QueueMemory, QueueUse};
use crate::mlx5::queues::{CqMemory, CqRing, Poller};
use crate::mlx5::sizes;

const CREATE: &str = "create_cq";
const DESTROY: &str = "destroy_cq";

/// Entries of the ring that holds `wanted` completions.
fn ring_entries(verb: &'static str, context: &Context, wanted: u32) -> Result<u32> {
    if wanted == 0 {
        return Err(Error::invalid(verb, "a completion queue holds at least one completion"));
    }
    size::completion_queue(wanted, &context.queue_limits()?)
        .map_err(|error| sizes::refused(verb, error, format!("{wanted} entries")))
}

/// A handle to a completion queue, for making queue pairs that complete to it. It cannot poll.
///
/// It may be cloned and sent to other threads, while the [`CompletionQueue`] itself belongs to the
/// thread that polls.
#[derive(Clone)]
pub struct CqHandle<L = Safe>(Arc<Shared>, PhantomData<L>);

impl<L> fmt::Debug for CqHandle<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqHandle")
            .field("number", &format_args!("{:#x}", self.0.number))
            .finish_non_exhaustive()
    }
}

struct Shared {
    context: Context,
    #[allow(dead_code, reason = "held for its lifetime")]
    channel: Option<CompletionChannel>,
    /// The program's allocator for rings, if it gave one.
    allocator: Option<QueueMemory>,
    handle: u32,
    number: u32,
    events: Arc<Registered>,
    memory: Arc<CqMemory>,
    monitor: CqMonitor,
    live: bool,
}

impl<L> CqHandle<L> {
    identity_methods! { 0 }

    /// The device's number for it.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// The handle without its layer, to keep the completion queue alive.
    pub(crate) fn into_shared(self) -> CqHandle<Raw> {
        CqHandle(self.0, PhantomData)
    }

    pub(crate) fn monitor(&self) -> CqMonitor {
        self.0.monitor.clone()
    }

    /// Moderates its events: the device raises one after `count` completions, or `period` (in whole
    /// microseconds) after the first of them, whichever is earlier. With zero for both it raises an
    /// event for each completion.
    ///
    /// # Errors
    /// `Unsupported` if the device cannot moderate; `InvalidInput` beyond its limits; errors of the
    /// kernel.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period: Duration) -> Result<()> {
        const VERB: &str = "modify_cq";
        let most = self.0.context.attributes()?.kernel.cq_moderation_caps;
        if most.max_cq_moderation_period == 0 {
            return Err(Error::unsupported(VERB, "the device cannot moderate events"));
        }
        let micros = u16::try_from(period.as_micros()).unwrap_or(u16::MAX);
        if micros > most.max_cq_moderation_period || count > most.max_cq_moderation_count {
            let (count, period) = (most.max_cq_moderation_count, most.max_cq_moderation_period);
            let cause = format!("at most {count} completions and {period} microseconds");
            return Err(Error::invalid(VERB, cause));
        }
        let command = ExModifyCq {
            cq_handle: self.0.handle,
            attr_mask: CqAttrMask::MODERATE,
            attr: CqModeration { cq_count: count, cq_period: micros },
            reserved: 0,
        };
        self.0.context.commands().write(VERB, &command)
    }
}

/// A completion queue: polled by one thread at a time.
///
/// Only queue pairs of its layer complete to it. On the safe layer a completion gives back its
/// request's slot; on the raw layer ([`raw::CompletionQueue`](crate::raw::CompletionQueue)) it
/// carries the request's id.
///
/// Dereferences to its [`CqHandle`], which moderates its events. It may be dropped before the queue
/// pairs that complete to it; the kernel's object then lives until the last of them is destroyed.
///
/// ```no_run
/// use uverbs::PollError;
/// let context = uverbs::open_default()?;
/// let mut cq = context.create_cq(256).build()?;
/// loop {
///     match cq.poll() {
///         Ok(done) => println!("{:?}: {:?}", done.completion.status(), done.slot),
///         Err(PollError::Empty) => context.poll_idle(),
///         Err(error) => return Err(error.into()),
///     }
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), uverbs::Error>(())
/// ```
pub struct CompletionQueue<L: Layer = Safe> {
    // Must be dropped first: afterwards no thread can take slots that queue pairs left in flight.
    queue: Poller,
    events: Arc<AtomicU32>,
    events_seen: u32,
    handle: CqHandle<L>,
    #[allow(dead_code, reason = "for its drop")]
    releases: ReleaseOnDrop,
}

impl<L: Layer> fmt::Debug for CompletionQueue<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("number", &format_args!("{:#x}", self.number()))
            .field("entries", &self.queue.device_entries())
            .finish_non_exhaustive()
    }
}

impl<L: Layer> std::ops::Deref for CompletionQueue<L> {
    type Target = CqHandle<L>;
    fn deref(&self) -> &CqHandle<L> {
        &self.handle
    }
}

impl<L: Layer> CompletionQueue<L> {
    /// Its handle, for queue pairs and other threads.
    pub fn handle(&self) -> &CqHandle<L> {
        &self.handle
    }

    /// Completions that the queue can hold. If resizes have failed that the device may still have
    /// executed, this is the smallest of the possible sizes until a completion shows which one is
    /// in use.
    pub fn capacity(&self) -> u32 {
        self.queue.device_entries() - 1
    }

    /// The number of completions so far that named no outstanding request and were ignored. Each
    /// was or will be reported as [`PollError::NotOutstanding`].
    pub fn refused(&self) -> u64 {
        self.queue.refused()
    }

    /// Requests an event at the next completion. Poll once more before waiting: a completion that
    /// arrived before this call raises no event (see [`crate::completion_channel`]).
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self) {
        self.arm_for(Arm::Any);
    }

    /// Requests an event at the next completion that is an error or whose sender marked it as
    /// solicited.
    pub fn arm_solicited(&mut self) {
        self.arm_for(Arm::Solicited);
    }

    fn arm_for(&mut self, which: Arm) {
        let got = self.events.load(Ordering::Acquire);
        while self.events_seen != got {
            self.events_seen = self.events_seen.wrapping_add(1);
            self.queue.acknowledge_event();
        }
        self.queue.arm(which);
    }

    /// Resizes the queue to hold at least `entries` completions, also while completions arrive.
    /// Completions in the queue stay.
    ///
    /// # Errors
    /// `InvalidInput` for zero or too many entries, or while an earlier resize is not finished
    /// (poll until empty); errors of the kernel (EINVAL if the queue is full, or has more
    /// completions than would fit); `Refused` if an earlier resize failed and was executed
    /// nevertheless. After an error of the kernel the queue keeps the memory of the new ring until
    /// it is destroyed, because the device may still switch to it.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, entries: u32) -> Result<()> {
        const VERB: &str = "resize_cq";
        let shared = &self.handle.0;
        let entries = ring_entries(VERB, &shared.context, entries)?;
        if entries == self.queue.device_entries() {
            return Ok(());
        }
        let entry_bytes = shared.memory.ring(|ring| ring.entry_bytes).unwrap_or(64);
        let ring = new_ring(entries, entry_bytes, shared.allocator.as_ref())?;
        let (buf_addr, bytes) = (ring.memory.address(), ring.memory.len());
        self.queue.prepare_resize(ring).map_err(|error| Error::invalid(VERB, error.to_string()))?;
        let command = ResizeCq { response: 0, cq_handle: shared.handle, cqe: entries - 1 };
        let cqe_size = entry_bytes as u16;
        let driver = DriverResize { buf_addr, cqe_size, ..DriverResize::default() };
        let sent = shared.context.commands().write_with(VERB, &command, driver.as_bytes(), &mut []);
        if sent.is_err() || !self.queue.resize_has_begun() {
            // The kernel may have executed a failed command. After such a failure it ignores a
            // resize to the size that it already has (`mlx5_ib_resize_cq`).
            self.queue.cancel_resize();
            if !self.queue.resize_has_begun() {
                let cause = "to the kernel the queue has this size, since an earlier resize failed";
                let left_alone = || Error::new(VERB, ErrorKind::Refused, cause);
                return Err(sent.err().unwrap_or_else(left_alone).pinning(bytes as u64));
            }
        }
        Ok(())
    }

    destroy_methods! {
        "ibv_destroy_cq",
        "`Busy` while queue pairs or other handles hold it; `Deadlock` if this thread holds an event of it; \
         errors of the kernel. The error contains it unchanged."
    }
}

/// A ring of `entries` entries, from the program's allocator if it gave one.
fn new_ring(entries: u32, entry_bytes: u32, from: Option<&QueueMemory>) -> Result<CqRing> {
    let length = entries as usize * entry_bytes as usize;
    let memory = queue_memory::allocate(CREATE, from, length, QueueUse::Completions)?;
    Ok(CqRing { memory, entries, entry_bytes })
}

impl<L: Layer> Destroy for CompletionQueue<L> {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        let name = format!("CQ {:#x}", self.number());
        destroy_unshared(&mut self.handle.0, DESTROY, ("queue pair", &name), |shared| {
            shared.destroy(wait)
        })
    }
}

impl Shared {
    fn destroy(&mut self, wait: Wait) -> Result<()> {
        let commands = self.context.commands();
        self.events.destroy(DESTROY, wait, || {
            let method = (destroy::HANDLE, destroy::RESP);
            commands.destroy_with_events::<_, DestroyCqResp>(DESTROY, method, self.handle)
        })?;
        self.live = false;
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        let Err(error) = self.destroy(Wait::Forever) else { return };
        // The device may still write to the rings.
        let memory = (self.memory.clone(), self.events.clone());
        self.context.inner().until_close.keep("completion queue", &error, memory);
    }
}
