//! XRC domains, and opening a receive queue pair of another process in a domain.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr;

use uverbs::XrcDomain;
use uverbs::qp_type::QpType;

use crate::abi::*;
use crate::context::Context;
use crate::create;
use crate::result::{destroy_and_free, null, pointer};

/// `IBV_XRCD_INIT_ATTR_FD` and `_OFLAGS`: both are needed, and there are no others.
const BOTH: u32 = 3;

/// `enum ibv_qp_open_attr_mask`.
const OPEN_NUMBER: u32 = 1;
const OPEN_XRCD: u32 = 1 << 1;
const OPEN_CONTEXT: u32 = 1 << 2;
const OPEN_TYPE: u32 = 1 << 3;
const OPEN_NEEDS: u32 = OPEN_NUMBER | OPEN_XRCD | OPEN_TYPE;
/// `IBV_QPS_UNKNOWN`.
const STATE_UNKNOWN: u32 = 7;

/// An XRC domain.
#[repr(C)]
pub(crate) struct Xrcd {
    base: ibv_xrcd,
    library: Option<XrcDomain>,
}

impl Xrcd {
    /// The domain behind a program's pointer.
    ///
    /// # Safety
    /// `xrcd` is from [`open_xrcd`], and not closed.
    pub(crate) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> &'a Self {
        // SAFETY: `base` is at offset 0.
        unsafe { &*xrcd.cast() }
    }

    /// The library's handle.
    pub(crate) fn library(&self) -> Option<&XrcDomain> {
        self.library.as_ref()
    }
}

/// `ibv_open_xrcd`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the caller's struct and context.
    let (attr, owner) = unsafe { (&*attr, Context::of(context)) };
    if attr.comp_mask & !BOTH != 0 {
        return null(libc::EOPNOTSUPP);
    }
    if attr.comp_mask != BOTH {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's descriptor, for the time of the call.
    let file = (attr.fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(attr.fd) });
    let opened = owner.library.open_xrcd_as(file, attr.oflags);
    pointer(
        opened.map(|library| Box::new(Xrcd { base: ibv_xrcd { context }, library: Some(library) })),
    )
}

/// `ibv_close_xrcd`.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(xrcd.cast::<Xrcd>(), |xrcd| &mut xrcd.library, XrcDomain::close) }
}

/// `ibv_open_qp`. As in libibverbs, `qp_context` is used even without its bit in the mask, and the
/// state is unknown until the queue pair is queried or modified.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller's struct.
    let attr = unsafe { &*attr };
    if attr.comp_mask & !(OPEN_NEEDS | OPEN_CONTEXT) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & OPEN_NEEDS != OPEN_NEEDS
        || attr.xrcd.is_null()
        || attr.qp_type != QpType::XrcReceive as u32
    {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's domain.
    let domain = unsafe { Xrcd::of(attr.xrcd) };
    let Some(library) = domain.library().filter(|_| domain.base.context == context) else {
        return null(libc::EINVAL);
    };
    let opened = library.open_receiver(attr.qp_num);
    let made = opened.map(|library| {
        let base = ibv_qp {
            context,
            qp_context: attr.qp_context,
            pd: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            handle: library.kernel_handle(),
            qp_num: attr.qp_num,
            state: STATE_UNKNOWN,
            qp_type: attr.qp_type,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        create::xrc_target(base, library)
    });
    create::register(context, made).cast()
}
