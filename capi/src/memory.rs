//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use uverbs::memory::{AdviseMrAdvice, Buffer};
use uverbs::{AccessFlags, MemoryRegion};

use crate::abi::*;
use crate::pd::Pd;
use crate::result::{code, destroy_and_free, failed, null, pointer, refused};

/// `enum ibv_rereg_mr_flags`.
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;
/// `IBV_REREG_MR_ERR_INPUT`: nothing has changed. `IBV_REREG_MR_ERR_CMD`: the region can no longer
/// be used.
const ERR_INPUT: c_int = -1;
const ERR_CMD: c_int = -4;
/// `IBV_ADVISE_MR_FLAG_FLUSH`, the only flag.
const FLUSH: u32 = 1;

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) base: ibv_mr,
    pub(crate) region: Option<MemoryRegion>,
    /// Whether `ibv_rereg_mr` accepts it. libibverbs refuses regions that are imported, without
    /// memory, or of a dma-buf (not `IBV_MR_TYPE_MR` of its `mr_type`).
    is_changeable: bool,
    #[allow(dead_code, reason = "held for its lifetime")]
    user: Arc<()>,
}

impl Mr {
    /// The struct for a program.
    pub(crate) fn new(pd: *mut ibv_pd, addr: *mut c_void, region: MemoryRegion) -> Box<Self> {
        // SAFETY: the caller's domain, which the region was made from.
        let domain = unsafe { Pd::of(pd) };
        let base = ibv_mr {
            context: domain.base.context,
            pd,
            addr,
            length: region.len(),
            handle: region.kernel_handle().unwrap_or_default(),
            lkey: region.lkey(),
            rkey: region.rkey(),
        };
        let user = domain.users.clone();
        Box::new(Self { base, region: Some(region), is_changeable: true, user })
    }

    /// The struct for a region that `ibv_rereg_mr` refuses.
    fn unchangeable(pd: *mut ibv_pd, region: MemoryRegion) -> Box<Self> {
        let mut made = Self::new(pd, ptr::null_mut(), region);
        made.is_changeable = false;
        made
    }
}

/// Registers memory at addresses from `iova` on.
///
/// # Safety
/// As for `ibv_reg_mr`.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's domain.
    let Some(domain) = unsafe { Pd::of(pd) }.domain() else { return null(libc::EINVAL) };
    let access = AccessFlags::from_bits_retain(access);
    let registration = domain.registration().access(access);
    // All memory is registered on demand and from address 0 on: `ibv_cmd_reg_mr` of libibverbs, and
    // `create_user_odp_mr` in the kernel's hw/mlx5/mr.c.
    let is_everything = length == usize::MAX;
    if is_everything && !(access.contains(AccessFlags::ON_DEMAND) && addr.is_null() && iova == 0) {
        return null(libc::EINVAL);
    }
    // SAFETY: by registering memory, C programs promise what the library requires.
    let region = unsafe {
        if is_everything {
            registration.register_everything()
        } else {
            registration.iova(iova).register_raw(addr.cast(), length)
        }
    };
    pointer(region.map(|region| Mr::new(pd, addr, region)))
}

/// `ibv_reg_mr`.
pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promises.
    unsafe { register(pd, addr, length, addr.addr() as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova` and `ibv_reg_mr_iova2`. The latter may leave out access flags that old kernels
/// do not know: the library does so for both.
pub(crate) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's promises.
    unsafe { register(pd, addr, length, iova, access) }
}

/// `ibv_reg_dmabuf_mr`.
pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's domain.
    let Some(domain) = unsafe { Pd::of(pd) }.domain() else { return null(libc::EINVAL) };
    let access = AccessFlags::from_bits_retain(access as u32);
    let registration = domain.registration().access(access).iova(iova);
    // A `BorrowedFd` is not negative. The kernel opens no file with the largest number
    // (`sysctl_nr_open_max` in fs/file.c), so it fails in the same way as for a negative one.
    let fd = if fd < 0 { c_int::MAX } else { fd };
    // SAFETY: the caller's descriptor, which is open during the call; the caller permits the
    // device's writes.
    let region =
        unsafe { registration.register_dma_buf(BorrowedFd::borrow_raw(fd), offset, length as u64) };
    pointer(region.map(|region| Mr::unchangeable(pd, region)))
}

/// `ibv_alloc_null_mr`.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the caller's domain.
    let Some(domain) = unsafe { Pd::of(pd) }.domain() else { return null(libc::EINVAL) };
    pointer(domain.null_region().map(|region| Mr::unchangeable(pd, region)))
}

/// `ibv_import_mr`.
pub(crate) unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: the caller's domain.
    let Some(domain) = unsafe { Pd::of(pd) }.domain() else { return null(libc::EINVAL) };
    let made = domain.import_region(handle);
    pointer(made.map(|region| Mr::unchangeable(pd, region)))
}

/// `ibv_unimport_mr`.
pub(crate) unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: from `import_mr`, and freed once.
    unsafe { crate::observe::free(mr.cast::<Mr>()) };
}

/// `ibv_dereg_mr`.
pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(mr.cast::<Mr>(), |mr| &mut mr.region, MemoryRegion::deregister) }
}

/// `ibv_rereg_mr`. Its negative codes tell whether the region can still be used.
pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let known = CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS;
    let wants = |flag| flags & flag != 0;
    // SAFETY: the caller's region, which no other thread uses now.
    let mr = unsafe { &mut *mr.cast::<Mr>() };
    if flags & !known != 0
        || !mr.is_changeable
        || (wants(CHANGE_TRANSLATION) && (length == 0 || addr.is_null()))
        || (wants(CHANGE_PD) && pd.is_null())
        || (access != 0 && !wants(CHANGE_ACCESS))
    {
        refused(libc::EINVAL);
        return ERR_INPUT;
    }
    if flags == 0 {
        // The kernel's answer to a command without flags.
        refused(libc::EINVAL);
        return ERR_CMD;
    }
    let Some(region) = &mut mr.region else { return ERR_INPUT };
    // SAFETY: the caller's domain.
    let domain = if wants(CHANGE_PD) { unsafe { Pd::of(pd) }.domain() } else { None };
    let access = wants(CHANGE_ACCESS).then(|| AccessFlags::from_bits_retain(access as u32));
    let buffer = wants(CHANGE_TRANSLATION)
        // SAFETY: what C programs promise by registering memory.
        .then(|| unsafe { Buffer::from_raw(addr.cast(), length, || ()) });
    let changed = region.change(domain, access, buffer);
    (mr.base.lkey, mr.base.rkey) = (region.lkey(), region.rkey());
    if let Err(error) = changed {
        failed(&error);
        return ERR_CMD;
    }
    if wants(CHANGE_TRANSLATION) {
        (mr.base.addr, mr.base.length) = (addr, length);
    }
    if wants(CHANGE_PD) {
        mr.base.pd = pd;
        // SAFETY: the caller's domain.
        mr.user = unsafe { Pd::of(pd) }.users.clone();
    }
    0
}

/// `ibv_advise_mr`, which prefetches pages.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: the caller's domain.
    let Some(domain) = unsafe { Pd::of(pd) }.domain() else { return refused(libc::EINVAL) };
    if list.is_null() || count == 0 || flags & !FLUSH != 0 {
        return refused(libc::EINVAL);
    }
    // SAFETY: the caller's list.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let list: Vec<_> =
        list.iter().map(|sge| uverbs::Sge::new(sge.addr, sge.length, sge.lkey)).collect();
    code(domain.advise(AdviseMrAdvice(advice), flags & FLUSH != 0, &list))
}
