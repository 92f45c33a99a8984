//! XRC domains: identified by a file's inode, and shared by contexts.
//! Kernel: `ib_uverbs_open_xrcd`, `ib_uverbs_dealloc_xrcd`.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use nix::errno::Errno;
use uverbs_uapi::objects::xrcd::destroy;
use uverbs_uapi::write::xrcd::{CloseXrcd, OpenXrcd, OpenXrcdResp};

use super::object::{Kind, Object};
use super::qp::DriverState;
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::DeviceShared;
use crate::chardev::device::event_queue::identity;
use crate::core::{Qpn, Xrcdn};
use crate::locking::lock;

/// A handle of a domain.
#[derive(Debug)]
pub(crate) struct Xrcd {
    pub(crate) domain: Arc<Domain>,
}

/// A domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) xrcdn: Xrcdn,
    targets: Mutex<HashMap<Qpn, Target>>,
    /// Number of handles in all contexts.
    handles: Mutex<u32>,
}

/// An XRC target QP of the domain.
#[derive(Debug)]
struct Target {
    openers: u32,
    driver: Arc<DriverState>,
}

impl Domain {
    fn targets(&self) -> MutexGuard<'_, HashMap<Qpn, Target>> {
        lock(&self.targets)
    }

    /// Adds a new target, opened once.
    pub(crate) fn add_target(&self, qpn: Qpn, driver: Arc<DriverState>) {
        self.targets().insert(qpn, Target { openers: 1, driver });
    }

    /// Opens a target once more; `None` if the domain has no such target.
    pub(crate) fn open_target(&self, qpn: Qpn) -> Option<Arc<DriverState>> {
        let mut targets = self.targets();
        let target = targets.get_mut(&qpn)?;
        target.openers += 1;
        Some(target.driver.clone())
    }

    /// Closes a target once; true if it is not open any more, so that the QP must be destroyed.
    pub(crate) fn close_target(&self, qpn: Qpn) -> bool {
        let mut targets = self.targets();
        let Some(target) = targets.get_mut(&qpn) else { return true };
        target.openers -= 1;
        let last = target.openers == 0;
        if last {
            targets.remove(&qpn);
        }
        last
    }

    fn handles(&self) -> MutexGuard<'_, u32> {
        lock(&self.handles)
    }
}

/// The device's domains that were opened with a file.
#[derive(Debug, Default)]
pub(crate) struct XrcDomains {
    by_inode: Mutex<HashMap<(u64, u64), Weak<Domain>>>,
}

/// Flags of open(2): create a missing domain, and refuse an existing one.
const CREATE: u32 = libc::O_CREAT as u32;
const EXCLUSIVE: u32 = libc::O_EXCL as u32;

impl XrcDomains {
    fn open(&self, device: &DeviceShared, fd: i32, flags: u32) -> Result<Arc<Domain>, Errno> {
        let inode = identity(fd)?;
        let mut known = lock(&self.by_inode);
        known.retain(|_, domain| domain.strong_count() > 0);
        match known.get(&inode).and_then(Weak::upgrade) {
            Some(_) if flags & EXCLUSIVE != 0 => Err(Errno::EINVAL),
            Some(domain) => {
                *domain.handles() += 1;
                Ok(domain)
            }
            None if flags & CREATE == 0 => Err(Errno::EAGAIN),
            None => {
                let domain = create(device)?;
                known.insert(inode, Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }

    fn forget(&self, domain: &Arc<Domain>) {
        let mut known = lock(&self.by_inode);
        known.retain(|_, other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(domain)));
    }
}

fn create(device: &DeviceShared) -> Result<Arc<Domain>, Errno> {
    let xrcdn = device.core(|core| core.create_xrcd())?;
    Ok(Arc::new(Domain { xrcdn, targets: Mutex::default(), handles: Mutex::new(1) }))
}

impl Xrcd {
    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        let mut handles = self.domain.handles();
        if *handles == 1 {
            device.core(|core| core.destroy_xrcd(self.domain.xrcdn))?;
            device.xrc_domains.forget(&self.domain);
        }
        *handles -= 1;
        Ok(())
    }
}

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::Xrcd)];

/// `IB_USER_VERBS_CMD_OPEN_XRCD`.
pub(crate) fn open(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: OpenXrcd = call.request()?;
    let device = call.file.device.clone();
    call.context()?;
    let domain = match request.fd as i32 {
        -1 => create(&device)?,
        fd => device.xrc_domains.open(&device, fd, request.oflags)?,
    };
    let xrcd_handle = call.reserve()?;
    call.commit(Object::Xrcd(Xrcd { domain }))?;
    call.response(&OpenXrcdResp { xrcd_handle })
}

/// `IB_USER_VERBS_CMD_CLOSE_XRCD`.
pub(crate) fn close(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: CloseXrcd = call.request()?;
    call.destroy(Kind::Xrcd, request.xrcd_handle)
}
