//! Protection domains: what may be used together.

use std::sync::Arc;

use uverbs_uapi::mlx5::AllocPdResp;
use uverbs_uapi::objects::pd::destroy;
use uverbs_uapi::write::pd::AllocPd;

use super::QueueMemory;
use crate::device::context::Context;
use crate::error::{DestroyError, Result};
use crate::host::events::log_failed_drop;
use crate::host::lifetime::destroy_unshared;

/// A protection domain. Memory, queue pairs, shared receive queues, windows and address handles work
/// together only within one.
///
/// Clones are handles to the same domain; objects made from it hold one.
#[derive(Debug, Clone)]
pub struct ProtectionDomain {
    inner: Arc<Inner>,
    /// Where queues made of this handle get their memory, where the program says.
    memory: Option<QueueMemory>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    handle: u32,
    number: u32,
    /// Not freed yet, and this process's to free.
    live: bool,
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// What the kernel says; ENOMEM where the device has no more.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        let (core, driver): (_, AllocPdResp) =
            self.commands().write_for("alloc_pd", &AllocPd::default())?;
        let inner =
            Inner { context: self.clone(), handle: core.pd_handle, number: driver.pdn, live: true };
        Ok(ProtectionDomain { inner: Arc::new(inner), memory: None })
    }
}

impl ProtectionDomain {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The device's number for it.
    pub fn number(&self) -> u32 {
        self.inner.number
    }

    /// Whether both are handles to the same domain.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// What no other domain has as long as a handle to this one exists.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// Another handle to the same domain, whose queue pairs and shared receive queues get their memory from
    /// the program's own allocator (a parent domain with allocators, in libibverbs' words; for doorbell
    /// registers see [`ThreadDomain`](crate::ThreadDomain)).
    #[must_use]
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn with_queue_memory(&self, memory: &QueueMemory) -> Self {
        Self { inner: self.inner.clone(), memory: Some(memory.clone()) }
    }

    pub(crate) fn queue_memory(&self) -> Option<&QueueMemory> {
        self.memory.as_ref()
    }

    /// A domain that another context on the same open file made; it is not this handle's to free.
    pub(crate) fn imported(context: &Context, handle: u32, number: u32) -> Self {
        let inner = Inner { context: context.clone(), handle, number, live: false };
        Self { inner: Arc::new(inner), memory: None }
    }

    /// What another process that shares the open file imports it by: [`Context::import_pd`].
    pub fn kernel_handle(&self) -> u32 {
        self.inner.handle
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Frees the domain.
    ///
    /// # Errors
    /// `Busy` while other handles exist (every object made from it holds one); what the kernel says. The
    /// domain comes back unharmed.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        destroy_unshared(&mut self.inner, "dealloc_pd", ("object", "the domain"), Inner::dealloc)
            .map_err(|error| DestroyError::new(self, error))
    }
}

impl Inner {
    fn dealloc(&mut self) -> Result<()> {
        if !self.live {
            return Ok(());
        }
        let mut request = self.context.commands().request::<destroy::Call>();
        request.handle(destroy::HANDLE, self.handle);
        self.context.commands().destroy("dealloc_pd", &mut request)?;
        self.live = false;
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.live {
            if let Err(error) = self.dealloc() {
                log_failed_drop("protection domain", &error);
            }
        }
    }
}
