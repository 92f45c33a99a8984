//! From the device's events to records in event files, how objects take part in that, and the methods that make event
//! files: completion channels (`ib_uverbs_create_comp_channel`) and asynchronous event files.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use uverbs_uapi::objects::async_event::alloc;
use uverbs_uapi::write::comp_channel::{CreateCompChannel, CreateCompChannelResp};

use super::event_queue::{EventQueue, Source};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::objects::object::Kind;
use crate::core::{AsyncKind, EventObject};

/// An object's way to an event file: where to, in whose name, counted for whom.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reporter {
    queue: Option<Arc<EventQueue>>,
    source: Arc<Source>,
    user_handle: u64,
}

impl Reporter {
    pub(crate) fn new(queue: Option<Arc<EventQueue>>, user_handle: u64) -> Self {
        Self { queue, source: Arc::default(), user_handle }
    }

    /// How many records the program has read.
    pub(crate) fn reported(&self) -> u32 {
        self.source.reported()
    }

    /// Removes unread records and settles the count.
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

/// Which objects report where.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    completions: HashMap<u32, Reporter>,
    objects: HashMap<EventObject, Vec<Reporter>>,
    /// Asynchronous event files, which get the events of port and device.
    files: Vec<Weak<EventQueue>>,
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

    /// An XRC target that several contexts have opened reports to each of them.
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

    /// A CQ has what it was armed for.
    pub(crate) fn complete(&mut self, cqn: u32) {
        if let Some(reporter) = self.completions.get(&cqn) {
            reporter.push(&reporter.user_handle.to_ne_bytes(), &mut self.overflowing);
        }
    }

    /// Something happened to an object.
    pub(crate) fn report(&mut self, kind: AsyncKind, object: EventObject) {
        for reporter in self.objects.get(&object).into_iter().flatten() {
            reporter.push(&record(reporter.user_handle, kind), &mut self.overflowing);
        }
    }

    /// An asynchronous event file exists from now on.
    pub(crate) fn add_file(&mut self, queue: &Arc<EventQueue>) {
        self.files.retain(|known| known.strong_count() > 0);
        self.files.push(Arc::downgrade(queue));
    }

    /// An asynchronous event file gets no more of the port's and the device's events.
    pub(crate) fn remove_file(&mut self, queue: &Arc<EventQueue>) {
        self.files.retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(queue)));
    }

    /// Something happened to the port or the device.
    pub(crate) fn broadcast(&mut self, record: &[u8]) {
        for queue in self.files.iter().filter_map(Weak::upgrade) {
            if queue.push(record, None) {
                self.overflowing.push(Arc::downgrade(&queue));
            }
        }
    }

    /// Moves records that wait for room as far as there is some now; true if some still wait.
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

/// What every asynchronous event file gets last: on removal the kernel names no port.
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

/// `UVERBS_METHOD_ASYNC_EVENT_ALLOC`: the attribute has made the file already.
pub(crate) fn alloc_async(_: &mut Call<'_>) -> Result<(), Errno> {
    Ok(())
}
