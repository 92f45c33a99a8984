//! QP numbers that no queue pair gets, for programs that use rdma_cm to connect objects that are
//! not queue pairs.

use std::collections::HashSet;
use std::ffi::c_int;

use uverbs::Error;
use uverbs::devx::{Devx, DevxObject};

use super::devx::devx;
use super::keys::errno_of;
use crate::abi::*;
use crate::context::Context;
use crate::result::{failed, refused};

/// Opcodes, `MLX5_CMD_OP_*`.
const QUERY_HCA_CAP: u16 = 0x100;
const CREATE_GENERAL_OBJECT: u16 = 0xa00;
/// `MLX5_OBJ_TYPE_RESERVED_QPN`.
const RESERVED_QPN: u16 = 0x2c;
/// Types of capabilities: general ones, and the second group of these.
const GENERAL: u16 = 0;
const GENERAL_2: u16 = 0x20;

/// Offsets in bytes of the capabilities in the answer, and in the capabilities of the types of
/// general objects (`general_obj_types`) and of the word with `log_reserved_qpn_granularity`.
const CAPABILITIES: usize = 16;
const OBJECT_TYPES: usize = CAPABILITIES + 0x80;
const GRANULARITY: usize = CAPABILITIES + 0x10;

/// Numbers that were reserved together. Each is handed out once.
#[derive(Debug)]
pub(crate) struct Range {
    object: DevxObject,
    first: u32,
    length: u32,
    /// How many were handed out.
    taken: u32,
    /// The numbers that the program has now.
    used: HashSet<u32>,
}

/// A command that has parameters only in its first 16 bytes.
fn command(opcode: u16, operation: u16) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..2].copy_from_slice(&opcode.to_be_bytes());
    bytes[6..8].copy_from_slice(&operation.to_be_bytes());
    bytes
}

/// The current capabilities of a type, with the answer's header.
fn capabilities(devx: &Devx, kind: u16) -> Result<Vec<u8>, Error> {
    let mut answer = vec![0; CAPABILITIES + 4096];
    devx.command(&command(QUERY_HCA_CAP, kind << 1 | 1)[..CAPABILITIES], &mut answer)?;
    Ok(answer)
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

/// Whether the device reserves numbers.
fn is_possible(devx: &Devx) -> Result<bool, Error> {
    let types = u64::from_be_bytes(word(&capabilities(devx, GENERAL)?, OBJECT_TYPES));
    Ok(types >> RESERVED_QPN & 1 != 0)
}

impl Range {
    /// # Errors
    /// An errno, as in libmlx5.
    fn new(devx: &Devx) -> Result<Self, c_int> {
        if !is_possible(devx).map_err(|error| failed(&error))? {
            return Err(libc::EOPNOTSUPP);
        }
        let capabilities = capabilities(devx, GENERAL_2).map_err(|error| failed(&error))?;
        let word = u32::from_be_bytes(word(&capabilities, GRANULARITY));
        let log_length = word >> 8 & 0x1f;
        let mut input = command(CREATE_GENERAL_OBJECT, RESERVED_QPN);
        input[12] = log_length as u8;
        let mut answer = [0; 16];
        let object = devx.create(&input, &mut answer);
        let object = object.map_err(|error| errno_of(&error, answer[0]))?;
        let (first, length) = (u32::from_be_bytes(self::word(&answer, 8)), 1 << log_length);
        // QP numbers have 24 bits.
        if u64::from(first) + u64::from(length) > 1 << 24 {
            return Err(libc::EINVAL);
        }
        Ok(Self { object, first, length, taken: 0, used: HashSet::new() })
    }

    /// The next number; `None` once all were handed out.
    fn take(&mut self) -> Option<u32> {
        let number = (self.taken < self.length).then_some(self.first + self.taken)?;
        self.taken += 1;
        self.used.insert(number);
        Some(number)
    }

    fn is_over(&self) -> bool {
        self.taken == self.length && self.used.is_empty()
    }
}

/// `mlx5dv_reserved_qpn_alloc`. Numbers only go up within a range, so that a stale one is used as
/// late as possible, as in libmlx5.
pub(crate) unsafe extern "C" fn reserved_qpn_alloc(
    context: *mut ibv_context,
    qpn: *mut u32,
) -> c_int {
    // SAFETY: the caller's context. The commands name no memory.
    let (own, devx) = unsafe { (Context::of(context), devx(context)) };
    let Some(mut ranges) = own.reserved.lock() else { return refused(libc::EINVAL) };
    let mut number = ranges.last_mut().and_then(Range::take);
    if number.is_none() {
        match Range::new(&devx) {
            Ok(range) => ranges.push(range),
            Err(errno) => return refused(errno),
        }
        number = ranges.last_mut().and_then(Range::take);
    }
    let Some(number) = number else { return refused(libc::ENOMEM) };
    // SAFETY: the caller's place, to be written.
    unsafe { qpn.write(number) };
    0
}

/// `mlx5dv_reserved_qpn_dealloc`. A range is released when all of its numbers were handed out and
/// returned.
pub(crate) unsafe extern "C" fn reserved_qpn_dealloc(context: *mut ibv_context, qpn: u32) -> c_int {
    // SAFETY: the caller's context.
    let own = unsafe { Context::of(context) };
    let Some(mut ranges) = own.reserved.lock() else { return refused(libc::EINVAL) };
    let Some(at) = ranges.iter_mut().position(|range| range.used.remove(&qpn)) else {
        return refused(libc::EINVAL);
    };
    if ranges[at].is_over() {
        return ranges
            .remove(at)
            .object
            .destroy()
            .map_or_else(|error| failed(&error.error), |()| 0);
    }
    0
}
