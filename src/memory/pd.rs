//! Protection domains (PDs).

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::mlx5::AllocPdResp;
use uverbs_uapi::objects::pd::destroy;
use uverbs_uapi::write::pd::AllocPd;

use super::QueueMemory;
use crate::device::context::Context;
use crate::error::{DestroyError, Result};
use crate::host::command::Commands;
use crate::host::lifetime::{Kind, Object, Parent, destroy_unshared, object_kind};

/// A protection domain. Memory, queue pairs, shared receive queues, windows and address handles can
/// be used together only within one domain.
///
/// Clones share one domain; objects made from it hold a clone.
///
/// ```no_run
/// let pd = uverbs::open_default()?.alloc_pd()?;
/// let handle = pd.clone();
/// // While clones or objects exist, `destroy` fails and returns the domain.
/// let pd = pd.destroy().unwrap_err().object;
/// drop(handle);
/// pd.destroy()?;
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Clone)]
pub struct ProtectionDomain {
    inner: Arc<Inner>,
    /// The program's allocator for queues made from this handle, if it gave one.
    memory: Option<QueueMemory>,
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain")
            .field("number", &format_args!("{:#x}", self.inner.number))
            .finish_non_exhaustive()
    }
}

struct Inner {
    object: Object<Context>,
    number: u32,
}

const KIND: Kind = object_kind!("dealloc_pd", "protection domain", destroy::HANDLE);

impl Parent for ProtectionDomain {
    fn commands(&self) -> &Commands {
        self.context().commands()
    }
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// Errors of the kernel; ENOMEM if the device has no more.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        let (core, driver): (_, AllocPdResp) =
            self.commands().write_for("alloc_pd", &AllocPd::default())?;
        let object = Object::new(self.clone(), core.pd_handle, &KIND);
        let inner = Inner { object, number: driver.pdn };
        Ok(ProtectionDomain { inner: Arc::new(inner), memory: None })
    }
}

impl ProtectionDomain {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.object.parent
    }

    /// The device's number for it.
    pub fn number(&self) -> u32 {
        self.inner.number
    }

    /// Whether both are handles to the same domain.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// A number that is unique while a handle to this domain exists.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// A clone whose queue pairs and shared receive queues get their memory from the program's own
    /// allocator (in libibverbs, a parent domain with allocators; for doorbell registers see
    /// [`ThreadDomain`](crate::ThreadDomain)).
    #[must_use]
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn with_queue_memory(&self, memory: &QueueMemory) -> Self {
        Self { inner: self.inner.clone(), memory: Some(memory.clone()) }
    }

    pub(crate) fn queue_memory(&self) -> Option<&QueueMemory> {
        self.memory.as_ref()
    }

    /// A domain that another context on the same open file made, and will free.
    pub(crate) fn imported(context: &Context, handle: u32, number: u32) -> Self {
        let object = Object::borrowed(context.clone(), handle, &KIND);
        let inner = Inner { object, number };
        Self { inner: Arc::new(inner), memory: None }
    }

    /// The kernel's handle, with which another process that shares the open file can import it
    /// ([`Context::import_pd`]).
    pub fn kernel_handle(&self) -> u32 {
        self.inner.object.handle
    }

    /// Frees the domain.
    ///
    /// # Errors
    /// `Busy` while clones exist (every object made from it holds one); errors of the kernel. The
    /// domain is returned unchanged.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        let destroy = |inner: &mut Inner| inner.object.destroy();
        destroy_unshared(&mut self.inner, KIND.verb, ("object", "the domain"), destroy)
            .map_err(|error| DestroyError::new(self, error))
    }
}
