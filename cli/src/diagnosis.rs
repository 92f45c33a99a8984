//! What is missing on this machine for RDMA with an adapter, and the cures.

use std::fs;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use serde::Serialize;
use uverbs::Device;
use uverbs::error::MEMLOCK_CURE;

/// PCI vendor of NVIDIA's (Mellanox's) network adapters.
const VENDOR: &str = "0x15b3";
/// Bit of CAP_IPC_LOCK (linux/capability.h). It removes a process's limit on pinned memory.
pub(crate) const CAP_IPC_LOCK: u32 = 14;
/// The smallest limit on locked memory, in bytes, that this command considers sufficient.
const COMFORTABLE_MEMLOCK: u64 = 64 << 20;

/// A problem, with its cure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Missing {
    /// What is missing.
    pub(crate) what: String,
    /// What to do.
    pub(crate) cure: String,
}

impl Missing {
    pub(crate) fn new(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { what: what.into(), cure: cure.into() }
    }

    /// Why a device cannot be opened.
    pub(crate) fn of(error: &uverbs::Error) -> Self {
        let cause =
            if error.cause().is_empty() { error.to_string() } else { error.cause().to_owned() };
        let cure =
            if error.cure().is_empty() { "use the software device (soft)" } else { error.cure() };
        Self::new(cause, cure)
    }
}

/// All problems of the machine whose file tree is at `root`.
pub(crate) fn missing(root: &Path, devices: &[Device]) -> Vec<Missing> {
    let mut found: Vec<Missing> = no_device(root, devices).into_iter().collect();
    found.extend(devices.iter().filter_map(unusable));
    found.extend(low_memlock_limit());
    found
}

fn unusable(device: &Device) -> Option<Missing> {
    let error = device.check().err()?;
    let Missing { what, cure } = Missing::of(&error);
    Some(Missing::new(format!("{}: {what}", device.name()), cure))
}

fn no_device(root: &Path, devices: &[Device]) -> Option<Missing> {
    if !devices.is_empty() {
        return None;
    }
    let adapters = adapters(root);
    let software = "or use the software device (soft), which needs neither adapter nor driver";
    if !adapters.is_empty() {
        return Some(Missing::new(
            format!("no RDMA device, though there are adapters at {}", adapters.join(", ")),
            format!("load the drivers (modprobe mlx5_ib ib_uverbs), {software}"),
        ));
    }
    let modules = match root.join("sys/class/infiniband_verbs").is_dir() {
        true => "",
        false => ", and the kernel's RDMA modules are not loaded",
    };
    Some(Missing::new(
        format!("no RDMA device: there is no NVIDIA (Mellanox) adapter on the PCI bus{modules}"),
        format!("install an adapter or pass one through to this machine, {software}"),
    ))
}

/// PCI addresses of NVIDIA's network adapters (class 02).
fn adapters(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join("sys/bus/pci/devices")) else { return Vec::new() };
    let mut found: Vec<String> = entries
        .flatten()
        .filter(|entry| {
            starts_with(&entry.path().join("vendor"), VENDOR)
                && starts_with(&entry.path().join("class"), "0x02")
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}

fn starts_with(path: &Path, start: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.starts_with(start))
}

fn low_memlock_limit() -> Option<Missing> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if soft >= COMFORTABLE_MEMLOCK || has_capability(&status, CAP_IPC_LOCK) == Some(true) {
        return None;
    }
    Some(Missing::new(
        format!(
            "a process may pin {} KiB of memory only (RLIMIT_MEMLOCK); registering more on a kernel device fails",
            soft / 1024
        ),
        MEMLOCK_CURE,
    ))
}

/// Whether a process has a capability, by its `/proc/PID/status`.
pub(crate) fn has_capability(status: &str, bit: u32) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    Some(u64::from_str_radix(mask.trim(), 16).ok()? >> bit & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_missing_adapter_is_reported() {
        let scratch = Scratch::new("no-adapter");
        let missing = no_device(scratch.path(), &[]).expect("missing");
        assert!(missing.what.contains("no NVIDIA"), "{missing:?}");
        assert!(missing.cure.contains("soft"), "{missing:?}");
    }

    #[test]
    fn an_adapter_without_a_driver_is_reported() {
        let scratch = Scratch::new("no-driver");
        let device = scratch.path().join("sys/bus/pci/devices/0000:03:00.0");
        fs::create_dir_all(&device).expect("directory");
        fs::write(device.join("vendor"), "0x15b3\n").expect("vendor");
        fs::write(device.join("class"), "0x020000\n").expect("class");
        let missing = no_device(scratch.path(), &[]).expect("missing");
        assert!(missing.what.contains("0000:03:00.0"), "{missing:?}");
        assert!(missing.cure.contains("modprobe"), "{missing:?}");
    }
}
