//! Which uverbs devices sysfs announces, below a root that may be moved.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// Where sysfs and the device nodes are.
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

    /// `sys` and `dev` below another root, for tests and for looking into a container.
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

/// The kernel driver behind a device, as far as sysfs tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Driver {
    Mlx5,
    Other(String),
    Unknown,
}

/// One uverbs device that sysfs announces, whether or not it can be opened.
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

/// All uverbs devices in the order of their numbers; empty where the kernel has no RDMA at all.
pub(crate) fn scan(roots: &Roots) -> Vec<Entry> {
    let class = roots.sysfs.join("class/infiniband_verbs");
    let Ok(directory) = fs::read_dir(&class) else { return Vec::new() };
    let mut found: Vec<(u32, Entry)> = directory
        .flatten()
        .filter_map(|item| {
            let uverbs = item.file_name().into_string().ok()?;
            let number = uverbs.strip_prefix("uverbs")?.parse().ok()?;
            Some((number, entry(roots, &class, &uverbs)?))
        })
        .collect();
    found.sort_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, entry)| entry).collect()
}

fn entry(roots: &Roots, class: &Path, uverbs: &str) -> Option<Entry> {
    let directory = class.join(uverbs);
    let name = read(&directory.join("ibdev"))?;
    let attributes = roots.sysfs.join("class/infiniband").join(&name);
    Some(Entry {
        node: roots.dev.join("infiniband").join(uverbs),
        number: read(&directory.join("dev")).and_then(|text| device_number(&text)),
        abi_version: read(&directory.join("abi_version")).and_then(|text| text.parse().ok()),
        driver: driver(&attributes.join("device")),
        attributes,
        name,
    })
}

/// The GUID of the device: four groups of four hexadecimal digits.
pub(crate) fn node_guid(entry: &Entry) -> Option<u64> {
    let text = read(&entry.attributes.join("node_guid"))?;
    u64::from_str_radix(&text.replace(':', ""), 16).ok()
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn device_number(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The bound driver where sysfs shows it, else what the PCI ids say. Sub-functions hang on the
/// auxiliary bus, where the driver is `mlx5_core.sf`.
fn driver(device: &Path) -> Driver {
    let bound = fs::read_link(device.join("driver")).ok();
    if let Some(name) = bound.as_deref().and_then(Path::file_name).and_then(|name| name.to_str()) {
        return if name.starts_with("mlx5_") {
            Driver::Mlx5
        } else {
            Driver::Other(name.to_owned())
        };
    }
    match read(&device.join("modalias")) {
        Some(alias) if is_mlx5_alias(&alias) => Driver::Mlx5,
        Some(alias) => Driver::Other(format!("the driver of {alias}")),
        None => Driver::Unknown,
    }
}

/// PCI ids that mlx5_core binds (its `mlx5_core_pci_table`, Linux 7.x): the ConnectX family from
/// Connect-IB on has 0x1011–0x1027, BlueField 0xa2d2–0xa2df. mlx4's are all below 0x1011.
fn is_mlx5_alias(alias: &str) -> bool {
    let Some(ids) = alias.strip_prefix("pci:v000015B3d") else { return false };
    let device = ids.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    matches!(device, Some(0x1011..=0x1027 | 0x2101 | 0xa2d2..=0xa2df))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("uverbs-{name}-{}", std::process::id()));
            fs::create_dir_all(&root).unwrap();
            Self(root)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn device(&self, uverbs: &str, name: &str) {
            self.write(&format!("sys/class/infiniband_verbs/{uverbs}/ibdev"), &format!("{name}\n"));
            self.write(&format!("sys/class/infiniband_verbs/{uverbs}/dev"), "231:192\n");
            self.write(&format!("sys/class/infiniband_verbs/{uverbs}/abi_version"), "1\n");
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn devices_come_in_numeric_order_with_their_drivers() {
        let tree = Tree::new("scan");
        tree.device("uverbs10", "mlx5_1");
        tree.device("uverbs2", "mlx5_0");
        tree.device("uverbs3", "irdma0");
        tree.write("sys/class/infiniband_verbs/abi_version", "6\n");
        let alias = "pci:v000015B3d00001017sv000015B3sd00000020bc02sc00i00\n";
        tree.write("sys/class/infiniband/mlx5_0/device/modalias", alias);
        tree.write("sys/class/infiniband/irdma0/device/modalias", "pci:v00008086d00001592\n");
        let device = tree.0.join("sys/class/infiniband/mlx5_1/device");
        fs::create_dir_all(&device).unwrap();
        symlink("../../bus/pci/drivers/mlx5_core", device.join("driver")).unwrap();

        let found = scan(&Roots::below(&tree.0));
        let names: Vec<_> = found.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["mlx5_0", "irdma0", "mlx5_1"]);
        assert_eq!(found[0].driver, Driver::Mlx5);
        assert!(matches!(found[1].driver, Driver::Other(_)));
        assert_eq!(found[2].driver, Driver::Mlx5);
        assert_eq!(found[0].number, Some((231, 192)));
        assert_eq!(found[0].node, tree.0.join("dev/infiniband/uverbs2"));
    }

    #[test]
    fn no_rdma_in_the_kernel_means_no_devices() {
        assert!(scan(&Roots::below("/nonexistent")).is_empty());
    }

    #[test]
    fn mlx4_is_not_mlx5() {
        assert!(!is_mlx5_alias("pci:v000015B3d00001003sv"));
        assert!(is_mlx5_alias("pci:v000015B3d0000A2D6sv"));
        assert!(!is_mlx5_alias("pci:v000015B3d"));
    }
}
