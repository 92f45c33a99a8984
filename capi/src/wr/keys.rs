//! Requests that configure a memory key (`mlx5dv_wr_mkey_configure`): the call that begins one, and
//! the setters of the key's rights and of what it leads to.
//!
//! The WQE is encoded where inline data is copied to otherwise, and built when the last of the
//! setters that the program has announced was called. Until then `ibv_wr_complete` fails.

use std::mem::offset_of;

use uverbs::memory::AccessFlags;
use uverbs_mlx5::format::{
    Klm, MkeyContextSegment as Context, Opcode, RepeatBlock, RepeatEntry, UmrControlSegment as Umr,
};

use super::*;
use crate::dv::Key;

/// `struct mlx5dv_mkey_conf_attr`.
#[repr(C)]
pub(crate) struct ConfAttr {
    conf_flags: u32,
    comp_mask: u64,
}

/// A configuration without flags.
pub(crate) static NOTHING_ELSE: ConfAttr = ConfAttr { conf_flags: 0, comp_mask: 0 };

/// `struct mlx5dv_mr_interleaved`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Interleaved {
    addr: u64,
    bytes_count: u32,
    bytes_skip: u32,
    lkey: u32,
}

/// `MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR`, which changes nothing of keys without signatures.
const RESET_SIGNATURE: u32 = 1;
/// `enum ibv_access_flags`, and the key's own bits.
const RIGHTS: [(AccessFlags, u8); 4] = [
    (AccessFlags::LOCAL_WRITE, Context::ACCESS_LOCAL_WRITE),
    (AccessFlags::REMOTE_WRITE, Context::ACCESS_REMOTE_WRITE),
    (AccessFlags::REMOTE_READ, Context::ACCESS_REMOTE_READ),
    (AccessFlags::REMOTE_ATOMIC, Context::ACCESS_ATOMIC),
];

/// Where the parts of the WQE are: UMR control, mkey context, and the list.
const UMR: usize = 16;
const CONTEXT: usize = UMR + size_of::<Umr>();
const LIST: usize = CONTEXT + size_of::<Context>();
/// Bytes of an entry of the list, and entries of the longest one: whole groups of four, within what
/// the control segment can count.
const ENTRY: usize = 16;
const MOST_ENTRIES: usize = 52;
const _: () = assert!(LIST + MOST_ENTRIES * ENTRY <= MOST_INLINE);

/// A request that is being encoded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyChange {
    /// Whether it was begun and not finished.
    pub(super) is_open: bool,
    /// Setters to come.
    setters: u8,
    has_access: bool,
    has_list: bool,
    /// Entries that the list may have: in the key, and in the request with the list's head.
    most: [usize; 2],
    /// Bytes of the list.
    list: usize,
    length: u64,
    /// The fields of the key to change.
    mask: u64,
    access: u8,
}

/// Begins a request that configures a key, with so many setters.
///
/// # Safety
/// As for [`of`]: the caller's queue pair, after start, and its key and struct.
pub(crate) unsafe fn configure<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    key: *const Key,
    setters: u8,
    attr: *const ConfAttr,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (queue_pair, building) = of(qp);
        building.detour();
        if building.stage != Stage::None {
            finish::<T, SENDS>(qp, building);
        }
        if building.has_failed {
            return;
        }
        let (flags, mask) = ((*attr).conf_flags, (*attr).comp_mask);
        let is_known = flags & !RESET_SIGNATURE == 0 && mask == 0;
        let is_inline = (*qp).wr_flags & send_flags::INLINE != 0;
        if !is_known || !is_inline || (*key).lkey & 0xff != 0 {
            return building.fail(libc::EOPNOTSUPP);
        }
        if let Some(queue) = step_queue::<T, SENDS>(qp) {
            queue.close_steps(&mut building.steps);
        }
        let inline = queue_pair.capacities.max_inline_data as usize;
        let most = [(*key).most_entries.into(), MOST_ENTRIES.min((inline + 4) / ENTRY)];
        building.begin_change((*key).lkey, post::flags((*qp).wr_flags).bits());
        building.usual.wr_id = (*qp).wr_id;
        let mask = Umr::MASK_FREE | Umr::MASK_KEY;
        building.change = KeyChange { is_open: true, setters, most, mask, ..KeyChange::default() };
        // Until the last setter was called.
        building.fail(libc::EINVAL);
        if setters == 0 {
            build::<T, SENDS>(qp);
        }
    }
}

/// `mlx5dv_wr_set_mkey_access_flags`.
///
/// # Safety
/// As for [`of`].
pub(crate) unsafe fn set_access<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex, access: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        set::<T, SENDS>(qp, |change, _| {
            let mut unknown = AccessFlags::from_bits_retain(access);
            for (flag, right) in RIGHTS {
                if unknown.contains(flag) {
                    change.access |= right;
                }
                unknown.remove(flag);
            }
            if !unknown.is_empty() || change.has_access {
                return Err(libc::EINVAL);
            }
            change.mask |= Umr::MASK_LOCAL_WRITE
                | Umr::MASK_REMOTE_READ
                | Umr::MASK_REMOTE_WRITE
                | Umr::MASK_ATOMIC;
            change.has_access = true;
            Ok(())
        });
    }
}

/// `mlx5dv_wr_set_mkey_layout_list`: the parts follow each other.
///
/// # Safety
/// As for [`of`], and the caller's list.
pub(crate) unsafe fn set_list<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    count: u16,
    list: *const ibv_sge,
) {
    // SAFETY: the caller's promise.
    unsafe {
        set::<T, SENDS>(qp, |change, into| {
            change.begin_list(count.into(), 0)?;
            for (entry, to) in (0..count.into()).zip(into.chunks_exact_mut(ENTRY)) {
                let ibv_sge { addr, length, lkey } = *list.add(entry);
                put(to, offset_of!(Klm, byte_count), length.to_be_bytes());
                put(to, offset_of!(Klm, mkey), lkey.to_be_bytes());
                put(to, offset_of!(Klm, address), addr.to_be_bytes());
                change.length += u64::from(length);
            }
            Ok(())
        });
    }
}

/// `mlx5dv_wr_set_mkey_layout_interleaved`: the elements alternate, so many times.
///
/// # Safety
/// As for [`set_list`].
pub(crate) unsafe fn set_interleaved<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    cycles: u32,
    count: u16,
    list: *const Interleaved,
) {
    // SAFETY: the caller's promise.
    unsafe {
        set::<T, SENDS>(qp, |change, into| {
            change.begin_list(count.into(), 1)?;
            let (head, rest) = into.split_at_mut(size_of::<RepeatBlock>());
            let mut cycle = 0_u32;
            for (entry, to) in (0..count.into()).zip(rest.chunks_exact_mut(ENTRY)) {
                let Interleaved { addr, bytes_count, bytes_skip, lkey } = *list.add(entry);
                let stride = bytes_count.wrapping_add(bytes_skip);
                put(to, offset_of!(RepeatEntry, stride), (stride as u16).to_be_bytes());
                put(to, offset_of!(RepeatEntry, byte_count), (bytes_count as u16).to_be_bytes());
                put(to, offset_of!(RepeatEntry, mkey), lkey.to_be_bytes());
                put(to, offset_of!(RepeatEntry, address), addr.to_be_bytes());
                cycle = cycle.wrapping_add(bytes_count);
            }
            put(head, offset_of!(RepeatBlock, byte_count), cycle.to_be_bytes());
            put(head, offset_of!(RepeatBlock, operation), RepeatBlock::OPERATION.to_be_bytes());
            put(head, offset_of!(RepeatBlock, repeat_count), cycles.to_be_bytes());
            put(head, offset_of!(RepeatBlock, entries), count.to_be_bytes());
            change.length = u64::from(cycle) * u64::from(cycles);
            Ok(())
        });
    }
}

impl KeyChange {
    /// Notes a list of so many entries behind so many that are its head.
    fn begin_list(&mut self, count: usize, heads: usize) -> Result<(), c_int> {
        let [in_key, in_request] = self.most;
        if count > in_key || count + heads > in_request {
            return Err(libc::ENOMEM);
        }
        if self.has_list {
            return Err(libc::EINVAL);
        }
        self.list = (count + heads).next_multiple_of(4) * ENTRY;
        self.mask |= Umr::MASK_LENGTH;
        self.has_list = true;
        Ok(())
    }
}

/// Runs a setter on the request and the place of its list, and builds the request if this was the
/// last one.
///
/// # Safety
/// As for [`of`].
unsafe fn set<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    setter: impl FnOnce(&mut KeyChange, &mut [u8]) -> Result<(), c_int>,
) {
    // SAFETY: the caller's promise.
    let building = unsafe { of(qp).1 };
    building.detour();
    // A request between the two has used the place of this one.
    if !building.change.is_open || building.stage != Stage::None {
        return building.fail(libc::EINVAL);
    }
    let Building { change, copied, .. } = building;
    let list = copied.get_mut(LIST..).unwrap_or_default();
    match setter(change, list) {
        Err(errno) => {
            change.is_open = false;
            building.error = errno;
        }
        Ok(()) => {
            change.setters -= 1;
            if change.setters == 0 {
                // SAFETY: the caller's promise.
                unsafe { build::<T, SENDS>(qp) };
            }
        }
    }
}

impl Building {
    /// Encodes what does not depend on setters, and clears the rest.
    fn begin_change(&mut self, key: u32, mode: u8) {
        self.copied.fill(0);
        // Control segment: the opcode in the fourth byte, the mode in the twelfth.
        self.copied[3] = Opcode::UMR.0;
        self.copied[11] = mode;
        put(&mut self.copied, 12, key.to_be_bytes());
        put(&mut self.copied, UMR + offset_of!(Umr, flags), [Umr::FLAG_INLINE]);
        let any_qp = (Context::ANY_QPN << 8).to_be_bytes();
        put(&mut self.copied, CONTEXT + offset_of!(Context, qpn_mkey), any_qp);
    }

    /// Encodes what the setters have noted. Returns the WQE's length.
    fn end_change(&mut self) -> usize {
        let KeyChange { list, length, mask, access, .. } = self.change;
        let (copied, octowords) = (&mut self.copied, (LIST + list) / ENTRY);
        copied[7] = octowords as u8;
        let listed = ((list / ENTRY) as u16).to_be_bytes();
        put(copied, UMR + offset_of!(Umr, klm_octowords), listed);
        put(copied, UMR + offset_of!(Umr, mkey_mask), mask.to_be_bytes());
        put(copied, CONTEXT + offset_of!(Context, access_flags), [access]);
        put(copied, CONTEXT + offset_of!(Context, length), length.to_be_bytes());
        octowords * ENTRY
    }
}

/// Builds the request.
///
/// # Safety
/// As for [`of`].
unsafe fn build<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise; what a program promises is what the batch asks for.
    unsafe {
        let building = of(qp).1;
        building.change.is_open = false;
        (building.has_failed, building.error) = (false, 0);
        let length = building.end_change();
        in_batch::<T, SENDS>(qp, building, |building, batch| {
            let wqe = building.copied.get(..length).unwrap_or_default();
            batch.build_key_change(building.usual.wr_id, wqe)
        });
    }
}

fn put<const N: usize>(into: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(place) = into.get_mut(at..at + N) {
        place.copy_from_slice(&bytes);
    }
}
