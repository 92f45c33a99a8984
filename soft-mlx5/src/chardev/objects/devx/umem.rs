//! Memory that firmware objects use.
#![forbid(unsafe_code)]

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::mlx5::object::devx_umem::{dereg, reg};

use super::errno;
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::abi::user_memory::PAGE_SIZE;
use crate::chardev::device::DeviceShared;
use crate::chardev::objects::object::{Kind, Object};
use crate::locking::lock;
use crate::memory::PageMap;

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Umem {
    number: u32,
}

pub(crate) const REG: &[Attribute] = &[
    Attribute::new_handle(reg::HANDLE, Kind::DevxUmem),
    Attribute::input(reg::ADDR, 8),
    Attribute::input(reg::LEN, 8),
    Attribute::flags(reg::ACCESS),
    Attribute::constant(reg::PGSZ_BITMAP).optional(),
    Attribute::output(reg::OUT_ID, 4),
];

pub(crate) const DEREG: &[Attribute] = &[Attribute::destroy(dereg::HANDLE, Kind::DevxUmem)];

impl Umem {
    pub(crate) fn destroy(&self, device: &Arc<DeviceShared>) -> Result<(), Errno> {
        lock(&device.firmware).release_umem(self.number).map_err(|refusal| errno(&refusal))
    }
}

/// `MLX5_IB_METHOD_DEVX_UMEM_REG`. Memory of a dma-buf is not modelled.
pub(crate) fn register(call: &mut Call<'_>) -> Result<(), Errno> {
    let owner = call.context()?.devx.ok_or(Errno::EINVAL)?;
    let (address, length): (u64, u64) = (call.input(reg::ADDR)?, call.input(reg::LEN)?);
    let known = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let access = AccessFlags::from_bits_retain(call.flags(reg::ACCESS, known.bits())?);
    // `ib_check_mr_access`: remote write requires local write.
    if access.contains(AccessFlags::REMOTE_WRITE) && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(Errno::EINVAL);
    }
    let sizes = call.constant(reg::PGSZ_BITMAP, u64::MAX).unwrap_or(!(PAGE_SIZE - 1));
    check_page_sizes(sizes, length)?;
    call.charge_ring(address, length)?;
    // Memory that is not writable through the umem can be read-only (`ib_access_writable`).
    let writable = access.intersects(known & !AccessFlags::REMOTE_READ);
    call.user.pin(address, length, writable)?;
    let memory = PageMap::linear(address);
    let number = lock(&call.file.device.firmware).register_umem(owner, memory, length, writable);
    let number = number.map_err(|refusal| errno(&refusal))?;
    call.commit(Object::DevxUmem(Umem { number }))?;
    call.output(reg::OUT_ID, &number)
}

/// One of the sizes must be a multiple of the page size (`devx_umem_find_best_pgsize`).
fn check_page_sizes(sizes: u64, length: u64) -> Result<(), Errno> {
    let largest = length.max(PAGE_SIZE).checked_next_power_of_two().unwrap_or(1 << 63);
    let usable = sizes & (largest | (largest - 1)) & !(PAGE_SIZE - 1);
    if usable == 0 { Err(Errno::EINVAL) } else { Ok(()) }
}
