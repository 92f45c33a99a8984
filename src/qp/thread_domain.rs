//! Thread domains: queue pairs that ring one doorbell register on purpose.

use std::sync::Arc;

use uverbs_mlx5::mmio::SharedBlueFlame;

use crate::device::context::Context;
use crate::error::{Error, Result};
use crate::mlx5::uar::Register;

/// A doorbell register that several queue pairs share.
///
/// Every queue pair has a register of its own unless it is made in a domain. Sharing saves registers
/// (devices have thousands, but not millions), at the price of an uncontended spin lock per doorbell when
/// all queue pairs of the domain are used by one thread, and of waiting when they are not.
#[derive(Debug, Clone)]
pub struct ThreadDomain {
    context: Context,
    register: Arc<Register>,
    shared: SharedBlueFlame,
}

impl Context {
    /// Allocates a thread domain.
    ///
    /// # Errors
    /// `Unsupported` where the kernel fixes doorbell pages at open; what the kernel says.
    #[doc(alias = "ibv_alloc_td")]
    pub fn alloc_thread_domain(&self) -> Result<ThreadDomain> {
        let register = self.inner().uars.dedicated()?.map(Arc::new).ok_or_else(|| {
            Error::unsupported("alloc_td", "this kernel chooses doorbell registers itself")
        })?;
        // SAFETY: the one BlueFlame made of this register goes under the lock of `SharedBlueFlame`; every
        // queue pair of the domain keeps the register.
        let shared = SharedBlueFlame::new(unsafe { register.blue_flame() });
        Ok(ThreadDomain { context: self.clone(), register, shared })
    }
}

impl ThreadDomain {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn register(&self) -> &Arc<Register> {
        &self.register
    }

    pub(crate) fn blue_flame(&self) -> SharedBlueFlame {
        self.shared.clone()
    }
}
