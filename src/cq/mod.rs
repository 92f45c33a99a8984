//! Completion queues.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) mod builder;
pub mod channel;
pub(crate) mod safe;

use uverbs_mlx5::completion_queue as provider;
use uverbs_mlx5::completion_queue::{Arm, CompletionQueueConfig, CqMonitor};
use uverbs_mlx5::completion_queue::{Completion, PollBatch};
pub use uverbs_mlx5::completion_queue::{CompletionOpcode, PollError, Status, WorkCompletion};
use uverbs_mlx5::doorbell::DoorbellWord;
use uverbs_mlx5::format::MiniCqeFormat;
use uverbs_mlx5::memory::DmaMemory;
use uverbs_mlx5::size;
use uverbs_uapi::flags::CqAttrMask;
use uverbs_uapi::mlx5::ResizeCq as DriverResize;
use uverbs_uapi::objects::cq::destroy;
use uverbs_uapi::write::cq::{CqModeration, DestroyCqResp, ExModifyCq, ResizeCq};
use zerocopy::IntoBytes;

use self::channel::CompletionChannel;
use crate::device::context::Context;
use crate::device::layer::{Raw, Safe};
use crate::error::{Error, Result};
use crate::host::events::{ObjectId, Wait, destroy_when_idle};
use crate::host::lifetime::{Destroy, destroy_methods, destroy_unshared};
use crate::host::pages::Buffer;
use crate::host::queue_memory::{self, QueueMemory, QueueUse};
use crate::mlx5::records::Record;
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

/// The memory of a completion queue.
#[derive(Debug)]
struct Ring {
    memory: Buffer,
    entries: u32,
    entry_bytes: u32,
}

impl Ring {
    fn new(entries: u32, entry_bytes: u32, from: Option<&QueueMemory>) -> Result<Self> {
        let length = entries as usize * entry_bytes as usize;
        let memory = queue_memory::allocate(CREATE, from, length, QueueUse::Completions)?;
        Ok(Self { memory, entries, entry_bytes })
    }

    /// # Safety
    /// The ring outlives what is made of the result, and nothing else uses its memory meanwhile.
    unsafe fn dma(&self) -> DmaMemory {
        // SAFETY: whole pages of our own; liveness and exclusiveness are the caller's promise.
        unsafe { DmaMemory::new(NonNull::new_unchecked(self.memory.as_ptr()), self.memory.len()) }
    }
}

fn poller(
    context: &Context,
    ring: &Ring,
    record: &Record,
    for_slots: bool,
) -> Result<provider::CompletionQueue> {
    // SAFETY: ring, record and the arm register's page live in `Shared` and its context, which the queue
    // that holds this poller keeps until after it; nothing else touches them.
    let (memory, doorbell, arm) = unsafe {
        let record = NonNull::new_unchecked(record.as_ptr());
        (ring.dma(), DoorbellWord::pair(record), context.inner().uars.arm_register())
    };
    let config = CompletionQueueConfig {
        memory,
        entries: ring.entries,
        cqe_size: ring.entry_bytes,
        doorbell,
        arm,
        number: 0,
        table: context.inner().users(for_slots),
        mini_format: MiniCqeFormat::HASH,
        null_lkey: context.inner().null_key(),
    };
    provider::CompletionQueue::new(config)
        .map_err(|error| Error::invalid(CREATE, error.to_string()))
}

/// What queue pairs hold of a completion queue: enough to complete to it, not to poll it.
///
/// It may be cloned and sent where queue pairs are made, while the [`CompletionQueue`] itself belongs to the
/// thread that polls.
#[derive(Debug, Clone)]
#[repr(transparent)]
pub struct CqHandle<L = Safe>(Arc<Shared>, PhantomData<L>);

/// The rings that the device may write to.
#[derive(Debug)]
struct Rings {
    /// The ring in use, last; before it rings that a resize left and that may still be polled.
    used: Vec<Ring>,
    /// Rings of resizes that failed: nothing tells that the device will not move there later.
    perhaps: Vec<Ring>,
}

#[derive(Debug)]
struct Shared {
    context: Context,
    channel: Option<CompletionChannel>,
    /// Where rings come from, where the program says.
    allocator: Option<QueueMemory>,
    handle: u32,
    number: u32,
    id: ObjectId,
    rings: Mutex<Rings>,
    record: Option<Record>,
    monitor: CqMonitor,
    live: bool,
}

impl CqHandle<Raw> {
    /// The same handle, for the safe layer: only a safe completion queue gives it out.
    pub(crate) fn for_slots(&self) -> &CqHandle {
        let handle = std::ptr::from_ref(self).cast::<CqHandle>();
        // SAFETY: both are transparent wrappers of the same, borrowed for as long as `self`.
        unsafe { &*handle }
    }
}

impl<L> CqHandle<L> {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The device's number for it.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// What events call it.
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    /// What keeps the completion queue, whatever its layer.
    pub(crate) fn into_shared(self) -> CqHandle<Raw> {
        CqHandle(self.0, PhantomData)
    }

    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.0.handle
    }

    pub(crate) fn monitor(&self) -> CqMonitor {
        self.0.monitor.clone()
    }

    /// Moderates its events: one after `count` completions or `period` after the first of them, whichever
    /// comes first. Zero for both: one for each.
    ///
    /// # Errors
    /// `Unsupported` where the device cannot; `InvalidInput` beyond what it can; what the kernel says.
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
/// It may be dropped before the queue pairs that complete to it; the kernel's object then lives until the
/// last of those is gone.
#[derive(Debug)]
pub struct CompletionQueue {
    // Declared before `handle`: the poller goes before the memory that it polls.
    queue: provider::CompletionQueue,
    /// Entries of the ring that the device uses; the poller may still be in an older one.
    entries: u32,
    events: Arc<AtomicU32>,
    events_seen: u32,
    handle: CqHandle<Raw>,
}

impl CompletionQueue {
    /// What queue pairs and other threads hold of it.
    pub fn handle(&self) -> &CqHandle<Raw> {
        &self.handle
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        self.handle.context()
    }

    /// The device's number for it.
    pub fn number(&self) -> u32 {
        self.handle.number()
    }

    /// What events call it.
    pub fn id(&self) -> ObjectId {
        self.handle.id()
    }

    /// Completions that may be outstanding at a time.
    pub fn capacity(&self) -> u32 {
        self.entries - 1
    }

    /// The next completion, lent until the next call. What it says of other requests and of memory: `docs/ordering.md`.
    ///
    /// That there is none now is an error of its own, as for `try_recv` of a channel: one match then tells a
    /// program everything, and `while let Ok(completion) = cq.poll()` takes what is there.
    ///
    /// # Errors
    /// [`PollError::Empty`] if there is none now; [`PollError::NotOutstanding`] for one that is of no request, which
    /// changed nothing; the other errors when there will not be any more.
    #[inline(always)]
    #[doc(alias = "ibv_poll_cq")]
    #[doc(alias = "ibv_start_poll")]
    pub fn poll(&mut self) -> std::result::Result<Completion<'_>, PollError> {
        self.queue.poll()
    }

    /// Starts polling several completions, whose places are given back to the device together.
    #[inline(always)]
    pub fn batch(&mut self) -> PollBatch<'_> {
        self.queue.batch()
    }

    /// Shows `visit` as many completions as there are, `most` of them if there are more; returns how many. Their places are
    /// given back to the device together, so it costs less than polling one after the other: all of
    /// them when the last was shown, so a program that posts inside `visit` needs a queue with room for all that is outstanding
    /// and `most` besides.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::poll`] but `Empty`, if there was not a single one.
    #[inline(always)]
    pub fn poll_up_to(
        &mut self,
        most: usize,
        visit: impl FnMut(Completion<'_>),
    ) -> std::result::Result<usize, PollError> {
        self.queue.poll_up_to(most, visit)
    }

    /// Copies as many completions as there are, up to the length of `out`; returns how many.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::poll`] but `Empty`, if there was not a single one.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll_into(
        &mut self,
        out: &mut [WorkCompletion],
    ) -> std::result::Result<usize, PollError> {
        self.queue.poll_into(out)
    }

    /// Completions that named no outstanding request, and so changed nothing: a call that polls has returned
    /// [`PollError::NotOutstanding`] for each, or the next one will.
    pub fn refused(&self) -> u64 {
        self.queue.refused()
    }

    /// Asks for an event at the next completion. Poll once more afterwards, before waiting: what came just
    /// before raises none (see [`crate::completion_channel`]).
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self) {
        self.arm_for(Arm::Any);
    }

    /// Asks for an event at the next completion that is an error or whose sender marked it as solicited.
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

    /// The provider's own queue, for everything that this type does not offer.
    ///
    /// # Safety
    /// It stays where it is: it is not exchanged with another one (by `mem::swap` and the like), since it works
    /// on memory that `self` frees when it goes.
    pub unsafe fn provider(&mut self) -> &mut provider::CompletionQueue {
        &mut self.queue
    }

    /// Moderates events: see [`CqHandle::moderate`].
    ///
    /// # Errors
    /// As there.
    pub fn moderate(&self, count: u16, period: Duration) -> Result<()> {
        self.handle.moderate(count, period)
    }

    /// Makes room for at least `entries` completions, also while completions arrive. Those that are in the
    /// queue stay.
    ///
    /// # Errors
    /// `InvalidInput` for no entries, too many, or a resize that is not polled through yet (poll until empty);
    /// what the kernel says (EINVAL if more completions are outstanding than would fit). The queue is as it was
    /// then, and keeps the memory of the new ring until it is destroyed: nothing tells that the device will not use it.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, entries: u32) -> Result<()> {
        const VERB: &str = "resize_cq";
        let shared = &self.handle.0;
        let wanted = ring_entries(VERB, &shared.context, entries)?;
        if wanted == self.entries {
            // The driver leaves such a ring alone (`mlx5_ib_resize_cq`), and no completion would ever lead to the new one.
            return Ok(());
        }
        let mut rings = shared.rings.lock().unwrap_or_else(PoisonError::into_inner);
        if self.queue.resize_is_finished() {
            let old = rings.used.len().saturating_sub(1);
            rings.used.drain(..old);
        }
        let entry_bytes = rings.used.last().map_or(64, |ring| ring.entry_bytes);
        let ring = Ring::new(wanted, entry_bytes, shared.allocator.as_ref())?;
        // SAFETY: the ring goes into `rings`, where it stays as long as the poller may look at it.
        let memory = unsafe { ring.dma() };
        self.queue
            .prepare_resize(memory, ring.entries, entry_bytes)
            .map_err(|error| Error::invalid(VERB, error.to_string()))?;
        let command = ResizeCq { response: 0, cq_handle: shared.handle, cqe: ring.entries - 1 };
        let driver = DriverResize {
            buf_addr: ring.memory.address(),
            cqe_size: entry_bytes as u16,
            ..DriverResize::default()
        };
        let sent = shared.context.commands().write_with(VERB, &command, driver.as_bytes(), &mut []);
        if let Err(error) = sent {
            // The kernel may have carried it out and failed afterwards; then the device is in the new ring.
            if !self.queue.resize_has_begun() {
                self.queue.cancel_resize();
                let error = error.pinning(ring.memory.len() as u64);
                rings.perhaps.push(ring);
                return Err(error);
            }
        }
        self.entries = ring.entries;
        rings.used.push(ring);
        Ok(())
    }

    destroy_methods! {
        "`Busy` while queue pairs or other handles hold it; `Deadlock` if this thread holds an event of it; \
         what the kernel says. It comes back unharmed."
    }
}

impl Destroy for CompletionQueue {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        let name = format!("CQ {:#x}", self.number());
        destroy_unshared(&mut self.handle.0, DESTROY, ("queue pair", &name), |shared| {
            shared.destroy(wait)
        })
    }
}

impl Shared {
    fn destroy(&mut self, wait: Wait) -> Result<()> {
        let mut gates = Vec::with_capacity(2);
        if let Some(channel) = &self.channel {
            gates.push((channel.gate(), self.id));
        }
        gates.push((self.context.inner().events.gate(), self.id));
        destroy_when_idle(&gates, DESTROY, wait, || self.send_destroy())?;
        self.live = false;
        Ok(())
    }

    fn send_destroy(&self) -> Result<()> {
        let mut answer = DestroyCqResp::default();
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
        // The device may still write to the rings.
        let rings = self.rings.get_mut().unwrap_or_else(PoisonError::into_inner);
        let rings = (std::mem::take(&mut rings.used), std::mem::take(&mut rings.perhaps));
        let memory = (rings, self.record.take());
        self.context.inner().until_close.keep("completion queue", &error, memory);
    }
}
