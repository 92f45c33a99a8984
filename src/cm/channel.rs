//! Event channels, and the device contexts of their ids.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uverbs_uapi::cm::event::GetEvent;

use super::event::Event;
use super::id::{Id, PortSpace};
use crate::device::context::Context;
use crate::device::{DEVICE_VARIABLE, Device, device, devices};
use crate::error::{Error, ErrorKind, Result};
use crate::host::channel::Roots;
use crate::host::fork::{Lock, forked};
use crate::host::manager::Manager;

pub(super) const GET_EVENT: &str = "get_cm_event";

/// An open file of the connection manager, which delivers the events of its ids in order (`struct
/// rdma_event_channel`).
///
/// Clones share one file. Any thread may take events, and each event goes to one thread. Events own
/// their data and need no acknowledgement.
///
/// The file ([`AsFd`]) is readable while there are events.
///
/// ```no_run
/// use uverbs::cm::{Channel, EventKind, PortSpace};
/// let channel = Channel::open()?;
/// let id = channel.create_id(PortSpace::Tcp)?;
/// let second = std::time::Duration::from_secs(1);
/// id.resolve_address(None, "10.0.0.1:7471".parse()?, second)?;
/// assert!(matches!(channel.next_event()?.kind, EventKind::AddressResolved));
/// id.resolve_route(second)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let only = &self.shared.devices.only;
        f.debug_struct("Channel").field("device", only).finish_non_exhaustive()
    }
}

struct Shared {
    manager: Manager,
    devices: Arc<Devices>,
}

/// The devices of a channel's ids.
struct Devices {
    /// The device whose connection manager this is; `None` for the kernel's, which serves all
    /// devices.
    only: Option<Device>,
    open: Lock<Vec<Context>>,
}

impl Channel {
    /// Opens `/dev/infiniband/rdma_cm`, or the software device's connection manager if the
    /// environment variable `UVERBS_DEVICE` names that device.
    ///
    /// # Errors
    /// `NotFound` or `Permission`, with the cure, if this process has no connection manager, or if
    /// the device that `UVERBS_DEVICE` names does not exist.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn open() -> Result<Self> {
        match std::env::var(DEVICE_VARIABLE) {
            Ok(name) if !name.is_empty() => Self::of_device(&device(&name)?, Vec::new()),
            _ => Self::new(Manager::open(&Roots::system())?, None, Vec::new()),
        }
    }

    /// Opens the connection manager of the device of `context`: the kernel's, or that of a software
    /// device. Ids on that device use this context.
    ///
    /// # Errors
    /// As [`Channel::open`]; `ForkedChild` if the context is the parent's.
    pub fn of(context: &Context) -> Result<Self> {
        context.commands().require_opener("create_event_channel")?;
        Self::of_device(context.device(), vec![context.clone()])
    }

    fn of_device(device: &Device, contexts: Vec<Context>) -> Result<Self> {
        // A software device has its own connection manager, which serves no other device.
        let only = device.node().is_none().then(|| device.clone());
        Self::new(device.manager()?, only, contexts)
    }

    fn new(manager: Manager, only: Option<Device>, open: Vec<Context>) -> Result<Self> {
        let devices = Arc::new(Devices { only, open: Lock::new(open) });
        Ok(Self { shared: Arc::new(Shared { manager, devices }) })
    }

    /// Opens another channel of the same connection manager, with the same device contexts. Ids can
    /// [migrate](Id::migrate) to it.
    ///
    /// # Errors
    /// As [`Channel::open`].
    pub fn open_another(&self) -> Result<Self> {
        let devices = self.shared.devices.clone();
        let manager = match &devices.only {
            Some(device) => device.manager()?,
            None => Manager::open(&Roots::system())?,
        };
        Ok(Self { shared: Arc::new(Shared { manager, devices }) })
    }

    /// Sets the context for ids on its device, instead of one that the channel opens.
    pub fn use_context(&self, context: &Context) -> Result<()> {
        let mut open = self.shared.devices.open.lock().ok_or_else(|| forked("open_device"))?;
        open.insert(0, context.clone());
        Ok(())
    }

    /// Creates an id, whose events arrive on this channel.
    ///
    /// # Errors
    /// Errors of the kernel.
    #[doc(alias = "rdma_create_id")]
    #[doc(alias = "rdma_destroy_id")]
    pub fn create_id(&self, port_space: PortSpace) -> Result<Id> {
        Id::create(self, port_space)
    }

    /// Takes the next event, waiting for one.
    ///
    /// # Errors
    /// `Interrupted` by a signal; errors of the kernel.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn next_event(&self) -> Result<Event> {
        loop {
            self.manager().wait(GET_EVENT, None)?;
            match self.try_next_event() {
                // Another thread took it first.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    /// Takes the next event, waiting for one until `deadline`.
    ///
    /// # Errors
    /// `TimedOut`; as [`Channel::next_event`].
    pub fn next_event_until(&self, deadline: Instant) -> Result<Event> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            self.manager().wait(GET_EVENT, Some(left))?;
            match self.try_next_event() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            if left == Duration::ZERO {
                let cause = "no event came in time";
                return Err(Error::new(GET_EVENT, ErrorKind::TimedOut, cause));
            }
        }
    }

    /// Takes the next event if there is one.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; errors of the kernel.
    pub fn try_next_event(&self) -> Result<Event> {
        let event = self.manager().ask(GET_EVENT, GetEvent::default())?;
        Ok(Event::new(self, &event))
    }

    pub(super) fn manager(&self) -> &Manager {
        &self.shared.manager
    }

    /// The context of the device with this node GUID. The first call opens it, as does the first
    /// call after the device was removed and has returned.
    pub(super) fn context(&self, guid: u64) -> Result<Context> {
        let devices = &self.shared.devices;
        let mut open = devices.open.lock().ok_or_else(|| forked("open_device"))?;
        open.retain(|context| !context.commands().device_is_gone());
        for context in &*open {
            if context.attributes()?.node_guid().0 == guid {
                return Ok(context.clone());
            }
        }
        let context = devices.find(guid)?.open()?;
        open.push(context.clone());
        Ok(context)
    }
}

impl Devices {
    fn find(&self, guid: u64) -> Result<Device> {
        if let Some(device) = &self.only {
            return Ok(device.clone());
        }
        for device in devices()? {
            if device.node_guid()? == Some(guid) {
                return Ok(device);
            }
        }
        let cause = format!("no RDMA device here has the node GUID {guid:#018x}");
        Err(Error::new("open_device", ErrorKind::NotFound, cause)
            .cure_with("give the container the device's own node too (--device)"))
    }
}

/// Readable while events wait.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.manager().as_fd()
    }
}
