//! Doorbell pages of emulated VirtIO devices (`MLX5_IB_OBJECT_VAR`).

use uverbs_uapi::mlx5::object::var::{alloc, destroy};

use super::{Devx, VarAllocFlags};
use crate::device::context::Context;
use crate::error::Result;
use crate::host::lifetime::{Kind, Object, object_kind};

/// A doorbell page of a VirtIO queue. Dropping it frees it.
#[derive(Debug)]
pub struct VirtioDoorbell {
    #[allow(dead_code, reason = "for its drop")]
    object: Object<Context>,
    id: u32,
    length: u32,
    offset: u64,
}

const KIND: Kind = object_kind!("free_var", "VirtIO doorbell page", destroy::HANDLE);

impl Devx {
    /// Allocates a page.
    ///
    /// # Errors
    /// `Unsupported` if the device does not emulate VirtIO queues; other errors of the kernel.
    #[doc(alias = "mlx5dv_alloc_var")]
    pub fn alloc_var(&self, flags: VarAllocFlags) -> Result<VirtioDoorbell> {
        let (mut offset, mut length, mut id) = (0u64, 0u32, 0u32);
        let mut request = self.context.commands().request::<alloc::Call>();
        request.output(alloc::MMAP_OFFSET, &mut offset);
        request.output(alloc::MMAP_LENGTH, &mut length);
        request.output(alloc::PAGE_ID, &mut id);
        if !flags.is_empty() {
            request.flags(alloc::FLAGS, flags.bits());
        }
        let handle = self.context.commands().create("alloc_var", request, alloc::HANDLE)?;
        let object = Object::new(self.context.clone(), handle, &KIND);
        Ok(VirtioDoorbell { object, id, length, offset })
    }
}

impl VirtioDoorbell {
    /// The page's number in commands.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its length in bytes.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Its offset for `mmap(2)` of the open device.
    pub fn mmap_offset(&self) -> u64 {
        self.offset
    }
}
