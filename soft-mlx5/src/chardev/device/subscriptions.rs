//! Subscriptions of programs to events of the firmware (DEVX): which event goes to which file.
//! Kernel: `devx_event_notifier`, `dispatch_event_fd` and `deliver_event` of hw/mlx5/devx.c.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use uverbs_soft_adapter::firmware::event::Report;

use super::event_queue::{EventQueue, Source};
use super::eventfd::EventFd;

/// The event's type, with the number of the queue that it is about.
type Key = (u8, Option<u32>);

/// All subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    known: HashMap<Key, Vec<Subscription>>,
}

/// A firmware object: the command that creates its kind, and its number.
pub(crate) type FirmwareId = (u16, u32);

/// One subscription. It ends with its event file and with its object.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) object: Option<FirmwareId>,
    /// How events name the type of the object.
    pub(crate) queue_type: u8,
    pub(crate) file: Weak<EventQueue>,
    pub(crate) way: Way,
}

/// How a subscriber gets an event.
#[derive(Debug)]
pub(crate) enum Way {
    /// A record with a cookie and the event queue entry.
    Entry(u64),
    /// A record with only a cookie. No second one is queued until the program has read it.
    Cookie(u64, Arc<Source>),
    /// A signal of an eventfd.
    Signal(EventFd),
}

impl Subscriptions {
    pub(crate) fn add(&mut self, key: Key, subscription: Subscription) {
        let known = self.known.entry(key).or_default();
        known.retain(Subscription::is_heard);
        known.push(subscription);
    }

    /// Ends the subscriptions to an object that was destroyed.
    pub(crate) fn end(&mut self, object: FirmwareId) {
        self.known.retain(|_, subscriptions| {
            subscriptions.retain(|known| known.object != Some(object) && known.is_heard());
            !subscriptions.is_empty()
        });
    }

    /// Passes an event to its subscribers. Files whose pipe became full are added to `overflowing`.
    pub(crate) fn tell(&self, report: Report, overflowing: &mut Vec<Weak<EventQueue>>) {
        let subscriptions = self.known.get(&(report.kind.0, report.number()));
        for subscription in subscriptions.into_iter().flatten() {
            if subscription.tell(&report) {
                overflowing.push(subscription.file.clone());
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

impl Subscription {
    fn is_heard(&self) -> bool {
        self.open_file().is_some()
    }

    /// The file, if the program still has it open.
    fn open_file(&self) -> Option<Arc<EventQueue>> {
        self.file.upgrade().filter(|file| !file.abandoned())
    }

    /// True if the file's pipe is full now, and was not before.
    fn tell(&self, report: &Report) -> bool {
        let Some(file) = self.open_file() else { return false };
        match &self.way {
            Way::Entry(cookie) => {
                let entry = report.of_queue(self.queue_type).entry();
                let record = [&cookie.to_ne_bytes()[..], &entry].concat();
                file.push(&record, None)
            }
            Way::Cookie(cookie, source) => file.push_once(&cookie.to_ne_bytes(), source),
            Way::Signal(eventfd) => {
                eventfd.signal();
                false
            }
        }
    }
}
