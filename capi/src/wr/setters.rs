//! The calls that complete a request: its data, and the peer that it goes to.
//!
//! A buffer or data that is copied is stored behind the header that the operation has stored in the
//! ring. If the operation was recorded, so is the data.

use std::ffi::c_void;

use uverbs::qp_type::Dci;
use uverbs_mlx5::send_queue::{Datagram, DcTarget, Destination, Entries, XrcTarget};

use super::operations::record_named;
use super::*;
use crate::ah::Ah;
use crate::forms::{either, forms};
use crate::post::bytes;

impl Building {
    /// Copies inline data into `copied`. `false` if it is longer than any request may have.
    ///
    /// # Safety
    /// The buffers are readable.
    #[inline(always)]
    pub(super) unsafe fn copy(
        &mut self,
        buffers: impl Iterator<Item = (*const u8, usize)>,
    ) -> bool {
        let mut length = 0;
        for (start, size) in buffers {
            if size > MAX_INLINE - length {
                return false;
            }
            // SAFETY: the caller's promise; just compared with the room that is left.
            unsafe { copy_bytes(start, self.copied.as_mut_ptr().add(length), size) };
            length += size;
        }
        self.count = length;
        true
    }
}

/// Copies bytes. Short copies are loads and stores of which the last two may overlap, because
/// calling `memcpy` would cost more than the copy.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes, and they do not overlap.
#[inline(always)]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: within the `length` bytes of both.
    unsafe {
        match length {
            16..=32 => copy_ends::<u128>(from, to, length),
            8..=15 => copy_ends::<u64>(from, to, length),
            33..=64 => {
                copy_ends::<[u128; 2]>(from, to, length);
            }
            _ => copy_others(from, to, length),
        }
    }
}

/// # Safety
/// As for [`copy_bytes`].
#[inline(never)]
unsafe fn copy_others(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise; a null pointer may come with no bytes.
    unsafe { to.copy_from_nonoverlapping(bytes(from, length).as_ptr(), length) };
}

/// Copies the first and the last bytes that a `U` holds.
///
/// # Safety
/// As for [`copy_bytes`], and the length is one to two times a `U`'s.
#[inline(always)]
unsafe fn copy_ends<U: Copy>(from: *const u8, to: *mut u8, length: usize) {
    let last = length - size_of::<U>();
    // SAFETY: both are within the bytes.
    unsafe {
        let ends = (from.cast::<U>().read_unaligned(), from.add(last).cast::<U>().read_unaligned());
        to.cast::<U>().write_unaligned(ends.0);
        to.add(last).cast::<U>().write_unaligned(ends.1);
    }
}

forms! {
    /// `ibv_wr_set_ud_addr`.
    pub(super) fn set_ud_addr / set_ud_addr_newer [T: Posts, const SENDS: bool](
        qp: *mut ibv_qp_ex,
        ah: *mut ibv_ah,
        qpn: u32,
        qkey: u32,
    ) {
        if T::TYPE != QpType::Ud {
            return;
        }
        // SAFETY: the caller's queue pair, after start, and its address handle.
        unsafe {
            let is_added = Ah::datagram(ah, qpn, qkey).is_some_and(|address| {
                add::<T, SENDS>(qp, Datagram(&address))
            });
            if !is_added {
                record_ud_addr(qp, ah, qpn, qkey);
            }
        }
    }
}

/// [`set_ud_addr`] of a recorded request. The parameters are the program's, because an address that
/// is lent to a function would have to be in memory.
///
/// # Safety
/// As for [`set_ud_addr`].
#[inline(never)]
unsafe extern "C" fn record_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller's promise.
    unsafe { record_address(qp, Ah::datagram(ah, qpn, qkey)) };
}

/// `mlx5dv_wr_set_dc_addr`.
///
/// # Safety
/// The caller's queue pair, after start, which is a DC initiator, and its address handle.
pub(crate) unsafe fn set_dc_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, dctn: u32, key: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        let is_added = Ah::dc_target(ah, dctn, key)
            .is_some_and(|address| add::<Dci, true>(qp, DcTarget(&address)));
        if !is_added {
            record_dc_addr(qp, ah, dctn, key);
        }
    }
}

/// [`set_dc_addr`] of a recorded request, as [`record_ud_addr`].
///
/// # Safety
/// As for [`set_dc_addr`].
#[inline(never)]
unsafe extern "C" fn record_dc_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, dctn: u32, key: u64) {
    // SAFETY: the caller's promise.
    unsafe { record_address(qp, Ah::dc_target(ah, dctn, key)) };
}

forms! {
    /// `ibv_wr_set_xrc_srqn`.
    pub(super) fn set_xrc_srqn / set_xrc_srqn_newer [T: Posts, const SENDS: bool](
        qp: *mut ibv_qp_ex,
        srqn: u32,
    ) {
        if T::TYPE != QpType::XrcSend {
            return;
        }
        // SAFETY: the caller's queue pair, after start.
        unsafe {
            if !add::<T, SENDS>(qp, XrcTarget(srqn)) {
                record_srqn(qp, srqn);
            }
        }
    }
}

/// Gives the request in the ring its destination; `false` if that has to be recorded, or refused.
///
/// # Safety
/// As for [`of`], and the queue pair is of type `T`.
#[inline(always)]
unsafe fn add<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex, to: impl Destination) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let queue = queue::<T, SENDS>(qp);
        queue.is_some_and(|queue| queue.add_destination(&of(qp).1.steps, to))
    }
}

/// Records the address of a recorded request; `None` if the program gave no address handle.
///
/// # Safety
/// As for [`of`].
unsafe fn record_address(qp: *mut ibv_qp_ex, address: Option<DatagramAddress>) {
    // SAFETY: the caller's promise.
    let building = unsafe { of(qp).1 };
    building.detour();
    if address.is_none() || building.stage == Stage::None || building.address.is_some() {
        return building.fail(libc::EINVAL);
    }
    building.address = address;
}

/// Records the shared receive queue that a recorded request goes to.
///
/// # Safety
/// As for [`of`].
#[inline(never)]
unsafe fn record_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the caller's promise.
    let building = unsafe { of(qp).1 };
    building.detour();
    if building.stage == Stage::None || building.srqn != NO_SRQ {
        return building.fail(libc::EINVAL);
    }
    building.srqn = srqn;
}

forms! {
    /// `ibv_wr_set_sge`.
    pub(super) fn set_sge / set_sge_newer [T: Posts, const SENDS: bool](
        qp: *mut ibv_qp_ex,
        lkey: u32,
        address: u64,
        length: u32,
    ) {
        // SAFETY: the caller's queue pair, after start; what a program promises is what it asks
        // for.
        unsafe {
            let queue = queue::<T, SENDS>(qp);
            if !queue.is_some_and(|queue| queue.add(address, length, lkey)) {
                record_sge::<T, SENDS>(qp, lkey, address, length);
            }
        }
    }
}

/// # Safety
/// As for [`set_sge`].
#[inline(never)]
unsafe extern "C" fn record_sge<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    lkey: u32,
    address: u64,
    length: u32,
) {
    // SAFETY: the caller's queue pair, after start. libmlx5 takes any length for the result of an
    // atomic, which is always 8 bytes.
    if unsafe { queue::<T, SENDS>(qp).is_some_and(|queue| queue.add_result(address, lkey)) } {
        return;
    }
    // SAFETY: as above.
    let (takes_data, building) = unsafe { (takes_data::<T, SENDS>(qp), of(qp).1) };
    if takes_data {
        building.sges[0] = Sge::new(address, length, lkey);
        building.count = 1;
        building.stage = Stage::Listed;
    }
}

/// Whether a recorded request waits for data; records EINVAL if none does.
///
/// # Safety
/// As for [`of`].
unsafe fn takes_data<T: Posts, const SENDS: bool>(qp: *mut ibv_qp_ex) -> bool {
    // SAFETY: the caller's promise.
    let building = unsafe {
        record_named::<T, SENDS>(qp);
        of(qp).1
    };
    if building.stage == Stage::None {
        building.fail(libc::EINVAL);
    }
    building.stage != Stage::None
}

forms! {
    /// `ibv_wr_set_sge_list`.
    pub(super) fn set_sge_list / set_sge_list_newer [T: Posts, const SENDS: bool](
        qp: *mut ibv_qp_ex,
        count: usize,
        list: *const ibv_sge,
    ) {
        // SAFETY: the caller's queue pair, after start, and its list; what a program promises is
        // what it asks for.
        unsafe {
            let data = List { count, list };
            let queue = queue::<T, SENDS>(qp);
            if !queue.is_some_and(|queue| queue.add_list(&of(qp).1.common, data)) {
                record_list::<T, SENDS>(qp, count, list);
            }
        }
    }
}

/// The list of a program for `ibv_wr_set_sge_list`.
struct List {
    count: usize,
    list: *const ibv_sge,
}

impl Entries for List {
    #[inline(always)]
    fn count(&self) -> usize {
        self.count
    }
    #[inline(always)]
    fn sge(&self, place: usize) -> (u64, u32, u32) {
        // SAFETY: an entry of the program's list.
        unsafe { ibv_sge::parts(self.list.wrapping_add(place)) }
    }
    fn buffer(&self, _: usize) -> (*const u8, usize) {
        (std::ptr::null(), 0)
    }
}

/// The buffers of a program whose data is inline.
#[derive(Clone, Copy)]
struct Buffers {
    count: usize,
    list: *const ibv_data_buf,
}

impl Entries for Buffers {
    #[inline(always)]
    fn count(&self) -> usize {
        self.count
    }
    fn sge(&self, _: usize) -> (u64, u32, u32) {
        (0, 0, 0)
    }
    #[inline(always)]
    fn buffer(&self, place: usize) -> (*const u8, usize) {
        // SAFETY: an entry of the program's list.
        let buffer = unsafe { *self.list.add(place) };
        (buffer.addr.cast_const().cast(), buffer.length)
    }
}

/// # Safety
/// As for [`set_sge_list`].
#[inline(never)]
unsafe fn record_list<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    if count == 1 {
        // SAFETY: the caller's promise.
        return unsafe {
            let (address, length, lkey) = ibv_sge::parts(list);
            record_sge::<T, SENDS>(qp, lkey, address, length);
        };
    }
    // SAFETY: the caller's queue pair, after start.
    let (takes_data, building) = unsafe { (takes_data::<T, SENDS>(qp), of(qp).1) };
    if !takes_data {
        return;
    }
    let length = count.min(c_int::MAX as usize) as c_int;
    // SAFETY: the caller's list.
    let converted = unsafe {
        post::with_converted(list, length, |data| {
            building.sges[..data.len()].copy_from_slice(data);
            Ok(())
        })
    };
    match converted {
        Ok(()) => (building.count, building.stage) = (count, Stage::Listed),
        Err(reason) => building.fail(errno(reason)),
    }
}

forms! {
    /// `ibv_wr_set_inline_data`.
    pub(super) fn set_inline_data / set_inline_data_newer [T: Posts, const SENDS: bool](
        qp: *mut ibv_qp_ex,
        address: *mut c_void,
        length: usize,
    ) {
        let start = address.cast_const().cast();
        // SAFETY: the caller's queue pair, after start; the bytes are the program's.
        unsafe {
            let queue = queue::<T, SENDS>(qp);
            if !queue.is_some_and(|queue| queue.add_short(&of(qp).1.common, start, length)) {
                either!(set_longer::<T, SENDS>, set_longer_newer::<T, SENDS>)(qp, start, length);
            }
        }
    }
}

forms! {
    beside
    /// [`set_inline_data`] of data that needs a block more than the shortest.
    ///
    /// # Safety
    /// As for [`set_inline_data`].
    #[inline(never)]
    fn set_longer / set_longer_newer [T: Posts, const SENDS: bool](
        qp: *mut ibv_qp_ex,
        start: *const u8,
        length: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let queue = queue::<T, SENDS>(qp);
            if !queue.is_some_and(|queue| queue.add_longer(&of(qp).1.common, start, length)) {
                set_long::<T, SENDS>(qp, start, length);
            }
        }
    }
}

/// The only buffer of a program whose data is inline.
#[derive(Clone, Copy)]
struct Buffer(*const u8, usize);

impl Entries for Buffer {
    #[inline(always)]
    fn count(&self) -> usize {
        1
    }
    fn sge(&self, _: usize) -> (u64, u32, u32) {
        (0, 0, 0)
    }
    #[inline(always)]
    fn buffer(&self, _: usize) -> (*const u8, usize) {
        (self.0, self.1)
    }
}

/// [`set_inline_data`] of data that needs more blocks, or for which space has to be looked for.
///
/// # Safety
/// As for [`set_inline_data`].
#[inline(never)]
unsafe extern "C" fn set_long<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    start: *const u8,
    length: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let queue = queue::<T, SENDS>(qp);
        let data = Buffer(start, length);
        if !queue.is_some_and(|queue| queue.add_copied(&of(qp).1.common, data)) {
            record_buffer::<T, SENDS>(qp, start, length);
        }
    }
}

/// [`record_inline`] of one buffer.
///
/// # Safety
/// As for [`set_inline_data`].
#[inline(never)]
unsafe extern "C" fn record_buffer<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    start: *const u8,
    length: usize,
) {
    let buffer = ibv_data_buf { addr: start.cast_mut().cast(), length };
    // SAFETY: the caller's promise.
    unsafe { record_inline::<T, SENDS>(qp, 1, &raw const buffer) };
}

/// Copies inline data and records it.
///
/// # Safety
/// As for [`set_inline_data_list`].
#[inline(never)]
unsafe fn record_inline<T: Posts, const SENDS: bool>(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let data = Buffers { count, list };
    // SAFETY: the caller's promise.
    let (takes_data, building) = unsafe { (takes_data::<T, SENDS>(qp), of(qp).1) };
    if !takes_data {
        return;
    }
    let is_usual = building.usual.kind.is_usual();
    if !is_usual && matches!(building.operation, RunTimeOperation::Segmented { .. }) {
        return building.fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    if !unsafe { building.copy((0..count).map(|place| data.buffer(place))) } {
        return building.fail(libc::ENOMEM);
    }
    building.stage = Stage::Copied;
}

forms! {
    /// `ibv_wr_set_inline_data_list`.
    pub(super) fn set_inline_data_list / set_inline_data_list_newer [T: Posts, const SENDS: bool](
        qp: *mut ibv_qp_ex,
        count: usize,
        list: *const ibv_data_buf,
    ) {
        // SAFETY: the caller's queue pair, after start, its list, and the bytes that it names.
        unsafe {
            let queue = queue::<T, SENDS>(qp);
            let data = Buffers { count, list };
            if !queue.is_some_and(|queue| queue.add_copied(&of(qp).1.common, data)) {
                record_inline::<T, SENDS>(qp, count, list);
            }
        }
    }
}
