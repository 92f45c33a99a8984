//! XRC domains.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use uverbs::XrcDomain;

use crate::abi::*;
use crate::context::Context;
use crate::result::{destroy, null, pointer};

/// `IBV_XRCD_INIT_ATTR_FD` and `_OFLAGS`: both are needed.
const BOTH: u32 = 3;

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
    if attr.comp_mask & BOTH != BOTH {
        return null(libc::EINVAL);
    }
    let opened = if attr.fd < 0 {
        owner.library.open_xrcd()
    } else {
        // SAFETY: the caller's descriptor, for the time of the call.
        owner.library.open_shared_xrcd(unsafe { BorrowedFd::borrow_raw(attr.fd) })
    };
    pointer(
        opened.map(|library| Box::new(Xrcd { base: ibv_xrcd { context }, library: Some(library) })),
    )
}

/// `ibv_close_xrcd`.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller's domain, which no other thread uses now.
    let errno = destroy(unsafe { &mut (*xrcd.cast::<Xrcd>()).library }, XrcDomain::close);
    if errno == 0 {
        // SAFETY: from `pointer`, and freed once.
        drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
    }
    errno
}
