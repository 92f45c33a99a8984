//! Entries of the device's rate table, for send queues that a program's commands create.

use uverbs_uapi::mlx5::object::pp::{alloc, destroy};

use super::{Devx, PpAllocFlags, too_long};
use crate::device::context::Context;
use crate::error::Result;
use crate::host::lifetime::{Kind, Object, object_kind};

/// An entry of the rate table. Dropping it frees it.
#[derive(Debug)]
pub struct PacingEntry {
    #[allow(dead_code, reason = "for its drop")]
    object: Object<Context>,
    index: u16,
}

const KIND: Kind = object_kind!("pp_free", "packet pacing entry", destroy::HANDLE);

impl Devx {
    /// Allocates an entry with these parameters (`set_pp_rate_limit_context` of the PRM). Equal
    /// parameters share an entry, unless `flags` requests a dedicated one.
    ///
    /// # Errors
    /// `Unsupported` if the device has no packet pacing for DEVX; ENOSPC if the table is full;
    /// other errors of the kernel.
    #[doc(alias = "mlx5dv_pp_alloc")]
    pub fn alloc_pacing(&self, parameters: &[u8], flags: PpAllocFlags) -> Result<PacingEntry> {
        const VERB: &str = "pp_alloc";
        let mut index = 0u16;
        let mut request = self.context.commands().request::<alloc::Call>();
        let stored = request.input_bytes(alloc::CTX, parameters).map(drop);
        stored.map_err(|error| too_long(VERB, &error))?;
        request.flags(alloc::FLAGS, flags.bits());
        request.output(alloc::INDEX, &mut index);
        let handle = self.context.commands().create(VERB, request, alloc::HANDLE)?;
        Ok(PacingEntry { object: Object::new(self.context.clone(), handle, &KIND), index })
    }
}

impl PacingEntry {
    /// Its index, for send queues.
    pub fn index(&self) -> u16 {
        self.index
    }
}
