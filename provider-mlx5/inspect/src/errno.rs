//! Refusals as the error numbers that `ibv_post_send` and `ibv_post_recv` return.

use uverbs_mlx5::request::PostError;

const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// The errno of a refused send request.
///
/// The same as libmlx5's, if libmlx5 refuses the request: ENOMEM for a full queue, too many
/// entries, inline data that is too long, and a QP before RTS; EOPNOTSUPP for a window of more than
/// 2 GiB. EINVAL for requests that only this crate refuses.
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

/// The errno of a refused receive request, as in libmlx5: ENOMEM for a full queue, else EINVAL.
pub const fn receive_errno(error: PostError) -> i32 {
    match error {
        PostError::Full => ENOMEM,
        _ => EINVAL,
    }
}
