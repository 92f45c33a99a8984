//! The host: ids of all files, the state machine, and the thread that gives it datagrams and time.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use uverbs_uapi::cm::event::{EventResp, EventType};
use uverbs_uapi::enums::QpType;

use super::context::{Contexts, FileNumber};
use super::file::CmFile;
use super::inbox::{Inbox, InboxSender, Notice};
use super::queue::{Queue, Queued};
use super::stack::{Stack, info};
use crate::chardev::SoftDevice;
use crate::chardev::device::management::{Agent, outgoing};
use crate::core::Datagram;
use crate::home::Home;
use crate::locking::lock;
use crate::packet::Addressing;
use crate::runtime::{self, os_thread::OsThread};
use crate::wire::Station;
use uverbs_soft_cm::cma::{Cma, CmaConfig, CmaEvent, DeviceNumber, Payload};

/// A host's connection manager. Clones are the same one.
///
/// ```
/// use uverbs_soft::chardev::{RdmaCm, SoftDevice};
/// let device = SoftDevice::builder("soft0").without_wire().build()?;
/// let host = RdmaCm::new(&[device])?;
/// let (file, descriptor) = host.open(true)?;
/// # drop((file, descriptor));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RdmaCm {
    pub(super) shared: Arc<Shared>,
    thread: Arc<Thread>,
}

/// A weak handle of a connection manager.
#[derive(Debug, Default)]
pub(crate) struct WeakRdmaCm {
    shared: Weak<Shared>,
    thread: Weak<Thread>,
}

impl WeakRdmaCm {
    pub(crate) fn upgrade(&self) -> Option<RdmaCm> {
        Some(RdmaCm { shared: self.shared.upgrade()?, thread: self.thread.upgrade()? })
    }
}

/// What files and the thread share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    inbox: Arc<Inbox>,
    next_file: AtomicU64,
    home: Home,
}

/// Everything that commands work on.
#[derive(Debug)]
pub(super) struct State {
    pub(super) cma: Cma,
    pub(super) contexts: Contexts,
    pub(super) queues: BTreeMap<FileNumber, Queue>,
    /// Files by device and inode of the program's descriptor.
    files: HashMap<(u64, u64), FileNumber>,
    pub(super) stack: Stack,
    /// When the thread next wakes up by itself.
    until: Option<u64>,
}

/// Ends the thread when the last handle of the host is dropped.
#[derive(Debug)]
struct Thread {
    inbox: Arc<Inbox>,
    doors: Vec<(SoftDevice, Agent)>,
    thread: Mutex<Option<OsThread>>,
    home: Home,
}

impl Drop for Thread {
    fn drop(&mut self) {
        // In a forked child there is no thread.
        if !self.home.is_here() {
            return;
        }
        for (device, door) in &self.doors {
            device.shared.close_management(door);
        }
        self.inbox.stop();
        if let Some(thread) = lock(&self.thread).take() {
            thread.join();
        }
    }
}

impl RdmaCm {
    /// The connection manager of these devices.
    ///
    /// # Errors
    /// EAGAIN if no thread can be created; EIO in a forked child of the devices' process;
    /// `AlreadyExists` if a device has a connection manager.
    pub fn new(devices: &[SoftDevice]) -> io::Result<Self> {
        let inbox = Arc::new(Inbox::default());
        let mut cma = Cma::new(CmaConfig::default());
        for (number, device) in devices.iter().enumerate() {
            cma.add_device(info(device, number as u32), None);
        }
        let state = State {
            cma,
            contexts: Contexts::default(),
            queues: BTreeMap::new(),
            files: HashMap::new(),
            stack: Stack::new(devices),
            until: None,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            inbox: inbox.clone(),
            next_file: AtomicU64::new(0),
            home: Home::new(),
        });
        let (doors, thread) = (Vec::new(), Mutex::default());
        let mut thread = Thread { inbox: inbox.clone(), doors, thread, home: Home::new() };
        for (number, device) in devices.iter().enumerate() {
            let door: Agent = Arc::new(InboxSender { inbox: inbox.clone(), device: number });
            device.shared.open_management(door.clone())?;
            thread.doors.push((device.clone(), door));
        }
        let work = shared.clone();
        let spawned = OsThread::spawn("rdma-cm", move || work.run())?;
        thread.thread = Mutex::new(Some(spawned));
        Ok(Self { shared, thread: Arc::new(thread) })
    }

    /// A weak handle.
    pub(crate) fn downgrade(&self) -> WeakRdmaCm {
        let (shared, thread) = (Arc::downgrade(&self.shared), Arc::downgrade(&self.thread));
        WeakRdmaCm { shared, thread }
    }

    /// Opens the node: the file, and the descriptor that a program gets for it. The descriptor is
    /// readable while events wait; fetching one waits unless it has the flag `O_NONBLOCK`.
    ///
    /// # Errors
    /// EMFILE; EIO in a forked child.
    pub fn open(&self, close_on_exec: bool) -> Result<(CmFile, OwnedFd), Errno> {
        if !self.shared.is_here() {
            return Err(Errno::EIO);
        }
        let (queue, descriptor) = Queue::new(close_on_exec)?;
        let number = self.shared.next_file.fetch_add(1, Ordering::Relaxed);
        let identity = queue.identity();
        let mut state = self.shared.lock();
        state.files.insert(identity, number);
        state.queues.insert(number, queue);
        drop(state);
        Ok((CmFile::new(self.clone(), number, identity), descriptor))
    }

    /// As [`open`](Self::open), closed on exec; fetching an event never waits.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_nonblocking(&self) -> Result<(CmFile, OwnedFd), Errno> {
        let (file, descriptor) = self.open(true)?;
        let flags = OFlag::from_bits_retain(fcntl(&descriptor, FcntlArg::F_GETFL)?);
        fcntl(&descriptor, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok((file, descriptor))
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn is_here(&self) -> bool {
        self.home.is_here()
    }

    /// Unlocks the state after a command. The thread is woken only if it does not know the next
    /// deadline, because commands are frequent: programs poll for events.
    pub(super) fn unlock(&self, state: MutexGuard<'_, State>) {
        let is_earlier = state.has_earlier_deadline();
        drop(state);
        if is_earlier {
            self.inbox.push(0, Notice::TimersChanged);
        }
    }

    fn run(&self) {
        let mut until = None;
        while !self.inbox.is_stopped() {
            let notices = self.inbox.wait(until);
            let mut state = self.lock();
            for (device, notice) in notices {
                state.take(device, notice);
            }
            let now = runtime::now();
            let State { cma, stack, .. } = &mut *state;
            cma.step(now, stack);
            state.pump();
            until = state.cma.next_wake();
            state.until = until;
        }
    }
}

impl State {
    fn take(&mut self, device: DeviceNumber, notice: Notice) {
        let now = runtime::now();
        match notice {
            Notice::Datagram(Datagram { addressing, bytes }) => {
                self.cma.receive(now, device, &addressing, &bytes[..]);
            }
            Notice::Ended(station) => {
                let is_lost = |to: &Addressing| Station::destination(to) == Some(station);
                self.cma.lose_peers(now, device, &is_lost);
            }
            Notice::Removed => self.cma.remove_device(now, device),
            Notice::TimersChanged => {}
        }
        self.pump();
    }

    /// Whether the state machine has something to do before the thread wakes up by itself.
    pub(super) fn has_earlier_deadline(&self) -> bool {
        let next = self.cma.next_wake();
        next.is_some_and(|next| self.until.is_none_or(|until| next < until))
    }

    /// Passes on the state machine's output: events to the files, datagrams to the devices.
    pub(super) fn pump(&mut self) {
        while let Some(event) = self.cma.take_event() {
            self.queue(&event);
        }
        while let Some((device, out)) = self.cma.take_mad() {
            let Some(device) = self.stack.devices().get(device) else { continue };
            let datagram = outgoing(&out);
            // This fails only in a forked child, where the device does not run.
            let _ = device.shared.control(|machine| {
                machine.core.send_datagram(datagram.addressing, &datagram.bytes);
                Ok(())
            });
        }
    }

    /// `ucma_event_handler`.
    fn queue(&mut self, event: &CmaEvent) {
        if event.event == EventType::CONNECT_REQUEST {
            return self.queue_request(event);
        }
        let Some(number) = self.contexts.number(event.id) else { return };
        let Some(context) = self.contexts.get_mut(number) else { return };
        context.is_closing |= event.event == EventType::DEVICE_REMOVAL;
        let (file, uid) = (context.file, context.uid);
        if uid == 0 {
            return;
        }
        let mut response = self.response(event, uid, number);
        let member = event.membership.and_then(|wanted| self.contexts.member_number(wanted));
        if let Some(at) = member {
            response.id = at;
            response.uid = self.contexts.member(at).map_or(0, |member| member.uid);
        }
        let queued = Queued { response, context: number, membership: member, request: None };
        self.push(file, queued);
    }

    /// A connection request creates a new id in the listener's file, or is dropped if too many are
    /// waiting (`ucma_connect_event_handler`).
    fn queue_request(&mut self, event: &CmaEvent) {
        let listener = event.listener.and_then(|listener| self.contexts.number(listener));
        let context = listener.and_then(|number| self.contexts.get_mut(number));
        let Some(context) = context.filter(|context| context.backlog > 0) else {
            return self.cma.forget(event.id);
        };
        context.backlog -= 1;
        let (file, uid) = (context.file, context.uid);
        let new = self.contexts.add(file, event.id, 0);
        let response = self.response(event, uid, new);
        let context = listener.unwrap_or_default();
        self.push(file, Queued { response, context, membership: None, request: Some(event.id) });
    }

    fn response(&self, event: &CmaEvent, uid: u64, id: u32) -> EventResp {
        let mut response = EventResp {
            uid,
            id,
            event: event.event,
            raw_status: event.status as u32,
            ece: event.ece,
            ..EventResp::default()
        };
        let is_ud = self.cma.qp_type(event.id) == Some(QpType::UD);
        match &event.payload {
            Payload::Conn(conn) if !is_ud => response.set_conn(conn),
            Payload::Ud(ud) if is_ud => response.set_ud(ud),
            _ => {}
        }
        response
    }

    fn push(&mut self, file: FileNumber, queued: Queued) {
        if let Some(queue) = self.queues.get_mut(&file) {
            queue.push(queued);
        }
    }

    /// Destroys an id with its memberships and events. Returns how many of its events were fetched
    /// (`ucma_destroy_private_ctx`).
    pub(super) fn destroy(&mut self, number: u32) -> u32 {
        let Some(context) = self.contexts.remove(number) else { return 0 };
        let queue = self.queues.get_mut(&context.file);
        let dropped = queue.map(|queue| queue.extract(number, |_| true));
        for new in dropped.into_iter().flatten().filter_map(|event| event.request) {
            self.contexts.number(new).map(|number| self.destroy(number));
        }
        self.cma.destroy(runtime::now(), context.id);
        context.reported
    }

    /// Closes a file: its ids are destroyed.
    pub(super) fn close(&mut self, file: FileNumber) {
        while let Some(number) = self.contexts.any_of_file(file) {
            self.destroy(number);
        }
        if let Some(queue) = self.queues.remove(&file) {
            self.files.remove(&queue.identity());
        }
        self.pump();
    }

    /// The file that a descriptor refers to.
    pub(super) fn file_of(&self, descriptor: RawFd) -> Result<FileNumber, Errno> {
        let identity = crate::chardev::device::event_queue::identity(descriptor.as_raw_fd())
            .map_err(|_| Errno::ENOENT)?;
        self.files.get(&identity).copied().ok_or(Errno::EINVAL)
    }
}
