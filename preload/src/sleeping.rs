//! Does the device's work in threads that sleep in `ibv_get_cq_event`.
//!
//! The C function only reads the channel's file. A packet would wake the device's thread, which
//! would then wake the program's: two thread switches per message, each of which waits for a time
//! slice on a busy machine. Instead, the program's thread sleeps on the files of both the device
//! and the channel ([`OpenFile::wait_readable`]). The C function then finds its event without
//! sleeping. For signals see [`asleep`].
//!
//! [`OpenFile::wait_readable`]: uverbs_soft::chardev::OpenFile::wait_readable

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use uverbs_soft::signals::asleep::{self, LONGEST, Slept};

use crate::contexts::{self, Context, Slot};
use crate::polling;

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
    // SAFETY: the channel, and with it its context, stays open during the call.
    let channel_of = unsafe { &*channel };
    let slot = Slot::find(channel_of.context);
    let function = match slot {
        Some(slot) => slot.get_cq_event(),
        None => contexts::next(contexts::VERBS, c"ibv_get_cq_event"),
    };
    if function.is_null() {
        Errno::ENOSYS.set();
        return -1;
    }
    // SAFETY: libibverbs' function of this name has this type.
    let get: Get = unsafe { transmute(function) };
    loop {
        // SAFETY: as before.
        match unsafe { sleep(slot, channel_of.fd) } {
            // SAFETY: the program's own call.
            Slept::Until(()) | Slept::Failed => return unsafe { get(channel, queue, user) },
            Slept::Interrupted => {
                Errno::EINTR.set();
                return -1;
            }
            // SAFETY: a call without arguments.
            Slept::Again => unsafe { pthread_testcancel() },
        }
    }
}

/// Sleeps once, if the C function would sleep.
///
/// # Safety
/// The slot is in use and the channel's descriptor is open, and both stay so during the call.
unsafe fn sleep(slot: Option<&Slot>, fd: c_int) -> Slept<()> {
    // SAFETY: the caller's.
    let Some(node) = slot.and_then(|slot| unsafe { slot.node() }) else { return Slept::Failed };
    // SAFETY: the caller's.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = fcntl(file, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
    if !flags.is_ok_and(|flags| !flags.contains(OFlag::O_NONBLOCK)) {
        return Slept::Failed;
    }
    asleep::sleep(|signals| {
        let files = [file, signals];
        let found = polling::at_work(|| node.file.wait_readable(&files, Some(LONGEST)))?;
        Ok((found == Some(0)).then_some(()))
    })
}
