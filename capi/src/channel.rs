//! Completion channels and completion events.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use uverbs::CompletionChannel;
use uverbs::events::ObjectId;
use uverbs_soft::signals::asleep::{self, LONGEST, Slept};

use crate::abi::*;
use crate::context::Context;
use crate::cq::Cq;
use crate::events::{Blocking, Taken, uncancelled, wait};
use crate::lock::Shared;
use crate::result::{failed, null, refused};

unsafe extern "C-unwind" {
    /// `pthread_testcancel(3)`.
    fn pthread_testcancel();
}

/// A completion channel.
///
/// The descriptor that programs get is an epoll file over the channel's: it is readable while there
/// is an event, and has its own flags. The library keeps the channel's file non-blocking, while
/// `O_NONBLOCK` on the program's descriptor decides whether `ibv_get_cq_event` waits.
#[repr(C)]
pub(crate) struct Channel {
    base: ibv_comp_channel,
    pub(crate) library: CompletionChannel,
    #[allow(dead_code, reason = "held for its lifetime")]
    readable: Epoll,
    queues: Shared<HashMap<ObjectId, Member>>,
}

/// A completion queue of a channel.
#[derive(Clone, Copy)]
struct Member(*const Cq);

// SAFETY: a member is removed before its queue is freed. It is used under the lock, or while the
// queue holds an event, which keeps the queue from being destroyed.
unsafe impl Send for Member {}

impl Channel {
    /// The channel behind a program's pointer.
    ///
    /// # Safety
    /// `channel` is from [`create_comp_channel`], and not destroyed.
    pub(crate) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a Self {
        // SAFETY: `base` is at offset 0.
        unsafe { &*channel.cast() }
    }

    fn queues(&self) -> Option<MutexGuard<'_, HashMap<ObjectId, Member>>> {
        self.queues.lock()
    }

    /// Records a completion queue that uses the channel.
    pub(crate) fn add(&self, id: ObjectId, queue: *const Cq) {
        self.base.refcnt.fetch_add(1, Ordering::Relaxed);
        if let Some(mut queues) = self.queues() {
            queues.insert(id, Member(queue));
        }
    }

    /// Removes a completion queue that was destroyed. The count is decremented last, without the
    /// lock, because another thread may then destroy the channel. That is why this takes a pointer.
    ///
    /// # Safety
    /// The queue was added, and is removed once.
    pub(crate) unsafe fn remove(channel: *const Self, id: ObjectId) {
        // SAFETY: the count keeps the channel until it has gone down.
        let this = unsafe { &*channel };
        if let Some(mut queues) = this.queues() {
            queues.remove(&id);
        }
        this.base.refcnt.fetch_sub(1, Ordering::Release);
    }
}

/// `ibv_create_comp_channel`.
pub(crate) unsafe extern "C" fn create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the caller's context.
    let library = match unsafe { Context::of(context) }.library.create_completion_channel() {
        Ok(library) => library,
        Err(error) => return null(failed(&error)),
    };
    let Ok(readable) = readable(&library) else { return null(libc::EMFILE) };
    let base = ibv_comp_channel { context, fd: readable.0.as_raw_fd(), refcnt: AtomicI32::new(0) };
    Box::into_raw(Box::new(Channel { base, library, readable, queues: Shared::default() })).cast()
}

fn readable(channel: &CompletionChannel) -> nix::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(channel.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    Ok(epoll)
}

/// `ibv_destroy_comp_channel`: EBUSY while completion queues use it.
pub(crate) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's channel.
    if unsafe { Channel::of(channel) }.base.refcnt.load(Ordering::Acquire) != 0 {
        return refused(libc::EBUSY);
    }
    // SAFETY: from `create_comp_channel`, and freed once.
    unsafe { crate::observe::free(channel.cast::<Channel>()) };
    0
}

/// `ibv_get_cq_event`.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's channel.
    let channel = unsafe { Channel::of(channel) };
    let Some(blocking) = Blocking::of(channel.base.fd) else { return -1 };
    let works = blocking == Blocking::Waits && channel.library.context().as_fd().is_none();
    loop {
        if works {
            // SAFETY: a call without arguments; nothing here has to be dropped.
            unsafe { pthread_testcancel() };
        }
        let taken = match works {
            true => at_work(channel),
            false => uncancelled(|| next_event(channel)),
        };
        match taken {
            Taken::Event(queue) => {
                // SAFETY: the event that is held keeps the queue; the caller's places, to be
                // written.
                unsafe {
                    *cq = queue.cast_mut().cast();
                    *cq_context = (*queue).ex().cq_context;
                }
                return 0;
            }
            Taken::Gone => {}
            Taken::Failed => return -1,
            Taken::Nothing => {
                if wait(blocking, channel.base.fd) != 0 {
                    return -1;
                }
            }
        }
    }
}

/// Waits for an event and takes it. Meanwhile this thread does the work of a software device, so
/// that a packet wakes it directly. Returns [`Taken::Gone`] if there is no event after [`LONGEST`]
/// or a signal. If it cannot wait, it only takes an event that is already there.
fn at_work(channel: &Channel) -> Taken<*const Cq> {
    let wait = |signals: BorrowedFd<'_>| {
        let waited = channel.library.wait_event(&[signals], Some(LONGEST));
        waited.map_err(|error| Errno::from_raw(error.errno()))?;
        Ok(match next_event(channel) {
            Taken::Nothing => None,
            taken => Some(taken),
        })
    };
    match uncancelled(|| asleep::sleep(wait)) {
        Slept::Until(taken) => taken,
        Slept::Again => Taken::Gone,
        Slept::Failed => uncancelled(|| next_event(channel)),
        Slept::Interrupted => {
            refused(libc::EINTR);
            Taken::Failed
        }
    }
}

/// Takes an event. Its queue holds the event until the program acknowledges it.
fn next_event(channel: &Channel) -> Taken<*const Cq> {
    match channel.library.try_get_event() {
        Ok(event) => {
            let member = channel.queues().and_then(|queues| queues.get(&event.cq()).copied());
            let Some(Member(queue)) = member else { return Taken::Gone };
            // SAFETY: the queue cannot be destroyed before the event is acknowledged.
            unsafe { (*queue).events.hold(event.detach()) };
            Taken::Event(queue)
        }
        Err(error) => Taken::without(&error),
    }
}

/// `ibv_ack_cq_events`.
pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, count: std::ffi::c_uint) {
    // SAFETY: the caller's queue.
    unsafe { Cq::of(cq) }.events.acknowledge(count);
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::context::{close_device, open_device};
    use crate::cq::{create_cq, destroy_cq};
    use crate::device::tests::of_soft;

    /// Whether a thread of this process sleeps, as one that waits for a lock does.
    fn sleeps(thread: libc::pid_t) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        stat.is_ok_and(|stat| stat.contains(") S "))
    }

    #[test]
    fn a_queue_counts_until_its_destruction_needs_the_channel_no_more() {
        let soft = uverbs::soft::SoftDevice::builder("soft0").without_wire().build();
        // SAFETY: each object is made once and destroyed once.
        unsafe {
            let context = open_device(of_soft(&Arc::new(soft.expect("device"))));
            let channel = create_comp_channel(context);
            let cq = create_cq(context, 16, std::ptr::null_mut(), std::ptr::null_mut(), 0);
            let id = Cq::of(cq).handle().expect("handle").id();
            let of = Channel::of(channel);
            of.add(id, cq.cast());
            let count = || of.base.refcnt.load(Ordering::Acquire);
            let while_locked = std::thread::scope(|scope| {
                let locked = of.queues();
                let (tell, told) = mpsc::channel();
                let address = channel.expose_provenance();
                scope.spawn(move || {
                    tell.send(libc::gettid()).expect("receiver");
                    Channel::remove(std::ptr::with_exposed_provenance(address), id);
                });
                let remover = told.recv().expect("thread");
                while count() == 1 && !sleeps(remover) {
                    std::thread::yield_now();
                }
                let counted = count();
                drop(locked);
                counted
            });
            assert_eq!((while_locked, count()), (1, 0));
            assert_eq!((destroy_cq(cq), destroy_comp_channel(channel)), (0, 0));
            assert_eq!(close_device(context), 0);
        }
    }
}
