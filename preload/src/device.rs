//! The software devices of this process: made when the program first looks for RDMA devices, as the environment says.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use uverbs_soft::chardev::{OpenFile, SoftDevice, Sysfs};

use crate::settings::Settings;

/// Major and first minor number of the nodes, as sysfs shows them.
const FIRST_NODE: (u32, u32) = (231, 192);

/// All that the environment asked for.
pub(crate) struct Devices {
    devices: Vec<One>,
    settings: Settings,
}

/// A device, and whether the program has opened it yet.
struct One {
    device: SoftDevice,
    opened: AtomicBool,
}

static DEVICES: Mutex<Option<Arc<Devices>>> = Mutex::new(None);

thread_local! {
    /// Set while this thread makes the devices, so that the files it opens meanwhile do not ask for them again.
    static IS_MAKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is making the devices just now.
pub(crate) fn is_making() -> bool {
    IS_MAKING.get()
}

/// Sees to it that the devices and their sysfs entries exist.
pub(crate) fn ensure() {
    if !is_making() {
        let _ = devices();
    }
}

fn devices() -> Result<Arc<Devices>, Errno> {
    let mut slot = lock();
    if let Some(devices) = &*slot {
        return Ok(devices.clone());
    }
    IS_MAKING.set(true);
    let made = make();
    IS_MAKING.set(false);
    let devices = Arc::new(made.map_err(|reason| complain(&reason))?);
    *slot = Some(devices.clone());
    Ok(devices)
}

fn complain(reason: &str) -> Errno {
    eprintln!("uverbs run: no software device: {reason}");
    Errno::ENODEV
}

fn make() -> Result<Devices, String> {
    let settings = Settings::from_environment()?;
    let make = |index| Ok(One { device: settings.build(index)?, opened: AtomicBool::new(false) });
    let devices = (0..settings.devices).map(make).collect::<Result<Vec<_>, String>>()?;
    if let Some(root) = sysfs_root() {
        let mut tree = Sysfs::default();
        devices.iter().for_each(|one| tree.merge(&one.device.sysfs()));
        tree.write_to(&root)
            .and_then(|()| write_nodes(&root, devices.len()))
            .map_err(|error| format!("cannot write {}: {error}", root.display()))?;
    }
    Ok(Devices { devices, settings })
}

/// For those who list `/dev/infiniband` or ask for access; the nodes themselves are opened elsewhere.
fn write_nodes(root: &Path, count: usize) -> std::io::Result<()> {
    let directory = root.join("dev/infiniband");
    fs::create_dir_all(&directory)?;
    (0..count).try_for_each(|index| fs::write(directory.join(format!("uverbs{index}")), ""))
}

/// Has every device send what it still holds back: its thread ends with the process, and a NIC would have acknowledged what
/// the program has seen arrive.
pub(crate) fn settle() {
    let made = DEVICES.try_lock().ok().and_then(|made| made.clone());
    if let Some(devices) = made {
        for one in &devices.devices {
            // In a forked child there is nothing to send.
            let _ = one.device.inspect(|_| ());
        }
    }
}

/// This process's part of the directory that `uverbs run` made.
pub(crate) fn sysfs_root() -> Option<PathBuf> {
    let root = std::env::var_os(crate::settings::SYSFS)?;
    Some(PathBuf::from(root).join(std::process::id().to_string()))
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

/// Whether there is a device of that number.
pub(crate) fn exists(index: usize) -> bool {
    devices().is_ok_and(|devices| index < devices.devices.len())
}

/// The device number of node `index`.
pub(crate) fn number(index: usize) -> libc::dev_t {
    libc::makedev(FIRST_NODE.0, FIRST_NODE.1 + index as u32)
}

/// The devices themselves, for the time of a fork.
pub(crate) type Made = MutexGuard<'static, Option<Arc<Devices>>>;

/// Keeps every other thread from looking for devices.
pub(crate) fn lock() -> Made {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked child: forgets the devices without stopping them, since their threads are the parent's.
pub(crate) fn forget(mut made: Made) {
    std::mem::forget(made.take());
}
