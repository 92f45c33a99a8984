//! Device memory.

use std::ffi::{c_int, c_uint, c_void};

use uverbs::{AccessFlags, DeviceMemory};

use crate::abi::*;
use crate::context::Context;
use crate::memory::Mr;
use crate::pd::Pd;
use crate::result::{code, destroy_and_free, failed, null, pointer, refused};

/// `IBV_ACCESS_ZERO_BASED`, which regions of device memory require (`ib_uverbs_dm_mr_reg` of the
/// kernel).
const ZERO_BASED: c_uint = 1 << 5;
/// log2 of the largest alignment.
const MAX_ALIGNMENT: u32 = 30;

/// Device memory.
#[repr(C)]
pub(crate) struct Dm {
    base: ibv_dm,
    library: Option<DeviceMemory>,
}

impl Dm {
    /// The memory behind a program's pointer.
    ///
    /// # Safety
    /// `dm` is from [`alloc_dm`], and not freed.
    pub(crate) unsafe fn of<'a>(dm: *mut ibv_dm) -> &'a Self {
        // SAFETY: `base` is at offset 0.
        unsafe { &*dm.cast() }
    }

    /// The library's handle.
    pub(crate) fn library(&self) -> Option<&DeviceMemory> {
        self.library.as_ref()
    }
}

/// `ibv_alloc_dm`.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: the caller's struct and context.
    let (attr, owner) = unsafe { (&*attr, Context::of(context)) };
    if attr.comp_mask != 0 || attr.log_align_req > MAX_ALIGNMENT {
        return null(libc::EINVAL);
    }
    let made = owner.library.alloc_device_memory(attr.length, 1 << attr.log_align_req);
    pointer(made.map(|library| {
        let base = ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle: library.kernel_handle(),
        };
        Box::new(Dm { base, library: Some(library) })
    }))
}

/// `ibv_free_dm`.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(dm.cast::<Dm>(), |dm| &mut dm.library, DeviceMemory::free) }
}

/// `ibv_reg_dm_mr`.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    if access & ZERO_BASED == 0 {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's objects.
    let (domain, memory) = unsafe { (Pd::of(pd).domain(), &(*dm.cast::<Dm>()).library) };
    let (Some(domain), Some(memory)) = (domain, memory) else { return null(libc::EINVAL) };
    let access = AccessFlags::from_bits_retain(access & !ZERO_BASED);
    let registration = domain.registration().access(access);
    let region = registration.register_device_memory(memory, offset as usize, length);
    pointer(region.map(|region| Mr::new(pd, std::ptr::null_mut(), region)))
}

/// `mlx5dv_dm_map_op_addr`: the program unmaps the address.
pub(crate) unsafe extern "C" fn dm_map_op_addr(dm: *mut ibv_dm, op: u8) -> *mut c_void {
    // SAFETY: the caller's memory.
    let Some(memory) = (unsafe { Dm::of(dm) }).library() else { return null(libc::EINVAL) };
    match memory.map_operation(op) {
        Ok(operation) => operation.into_raw().cast(),
        Err(error) => null(failed(&error)),
    }
}

/// Whether some of the bytes are beyond the memory's end.
fn is_outside(memory: &DeviceMemory, offset: u64, length: usize) -> bool {
    offset.checked_add(length as u64).is_none_or(|end| end > memory.len() as u64)
}

/// `ibv_memcpy_to_dm`.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's memory.
    let Some(memory) = (unsafe { Dm::of(dm) }).library() else { return refused(libc::EINVAL) };
    if is_outside(memory, offset, length) {
        return refused(libc::EFAULT);
    }
    if length == 0 {
        return 0;
    }
    // SAFETY: bytes that the caller may read.
    unsafe { code(memory.write(offset as usize, std::slice::from_raw_parts(from.cast(), length))) }
}

/// `ibv_memcpy_from_dm`.
unsafe extern "C" fn memcpy_from_dm(
    into: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the caller's memory.
    let Some(memory) = (unsafe { Dm::of(dm) }).library() else { return refused(libc::EINVAL) };
    if is_outside(memory, offset, length) {
        return refused(libc::EFAULT);
    }
    if length == 0 {
        return 0;
    }
    // SAFETY: bytes that the caller may write.
    unsafe {
        into.cast::<u8>().write_bytes(0, length);
        code(memory.read(offset as usize, std::slice::from_raw_parts_mut(into.cast(), length)))
    }
}
