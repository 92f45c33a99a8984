//! Contexts: opening and closing devices, and the table of functions behind the header's inline
//! functions.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::ptr;
use std::sync::{MutexGuard, Weak};

use uverbs::DeviceClock;
use uverbs::events::ObjectId;

use crate::abi::{EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::dv::Range;
use crate::forms::pick;
use crate::lazy::Lazy;
use crate::lock::Shared;
use crate::result::{failed, null};
use crate::{closed, cq, device, observe, poll, post, qp, receive, srq, verbs, window, wq};

/// A context. Programs get a pointer to `base.context`.
#[repr(C)]
pub(crate) struct Context {
    base: verbs_context,
    pub(crate) library: ManuallyDrop<uverbs::Context>,
    /// Objects that asynchronous events may be about.
    objects: Shared<HashMap<ObjectId, Object>>,
    clock: Lazy<Option<DeviceClock>>,
    /// QP numbers that the program has reserved.
    pub(crate) reserved: Shared<Vec<Range>>,
    /// A `cmd_fd` that `library` does not own: for an imported context the program's descriptor,
    /// for a software device an empty file, because programs duplicate the descriptor.
    #[allow(dead_code, reason = "held for its lifetime")]
    file: Option<OwnedFd>,
}

/// Name of the file that is `cmd_fd` of a software device.
const PLACEHOLDER: &std::ffi::CStr = c"uverbs-software-device";

fn placeholder() -> Option<OwnedFd> {
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(PLACEHOLDER.as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: just opened, and owned by nothing else.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a descriptor is a software device's `cmd_fd`.
fn is_placeholder(fd: c_int) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    link.is_ok_and(|link| link.to_string_lossy().contains(&*PLACEHOLDER.to_string_lossy()))
}

/// The object of an asynchronous event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Object {
    Cq(*const cq::Cq),
    Qp(*const qp::Qp),
    Srq(*const srq::Srq),
    Wq(*const wq::Wq),
}

// SAFETY: the pointers are used under the rules of `events.rs` only.
unsafe impl Send for Object {}

impl Context {
    /// The context behind a program's pointer.
    ///
    /// # Safety
    /// `context` is from [`open_device`] or [`import_device`], and not closed.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        // SAFETY: the caller's pointer is to the last field of `base`, which is at offset 0.
        unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast() }
    }

    /// The pointer that programs are given.
    fn into_raw(self: Box<Self>) -> *mut ibv_context {
        // SAFETY: the field of an allocation that is never moved again.
        unsafe { &raw mut (*Box::into_raw(self)).base.context }
    }

    /// The objects of events; `None` in a forked child that cannot access them.
    pub(crate) fn objects(&self) -> Option<MutexGuard<'_, HashMap<ObjectId, Object>>> {
        self.objects.lock()
    }

    /// The device's clock, mapped at the first call; `None` if the device has none.
    pub(crate) fn clock(&self) -> Option<&DeviceClock> {
        self.clock.get_or(|| self.library.clock().ok()).as_ref()
    }

    /// Drops the open file. The result is valid as long as objects exist that hold the file open.
    ///
    /// # Safety
    /// From `Box::into_raw`; called once, after which nothing uses `library`.
    pub(crate) unsafe fn close(this: *mut Self) -> Weak<dyn Any + Send + Sync> {
        // SAFETY: the caller's promise.
        let (library, clock, file) =
            unsafe { (&mut (*this).library, &mut (*this).clock, &mut (*this).file) };
        drop((std::mem::take(clock), file.take()));
        // SAFETY: the caller's promise.
        unsafe { &(*this).reserved }.lock().iter_mut().for_each(|ranges| ranges.clear());
        let objects = library.lifetime();
        // SAFETY: dropped once.
        unsafe { ManuallyDrop::drop(library) };
        objects
    }

    fn new(device: *mut ibv_device, library: uverbs::Context, file: Option<OwnedFd>) -> Box<Self> {
        let own = file.as_ref().map(|file| file.as_fd()).or(library.as_fd());
        let vectors = library.attributes().map_or(1, |attributes| attributes.completion_vectors);
        let context = ibv_context {
            device,
            ops: observe::operations(operations()),
            cmd_fd: own.map_or(-1, |file| file.as_raw_fd()),
            async_fd: library.events_fd().as_raw_fd(),
            num_comp_vectors: vectors as c_int,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: EXTENDED,
        };
        Box::new(Self {
            base: table(context),
            library: ManuallyDrop::new(library),
            objects: Shared::default(),
            clock: Lazy::new(),
            reserved: Shared::default(),
            file,
        })
    }
}

const NONE: *mut c_void = ptr::null_mut();

/// The functions of `ibv_context.ops`. As in rdma-core, only two of libibverbs 1.0's slots are
/// filled, because programs do not use the others.
const OPERATIONS: ibv_context_ops = ibv_context_ops {
    _compat_query_device: verbs::query_device as *mut c_void,
    _compat_query_port: verbs::query_port as *mut c_void,
    _compat_alloc_pd: NONE,
    _compat_dealloc_pd: NONE,
    _compat_reg_mr: NONE,
    _compat_rereg_mr: NONE,
    _compat_dereg_mr: NONE,
    alloc_mw: verbs::alloc_mw,
    bind_mw: window::bind_mw,
    dealloc_mw: verbs::dealloc_mw,
    _compat_create_cq: NONE,
    poll_cq: poll::poll_cq,
    req_notify_cq: poll::req_notify_cq,
    _compat_cq_event: NONE,
    _compat_resize_cq: NONE,
    _compat_destroy_cq: NONE,
    _compat_create_srq: NONE,
    _compat_modify_srq: NONE,
    _compat_query_srq: NONE,
    _compat_destroy_srq: NONE,
    post_srq_recv: srq::post_srq_recv,
    _compat_create_qp: NONE,
    _compat_query_qp: NONE,
    _compat_modify_qp: NONE,
    _compat_destroy_qp: NONE,
    post_send: post::post_send,
    post_recv: receive::post_recv,
    _compat_create_ah: NONE,
    _compat_destroy_ah: NONE,
    _compat_attach_mcast: NONE,
    _compat_detach_mcast: NONE,
    _compat_async_event: NONE,
};

/// [`OPERATIONS`] with the variants for this processor.
fn operations() -> ibv_context_ops {
    ibv_context_ops {
        poll_cq: pick(poll::poll_cq, poll::poll_cq_newer),
        post_srq_recv: pick(srq::post_srq_recv, srq::post_srq_recv_newer),
        post_recv: pick(receive::post_recv, receive::post_recv_newer),
        ..OPERATIONS
    }
}

/// The functions below the `ibv_context`. The header answers EOPNOTSUPP for empty slots.
fn table(context: ibv_context) -> verbs_context {
    verbs_context {
        free_buf: NONE,
        alloc_buf: NONE,
        dm_export_dmabuf_fd: NONE,
        reg_mr_ex: NONE,
        dealloc_dmah: NONE,
        alloc_dmah: NONE,
        query_port: verbs::query_port_ex,
        advise_mr: verbs::advise_mr,
        alloc_null_mr: verbs::alloc_null_mr,
        read_counters: verbs::read_counters,
        attach_counters_point_flow: verbs::attach_counters_point_flow,
        create_counters: verbs::create_counters,
        destroy_counters: verbs::destroy_counters,
        reg_dm_mr: verbs::reg_dm_mr,
        alloc_dm: verbs::alloc_dm,
        free_dm: verbs::free_dm,
        modify_flow_action_esp: NONE,
        destroy_flow_action: verbs::destroy_flow_action,
        create_flow_action_esp: NONE,
        modify_qp_rate_limit: verbs::modify_qp_rate_limit,
        alloc_parent_domain: verbs::alloc_parent_domain,
        dealloc_td: verbs::dealloc_td,
        alloc_td: verbs::alloc_td,
        modify_cq: verbs::modify_cq,
        post_srq_ops: observe::tag_changes(),
        destroy_rwq_ind_table: verbs::destroy_rwq_ind_table,
        create_rwq_ind_table: verbs::create_rwq_ind_table,
        destroy_wq: verbs::destroy_wq,
        modify_wq: verbs::modify_wq,
        create_wq: verbs::create_wq,
        query_rt_values: verbs::query_rt_values,
        create_cq_ex: verbs::create_cq_ex,
        r#priv: NONE,
        query_device_ex: verbs::query_device_ex,
        ibv_destroy_flow: verbs::destroy_flow,
        ABI_placeholder2: verbs::destroy_flow,
        ibv_create_flow: verbs::create_flow,
        ABI_placeholder1: verbs::create_flow,
        open_qp: verbs::open_qp,
        create_qp_ex: verbs::create_qp_ex,
        get_srq_num: verbs::get_srq_num,
        create_srq_ex: verbs::create_srq_ex,
        open_xrcd: verbs::open_xrcd,
        close_xrcd: verbs::close_xrcd,
        _ABI_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context,
    }
}

/// `ibv_open_device`.
pub(crate) unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the caller's device.
    let wanted = unsafe { device::of(device) };
    closed::release();
    match wanted.library.open() {
        Ok(library) => {
            crate::soft::opened(&wanted.library);
            let file = if library.as_fd().is_none() { placeholder() } else { None };
            Context::new(device, library, file).into_raw()
        }
        Err(error) => null(failed(&error)),
    }
}

/// `ibv_close_device`. Objects that still exist keep the file open until they are destroyed.
pub(crate) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: from `into_raw`, and closed once.
    unsafe { closed::close(context.byte_sub(offset_of!(verbs_context, context)).cast()) };
    0
}

/// `ibv_import_device`: a context on an open file of another process. Closing the context closes
/// `cmd_fd`, as in libibverbs. If the import fails, the descriptor stays the program's.
pub(crate) unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut ibv_context {
    if is_placeholder(cmd_fd) {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: duplicates a descriptor, if it is one.
    let own = unsafe { libc::fcntl(cmd_fd, libc::F_DUPFD_CLOEXEC, 0) };
    match nix::errno::Errno::last_raw() {
        _ if own >= 0 => {}
        libc::EBADF => return null(libc::EINVAL),
        errno => return null(errno),
    }
    // SAFETY: just duplicated, and owned by nothing else.
    let own = File::from(unsafe { OwnedFd::from_raw_fd(own) });
    if !own.metadata().is_ok_and(|file| file.file_type().is_char_device()) {
        return null(libc::EINVAL);
    }
    match uverbs::Context::import(own.into()) {
        Ok(library) => {
            let device = device::of_library(library.device()).as_ptr();
            // SAFETY: an open descriptor, which the program gives away with this call.
            let file = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
            Context::new(device, library, Some(file)).into_raw()
        }
        Err(error) => null(failed(&error)),
    }
}
