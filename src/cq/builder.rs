//! Making completion queues.

use std::marker::PhantomData;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use uverbs_mlx5::completion_queue::CqMonitor;
use uverbs_uapi::flags::CqCreateFlags;
use uverbs_uapi::mlx5::{CqFlags, CreateCq as DriverRequest, CreateCqResp};
use uverbs_uapi::objects::cq::create;
use uverbs_uapi::write::cq::ExCreateCq;
use zerocopy::IntoBytes;

use super::channel::CompletionChannel;
use super::{CREATE, CompletionQueue, CqHandle, Ring, Rings, Shared, poller, ring_entries};
use crate::device::context::Context;
use crate::device::layer::{Layer, Raw, Safe};
use crate::error::{Error, ErrorKind, Result};
use crate::host::events::{Behind, ObjectId};
use crate::host::queue_memory::QueueMemory;
use crate::mlx5::records::Record;

/// Makes a completion queue: from [`Context::create_cq`] or, of the raw layer, [`Context::create_raw_cq`].
#[derive(Debug, Clone)]
#[must_use = "nothing is created until build() is called"]
pub struct CqBuilder<L: Layer = Safe> {
    context: Context,
    entries: u32,
    entry_bytes: u32,
    channel: Option<CompletionChannel>,
    vector: u32,
    ignore_overrun: bool,
    memory: Option<QueueMemory>,
    layer: PhantomData<L>,
}

impl Context {
    /// Begins to make a completion queue that holds at least `entries` completions.
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
            memory: None,
            layer: PhantomData,
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Completion events go to `channel`.
    pub fn channel(mut self, channel: &CompletionChannel) -> Self {
        self.channel = Some(channel.clone());
        self
    }

    /// Completion vector (interrupt), from 0.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// 128 bytes per entry instead of 64: room for up to 64 bytes of data inside the completion.
    pub fn wide_entries(mut self) -> Self {
        self.entry_bytes = 128;
        self
    }

    /// The device does not check for overruns: instead of failing the queue it overwrites completions that were not
    /// polled in time.
    ///
    /// # Safety
    /// There are never more completions than entries that were not polled: the requests outstanding on all queues that
    /// complete here are no more than its entries. Otherwise the device writes an entry while it is being read.
    pub unsafe fn ignore_overrun(mut self) -> Self {
        self.ignore_overrun = true;
        self
    }

    /// Its ring comes from the program's own allocator, also when it is resized.
    pub fn queue_memory(mut self, memory: &QueueMemory) -> Self {
        self.memory = Some(memory.clone());
        self
    }

    ///
    /// Creates the queue that both layers poll.
    pub(crate) fn build_queue(self) -> Result<CompletionQueue> {
        let context = self.context.clone();
        context.commands().require_opener(CREATE)?;
        let entries = self.ring_entries()?;
        if let Some(channel) = &self.channel {
            context.require_same(CREATE, channel.context(), "completion channel")?;
        }
        let ring = Ring::new(entries, self.entry_bytes, self.memory.as_ref())?;
        let record = context.inner().records.allocate(CREATE, self.memory.as_ref())?;
        // The poller comes first: it marks every entry as not written yet.
        let mut queue = poller(&context, &ring, &record, L::TAKES_SLOTS)?;
        let id = ObjectId::new();
        let events = Arc::new(AtomicU32::new(0));
        self.admit(id, queue.monitor(), &events);
        let created = self.create(&ring, &record, id);
        let (handle, number) = created.inspect_err(|_| self.expel(id))?;
        queue.set_number(number);
        self.rename(id, &format!("CQ {number:#x}"));
        let rings = Mutex::new(Rings { used: vec![ring], perhaps: Vec::new() });
        let monitor = queue.monitor();
        let shared = Shared {
            context,
            channel: self.channel,
            allocator: self.memory,
            handle,
            number,
            id,
            rings,
            record: Some(record),
            monitor,
            live: true,
        };
        Ok(CompletionQueue {
            queue,
            entries,
            events,
            events_seen: 0,
            handle: CqHandle(Arc::new(shared), PhantomData),
        })
    }

    fn ring_entries(&self) -> Result<u32> {
        let vectors = self.context.inner().completion_vectors.max(1);
        if self.vector >= vectors {
            let cause = format!("there are {vectors} completion vectors, from 0");
            return Err(Error::invalid(CREATE, cause).asked(format!("vector {}", self.vector)));
        }
        ring_entries(CREATE, &self.context, self.entries)
    }

    fn create(&self, ring: &Ring, record: &Record, id: ObjectId) -> Result<(u32, u32)> {
        let driver = self.driver_request(ring, record);
        let made = match self.create_native(ring, &driver, id) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.create_write(ring, &driver, id)
            }
            result => result,
        };
        made.map_err(|error| {
            error.pinning(ring.memory.len() as u64).asked(format!("{} entries", self.entries))
        })
    }

    fn create_native(
        &self,
        ring: &Ring,
        driver: &DriverRequest,
        id: ObjectId,
    ) -> Result<(u32, u32)> {
        let mut granted = 0u32;
        let mut answer = CreateCqResp::default();
        let commands = self.context.commands();
        let mut request = commands.request::<create::Call>();
        request.new_handle(create::HANDLE);
        request.value(create::CQE, ring.entries - 1);
        request.value(create::USER_HANDLE, id.0);
        request.value(create::COMP_VECTOR, self.vector);
        if let Some(channel) = &self.channel {
            request.fd(create::COMP_CHANNEL, raw_fd(channel));
        }
        if !self.flags().is_empty() {
            request.flags(create::FLAGS, self.flags().bits());
        }
        request.output(create::RESP_CQE, &mut granted);
        let stored = request.driver_data(driver.as_bytes(), answer.as_mut_bytes());
        stored.map_err(|error| Error::invalid(CREATE, error.to_string()))?;
        commands.send(CREATE, &mut request)?;
        let handle = request.created(create::HANDLE).unwrap_or_default();
        Ok((handle, answer.cqn))
    }

    fn create_write(
        &self,
        ring: &Ring,
        driver: &DriverRequest,
        id: ObjectId,
    ) -> Result<(u32, u32)> {
        let command = ExCreateCq {
            user_handle: id.0,
            cqe: ring.entries - 1,
            comp_vector: self.vector,
            comp_channel: self.channel.as_ref().map_or(-1, raw_fd),
            flags: self.flags(),
            ..ExCreateCq::default()
        };
        let mut answer = CreateCqResp::default();
        let commands = self.context.commands();
        let made =
            commands.write_with(CREATE, &command, driver.as_bytes(), answer.as_mut_bytes())?;
        Ok((made.base.cq_handle, answer.cqn))
    }

    fn flags(&self) -> CqCreateFlags {
        if self.ignore_overrun { CqCreateFlags::IGNORE_OVERRUN } else { CqCreateFlags::empty() }
    }

    fn driver_request(&self, ring: &Ring, record: &Record) -> DriverRequest {
        let page = self.context.inner().uars.arm_page_id();
        DriverRequest {
            buf_addr: ring.memory.address(),
            db_addr: record.address(),
            cqe_size: ring.entry_bytes,
            flags: if page.is_some() { CqFlags::UAR_PAGE_INDEX } else { CqFlags::empty() },
            uar_page_index: page.unwrap_or_default() as u16,
            ..DriverRequest::default()
        }
    }

    fn admit(&self, id: ObjectId, monitor: CqMonitor, events: &Arc<AtomicU32>) {
        self.context.inner().events.gate().admit(id, Behind::Poller(monitor));
        if let Some(channel) = &self.channel {
            channel.gate().admit(id, Behind::Count(events.clone()));
        }
    }

    fn rename(&self, id: ObjectId, name: &str) {
        self.context.inner().events.gate().rename(id, name.to_owned());
        if let Some(channel) = &self.channel {
            channel.gate().rename(id, name.to_owned());
        }
    }

    fn expel(&self, id: ObjectId) {
        self.context.inner().events.gate().expel(id);
        if let Some(channel) = &self.channel {
            channel.gate().expel(id);
        }
    }
}

impl CqBuilder<Raw> {
    /// Creates it.
    ///
    /// # Errors
    /// `InvalidInput` for no entries, too many, or a channel of another context; ENOMEM, with the memlock
    /// limit where that is the likely reason; what else the kernel says.
    pub fn build(self) -> Result<CompletionQueue> {
        self.build_queue()
    }
}

fn raw_fd(channel: &CompletionChannel) -> i32 {
    use std::os::fd::{AsFd, AsRawFd};
    channel.as_fd().as_raw_fd()
}
