//! `/dev/infiniband/uverbsN`, the kernel's character device.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::stat::{major, minor};

use super::{Access, AtDrop, Channel, Entry};
use crate::error::{Error, ErrorKind, Result};
use crate::host::children::FileId;
use crate::host::system::{Call, Mapping, forks};

const OPEN: &str = "open_device";

/// An open uverbs node.
#[derive(Debug)]
pub(crate) struct KernelChannel {
    file: File,
    attributes: PathBuf,
    /// Whether another descriptor of the file may be open: it was imported, or given out.
    shared: AtomicBool,
    /// The number of forks when the file was opened. A later child has its own descriptor.
    forks: u64,
}

impl KernelChannel {
    /// Opens the node of `entry`.
    pub(crate) fn open(entry: &Entry) -> Result<Self> {
        entry.require_mlx5(OPEN)?;
        let forks = forks();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(&entry.node)
            .map_err(|error| cannot_open(&entry.node, &error))?;
        let metadata = file.metadata().map_err(|error| Error::io(OPEN, &error))?;
        check_node(entry, &metadata)?;
        Ok(Self {
            file,
            attributes: entry.attributes.clone(),
            shared: AtomicBool::new(false),
            forks,
        })
    }
}

impl KernelChannel {
    /// Takes over an open node.
    pub(crate) fn adopt(entry: &Entry, file: File) -> Result<Self> {
        entry.require_mlx5(OPEN)?;
        Ok(Self {
            file,
            attributes: entry.attributes.clone(),
            shared: AtomicBool::new(true),
            forks: forks(),
        })
    }
}

/// Major and minor number, if it is a character device.
pub(crate) fn number_of(metadata: &fs::Metadata) -> Option<(u64, u64)> {
    let is_device = metadata.file_type().is_char_device();
    is_device.then(|| (major(metadata.rdev()), minor(metadata.rdev())))
}

/// Whether this process may open the node of `entry`, without opening it.
pub(crate) fn check(entry: &Entry) -> Result<()> {
    entry.require_mlx5(OPEN)?;
    let metadata = fs::metadata(&entry.node).map_err(|error| cannot_open(&entry.node, &error))?;
    check_node(entry, &metadata)?;
    nix::unistd::access(
        &entry.node,
        nix::unistd::AccessFlags::R_OK | nix::unistd::AccessFlags::W_OK,
    )
    .map_err(|errno| cannot_open(&entry.node, &errno.into()))
}

/// Checks that the node is the character device that sysfs names: a stale node of another device,
/// or a plain file, must not be driven as mlx5.
fn check_node(entry: &Entry, metadata: &fs::Metadata) -> Result<()> {
    let node = entry.node.display();
    let Some(found) = number_of(metadata) else {
        let cause = format!("{node} is not a character device");
        return Err(Error::new(OPEN, ErrorKind::NotFound, cause));
    };
    match entry.number {
        Some(expected) if expected != found => {
            let cause = format!(
                "{node} is device {}:{}, but sysfs says that {} is {}:{}",
                found.0, found.1, entry.name, expected.0, expected.1
            );
            Err(Error::new(OPEN, ErrorKind::NotFound, cause).cure_with("recreate the node"))
        }
        _ => Ok(()),
    }
}

fn cannot_open(node: &Path, error: &io::Error) -> Error {
    let path = node.display();
    let base = Error::io(OPEN, error).asked(path.to_string());
    match error.kind() {
        io::ErrorKind::NotFound => base
            .with_kind(ErrorKind::NotFound)
            .because("the device exists in sysfs, but this environment has no node for it")
            .cure_with(format!(
                "load ib_uverbs (modprobe ib_uverbs), or give the container the node (--device={path})"
            )),
        io::ErrorKind::PermissionDenied => base
            .with_kind(ErrorKind::Permission)
            .because("this user may not open the node, or the container's device rules forbid it")
            .cure_with(format!(
                "chmod 0666 {path} or a udev rule that says so, or --device={path} for a container"
            )),
        _ => base,
    }
}

impl Channel for KernelChannel {
    fn ioctl(&self, call: Call<'_>) -> io::Result<()> {
        call.send(self.file.as_fd())
    }

    fn mmap(
        &self,
        length: usize,
        access: Access,
        offset: u64,
    ) -> std::result::Result<Mapping, Errno> {
        Mapping::of_file(self.file.as_fd(), length, access, offset)
    }

    fn attribute(&self, name: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.attributes.join(name))?.trim_end().to_owned())
    }

    fn at_drop(&self) -> AtDrop {
        if self.shared.load(Ordering::Relaxed) || self.forks != forks() {
            return AtDrop::Stays;
        }
        FileId::of(&self.file).map_or(AtDrop::Stays, AtDrop::EndsUnlessHeld)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.store(true, Ordering::Relaxed);
        Some(self.file.as_fd())
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "tests fork")]
mod tests;
