//! Guest memory, which the virtual machine monitor shares. Bus addresses are guest-physical.

#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::fstat;

use super::vfio_user::DmaRegion;
use uverbs_soft::memory::{BusError, HostMemory};
use uverbs_soft::sealed::cannot_shrink;

/// All guest memory that is currently shared. Clones are views of the same memory.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    mappings: Arc<RwLock<Vec<Mapping>>>,
}

#[derive(Debug)]
struct Mapping {
    address: u64,
    size: u64,
    host: NonNull<u8>,
    writable: bool,
}

// SAFETY: a mapping is plain shared memory that belongs to no thread; all accesses go through raw
// copies and atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; the pointer itself never changes while the mapping exists.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(region: &DmaRegion, file: &OwnedFd) -> io::Result<Self> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let length =
            usize::try_from(region.size).ok().and_then(NonZeroUsize::new).ok_or_else(invalid)?;
        let offset = i64::try_from(region.offset).map_err(|_| invalid())?;
        region.address.checked_add(region.size).ok_or_else(invalid)?;
        require_whole(file, region)?;
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, region.writable);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other mapping.
        let host = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, offset)? };
        Ok(Self {
            address: region.address,
            size: region.size,
            host: host.cast(),
            writable: region.writable,
        })
    }

    /// The host address of `length` bytes at `address`, if all of them are in this mapping.
    fn translate(&self, address: u64, length: usize) -> Option<NonNull<u8>> {
        let offset = address.checked_sub(self.address)?;
        let end = offset.checked_add(length as u64)?;
        // SAFETY: `offset` is at most `size`, the length of the one mapped object that `host`
        // points at.
        (end <= self.size).then(|| unsafe { self.host.add(offset as usize) })
    }
}

/// Checks that every byte of the region stays accessible, whatever the client does with the file.
/// Otherwise a client that shrinks the file, or maps beyond its end, could kill the server with
/// SIGBUS.
///
/// So the file must be a memfd of ordinary pages that is sealed against shrinking, as QEMU's
/// `memory-backend-memfd` creates it (`seal=on`, its default). Huge pages are refused: a hole can
/// be punched into the file, and no huge page may be left to fill it.
///
/// # Errors
/// `EINVAL` for a region beyond the end of the file, `EACCES` for a file that may shrink.
fn require_whole(file: &OwnedFd, region: &DmaRegion) -> io::Result<()> {
    if !cannot_shrink(file)? {
        tracing::warn!(
            "guest memory refused: not a memfd of ordinary pages that is sealed against shrinking (QEMU: \
             -object memory-backend-memfd,seal=on,hugetlb=off)"
        );
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    let length = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    match region.offset.checked_add(region.size) {
        Some(end) if end <= length => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `mmap` returned, and translated pointers are used only
        // under the list's lock, which is held for writing when a mapping is dropped.
        let unmapped = unsafe { munmap(self.host.cast(), self.size as usize) };
        debug_assert!(unmapped.is_ok());
    }
}

impl GuestMemory {
    /// Maps a region of `file`.
    ///
    /// # Errors
    /// `EINVAL` for invalid ranges and for ranges that overlap a mapped region; errors of `mmap`.
    pub fn map(&self, region: &DmaRegion, file: &OwnedFd) -> io::Result<()> {
        let mapping = Mapping::new(region, file)?;
        let mut mappings = self.mappings.write().unwrap_or_else(PoisonError::into_inner);
        let end = mapping.address + mapping.size;
        if mappings
            .iter()
            .any(|other| mapping.address < other.address + other.size && other.address < end)
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        mappings.push(mapping);
        Ok(())
    }

    /// Unmaps the regions inside `[address, address + size)`.
    pub fn unmap(&self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let mut mappings = self.mappings.write().unwrap_or_else(PoisonError::into_inner);
        mappings
            .retain(|mapping| mapping.address < address || mapping.address + mapping.size > end);
    }
}

// SAFETY: a mapping is valid for its whole size while the lock is held, and writable if it says so.
// No Rust reference points into it: the guest and its monitor access it from other processes, and
// this program only by copies and atomics.
unsafe impl HostMemory for GuestMemory {
    fn with(
        &self,
        address: u64,
        len: usize,
        writes: bool,
        access: &mut dyn FnMut(NonNull<u8>),
    ) -> Result<(), BusError> {
        let mappings = self.mappings.read().unwrap_or_else(PoisonError::into_inner);
        let host = mappings
            .iter()
            .filter(|mapping| mapping.writable || !writes)
            .find_map(|mapping| mapping.translate(address, len))
            .ok_or(BusError { address, len: len as u64 })?;
        access(host);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use uverbs_soft::sealed::sealed_memory;

    /// As QEMU's memory-backend-memfd makes it.
    fn sealed(size: usize) -> OwnedFd {
        sealed_memory(c"guest", size).unwrap()
    }

    fn memory(address: u64, size: u64) -> GuestMemory {
        let file = sealed(size as usize);
        let memory = GuestMemory::default();
        memory.map(&DmaRegion { address, size, offset: 0, writable: true }, &file).unwrap();
        memory
    }

    #[test]
    fn written_bytes_can_be_read_and_nothing_outside_can() {
        let memory = memory(0x1000, 0x2000);
        memory.write(0x1ffe, &[1, 2, 3, 4]).unwrap();
        let mut data = [0; 4];
        memory.read(0x1ffe, &mut data).unwrap();
        assert_eq!(data, [1, 2, 3, 4]);
        for outside in [0xffd, 0x2ffd, u64::MAX - 1, 0] {
            assert_eq!(memory.read(outside, &mut data), Err(BusError { address: outside, len: 4 }));
        }
    }

    #[test]
    fn unmapped_memory_is_gone_and_overlaps_are_refused() {
        let memory = memory(0x1000, 0x2000);
        let overlapping = DmaRegion { address: 0x2000, size: 0x2000, offset: 0, writable: true };
        let error = memory.map(&overlapping, &sealed(0x2000)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        memory.unmap(0x1000, 0x2000);
        assert!(memory.read(0x1000, &mut [0]).is_err());
    }

    /// Each of these would end this process by SIGBUS once it is touched.
    #[test]
    fn memory_that_its_client_can_take_away_is_refused() {
        let memory = GuestMemory::default();
        let map = |size, offset, file: &OwnedFd| {
            let region = DmaRegion { address: 0x1000, size, offset, writable: true };
            memory.map(&region, file).map_err(|error| error.raw_os_error().unwrap())
        };
        let name = std::env::temp_dir().join(format!("uverbs-guest-{}", std::process::id()));
        let plain = std::fs::File::create_new(&name).unwrap();
        std::fs::remove_file(&name).unwrap();
        plain.set_len(0x2000).unwrap();
        let unsealed = memfd_create(c"unsealed", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&unsealed, 0x2000).unwrap();
        for file in [plain.into(), unsealed] {
            assert_eq!(map(0x2000, 0, &file), Err(libc::EACCES));
        }
        let whole = sealed(0x2000);
        for (size, offset) in [(0x3000, 0), (0x2000, 0x1000), (0x1000, u64::MAX - 0xfff)] {
            assert_eq!(map(size, offset, &whole), Err(libc::EINVAL), "{size:#x} at {offset:#x}");
        }
        map(0x1000, 0x1000, &whole).unwrap();
        nix::unistd::ftruncate(&whole, 0).unwrap_err();
        memory.write(0x1ffc, &[1, 2, 3, 4]).unwrap();
    }
}
