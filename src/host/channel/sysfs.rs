//! The uverbs devices in sysfs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result, lacks_resources};

/// Root directories of sysfs and of the device nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// Normally `/sys`.
    pub sysfs: PathBuf,
    /// Normally `/dev`.
    pub dev: PathBuf,
}

impl Roots {
    /// `/sys` and `/dev`.
    pub fn system() -> Self {
        Self::below("/")
    }

    /// `sys` and `dev` below another root, for tests and for inspecting a container.
    pub fn below(root: impl AsRef<Path>) -> Self {
        let root = root.as_ref();
        Self { sysfs: root.join("sys"), dev: root.join("dev") }
    }
}

impl Default for Roots {
    fn default() -> Self {
        Self::system()
    }
}

/// The kernel driver of a device, according to sysfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Driver {
    Mlx5,
    Other(String),
    Unknown,
}

/// A uverbs device in sysfs, whether or not it can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) node: PathBuf,
    pub(crate) number: Option<(u64, u64)>,
    pub(crate) abi_version: Option<u32>,
    pub(crate) driver: Driver,
    /// `class/infiniband/<name>`.
    pub(crate) attributes: PathBuf,
}

impl Entry {
    /// Fails unless mlx5 drives the device.
    pub(crate) fn require_mlx5(&self, verb: &'static str) -> Result<()> {
        let cause = match &self.driver {
            Driver::Mlx5 => return Ok(()),
            Driver::Other(name) => {
                format!("{} is driven by {name}, and this library speaks mlx5 only", self.name)
            }
            Driver::Unknown => {
                format!("nothing in sysfs says that the driver of {} is mlx5", self.name)
            }
        };
        Err(Error::new(verb, ErrorKind::NotMlx5, cause))
    }
}

/// All uverbs devices in the order of their numbers; empty if the kernel has no RDMA.
///
/// # Errors
/// Lack of file descriptors or memory.
pub(crate) fn scan(roots: &Roots) -> Result<Vec<Entry>> {
    let class = roots.sysfs.join("class/infiniband_verbs");
    let directory = present(&class, fs::read_dir(&class))?;
    let mut found: Vec<(u32, Entry)> = Vec::new();
    for item in directory.into_iter().flatten().flatten() {
        let Ok(uverbs) = item.file_name().into_string() else { continue };
        let number = uverbs.strip_prefix("uverbs").and_then(|number| number.parse().ok());
        if let (Some(number), Some(entry)) = (number, entry(roots, &class, &uverbs)?) {
            found.push((number, entry));
        }
    }
    found.sort_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, entry)| entry).collect())
}

fn entry(roots: &Roots, class: &Path, uverbs: &str) -> Result<Option<Entry>> {
    let directory = class.join(uverbs);
    let Some(name) = read(&directory.join("ibdev"))? else { return Ok(None) };
    let attributes = roots.sysfs.join("class/infiniband").join(&name);
    Ok(Some(Entry {
        node: roots.dev.join("infiniband").join(uverbs),
        number: read(&directory.join("dev"))?.and_then(|text| device_number(&text)),
        abi_version: read(&directory.join("abi_version"))?.and_then(|text| text.parse().ok()),
        driver: driver(&attributes.join("device"))?,
        attributes,
        name,
    }))
}

/// The GUID of the device: four groups of four hexadecimal digits.
pub(crate) fn node_guid(entry: &Entry) -> Result<Option<u64>> {
    let text = read(&entry.attributes.join("node_guid"))?;
    Ok(text.and_then(|text| u64::from_str_radix(&text.replace(':', ""), 16).ok()))
}

fn read(path: &Path) -> Result<Option<String>> {
    let text = present(path, fs::read_to_string(path))?;
    Ok(text.map(|text| text.trim().to_owned()))
}

/// What was read, or `None` where it does not exist.
fn present<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>> {
    match read {
        Err(error) if lacks_resources(&error) => {
            Err(Error::io("get_device_list", &error).asked(path.display().to_string()))
        }
        read => Ok(read.ok()),
    }
}

fn device_number(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The bound driver if sysfs shows it, otherwise the driver of the PCI ids. Sub-functions are on
/// the auxiliary bus, with the driver `mlx5_core.sf`.
fn driver(device: &Path) -> Result<Driver> {
    let bound = fs::read_link(device.join("driver")).ok();
    if let Some(name) = bound.as_deref().and_then(Path::file_name).and_then(|name| name.to_str()) {
        return Ok(if name.starts_with("mlx5_") {
            Driver::Mlx5
        } else {
            Driver::Other(name.to_owned())
        });
    }
    Ok(match read(&device.join("modalias"))? {
        Some(alias) if is_mlx5_alias(&alias) => Driver::Mlx5,
        Some(alias) => Driver::Other(format!("the driver of {alias}")),
        None => Driver::Unknown,
    })
}

/// PCI ids that mlx5_core binds (its `mlx5_core_pci_table`, Linux 7.x): 0x1011–0x1027 and 0x2101 of
/// Connect-IB and ConnectX, 0xa2d2–0xa2df of BlueField. mlx4's are all below 0x1011.
fn is_mlx5_alias(alias: &str) -> bool {
    let Some(ids) = alias.strip_prefix("pci:v000015B3d") else { return false };
    let device = ids.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    matches!(device, Some(0x1011..=0x1027 | 0x2101 | 0xa2d2..=0xa2df))
}

#[cfg(test)]
mod tests;
