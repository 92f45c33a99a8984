//! Changes of the list of tags of a tag matching queue.

use std::ffi::c_int;

use uverbs::Sge;
use uverbs::qp::{TagChange, TagError, TagRequest};
use uverbs::raw::TagBatch;

use crate::abi::*;
use crate::post::{refuse, send_errno};
use crate::srq::Srq;

/// `ibv_post_srq_ops`.
pub(crate) unsafe extern "C" fn post_srq_ops(
    srq: *mut ibv_srq,
    first: *mut ibv_ops_wr,
    bad: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the caller's queue, list and place; the lock is held, or the program posts in one
    // thread at a time.
    unsafe {
        let queue = Srq::of(srq);
        let _guard = queue.lock.guard();
        let Some(tags) = &mut *queue.tags.get() else {
            return refuse(first, bad, libc::EINVAL);
        };
        let mut batch = match tags.batch() {
            Ok(batch) => batch,
            Err(reason) => return refuse(first, bad, send_errno(reason)),
        };
        let mut result = 0;
        let mut next = first;
        while let (0, Some(wr)) = (result, next.as_mut()) {
            result = match build(&mut batch, wr) {
                Ok(()) => 0,
                Err(errno) => refuse(next, bad, errno),
            };
            next = wr.next;
        }
        batch.publish();
        result
    }
}

/// Builds one change; an errno if it is refused.
///
/// # Safety
/// A program's request, whose memory is valid as in C.
unsafe fn build(batch: &mut TagBatch<'_>, wr: &mut ibv_ops_wr) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let change = unsafe { change(wr) }?;
    let is_sync = wr.flags & ops_flags::TM_SYNC != 0;
    let request = TagRequest {
        wr_id: wr.wr_id,
        change,
        signaled: wr.flags & ops_flags::SIGNALED != 0,
        unexpected: is_sync.then_some(wr.tm.unexpected_cnt),
    };
    // SAFETY: the caller's promise is what the batch requires.
    if let Some(handle) = unsafe { batch.build(&request) }.map_err(errno)? {
        wr.tm.handle = handle.into();
    }
    Ok(())
}

/// # Safety
/// As for [`build`].
unsafe fn change(wr: &ibv_ops_wr) -> Result<TagChange, c_int> {
    let OpsAdd { recv_wr_id, sg_list, num_sge, tag, mask } = wr.tm.add;
    match wr.opcode {
        ops_opcode::TAG_ADD => {
            let buffer = match num_sge {
                0 => None,
                1 => {
                    // SAFETY: the caller's promise.
                    let (address, length, lkey) = unsafe { ibv_sge::parts(sg_list) };
                    Some(Sge::new(address, length, lkey))
                }
                _ => return Err(libc::EINVAL),
            };
            Ok(TagChange::Add { tag, mask, buffer, receive_id: recv_wr_id })
        }
        ops_opcode::TAG_DEL => {
            u16::try_from(wr.tm.handle).map(TagChange::Remove).map_err(|_| libc::EINVAL)
        }
        ops_opcode::TAG_SYNC => Ok(TagChange::Sync),
        _ => Err(libc::EINVAL),
    }
}

/// libmlx5 has no space for another entry, hence ENOMEM. It does not notice that an entry to be
/// removed is not in the list.
fn errno(reason: TagError) -> c_int {
    match reason {
        TagError::Post(reason) => send_errno(reason),
        TagError::ListFull => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}
