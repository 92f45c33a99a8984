//! Making completion queues.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use uverbs_mlx5::completion_queue::CqMonitor;
use uverbs_mlx5::format::MiniCqeFormat;
use uverbs_uapi::flags::CqCreateFlags;
use uverbs_uapi::mlx5::flags::{AllocUcontextRespMask, CqeCompFormat};
use uverbs_uapi::mlx5::{CqFlags, CreateCq as DriverRequest, CreateCqResp};
use uverbs_uapi::write::cq::ExCreateCq;

use super::channel::CompletionChannel;
use super::{CREATE, CompletionQueue, CqHandle, Shared, new_ring, ring_entries};
use crate::device::context::Context;
use crate::device::kept::ReleaseOnDrop;
use crate::device::layer::{Layer, Raw, Safe};
use crate::error::{Error, Result};
use crate::host::events::{ObjectId, Observer, Registered};
use crate::host::queue_memory::QueueMemory;
use crate::mlx5::queues::{CqMemory, CqRing, Poller};

/// The format of completion timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimestampFormat {
    /// Free-running if the device supports it, otherwise the device's default (`get_ts_format` of
    /// drivers/infiniband/hw/mlx5/qp.c).
    #[default]
    Default,
    /// Ticks of the device's free-running clock; see [`crate::clock`].
    FreeRunning,
    /// Time of the clock that PTP sets: seconds in the upper 32 bits, nanoseconds in the lower 32.
    RealTime,
}

/// The field that each compressed completion of a receive keeps, besides the length. All other
/// fields, such as the timestamp, are those of the first completion in the compressed sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// The receive hash.
    Hash,
    /// The checksum over the packet.
    Checksum,
    /// The checksum, and the stride index of striding receive queues.
    ChecksumAndStride,
}

impl Compression {
    /// The kernel's code for it.
    fn asked(self) -> CqeCompFormat {
        match self {
            Self::Hash => CqeCompFormat::HASH,
            Self::Checksum => CqeCompFormat::CSUM,
            Self::ChecksumAndStride => CqeCompFormat::CSUM_STRIDX,
        }
    }

    /// The device's code for it.
    pub(crate) fn format(self) -> MiniCqeFormat {
        match self {
            Self::Hash => MiniCqeFormat::HASH,
            Self::Checksum => MiniCqeFormat::CHECKSUM,
            Self::ChecksumAndStride => MiniCqeFormat::CHECKSUM_STRIDE_INDEX,
        }
    }
}

/// Makes a completion queue: from [`Context::create_cq`], or [`Context::create_raw_cq`] on the raw
/// layer.
#[derive(Debug, Clone)]
#[must_use = "nothing is created until build() is called"]
pub struct CqBuilder<L: Layer = Safe> {
    context: Context,
    entries: u32,
    entry_bytes: u32,
    channel: Option<CompletionChannel>,
    vector: u32,
    ignore_overrun: bool,
    timestamps: TimestampFormat,
    compression: Option<Compression>,
    memory: Option<QueueMemory>,
    layer: PhantomData<L>,
}

impl Context {
    /// Starts building a completion queue that holds at least `entries` completions.
    ///
    /// ```no_run
    /// let context = uverbs::open_default()?;
    /// let cq = context.create_cq(256).build()?;
    /// assert!(cq.capacity() >= 256);
    /// # Ok::<(), uverbs::Error>(())
    /// ```
    #[doc(alias = "ibv_create_cq")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq(&self, entries: u32) -> CqBuilder {
        CqBuilder::new(self, entries)
    }

    /// As [`Context::create_cq`], for queue pairs of the raw layer.
    #[doc(alias = "ibv_create_cq")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_raw_cq(&self, entries: u32) -> CqBuilder<Raw> {
        CqBuilder::new(self, entries)
    }
}

impl<L: Layer> CqBuilder<L> {
    fn new(context: &Context, entries: u32) -> Self {
        Self {
            context: context.clone(),
            entries,
            entry_bytes: 64,
            channel: None,
            vector: 0,
            ignore_overrun: false,
            timestamps: TimestampFormat::Default,
            compression: None,
            memory: None,
            layer: PhantomData,
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Sends completion events to `channel`.
    pub fn channel(mut self, channel: &CompletionChannel) -> Self {
        self.channel = Some(channel.clone());
        self
    }

    /// Completion vector (interrupt), from 0; 0 by default.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Entries of 128 bytes instead of 64: up to 64 bytes of data fit into a completion.
    pub fn wide_entries(mut self) -> Self {
        self.entry_bytes = 128;
        self
    }

    /// See [`CqBuilder::ignore_overrun`].
    pub(super) fn set_ignore_overrun(mut self) -> Self {
        self.ignore_overrun = true;
        self
    }

    /// The timestamp format, the same for all queues that complete to it.
    pub fn timestamps(mut self, format: TimestampFormat) -> Self {
        self.timestamps = format;
        self
    }

    /// Lets the device compress completions of receives that differ little: one full CQE, then
    /// eight bytes for each further completion. This saves bus traffic under load, but adds latency
    /// and loses the fields that [`Compression`] does not keep. Programs poll as usual. Needs
    /// entries of 64 bytes.
    pub fn compressed(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Takes the memory of its ring, also when it is resized, from the program's own allocator.
    pub fn queue_memory(mut self, memory: &QueueMemory) -> Self {
        self.memory = Some(memory.clone());
        self
    }

    /// Creates the completion queue.
    ///
    /// # Errors
    /// `InvalidInput` for zero or too many entries, a vector that does not exist, or a channel of
    /// another context; `Unsupported` for timestamps or compression that the device does not
    /// support; ENOMEM, with the memlock limit if that is the likely reason; other errors of the
    /// kernel.
    pub fn build(self) -> Result<CompletionQueue<L>> {
        let context = self.context.clone();
        context.commands().require_opener(CREATE)?;
        let entries = self.ring_entries()?;
        self.check_timestamps()?;
        self.check_compression()?;
        if let Some(channel) = &self.channel {
            context.require_same(CREATE, channel.context(), "completion channel")?;
        }
        let from = self.memory.as_ref();
        let ring = new_ring(entries, self.entry_bytes, from)?;
        let record = context.inner().records.allocate(CREATE, from)?;
        // Made before the command: it marks every entry as not written yet.
        let mut queue = self.poller(CqMemory::new(ring, record))?;
        let events = Arc::new(AtomicU32::new(0));
        let registered = self.register(queue.monitor(), &events);
        let (handle, number) = self.create(queue.memory(), registered.id())?;
        queue.set_number(number);
        let asynchronous = context.inner().events.clone();
        queue.watch_events(move || asynchronous.look());
        registered.set_name(&format!("CQ {number:#x}"));
        let shared = Shared {
            channel: self.channel,
            allocator: self.memory,
            handle,
            number,
            events: Arc::new(registered),
            memory: queue.memory().clone(),
            monitor: queue.monitor(),
            live: true,
            context: context.clone(),
        };
        Ok(CompletionQueue {
            queue,
            events,
            events_seen: 0,
            releases: ReleaseOnDrop(context),
            handle: CqHandle(Arc::new(shared), PhantomData),
        })
    }

    fn poller(&self, memory: Arc<CqMemory>) -> Result<Poller> {
        let inner = self.context.inner();
        let (users, null_key) = (inner.users(L::TAKES_SLOTS), inner.null_key());
        let format = self.compression.map(Compression::format);
        let made = Poller::new(memory, &inner.uars, users, null_key, format);
        made.map_err(|error| Error::invalid(CREATE, error.to_string()))
    }

    fn ring_entries(&self) -> Result<u32> {
        let vectors = self.context.inner().completion_vectors.max(1);
        if self.vector >= vectors {
            let cause = format!("there are {vectors} completion vectors, from 0");
            return Err(Error::invalid(CREATE, cause).asked(format!("vector {}", self.vector)));
        }
        ring_entries(CREATE, &self.context, self.entries)
    }

    /// A kernel without real-time timestamps would ignore the flag and use another format.
    fn check_timestamps(&self) -> Result<()> {
        let has = self.context.driver_limits().comp_mask;
        let real = self.timestamps == TimestampFormat::RealTime;
        if real && !has.contains(AllocUcontextRespMask::REAL_TIME_TS) {
            let cause = "the device has no real-time timestamps";
            return Err(Error::unsupported(CREATE, cause)
                .cure_with("set REAL_TIME_CLOCK_ENABLE in the firmware's configuration"));
        }
        Ok(())
    }

    /// Also checks the format; the kernel only checks whether the device compresses at all.
    fn check_compression(&self) -> Result<()> {
        let Some(compression) = self.compression else { return Ok(()) };
        if self.entry_bytes != 64 {
            return Err(Error::invalid(CREATE, "compression needs entries of 64 bytes"));
        }
        let has = self.context.attributes()?.mlx5.cqe_comp_caps.supported_format;
        if !has.contains(compression.asked()) {
            let cause = "the device does not support this compression";
            return Err(Error::unsupported(CREATE, cause).asked(format!("{compression:?}")));
        }
        Ok(())
    }

    /// Sends the command. Returns the kernel's handle and the device's number.
    fn create(&self, memory: &CqMemory, id: ObjectId) -> Result<(u32, u32)> {
        let look = |ring: &CqRing| {
            (self.driver_request(ring, memory), ring.entries - 1, ring.memory.len())
        };
        let Some((driver, cqe, bytes)) = memory.ring(look) else {
            return Err(Error::invalid(CREATE, "the queue has no ring"));
        };
        let command = ExCreateCq {
            user_handle: id.0,
            cqe,
            comp_vector: self.vector,
            comp_channel: self.channel.as_ref().map_or(-1, raw_fd),
            flags: self.flags(),
            ..ExCreateCq::default()
        };
        let made = self.context.commands().write_driver(CREATE, &command, &driver);
        let (made, answer): (_, CreateCqResp) = made.map_err(|error| {
            error.pinning(bytes as u64).asked(format!("{} entries", self.entries))
        })?;
        Ok((made.base.cq_handle, answer.cqn))
    }

    fn flags(&self) -> CqCreateFlags {
        let mut flags = CqCreateFlags::empty();
        flags.set(CqCreateFlags::IGNORE_OVERRUN, self.ignore_overrun);
        let ticks = self.timestamps == TimestampFormat::FreeRunning;
        flags.set(CqCreateFlags::TIMESTAMP_COMPLETION, ticks);
        flags
    }

    fn driver_request(&self, ring: &CqRing, memory: &CqMemory) -> DriverRequest {
        let page = self.context.inner().uars.arm_page_id();
        let mut flags = CqFlags::empty();
        flags.set(CqFlags::UAR_PAGE_INDEX, page.is_some());
        flags.set(CqFlags::REAL_TIME_TS, self.timestamps == TimestampFormat::RealTime);
        DriverRequest {
            buf_addr: ring.memory.address(),
            db_addr: memory.record_address(),
            cqe_size: ring.entry_bytes,
            cqe_comp_en: self.compression.is_some().into(),
            cqe_comp_res_format: self.compression.map_or(0, |kind| kind.asked().bits() as u8),
            flags,
            uar_page_index: page.unwrap_or_default() as u16,
            ..DriverRequest::default()
        }
    }

    fn register(&self, monitor: CqMonitor, events: &Arc<AtomicU32>) -> Registered {
        let channel = self.channel.as_ref().map(CompletionChannel::registry);
        let counts = channel.map(|registry| (registry.clone(), Observer::Count(events.clone())));
        let own = self.context.inner().events.registry().clone();
        Registered::new(counts.into_iter().chain([(own, Observer::Poller(monitor))]))
    }
}

fn raw_fd(channel: &CompletionChannel) -> i32 {
    use std::os::fd::{AsFd, AsRawFd};
    channel.as_fd().as_raw_fd()
}
