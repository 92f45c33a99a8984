//! Pages of the device mapped into this process.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

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
    hidden: Option<&'static Place>,
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
        self.hidden = Some(Place::list(self.start.as_ptr().addr(), self.length, replace_pages));
        self
    }
}

/// What forked children do something about, before `fork` returns there. Without locks and allocation: other threads of the
/// parent may have held locks at that moment.
pub(crate) trait Inherited: Sync {
    /// Makes the child's copy harmless.
    fn in_child(&self);
}

/// Objects of which forked children call [`Inherited::in_child`], as long as this lives.
#[derive(Debug)]
pub(crate) struct Listed<T: Inherited> {
    place: &'static Place,
    #[allow(dead_code, reason = "the list points to it")]
    objects: Arc<[T]>,
}

impl<T: Inherited> Listed<T> {
    pub(crate) fn new(objects: Arc<[T]>) -> Self {
        let place = Place::list(objects.as_ptr().expose_provenance(), objects.len(), call::<T>);
        Self { place, objects }
    }
}

impl<T: Inherited> Drop for Listed<T> {
    fn drop(&mut self) {
        self.place.free();
    }
}

/// # Safety
/// There are `count` values of `T` at `start`.
unsafe fn call<T: Inherited>(start: usize, count: usize) {
    // SAFETY: the caller's promise.
    let objects =
        unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<T>(start), count) };
    objects.iter().for_each(T::in_child);
}

/// Puts memory that anything may be stored to in the place of device pages.
///
/// # Safety
/// `length` bytes at `start` are a mapping of the parent's.
unsafe fn replace_pages(start: usize, length: usize) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the caller's promise; what is stored to the mapping was never read back.
    unsafe { libc::mmap(ptr::without_provenance_mut(start), length, protection, flags, -1, 0) };
}

type Action = unsafe fn(usize, usize);

/// An entry of the list that children go through. Never freed, but used again: locks cannot guard the list.
#[derive(Debug)]
struct Place {
    /// Address; [`FREE`] or [`CLAIMED`] while there is nothing.
    start: AtomicUsize,
    length: AtomicUsize,
    /// An [`Action`].
    action: AtomicPtr<()>,
    next: AtomicPtr<Place>,
}

const FREE: usize = 0;
const CLAIMED: usize = 1;
static LIST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());
static FORKS: AtomicU64 = AtomicU64::new(0);
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// How many forks there were between the process that first called this and the one that calls it now.
pub(crate) fn generation() -> u64 {
    watch_forks();
    GENERATION.load(Ordering::Relaxed)
}

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

/// Runs in a child, before fork returns there.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for place in Place::all() {
        let start = place.start.load(Ordering::Acquire);
        if start > CLAIMED {
            let action = place.action.load(Ordering::Relaxed);
            // SAFETY: an `Action`, stored before `start` was. What it is called for is taken off the list before it goes, so
            // it was there when the parent forked.
            unsafe {
                let action = std::mem::transmute::<*mut (), Action>(action);
                action(start, place.length.load(Ordering::Relaxed));
            }
        }
    }
}

impl Place {
    fn all() -> impl Iterator<Item = &'static Self> {
        // SAFETY: null, or a value that was leaked.
        let load =
            |at: &AtomicPtr<Self>| unsafe { at.load(Ordering::Acquire).cast_const().as_ref() };
        std::iter::successors(load(&LIST), move |place| load(&place.next))
    }

    fn list(start: usize, length: usize, action: Action) -> &'static Self {
        watch_forks();
        let is_claimed = |place: &&Self| {
            let claimed =
                place.start.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
            claimed.is_ok()
        };
        let place = Self::all().find(is_claimed).unwrap_or_else(Self::grow);
        place.length.store(length, Ordering::Relaxed);
        place.action.store(action as *mut (), Ordering::Relaxed);
        place.start.store(start, Ordering::Release);
        place
    }

    /// Takes it off the list, before what it leads to goes.
    fn free(&self) {
        self.start.store(FREE, Ordering::Release);
    }

    fn grow() -> &'static Self {
        let (start, length) = (AtomicUsize::new(CLAIMED), AtomicUsize::new(0));
        let (action, next) = (AtomicPtr::default(), AtomicPtr::default());
        let place: &Self = Box::leak(Box::new(Self { start, length, action, next }));
        let mut first = LIST.load(Ordering::Acquire);
        loop {
            place.next.store(first, Ordering::Relaxed);
            let new = ptr::from_ref(place).cast_mut();
            match LIST.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return place,
                Err(now) => first = now,
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.hidden.iter().for_each(|place| place.free());
        // SAFETY: `from_raw` was promised that this mapping is ours alone, and nothing uses it any more.
        let result = unsafe { libc::munmap(self.start.as_ptr(), self.length) };
        if result != 0 {
            tracing::warn!(errno = %Errno::last(), "munmap of a device page failed");
        }
    }
}
