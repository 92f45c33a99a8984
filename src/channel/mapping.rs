//! Pages of the device mapped into this process.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use nix::errno::Errno;

/// A mapping of device pages; unmapped when dropped.
///
/// It never hands out references: what lies behind it is a device register or memory that the device and
/// the kernel write.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<c_void>,
    length: usize,
    /// Its place in the list of pages that a child does not share.
    hidden: Option<&'static Hidden>,
}

// SAFETY: a mapping is owned by the process, not by a thread; this type only hands out its address, and
// munmap may be called from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives only the address and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Takes over a mapping.
    ///
    /// # Safety
    /// `start` must be the address of a live mapping of `length` bytes that nobody else unmaps.
    pub unsafe fn from_raw(start: NonNull<c_void>, length: usize) -> Self {
        Self { start, length, hidden: None }
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the mapping is empty (it never is: the kernel refuses such a mapping).
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Mapping {
    /// The same mapping, in whose place a forked child has ordinary pages of its own: what it stores there reaches no device.
    pub(crate) fn hidden_from_children(mut self) -> Self {
        self.hidden = Some(Hidden::list(self.start.as_ptr().addr(), self.length));
        self
    }
}

/// A range of device pages that forked children do not share. Never freed, but used again: the list is read in children, where
/// locks of other threads stay held for ever.
#[derive(Debug)]
struct Hidden {
    /// Address; [`FREE`] or [`CLAIMED`] while it is no range.
    start: AtomicUsize,
    length: AtomicUsize,
    next: AtomicPtr<Hidden>,
}

const FREE: usize = 0;
const CLAIMED: usize = 1;
static HIDDEN: AtomicPtr<Hidden> = AtomicPtr::new(ptr::null_mut());
static FORKS: AtomicU64 = AtomicU64::new(0);

/// How often this process has forked, counted from the first call on. A fork that has begun counts, also in the child.
pub(crate) fn forks() -> u64 {
    watch_forks();
    FORKS.load(Ordering::SeqCst)
}

fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handlers only touch atomics, and in the child map pages over the ranges of the list.
        let result = unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) };
        if result != 0 {
            // As if there had been a fork at every time that one asks.
            tracing::warn!("pthread_atfork failed: forked children are not watched");
        }
    });
}

extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// Runs in a child, before fork returns there. Does what signal handlers may do only: no lock, no allocation.
extern "C" fn in_child() {
    for hidden in Hidden::all() {
        let (start, length) =
            (hidden.start.load(Ordering::Acquire), hidden.length.load(Ordering::Relaxed));
        if start > CLAIMED {
            // SAFETY: the range is a live mapping of the parent's, which `Mapping::drop` takes off the list before it unmaps
            // it. In its place comes memory that anything may be stored to, as the device's registers took anything.
            unsafe {
                libc::mmap(
                    ptr::without_provenance_mut(start),
                    length,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                    -1,
                    0,
                );
            }
        }
    }
}

impl Hidden {
    fn all() -> impl Iterator<Item = &'static Self> {
        // SAFETY: null, or a value that was leaked.
        let load =
            |at: &AtomicPtr<Self>| unsafe { at.load(Ordering::Acquire).cast_const().as_ref() };
        std::iter::successors(load(&HIDDEN), move |hidden| load(&hidden.next))
    }

    fn list(start: usize, length: usize) -> &'static Self {
        watch_forks();
        let claim = |hidden: &&Self| {
            hidden
                .start
                .compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let place = Self::all().find(claim).unwrap_or_else(Self::grow);
        place.length.store(length, Ordering::Relaxed);
        place.start.store(start, Ordering::Release);
        place
    }

    fn grow() -> &'static Self {
        let (start, length) = (AtomicUsize::new(CLAIMED), AtomicUsize::new(0));
        let place: &Self = Box::leak(Box::new(Self { start, length, next: AtomicPtr::default() }));
        let mut first = HIDDEN.load(Ordering::Acquire);
        loop {
            place.next.store(first, Ordering::Relaxed);
            let new = ptr::from_ref(place).cast_mut();
            match HIDDEN.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return place,
                Err(now) => first = now,
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(hidden) = self.hidden {
            // Before the range is unmapped, and perhaps another mapping's.
            hidden.start.store(FREE, Ordering::Release);
        }
        // SAFETY: `from_raw` was promised that this mapping is ours alone, and nothing uses it any more.
        let result = unsafe { libc::munmap(self.start.as_ptr(), self.length) };
        if result != 0 {
            tracing::warn!(errno = %Errno::last(), "munmap of a device page failed");
        }
    }
}
