//! Programs that sleep in `ibv_get_cq_event`: their thread does the device's work meanwhile.
//!
//! The C function reads the channel's file, so the device's thread would have to be woken by a
//! packet and to wake the program: two switches of threads for a message, each of which waits for
//! time slices beside busy loops. Here the program's thread sleeps on the device's files and the
//! channel's at once, as [`OpenFile::wait_readable`] does for programs of the Rust library, and the
//! C function finds its event then.
//!
//! # Signals
//! The thread has the device's locks while it sleeps, so no handler runs in it before it releases
//! them: a handler may end the process, which takes them. A signal ends the sleep all the same
//! (signalfd(2)). Whether the program's call ends with EINTR then is as for read(2), which the C
//! function would sleep in: a handler with SA_RESTART does not end it.
//!
//! [`OpenFile::wait_readable`]: uverbs_soft::chardev::OpenFile::wait_readable

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::contexts::{self, Context, Slot};
use crate::node::Node;
use crate::polling;

/// How long one sleep takes at most. The thread checks for `pthread_cancel(3)` between two sleeps.
const LONGEST: Duration = Duration::from_millis(100);

/// Signals that an instruction causes, which cannot wait.
const AT_ONCE: [Signal; 5] =
    [Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGSEGV, Signal::SIGTRAP];

/// `struct ibv_comp_channel` of `<infiniband/verbs.h>`.
#[repr(C)]
pub struct Channel {
    context: *mut Context,
    fd: c_int,
}

unsafe extern "C-unwind" {
    /// `pthread_testcancel(3)`.
    fn pthread_testcancel();
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slept {
    /// The C function finds an event, or has to wait itself.
    Enough,
    /// By a signal whose handler ends a read(2).
    Interrupted,
    /// Otherwise.
    More,
}

/// `ibv_get_cq_event(3)`. `pthread_cancel(3)` unwinds this frame, which has nothing to drop.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut Channel,
    queue: *mut *mut c_void,
    user: *mut *mut c_void,
) -> c_int {
    type Get =
        unsafe extern "C-unwind" fn(*mut Channel, *mut *mut c_void, *mut *mut c_void) -> c_int;
    let function = contexts::next(contexts::VERBS, c"ibv_get_cq_event");
    if function.is_null() {
        return -1;
    }
    // SAFETY: libibverbs's function of this name has this type.
    let get: Get = unsafe { transmute(function) };
    loop {
        // SAFETY: the channel stays open during the call, and with it its context.
        match unsafe { sleep(&*channel) } {
            // SAFETY: the program's own call.
            Slept::Enough => return unsafe { get(channel, queue, user) },
            Slept::Interrupted => {
                Errno::EINTR.set();
                return -1;
            }
            // SAFETY: a call without arguments.
            Slept::More => unsafe { pthread_testcancel() },
        }
    }
}

/// # Safety
/// The channel is open, and stays so meanwhile.
unsafe fn sleep(channel: &Channel) -> Slept {
    // SAFETY: the caller's.
    let node = Slot::find(channel.context).and_then(|slot| unsafe { slot.node() });
    let Some(node) = node else { return Slept::Enough };
    // SAFETY: the caller's.
    let file = unsafe { BorrowedFd::borrow_raw(channel.fd) };
    let flags = fcntl(file, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
    if flags.is_ok_and(|flags| !flags.contains(OFlag::O_NONBLOCK)) {
        sleep_on(&node, file).unwrap_or(Slept::Enough)
    } else {
        Slept::Enough
    }
}

/// # Errors
/// Errors of blocking the signals: then the C function sleeps by itself.
fn sleep_on(node: &Node, file: BorrowedFd<'_>) -> nix::Result<Slept> {
    let signals = KeptBack::new()?;
    let files = [file, signals.file.as_fd()];
    let waited = polling::at_work(|| node.file.wait_readable(&files, Some(LONGEST)));
    let interrupts = signals.interrupts();
    drop(signals);
    Ok(match waited {
        _ if is_readable(file) => Slept::Enough,
        _ if interrupts => Slept::Interrupted,
        Ok(_) | Err(Errno::EINTR) => Slept::More,
        Err(_) => Slept::Enough,
    })
}

fn is_readable(file: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(file, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO) != Ok(0)
}

/// Blocks the signals in this thread while it exists.
struct KeptBack {
    before: SigSet,
    set: SigSet,
    /// Readable when one has arrived.
    file: SignalFd,
}

impl KeptBack {
    fn new() -> nix::Result<Self> {
        let mut all = SigSet::all();
        AT_ONCE.iter().for_each(|signal| all.remove(*signal));
        let before = all.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        // A signal that the program itself blocks does not end its sleep.
        let set = without(&all, &before);
        match SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK) {
            Ok(file) => Ok(Self { before, set, file }),
            Err(errno) => before.thread_set_mask().and(Err(errno)),
        }
    }

    /// Whether a signal has arrived whose handler ends a read(2).
    fn interrupts(&self) -> bool {
        let mut pending = *SigSet::empty().as_ref();
        // SAFETY: a set, which the call fills anew.
        let asked = unsafe { libc::sigpending(&raw mut pending) };
        asked == 0
            && signals()
                .filter(|signal| has(&pending, *signal) && has(self.set.as_ref(), *signal))
                .any(ends_a_read)
    }
}

impl Drop for KeptBack {
    fn drop(&mut self) {
        // It fails for no valid set.
        let _ = self.before.thread_set_mask();
    }
}

/// All signals, those of real-time included.
fn signals() -> impl Iterator<Item = c_int> {
    1..=libc::SIGRTMAX()
}

fn has(set: &libc::sigset_t, signal: c_int) -> bool {
    // SAFETY: a filled set.
    (unsafe { libc::sigismember(set, signal) }) == 1
}

/// The signals of one set that are not in another one.
fn without(all: &SigSet, other: &SigSet) -> SigSet {
    let mut set = *all.as_ref();
    for signal in signals().filter(|signal| has(other.as_ref(), *signal)) {
        // SAFETY: a filled set, and the number of a signal.
        unsafe { libc::sigdelset(&raw mut set, signal) };
    }
    // SAFETY: a filled set.
    unsafe { SigSet::from_sigset_t_unchecked(set) }
}

/// Whether the signal has a handler without SA_RESTART.
fn ends_a_read(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: it only asks, and fills the place for one action if it succeeds.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    if asked != 0 {
        return false;
    }
    // SAFETY: filled by the successful call.
    let action = unsafe { action.assume_init() };
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
        && action.sa_flags & libc::SA_RESTART == 0
}
