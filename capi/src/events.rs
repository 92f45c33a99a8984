//! Asynchronous events, and how to wait for events of either kind.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs::ErrorKind;
use uverbs::events::{AsyncEvent, EventSource};

use crate::abi::*;
use crate::context::{Context, Object};
use crate::cq::Cq;
use crate::qp::Qp;
use crate::result::{failed, refused};
use crate::srq::Srq;

/// `enum ibv_event_type`: what is about which kind of object.
const CQ_ERR: u32 = 0;
const QP_FATAL: u32 = 1;
const PATH_MIG_ERR: u32 = 7;
const SRQ_ERR: u32 = 14;
const SRQ_LIMIT_REACHED: u32 = 15;
const QP_LAST_WQE_REACHED: u32 = 16;

/// Whether a call waits for an event, as the flags of the program's descriptor say.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocking {
    Waits,
    Returns,
}

impl Blocking {
    /// What the flags of `fd` say now.
    pub(crate) fn of(fd: c_int) -> Self {
        // SAFETY: asks for flags.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags >= 0 && flags & libc::O_NONBLOCK != 0 { Self::Returns } else { Self::Waits }
    }
}

/// Waits until `fd` is readable; an errno, which is set as well, if that is not to be waited for or a signal came.
pub(crate) fn wait(blocking: Blocking, fd: c_int) -> c_int {
    if blocking == Blocking::Returns {
        return refused(libc::EAGAIN);
    }
    // SAFETY: the descriptor of an object that the caller holds.
    let mut fds = [PollFd::new(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::NONE).map_or_else(|errno| refused(errno as c_int), |_| 0)
}

/// `ibv_get_async_event`.
pub(crate) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    into: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller's context.
    let (fd, context) = unsafe { ((*context).async_fd, Context::of(context)) };
    let blocking = Blocking::of(fd);
    loop {
        match context.library.try_get_event() {
            Ok(event) => {
                if let Some(event) = told(context, event) {
                    // SAFETY: the caller's struct, to be written.
                    unsafe { into.write(event) };
                    return 0;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if wait(blocking, fd) != 0 {
                    return -1;
                }
            }
            Err(error) => {
                failed(&error);
                return -1;
            }
        }
    }
}

/// The event as programs see it; its object holds it until it is acknowledged. `None` if the object is gone.
fn told(context: &Context, event: AsyncEvent) -> Option<ibv_async_event> {
    let event_type = event.kind().0;
    let element = match event.source() {
        EventSource::CompletionQueue(id)
        | EventSource::QueuePair(id)
        | EventSource::SharedReceiveQueue(id)
        | EventSource::WorkQueue(id) => {
            let object = context.objects().get(&id).copied()?;
            hold(object, event)
        }
        EventSource::Port(port) => port.into(),
        EventSource::Device => 0,
    };
    Some(ibv_async_event { element, event_type })
}

/// Leaves the event to its object; the object's address.
fn hold(object: Object, event: AsyncEvent) -> u64 {
    let event = event.detach();
    // SAFETY: an event that is held keeps its object from being destroyed, so the pointers are good.
    unsafe {
        match object {
            Object::Cq(cq) => (*cq).hold_async(event),
            Object::Qp(qp) => (*qp).hold_async(event),
            Object::Srq(srq) => (*srq).hold_async(event),
        }
    }
    match object {
        Object::Cq(cq) => cq.expose_provenance() as u64,
        Object::Qp(qp) => qp.expose_provenance() as u64,
        Object::Srq(srq) => srq.expose_provenance() as u64,
    }
}

/// `ibv_ack_async_event`. Events of ports and of the device need none.
pub(crate) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller's struct.
    let (element, kind) = unsafe { ((*event).element, (*event).event_type) };
    let object = element as usize;
    // SAFETY: an event that is not acknowledged keeps its object.
    unsafe {
        match kind {
            CQ_ERR => Cq::of(std::ptr::with_exposed_provenance_mut(object)).acknowledge_async(),
            QP_FATAL..=PATH_MIG_ERR | QP_LAST_WQE_REACHED => {
                Qp::of(std::ptr::with_exposed_provenance_mut(object)).acknowledge_async();
            }
            SRQ_ERR | SRQ_LIMIT_REACHED => {
                Srq::of(std::ptr::with_exposed_provenance_mut(object)).acknowledge_async();
            }
            _ => {}
        }
    }
}
