//! Memory of firmware objects, such as rings and doorbell records of queues.

use std::os::fd::{AsRawFd, BorrowedFd};

use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::mlx5::object::devx_umem::{dereg, reg};

use super::Devx;
use crate::device::context::Context;
use crate::error::{DestroyError, Result};
use crate::host::lifetime::{Kind, Object, object_kind};

/// All page sizes from the adapter's smallest (4096 bytes) on.
const ANY_PAGE: u64 = !0xfff;

/// Options of a registration.
#[derive(Debug, Clone, Copy)]
pub struct UmemOptions<'a> {
    /// Address of its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub length: usize,
    /// Access rights of the device.
    pub access: AccessFlags,
    /// Mask of the page sizes in bytes that the device may use; `None` for any. Older kernels
    /// refuse a mask.
    pub page_sizes: Option<u64>,
    /// A dma-buf to register a part of; `start` is then a byte offset in it.
    pub dma_buf: Option<BorrowedFd<'a>>,
}

/// Registered memory. Dropping it releases it.
#[derive(Debug)]
pub struct Umem {
    object: Object<Context>,
    id: u32,
}

const KIND: Kind = object_kind!("devx_umem_dereg", "memory of firmware objects", dereg::HANDLE);

impl Devx {
    /// Registers memory.
    ///
    /// # Errors
    /// ENOMEM, with the memlock limit if that is the likely reason; other errors of the kernel.
    #[doc(alias = "mlx5dv_devx_umem_reg")]
    #[doc(alias = "mlx5dv_devx_umem_reg_ex")]
    pub fn register_umem(&self, options: &UmemOptions<'_>) -> Result<Umem> {
        let (mut id, length) = (0u32, options.length as u64);
        let mut request = self.context.commands().request::<reg::Call>();
        request.value(reg::ADDR, options.start);
        request.value(reg::LEN, length);
        request.flags(reg::ACCESS, options.access.bits());
        match options.page_sizes {
            Some(sizes) => drop(request.constant(reg::PGSZ_BITMAP, sizes)),
            None => request.constant(reg::PGSZ_BITMAP, ANY_PAGE).optional(),
        }
        if let Some(file) = options.dma_buf {
            request.raw_fd(reg::DMABUF_FD, file.as_raw_fd());
        }
        request.output(reg::OUT_ID, &mut id);
        let made = self.context.commands().create("devx_umem_reg", request, reg::HANDLE);
        let handle =
            made.map_err(|error| error.pinning(length).asked(format!("{length} bytes")))?;
        Ok(Umem { object: Object::new(self.context.clone(), handle, &KIND), id })
    }
}

impl Umem {
    /// The umem's number in firmware commands.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.object.handle
    }

    /// Releases it.
    ///
    /// # Errors
    /// Errors of the kernel: EBUSY while a firmware object uses it. The error contains it,
    /// unchanged.
    #[doc(alias = "mlx5dv_devx_umem_dereg")]
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        self.object.destroy().map_err(|error| DestroyError::new(self, error))
    }
}
