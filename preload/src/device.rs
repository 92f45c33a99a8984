//! The software devices of this process. They are created, with the settings in the environment,
//! when the program first looks for RDMA devices.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use uverbs_soft::chardev::{OpenFile, RdmaCm, SoftDevice, Sysfs};
use uverbs_soft::settings::{RECORDED, Settings};

use crate::paths::NodeKind;
use crate::settings;

/// Major and first minor number of the nodes in sysfs.
const FIRST_NODE: (u32, u32) = (231, 192);

/// Major and minor number of the connection manager's node: a miscellaneous device.
const RDMA_CM: (u32, u32) = (10, 58);

/// The devices that the environment specifies.
pub(crate) struct Devices {
    devices: Vec<One>,
    /// The devices' files below `/sys` and `/dev`, by paths relative to `/`.
    pub(crate) tree: Sysfs,
    settings: Settings,
    rdma_cm: Mutex<Option<RdmaCm>>,
}

/// A device, and whether the program has opened it.
struct One {
    device: SoftDevice,
    opened: AtomicBool,
}

static DEVICES: Mutex<Option<Arc<Devices>>> = Mutex::new(None);

/// The devices' GUIDs, which stay the same after a fork: libibverbs caches the properties of a
/// device, and librdmacm finds a device by its GUID.
static GUIDS: Mutex<Vec<[u8; 8]>> = Mutex::new(Vec::new());

thread_local! {
    /// Set while the library itself opens files in this thread.
    static IS_INTERNAL: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside the library, so that the hooks must not replace any path.
pub(crate) fn is_internal() -> bool {
    IS_INTERNAL.get()
}

/// Runs `work` without replacing the paths of files that it opens.
pub(crate) fn internally<R>(work: impl FnOnce() -> R) -> R {
    let before = IS_INTERNAL.replace(true);
    let result = work();
    IS_INTERNAL.set(before);
    result
}

/// The devices, created at the first call.
pub(crate) fn devices() -> Result<Arc<Devices>, Errno> {
    let mut slot = lock();
    if let Some(devices) = &*slot {
        return Ok(devices.clone());
    }
    let devices = Arc::new(internally(make).map_err(|reason| complain(&reason))?);
    *slot = Some(devices.clone());
    Ok(devices)
}

/// Prints the reason once, since a program that finds no device may look again.
fn complain(reason: &str) -> Errno {
    static COMPLAINED: AtomicBool = AtomicBool::new(false);
    if !COMPLAINED.swap(true, Ordering::Relaxed) {
        eprintln!("uverbs run: no software device: {reason}");
    }
    Errno::ENODEV
}

fn make() -> Result<Devices, String> {
    let settings =
        Settings::from_environment(settings::DEVICES)?.of_run(settings::of_run(RECORDED));
    let mut guids = GUIDS.lock().unwrap_or_else(PoisonError::into_inner);
    let make = |index| {
        let guid = guids.get(index as usize).copied();
        let device = settings.build(&format!("mlx5_{index}"), index, guid);
        let device = device.map_err(|error| error.to_string())?;
        Ok(One { device, opened: AtomicBool::new(false) })
    };
    let devices = (0..settings.devices).map(make).collect::<Result<Vec<_>, String>>()?;
    *guids = devices.iter().map(|one| one.device.node_guid()).collect();
    let tree = tree(&devices);
    Ok(Devices { devices, tree, settings, rdma_cm: Mutex::new(None) })
}

fn tree(devices: &[One]) -> Sysfs {
    let mut tree = Sysfs::default();
    add_connection_manager(&mut tree);
    for (index, one) in devices.iter().enumerate() {
        tree.mount("sys", &one.device.sysfs());
        // Represents the node in the listed directory. Opening it opens the device.
        tree.add(&format!("dev/infiniband/uverbs{index}"), "");
    }
    tree
}

/// The sysfs entries of a miscellaneous device in Linux; the version is that of the ABI.
fn add_connection_manager(tree: &mut Sysfs) {
    tree.add("dev/infiniband/rdma_cm", "");
    let directory = "sys/class/misc/rdma_cm";
    tree.add(&format!("{directory}/dev"), &format!("{}:{}", RDMA_CM.0, RDMA_CM.1));
    tree.add(&format!("{directory}/abi_version"), &uverbs_uapi::cm::ABI_VERSION.to_string());
    tree.add(&format!("{directory}/uevent"), "DEVNAME=infiniband/rdma_cm");
}

/// Makes every device send its pending packets, because its thread ends with the process: a NIC
/// would acknowledge the messages that the program has received.
pub(crate) fn flush() {
    let made = DEVICES.try_lock().ok().and_then(|made| made.clone());
    if let Some(devices) = made {
        for one in &devices.devices {
            // In a forked child there is nothing to send.
            let _ = one.device.inspect(|_| ());
        }
    }
}

/// Opens device number `index`.
pub(crate) fn open(index: usize) -> Result<OpenFile, Errno> {
    let devices = devices()?;
    let one = devices.devices.get(index).ok_or(Errno::ENOENT)?;
    let file = one.device.open();
    if !one.opened.swap(true, Ordering::Relaxed) {
        let faults = devices.settings.faults.as_ref();
        faults.map_or(Ok(()), |faults| faults.begin(&one.device)).map_err(|_| Errno::EAGAIN)?;
    }
    Ok(file)
}

impl Devices {
    /// The contents of a file that shows a counter, with its current value.
    pub(crate) fn counter(&self, path: &str) -> Option<String> {
        let (port, name) = path.split_once("/hw_counters/")?;
        let (_, device) = port.strip_suffix("/ports/1")?.rsplit_once('/')?;
        let one = self.all().find(|one| one.name() == device)?;
        let value = internally(|| one.hw_counter(name))?;
        Some(format!("{value}\n"))
    }

    /// The devices in the order of their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = &SoftDevice> {
        self.devices.iter().map(|one| &one.device)
    }
}

/// The device number of a node.
pub(crate) fn number(kind: NodeKind) -> libc::dev_t {
    match kind {
        NodeKind::Verbs(index) => libc::makedev(FIRST_NODE.0, FIRST_NODE.1 + index as u32),
        NodeKind::RdmaCm => libc::makedev(RDMA_CM.0, RDMA_CM.1),
    }
}

/// The devices' connection manager, created at the first call.
pub(crate) fn connection_manager() -> Result<RdmaCm, Errno> {
    let devices = devices()?;
    let mut slot = devices.rdma_cm.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(host) = &*slot {
        return Ok(host.clone());
    }
    let all: Vec<SoftDevice> = devices.all().cloned().collect();
    let made = internally(|| RdmaCm::new(&all)).map_err(|error| complain(&error.to_string()))?;
    *slot = Some(made.clone());
    Ok(made)
}

/// The lock on the devices, held while the process forks.
pub(crate) type Made = MutexGuard<'static, Option<Arc<Devices>>>;

/// Locks out other threads that would create devices.
pub(crate) fn lock() -> Made {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked child: forgets the devices without stopping them, since their threads are the
/// parent's.
pub(crate) fn forget(mut made: Made) {
    std::mem::forget(made.take());
}
