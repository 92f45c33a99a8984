//! Memory that two processes share: an unnamed file whose size is sealed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::ftruncate;

/// A memfd of `len` zero bytes, sealed. Only touched pages take memory.
///
/// # Errors
/// Errors of `memfd_create`, `ftruncate` and `fcntl`.
pub fn sealed_memory(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    set_size(&file, len)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

/// Sets the size of a memfd. Fails with EFBIG above the process's limit for files, without the
/// kernel's SIGXFSZ, which would end the process.
pub(crate) fn set_size(file: impl AsFd, len: usize) -> nix::Result<()> {
    let (most, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if most < len as u64 {
        return Err(Errno::EFBIG);
    }
    ftruncate(file, len as i64)
}

/// Whether accesses to a file of unknown origin are safe, whatever its creator does. That holds for
/// a memfd of ordinary pages that is sealed against shrinking; huge pages may run out.
///
/// # Errors
/// Errors of `fstatfs`.
pub fn cannot_shrink(file: &OwnedFd) -> io::Result<bool> {
    // Fails on files that cannot be sealed.
    let Ok(seals) = fcntl(file, FcntlArg::F_GET_SEALS) else { return Ok(false) };
    let is_ordinary = fstatfs(file)?.filesystem_type() == TMPFS_MAGIC;
    Ok(is_ordinary && SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK))
}
