//! Packets that wait for their receivers when the program exits.
//!
//! A request completes once its packets are with the wire, which keeps those for which a receiver
//! in another process has no space. A NIC's packets have left by then, so a program may exit after
//! its last completion. Here exit(3) waits while the receivers take packets. What a program leaves
//! behind that ends in another way is lost.
#![allow(unsafe_code)]

use std::mem;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{Shared, lock};
use crate::per_process::PerProcess;

/// How long to wait for receivers that take nothing.
const IDLE: Duration = Duration::from_millis(500);

/// How long to wait at most.
pub(super) const LONGEST: Duration = Duration::from_secs(5);

/// Time between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// The devices of this process.
static DEVICES: PerProcess<Mutex<Vec<Weak<Shared>>>> = PerProcess::new();

/// Waits for this device's receivers, too, when the program exits.
pub(super) fn register(shared: &Arc<Shared>) {
    static IS_HOOKED: AtomicBool = AtomicBool::new(false);
    if !IS_HOOKED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function does not unwind, and is there when it is called: that is when the
        // library is unloaded, if that is before the exit (atexit(3)). This call fails without
        // memory; then exit(3) waits for nothing.
        unsafe { libc::atexit(at_exit) };
    }
    let mut devices = lock(DEVICES.get());
    devices.retain(|device| device.strong_count() != 0);
    devices.push(Arc::downgrade(shared));
}

/// In a forked child, there are no devices but its own. A signal handler may call exit(3), and the
/// thread that it interrupted may have any lock. So this waits for none, allocates nothing, and
/// leaves looks to the devices' own threads.
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

/// How many packets this process still has; at least one while another thread, or this one in a
/// signal handler, is about to send some.
pub(super) fn left_in(shared: &Shared) -> usize {
    // First: a look that ends meanwhile has moved its packets to the outbox.
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
