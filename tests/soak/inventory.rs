//! What may not grow.

use std::fs;

use crate::side::Side;

/// Pages that allocators may add over a whole run: 4 MiB.
const TOLERANCE: u64 = 1024;

#[derive(Debug)]
pub(crate) struct Inventory {
    objects: String,
    handles: usize,
    descriptors: usize,
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
            mapped_pages: pages.next().unwrap(),
            resident_pages: pages.next().unwrap(),
        }
    }

    pub(crate) fn assert_same(&self, now: &Self) {
        assert_eq!(self.objects, now.objects);
        assert_eq!(self.handles, now.handles);
        assert_eq!(self.descriptors, now.descriptors);
        let mapped = now.mapped_pages.saturating_sub(self.mapped_pages);
        let resident = now.resident_pages.saturating_sub(self.resident_pages);
        assert!(mapped < TOLERANCE && resident < TOLERANCE, "{mapped} and {resident} pages more");
    }
}
