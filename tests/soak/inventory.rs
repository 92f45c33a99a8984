//! The resources that must not grow during the soak: objects, handles, descriptors, heap, pages.

use std::fs;

use uverbs::soft::packet::PacketPool;

use crate::heap;
use crate::side::Side;

/// Bytes by which the heap may grow. Each of the two devices has two packet pools (the core's and
/// the wire's), which may have been empty at the beginning. The rest is for tables and lists, which
/// never shrink.
const HEAP_TOLERANCE: usize = 4 * PacketPool::MAX_BYTES + (256 << 10);

/// Pages that allocators may add over a whole run, caches included: 4 MiB.
const PAGE_TOLERANCE: u64 = 1024;

#[derive(Debug)]
pub(crate) struct Inventory {
    objects: String,
    handles: usize,
    descriptors: usize,
    pub(crate) heap_bytes: usize,
    mapped_pages: u64,
    resident_pages: u64,
}

impl Inventory {
    pub(crate) fn take(sides: &[Side; 2]) -> Self {
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        let mut pages = statm.split(' ').map(|text| text.trim().parse().unwrap());
        let counts = |side: &Side| side.end.soft.inspect(|core| core.counts()).unwrap();
        Self {
            objects: format!("{:?}", sides.each_ref().map(counts)),
            handles: sides.iter().map(|side| side.end.soft.handle_count()).sum(),
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            heap_bytes: heap::live(),
            mapped_pages: pages.next().unwrap(),
            resident_pages: pages.next().unwrap(),
        }
    }

    pub(crate) fn assert_same(&self, now: &Self) {
        assert_eq!(self.objects, now.objects);
        assert_eq!(self.handles, now.handles);
        assert_eq!(self.descriptors, now.descriptors);
        let heap = now.heap_bytes.saturating_sub(self.heap_bytes);
        assert!(heap < HEAP_TOLERANCE, "{heap} bytes more on the heap");
        let mapped = now.mapped_pages.saturating_sub(self.mapped_pages);
        let resident = now.resident_pages.saturating_sub(self.resident_pages);
        assert!(
            mapped < PAGE_TOLERANCE && resident < PAGE_TOLERANCE,
            "{mapped} and {resident} pages more"
        );
    }
}
