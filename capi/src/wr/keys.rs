//! Requests that configure a memory key (`mlx5dv_wr_mkey_configure`): the call that begins one, and
//! the setters of the key's rights and of its layout.
//!
//! The WQE is encoded in the buffer for inline data. The program announces how many setters it will
//! call; the request is built when the last of them was called. Until then `ibv_wr_complete` fails.

use uverbs::memory::AccessFlags;
use uverbs_mlx5::format::{Klm, RepeatEntry, U16, U32, U64};
use uverbs_mlx5::send_queue::KeyChange;

use super::*;
use crate::dv::Key;
use crate::window;

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

/// `MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR`, which has no effect on keys without signatures.
const RESET_SIGNATURE: u32 = 1;
/// The rights that a key can have.
const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);
const _: () = assert!(KeyChange::MAX_BYTES <= MAX_INLINE);

/// A request that is being encoded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Configuration {
    /// Whether it was begun and not finished.
    pub(super) is_open: bool,
    /// Setters to come.
    setters: u8,
    /// Entries that the list may have: in the key, and in the request with the list's head.
    most: [usize; 2],
    change: KeyChange,
}

/// Begins a request that configures a key with a number of setters.
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
        detour::<T, SENDS>(qp);
        let (queue_pair, building) = of(qp);
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
        if let Some(queue) = queue::<T, SENDS>(qp) {
            queue.close_steps(&mut building.steps);
        }
        let inline = queue_pair.capacities.max_inline_data as usize;
        let in_request = KeyChange::MAX_OCTOWORDS.min((inline + 4) / size_of::<Klm>());
        let most = [(*key).most_entries.into(), in_request];
        let change = KeyChange::new((*key).lkey, post::flags((*qp).wr_flags));
        building.usual.wr_id = (*qp).wr_id;
        building.configuration = Configuration { is_open: true, setters, most, change };
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
        set::<T, SENDS>(qp, |configuration, _| {
            let is_known = RIGHTS.contains(AccessFlags::from_bits_retain(access));
            if !is_known || configuration.change.has_access() {
                return Err(libc::EINVAL);
            }
            configuration.change.set_access(window::access(access));
            Ok(())
        });
    }
}

/// `mlx5dv_wr_set_mkey_layout_list`: the key's memory is a list of parts.
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
        set::<T, SENDS>(qp, |configuration, wqe| {
            configuration.allow_list(count.into(), 0)?;
            let entries = (0..usize::from(count)).map(|entry| {
                let ibv_sge { addr, length, lkey } = *list.add(entry);
                Klm { byte_count: U32::new(length), mkey: U32::new(lkey), address: U64::new(addr) }
            });
            configuration.change.set_list(wqe, entries);
            Ok(())
        });
    }
}

/// `mlx5dv_wr_set_mkey_layout_interleaved`: the elements alternate, and repeat a number of times.
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
        set::<T, SENDS>(qp, |configuration, wqe| {
            configuration.allow_list(count.into(), 1)?;
            let elements = (0..usize::from(count)).map(|element| {
                let Interleaved { addr, bytes_count, bytes_skip, lkey } = *list.add(element);
                RepeatEntry {
                    stride: U16::new(bytes_count.wrapping_add(bytes_skip) as u16),
                    byte_count: U16::new(bytes_count as u16),
                    mkey: U32::new(lkey),
                    address: U64::new(addr),
                }
            });
            configuration.change.set_interleaved(wqe, cycles, elements);
            Ok(())
        });
    }
}

impl Configuration {
    /// Whether the request may have a list of so many entries behind so many that are its head.
    fn allow_list(&self, count: usize, heads: usize) -> Result<(), c_int> {
        let [in_key, in_request] = self.most;
        if count > in_key || count + heads > in_request {
            return Err(libc::ENOMEM);
        }
        if self.change.has_list() { Err(libc::EINVAL) } else { Ok(()) }
    }
}

/// Runs a setter on the request and its bytes, and builds the request if this was the
/// last one.
///
/// # Safety
/// As for [`of`].
unsafe fn set<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    setter: impl FnOnce(&mut Configuration, &mut [u8]) -> Result<(), c_int>,
) {
    // SAFETY: the caller's promise.
    let building = unsafe { of(qp).1 };
    building.detour();
    // A request between the two has used the place of this one.
    if !building.configuration.is_open || building.stage != Stage::None {
        return building.fail(libc::EINVAL);
    }
    let Building { configuration, copied, .. } = building;
    match setter(configuration, copied) {
        Err(errno) => {
            configuration.is_open = false;
            building.error = errno;
        }
        Ok(()) => {
            configuration.setters -= 1;
            if configuration.setters == 0 {
                // SAFETY: the caller's promise.
                unsafe { build::<T, SENDS>(qp) };
            }
        }
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
        building.configuration.is_open = false;
        (building.has_failed, building.error) = (false, 0);
        let length = building.configuration.change.finish(&mut building.copied);
        in_batch::<T, SENDS>(qp, building, |building, batch| {
            let wqe = building.copied.get(..length).unwrap_or_default();
            batch.build_key_change(building.usual.wr_id, wqe)
        });
    }
}
