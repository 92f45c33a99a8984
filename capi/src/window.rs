//! Memory windows.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use uverbs::MemoryWindow;
use uverbs::mw::{WindowAccess, WindowType};
use uverbs::op::{BindWindow, UnbindWindow};
use uverbs::qp::RunTimeOperation;

use crate::abi::*;
use crate::pd::Pd;
use crate::post;
use crate::result::{destroy_and_free, null, pointer, refused};

/// Flags of `enum ibv_access_flags` that windows use.
const LOCAL_WRITE: c_uint = 1;
const REMOTE_WRITE: c_uint = 1 << 1;
const REMOTE_READ: c_uint = 1 << 2;
const REMOTE_ATOMIC: c_uint = 1 << 3;
const ZERO_BASED: c_uint = 1 << 5;

/// A memory window.
#[repr(C)]
struct Mw {
    base: ibv_mw,
    window: Option<MemoryWindow>,
    #[allow(dead_code, reason = "held for its lifetime")]
    user: Arc<()>,
}

/// `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    // SAFETY: the caller's domain.
    let pd_ref = unsafe { Pd::of(pd) };
    let Some(domain) = pd_ref.domain() else { return null(libc::EINVAL) };
    let Some(window_type) = window_type(kind) else { return null(libc::EINVAL) };
    pointer(domain.alloc_mw(window_type).map(|window| {
        let base = ibv_mw {
            context: pd_ref.base.context,
            pd,
            rkey: window.rkey(),
            handle: window.kernel_handle(),
            r#type: kind,
        };
        Box::new(Mw { base, window: Some(window), user: pd_ref.users.clone() })
    }))
}

fn window_type(kind: c_uint) -> Option<WindowType> {
    match kind {
        1 => Some(WindowType::Type1),
        2 => Some(WindowType::Type2),
        _ => None,
    }
}

/// `ibv_dealloc_mw`.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(mw.cast::<Mw>(), |mw| &mut mw.window, MemoryWindow::dealloc) }
}

/// `ibv_bind_mw`, for windows of type 1: posts the request, and changes the window's rkey. Such
/// windows are not zero based (`mlx5_bind_mw` of libmlx5), but those of posted requests may be.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the caller's window and struct.
    let (window, bind) = unsafe { (&mut *mw, &*bind) };
    if bind.bind_info.mw_access_flags & ZERO_BASED != 0 {
        return refused(libc::EINVAL);
    }
    let rkey = window.rkey & !0xff | (window.rkey.wrapping_add(1) & 0xff);
    let mut request = ibv_send_wr {
        wr_id: bind.wr_id,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: wr_opcode::BIND_MW,
        send_flags: bind.send_flags,
        imm_data: 0,
        wr: Wr { rdma: Rdma { remote_addr: 0, rkey: 0 } },
        qp_type: 0,
        bind_mw: Extra { bind_mw: BindMw { mw, rkey, bind_info: bind.bind_info } },
    };
    let mut bad = std::ptr::null_mut();
    // SAFETY: the caller's queue pair, and a request of ours.
    let errno = unsafe { post::post_send(qp, &raw mut request, &raw mut bad) };
    if errno == 0 {
        window.rkey = rkey;
    }
    errno
}

/// The operation that binds, or with no bytes unbinds, a window.
///
/// # Safety
/// Window and region are a program's.
pub(crate) unsafe fn operation(bind: &BindMw) -> Result<RunTimeOperation<'static>, c_int> {
    let info = &bind.bind_info;
    if bind.mw.is_null() {
        return Err(refused(libc::EINVAL));
    }
    // SAFETY: the caller's window.
    let window = unsafe { &*bind.mw };
    let window_type = window_type(window.r#type).ok_or(libc::EINVAL)?;
    let (window, new_rkey) = (window.rkey, bind.rkey);
    if info.length == 0 {
        return Ok(RunTimeOperation::UnbindWindow(UnbindWindow { window, window_type, new_rkey }));
    }
    if info.mr.is_null() {
        return Err(libc::EINVAL);
    }
    Ok(RunTimeOperation::BindWindow(BindWindow {
        window,
        window_type,
        new_rkey,
        // SAFETY: the caller's region.
        lkey: unsafe { (*info.mr).lkey },
        address: info.addr,
        length: info.length,
        access: access(info.mw_access_flags),
        zero_based: info.mw_access_flags & ZERO_BASED != 0,
    }))
}

/// The access that a program's flags allow. Unknown flags are ignored.
pub(crate) fn access(flags: c_uint) -> WindowAccess {
    let mut access = WindowAccess::empty();
    access.set(WindowAccess::LOCAL_WRITE, flags & LOCAL_WRITE != 0);
    access.set(WindowAccess::REMOTE_WRITE, flags & REMOTE_WRITE != 0);
    access.set(WindowAccess::REMOTE_READ, flags & REMOTE_READ != 0);
    access.set(WindowAccess::REMOTE_ATOMIC, flags & REMOTE_ATOMIC != 0);
    access
}
