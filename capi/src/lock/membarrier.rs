//! `membarrier(2)`: a full barrier on every processor that runs a thread of this process.

use std::ffi::c_long;
use std::sync::OnceLock;
use std::time::Duration;

use crate::events::uncancelled;

/// `MEMBARRIER_CMD_…` of `linux/membarrier.h`.
const QUERY: c_long = 0;
const PRIVATE_EXPEDITED: c_long = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: c_long = 1 << 4;
/// How long a thread waits for another one's store where the kernel does not help.
const STORES_ARE_VISIBLE: Duration = Duration::from_millis(10);

/// Lets this process use [`run`]. Whether the kernel (from 4.14 on) allows it.
///
/// The kernel needs some milliseconds for it if the process has several threads, and no time
/// otherwise. So `ibv_get_device_list` calls it, which programs call early.
pub(crate) fn register() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let commands = command(QUERY);
        commands > 0
            && commands & PRIVATE_EXPEDITED != 0
            && command(REGISTER_PRIVATE_EXPEDITED) == 0
    })
}

/// Returns after every other thread of this process has run a full barrier. [`register`] has
/// returned true.
pub(super) fn run() {
    if command(PRIVATE_EXPEDITED) == 0 {
        return;
    }
    // A process that was restored from a checkpoint may have lost the registration.
    let is_registered = command(REGISTER_PRIVATE_EXPEDITED) == 0;
    if !is_registered || command(PRIVATE_EXPEDITED) != 0 {
        // The program has forbidden itself the system call. A store leaves the processor after some
        // microseconds at most.
        uncancelled(|| std::thread::sleep(STORES_ARE_VISIBLE));
    }
}

fn command(command: c_long) -> c_long {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0 as c_long, 0 as c_long) }
}
