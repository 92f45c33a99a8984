//! The devices' paths: `/dev/infiniband`, and their part of `/sys`.
//!
//! The tree itself is in memory (`device.rs`). A program that opens or lists a directory gets a
//! real directory below [`set_up`]'s root instead, see `files.rs`. A relative path is recognised by
//! the directory to which the descriptor, or the working directory, leads.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::errno::Errno;
use uverbs_soft::chardev::{Found, pci_address};

use crate::{device, sys};

/// The connection manager's node and its entries in sysfs.
const RDMA_CM: &str = "dev/infiniband/rdma_cm";
const NODES: &str = "dev/infiniband/uverbs";
/// A path below one of these is the devices', or does not exist.
const OWN: [&str; 5] = [
    "dev/infiniband",
    "sys/bus/pci/drivers/mlx5_core",
    "sys/class/misc/rdma_cm",
    "sys/devices/pci0000:f7",
    "sys/devices/virtual/misc/rdma_cm",
];
/// The same for all classes with this prefix.
const CLASSES: &str = "sys/class/infiniband";
/// A path without one of these is not resolved. Most paths of a program have none.
const MARKS: [&[u8]; 5] = [b"infiniband", b"mlx5_core", b"0000:f", b"/char/231:", b"rdma_cm"];
const LONGEST: usize = libc::PATH_MAX as usize;

/// The directory that contains the directories on disk.
static ROOT: OnceLock<String> = OnceLock::new();
static DEVICES: AtomicU32 = AtomicU32::new(0);
/// Whether this process has opened a directory below the root, or was started in one.
static IS_INSIDE: AtomicBool = AtomicBool::new(false);

/// Called once, when the library is loaded. `root` is an absolute path without symbolic links;
/// without one no directory can be listed.
pub(crate) fn set_up(root: Option<String>, devices: u32) {
    if let Some(root) = root {
        let _ = ROOT.set(root);
    }
    DEVICES.store(devices, Ordering::Relaxed);
    let mut buffer = [0; LONGEST];
    if link_to_tree(c"/proc/self/cwd", &mut buffer).is_some() {
        enter();
    }
}

/// Called when the process opens a directory below the root: from now on relative paths may be the
/// devices'.
pub(crate) fn enter() {
    IS_INSIDE.store(true, Ordering::Relaxed);
}

pub(crate) fn root() -> Option<&'static str> {
    ROOT.get().map(String::as_str)
}

/// The file at a path of the devices.
pub(crate) enum Place {
    /// A file with these contents.
    File(String),
    /// A symbolic link with this text, if links are not followed.
    Link(String),
    Directory,
    /// A device node.
    Node(NodeKind),
}

/// A device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// `/dev/infiniband/uverbsN`.
    Verbs(usize),
    /// `/dev/infiniband/rdma_cm`.
    RdmaCm,
}

/// A path that the hooks handle.
pub(crate) enum Target {
    /// The path without links, relative to `/`, and what is there.
    Own(String, Place),
    /// A path that leaves the devices' tree by `..` or a link, for the C library.
    Elsewhere(CString),
}

/// The file that a program's path leads to; `None` if it is not one of the devices'.
///
/// Does not allocate for other paths, because allocators open files themselves.
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn find(
    directory: c_int,
    path: *const c_char,
    follow: bool,
) -> Option<Result<Target, Errno>> {
    if path.is_null() || device::is_internal() {
        return None;
    }
    // SAFETY: not null, so a C string, by this function's contract.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    absolute(directory, path).map(|path| resolve(&path, follow))
}

/// The path relative to `/`, if it is a path of the devices.
fn absolute(directory: c_int, path: &[u8]) -> Option<String> {
    match path {
        [] => None,
        [b'/', ..] => in_tree(path).or_else(|| own(path)),
        _ if IS_INSIDE.load(Ordering::Relaxed) => {
            let mut buffer = [0; LONGEST];
            let base = link_to_tree(&descriptor(directory), &mut buffer)?;
            Some(format!("{base}/{}", std::str::from_utf8(path).ok()?))
        }
        _ => None,
    }
}

/// The link in `/proc` to a descriptor's file.
fn descriptor(fd: c_int) -> CString {
    let path = match fd {
        libc::AT_FDCWD => "/proc/self/cwd".into(),
        fd => format!("/proc/self/fd/{fd}"),
    };
    CString::new(path).unwrap_or_default()
}

/// The directory of the tree that a link of `/proc` leads to.
fn link_to_tree(link: &CStr, buffer: &mut [u8]) -> Option<String> {
    in_tree(sys::read_link(link, buffer)?)
}

/// The path of the devices' file that a descriptor reads (`files::open`).
pub(crate) fn of_file(fd: c_int) -> Option<String> {
    let mut buffer = [0; LONGEST];
    let link = sys::read_link(&descriptor(fd), &mut buffer)?;
    let path = link.strip_prefix(b"/memfd:")?.strip_suffix(b" (deleted)")?;
    std::str::from_utf8(path).ok().filter(|path| is_own(path)).map(str::to_owned)
}

/// The path that a directory on disk (or a name in it) replaces.
fn in_tree(path: &[u8]) -> Option<String> {
    let rest = path.strip_prefix(root()?.as_bytes())?.strip_prefix(b"/")?;
    Some(std::str::from_utf8(rest).ok()?.replace('!', "/")).filter(|path| is_own(path))
}

/// The path relative to `/`, if an absolute path is one of the devices.
fn own(path: &[u8]) -> Option<String> {
    let is_marked = |mark: &&[u8]| path.windows(mark.len()).any(|part| part == *mark);
    let slashes = path.iter().take_while(|byte| **byte == b'/').count();
    let is_below = path[slashes..].starts_with(b"sys") || path[slashes..].starts_with(b"dev");
    if !is_below || !MARKS.iter().any(is_marked) {
        return None;
    }
    let path = std::str::from_utf8(path).ok()?;
    let names: Vec<&str> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    let mut normal = names.join("/");
    // Keep a slash at the end, because it means that a link is followed.
    if path.ends_with('/') {
        normal.push('/');
    }
    is_own(&normal).then_some(normal)
}

fn is_own(path: &str) -> bool {
    let is_below = |directory: &str| {
        path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    path.starts_with(CLASSES) || OWN.into_iter().any(is_below) || {
        (0..DEVICES.load(Ordering::Relaxed)).any(|index| {
            is_below(&format!("sys/bus/pci/devices/{}", pci_address(index)))
                || is_below(&format!("sys/dev/char/231:{}", 192 + index))
        })
    }
}

fn resolve(path: &str, follow: bool) -> Result<Target, Errno> {
    let devices = device::devices()?;
    let path = devices.tree.canonical(path, follow).ok_or(Errno::ELOOP)?;
    if !is_own(&path) {
        return Ok(Target::Elsewhere(CString::new(format!("/{path}")).map_err(|_| Errno::EINVAL)?));
    }
    let place = match devices.tree.find(&path).ok_or(Errno::ENOENT)? {
        Found::File(contents) => match node_kind(&path) {
            Some(kind) => Place::Node(kind),
            None => Place::File(devices.counter(&path).unwrap_or_else(|| contents.to_owned())),
        },
        Found::Link(text) => Place::Link(text.to_owned()),
        Found::Directory => Place::Directory,
    };
    Ok(Target::Own(path, place))
}

/// The node at a path.
fn node_kind(path: &str) -> Option<NodeKind> {
    if path == RDMA_CM {
        return Some(NodeKind::RdmaCm);
    }
    node_index(path).map(NodeKind::Verbs)
}

/// The number N of `dev/infiniband/uverbsN`.
fn node_index(path: &str) -> Option<usize> {
    path.strip_prefix(NODES)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_devices_paths_are_taken() {
        DEVICES.store(1, Ordering::Relaxed);
        let own = |path: &str| own(path.as_bytes());
        for path in [
            "/dev/infiniband",
            "/dev/infiniband/uverbs0",
            "/sys/class/infiniband",
            "/sys/class/infiniband_verbs/uverbs0",
            "/sys/bus/pci/devices/0000:f8:00.0/vendor",
            "/sys/bus/pci/drivers/mlx5_core",
            "/sys/dev/char/231:192",
            "/sys/devices/pci0000:f7/0000:f8:00.0",
        ] {
            assert_eq!(own(path).as_deref(), Some(&path[1..]));
        }
        for path in [
            "/dev/null",
            "/dev/infinibands",
            "/sys/bus/pci/devices/0000:f9:00.0",
            "/sys/dev/char/231:193",
            "/sys/class/net/infiniband",
            "/home/sys/class/infiniband",
        ] {
            assert_eq!(own(path), None, "{path}");
        }
        assert_eq!(own("//sys/./class//infiniband/").as_deref(), Some("sys/class/infiniband/"));
    }

    #[test]
    fn only_numbered_nodes_are_devices() {
        assert_eq!(node_index("dev/infiniband/uverbs12"), Some(12));
        assert_eq!(node_index("dev/infiniband/uverbs"), None);
        assert_eq!(node_index("dev/infiniband/uverbsx"), None);
        assert_eq!(node_index("dev/infiniband/rdma_cm"), None);
    }
}
