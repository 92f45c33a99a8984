//! An Ethernet segment in memory: each port receives the frames that the other ports send.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::FrameWire;
use uverbs_soft::locking::lock;
use uverbs_soft::wire::Waker;

/// Most frames queued at one port. More are dropped, as by a switch.
const QUEUE_LIMIT: usize = 4096;

type Inbox = Mutex<VecDeque<Vec<u8>>>;

/// The segment. Clones refer to the same segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Hub {
    ports: Arc<Mutex<Vec<Plugged>>>,
}

#[derive(Debug)]
struct Plugged {
    inbox: Arc<Inbox>,
    waker: Arc<Waker>,
}

/// One device's port. Dropping it unplugs the device.
#[derive(Debug)]
pub(super) struct HubPort {
    hub: Hub,
    inbox: Arc<Inbox>,
}

impl Hub {
    /// Plugs a device in; `waker` is woken when frames arrive for it.
    pub(super) fn plug(&self, waker: Arc<Waker>) -> HubPort {
        let inbox = Arc::<Inbox>::default();
        lock(&self.ports).push(Plugged { inbox: inbox.clone(), waker });
        HubPort { hub: self.clone(), inbox }
    }
}

impl FrameWire for HubPort {
    fn send(&mut self, frame: &[u8]) {
        for port in lock(&self.hub.ports).iter() {
            if Arc::ptr_eq(&port.inbox, &self.inbox) {
                continue;
            }
            let mut inbox = lock(&port.inbox);
            if inbox.len() < QUEUE_LIMIT {
                inbox.push_back(frame.to_vec());
            }
            drop(inbox);
            port.waker.wake();
        }
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> bool {
        match lock(&self.inbox).pop_front() {
            Some(arrived) => {
                *frame = arrived;
                true
            }
            None => false,
        }
    }
}

impl Drop for HubPort {
    fn drop(&mut self) {
        lock(&self.hub.ports).retain(|port| !Arc::ptr_eq(&port.inbox, &self.inbox));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_reaches_all_ports_but_its_own() {
        let hub = Hub::default();
        let plug = || hub.plug(Arc::new(Waker::new().unwrap()));
        let (mut a, mut b, mut c) = (plug(), plug(), plug());
        a.send(b"one");
        a.send(b"two");
        drop(c);
        c = plug();
        let mut frame = Vec::new();
        assert!(b.receive(&mut frame) && frame == b"one");
        assert!(b.receive(&mut frame) && frame == b"two");
        assert!(!b.receive(&mut frame) && !a.receive(&mut frame));
        assert!(!c.receive(&mut frame), "frames sent before it was plugged in");
    }
}
