//! mmap(2) on the device: the memory behind each offset.
//! Kernel: `mlx5_ib_mmap`, `uar_mmap` (hw/mlx5/main.c).
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, RawFd};

use nix::errno::Errno;
use uverbs_uapi::mlx5::MmapCommand;

use super::clock::{COUNTER_PAGE, INFO_PAGE};
use super::context::{Context, ContextUars, Mapped, StaticUars};
use crate::chardev::abi::user_memory::PAGE_SIZE;
use crate::chardev::device::DeviceShared;

/// The arguments of an mmap(2) that the device checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) length: usize,
    pub(crate) protection: i32,
    pub(crate) flags: i32,
    pub(crate) offset: u64,
}

/// The parts of a page offset: bits 7:0 are the low part of the index, 15:8 the command, and 23:16
/// the high part of the index.
struct Place {
    command: u32,
    /// The index's low part alone, as most commands use it.
    index: u32,
    /// The whole index.
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

/// A file of the device and the offset in it. The device opens the file when it is created, so a
/// forked child has the descriptor under the same number.
pub(crate) type Backing = (RawFd, libc::off_t);

/// The file and offset to map for a request.
pub(crate) fn find(
    device: &DeviceShared,
    context: &mut Context,
    request: Request,
) -> Result<Backing, Errno> {
    let place = request.place();
    match MmapCommand(place.command) {
        MmapCommand::REGULAR_PAGE
        | MmapCommand::WC_PAGE
        | MmapCommand::NC_PAGE
        | MmapCommand::ALLOC_WC => {
            let index = uar_index(device, context, &request, &place)?;
            Ok(uar(device, index.into()))
        }
        MmapCommand::GET_CONTIGUOUS_PAGES => Err(Errno::ENOSYS),
        MmapCommand::CORE_CLOCK => {
            check_clock(&request, libc::PROT_WRITE)?;
            watch_clock(device, context)?;
            Ok(device.clock().pages().backing(COUNTER_PAGE))
        }
        MmapCommand::CLOCK_INFO => {
            check_clock_info(&request, &place)?;
            watch_clock(device, context)?;
            Ok(device.clock().pages().backing(INFO_PAGE))
        }
        _ => entry(device, context, &request, &place),
    }
}

/// Keeps the clock page updated from now on: the context's program may read it at any time.
fn watch_clock(device: &DeviceShared, context: &mut Context) -> Result<(), Errno> {
    if !std::mem::replace(&mut context.watches_clock, true) {
        device.watch_clock()?;
    }
    Ok(())
}

/// `uar_mmap`: a fixed page of the context, or one that this mmap allocates.
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

/// `mlx5_ib_mmap_offset`: the memory of an object, which must be mapped as a whole.
fn entry(
    device: &DeviceShared,
    context: &Context,
    request: &Request,
    place: &Place,
) -> Result<Backing, Errno> {
    let entry = place.command << 16 | place.extended;
    let mapping = context.mappings.get(&entry).ok_or(Errno::EINVAL)?;
    if request.length.div_ceil(PAGE_SIZE as usize) as u64 != mapping.pages {
        return Err(Errno::EINVAL);
    }
    Ok(match mapping.memory {
        Mapped::Uar => uar(device, mapping.page),
        Mapped::DeviceMemory => device.device_memory.pages().backing(mapping.page),
    })
}

fn uar(device: &DeviceShared, page: u64) -> Backing {
    (device.uars.region().as_fd().as_raw_fd(), (page * PAGE_SIZE) as libc::off_t)
}
