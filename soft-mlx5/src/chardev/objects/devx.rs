//! DEVX: raw firmware commands. Only a context that was granted DEVX may send them, and only the
//! capability query is answered, with capabilities that are all zero.
//! Kernel: `MLX5_IB_METHOD_DEVX_OTHER` (hw/mlx5/devx.c).
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::mlx5::object::devx::other;

use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;

/// Shortest command and shortest answer.
const HEADER: usize = 16;
const QUERY_HCA_CAP: u16 = 0x100;
/// Firmware status "bad operation" (`MLX5_CMD_STAT_BAD_OP_ERR`).
const BAD_OPERATION: u8 = 2;

pub(crate) const OTHER: &[Attribute] =
    &[Attribute::input_min(other::CMD_IN, HEADER), Attribute::output_min(other::CMD_OUT, HEADER)];

/// Runs a command that creates no object. If the command fails, the errno is EREMOTEIO and the
/// answer has the status.
pub(crate) fn command(call: &mut Call<'_>) -> Result<(), Errno> {
    if !call.context()?.devx {
        return Err(Errno::EINVAL);
    }
    let header: [u8; HEADER] = call.input(other::CMD_IN)?;
    let length = call.given(other::CMD_OUT.id())?.length;
    let mut answer = vec![0u8; length.into()];
    let known = u16::from_be_bytes([header[0], header[1]]) == QUERY_HCA_CAP;
    if !known {
        answer[0] = BAD_OPERATION;
    }
    call.output(other::CMD_OUT, answer.as_slice())?;
    if known { Ok(()) } else { Err(Errno::EREMOTEIO) }
}
