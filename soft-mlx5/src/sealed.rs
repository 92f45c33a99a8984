//! Memory for two processes: a file without a name, whose size nobody can change any more.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

/// A memfd of `len` zero bytes, sealed. Memory is only taken by pages that are touched.
///
/// # Errors
/// What `memfd_create`, `ftruncate` and `fcntl` say.
pub(crate) fn sealed_memory(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&file, len as i64)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}
