//! XRC domains, which XRC targets and XRC shared receive queues share, also across processes.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use uverbs_uapi::objects::xrcd::destroy;
use uverbs_uapi::write::xrcd::OpenXrcd;

use crate::device::context::Context;
use crate::error::{DestroyError, Result};
use crate::host::lifetime::{Kind, Object, destroy_unshared, object_kind};

/// An XRC domain. Clones share one domain; objects made from it hold a clone.
///
/// ```no_run
/// let context = uverbs::open_default()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(256).build()?);
/// let domain = context.open_xrcd()?;
/// let srq = pd.create_srq(128).xrc(&domain, cq.handle()).build()?;
/// let receiver = domain.create_receiver(Default::default())?;
/// let endpoint = receiver.endpoint(srq.handle()); // for the peer
/// # let _ = endpoint;
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct XrcDomain {
    object: Arc<Object<Context>>,
}

const KIND: Kind = object_kind!("close_xrcd", "XRC domain", destroy::HANDLE);

impl Context {
    /// Opens an XRC domain that only this context uses.
    ///
    /// # Errors
    /// `Unsupported` if the device has no XRC; errors of the kernel.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self) -> Result<XrcDomain> {
        self.open_xrcd_as(None, nix::libc::O_CREAT)
    }

    /// Opens the XRC domain that is bound to `file`'s inode, shared by all processes that open it
    /// with this file; creates it if there is none.
    ///
    /// # Errors
    /// As [`Context::open_xrcd`].
    pub fn open_shared_xrcd(&self, file: BorrowedFd<'_>) -> Result<XrcDomain> {
        self.open_xrcd_as(Some(file), nix::libc::O_CREAT)
    }

    /// Opens a domain with the `oflags` of open(2).
    ///
    /// # Errors
    /// Errors of the kernel.
    #[doc(hidden)]
    pub fn open_xrcd_as(&self, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<XrcDomain> {
        let fd = file.map_or(-1, |file| file.as_raw_fd());
        let command = OpenXrcd { response: 0, fd: fd as u32, oflags: oflags as u32 };
        let answer = self.commands().write("open_xrcd", &command)?;
        let object = Object::new(self.clone(), answer.xrcd_handle, &KIND);
        Ok(XrcDomain { object: Arc::new(object) })
    }
}

impl XrcDomain {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.object.parent
    }

    pub(crate) fn handle(&self) -> u32 {
        self.object.handle
    }

    /// Closes the domain.
    ///
    /// # Errors
    /// `Busy` while objects made from it exist; errors of the kernel. The domain is returned
    /// unchanged.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(mut self) -> std::result::Result<(), DestroyError<Self>> {
        destroy_unshared(&mut self.object, KIND.verb, ("object", "the domain"), Object::destroy)
            .map_err(|error| DestroyError::new(self, error))
    }
}
