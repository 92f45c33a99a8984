//! Firmware objects that a program's commands create.

use uverbs_uapi::mlx5::object::devx_obj::{async_query, create, destroy};

use super::channel::CommandChannel;
use super::{Devx, Subject, too_long};
use crate::device::context::Context;
use crate::error::{DestroyError, Result};
use crate::host::lifetime::{Kind, Object, object_kind};

/// A firmware object. Dropping it destroys it.
#[derive(Debug)]
pub struct DevxObject {
    object: Object<Context>,
}

const KIND: Kind = object_kind!("devx_obj_destroy", "firmware object", destroy::HANDLE);

impl Devx {
    /// Runs a command that creates an object.
    ///
    /// # Errors
    /// As [`Devx::command`].
    #[doc(alias = "mlx5dv_devx_obj_create")]
    pub fn create(&self, command: &[u8], answer: &mut [u8]) -> Result<DevxObject> {
        let (input, output) = ((create::CMD_IN, command), (create::CMD_OUT, answer));
        let subject = Subject::New(create::HANDLE);
        let handle = self.run("devx_obj_create", subject, input, output)?;
        Ok(DevxObject { object: Object::new(self.context.clone(), handle, &KIND) })
    }
}

impl DevxObject {
    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.object.handle
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.object.parent
    }

    /// Runs a command that queries it.
    ///
    /// # Errors
    /// As [`Devx::command`].
    #[doc(alias = "mlx5dv_devx_obj_query")]
    pub fn query(&self, command: &[u8], answer: &mut [u8]) -> Result<()> {
        Devx::of(self.context()).query(self.kernel_handle(), command, answer)
    }

    /// Runs a command that modifies it.
    ///
    /// # Errors
    /// As [`Devx::command`].
    #[doc(alias = "mlx5dv_devx_obj_modify")]
    pub fn modify(&self, command: &[u8], answer: &mut [u8]) -> Result<()> {
        Devx::of(self.context()).modify(self.kernel_handle(), command, answer)
    }

    /// Starts a query of it. `channel` delivers `wr_id` and the answer of `length` bytes.
    ///
    /// # Errors
    /// `WouldBlock` while too many answers are unread; other errors of the kernel.
    #[doc(alias = "mlx5dv_devx_obj_query_async")]
    pub fn query_async(
        &self,
        command: &[u8],
        length: u64,
        wr_id: u64,
        channel: &CommandChannel,
    ) -> Result<()> {
        const VERB: &str = "devx_obj_query_async";
        let mut request = self.context().commands().request::<async_query::Call>();
        request.handle(async_query::HANDLE, self.kernel_handle());
        let stored = request.input_bytes(async_query::CMD_IN, command).map(drop);
        stored.map_err(|error| too_long(VERB, &error))?;
        request.constant(async_query::OUT_LEN, length);
        request.value(async_query::WR_ID, wr_id);
        request.fd(async_query::FD, channel.raw_fd());
        self.context().commands().send(VERB, &mut request)
    }

    /// Destroys it.
    ///
    /// # Errors
    /// Errors of the kernel. The error contains it unchanged.
    #[doc(alias = "mlx5dv_devx_obj_destroy")]
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        self.object.destroy().map_err(|error| DestroyError::new(self, error))
    }
}
