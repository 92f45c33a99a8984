//! One open device file: its context, its handles, its event files.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};

use nix::errno::Errno;

use super::context::Context;
use super::event_files::EventFiles;
use super::event_queue::EventQueue;
use super::events;
use crate::chardev::device::DeviceShared;
use crate::chardev::objects::handles::Handles;
use crate::chardev::objects::object::{Entry, EventFile, Kind};
use crate::locking::lock;

/// The part of an open file that the device's thread also uses.
#[derive(Debug)]
pub(crate) struct FileShared {
    pub(crate) device: Arc<DeviceShared>,
    state: Mutex<FileState>,
}

/// Everything that belongs to one open file.
#[derive(Debug, Default)]
pub(crate) struct FileState {
    pub(crate) context: Option<Context>,
    pub(crate) handles: Handles<Entry>,
    pub(crate) event_files: EventFiles,
    /// Bytes of pinned memory.
    pub(crate) pinned: u64,
}

impl FileShared {
    pub(crate) fn new(device: Arc<DeviceShared>) -> Self {
        Self { device, state: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FileState> {
        lock(&self.state)
    }

    /// Closes the file: destroys its objects, ends its event files, frees its context.
    pub(crate) fn close(&self) {
        if self.device.is_orphan() {
            return;
        }
        let mut state = self.lock();
        state.take_down(&self.device);
        state.drop_handles();
        state.event_files.close();
        if let Some(context) = state.context.take() {
            context.close(&self.device);
        }
    }

    /// Removal of the device: objects are destroyed in the device, their handles stay until the
    /// program destroys them, completion channels end. Asynchronous event files report DEVICE_FATAL
    /// and then nothing more, but do not end (`uverbs_async_event_destroy_uobj`,
    /// drivers/infiniband/core/uverbs_std_types_async_fd.c).
    pub(crate) fn disassociate(&self) {
        let mut state = self.lock();
        state.take_down(&self.device);
        for file in state.event_files.iter() {
            if file.kind == Kind::AsyncEvent {
                self.device.routes().remove_file(&file.queue);
                file.queue.push(&events::device_fatal(), None);
            } else {
                file.queue.close();
            }
        }
    }
}

impl FileState {
    /// Checks that a handle names an object of this kind: ENOENT if it is free, EINVAL for another
    /// kind.
    pub(crate) fn lookup(&self, kind: Kind, handle: u32) -> Result<(), Errno> {
        let entry = self.handles.get(handle)?;
        if entry.object.kind() == kind { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// As [`lookup`](Self::lookup), for all uses except destroying the object; EIO after removal.
    pub(crate) fn lookup_live(
        &self,
        file: &FileShared,
        kind: Kind,
        handle: u32,
    ) -> Result<(), Errno> {
        self.lookup(kind, handle)?;
        if file.device.is_removed() { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Destroys an object that nothing uses; EBUSY otherwise.
    pub(crate) fn destroy(&mut self, file: &FileShared, handle: u32) -> Result<Entry, Errno> {
        let entry = self.handles.get_mut(handle)?;
        if !entry.gone {
            if entry.users > 0 {
                return Err(Errno::EBUSY);
            }
            entry.object.destroy(&file.device)?;
            entry.object.forget_events();
        }
        let parents = entry.object.parents();
        let entry = self.handles.remove(handle).ok_or(Errno::ENOENT)?;
        self.uncharge(entry.pinned);
        self.release(&parents);
        Ok(entry)
    }

    fn release(&mut self, parents: &[u32]) {
        for parent in parents {
            if let Ok(parent) = self.handles.get_mut(*parent) {
                parent.users = parent.users.saturating_sub(1);
            }
        }
    }

    /// Destroys all objects in the device; their handles stay. Refused destructions are repeated as
    /// long as others succeed, because firmware objects may use later ones of the same kind
    /// (`uverbs_destroy_ufile_hw`, drivers/infiniband/core/rdma_core.c).
    fn take_down(&mut self, device: &Arc<DeviceShared>) {
        let mut left = self.destruction_order();
        let mut before = usize::MAX;
        while left.len() < before {
            before = left.len();
            left.retain(|handle| {
                self.handles.get_mut(*handle).is_ok_and(|entry| !entry.take_down(device))
            });
        }
        // An object that another context still uses (an XRC domain) stays.
        for handle in left {
            if let Ok(entry) = self.handles.get_mut(handle) {
                entry.give_up();
            }
        }
    }

    /// All handles: users before the objects that they use, and later ones before earlier ones.
    fn destruction_order(&self) -> Vec<u32> {
        let ranks =
            self.handles.iter().map(|(handle, entry)| (entry.object.destruction_rank(), handle));
        let mut order: Vec<_> = ranks.map(|(rank, handle)| (rank, Reverse(handle))).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, Reverse(handle))| handle).collect()
    }

    fn drop_handles(&mut self) {
        self.handles = Handles::default();
    }

    /// The queue of an event descriptor; EBADF if this file has no event file of that kind with it.
    pub(crate) fn event_queue(&self, fd: RawFd, kind: Kind) -> Result<Arc<EventQueue>, Errno> {
        self.event_files.find(fd, kind)
    }

    /// The first asynchronous event file. Objects report to it if they name no other.
    pub(crate) fn default_async(&self) -> Option<Arc<EventQueue>> {
        self.event_files.default_async().cloned()
    }

    /// Registers an event file.
    pub(crate) fn add_event_file(&mut self, device: &DeviceShared, file: EventFile) {
        if file.kind == Kind::AsyncEvent {
            device.routes().add_file(&file.queue);
        }
        self.event_files.add(file);
    }

    /// Charges memory that is to be pinned; ENOMEM above the device's limit (RLIMIT_MEMLOCK on a
    /// real device).
    pub(crate) fn charge(&mut self, device: &DeviceShared, bytes: u64) -> Result<(), Errno> {
        let pinned = self.pinned.saturating_add(bytes);
        if device.options().locked_memory.is_some_and(|limit| pinned > limit) {
            return Err(Errno::ENOMEM);
        }
        self.pinned = pinned;
        Ok(())
    }

    /// The reverse of [`charge`](Self::charge).
    pub(crate) fn uncharge(&mut self, bytes: u64) {
        self.pinned = self.pinned.saturating_sub(bytes);
    }
}
