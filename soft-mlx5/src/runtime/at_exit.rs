//! Waits at exit until receivers have taken the packets that still wait for them.
//!
//! A request completes once the wire has its packets, and the wire keeps packets for which a
//! receiver in another process has no space. A program may exit after its last completion, because
//! with a NIC the packets have left by then. So here exit(3) waits while the receivers take
//! packets. If a program ends in another way, these packets are lost.
#![allow(unsafe_code)]

use std::mem;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{Shared, lock};
use crate::per_process::PerProcess;

/// Longest time without a packet being taken.
const IDLE: Duration = Duration::from_millis(500);

/// Longest time in total.
pub(super) const LONGEST: Duration = Duration::from_secs(5);

/// Time between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// The devices of this process.
static DEVICES: PerProcess<Mutex<Vec<Weak<Shared>>>> = PerProcess::new();

/// Makes exit(3) also wait for this device's receivers.
pub(super) fn register(shared: &Arc<Shared>) {
    static IS_HOOKED: AtomicBool = AtomicBool::new(false);
    if !IS_HOOKED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function does not unwind, and exists when it is called: if the library is
        // unloaded before the exit, it is called at that time (atexit(3)). If there is no memory,
        // registration fails and exit(3) does not wait.
        unsafe { libc::atexit(at_exit) };
    }
    let mut devices = lock(DEVICES.get());
    devices.retain(|device| device.strong_count() != 0);
    devices.push(Arc::downgrade(shared));
}

/// A forked child sees only its own devices. A signal handler may call exit(3) while the
/// interrupted thread holds any lock. So this function waits for no lock, allocates nothing, and
/// leaves the work to the devices' own threads.
extern "C" fn at_exit() {
    let _ = catch_unwind(|| {
        let Some(Ok(devices)) = DEVICES.existing().map(Mutex::try_lock) else { return };
        let until = Instant::now() + LONGEST;
        for device in devices.iter().filter_map(Weak::upgrade) {
            hand_over(&device, until, || device.waker.wake());
        }
    });
}

/// Waits until the receivers have taken the packets that wait for them, no longer than `until`.
/// After `look`, the device passes on the packets for which they have space.
pub(super) fn hand_over(shared: &Shared, until: Instant, look: impl Fn()) {
    let (mut left, mut since) = (left_in(shared), Instant::now());
    while left != 0 {
        look();
        let before = mem::replace(&mut left, left_in(shared));
        let now = Instant::now();
        since = if left < before { now } else { since };
        if now - since > IDLE || now > until {
            return;
        }
        thread::sleep(PAUSE);
    }
}

/// How many packets this process still has; at least one while another thread, or the thread that a
/// signal handler interrupted, is about to send some.
pub(super) fn left_in(shared: &Shared) -> usize {
    // Checked first: a look that ends after this has moved its packets to the outbox.
    let is_looking = matches!(shared.machine.try_lock(), Err(TryLockError::WouldBlock));
    let in_outbox = match shared.outbox.try_lock() {
        Ok(outbox) => outbox.len(),
        Err(TryLockError::WouldBlock) => 1,
        Err(TryLockError::Poisoned(_)) => 0,
    };
    let is_sending = shared.sending.load(Ordering::SeqCst);
    let unsent = shared.unsent.load(Ordering::Relaxed);
    usize::from(is_looking) + in_outbox + usize::from(is_sending) + unsent
}
