//! Routes events of the device to event files, and creates the files: completion channels
//! (`ib_uverbs_create_comp_channel`) and asynchronous event files.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use uverbs_soft_adapter::firmware::event::Report;
use uverbs_uapi::objects::async_event::alloc;
use uverbs_uapi::write::comp_channel::{CreateCompChannel, CreateCompChannelResp};

use super::event_queue::{EventQueue, Source};
use super::subscriptions::Subscriptions;
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::objects::object::Kind;
use crate::core::{AsyncKind, Event, EventObject};

/// Reports an object's events to an event file, with the object's user handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reporter {
    queue: Option<Arc<EventQueue>>,
    source: Arc<Source>,
    user_handle: u64,
    /// The object is a work queue: the core's QP errors are its own.
    of_work_queue: bool,
}

impl Reporter {
    pub(crate) fn new(queue: Option<Arc<EventQueue>>, user_handle: u64) -> Self {
        Self { queue, source: Arc::default(), user_handle, of_work_queue: false }
    }

    /// Reports a work queue's events. In the core, the work queue is a raw packet QP.
    pub(crate) fn of_work_queue(queue: Option<Arc<EventQueue>>, user_handle: u64) -> Self {
        Self { of_work_queue: true, ..Self::new(queue, user_handle) }
    }

    /// The record of an asynchronous event.
    fn record(&self, kind: AsyncKind) -> [u8; 16] {
        let kind = if self.of_work_queue { AsyncKind::WqFatal } else { kind };
        record(self.user_handle, kind)
    }

    /// How many records the program has read.
    pub(crate) fn reported(&self) -> u32 {
        self.source.reported()
    }

    /// Removes unread records and updates the number of read ones.
    pub(crate) fn forget(&self) {
        if let Some(queue) = &self.queue {
            queue.forget(&self.source);
        }
    }

    fn push(&self, record: &[u8], overflowing: &mut Vec<Weak<EventQueue>>) {
        let Some(queue) = &self.queue else { return };
        if queue.push(record, Some(&self.source)) {
            overflowing.push(Arc::downgrade(queue));
        }
    }
}

/// The event files that each object reports to.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    completions: HashMap<u32, Reporter>,
    objects: HashMap<EventObject, Vec<Reporter>>,
    /// Asynchronous event files; all of them get the events of port and device.
    files: Vec<Weak<EventQueue>>,
    /// Channels that have subscribed to events of the firmware.
    pub(crate) subscriptions: Subscriptions,
    /// Queues with more records than their pipe holds.
    overflowing: Vec<Weak<EventQueue>>,
}

impl Routes {
    pub(crate) fn add_completions(&mut self, cqn: u32, reporter: &Reporter) {
        self.completions.insert(cqn, reporter.clone());
    }

    pub(crate) fn remove_completions(&mut self, cqn: u32) {
        self.completions.remove(&cqn);
    }

    /// Adds a reporter. An XRC target has one for each context that opened it.
    pub(crate) fn add(&mut self, object: EventObject, reporter: &Reporter) {
        self.objects.entry(object).or_default().push(reporter.clone());
    }

    pub(crate) fn remove(&mut self, object: EventObject, reporter: &Reporter) {
        if let Some(reporters) = self.objects.get_mut(&object) {
            reporters.retain(|known| !Arc::ptr_eq(&known.source, &reporter.source));
            if reporters.is_empty() {
                self.objects.remove(&object);
            }
        }
    }

    /// Reports a completion of an armed CQ.
    pub(crate) fn complete(&mut self, cqn: u32) {
        if let Some(reporter) = self.completions.get(&cqn) {
            reporter.push(&reporter.user_handle.to_ne_bytes(), &mut self.overflowing);
        }
    }

    /// Reports an asynchronous event of an object.
    pub(crate) fn report(&mut self, kind: AsyncKind, object: EventObject) {
        for reporter in self.objects.get(&object).into_iter().flatten() {
            reporter.push(&reporter.record(kind), &mut self.overflowing);
        }
    }

    /// Adds an asynchronous event file.
    pub(crate) fn add_file(&mut self, queue: &Arc<EventQueue>) {
        self.files.retain(|known| known.strong_count() > 0);
        self.files.push(Arc::downgrade(queue));
    }

    /// Stops sending events of port and device to an asynchronous event file.
    pub(crate) fn remove_file(&mut self, queue: &Arc<EventQueue>) {
        self.files.retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(queue)));
    }

    /// Reports an event of the port or the device.
    pub(crate) fn broadcast(&mut self, record: &[u8]) {
        let files: Vec<_> = self.files.iter().filter_map(Weak::upgrade).collect();
        files.iter().for_each(|queue| self.push(queue, record));
    }

    /// Passes an event to the programs that have subscribed to firmware events.
    pub(crate) fn tell_subscribers(&mut self, event: Event) {
        if self.subscriptions.is_empty() {
            return;
        }
        if let Some(report) = Report::of(event) {
            self.subscriptions.tell(report, &mut self.overflowing);
        }
    }

    /// Appends a record to a queue. The record may have to wait for a [`flush`](Self::flush).
    pub(crate) fn push(&mut self, queue: &Arc<EventQueue>, record: &[u8]) {
        if queue.push(record, None) {
            self.overflowing.push(Arc::downgrade(queue));
        }
    }

    /// Moves waiting records into their pipes; true if some still do not fit.
    pub(crate) fn flush(&mut self) -> bool {
        self.overflowing.retain(|queue| queue.upgrade().is_some_and(|queue| queue.flush()));
        !self.overflowing.is_empty()
    }
}

/// `struct ib_uverbs_async_event_desc`: element (user handle or port), event type, reserved.
pub(crate) fn record(element: u64, kind: AsyncKind) -> [u8; 16] {
    let mut record = [0; 16];
    record[..8].copy_from_slice(&element.to_ne_bytes());
    record[8..12].copy_from_slice(&event_type(kind).to_ne_bytes());
    record
}

/// The last record of every asynchronous event file. On removal the kernel reports port 0.
pub(crate) fn device_fatal() -> [u8; 16] {
    record(0, AsyncKind::DeviceFatal)
}

/// `enum ib_event_type`.
fn event_type(kind: AsyncKind) -> u32 {
    match kind {
        AsyncKind::CqError => 0,
        AsyncKind::QpFatal => 1,
        AsyncKind::QpRequestError => 2,
        AsyncKind::QpAccessError => 3,
        AsyncKind::CommunicationEstablished => 4,
        AsyncKind::SqDrained => 5,
        AsyncKind::PathMigrated => 6,
        AsyncKind::PathMigrationFailed => 7,
        AsyncKind::DeviceFatal => 8,
        AsyncKind::PortActive => 9,
        AsyncKind::PortError => 10,
        AsyncKind::LidChange => 11,
        AsyncKind::PkeyChange => 12,
        AsyncKind::SmChange => 13,
        AsyncKind::SrqError => 14,
        AsyncKind::SrqLimitReached => 15,
        AsyncKind::LastWqeReached => 16,
        AsyncKind::ClientReregister => 17,
        AsyncKind::GidChange => 18,
        AsyncKind::WqFatal => 19,
    }
}

/// `IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL`.
pub(crate) fn create_comp_channel(call: &mut Call<'_>) -> Result<(), Errno> {
    let _: CreateCompChannel = call.request()?;
    let fd = call.new_event_file(Kind::CompChannel)? as u32;
    call.response(&CreateCompChannelResp { fd })
}

pub(crate) const ALLOC_ASYNC: &[Attribute] =
    &[Attribute::new_descriptor(alloc::HANDLE, Kind::AsyncEvent)];

/// `UVERBS_METHOD_ASYNC_EVENT_ALLOC`: the dispatcher has created the file for the attribute.
pub(crate) fn alloc_async(_: &mut Call<'_>) -> Result<(), Errno> {
    Ok(())
}
