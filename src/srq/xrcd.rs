//! XRC domains: what XRC targets and XRC shared receive queues have in common, also across processes.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use uverbs_uapi::objects::xrcd::destroy;
use uverbs_uapi::write::xrcd::OpenXrcd;

use crate::device::context::Context;
use crate::error::{DestroyError, Result};
use crate::host::events::log_failed_drop;
use crate::host::lifetime::destroy_unshared;

/// An XRC domain. Clones are handles to the same domain; objects made from it hold one.
#[derive(Debug, Clone)]
pub struct XrcDomain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    handle: u32,
    live: bool,
}

impl Context {
    /// Opens an XRC domain of this context alone.
    ///
    /// # Errors
    /// `Unsupported` where the device has no XRC; what the kernel says.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self) -> Result<XrcDomain> {
        self.open_xrcd_as(-1)
    }

    /// Opens the XRC domain that `file`'s inode names, shared by all processes that open it so; creates it
    /// if it is new.
    ///
    /// # Errors
    /// As [`Context::open_xrcd`].
    pub fn open_shared_xrcd(&self, file: BorrowedFd<'_>) -> Result<XrcDomain> {
        self.open_xrcd_as(file.as_raw_fd())
    }

    fn open_xrcd_as(&self, fd: i32) -> Result<XrcDomain> {
        let command = OpenXrcd { response: 0, fd: fd as u32, oflags: nix::libc::O_CREAT as u32 };
        let answer = self.commands().write("open_xrcd", &command)?;
        let inner = Inner { context: self.clone(), handle: answer.xrcd_handle, live: true };
        Ok(XrcDomain { inner: Arc::new(inner) })
    }
}

impl XrcDomain {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Closes the domain.
    ///
    /// # Errors
    /// `Busy` while objects made from it exist; what the kernel says. The domain comes back unharmed.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(mut self) -> std::result::Result<(), DestroyError<Self>> {
        destroy_unshared(&mut self.inner, "close_xrcd", ("object", "the domain"), Inner::destroy)
            .map_err(|error| DestroyError::new(self, error))
    }
}

impl Inner {
    fn destroy(&mut self) -> Result<()> {
        let mut request = self.context.commands().request::<destroy::Call>();
        request.handle(destroy::HANDLE, self.handle);
        self.context.commands().destroy("close_xrcd", &mut request)?;
        self.live = false;
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.live {
            if let Err(error) = self.destroy() {
                log_failed_drop("XRC domain", &error);
            }
        }
    }
}
