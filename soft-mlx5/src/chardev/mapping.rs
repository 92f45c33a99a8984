//! mmap(2) on the device: which offsets lead where. Kernel: `mlx5_ib_mmap`, `uar_mmap` (hw/mlx5/main.c).
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use uverbs_uapi::mlx5::MmapCommand;

use super::clock::{COUNTER_PAGE, INFO_PAGE};
use super::context::{Context, ContextUars, Mapped, StaticUars};
use super::device::DeviceShared;
use super::user_memory::PAGE_SIZE;

/// The arguments of an mmap(2) that the device has to do with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) hint: *mut libc::c_void,
    pub(crate) length: usize,
    pub(crate) protection: i32,
    pub(crate) flags: i32,
    pub(crate) offset: u64,
}

/// Page offset: index in bits 7:0, command in 15:8, more index in 23:16.
struct Place {
    command: u32,
    index: u32,
    extended: u32,
}

impl Request {
    fn place(&self) -> Place {
        let page = self.offset / PAGE_SIZE;
        let (index, high) = ((page & 0xff) as u32, (page >> 16 & 0xff) as u32);
        Place { command: (page >> 8 & 0xff) as u32, index, extended: index | high << 8 }
    }

    fn is_one_page(&self) -> bool {
        self.length.div_ceil(PAGE_SIZE as usize) == 1
    }
}

/// Maps what the offset stands for.
///
/// # Safety
/// As mmap(2): with `MAP_FIXED`, what is mapped at the hint may be replaced.
pub(crate) unsafe fn map(
    device: &DeviceShared,
    context: &mut Context,
    request: Request,
) -> Result<*mut libc::c_void, Errno> {
    let place = request.place();
    match MmapCommand(place.command) {
        MmapCommand::REGULAR_PAGE
        | MmapCommand::WC_PAGE
        | MmapCommand::NC_PAGE
        | MmapCommand::ALLOC_WC => {
            let index = uar_index(device, context, &request, &place)?;
            // SAFETY: passed on.
            unsafe { map_uar(device, &request, index.into()) }
        }
        MmapCommand::GET_CONTIGUOUS_PAGES => Err(Errno::ENOSYS),
        MmapCommand::CORE_CLOCK => {
            check_clock(&request, libc::PROT_WRITE)?;
            // SAFETY: passed on.
            unsafe { map_clock(device, &request, COUNTER_PAGE) }
        }
        MmapCommand::CLOCK_INFO => {
            check_clock_info(&request, &place)?;
            // SAFETY: passed on.
            unsafe { map_clock(device, &request, INFO_PAGE) }
        }
        // SAFETY: passed on.
        _ => unsafe { map_entry(device, context, &request, &place) },
    }
}

/// `uar_mmap`: a fixed page of the context, or one that mapping it brings to life.
fn uar_index(
    device: &DeviceShared,
    context: &mut Context,
    request: &Request,
    place: &Place,
) -> Result<u32, Errno> {
    let ContextUars::Static(uars) = &mut context.uars else { return Err(Errno::EINVAL) };
    if !request.is_one_page() {
        return Err(Errno::EINVAL);
    }
    if MmapCommand(place.command) == MmapCommand::ALLOC_WC {
        return new_uar(device, uars, place.extended as usize);
    }
    let fixed =
        uars.pages.get(place.index as usize).filter(|_| (place.index as usize) < uars.fixed_pages);
    fixed.copied().flatten().ok_or(Errno::EINVAL)
}

fn new_uar(device: &DeviceShared, uars: &mut StaticUars, index: usize) -> Result<u32, Errno> {
    let slot = uars.pages.get_mut(uars.fixed_pages + index).ok_or(Errno::EINVAL)?;
    if slot.is_some() {
        return Err(Errno::EINVAL);
    }
    let uar = device.uars.allocate()?;
    *slot = Some(uar);
    Ok(uar)
}

fn check_clock(request: &Request, refused: i32) -> Result<(), Errno> {
    if !request.is_one_page() {
        return Err(Errno::EINVAL);
    }
    if request.protection & refused != 0 { Err(Errno::EPERM) } else { Ok(()) }
}

fn check_clock_info(request: &Request, place: &Place) -> Result<(), Errno> {
    if !request.is_one_page() || request.flags & libc::MAP_SHARED == 0 {
        return Err(Errno::EINVAL);
    }
    if place.index != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    check_clock(request, libc::PROT_WRITE | libc::PROT_EXEC)
}

/// `mlx5_ib_mmap_offset`: what an object's creation announced, whole.
///
/// # Safety
/// As [`map`].
unsafe fn map_entry(
    device: &DeviceShared,
    context: &Context,
    request: &Request,
    place: &Place,
) -> Result<*mut libc::c_void, Errno> {
    let entry = place.command << 16 | place.extended;
    let mapping = context.mappings.get(&entry).ok_or(Errno::EINVAL)?;
    if request.length.div_ceil(PAGE_SIZE as usize) as u64 != mapping.pages {
        return Err(Errno::EINVAL);
    }
    // SAFETY: passed on.
    unsafe {
        match mapping.memory {
            Mapped::Uar => map_uar(device, request, mapping.page),
            Mapped::DeviceMemory => {
                let pages = device.device_memory.pages();
                pages.map(
                    request.hint,
                    request.length,
                    request.protection,
                    request.flags,
                    mapping.page,
                )
            }
        }
    }
}

/// # Safety
/// As [`map`].
unsafe fn map_clock(
    device: &DeviceShared,
    request: &Request,
    page: u64,
) -> Result<*mut libc::c_void, Errno> {
    let pages = device.clock().pages();
    // SAFETY: passed on.
    unsafe { pages.map(request.hint, request.length, request.protection, request.flags, page) }
}

/// # Safety
/// As [`map`].
unsafe fn map_uar(
    device: &DeviceShared,
    request: &Request,
    page: u64,
) -> Result<*mut libc::c_void, Errno> {
    let fd = device.uars.region().as_fd().as_raw_fd();
    let offset = (page * PAGE_SIZE) as libc::off_t;
    // SAFETY: passed on.
    let mapped = unsafe {
        libc::mmap(request.hint, request.length, request.protection, request.flags, fd, offset)
    };
    if mapped == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(mapped) }
}
