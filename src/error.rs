//! Errors that name the verb, the errno, the arguments, the likely cause and the cure.

use std::fmt;
use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use uverbs_mlx5::completion_queue::PollError;
use uverbs_mlx5::request::PostError;

/// Result of every control-path call.
pub type Result<T> = std::result::Result<T, Error>;

/// The class of an [`Error`], for programs that act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The kernel (or the software device) refused the command; [`Error::errno`] has the reason,
    /// for example ENOMEM.
    Refused,
    /// An argument is invalid; no command was sent.
    InvalidInput,
    /// The device or the kernel does not support the request; nothing has changed.
    Unsupported,
    /// No such device, port, GID or file.
    NotFound,
    /// The device node exists but may not be opened.
    Permission,
    /// The driver behind the device is not mlx5.
    NotMlx5,
    /// The running kernel is too old for this library.
    KernelTooOld,
    /// The queue pair's state does not allow the call.
    BadState,
    /// Other objects or unacknowledged events still hold the object.
    Busy,
    /// The wait would never end, because the calling thread itself holds the event that it would
    /// wait for.
    Deadlock,
    /// The time limit of a wait passed.
    TimedOut,
    /// There is nothing to take, and the call does not wait.
    WouldBlock,
    /// A signal interrupted the wait.
    Interrupted,
    /// The device was removed or has failed.
    DeviceGone,
    /// The calling process is a forked child of the one that opened the device.
    ForkedChild,
}

impl ErrorKind {
    fn default_errno(self) -> Errno {
        match self {
            Self::Refused | Self::DeviceGone => Errno::EIO,
            Self::InvalidInput | Self::BadState => Errno::EINVAL,
            Self::Unsupported | Self::KernelTooOld => Errno::EOPNOTSUPP,
            Self::NotFound | Self::NotMlx5 => Errno::ENODEV,
            Self::Permission | Self::ForkedChild => Errno::EPERM,
            Self::Busy => Errno::EBUSY,
            Self::Deadlock => Errno::EDEADLK,
            Self::TimedOut => Errno::ETIMEDOUT,
            Self::WouldBlock => Errno::EAGAIN,
            Self::Interrupted => Errno::EINTR,
        }
    }

    fn of(errno: Errno) -> Self {
        match errno {
            Errno::EAGAIN => Self::WouldBlock,
            Errno::EINTR => Self::Interrupted,
            Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::ENOSYS | Errno::ENOTTY => {
                Self::Unsupported
            }
            Errno::EBUSY => Self::Busy,
            Errno::ENODEV => Self::DeviceGone,
            _ => Self::Refused,
        }
    }
}

#[derive(Debug, Clone)]
struct Details {
    verb: &'static str,
    kind: ErrorKind,
    errno: i32,
    from_os: bool,
    asked: String,
    cause: String,
    cure: String,
    source: Option<Source>,
}

/// The underlying error.
type Source = Arc<dyn std::error::Error + Send + Sync>;

/// A failed verb.
///
/// `Display` prints one sentence: the verb, the errno, the arguments, the likely cause and the
/// cure, as far as they are known. The type has the size of a pointer.
///
/// ```
/// # #[cfg(feature = "soft")] {
/// use uverbs::ErrorKind;
/// let error = uverbs::device("mlx5_77").expect_err("there is no such device");
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// eprintln!("{error}");
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Box<Details>);

/// Prints the same sentence as `Display`, for `unwrap` and a `main` that returns an error; `{:#?}`
/// prints the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { fmt::Debug::fmt(&self.0, f) } else { fmt::Display::fmt(self, f) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Error {
    /// The underlying [`PostError`] or [`PollError`], or the system's error as an [`io::Error`].
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl fmt::Display for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verb)?;
        if !self.asked.is_empty() {
            write!(f, " ({})", self.asked)?;
        }
        if self.from_os {
            let errno = Errno::from_raw(self.errno);
            write!(f, ": {} ({errno:?}, errno {})", errno.desc(), self.errno)?;
        }
        if !self.cause.is_empty() {
            write!(f, ": {}", self.cause)?;
        }
        if !self.cure.is_empty() {
            write!(f, "; cure: {}", self.cure)?;
        }
        Ok(())
    }
}

impl Error {
    /// An error that this library detected, before or after asking the kernel.
    pub(crate) fn new(verb: &'static str, kind: ErrorKind, cause: impl Into<String>) -> Self {
        Self(Box::new(Details {
            verb,
            kind,
            errno: kind.default_errno() as i32,
            from_os: false,
            asked: String::new(),
            cause: cause.into(),
            cure: String::new(),
            source: None,
        }))
    }

    pub(crate) fn invalid(verb: &'static str, cause: impl Into<String>) -> Self {
        Self::new(verb, ErrorKind::InvalidInput, cause)
    }

    pub(crate) fn unsupported(verb: &'static str, cause: impl Into<String>) -> Self {
        Self::new(verb, ErrorKind::Unsupported, cause)
    }

    /// An errno of the kernel for `verb`, with cause and cure if they are known.
    pub(crate) fn os(verb: &'static str, errno: Errno) -> Self {
        Self::raw(verb, errno as i32)
    }

    /// As [`Error::os`]. The kernel also returns numbers without a name in C, such as ENOTSUPP
    /// (524).
    pub(crate) fn raw(verb: &'static str, number: i32) -> Self {
        let errno = if number == 524 { Errno::EOPNOTSUPP } else { Errno::from_raw(number) };
        let (cause, cure) = diagnose(verb, errno);
        Self(Box::new(Details {
            verb,
            kind: ErrorKind::of(errno),
            errno: number,
            from_os: true,
            asked: String::new(),
            cause,
            cure,
            source: Some(Arc::new(io::Error::from_raw_os_error(number))),
        }))
    }

    /// An I/O error. One without an errno keeps its text, and gets the errno of its kind.
    pub(crate) fn io(verb: &'static str, error: &io::Error) -> Self {
        if let Some(errno) = error.raw_os_error() {
            return Self::raw(verb, errno);
        }
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            io::ErrorKind::InvalidInput => ErrorKind::InvalidInput,
            io::ErrorKind::Unsupported => ErrorKind::Unsupported,
            io::ErrorKind::AddrInUse => ErrorKind::Busy,
            _ => ErrorKind::Refused,
        };
        let mut found = Self::new(verb, kind, error.to_string());
        found.0.errno = errno_of(error.kind()) as i32;
        found
    }

    /// A sysfs attribute that could not be read: `NotFound`, unless the process or the machine
    /// lacks what it takes to read any.
    pub(crate) fn attribute(verb: &'static str, name: &str, error: &io::Error) -> Self {
        let failed = Self::io(verb, error).asked(name);
        if lacks_resources(error) {
            return failed;
        }
        failed.with_kind(ErrorKind::NotFound).because("the device has no such entry")
    }

    /// Adds the arguments ("cqe 4096, vector 0").
    pub(crate) fn asked(mut self, asked: impl Into<String>) -> Self {
        self.0.asked = asked.into();
        self
    }

    pub(crate) fn because(mut self, cause: impl Into<String>) -> Self {
        self.0.cause = cause.into();
        self
    }

    pub(crate) fn cure_with(mut self, cure: impl Into<String>) -> Self {
        self.0.cure = cure.into();
        self
    }

    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    pub(crate) fn with_source(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Explains ENOMEM of a verb that pins `bytes` of memory by the memlock limit, if that is
    /// likely.
    pub(crate) fn pinning(self, bytes: u64) -> Self {
        if self.errno() != Errno::ENOMEM as i32 {
            return self;
        }
        match memlock_diagnosis(bytes) {
            Some((cause, cure)) => self.because(cause).cure_with(cure),
            None => self,
        }
    }

    /// The class of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The failed verb without its prefix (`"reg_mr"`, `"create_qp"`).
    pub fn verb(&self) -> &'static str {
        self.0.verb
    }

    /// The errno value: the kernel's, or a suitable one if this library refused.
    pub fn errno(&self) -> i32 {
        self.0.errno
    }

    /// Whether the errno is from the kernel (or the software device).
    pub fn is_from_kernel(&self) -> bool {
        self.0.from_os
    }

    /// The likely cause; empty if only the errno is known.
    pub fn cause(&self) -> &str {
        &self.0.cause
    }

    /// The likely cure; empty if none is known.
    pub fn cure(&self) -> &str {
        &self.0.cure
    }
}

impl From<PollError> for Error {
    fn from(error: PollError) -> Self {
        let kind = match error {
            PollError::Empty => ErrorKind::WouldBlock,
            PollError::DeviceRemoved => ErrorKind::DeviceGone,
            _ => ErrorKind::Refused,
        };
        Self::new("poll_cq", kind, error.to_string()).with_source(error)
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        let (kind, errno) = match error {
            PostError::BadState | PostError::QueueFailed => (ErrorKind::BadState, Errno::EINVAL),
            PostError::ForkedChild => (ErrorKind::ForkedChild, Errno::EPERM),
            PostError::Full => (ErrorKind::Refused, Errno::ENOMEM),
            _ => (ErrorKind::InvalidInput, Errno::EINVAL),
        };
        let mut made = Self::new("post", kind, error.to_string()).with_source(error);
        made.0.errno = errno as i32;
        made
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(io::Error::from_raw_os_error(error.errno()).kind(), error)
    }
}

/// A failed destruction: the object and the reason.
///
/// Converts into [`Error`] for `?`. The conversion drops the object, so its `Drop` tries once more.
///
/// ```no_run
/// let context = uverbs::open_default()?;
/// let cq = context.create_cq(16).build()?;
/// let qp = context.alloc_pd()?.create_qp::<uverbs::qp_type::Rc>(cq.handle(), cq.handle());
/// let qp = qp.build()?;
/// if let Err(refused) = cq.destroy() {
///     eprintln!("{}", refused.error); // Busy: a queue pair uses the completion queue
///     drop(qp);
///     refused.object.destroy()?;
/// }
/// # Ok::<(), uverbs::Error>(())
/// ```
pub struct DestroyError<T> {
    /// The object, unchanged. Boxed, so that the result of a successful destruction is small.
    pub object: Box<T>,
    /// Why it could not be destroyed.
    pub error: Error,
}

impl<T> DestroyError<T> {
    pub(crate) fn new(object: T, error: Error) -> Self {
        Self { object: Box::new(object), error }
    }
}

impl<T> fmt::Debug for DestroyError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DestroyError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for DestroyError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for DestroyError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<T> From<DestroyError<T>> for Error {
    fn from(failed: DestroyError<T>) -> Self {
        failed.error
    }
}

/// Whether a file could not be read for want of descriptors or memory, which says nothing about
/// the file.
pub(crate) fn lacks_resources(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// The errno for a kind of I/O error.
fn errno_of(kind: io::ErrorKind) -> Errno {
    use io::ErrorKind as Kind;
    match kind {
        Kind::NotFound => Errno::ENOENT,
        Kind::PermissionDenied => Errno::EACCES,
        Kind::AddrInUse => Errno::EADDRINUSE,
        Kind::AddrNotAvailable => Errno::EADDRNOTAVAIL,
        Kind::AlreadyExists => Errno::EEXIST,
        Kind::WouldBlock => Errno::EAGAIN,
        Kind::Interrupted => Errno::EINTR,
        Kind::TimedOut => Errno::ETIMEDOUT,
        Kind::OutOfMemory => Errno::ENOMEM,
        Kind::Unsupported => Errno::EOPNOTSUPP,
        Kind::InvalidInput | Kind::InvalidData => Errno::EINVAL,
        Kind::BrokenPipe => Errno::EPIPE,
        Kind::ConnectionRefused => Errno::ECONNREFUSED,
        Kind::ConnectionReset => Errno::ECONNRESET,
        Kind::StorageFull => Errno::ENOSPC,
        Kind::ResourceBusy => Errno::EBUSY,
        _ => Errno::EIO,
    }
}

/// Verbs for which EPERM means that the process may not pin memory (`can_do_mlock` in the kernel's
/// `ib_umem_get`): they need no other capability.
fn pins_alone(verb: &str) -> bool {
    ["reg_mr", "rereg_mr", "create_cq", "resize_cq", "create_srq"].contains(&verb)
}

/// How to let a process pin more memory. The command prints it, too.
#[doc(hidden)]
pub const MEMLOCK_CURE: &str = "ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, \
     --ulimit memlock=-1 for a container, or CAP_IPC_LOCK";

fn diagnose(verb: &str, errno: Errno) -> (String, String) {
    let (cause, cure) = match errno {
        // Errors of files, not of a device.
        _ if verb.ends_with("_recording") => ("", ""),
        Errno::EIO => (
            "the device was removed or has failed, or the kernel has cut this file off from it",
            "close everything and open the device again once it is back",
        ),
        Errno::EBUSY if verb == "dereg_mr" => {
            ("memory windows are bound to the region", "invalidate or deallocate them first")
        }
        Errno::EBUSY if verb.starts_with("de") => (
            "other objects still use it",
            "destroy those first (a PD after its MRs and QPs, a CQ after its QPs), and leave \
             multicast groups",
        ),
        Errno::ENODATA if verb == "create_ah" => {
            ("the port has no such source GID", "use an index of Context::gid_table")
        }
        Errno::ENOMEM if verb == "alloc_uar" => (
            "no doorbell page is left: a queue pair has a register of its own, and a page has two",
            "let queue pairs share a register: Context::alloc_thread_domain, then build_in",
        ),
        Errno::ENOMEM => (
            "the kernel or the device has not enough memory for this",
            "ask for less, or destroy objects that are not needed",
        ),
        Errno::EMFILE => (
            "this process has no file descriptors left",
            "raise the limit (ulimit -n) or close some",
        ),
        Errno::ENOSPC => {
            ("the device has no space for another such object", "destroy some of them")
        }
        Errno::EPERM if pins_alone(verb) => {
            ("this process may pin no memory: its RLIMIT_MEMLOCK is 0", MEMLOCK_CURE)
        }
        Errno::EPERM => (
            "this needs a capability in the network namespace of the device",
            "give the program CAP_NET_RAW (setcap cap_net_raw+ep), or run it as root there",
        ),
        Errno::ENOTTY | Errno::EPROTONOSUPPORT | Errno::ENOSYS => {
            ("the running kernel does not know this command", "use a newer kernel")
        }
        _ => ("", ""),
    };
    (cause.to_owned(), cure.to_owned())
}

/// Explains an ENOMEM by the memlock limit, if the limit applies.
fn memlock_diagnosis(bytes: u64) -> Option<(String, String)> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    if may_pin_all() { None } else { limited(bytes, soft) }
}

/// [`memlock_diagnosis`] of a process to which the limit applies.
fn limited(bytes: u64, soft: u64) -> Option<(String, String)> {
    if soft == libc::RLIM_INFINITY {
        return None;
    }
    let cause = format!(
        "this pins {} KiB, and RLIMIT_MEMLOCK is {} KiB for the whole process",
        bytes.div_ceil(1024),
        soft / 1024
    );
    Some((cause, MEMLOCK_CURE.to_owned()))
}

/// Whether this process has CAP_IPC_LOCK, so that the limit does not apply.
fn may_pin_all() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|capabilities| capabilities >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests;
