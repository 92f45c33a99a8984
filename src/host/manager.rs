//! Open files of the connection manager: of `/dev/infiniband/rdma_cm`, or of the software device's.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use uverbs_uapi::cm::{ABI_VERSION, Command};
use zerocopy::{FromZeros, IntoBytes};

use super::channel::{Roots, number_of, readable};
use super::fork::{Process, forked};
use super::system::Written;
use crate::error::{Error, ErrorKind, Result};

#[cfg(feature = "soft")]
use super::channel::SoftSource;
#[cfg(feature = "soft")]
use uverbs_soft::chardev::CmFile;

const OPEN: &str = "create_event_channel";
const NODE: &str = "infiniband/rdma_cm";
const SYSFS: &str = "class/misc/rdma_cm";
/// Major number of misc devices (`MISC_MAJOR`).
const MISC: u64 = 10;
const LOAD: &str = "load the module (modprobe rdma_ucm), or give the container the node \
                    (--device=/dev/infiniband/rdma_cm); UVERBS_DEVICE=soft is the software device";

/// An open file of the connection manager. Commands are written to it, and it is readable while
/// there are events. Taking an event never waits.
#[derive(Debug)]
pub(crate) struct Manager {
    node: Node,
    process: Process,
}

#[derive(Debug)]
enum Node {
    Kernel(File),
    #[cfg(feature = "soft")]
    Soft(CmFile, std::os::fd::OwnedFd),
}

impl Manager {
    /// Opens the kernel's node.
    pub(crate) fn open(roots: &Roots) -> Result<Self> {
        let path = roots.dev.join(NODE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(&path)
            .map_err(|error| cannot_open(&path, &error))?;
        let metadata = file.metadata().map_err(|error| Error::io(OPEN, &error))?;
        check_number(&path, number_of(&metadata), &roots.sysfs)?;
        check_version(&roots.sysfs)?;
        Ok(Self { node: Node::Kernel(file), process: Process::current() })
    }

    /// Opens the software device's connection manager.
    #[cfg(feature = "soft")]
    pub(crate) fn open_soft(source: &SoftSource) -> Result<Self> {
        let manager = source.manager().map_err(|error| Error::io(OPEN, &error))?;
        let opened = manager.open_nonblocking().map_err(|errno| Error::os(OPEN, errno))?;
        Ok(Self { node: Node::Soft(opened.0, opened.1), process: Process::current() })
    }

    /// Whether this process opened it. In a forked child every command fails.
    pub(crate) fn is_here(&self) -> bool {
        Process::current() == self.process
    }

    /// Runs a command and returns its answer.
    pub(crate) fn ask<C: Command>(&self, verb: &'static str, body: C) -> Result<C::Response> {
        let mut answer = C::Response::new_zeroed();
        self.run(verb, body, answer.as_mut_bytes())?;
        Ok(answer)
    }

    /// Runs a command with its answer or value in `memory`.
    pub(crate) fn run<C: Command>(
        &self,
        verb: &'static str,
        body: C,
        memory: &mut [u8],
    ) -> Result<()> {
        if !self.is_here() {
            return Err(forked(verb));
        }
        let command = Written::new(body, memory);
        let sent = match &self.node {
            Node::Kernel(file) => command.send(file.as_fd()),
            #[cfg(feature = "soft")]
            Node::Soft(file, descriptor) => command.send_soft(file, descriptor.as_fd()),
        };
        sent.map_err(|error| Error::io(verb, &error))
    }

    /// Waits until there is an event, for at most `timeout`. Returns whether there is one.
    pub(crate) fn wait(&self, verb: &'static str, timeout: Option<Duration>) -> Result<bool> {
        if !self.is_here() {
            return Err(forked(verb));
        }
        readable(&[self.as_fd()], timeout).map_err(|errno| Error::os(verb, errno))
    }
}

impl AsFd for Manager {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.node {
            Node::Kernel(file) => file.as_fd(),
            #[cfg(feature = "soft")]
            Node::Soft(_, descriptor) => descriptor.as_fd(),
        }
    }
}

/// Checks that the node is the character device that sysfs names or, in a container without sysfs,
/// at least a misc device.
fn check_number(node: &Path, found: Option<(u64, u64)>, sysfs: &Path) -> Result<()> {
    let node = node.display();
    let other = |cause| Err(Error::new(OPEN, ErrorKind::NotFound, cause).cure_with(LOAD));
    let Some((major, minor)) = found else {
        return other(format!("{node} is not a character device"));
    };
    let announced = fs::read_to_string(sysfs.join(SYSFS).join("dev"));
    let is_expected = match &announced {
        Ok(text) => text.trim() == format!("{major}:{minor}"),
        Err(_) => major == MISC,
    };
    if is_expected {
        return Ok(());
    }
    let expected = announced.map_or(format!("{MISC}:…"), |text| text.trim().to_owned());
    other(format!("{node} is device {major}:{minor}, but rdma_cm is {expected}"))
}

/// A kernel that does not show its ABI version has the version of all kernels since 2007.
fn check_version(sysfs: &Path) -> Result<()> {
    let Ok(text) = fs::read_to_string(sysfs.join(SYSFS).join("abi_version")) else { return Ok(()) };
    match text.trim().parse::<u32>() {
        Ok(ABI_VERSION) => Ok(()),
        _ => {
            let cause = format!("rdma_ucm has ABI {}, not {ABI_VERSION}", text.trim());
            Err(Error::new(OPEN, ErrorKind::KernelTooOld, cause))
        }
    }
}

fn cannot_open(node: &Path, error: &io::Error) -> Error {
    let base = Error::io(OPEN, error).asked(node.display().to_string());
    match error.kind() {
        io::ErrorKind::NotFound => base
            .with_kind(ErrorKind::NotFound)
            .because("there is no connection manager in this environment")
            .cure_with(LOAD),
        io::ErrorKind::PermissionDenied => base
            .with_kind(ErrorKind::Permission)
            .because("this user may not open the node, or the container's device rules forbid it")
            .cure_with("chmod 0666 /dev/infiniband/rdma_cm, or a udev rule that says so"),
        _ => base,
    }
}

#[cfg(test)]
mod tests;
