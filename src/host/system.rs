//! The unsafe parts of the operating system's interface: the verbs ioctl, commands of the
//! connection manager, mappings of device pages, file descriptors that the kernel opens or a
//! reactor watches, handlers that run in forked children, and a page that is cleared in children.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, Ipv6Addr};
#[cfg(feature = "tokio")]
use std::os::fd::{AsFd, RawFd};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use uverbs_mlx5::mmio::InChild;
use uverbs_uapi::RDMA_VERBS_IOCTL;
use uverbs_uapi::cm::{self, Message};
use uverbs_uapi::objects::{Attr, kind};
use uverbs_uapi::request::Request;

use super::channel::Access;
use crate::error::{Error, ErrorKind};

#[cfg(feature = "tokio")]
use ::tokio::io::{Interest, unix::AsyncFd};
#[cfg(feature = "soft")]
use uverbs_soft::chardev::{CmFile, OpenFile};

/// A complete request, as an ioctl takes it.
pub(crate) struct Call<'r> {
    header: *mut u8,
    request: PhantomData<&'r mut ()>,
}

impl<'r> Call<'r> {
    pub(super) fn new<M>(request: &'r mut Request<'_, M>) -> Self {
        Self { header: request.as_mut_ptr(), request: PhantomData }
    }

    /// Sends it to the kernel.
    pub(super) fn send(self, file: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: a `Request` is a well-formed header with its attributes; every pointer in it
        // comes from a reference that it borrows, with that reference's length. Some commands
        // contain addresses of memory that the device will use (queues, doorbell records,
        // registered memory): the object types that fill them in keep this memory until the object
        // is destroyed.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), RDMA_VERBS_IOCTL as _, self.header) };
        done(result)
    }

    /// Sends it to the software device.
    #[cfg(feature = "soft")]
    pub(super) fn send_soft(self, file: &OpenFile) -> io::Result<()> {
        // SAFETY: as for `send`.
        Ok(unsafe { file.ioctl(self.header) }?)
    }
}

/// The result of a system call. An [`Errno`] would lose numbers that have no name in C.
fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A complete command for the connection manager, as `write(2)` takes it.
pub(crate) struct Written<'r> {
    message: Message,
    memory: PhantomData<&'r mut [u8]>,
}

impl<'r> Written<'r> {
    /// A command whose answer the kernel writes to `memory`, or whose value it reads there.
    pub(super) fn new<C: cm::Command>(mut body: C, memory: &'r mut [u8]) -> Self {
        body.name_memory(memory.as_mut_ptr().expose_provenance() as u64, memory.len());
        Self { message: Message::with_output(&body, memory.len()), memory: PhantomData }
    }

    /// Writes it to the kernel's node.
    pub(super) fn send(self, file: BorrowedFd<'_>) -> io::Result<()> {
        let bytes = self.message.as_bytes();
        // SAFETY: the only memory that the command names is borrowed exclusively until the end of
        // this call, and its header has the length of that memory.
        let result = unsafe { libc::write(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
        done(result as _)
    }

    /// Writes it to the software device's node.
    #[cfg(feature = "soft")]
    pub(super) fn send_soft(self, file: &CmFile, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let bytes = self.message.as_bytes();
        // SAFETY: as for `send`.
        let written = unsafe { file.write(descriptor, bytes.as_ptr(), bytes.len()) };
        written.map(drop).map_err(CmFile::error)
    }
}

/// Joins a group for packets from one source, on the device with the address `interface`.
pub(crate) fn join_source(
    socket: BorrowedFd<'_>,
    group: Ipv4Addr,
    source: Ipv4Addr,
    interface: Ipv4Addr,
) -> Result<(), Errno> {
    let address = |address: Ipv4Addr| libc::in_addr { s_addr: u32::from(address).to_be() };
    let request = libc::ip_mreq_source {
        imr_multiaddr: address(group),
        imr_interface: address(interface),
        imr_sourceaddr: address(source),
    };
    let (level, option) = (libc::IPPROTO_IP, libc::IP_ADD_SOURCE_MEMBERSHIP);
    let length = size_of::<libc::ip_mreq_source>() as libc::socklen_t;
    let value = ptr::from_ref(&request).cast();
    // SAFETY: the option reads `length` bytes of a request that is alive during the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    Errno::result(result).map(drop)
}

/// `struct group_source_req` (include/uapi/linux/in.h).
#[repr(C)]
struct GroupSource {
    interface: u32,
    group: libc::sockaddr_storage,
    source: libc::sockaddr_storage,
}

/// Joins a group for packets from one source, on the device with the index `interface`.
pub(crate) fn join_source_v6(
    socket: BorrowedFd<'_>,
    group: Ipv6Addr,
    source: Ipv6Addr,
    interface: u32,
) -> Result<(), Errno> {
    let [group, source] = [group, source].map(storage_v6);
    let request = GroupSource { interface, group, source };
    let (level, option) = (libc::IPPROTO_IPV6, libc::MCAST_JOIN_SOURCE_GROUP);
    let length = size_of::<GroupSource>() as libc::socklen_t;
    let value = ptr::from_ref(&request).cast();
    // SAFETY: the option reads `length` bytes of a request that is alive during the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    Errno::result(result).map(drop)
}

fn storage_v6(address: Ipv6Addr) -> libc::sockaddr_storage {
    // SAFETY: all fields are numbers, and zero is a value of each.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let address = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: 0,
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: address.octets() },
        sin6_scope_id: 0,
    };
    // SAFETY: a sockaddr_storage has the size and alignment of every socket address.
    unsafe { ptr::from_mut(&mut storage).cast::<libc::sockaddr_in6>().write(address) };
    storage
}

/// The file that the kernel opened when it executed `request`. Consumes the request, so that the
/// file has one owner.
pub(crate) fn opened<M>(
    verb: &'static str,
    request: Request<'_, M>,
    file: Attr<M, kind::NewFd>,
) -> crate::error::Result<OwnedFd> {
    owned(verb, request.opened(file).unwrap_or(-1))
}

/// The file whose descriptor is in the answer to a write command that was just sent. Consumes the
/// answer, so that the file has one owner.
pub(super) fn opened_by_write<A>(
    verb: &'static str,
    answer: A,
    fd: impl FnOnce(&A) -> i32,
) -> crate::error::Result<(A, OwnedFd)> {
    let file = owned(verb, fd(&answer))?;
    Ok((answer, file))
}

fn owned(verb: &'static str, fd: i32) -> crate::error::Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::new(verb, ErrorKind::Refused, "the kernel gave no file descriptor"));
    }
    // SAFETY: the kernel has just opened this descriptor for this process, and the caller consumed
    // the answer with it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A file descriptor for a tokio reactor, which `owner` keeps open.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub(crate) struct Watched<T> {
    owner: T,
    fd: RawFd,
}

/// The conditions that end the wait for an event file. After its device was removed, the kernel
/// reports only an error (core/uverbs_main.c, `ib_uverbs_event_poll`).
#[cfg(feature = "tokio")]
pub(crate) const READABLE: Interest = Interest::READABLE.add(Interest::ERROR);

#[cfg(feature = "tokio")]
impl<T: AsFd> Watched<T> {
    /// Registers the descriptor for reading.
    ///
    /// # Errors
    /// Errors of `epoll_ctl(2)`.
    pub(crate) fn register(owner: T) -> std::io::Result<AsyncFd<Self>> {
        let fd = owner.as_fd().as_raw_fd();
        // SAFETY: `as_raw_fd` returns the same number at each call. The descriptor is open as long
        // as `owner` can be borrowed (`BorrowedFd`): this value never changes or replaces `owner`,
        // returns only shared references to it, and keeps it until the reactor has deregistered it.
        let registered = unsafe { AsyncFd::register_with_interest(Self { owner, fd }, READABLE) };
        registered.map_err(|error| error.into_parts().1)
    }
}

#[cfg(feature = "tokio")]
impl<T> Watched<T> {
    /// The owner of the descriptor.
    pub(crate) fn owner(&self) -> &T {
        &self.owner
    }
}

#[cfg(feature = "tokio")]
impl<T> AsRawFd for Watched<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

/// A mapping of device pages; unmapped when dropped.
///
/// It gives access only by atomics and volatile reads: the pages are registers, or memory that the
/// device and the kernel write.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    length: usize,
    /// Its entry in the list of pages that are replaced in forked children.
    hidden: Option<&'static Place>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and munmap may be called from any
// thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` allows only the address, atomics and volatile reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file` from `offset` on, shared.
    ///
    /// # Errors
    /// Errors of `mmap(2)`.
    pub(super) fn of_file(
        file: BorrowedFd<'_>,
        length: usize,
        access: Access,
        offset: u64,
    ) -> Result<Self, Errno> {
        let offset = i64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let (protection, fd) = (access.protection(), file.as_raw_fd());
        // SAFETY: a new shared mapping, at an address that the kernel chooses, replaces no other
        // mapping.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, offset)
        };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: just mapped.
        unsafe { Self::new(start, length) }
    }

    /// As [`Mapping::of_file`], of an open file of the software device.
    #[cfg(feature = "soft")]
    pub(super) fn of_soft_file(
        file: &OpenFile,
        length: usize,
        access: Access,
        offset: u64,
    ) -> Result<Self, Errno> {
        let offset = i64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let (protection, flags) = (access.protection(), libc::MAP_SHARED);
        // SAFETY: no address is requested, so the mapping is new and replaces no other one.
        unsafe { Self::new(file.mmap(ptr::null_mut(), length, protection, flags, offset)?, length) }
    }

    /// Takes over a mapping.
    ///
    /// # Safety
    /// `length` bytes at `start`, unless that is null, are a mapping that nothing else uses.
    unsafe fn new(start: *mut c_void, length: usize) -> Result<Self, Errno> {
        let start = NonNull::new(start).ok_or(Errno::ENOMEM)?;
        Ok(Self { start, length, hidden: None })
    }

    /// Address of the first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// The address of `size` bytes at `offset`, if they are inside the mapping and aligned to their
    /// size.
    fn at(&self, offset: usize, size: usize) -> Option<*mut u8> {
        let end = offset.checked_add(size)?;
        let fits = end <= self.length && offset % size == 0;
        fits.then(|| self.as_ptr().wrapping_add(offset))
    }

    /// A word of memory, which the device or the kernel may write, too. A store to a read-only
    /// mapping faults.
    pub(crate) fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        let word = self.at(offset, 4)?;
        // SAFETY: in the mapping, which begins with a page, and aligned; mapped as long as `self`
        // lives. Pages of devices are accessed by atomics and volatile reads only.
        Some(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    /// As [`Mapping::atomic_u32`], of eight bytes.
    pub(crate) fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        let word = self.at(offset, 8)?;
        // SAFETY: as for `atomic_u32`.
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    /// Reads a device register of four bytes, without changing its byte order.
    pub(crate) fn read_register(&self, offset: usize) -> Option<u32> {
        let register = self.at(offset, 4)?;
        // SAFETY: as for `atomic_u32`; volatile, because it is a register.
        Some(unsafe { register.cast::<u32>().read_volatile() })
    }

    /// Makes forked children replace the mapping by ordinary pages, so that their stores do not
    /// reach the device.
    pub(crate) fn hidden_from_children(mut self) -> Self {
        let start = self.start.as_ptr().addr();
        // SAFETY: the mapping is unmapped only after it was taken off the list (`drop`).
        let list = || unsafe { Place::list(start, self.length, replace_pages) };
        self.hidden.get_or_insert_with(list);
        self
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.hidden.iter().for_each(|place| place.free());
        // SAFETY: only this value has used the mapping, and the references that it gave out borrow
        // it.
        let result = unsafe { libc::munmap(self.start.as_ptr(), self.length) };
        if result != 0 {
            tracing::warn!(errno = %Errno::last(), "munmap of a device page failed");
        }
    }
}

/// An object that is changed in forked children before `fork` returns there. The change must not
/// lock or allocate, because other threads of the parent may have held locks at the fork.
pub(crate) trait Inherited: Sync {
    /// Makes the child's copy harmless.
    fn in_child(&self, child: InChild);
}

/// Objects whose [`Inherited::in_child`] is called in forked children, as long as this value lives.
#[derive(Debug)]
pub(crate) struct Listed<T: Inherited> {
    place: &'static Place,
    #[allow(dead_code, reason = "the list points to it")]
    objects: Arc<[T]>,
}

impl<T: Inherited> Listed<T> {
    pub(crate) fn new(objects: Arc<[T]>) -> Self {
        let start = objects.as_ptr().expose_provenance();
        // SAFETY: the objects are dropped only after they were taken off the list (`drop`).
        let place = unsafe { Place::list(start, objects.len(), call::<T>) };
        Self { place, objects }
    }
}

impl<T: Inherited> Drop for Listed<T> {
    fn drop(&mut self) {
        self.place.free();
    }
}

/// # Safety
/// There are `count` values of `T` at `start`, and the process is a forked child in its handler.
unsafe fn call<T: Inherited>(start: usize, count: usize) {
    let start = ptr::with_exposed_provenance::<T>(start);
    // SAFETY: the caller's promise. The handler calls this before `fork` returns, and memory of
    // objects that a child cannot destroy is kept (`UntilClose::keep`).
    let (objects, child) = unsafe { (std::slice::from_raw_parts(start, count), InChild::new()) };
    objects.iter().for_each(|object| object.in_child(child));
}

/// Replaces device pages by ordinary memory.
///
/// # Safety
/// `length` bytes at `start` are a mapping of the parent's.
unsafe fn replace_pages(start: usize, length: usize) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the caller's promise; the library never reads back its stores to the mapping.
    unsafe { libc::mmap(ptr::without_provenance_mut(start), length, protection, flags, -1, 0) };
}

type Action = unsafe fn(usize, usize);

const _: () = assert!(size_of::<Place>() == align_of::<Place>());

/// An entry of the list that the handler in children visits. Entries are reused and never freed,
/// because a lock cannot guard the list. Each is aligned to its size, so that it is on one page:
/// the kernel copies the parent's memory page by page while other threads run, and a child must not
/// see half of an entry's old contents and half of its new contents.
#[derive(Debug)]
#[repr(align(32))]
struct Place {
    /// Address of the objects; [`FREE`] in an unused entry.
    start: AtomicUsize,
    length: AtomicUsize,
    /// An [`Action`].
    action: AtomicPtr<()>,
    next: AtomicPtr<Place>,
}

const FREE: usize = 0;
/// Unused entries. The handler in children does not use it.
static SPARE: Mutex<Vec<&'static Place>> = Mutex::new(Vec::new());
static LIST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());
static FORKS: Forks = Forks { count: AtomicU64::new(0), unwatched: AtomicU64::new(0) };
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The number of forks between the process that first called this function and the calling process.
pub(crate) fn generation() -> u64 {
    watch_forks();
    GENERATION.load(Ordering::Relaxed)
}

/// A word that the kernel clears in forked children, also in those of a bare `clone`. Null until it
/// is made; [`NO_WORD`] before Linux 4.14, which has no `MADV_WIPEONFORK`.
static ID: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
static NO_WORD: AtomicU32 = AtomicU32::new(0);

/// The process's id, which is cached after the first call.
pub(crate) fn process_id() -> u32 {
    let mut word = ID.load(Ordering::Acquire);
    if word.is_null() {
        // If two threads get here at once, one of them leaks a page.
        word = wiped_page().unwrap_or(ptr::from_ref(&NO_WORD).cast_mut());
        ID.store(word, Ordering::Release);
    }
    // SAFETY: a word that is never freed.
    let word = unsafe { &*word };
    let known = word.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let id = std::process::id();
    if !ptr::eq(word, &NO_WORD) {
        word.store(id, Ordering::Relaxed);
    }
    id
}

/// A page of zeros, which is cleared in forked children.
fn wiped_page() -> Option<*mut AtomicU32> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let length = size_of::<AtomicU32>();
    // SAFETY: a new mapping at an address that the kernel chooses; madvise changes only its
    // behaviour at forks.
    unsafe {
        let page = libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0);
        let is_wiped =
            page != libc::MAP_FAILED && libc::madvise(page, length, libc::MADV_WIPEONFORK) == 0;
        is_wiped.then_some(page.cast())
    }
}

/// The number of forks of this process since the first call. A fork counts when it begins, also in
/// the child. If forks cannot be watched, each call counts as a fork.
pub(crate) fn forks() -> u64 {
    watch_forks();
    FORKS.number()
}

struct Forks {
    count: AtomicU64,
    /// 1 if forks are not watched: each call then returns a new number, so that no caller concludes
    /// that there was no fork.
    unwatched: AtomicU64,
}

impl Forks {
    fn number(&self) -> u64 {
        self.count.fetch_add(self.unwatched.load(Ordering::SeqCst), Ordering::SeqCst)
    }
}

fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    once_at_least(&WATCHED, || {
        // SAFETY: the handlers use only atomics, and in the child call the actions of the list. If
        // they are registered twice, they do so twice.
        let result = unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) };
        if result != 0 {
            FORKS.unwatched.store(1, Ordering::SeqCst);
            tracing::warn!("pthread_atfork failed: forked children are not watched");
        }
    });
}

/// Runs `register`, unless an earlier call has. Threads that call it at the same time may each run
/// it, instead of waiting for each other: after a fork the other thread might not exist.
fn once_at_least(is_done: &AtomicBool, register: impl FnOnce()) {
    if !is_done.load(Ordering::Acquire) {
        register();
        is_done.store(true, Ordering::Release);
    }
}

extern "C" fn before_fork() {
    FORKS.count.fetch_add(1, Ordering::SeqCst);
}

/// Runs in forked children, before `fork` returns there.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for place in Place::all() {
        let start = place.start.load(Ordering::Acquire);
        if start != FREE {
            let action = place.action.load(Ordering::Relaxed);
            // SAFETY: an `Action`, stored before `start`. The parent had not freed the place, so
            // the contract of `Place::list` allows the call.
            unsafe {
                let action = std::mem::transmute::<*mut (), Action>(action);
                action(start, place.length.load(Ordering::Relaxed));
            }
        }
    }
}

/// The free entries; `None` in a forked child if they are locked, perhaps for ever.
fn spare() -> Option<MutexGuard<'static, Vec<&'static Place>>> {
    if GENERATION.load(Ordering::Relaxed) == 0 {
        return Some(SPARE.lock().unwrap_or_else(PoisonError::into_inner));
    }
    SPARE.try_lock().ok()
}

impl Place {
    fn all() -> impl Iterator<Item = &'static Self> {
        // SAFETY: null or a leaked value.
        let load =
            |at: &AtomicPtr<Self>| unsafe { at.load(Ordering::Acquire).cast_const().as_ref() };
        std::iter::successors(load(&LIST), move |place| load(&place.next))
    }

    /// Makes forked children call `action(start, length)`.
    ///
    /// # Safety
    /// `action(start, length)` may be called in a child of a fork before [`Place::free`].
    unsafe fn list(start: usize, length: usize, action: Action) -> &'static Self {
        watch_forks();
        let place = spare().and_then(|mut spare| spare.pop()).unwrap_or_else(Self::grow);
        place.length.store(length, Ordering::Relaxed);
        place.action.store(action as *mut (), Ordering::Relaxed);
        place.start.store(start, Ordering::Release);
        place
    }

    /// Removes the objects from the list, before they are dropped.
    fn free(&'static self) {
        self.start.store(FREE, Ordering::Release);
        if let Some(mut spare) = spare() {
            spare.push(self);
        }
    }

    fn grow() -> &'static Self {
        let (start, length) = (AtomicUsize::new(FREE), AtomicUsize::new(0));
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

#[cfg(test)]
mod tests;
