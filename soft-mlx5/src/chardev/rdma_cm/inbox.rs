//! Datagrams and notices of the devices, which wait for the host's thread.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::chardev::device::management::ManagementAgent;
use crate::core::Datagram;
use crate::locking::lock;
use crate::runtime;
use crate::wire::Station;
use uverbs_soft_cm::cma::DeviceNumber;

/// Most waiting datagrams of a device. Further ones are lost, as when the kernel's QP 1 has no
/// receives posted. This is the kernel's maximum rather than its default of 512
/// (`IB_MAD_QP_MAX_SIZE`, `IB_MAD_QP_RECV_SIZE` in drivers/infiniband/core/mad_priv.h). The reason
/// is that a process that destroys many connected ids sends their DREQs all at once, and repeats
/// none.
const RECEIVES: usize = 8192;

/// What arrives from the devices' threads. Locked last.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    arrival: Condvar,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    notices: VecDeque<(DeviceNumber, Notice)>,
    /// How many of the notices are datagrams, by device.
    datagrams: HashMap<DeviceNumber, usize>,
}

#[derive(Debug)]
pub(super) enum Notice {
    Datagram(Datagram),
    /// The process with this station has ended.
    Ended(Station),
    Removed,
    /// Timers may have changed.
    TimersChanged,
}

impl Waiting {
    /// Counts a datagram, if the device has a receive for it.
    fn has_receive(&mut self, device: DeviceNumber) -> bool {
        let datagrams = self.datagrams.entry(device).or_default();
        let has_one = *datagrams < RECEIVES;
        *datagrams += usize::from(has_one);
        has_one
    }
}

impl Inbox {
    pub(super) fn push(&self, device: DeviceNumber, notice: Notice) {
        let mut waiting = lock(&self.waiting);
        if matches!(notice, Notice::Datagram(_)) && !waiting.has_receive(device) {
            return;
        }
        waiting.notices.push_back((device, notice));
        drop(waiting);
        self.arrival.notify_one();
    }

    /// Waits for notices, until a time of [`runtime::now`].
    pub(super) fn wait(&self, until: Option<u64>) -> VecDeque<(DeviceNumber, Notice)> {
        let mut waiting = lock(&self.waiting);
        if waiting.notices.is_empty() && !self.is_stopped() {
            waiting = match until.map(|until| until.saturating_sub(runtime::now())) {
                Some(0) => waiting,
                Some(left) => {
                    let waited = self.arrival.wait_timeout(waiting, Duration::from_nanos(left));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.arrival.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
        std::mem::take(&mut *waiting).notices
    }

    /// Ends the thread that waits.
    pub(super) fn stop(&self) {
        {
            let _waiting = lock(&self.waiting);
            self.stop.store(true, Ordering::SeqCst);
        }
        self.arrival.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// Puts a device's datagrams and notices into the inbox.
#[derive(Debug)]
pub(super) struct InboxSender {
    pub(super) inbox: Arc<Inbox>,
    pub(super) device: DeviceNumber,
}

impl ManagementAgent for InboxSender {
    fn datagram(&self, datagram: Datagram) {
        self.inbox.push(self.device, Notice::Datagram(datagram));
    }

    fn peer_ended(&self, station: Station) {
        self.inbox.push(self.device, Notice::Ended(station));
    }

    fn removed(&self) {
        self.inbox.push(self.device, Notice::Removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::DATAGRAM_LEN;
    use crate::packet::Addressing;

    fn senders() -> [InboxSender; 2] {
        let inbox = Arc::new(Inbox::default());
        [0, 1].map(|device| InboxSender { inbox: inbox.clone(), device })
    }

    fn datagram() -> Datagram {
        Datagram { addressing: Addressing::default(), bytes: Box::new([0; DATAGRAM_LEN]) }
    }

    fn waiting(inbox: &Inbox) -> Vec<usize> {
        let notices = inbox.wait(None);
        let of = |device| notices.iter().filter(|(of, _)| *of == device).count();
        vec![of(0), of(1)]
    }

    #[test]
    fn a_flood_of_datagrams_takes_bounded_memory() {
        let [sender, _] = senders();
        (0..2 * RECEIVES).for_each(|_| sender.datagram(datagram()));
        assert_eq!(waiting(&sender.inbox), [RECEIVES, 0]);
        sender.datagram(datagram());
        assert_eq!(waiting(&sender.inbox), [1, 0], "there are receives again");
    }

    #[test]
    fn a_flood_of_datagrams_delays_no_other_notice_and_no_other_device() {
        let [flooded, other] = senders();
        (0..=RECEIVES).for_each(|_| flooded.datagram(datagram()));
        flooded.removed();
        other.datagram(datagram());
        assert_eq!(waiting(&other.inbox), [RECEIVES + 1, 1]);
    }
}
