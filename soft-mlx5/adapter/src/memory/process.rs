//! The memory of this process.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::{BusError, HostMemory, Margins};
use crate::process_vm;

/// The memory of this process: bus addresses are virtual addresses.
#[derive(Debug)]
pub struct ProcessMemory(());

impl ProcessMemory {
    /// Access to this process's memory.
    ///
    /// # Safety
    /// Every range of addresses that a core with this memory gets (queue buffers, doorbell records,
    /// the pages of a memory key) must stay mapped until the object is destroyed, readable, and
    /// writable if the device may write it (CQ buffers; keys with local write access). The pages of
    /// an on-demand key may come and go, except during an atomic operation on them. No safe
    /// reference of this process may cover a range while the device may write it; programs access
    /// it through raw pointers or atomics.
    ///
    /// All accesses are atomic, and of these sizes, since the standard library forbids atomic
    /// accesses of different sizes to the same bytes if one of them is a write and nothing orders
    /// them:
    /// - Memory that a peer's RDMA operations access: aligned words of eight bytes if the memory
    ///   region has the whole word, else single bytes. A program that accesses such memory
    ///   meanwhile uses the same sizes.
    /// - The buffers of the program's own requests: aligned words inside the message, and single
    ///   bytes at its edges. They belong to the device until the request completes; bytes next to
    ///   them are not touched.
    /// - Doorbell records: words of four bytes. The byte of a CQE that holds its owner bit: one
    ///   byte; the rest of a CQE is written before, and ordered by it.
    ///
    /// On-demand memory is the exception: the kernel moves its bytes (`process_vm_readv`,
    /// `process_vm_writev`), as a DMA engine would, outside of this program. Where these calls are
    /// forbidden, the sizes are those above.
    pub const unsafe fn new() -> Self {
        Self(())
    }

    fn check(address: u64, len: usize) -> Result<(), BusError> {
        // The first page is never mapped. Refusing it makes a null pointer an error instead of a
        // crash.
        let end = address.checked_add(len as u64);
        if address < 4096 || end.is_none_or(|end| end > isize::MAX as u64) {
            return Err(BusError::new(address, len));
        }
        Ok(())
    }
}

// SAFETY: bus addresses are addresses of this process. The caller of `new` guaranteed that every
// range that the core knows is mapped, readable, and writable where the core writes, and that no
// safe reference covers it. The core asks for no other range: keys and queues are bounds-checked
// before they are translated.
unsafe impl HostMemory for ProcessMemory {
    fn with(
        &self,
        address: u64,
        len: usize,
        _writes: bool,
        access: &mut dyn FnMut(NonNull<u8>),
    ) -> Result<(), BusError> {
        Self::check(address, len)?;
        access(NonNull::new(address as *mut u8).ok_or(BusError::new(address, len))?);
        Ok(())
    }

    fn read_on_demand(
        &self,
        address: u64,
        into: &mut [u8],
        margins: Margins,
    ) -> Result<(), BusError> {
        Self::check(address, into.len())?;
        match process_vm::read(process_vm::own_pid(), address, into) {
            Err(error) if process_vm::is_forbidden(error) => {
                self.page_in(address, into.len() as u64)?;
                self.read_words(address, into, margins)
            }
            result => result.map_err(|_| BusError::new(address, into.len())),
        }
    }

    fn write_on_demand(&self, address: u64, from: &[u8], margins: Margins) -> Result<(), BusError> {
        Self::check(address, from.len())?;
        // SAFETY: `new`'s caller guaranteed that the pages of a key may be overwritten as far as
        // they are mapped.
        match unsafe { process_vm::write(process_vm::own_pid(), address, from) } {
            Err(error) if process_vm::is_forbidden(error) => {
                self.page_in(address, from.len() as u64)?;
                self.write_words(address, from, margins)
            }
            result => result.map_err(|_| BusError::new(address, from.len())),
        }
    }

    fn page_in(&self, address: u64, len: u64) -> Result<(), BusError> {
        Self::check(address, len as usize)?;
        let first = address & !0xfff;
        let populated = process_vm::populate(first, (address + len - first) as usize, true);
        populated.map_err(|_| BusError::new(address, len as usize))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn process_memory_refuses_null_and_wild_addresses() {
        // SAFETY: only a live local and addresses that are refused before any access.
        let memory = unsafe { ProcessMemory::new() };
        let value = AtomicU64::new(0x0102);
        let address = value.as_ptr() as u64;
        assert_eq!(memory.update_u64(address, &mut |v| v + 1), Ok(0x0102));
        assert_eq!(value.load(Ordering::Relaxed), 0x0103);
        assert!(memory.read(8, &mut [0; 4]).is_err());
        assert!(memory.read(u64::MAX - 2, &mut [0; 4]).is_err());
        assert!(memory.load_acquire_u32(address + 1).is_err());
    }
}
