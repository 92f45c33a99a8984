//! Protection domains, parent domains and thread domains.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::Arc;

use uverbs::ProtectionDomain;
use uverbs::memory::{Buffer, QueueMemory, QueueUse};

use crate::abi::*;
use crate::context::Context;
use crate::grown::{self, grown};
use crate::result::{destroy, null, pointer, refused};

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `_PD_CONTEXT`.
const ALLOCATORS: u32 = 1;
const PD_CONTEXT: u32 = 2;
/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC` of rdma-core 65: rings in memory that a
/// confidential guest shares with its host.
const UNPROTECTED: u32 = 4;
/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: *mut c_void = usize::MAX as *mut c_void;

grown! {
    ibv_parent_domain_init_attr until alloc by comp_mask {
        ALLOCATORS => alloc,
        ALLOCATORS => free,
        PD_CONTEXT => pd_context,
    }
}

/// A protection domain, or a parent domain.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) base: ibv_pd,
    pub(crate) domain: Option<ProtectionDomain>,
    /// Objects made from it, and parent domains, hold a clone.
    pub(crate) users: Arc<()>,
    parent: Option<Parent>,
}

/// The additional state of a parent domain.
struct Parent {
    #[allow(dead_code, reason = "held for its lifetime")]
    of: Arc<()>,
    thread: Option<Arc<()>>,
    memory: Option<QueueMemory>,
}

/// A thread domain: queues of parent domains that have one need no lock.
#[repr(C)]
struct Td {
    base: ibv_td,
    users: Arc<()>,
    #[allow(dead_code, reason = "its context stays as long as it does")]
    library: uverbs::Context,
}

impl Pd {
    /// The domain behind a program's pointer.
    ///
    /// # Safety
    /// `pd` is from this module, and not deallocated.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: `base` is at offset 0.
        unsafe { &*pd.cast() }
    }

    /// The library's handle.
    pub(crate) fn domain(&self) -> Option<&ProtectionDomain> {
        self.domain.as_ref()
    }

    /// Whether it is a parent domain.
    pub(crate) fn is_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Whether one thread at a time uses the objects that are created in it.
    pub(crate) fn is_of_one_thread(&self) -> bool {
        self.parent.as_ref().is_some_and(|parent| parent.thread.is_some())
    }

    /// The allocator for the rings of the domain's completion queues.
    pub(crate) fn memory(&self) -> Option<&QueueMemory> {
        self.parent.as_ref()?.memory.as_ref()
    }
}

/// `ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's context.
    let made = unsafe { Context::of(context) }.library.alloc_pd();
    pointer(made.map(|domain| plain(context, domain)))
}

fn plain(context: *mut ibv_context, domain: ProtectionDomain) -> Box<Pd> {
    let base = ibv_pd { context, handle: domain.kernel_handle() };
    Box::new(Pd { base, domain: Some(domain), users: Arc::default(), parent: None })
}

/// `ibv_dealloc_pd`, which also deallocates parent domains.
pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's domain; only this call changes its fields.
    let domain = unsafe { &mut *pd.cast::<Pd>() };
    if Arc::strong_count(&domain.users) > 1 {
        return refused(libc::EBUSY);
    }
    if domain.parent.is_none() {
        let errno = destroy(&mut domain.domain, ProtectionDomain::destroy);
        if errno != 0 {
            return errno;
        }
    }
    // SAFETY: from `pointer`, and freed once.
    unsafe { crate::observe::free(pd.cast::<Pd>()) };
    0
}

/// `ibv_import_pd`.
pub(crate) unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: the caller's context.
    let made = unsafe { Context::of(context) }.library.import_pd(handle);
    pointer(made.map(|domain| plain(context, domain)))
}

/// `ibv_unimport_pd`.
pub(crate) unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: from `import_pd`, and freed once.
    unsafe { crate::observe::free(pd.cast::<Pd>()) };
}

/// `ibv_alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attributes: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the caller's struct.
    if unsafe { (*attributes).comp_mask } != 0 {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's context.
    let library = uverbs::Context::clone(&unsafe { Context::of(context) }.library);
    let td = Td { base: ibv_td { context }, users: Arc::default(), library };
    Box::into_raw(Box::new(td)).cast()
}

/// `ibv_dealloc_td`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller's thread domain.
    if Arc::strong_count(unsafe { &(*td.cast::<Td>()).users }) > 1 {
        return refused(libc::EBUSY);
    }
    // SAFETY: from `alloc_td`, and freed once.
    unsafe { crate::observe::free(td.cast::<Td>()) };
    0
}

/// `ibv_alloc_parent_domain`.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attributes: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the caller's struct and context.
    let attributes = unsafe { grown::read(attributes) };
    if attributes.comp_mask & UNPROTECTED != 0 {
        return null(libc::EOPNOTSUPP);
    }
    if attributes.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 || attributes.pd.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's domain.
    let of = unsafe { Pd::of(attributes.pd) };
    let Some(domain) = of.domain() else { return null(libc::EINVAL) };
    let thread = (!attributes.td.is_null())
        // SAFETY: the caller's thread domain.
        .then(|| unsafe { (*attributes.td.cast::<Td>()).users.clone() });
    let base = ibv_pd { context, handle: of.base.handle };
    let parent = Parent { of: of.users.clone(), thread, memory: None };
    let made = Box::into_raw(Box::new(Pd {
        base,
        domain: Some(domain.clone()),
        users: Arc::default(),
        parent: Some(parent),
    }));
    if let Some(memory) = allocators(made.cast(), &attributes) {
        // SAFETY: just made; no other reference exists.
        let made = unsafe { &mut *made };
        made.domain = Some(domain.with_queue_memory(&memory));
        made.parent.iter_mut().for_each(|parent| parent.memory = Some(memory.clone()));
    }
    made.cast()
}

/// A program's allocator, and the arguments for its calls.
#[derive(Clone, Copy)]
struct Allocators {
    pd: *mut ibv_pd,
    context: *mut c_void,
    alloc: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void,
    free: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64),
}

// SAFETY: the program's own functions and pointers, which the verbs let any thread use.
unsafe impl Send for Allocators {}
// SAFETY: as above.
unsafe impl Sync for Allocators {}

fn allocators(pd: *mut ibv_pd, attributes: &ibv_parent_domain_init_attr) -> Option<QueueMemory> {
    let (alloc, free, context) = (attributes.alloc?, attributes.free?, attributes.pd_context);
    let allocators = Allocators { pd, context, alloc, free };
    Some(QueueMemory::new(move |length, purpose| allocators.allocate(length, purpose)))
}

impl Allocators {
    fn allocate(self, length: usize, purpose: QueueUse) -> io::Result<Buffer> {
        let kind = resource_type(purpose);
        let alignment = if purpose == QueueUse::DoorbellRecord { 64 } else { 4096 };
        // SAFETY: the program's function, with what it was registered with.
        let start = unsafe { (self.alloc)(self.pd, self.context, length, alignment, kind) };
        if start == USE_DEFAULT {
            return Buffer::new(length);
        }
        if start.is_null() {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        // SAFETY: `length` bytes that the program just gave; what is written is theirs.
        unsafe { start.cast::<u8>().write_bytes(0, length) };
        let address = start.expose_provenance();
        let give_back = move || self.free(address, kind);
        // SAFETY: the program promised the memory until its `free` is called.
        Ok(unsafe { Buffer::from_raw(start.cast(), length, give_back) })
    }

    fn free(self, address: usize, kind: u64) {
        let start = ptr::with_exposed_provenance_mut(address);
        // SAFETY: the program's function, with what its `alloc` gave.
        unsafe { (self.free)(self.pd, self.context, start, kind) };
    }
}

/// `MLX5DV_RES_TYPE_QP` and its siblings.
fn resource_type(purpose: QueueUse) -> u64 {
    const MLX5: u64 = 1 << 32;
    match purpose {
        QueueUse::WorkRequests => MLX5 | 1,
        QueueUse::DoorbellRecord => MLX5 | 3,
        QueueUse::SharedReceives => MLX5 | 4,
        QueueUse::Completions => MLX5 | 5,
        _ => MLX5 | 2,
    }
}
