//! The handle table of one open device file, an IDR per file in rdma_core.c.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use nix::errno::Errno;

/// A table of objects by handle. It allocates the lowest free handle, as `xa_alloc` does.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    slots: Vec<Slot<T>>,
    free: BinaryHeap<Reverse<u32>>,
}

#[derive(Debug)]
enum Slot<T> {
    Free,
    /// Reserved by a request that has not finished; lookups fail.
    Reserved,
    Live(T),
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: BinaryHeap::new() }
    }
}

impl<T> Handles<T> {
    /// Reserves a handle for an object that is being created.
    pub(crate) fn reserve(&mut self) -> u32 {
        let handle = match self.free.pop() {
            Some(Reverse(handle)) => handle,
            None => {
                self.slots.push(Slot::Free);
                (self.slots.len() - 1) as u32
            }
        };
        self.slots[handle as usize] = Slot::Reserved;
        handle
    }

    /// Stores the object of a reserved handle; lookups find it from now on.
    pub(crate) fn commit(&mut self, handle: u32, object: T) {
        if let Some(slot) = self.slots.get_mut(handle as usize) {
            *slot = Slot::Live(object);
        }
    }

    /// The object behind a handle; ENOENT if there is none.
    pub(crate) fn get(&self, handle: u32) -> Result<&T, Errno> {
        match self.slots.get(handle as usize) {
            Some(Slot::Live(object)) => Ok(object),
            _ => Err(Errno::ENOENT),
        }
    }

    /// As [`get`](Self::get), to change it.
    pub(crate) fn get_mut(&mut self, handle: u32) -> Result<&mut T, Errno> {
        match self.slots.get_mut(handle as usize) {
            Some(Slot::Live(object)) => Ok(object),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Frees a handle, reserved or live.
    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let slot = self.slots.get_mut(handle as usize)?;
        match std::mem::replace(slot, Slot::Free) {
            Slot::Free => None,
            Slot::Reserved => {
                self.free.push(Reverse(handle));
                None
            }
            Slot::Live(object) => {
                self.free.push(Reverse(handle));
                Some(object)
            }
        }
    }

    /// All live objects, lowest handle first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.slots).filter_map(|(handle, slot)| match slot {
            Slot::Live(object) => Some((handle, object)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_handle_is_given_out() {
        let mut handles = Handles::default();
        for expected in 0..3 {
            let handle = handles.reserve();
            assert_eq!(handle, expected);
            handles.commit(handle, expected * 10);
        }
        assert_eq!(handles.remove(1), Some(10));
        assert_eq!(handles.remove(0), Some(0));
        assert_eq!(handles.reserve(), 0);
        assert_eq!(handles.get(0), Err(Errno::ENOENT), "reserved is not visible");
        assert_eq!(handles.get(2), Ok(&20));
        assert_eq!(handles.remove(0), None);
        assert_eq!(handles.reserve(), 0);
    }
}
