//! What a type of queue pair does to send: the functions that `ibv_post_send` chooses from, those
//! of `ibv_wr_*`, and those that query and change its attributes.

use std::ffi::c_int;

use uverbs::Error;
use uverbs::qp::{DcReceiver, PostError, QpAttributes, QpInfo, XrcReceiver};
use uverbs::qp_type::{Dci, QueuePairType, RawPacket, Rc, Uc, Ud, Xrc};
use uverbs::raw::QueuePair;

use super::{
    post_full, post_inline, post_inline_newer, post_list, post_list_newer, post_long,
    post_long_newer, post_nothing, post_one, post_one_newer, post_two_blocks,
    post_two_blocks_newer,
};
use crate::abi::*;
use crate::dv::DirectQp;
use crate::forms::pick;
use crate::qp::Qp;
use crate::wr::{self, Building};

/// `ibv_post_send`.
pub(super) type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

/// The functions of a transport's send queue.
pub(crate) struct SendTable {
    /// Posts a list of one request whose data is not inline.
    pub(super) one: PostSend,
    /// Posts a list of one request with short inline data.
    pub(super) inline: PostSend,
    /// Posts a list of one request with inline data that probably needs two blocks.
    pub(super) two: PostSend,
    /// Posts a list of one request with inline data of any length.
    pub(super) long: PostSend,
    /// Posts any list.
    pub(super) list: PostSend,
    /// The functions of `ibv_qp_ex`, for a queue pair whose sends have a lock, or not.
    pub(crate) wr: fn(ibv_qp, bool) -> ibv_qp_ex,
    /// The functions of `mlx5dv_qp_ex`.
    pub(crate) direct: DirectQp,
    /// Aborts the requests that are being built.
    pub(crate) abort: unsafe fn(*mut ibv_qp_ex, &mut Building),
    /// Queries all attributes. Other threads may post meanwhile.
    pub(crate) query: unsafe fn(*mut ibv_qp) -> Result<QpInfo, Error>,
    /// Changes attributes. Other threads may post meanwhile.
    pub(crate) modify: unsafe fn(&Qp, &QpAttributes) -> Result<(), Error>,
}

macro_rules! tables {
    ($($name:ident: $type:ty;)*) => {$(
        /// The functions for this type of queue pair: first for one without a send queue, then for
        /// one with it in [both forms](crate::forms).
        pub(crate) static $name: [SendTable; 3] = [
            SendTable {
                one: post_full,
                inline: post_full,
                two: post_full,
                long: post_full,
                list: post_full,
                query: query_of::<$type>,
                modify: modify_of::<$type>,
                ..NONE
            },
            SendTable {
                one: post_one::<$type>,
                inline: post_inline::<$type>,
                two: post_two_blocks::<$type>,
                long: post_long::<$type>,
                list: post_list::<$type>,
                wr: wr::table::<$type>,
                direct: DirectQp::of::<$type, true>(),
                abort: wr::abort::<$type, true>,
                query: query_of::<$type>,
                modify: modify_of::<$type>,
            },
            SendTable {
                one: post_one_newer::<$type>,
                inline: post_inline_newer::<$type>,
                two: post_two_blocks_newer::<$type>,
                long: post_long_newer::<$type>,
                list: post_list_newer::<$type>,
                wr: wr::table::<$type>,
                direct: DirectQp::of::<$type, true>(),
                abort: wr::abort::<$type, true>,
                query: query_of::<$type>,
                modify: modify_of::<$type>,
            },
        ];
    )*};
}

tables! {
    RC: Rc;
    UC: Uc;
    UD: Ud;
    XRC: Xrc;
    DCI: Dci;
    RAW: RawPacket;
}

/// The place in a type's tables of a queue pair with a send queue, or without one.
pub(crate) fn place(has_sends: bool) -> usize {
    if has_sends { pick(1, 2) } else { 0 }
}

/// The functions of a queue pair that cannot send: an XRC target.
pub(crate) static NONE: SendTable = SendTable {
    one: post_nothing,
    inline: post_nothing,
    two: post_nothing,
    long: post_nothing,
    list: post_nothing,
    wr: wr::table_of_none,
    direct: DirectQp::of::<Rc, false>(),
    abort: |_, _| {},
    query: query_target,
    modify: modify_target,
};

/// The functions of a DC target, which cannot send.
pub(crate) static DCT: SendTable =
    SendTable { query: query_dc_target, modify: modify_dc_target, ..NONE };

/// # Safety
/// `qp` is a DC target, which no other thread changes meanwhile.
unsafe fn query_dc_target(qp: *mut ibv_qp) -> Result<QpInfo, Error> {
    // SAFETY: the caller's promise.
    unsafe { &*Qp::library::<DcReceiver>(qp) }.query()
}

/// # Safety
/// The queue pair is a DC target, which no other thread uses meanwhile.
unsafe fn modify_dc_target(qp: &Qp, attributes: &QpAttributes) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    unsafe { &mut *Qp::library::<DcReceiver>(qp.pointer()) }.modify(attributes)
}

/// The functions of a queue pair that has neither queues nor states: an RSS target.
pub(crate) static RSS: SendTable = SendTable {
    query: |_| Err(Error::from(PostError::NoQueue)),
    modify: |_, _| Err(Error::from(PostError::NoQueue)),
    ..NONE
};

/// # Safety
/// `qp` is of type `T`, and no other thread changes it meanwhile.
unsafe fn query_of<T: QueuePairType>(qp: *mut ibv_qp) -> Result<QpInfo, Error> {
    // SAFETY: the caller's promise.
    unsafe { QueuePair::query_beside(Qp::library::<QueuePair<T>>(qp)) }
}

/// # Safety
/// The queue pair is of type `T`, and no other thread changes it meanwhile.
unsafe fn modify_of<T: QueuePairType>(qp: &Qp, attributes: &QpAttributes) -> Result<(), Error> {
    // SAFETY: the caller's promise; posting takes the locks.
    unsafe {
        let queue = Qp::library::<QueuePair<T>>(qp.pointer());
        QueuePair::modify_beside(queue, attributes, || qp.exclude())
    }
}

/// # Safety
/// `qp` is an XRC target, which no other thread changes meanwhile.
unsafe fn query_target(qp: *mut ibv_qp) -> Result<QpInfo, Error> {
    // SAFETY: the caller's promise.
    unsafe { &*Qp::library::<XrcReceiver>(qp) }.query()
}

/// # Safety
/// The queue pair is an XRC target, which no other thread uses meanwhile.
unsafe fn modify_target(qp: &Qp, attributes: &QpAttributes) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    unsafe { &mut *Qp::library::<XrcReceiver>(qp.pointer()) }.modify(attributes)
}
