//! Which paths are the device's: the nodes with their directory, and its part of sysfs.

use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

use crate::device;

const NODE_PREFIX: &[u8] = b"/dev/infiniband/uverbs";
const NODES: &[u8] = b"/dev/infiniband";
const SYSFS: &[u8] = b"/sys/class/infiniband";
const LONGEST: usize = libc::PATH_MAX as usize;

/// A path that a hook passes on: as the program gave it, or into the laid-out sysfs.
pub(crate) struct Rewritten {
    given: *const c_char,
    buffer: Option<[u8; LONGEST]>,
}

impl Rewritten {
    /// The path to use.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.buffer.as_ref().map_or(self.given, |buffer| buffer.as_ptr().cast())
    }
}

/// The directory that stands for `/sys`; known from the time the library is loaded, since the first hook may be called
/// where allocating is not allowed.
static ROOT: OnceLock<CString> = OnceLock::new();

/// Called once, when the library is loaded.
pub(crate) fn set_sysfs_root(root: CString) -> &'static CStr {
    ROOT.get_or_init(|| root)
}

/// The number N of `/dev/infiniband/uverbsN`, if `path` is one.
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn node_index(path: *const c_char) -> Option<usize> {
    // The files that stand for the nodes are ordinary ones to those who lay them out.
    if path.is_null() || device::is_making() {
        return None;
    }
    // SAFETY: not null, so a C string, says the caller.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    // `realpath` leads into the directory that stands for `/dev/infiniband`.
    let path = ROOT.get().and_then(|root| path.strip_prefix(root.to_bytes())).unwrap_or(path);
    std::str::from_utf8(path.strip_prefix(NODE_PREFIX)?).ok()?.parse().ok()
}

/// The path that stands for `path`.
///
/// # Safety
/// `path` is null or a C string, for as long as the result is used.
pub(crate) unsafe fn rewrite(path: *const c_char) -> Rewritten {
    let as_given = Rewritten { given: path, buffer: None };
    if path.is_null() {
        return as_given;
    }
    // SAFETY: not null, so a C string, says the caller.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let Some(root) = ROOT.get().map(|root| root.to_bytes()) else { return as_given };
    if bytes.starts_with(root) {
        device::ensure();
        return as_given;
    }
    let tail = if bytes.starts_with(SYSFS) {
        &bytes[b"/sys".len()..]
    } else if bytes.starts_with(NODES) {
        bytes
    } else {
        return as_given;
    };
    device::ensure();
    let mut buffer = [0; LONGEST];
    let Some(room) = buffer.get_mut(..root.len() + tail.len()) else { return as_given };
    room[..root.len()].copy_from_slice(root);
    room[root.len()..].copy_from_slice(tail);
    // The buffer's last byte must stay the terminating zero.
    if root.len() + tail.len() >= LONGEST {
        as_given
    } else {
        Rewritten { given: path, buffer: Some(buffer) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbered_nodes_are_ours() {
        // SAFETY: C string literals.
        let index = |path: &CStr| unsafe { node_index(path.as_ptr()) };
        assert_eq!(index(c"/dev/infiniband/uverbs0"), Some(0));
        assert_eq!(index(c"/dev/infiniband/uverbs12"), Some(12));
        assert_eq!(index(c"/dev/infiniband/uverbs"), None);
        assert_eq!(index(c"/dev/infiniband/uverbsx"), None);
        assert_eq!(index(c"/dev/infiniband/rdma_cm"), None);
        assert_eq!(index(c"/dev/null"), None);
    }
}
