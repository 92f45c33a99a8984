//! A Debian kernel: its image and the modules that the tests need, in loading order.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::initramfs::Initramfs;
use crate::packages::Packages;

/// Modules that the guest loads. The modules that they depend on are loaded before them.
const WANTED: &[&str] =
    &["virtio_pci", "virtio_net", "mlx5_ib", "ib_uverbs", "ib_umad", "rdma_ucm"];

/// Modules of a guest with the kernel's own software RoCE.
const WANTED_FOR_RXE: &[&str] = &[
    "virtio_pci",
    "veth",
    "sch_netem",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
];

/// The kernel packages of a Debian release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// For clouds: small, with mlx5 drivers.
    Cloud,
    /// For all machines, with rdma_rxe.
    Generic,
}

impl Flavour {
    fn metapackage(self) -> &'static str {
        match self {
            Self::Cloud => "linux-image-cloud-amd64",
            Self::Generic => "linux-image-amd64",
        }
    }

    fn directory(self, release: &str) -> String {
        match self {
            Self::Cloud => format!("kernel-{release}"),
            Self::Generic => format!("kernel-generic-{release}"),
        }
    }

    fn wanted(self) -> &'static [&'static str] {
        match self {
            Self::Cloud => WANTED,
            Self::Generic => WANTED_FOR_RXE,
        }
    }
}

/// An unpacked kernel package.
#[derive(Debug)]
pub(crate) struct Kernel {
    flavour: Flavour,
    pub(crate) image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// A kernel of a Debian release.
    pub(crate) fn prepare(
        packages: &Packages,
        flavour: Flavour,
        release: &str,
        root: &Path,
    ) -> Result<Self> {
        let into = root.join(flavour.directory(release));
        let names: Vec<String> = match fs::read_to_string(into.join(".unpacked")) {
            Ok(names) => names.split(' ').map(str::to_owned).collect(),
            Err(_) => {
                packages.parts_of_kernel(&packages.kernel(flavour.metapackage(), release)?)?
            }
        };
        packages.unpack(release, &names, false, &into)?;
        let version = names.first().map_or("", |name| name.trim_start_matches("linux-image-"));
        let (image, modules) = (image(&into, version)?, module_directory(&into, version)?);
        Ok(Self { flavour, image, modules })
    }

    /// The version as `uname -r` prints it.
    pub(crate) fn version(&self) -> String {
        self.modules.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Its first two numbers.
    pub(crate) fn short_version(&self) -> String {
        self.version().split(['.', '+', '-']).take(2).collect::<Vec<_>>().join(".")
    }

    /// Adds the modules to `archive` and returns their file names in loading order.
    pub(crate) fn add_modules(&self, archive: &mut Initramfs, unxz: &Path) -> Result<Vec<String>> {
        let files = find_modules(&self.modules)?;
        let mut order = Vec::new();
        for name in self.flavour.wanted() {
            load(name, &files, unxz, archive, &mut order)?;
        }
        Ok(order)
    }
}

fn image(root: &Path, version: &str) -> Result<PathBuf> {
    let places = [format!("boot/vmlinuz-{version}"), format!("usr/lib/modules/{version}/vmlinuz")];
    let found = places.iter().map(|place| root.join(place)).find(|place| place.is_file());
    found.with_context(|| format!("no image of {version} in {}", root.display()))
}

fn module_directory(root: &Path, version: &str) -> Result<PathBuf> {
    let places = ["lib/modules", "usr/lib/modules"].map(|place| root.join(place).join(version));
    let found = places.into_iter().find(|place| place.is_dir());
    found.with_context(|| format!("no modules of {version} in {}", root.display()))
}

/// All modules below a directory by name; `-` in a name becomes `_`.
fn find_modules(directory: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                pending.push(path);
                continue;
            }
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some((name, _)) = file.split_once(".ko") {
                found.insert(name.replace('-', "_"), path);
            }
        }
    }
    Ok(found)
}

fn load(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    unxz: &Path,
    archive: &mut Initramfs,
    order: &mut Vec<String>,
) -> Result<()> {
    let file = format!("{name}.ko");
    if order.contains(&file) {
        return Ok(());
    }
    // A module without a file is built into this kernel.
    let Some(path) = files.get(name) else { return Ok(()) };
    let module = read_module(path, unxz)?;
    for needed in dependencies(&module) {
        load(&needed, files, unxz, archive, order)?;
    }
    archive.file(&format!("modules/{file}"), 0o644, &module);
    order.push(file);
    Ok(())
}

fn read_module(path: &Path, unxz: &Path) -> Result<Vec<u8>> {
    if path.extension() != Some("xz".as_ref()) {
        return Ok(fs::read(path)?);
    }
    let output = Command::new(unxz).args(["xz", "-dc"]).arg(path).output()?;
    ensure!(output.status.success(), "cannot decompress {}", path.display());
    Ok(output.stdout)
}

/// The modules that a module needs, from its `.modinfo` section.
fn dependencies(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else {
        return Vec::new();
    };
    let text = module[at + key.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(text).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}
