//! DEVX: firmware commands of the program, and the objects that they use.
//!
//! Commands are big-endian mailboxes that begin with the opcode, in the layout of the PRM and
//! `include/linux/mlx5/mlx5_ifc.h`. The kernel adds the context's user id and passes them on; it
//! makes the command that destroys an object itself. The facts are from
//! drivers/infiniband/hw/mlx5/{devx,main,qos}.c.

mod channel;
mod object;
mod pacing;
mod uar;
mod umem;
mod var;

pub use channel::{CommandChannel, EventChannel};
pub use object::DevxObject;
pub use pacing::PacingEntry;
pub use uar::{DevxUar, UarKind};
pub use umem::{Umem, UmemOptions};
pub use uverbs_uapi::mlx5::flags::{DevxEventChannelFlags, PpAllocFlags, VarAllocFlags};
pub use var::VirtioDoorbell;

use nix::errno::Errno;
use uverbs_uapi::mlx5::object::devx::{other, query_eqn};
use uverbs_uapi::mlx5::object::devx_obj;
use uverbs_uapi::objects::{Attr, Method, kind};
use uverbs_uapi::request::TooLong;

use crate::device::context::Context;
use crate::error::{Error, Result};

/// Byte offsets of the firmware's status and syndrome in an answer.
const STATUS: usize = 0;
const SYNDROME: std::ops::Range<usize> = 4..8;

/// The object of a command.
enum Subject<M> {
    None,
    Object(Attr<M, kind::Handle>, u32),
    New(Attr<M, kind::NewHandle>),
}

/// Access to a context's firmware: from [`Context::devx`].
///
/// ```
/// # #[cfg(feature = "soft")] {
/// let context = uverbs::device("soft")?.open()?;
/// let (mut command, mut answer) = ([0; 16], [0; 16]);
/// command[..2].copy_from_slice(&0x939u16.to_be_bytes()); // ALLOC_FLOW_COUNTER
/// // SAFETY: the command names no memory.
/// let devx = unsafe { context.devx() };
/// let counter = devx.create(&command, &mut answer)?;
/// println!("flow counter {:02x?}", &answer[8..12]);
/// counter.destroy()?;
/// # }
/// # Ok::<(), uverbs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Devx {
    context: Context,
}

impl Devx {
    pub(crate) fn of(context: &Context) -> Self {
        Self { context: context.clone() }
    }

    /// The context of the commands.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Runs a command that does not create, query or modify an object.
    ///
    /// # Errors
    /// EREMOTEIO if the firmware refuses the command: `answer` has its status and syndrome. After
    /// other errors of the kernel the command was not sent.
    #[doc(alias = "mlx5dv_devx_general_cmd")]
    pub fn command(&self, command: &[u8], answer: &mut [u8]) -> Result<()> {
        let (input, output) = ((other::CMD_IN, command), (other::CMD_OUT, answer));
        self.run("devx_general_cmd", Subject::None, input, output).map(drop)
    }

    /// The number of a completion vector's event queue.
    ///
    /// # Errors
    /// Errors of the kernel.
    #[doc(alias = "mlx5dv_devx_query_eqn")]
    pub fn event_queue(&self, vector: u32) -> Result<u32> {
        let mut number = 0u32;
        let mut request = self.context.commands().request::<query_eqn::Call>();
        request.value(query_eqn::USER_VEC, vector);
        request.output(query_eqn::DEV_EQN, &mut number);
        self.context.commands().send("devx_query_eqn", &mut request)?;
        Ok(number)
    }

    /// Runs a query of the object with this handle: a DEVX object, or a completion queue, queue
    /// pair, shared receive queue, work queue or indirection table. The command has its number.
    ///
    /// # Errors
    /// As [`Devx::command`].
    #[doc(alias = "mlx5dv_devx_qp_query")]
    pub fn query(&self, handle: u32, command: &[u8], answer: &mut [u8]) -> Result<()> {
        use devx_obj::query::{CMD_IN, CMD_OUT, HANDLE};
        let subject = Subject::Object(HANDLE, handle);
        self.run("devx_obj_query", subject, (CMD_IN, command), (CMD_OUT, answer)).map(drop)
    }

    /// Runs a command that modifies the object with this handle, which may be any that
    /// [`Devx::query`] accepts.
    ///
    /// # Errors
    /// As [`Devx::command`].
    #[doc(alias = "mlx5dv_devx_qp_modify")]
    pub fn modify(&self, handle: u32, command: &[u8], answer: &mut [u8]) -> Result<()> {
        use devx_obj::modify::{CMD_IN, CMD_OUT, HANDLE};
        let subject = Subject::Object(HANDLE, handle);
        self.run("devx_obj_modify", subject, (CMD_IN, command), (CMD_OUT, answer)).map(drop)
    }

    /// Runs a command. Returns the handle of the object that it has created, if any. If the
    /// firmware refuses, the error has the status and syndrome of its answer.
    fn run<M: Method>(
        &self,
        verb: &'static str,
        subject: Subject<M>,
        (command_in, command): (Attr<M, kind::In>, &[u8]),
        (answer_out, answer): (Attr<M, kind::Out>, &mut [u8]),
    ) -> Result<u32> {
        let mut request = self.context.commands().request::<M>();
        match subject {
            Subject::None => {}
            Subject::Object(attribute, handle) => drop(request.handle(attribute, handle)),
            Subject::New(attribute) => drop(request.new_handle(attribute)),
        }
        let stored = request.input_bytes(command_in, command).map(drop);
        let stored = stored.and_then(|()| request.output_bytes(answer_out, answer).map(drop));
        stored.map_err(|error| too_long(verb, &error))?;
        let sent = self.context.commands().send(verb, &mut request);
        let made = match subject {
            Subject::New(attribute) => request.created(attribute),
            _ => None,
        };
        sent.map_err(|error| explain(error, answer))?;
        Ok(made.unwrap_or_default())
    }
}

fn too_long(verb: &'static str, error: &TooLong) -> Error {
    Error::invalid(verb, error.to_string())
}

/// Only EREMOTEIO means that the firmware has refused the command; then the answer has the reason.
fn explain(error: Error, answer: &[u8]) -> Error {
    if error.errno() != Errno::EREMOTEIO as i32 {
        return error;
    }
    let syndrome = answer.get(SYNDROME).and_then(|bytes| bytes.try_into().ok());
    match (answer.get(STATUS), syndrome.map(u32::from_be_bytes)) {
        (Some(status), Some(syndrome)) => error.because(format!(
            "the firmware refused the command: status {status:#x}, syndrome {syndrome:#x}"
        )),
        _ => error.because("the firmware refused the command"),
    }
}
