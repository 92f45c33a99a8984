//! Memory keys that requests configure (`mlx5dv_create_mkey`): indirect keys, which consist of
//! parts of other keys.

use std::ffi::c_int;

use uverbs::Error;
use uverbs::devx::DevxObject;

use super::devx::devx;
use crate::abi::*;
use crate::pd::Pd;
use crate::result::{destroy_and_free, failed, null, refused};

/// `enum mlx5dv_mkey_init_attr_flags`. Keys with signatures or encryption are not supported.
const INDIRECT: u32 = 1;
const REMOTE_INVALIDATE: u32 = 1 << 4;

/// `struct mlx5dv_mkey_init_attr`.
#[repr(C)]
pub(crate) struct KeyAttr {
    pd: *mut ibv_pd,
    create_flags: u32,
    max_entries: u16,
}

/// `struct mlx5dv_mkey`, followed by the library's part.
#[repr(C)]
pub(crate) struct Key {
    pub(crate) lkey: u32,
    rkey: u32,
    /// Entries that a list of the key may have.
    pub(crate) most_entries: u16,
    library: Option<DevxObject>,
}

/// A CREATE_MKEY command, as `struct mlx5_ifc_create_mkey_in_bits` and `mlx5_ifc_mkc_bits` lay it
/// out, and its answer.
const COMMAND: usize = 272;
const ANSWER: usize = 16;
const CREATE_MKEY: [u8; 2] = [0x02, 0x00];
/// The key's context in the command.
const CONTEXT: usize = 16;
const FREE: u8 = 1 << 6;
/// `umr_en`, local read, and the access mode KLM.
const CHANGEABLE_LIST: u8 = 1 << 7 | 1 << 2 | 2;
const ANY_QP: [u8; 3] = [0xff; 3];
const REMOTE_INVALIDATION: u8 = 1;

/// CREATE_MKEY for a free key that any queue pair may use and requests may change. The low byte of
/// the key is 0.
fn command(pdn: u32, entries: u32, flags: u32) -> [u8; COMMAND] {
    let mut command = [0; COMMAND];
    let mut put = |at: usize, bytes: &[u8]| command[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &CREATE_MKEY);
    put(CONTEXT, &[FREE, 0, CHANGEABLE_LIST]);
    put(CONTEXT + 4, &ANY_QP);
    put(CONTEXT + 12, &pdn.to_be_bytes());
    put(CONTEXT + 52, &entries.to_be_bytes());
    if flags & REMOTE_INVALIDATE != 0 {
        put(CONTEXT + 12, &[REMOTE_INVALIDATION]);
    }
    command
}

/// `mlx5dv_create_mkey`.
pub(crate) unsafe extern "C" fn create_mkey(attr: *mut KeyAttr) -> *mut Key {
    // SAFETY: the caller's struct and domain.
    let (attr, pd) = unsafe { (&mut *attr, Pd::of((*attr).pd)) };
    let flags = attr.create_flags;
    if flags == 0 || flags & !(INDIRECT | REMOTE_INVALIDATE) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let (Some(entries), Some(domain)) = (attr.max_entries.checked_next_multiple_of(4), pd.domain())
    else {
        return null(libc::EINVAL);
    };
    let mut answer = [0; ANSWER];
    // SAFETY: the caller's domain. The command makes a key that leads to nothing.
    let devx = unsafe { devx((*attr.pd).context) };
    let command = command(domain.number(), entries.into(), flags);
    match devx.create(&command, &mut answer) {
        Ok(library) => {
            attr.max_entries = entries;
            let lkey = u32::from_be_bytes([answer[9], answer[10], answer[11], 0]);
            let library = Some(library);
            Box::into_raw(Box::new(Key { lkey, rkey: lkey, most_entries: entries, library }))
        }
        Err(error) => null(errno_of(&error, answer[0])),
    }
}

/// The errno for a command that has failed with this status in its answer.
pub(super) fn errno_of(error: &Error, status: u8) -> c_int {
    match failed(error) {
        libc::EREMOTEIO => refusal(status),
        errno => errno,
    }
}

/// The errno for a status of the firmware, as in libmlx5 (`mlx5_cmd_status_to_err`).
fn refusal(status: u8) -> c_int {
    match status {
        0x06 => libc::EBUSY,
        0x08 => libc::ENOMEM,
        0x0f => libc::EAGAIN,
        0x02 | 0x03 | 0x05 | 0x09 | 0x0a | 0x10 | 0x30 | 0x40 => libc::EINVAL,
        _ => libc::EIO,
    }
}

/// `mlx5dv_destroy_mkey`.
pub(crate) unsafe extern "C" fn destroy_mkey(key: *mut Key) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(key, |key| &mut key.library, DevxObject::destroy) }
}

/// `_mlx5dv_mkey_check`: EINVAL, as in libmlx5 for keys without signatures.
pub(crate) unsafe extern "C" fn mkey_check(
    _: *mut Key,
    _: *mut std::ffi::c_void,
    _: usize,
) -> c_int {
    refused(libc::EINVAL)
}
