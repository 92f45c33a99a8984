//! `membarrier(2)`: a full barrier on every processor that runs a thread of this process.

use std::ffi::c_long;
use std::time::Duration;

use crate::events::uncancelled;
use crate::lazy::Lazy;

/// `MEMBARRIER_CMD_…` of `linux/membarrier.h`.
const QUERY: c_long = 0;
const PRIVATE_EXPEDITED: c_long = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: c_long = 1 << 4;
/// How long a thread waits for another one's store if `membarrier` is not available.
const STORES_ARE_VISIBLE: Duration = Duration::from_millis(10);

/// Allows this process to use [`run`]. Returns false if the kernel (before 4.14) does not support
/// it.
///
/// This takes some milliseconds if the process has several threads, and no time otherwise. So
/// `ibv_get_device_list` calls it, because programs call that early.
pub(crate) fn register() -> bool {
    static ALLOWED: Lazy<bool> = Lazy::new();
    *ALLOWED.get_or(|| {
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
        // A filter of the program forbids the system call. But stores become visible within
        // microseconds.
        uncancelled(|| std::thread::sleep(STORES_ARE_VISIBLE));
    }
}

fn command(command: c_long) -> c_long {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0 as c_long, 0 as c_long) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use super::super::Lock;
    use super::*;

    /// Lets the calling thread's `membarrier` fail, as a program's own filter of system calls does.
    fn forbid() {
        let step = |code, k, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
        let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let (jump, answer) =
            (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::BPF_RET | libc::BPF_K);
        let mut filter = [
            // The number of the system call is at the start of `struct seccomp_data`.
            step(load, 0, 0, 0),
            step(jump, libc::SYS_membarrier as u32, 0, 1),
            step(answer, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
            step(answer, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        let filter_mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: binds only this thread; the kernel copies the program.
        let results = unsafe {
            [
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                libc::prctl(libc::PR_SET_SECCOMP, filter_mode, &raw const program),
            ]
        };
        assert_eq!(results, [0, 0]);
        assert_eq!(command(PRIVATE_EXPEDITED), -1);
    }

    #[test]
    fn stores_get_time_where_the_system_call_is_forbidden() {
        assert!(register(), "the kernel has no membarrier");
        let thread = std::thread::spawn(|| {
            forbid();
            let before = Instant::now();
            run();
            before.elapsed()
        });
        assert!(thread.join().unwrap() >= STORES_ARE_VISIBLE);
    }

    /// A thread without `membarrier` takes locks away, and no addition of the owner is lost.
    #[test]
    fn locks_are_taken_away_where_the_system_call_is_forbidden() {
        assert!(register(), "the kernel has no membarrier");
        for _ in 0..5 {
            let (lock, count) = (Lock::with_owners(true, true), AtomicU64::new(0));
            let add = || {
                let _guard = lock.guard();
                count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            };
            add();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    forbid();
                    (0..1000).for_each(|_| add());
                });
                (0..1000).for_each(|_| add());
            });
            assert_eq!(count.into_inner(), 2001);
        }
    }
}
