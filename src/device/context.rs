//! An open device.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use nix::errno::Errno;
use uverbs_mlx5::mmio::InChild;
use uverbs_mlx5::size::DeviceLimits;
use uverbs_mlx5::user_index::UserIndexTable;
use uverbs_uapi::flags::CoreSupport;
use uverbs_uapi::mlx5::context::{AllocUcontextReqV2, AllocUcontextResp};
use uverbs_uapi::mlx5::flags::{AllocUcontextFlags, AllocUcontextRespMask, LibCaps};
use uverbs_uapi::objects::device::get_context;
use uverbs_uapi::write::context::GetContext;
use zerocopy::IntoBytes;

use super::attributes::DeviceAttributes;
use super::kept::Kept;
use super::{Device, DeviceKind};
use crate::error::{Error, ErrorKind, Result};
use crate::host::channel::Channel;
use crate::host::command::Commands;
use crate::host::events::{AsyncEvents, Observer, Registered};
use crate::host::lifetime::Parent;
use crate::host::system::{Inherited, Listed};
use crate::host::until_close::UntilClose;
use crate::mlx5::records::Records;
use crate::mlx5::uar::Uars;
use crate::mlx5::{self, sizes};

const OPEN: &str = "open_device";
/// BlueFlame registers to request from kernels that assign them at open, and how many of them are
/// dedicated to one queue each: libmlx5's defaults.
const STATIC_REGISTERS: (u32, u32) = (16, 4);
/// Lengths in bytes of the driver's part of the request, as different kernels know it, newest
/// first, as libmlx5 tries them: all, without `lib_caps`, also without `max_cqe_version`.
const REQUEST_LENGTHS: [usize; 3] = [32, 24, 16];

/// An open device: the parent of every other object.
///
/// Clones share one open file. It is closed when the last clone and the last object made from it
/// have been dropped, in any order.
///
/// ```no_run
/// let context = uverbs::open_default()?;
/// println!("{}: firmware {:?}", context.device().name(), context.attributes()?.firmware());
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_close_device")]
pub struct Context {
    inner: Arc<Inner>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.inner.device.name();
        f.debug_struct("Context").field("device", &name).finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) device: Device,
    pub(crate) limits: AllocUcontextResp,
    pub(crate) core_support: CoreSupport,
    pub(crate) completion_vectors: u32,
    devx: bool,
    users: UserIndexTable,
    /// Queues of the safe layer. The separate table ensures that a completion on a safe queue never
    /// names a raw queue, whatever index the device writes.
    safe_users: UserIndexTable,
    #[allow(dead_code, reason = "for forked children")]
    disowned: Listed<UserIndexTable>,
    pub(crate) records: Records,
    pub(crate) uars: Arc<Uars>,
    pub(crate) events: Arc<AsyncEvents>,
    pub(crate) attributes: OnceLock<DeviceAttributes>,
    /// Entries of all ports' GID tables.
    pub(crate) gid_capacity: OnceLock<usize>,
    pub(crate) kept: Kept,
    pub(crate) commands: Arc<Commands>,
    // Declared last: it is freed after the open file (in `commands`) is closed.
    pub(crate) until_close: UntilClose,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.until_close.prepare();
    }
}

impl Inner {
    /// The queues of a layer by user index, which completions carry.
    pub(crate) fn users(&self, is_safe_layer: bool) -> &UserIndexTable {
        if is_safe_layer { &self.safe_users } else { &self.users }
    }
}

impl Parent for Context {
    fn commands(&self) -> &Commands {
        &self.inner.commands
    }
}

impl Inherited for UserIndexTable {
    fn in_child(&self, child: InChild) {
        self.disown(child);
    }
}

/// The answer to GET_CONTEXT.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    pub(crate) completion_vectors: u32,
    pub(crate) core_support: u64,
    /// Whether the context may send firmware commands (DEVX).
    pub(crate) devx: bool,
    /// Asynchronous events, if opening the context also opened their file.
    pub(crate) events: Option<AsyncEvents>,
    pub(crate) limits: AllocUcontextResp,
}

impl Context {
    pub(crate) fn open(device: Device, channel: Arc<dyn Channel>) -> Result<Self> {
        let commands = Arc::new(Commands::new(channel, mlx5::DRIVER));
        commands.require_invoke_write()?;
        let opened = get_context(&commands)?;
        Self::with(device, commands, opened)
    }

    /// Registers an object for asynchronous events, before it is created.
    pub(crate) fn register(&self, observer: Observer) -> Registered {
        Registered::new([(self.inner().events.registry().clone(), observer)])
    }

    /// Makes the context from the kernel's answer.
    pub(crate) fn with(device: Device, commands: Arc<Commands>, opened: Opened) -> Result<Self> {
        if opened.limits.cqe_version != 1 {
            let cause = "the kernel offers no completions with a user index (CQE version 1)";
            return Err(Error::new(OPEN, ErrorKind::KernelTooOld, cause));
        }
        let uars = Arc::new(Uars::new(commands.clone(), &opened.limits)?);
        let events = match opened.events {
            Some(events) => events,
            None => AsyncEvents::open(&commands)?,
        };
        let events = Arc::new(events);
        commands.watch(events.clone());
        tracing::debug!(
            device = device.name(),
            dynamic_uars = uars.is_dynamic(),
            vectors = opened.completion_vectors,
            "device opened"
        );
        let (users, safe_users) = (UserIndexTable::new(), UserIndexTable::new());
        let inner = Inner {
            device,
            limits: opened.limits,
            core_support: CoreSupport::from_bits_retain(opened.core_support),
            completion_vectors: opened.completion_vectors,
            devx: opened.devx,
            disowned: Listed::new(Arc::new([users.clone(), safe_users.clone()])),
            users,
            safe_users,
            records: Records::default(),
            uars,
            events,
            attributes: OnceLock::new(),
            gid_capacity: OnceLock::new(),
            kept: Kept::default(),
            until_close: UntilClose::new(commands.shared_channel()),
            commands,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    pub(crate) fn commands(&self) -> &Commands {
        &self.inner.commands
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Whether the device is the kernel's or the software one.
    pub fn kind(&self) -> DeviceKind {
        self.inner.device.kind()
    }

    /// The open file; `None` for the software device.
    pub fn as_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.inner.commands.channel().as_fd()
    }

    /// Whether the kernel accepts firmware commands of the program ([`Context::devx`]). False for
    /// imported contexts, for which this is unknown.
    pub fn has_devx(&self) -> bool {
        self.inner.devx
    }

    /// Whether both share one open file. Objects of different contexts cannot be used together.
    pub fn is_same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Call it when `poll` returned `Empty`, before the next poll.
    ///
    /// On a kernel device this is [`std::hint::spin_loop`] and never a system call: the adapter
    /// makes progress by itself. The software device is driven by a thread of this process, for
    /// which a polling program would have to wait. So the calling thread checks doorbells, arriving
    /// packets and timers once, and does the work that is due. Afterwards any queue of the device
    /// may have completions, and completion channels events. If no work was due, or another thread
    /// is doing it, the call lets other threads run (`sched_yield(2)`).
    ///
    /// A program need not call it. The software device's thread continues within 50 µs of the last
    /// call, or within 300 µs after a long series of calls.
    ///
    /// On the software device a call takes a few hundred nanoseconds if no work is due, otherwise
    /// up to the processing time of some dozens of packets. Any thread may call it. In a forked
    /// child it only lets other threads run.
    ///
    /// ```no_run
    /// # use uverbs::{PollError, Result, cq::WorkCompletion, raw::CompletionQueue};
    /// fn next(cq: &mut CompletionQueue) -> Result<WorkCompletion> {
    ///     loop {
    ///         match cq.poll() {
    ///             Ok(done) => return Ok(done.to_work_completion()),
    ///             Err(PollError::Empty) => cq.context().poll_idle(),
    ///             Err(error) => return Err(error.into()),
    ///         }
    ///     }
    /// }
    /// ```
    pub fn poll_idle(&self) {
        self.inner.commands.channel().poll_idle();
    }

    /// The limits that the driver reported at open. For the C library, not part of the stable
    /// interface.
    #[doc(hidden)]
    pub fn driver_limits(&self) -> &AllocUcontextResp {
        &self.inner.limits
    }

    /// A value that lives as long as the device is open: until the last handle and object are
    /// dropped. For the C library, not part of the stable interface.
    #[doc(hidden)]
    pub fn lifetime(&self) -> Weak<dyn Any + Send + Sync> {
        let inner: Arc<dyn Any + Send + Sync> = self.inner.clone();
        Arc::downgrade(&inner)
    }

    /// The limits of the device's queues.
    pub(crate) fn queue_limits(&self) -> Result<DeviceLimits> {
        let attributes = self.attributes()?;
        let (max_qp_wr, max_cqe) = (attributes.max_qp_wr(), attributes.max_cqe());
        Ok(sizes::limits(self.driver_limits(), max_qp_wr, max_cqe))
    }

    pub(crate) fn require_same(
        &self,
        verb: &'static str,
        other: &Context,
        what: &str,
    ) -> Result<()> {
        if self.is_same(other) {
            return Ok(());
        }
        Err(Error::invalid(verb, format!("the {what} belongs to another context")))
    }
}

impl Inner {
    /// The lkey of the null memory region, if the device has one.
    pub(crate) fn null_key(&self) -> Option<u32> {
        let has_key = self.limits.comp_mask.contains(AllocUcontextRespMask::DUMP_FILL_MKEY);
        has_key.then_some(self.limits.dump_fill_mkey)
    }
}

/// Opens a context by the native method or, on kernels before 5.6, by the write command.
fn get_context(commands: &Commands) -> Result<Opened> {
    match try_all(commands, native_get_context) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            try_all(commands, written_get_context)
        }
        result => result,
    }
}

type Form = fn(&Commands, &[u8]) -> Result<Opened>;

/// Tries the request with DEVX and without, each in decreasing lengths: older kernels refuse a
/// request that is longer than theirs.
fn try_all(commands: &Commands, form: Form) -> Result<Opened> {
    let mut first_error = None;
    for flags in [AllocUcontextFlags::DEVX, AllocUcontextFlags::empty()] {
        let driver = driver_request(flags);
        for length in REQUEST_LENGTHS {
            match form(commands, driver.as_bytes().get(..length).unwrap_or_default()) {
                Ok(opened) => {
                    return Ok(Opened { devx: flags.contains(AllocUcontextFlags::DEVX), ..opened });
                }
                Err(error) if is_unknown_form(&error) => {
                    first_error.get_or_insert(error);
                }
                // Without DEVX nothing is left that could be dropped from the request.
                Err(error) if flags.is_empty() => return Err(error),
                Err(error) => {
                    first_error.get_or_insert(error);
                    break;
                }
            }
        }
    }
    Err(first_error.unwrap_or_else(|| Error::invalid(OPEN, "no form of the request was tried")))
}

/// Whether the kernel refused a request that is longer than it knows (`mlx5_ib_alloc_ucontext`).
/// After any other error, such as a temporary lack of memory, a shorter request could succeed and
/// give a context with fewer features than the kernel supports.
fn is_unknown_form(error: &Error) -> bool {
    error.errno() == Errno::EINVAL as i32 || error.kind() == ErrorKind::Unsupported
}

fn driver_request(flags: AllocUcontextFlags) -> AllocUcontextReqV2 {
    AllocUcontextReqV2 {
        total_num_bfregs: STATIC_REGISTERS.0,
        num_low_latency_bfregs: STATIC_REGISTERS.1,
        flags,
        max_cqe_version: 1,
        lib_caps: LibCaps::UAR_4K | LibCaps::DYN_UAR,
        ..AllocUcontextReqV2::default()
    }
}

fn native_get_context(commands: &Commands, driver: &[u8]) -> Result<Opened> {
    let mut opened = Opened::default();
    let mut request = commands.request::<get_context::Call>();
    request.output(get_context::NUM_COMP_VECTORS, &mut opened.completion_vectors);
    request.output(get_context::CORE_SUPPORT, &mut opened.core_support).optional();
    let stored = request.driver_data(driver, opened.limits.as_mut_bytes());
    stored.map_err(|error| Error::invalid(OPEN, error.to_string()))?;
    commands.send(OPEN, &mut request)?;
    Ok(opened)
}

fn written_get_context(commands: &Commands, driver: &[u8]) -> Result<Opened> {
    let mut limits = AllocUcontextResp::default();
    let command = GetContext::default();
    let parts = (driver, limits.as_mut_bytes());
    let (answer, events) =
        commands.write_opening(OPEN, &command, parts, |answer| answer.async_fd as i32)?;
    Ok(Opened {
        completion_vectors: answer.num_comp_vectors,
        core_support: 0,
        devx: false,
        events: Some(AsyncEvents::new(events)?),
        limits,
    })
}
