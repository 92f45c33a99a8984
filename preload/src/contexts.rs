//! The program's contexts whose device is one of this library's nodes.
//!
//! `ibv_poll_cq` and `ibv_create_cq_ex` are inline functions of `<infiniband/verbs.h>`. They call
//! the provider through tables in and around `struct ibv_context`. So the hooks that open a context
//! store functions of this library in those tables ([`polling`], [`extended`]).

use std::ffi::{CStr, c_int, c_void};
use std::mem::{ManuallyDrop, offset_of, transmute};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use nix::errno::Errno;

use crate::node::{self, Node};
use crate::{extended, polling};

pub(crate) const VERBS: &CStr = c"libibverbs.so.1";
pub(crate) const MLX5: &CStr = c"libmlx5.so.1";

/// Functions in `struct ibv_context_ops`.
const OPERATIONS: usize = 32;

/// The index of `poll_cq` among them.
const POLL_CQ: usize = 11;

/// `struct ibv_context` of `<infiniband/verbs.h>`.
#[repr(C)]
pub struct Context {
    device: *mut c_void,
    operations: [*mut c_void; OPERATIONS],
    cmd_fd: c_int,
    async_fd: c_int,
    num_comp_vectors: c_int,
    mutex: libc::pthread_mutex_t,
    abi_compat: *mut c_void,
}

/// `struct verbs_context`, from `create_cq_ex` on. Programs use a pointer to its `context`.
#[repr(C)]
struct VerbsContext {
    create_cq_ex: *mut c_void,
    between: [*mut c_void; 13],
    size: usize,
    context: Context,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(Context, cmd_fd) == 264 && offset_of!(Context, abi_compat) == 320);
    assert!(offset_of!(VerbsContext, context) == 120);
};

/// `__VERBS_ABI_IS_EXTENDED`: the context is part of a `struct verbs_context`.
const EXTENDED: usize = usize::MAX;

/// A context of the program on one of this library's nodes.
pub(crate) struct Slot {
    is_taken: AtomicBool,
    /// Null while the slot is not in use. Stored after the other fields.
    context: AtomicPtr<Context>,
    poll_cq: AtomicPtr<c_void>,
    create_cq_ex: AtomicPtr<c_void>,
    get_cq_event: AtomicPtr<c_void>,
    /// From [`Weak::into_raw`]: the slot does not keep the node open.
    node: AtomicPtr<Node>,
}

/// Without a lock, which could be locked forever in a forked child. Further contexts keep the
/// provider's functions.
static SLOTS: [Slot; 64] = [const { Slot::new() }; 64];

impl Slot {
    const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            context: AtomicPtr::new(ptr::null_mut()),
            poll_cq: AtomicPtr::new(ptr::null_mut()),
            create_cq_ex: AtomicPtr::new(ptr::null_mut()),
            get_cq_event: AtomicPtr::new(ptr::null_mut()),
            node: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub(crate) fn find(context: *mut Context) -> Option<&'static Self> {
        if context.is_null() {
            return None;
        }
        SLOTS.iter().find(|slot| slot.context.load(Ordering::Acquire) == context)
    }

    fn take() -> Option<&'static Self> {
        SLOTS.iter().find(|slot| !slot.is_taken.swap(true, Ordering::AcqRel))
    }

    /// The provider's function, which [`polling::poll_cq`] replaces.
    pub(crate) fn poll_cq(&self) -> *mut c_void {
        self.poll_cq.load(Ordering::Relaxed)
    }

    /// The provider's function, which [`extended::create_cq_ex`] replaces.
    pub(crate) fn create_cq_ex(&self) -> *mut c_void {
        self.create_cq_ex.load(Ordering::Relaxed)
    }

    /// libibverbs' function `ibv_get_cq_event`; null if there is none. The library stays loaded
    /// while the context is open.
    pub(crate) fn get_cq_event(&self) -> *mut c_void {
        self.get_cq_event.load(Ordering::Relaxed)
    }

    /// Stores this library's functions in a context's tables.
    ///
    /// # Safety
    /// An open context that no other thread uses yet.
    unsafe fn set(&self, context: *mut Context, node: Weak<Node>) {
        // SAFETY: the caller vouches for `context`.
        let operation = unsafe { &mut (*context).operations[POLL_CQ] };
        let poll_cq = std::mem::replace(operation, polling::poll_cq as *mut c_void);
        self.poll_cq.store(poll_cq, Ordering::Relaxed);
        // SAFETY: the caller vouches for `context`.
        if let Some(operation) = unsafe { create_cq_ex_of(context) } {
            let create_cq_ex = std::mem::replace(operation, extended::create_cq_ex as *mut c_void);
            self.create_cq_ex.store(create_cq_ex, Ordering::Relaxed);
        }
        self.get_cq_event.store(next(VERBS, c"ibv_get_cq_event"), Ordering::Relaxed);
        self.node.store(node.into_raw().cast_mut(), Ordering::Relaxed);
        self.context.store(context, Ordering::Release);
    }

    /// # Safety
    /// No thread uses a queue or channel of the slot's context, now or later.
    unsafe fn clear(&self) {
        self.context.store(ptr::null_mut(), Ordering::Release);
        let node = self.node.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: from `into_raw` in `set`; by this function's contract, `node` is not called any
        // more.
        drop(unsafe { Weak::from_raw(node) });
        self.is_taken.store(false, Ordering::Release);
    }

    /// The node, if it is still open.
    ///
    /// # Safety
    /// The slot is in use, and is not cleared during the call.
    pub(crate) unsafe fn node(&self) -> Option<Arc<Node>> {
        // SAFETY: from `into_raw` in `set`, which was before the context was stored; not yet
        // dropped, by this function's contract. The slot still owns the weak reference.
        let node = ManuallyDrop::new(unsafe { Weak::from_raw(self.node.load(Ordering::Relaxed)) });
        node.upgrade()
    }
}

/// The entry `create_cq_ex` of a context's tables, if the provider has one.
///
/// # Safety
/// An open context that no other thread uses yet.
unsafe fn create_cq_ex_of<'a>(context: *mut Context) -> Option<&'a mut *mut c_void> {
    // SAFETY: the caller vouches for `context`.
    if unsafe { (*context).abi_compat }.addr() != EXTENDED {
        return None;
    }
    // SAFETY: such a context is part of a `struct verbs_context`, with newer fields in front of it.
    let verbs = unsafe { &mut *context.byte_sub(offset_of!(VerbsContext, context)).cast() };
    let VerbsContext { create_cq_ex, size, .. } = verbs;
    (*size >= size_of::<VerbsContext>() && !create_cq_ex.is_null()).then_some(create_cq_ex)
}

/// Stores this library's functions in the tables of a context, if its device is one of this
/// library's nodes.
///
/// # Safety
/// `context` is null, or an open context that no other thread uses yet.
unsafe fn watch(context: *mut Context) -> *mut Context {
    // SAFETY: the caller vouches for `context`.
    let descriptor = (!context.is_null()).then(|| unsafe { (*context).cmd_fd });
    let before = Errno::last();
    if let Some(node) = descriptor.and_then(node::find) {
        if let Some(slot) = Slot::take() {
            // SAFETY: the caller vouches for `context`.
            unsafe { slot.set(context, Arc::downgrade(&node)) };
        }
    }
    before.set();
    context
}

/// The function `name` of the library `library`; null, with `errno` set, if there is none.
pub(crate) fn next(library: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: C strings. The name of the library is needed, because a search in the order of
    // libraries does not find one that was loaded for only one module of the program.
    let function = unsafe {
        let mut function = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if function.is_null() {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
            let library = libc::dlopen(library.as_ptr(), flags);
            if !library.is_null() {
                function = libc::dlsym(library, name.as_ptr());
            }
        }
        function
    };
    if function.is_null() {
        Errno::ENOSYS.set();
    }
    function
}

/// Functions that open a context with the library's own function, and pass it to [`watch`].
macro_rules! opening {
    ($($library:ident $c_name:literal $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> *mut Context {
            type Open = unsafe extern "C" fn($($type),*) -> *mut Context;
            let function = next($library, $c_name);
            if function.is_null() {
                return ptr::null_mut();
            }
            // SAFETY: the library's function of this name has this type.
            let open: Open = unsafe { transmute(function) };
            // SAFETY: the program's own call, which has just opened the context.
            unsafe { watch(open($($argument),*)) }
        }
    )*};
}

opening! {
    VERBS c"ibv_open_device" ibv_open_device(device: *mut c_void);
    VERBS c"ibv_import_device" ibv_import_device(descriptor: c_int);
    MLX5 c"mlx5dv_open_device" mlx5dv_open_device(device: *mut c_void, attributes: *mut c_void);
}

/// `ibv_close_device(3)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    if let Some(slot) = Slot::find(context) {
        // SAFETY: a program that closes a context no longer uses its queues and channels.
        unsafe { slot.clear() };
    }
    let function = next(VERBS, c"ibv_close_device");
    if function.is_null() {
        return -1;
    }
    // SAFETY: libibverbs' function of this name has this type.
    let close: unsafe extern "C" fn(*mut Context) -> c_int = unsafe { transmute(function) };
    // SAFETY: the program's own call.
    unsafe { close(context) }
}
