//! Protection domains and regions that another process made on the same open file.

use uverbs_uapi::mlx5::object::pd::query as query_pd;
use uverbs_uapi::objects::mr::query as query_mr;

use super::MemoryRegion;
use super::pd::ProtectionDomain;
use crate::device::context::Context;
use crate::error::{Error, Result};

impl Context {
    /// Imports a protection domain that another process made on the same open file (ibv_import_pd).
    /// `handle` is its [`ProtectionDomain::kernel_handle`]. Dropping or destroying the imported
    /// domain does not free it. After its owner has freed it, verbs that use it here fail.
    ///
    /// # Errors
    /// `Unsupported` on kernels before 5.9; ENOENT or EINVAL if no domain has the handle.
    #[doc(alias = "ibv_unimport_pd")]
    #[doc(alias = "ibv_import_pd")]
    pub fn import_pd(&self, handle: u32) -> Result<ProtectionDomain> {
        let mut number = 0u32;
        let mut request = self.commands().request::<query_pd::Call>();
        request.handle(query_pd::HANDLE, handle);
        request.output(query_pd::RESP_PDN, &mut number);
        let sent = self.commands().send("import_pd", &mut request);
        sent.map_err(|error| error.asked(format!("handle {handle}")))?;
        Ok(ProtectionDomain::imported(self, handle, number))
    }
}

impl ProtectionDomain {
    /// Imports a region that another process registered in this domain (ibv_import_mr). `handle` is
    /// its [`MemoryRegion::kernel_handle`]. The imported region has keys and addresses for work
    /// requests, but no view of the memory.
    ///
    /// Dropping or deregistering it does not deregister the memory. After its owner has
    /// deregistered it, requests that name it fail.
    ///
    /// # Errors
    /// `Unsupported` on kernels before 5.9, which do not report the addresses; ENOENT or EINVAL if
    /// no region has the handle.
    #[doc(alias = "ibv_unimport_mr")]
    #[doc(alias = "ibv_import_mr")]
    pub fn import_region(&self, handle: u32) -> Result<MemoryRegion> {
        const VERB: &str = "import_mr";
        const UNREPORTED: u64 = u64::MAX;
        let (mut lkey, mut rkey, mut length, mut iova) = (0u32, 0u32, 0u64, UNREPORTED);
        let commands = self.context().commands();
        let sent = {
            let mut request = commands.request::<query_mr::Call>();
            request.handle(query_mr::HANDLE, handle);
            request.output(query_mr::RESP_LKEY, &mut lkey);
            request.output(query_mr::RESP_RKEY, &mut rkey);
            request.output(query_mr::RESP_LENGTH, &mut length);
            request.output(query_mr::RESP_IOVA, &mut iova).optional();
            commands.send(VERB, &mut request)
        };
        sent.map_err(|error| error.asked(format!("handle {handle}")))?;
        if iova == UNREPORTED {
            return Err(Error::unsupported(
                VERB,
                "the kernel does not report the region's addresses",
            ));
        }
        Ok(MemoryRegion::imported(self, handle, (lkey, rkey), (iova, length)))
    }
}

#[cfg(all(test, feature = "soft"))]
#[allow(unsafe_code, reason = "tests fork, and post raw requests")]
mod tests;
