//! Refusals as the numbers that `ibv_post_send` and `ibv_post_recv` return.

use uverbs_mlx5::request::PostError;

const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// The errno of a refused send request.
///
/// Where libmlx5 refuses too the number is its own: ENOMEM for a full queue, too many entries,
/// inline data that is too long, and a QP before RTS; EOPNOTSUPP for a window of more than 2 GiB.
/// What only this crate refuses is EINVAL.
pub const fn send_errno(error: PostError) -> i32 {
    match error {
        PostError::Full
        | PostError::TooManySge
        | PostError::InlineTooLong
        | PostError::BadState => ENOMEM,
        PostError::WindowTooLong => EOPNOTSUPP,
        _ => EINVAL,
    }
}

/// The errno of a refused receive request: ENOMEM for a full queue, EINVAL for all else, as libmlx5
/// has it.
pub const fn receive_errno(error: PostError) -> i32 {
    match error {
        PostError::Full => ENOMEM,
        _ => EINVAL,
    }
}
