//! The devices of this machine, and the choice of one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::host::channel::{self, Channel, Entry, KernelChannel, Roots};
use crate::host::manager::Manager;

/// Environment variable that names the device that [`open_default`] opens.
pub const DEVICE_VARIABLE: &str = "UVERBS_DEVICE";

/// Added to the list of device names in errors.
const SOFT: &str = if cfg!(feature = "soft") { "; the software device is called soft" } else { "" };

/// Hardware or software.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A device of the kernel: hardware, or a virtual device that the kernel drives as hardware.
    Kernel,
    /// The software ConnectX inside this process.
    Software,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel device",
            Self::Software => "software device",
        })
    }
}

/// An RDMA device, whether or not it can be opened.
///
/// ```no_run
/// for device in uverbs::devices()? {
///     match device.check() {
///         Ok(()) => println!("{} can be opened", device.name()),
///         Err(reason) => println!("{}: {reason}", device.name()),
///     }
/// }
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(Source);

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name()).finish_non_exhaustive()
    }
}

#[derive(Clone)]
enum Source {
    Kernel(Entry),
    #[cfg(feature = "soft")]
    Soft(channel::SoftSource),
}

/// All RDMA devices of the kernel, whatever their driver, in the order of their numbers.
///
/// The software device is never among them: it is opened by name.
///
/// # Errors
/// Lack of file descriptors or memory.
#[doc(alias = "ibv_get_device_list")]
#[doc(alias = "ibv_free_device_list")]
pub fn devices() -> Result<Vec<Device>> {
    devices_below(&Roots::system())
}

/// As [`devices`], with other root directories for sysfs and the device nodes.
///
/// # Errors
/// As [`devices`].
pub fn devices_below(roots: &Roots) -> Result<Vec<Device>> {
    let entries = channel::scan(roots)?.into_iter();
    Ok(entries.map(|entry| Device(Source::Kernel(entry))).collect())
}

/// The device called `name`: a kernel device (`mlx5_0`) or, with the feature
/// `soft`, the software one (`soft` or `soft0`).
///
/// # Errors
/// `NotFound` with the names that exist; as [`devices`].
///
/// ```no_run
/// let context = uverbs::device("mlx5_0")?.open()?;
/// # Ok::<(), uverbs::Error>(())
/// ```
pub fn device(name: &str) -> Result<Device> {
    if name == "soft" || name == "soft0" {
        return software();
    }
    let all = devices()?;
    if let Some(found) = all.iter().find(|device| device.name() == name) {
        return Ok(found.clone());
    }
    let names: Vec<_> = all.iter().map(Device::name).collect();
    let cause = match names.as_slice() {
        [] => format!("there is no device {name}: the kernel has no RDMA device{SOFT}"),
        names => format!("there is no device {name}; there are: {}{SOFT}", names.join(", ")),
    };
    Err(Error::new("open_device", ErrorKind::NotFound, cause))
}

/// Opens the device that the environment variable `UVERBS_DEVICE` names or, if it is not set, the
/// first kernel device that can be opened.
///
/// It never falls back to the software device, which is opened only by name or by
/// `UVERBS_DEVICE=soft`.
///
/// # Errors
/// `NotFound` if no device can be opened, with the reason for each existing one; as [`devices`].
pub fn open_default() -> Result<Context> {
    if let Ok(name) = std::env::var(DEVICE_VARIABLE) {
        if !name.is_empty() {
            return device(&name)?.open();
        }
    }
    let mut refused = Vec::new();
    for device in devices()? {
        match device.open() {
            Ok(context) => return Ok(context),
            Err(error) => refused.push(error),
        }
    }
    Err(none_opened(refused))
}

/// Joins the errors of all devices into one, with the first cure.
fn none_opened(refused: Vec<Error>) -> Error {
    let cures = refused.iter().map(Error::cure).find(|cure| !cure.is_empty());
    let cure = cures.unwrap_or("load the driver (modprobe mlx5_ib)");
    let cure = format!("{cure}, or set UVERBS_DEVICE to a device (soft is the software one)");
    let cause = match refused.len() {
        0 => "the kernel has no RDMA device".to_owned(),
        _ => {
            let texts = refused.into_iter().map(|error| error.cure_with("").to_string());
            texts.collect::<Vec<_>>().join("; ")
        }
    };
    Error::new("open_device", ErrorKind::NotFound, cause).cure_with(cure)
}

#[cfg(feature = "soft")]
fn software() -> Result<Device> {
    Ok(Device(Source::Soft(channel::SoftSource::shared()?)))
}

#[cfg(not(feature = "soft"))]
fn software() -> Result<Device> {
    let cause = "this program was built without the software device";
    Err(Error::unsupported("open_device", cause).cure_with("build with the cargo feature soft"))
}

impl Device {
    /// A device on the given software device instead of the process's shared one. Pass a clone to
    /// keep control of it, for example to remove it or to inject faults.
    #[cfg(feature = "soft")]
    pub fn from_soft(soft: uverbs_soft::chardev::SoftDevice) -> Self {
        Self::from_shared_soft(Arc::new(soft))
    }

    /// As [`Device::from_soft`], for a software device in an `Arc`.
    #[cfg(feature = "soft")]
    pub fn from_shared_soft(soft: Arc<uverbs_soft::chardev::SoftDevice>) -> Self {
        Self(Source::Soft(channel::SoftSource::new(soft)))
    }

    /// The kernel device whose node `file` is.
    pub(crate) fn of_file(verb: &'static str, file: &std::fs::File) -> Result<(Self, Entry)> {
        let metadata = file.metadata().map_err(|error| Error::io(verb, &error))?;
        let number = channel::number_of(&metadata);
        let found = channel::scan(&Roots::system())?
            .into_iter()
            .find(|entry| number.is_some() && entry.number == number);
        let entry = found.ok_or_else(|| {
            let cause = "the file is not the node of an RDMA device of this machine";
            Error::new(verb, ErrorKind::NotFound, cause)
        })?;
        Ok((Self(Source::Kernel(entry.clone())), entry))
    }

    /// The name: `mlx5_0`, `soft0`.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        match &self.0 {
            Source::Kernel(entry) => &entry.name,
            #[cfg(feature = "soft")]
            Source::Soft(soft) => soft.name(),
        }
    }

    /// Whether it is hardware or the software ConnectX.
    pub fn kind(&self) -> DeviceKind {
        match &self.0 {
            Source::Kernel(_) => DeviceKind::Kernel,
            #[cfg(feature = "soft")]
            Source::Soft(_) => DeviceKind::Software,
        }
    }

    /// The device node of a kernel device.
    pub fn node(&self) -> Option<&Path> {
        match &self.0 {
            Source::Kernel(entry) => Some(&entry.node),
            #[cfg(feature = "soft")]
            Source::Soft(_) => None,
        }
    }

    /// The GUID of the device, from sysfs.
    pub(crate) fn node_guid(&self) -> Result<Option<u64>> {
        match &self.0 {
            Source::Kernel(entry) => channel::node_guid(entry),
            #[cfg(feature = "soft")]
            Source::Soft(soft) => Ok(Some(soft.node_guid())),
        }
    }

    /// Opens the connection manager of this device.
    pub(crate) fn manager(&self) -> Result<Manager> {
        match &self.0 {
            Source::Kernel(_) => Manager::open(&Roots::system()),
            #[cfg(feature = "soft")]
            Source::Soft(soft) => Manager::open_soft(soft),
        }
    }

    /// Version of the driver's ABI, from sysfs.
    pub fn abi_version(&self) -> Option<u32> {
        match &self.0 {
            Source::Kernel(entry) => entry.abi_version,
            #[cfg(feature = "soft")]
            Source::Soft(_) => None,
        }
    }

    /// Checks whether [`Device::open`] can succeed, without opening the device.
    ///
    /// # Errors
    /// `NotMlx5`, `NotFound` (no node), `Permission`, each with its cure.
    pub fn check(&self) -> Result<()> {
        match &self.0 {
            Source::Kernel(entry) => channel::check(entry),
            #[cfg(feature = "soft")]
            Source::Soft(_) => Ok(()),
        }
    }

    /// Opens the device: one open file, one user context.
    ///
    /// # Errors
    /// As [`Device::check`]; `KernelTooOld`; errors of the kernel.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        Context::open(self.clone(), self.channel()?)
    }

    fn channel(&self) -> Result<Arc<dyn Channel>> {
        Ok(match &self.0 {
            Source::Kernel(entry) => Arc::new(KernelChannel::open(entry)?),
            #[cfg(feature = "soft")]
            Source::Soft(soft) => Arc::new(soft.open()?),
        })
    }
}

#[cfg(test)]
mod tests;
