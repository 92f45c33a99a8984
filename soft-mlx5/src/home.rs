//! Detects a forked child without a system call.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapMut, MmapRaw};

/// The process that created an object, to distinguish it from forked children.
#[derive(Debug)]
pub(crate) struct Home {
    process: u32,
    /// A page that holds the same number and that the kernel fills with zeros in a forked child;
    /// `None` before Linux 4.14.
    mark: Option<MmapRaw>,
}

impl Home {
    /// This process.
    pub(crate) fn new() -> Self {
        let process = std::process::id();
        let home = Self { process, mark: page() };
        if let Some(word) = home.word() {
            word.store(process, Ordering::Relaxed);
        }
        home
    }

    /// The process's number.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Whether this is that process.
    pub(crate) fn is_here(&self) -> bool {
        let here = self.word().map_or_else(std::process::id, |word| word.load(Ordering::Relaxed));
        here == self.process
    }

    fn word(&self) -> Option<&AtomicU32> {
        // SAFETY: the first word of a page that is mapped as long as self and accessed only here.
        // At a fork the kernel clears the child's page only, before the child runs.
        self.mark.as_ref().map(|page| unsafe { AtomicU32::from_ptr(page.as_mut_ptr().cast()) })
    }
}

/// The number of this process. Only forked children make a system call.
pub(crate) fn own_process() -> u32 {
    static HOME: OnceLock<Home> = OnceLock::new();
    let home = HOME.get_or_init(Home::new);
    if home.is_here() { home.process } else { std::process::id() }
}

const LEN: usize = 4096;

fn page() -> Option<MmapRaw> {
    let page = MmapRaw::from(MmapMut::map_anon(LEN).ok()?);
    // SAFETY: only changes the contents of this mapping in forked children; the mapping is private.
    let wiped = unsafe { libc::madvise(page.as_mut_ptr().cast(), LEN, libc::MADV_WIPEONFORK) };
    (wiped == 0).then_some(page)
}

#[cfg(test)]
mod tests;
