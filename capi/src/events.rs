//! Asynchronous events, and waits for them and for completion events.

use std::ffi::c_int;

use uverbs::ErrorKind;
use uverbs::events::{AsyncEvent, EventSource};
use uverbs_soft::signals::asleep::ends_a_read;

use crate::abi::*;
use crate::context::{Context, Object};
use crate::cq::Cq;
use crate::qp::Qp;
use crate::result::{failed, refused};
use crate::srq::Srq;
use crate::wq::Wq;

/// `enum ibv_event_type`, by the kind of object that an event is about.
const CQ_ERR: u32 = 0;
const QP_FATAL: u32 = 1;
const PATH_MIG_ERR: u32 = 7;
const SRQ_ERR: u32 = 14;
const SRQ_LIMIT_REACHED: u32 = 15;
const QP_LAST_WQE_REACHED: u32 = 16;
const WQ_FATAL: u32 = 19;

/// Whether a call waits for an event, as the flags of the program's descriptor say.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocking {
    Waits,
    Returns,
}

impl Blocking {
    /// The current setting in the flags of `fd`. `None`, with errno, if the program closed it.
    pub(crate) fn of(fd: c_int) -> Option<Self> {
        // SAFETY: asks for flags.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags < 0 {
            return None;
        }
        Some(if flags & libc::O_NONBLOCK != 0 { Self::Returns } else { Self::Waits })
    }
}

/// `PTHREAD_CANCEL_DISABLE`, in glibc and in musl.
const CANCEL_DISABLE: c_int = 1;

unsafe extern "C-unwind" {
    /// `poll(2)`. A thread that is cancelled in it unwinds its stack.
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    /// `pthread_setcancelstate(3)`.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs `call` with cancellation of the thread disabled, because `call` holds locks.
pub(crate) fn uncancelled<R>(call: impl FnOnce() -> R) -> R {
    let mut before = 0;
    // SAFETY: changes this thread's state and writes the previous one.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
    let result = call();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, &raw mut before) };
    result
}

/// Waits until `fd` is readable. Returns an errno, and sets it, if the call must not wait or a
/// signal came whose handler does not restart calls. A thread may be cancelled here, as in the
/// `read(2)` of libibverbs: callers own nothing at this time that would have to be dropped.
pub(crate) fn wait(blocking: Blocking, fd: c_int) -> c_int {
    if blocking == Blocking::Returns {
        return refused(libc::EAGAIN);
    }
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which is written.
    if unsafe { poll(&raw mut asked, 1, -1) } < 0 {
        let errno = nix::errno::Errno::last_raw();
        if errno != libc::EINTR || !handlers_restart_calls() {
            return refused(errno);
        }
    } else if asked.revents & libc::POLLNVAL != 0 {
        return refused(libc::EBADF);
    }
    0
}

/// Whether all signal handlers of the program have `SA_RESTART`. The `read(2)` of libibverbs then
/// goes on after a signal, but no handler restarts `poll(2)`. Handlers of signals that instructions
/// cause do not matter, because a waiting thread executes none.
#[cold]
fn handlers_restart_calls() -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    const CAUSED: [c_int; 7] = [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS];
    (1..=libc::SIGRTMAX())
        .filter(|signal| !CAUSED.contains(signal))
        .all(|signal| !ends_a_read(signal))
}

/// `ibv_get_async_event`.
pub(crate) unsafe extern "C-unwind" fn get_async_event(
    context: *mut ibv_context,
    into: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller's context.
    let (fd, context) = unsafe { ((*context).async_fd, Context::of(context)) };
    let Some(blocking) = Blocking::of(fd) else { return -1 };
    loop {
        match uncancelled(|| next_event(context)) {
            Taken::Event(event) => {
                // SAFETY: the caller's struct, to be written.
                unsafe { write_padded(&event, into) };
                return 0;
            }
            Taken::Gone => {}
            Taken::Failed => return -1,
            Taken::Nothing => {
                if wait(blocking, fd) != 0 {
                    return -1;
                }
            }
        }
    }
}

/// The result of taking an event.
pub(crate) enum Taken<E> {
    Event(E),
    /// No event yet, so the caller tries again: the event's object was destroyed, or a signal or
    /// the timeout ended the wait.
    Gone,
    Nothing,
    /// errno is set.
    Failed,
}

impl<E> Taken<E> {
    /// The result for an error: a failure, or no event.
    pub(crate) fn without(error: &uverbs::Error) -> Self {
        if error.kind() == ErrorKind::WouldBlock {
            return Self::Nothing;
        }
        failed(error);
        Self::Failed
    }
}

fn next_event(context: &Context) -> Taken<ibv_async_event> {
    match context.library.try_get_event() {
        Ok(event) => told(context, event).map_or(Taken::Gone, Taken::Event),
        Err(error) => Taken::without(&error),
    }
}

/// The event for the program. Its object holds it until it is acknowledged. `None` if the object is
/// gone.
fn told(context: &Context, event: AsyncEvent) -> Option<ibv_async_event> {
    let event_type = event.kind().0;
    let element = match event.source() {
        EventSource::CompletionQueue(id)
        | EventSource::QueuePair(id)
        | EventSource::SharedReceiveQueue(id)
        | EventSource::WorkQueue(id) => {
            let object = context.objects()?.get(&id).copied()?;
            hold(object, event)
        }
        EventSource::Port(port) => port.into(),
        // Events of the whole device.
        _ => 0,
    };
    Some(ibv_async_event { element, event_type })
}

/// Gives the event to its object, and returns the object's address.
fn hold(object: Object, event: AsyncEvent) -> u64 {
    let event = event.detach();
    // SAFETY: an object is not destroyed while it holds an event, so the pointers are valid.
    unsafe {
        match object {
            Object::Cq(cq) => (*cq).async_events.hold(event),
            Object::Qp(qp) => (*qp).async_events.hold(event),
            Object::Srq(srq) => (*srq).async_events.hold(event),
            Object::Wq(wq) => (*wq).async_events.hold(event),
        }
    }
    match object {
        Object::Cq(cq) => cq.expose_provenance() as u64,
        Object::Qp(qp) => qp.expose_provenance() as u64,
        Object::Srq(srq) => srq.expose_provenance() as u64,
        Object::Wq(wq) => wq.expose_provenance() as u64,
    }
}

/// `ibv_ack_async_event`. It does nothing for events of ports and of the device.
pub(crate) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller's struct.
    let (element, kind) = unsafe { ((*event).element, (*event).event_type) };
    let object = element as usize;
    // SAFETY: an object is not destroyed before its events are acknowledged.
    unsafe {
        match kind {
            CQ_ERR => {
                Cq::of(std::ptr::with_exposed_provenance_mut(object)).async_events.acknowledge(1);
            }
            QP_FATAL..=PATH_MIG_ERR | QP_LAST_WQE_REACHED => {
                Qp::of(std::ptr::with_exposed_provenance_mut(object)).async_events.acknowledge(1);
            }
            SRQ_ERR | SRQ_LIMIT_REACHED => {
                Srq::of(std::ptr::with_exposed_provenance_mut(object)).async_events.acknowledge(1);
            }
            WQ_FATAL => {
                Wq::of(std::ptr::with_exposed_provenance_mut(object)).async_events.acknowledge(1);
            }
            _ => {}
        }
    }
}
