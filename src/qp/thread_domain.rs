//! Thread domains: queue pairs that share a doorbell register on purpose.

use std::fmt;
use std::sync::Arc;

use uverbs_mlx5::mmio::SharedBlueFlame;

use crate::device::context::Context;
use crate::error::{Error, Result};
use crate::mlx5::queues::Doorbell;

const VERB: &str = "alloc_td";

/// A doorbell register that several queue pairs share.
///
/// Every queue pair has its own register unless it is made in a domain. Sharing saves registers:
/// devices have thousands, and ENOMEM of `alloc_uar` means that none is left. Sharing costs a spin
/// lock per doorbell, uncontended if one thread uses all queue pairs of the domain. The program
/// chooses: a domain for each thread, one for all queue pairs of a context, or none.
///
/// ```no_run
/// use uverbs::qp_type::Rc;
/// let context = uverbs::open_default()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(256).build()?);
/// let domain = context.alloc_thread_domain()?;
/// let builder = || pd.create_qp::<Rc>(cq.handle(), cq.handle());
/// let a = builder().build_in(&domain)?;
/// let b = builder().build_in(&domain)?;
/// # let _ = (a, b);
/// # Ok::<(), uverbs::Error>(())
/// ```
#[doc(alias = "ibv_dealloc_td")]
#[derive(Clone)]
pub struct ThreadDomain {
    doorbell: Doorbell<SharedBlueFlame>,
    context: Context,
}

impl fmt::Debug for ThreadDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadDomain").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Context {
    /// Allocates a thread domain.
    ///
    /// # Errors
    /// `Unsupported` if the kernel assigns doorbell pages when the device is opened; errors of the
    /// kernel.
    #[doc(alias = "ibv_alloc_td")]
    pub fn alloc_thread_domain(&self) -> Result<ThreadDomain> {
        let register = self.inner().uars.dedicated()?.map(Arc::new).ok_or_else(|| {
            Error::unsupported(VERB, "this kernel chooses doorbell registers itself")
        })?;
        let doorbell = Doorbell::of(VERB, register)?.shared();
        Ok(ThreadDomain { doorbell, context: self.clone() })
    }
}

impl ThreadDomain {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn doorbell(&self) -> Doorbell<SharedBlueFlame> {
        self.doorbell.clone()
    }
}
