//! What a ConnectX has and this device does not: receive work queues and their hashing.
#![forbid(unsafe_code)]

use nix::errno::Errno;

use super::call::Call;

/// Receive work queues, which feed hashed raw packet QPs.
pub(crate) fn work_queues(_: &mut Call<'_>) -> Result<(), Errno> {
    Err(Errno::EOPNOTSUPP)
}
