//! Indirection tables of receive work queues.
//! Kernel: `ib_uverbs_ex_create_rwq_ind_table` (core/uverbs_cmd.c), `mlx5_ib_create_rwq_ind_table`
//! (hw/mlx5/qp.c).
#![forbid(unsafe_code)]

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::objects::device::invoke_write;
use uverbs_uapi::objects::rwq_ind_tbl::destroy;
use uverbs_uapi::write::wq::{ExCreateRwqIndTable, ExCreateRwqIndTableResp, ExDestroyRwqIndTable};
use zerocopy::FromBytes;

use super::object::{Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::query_device::LOG_MAX_TABLE_SIZE;
use crate::chardev::abi::spec::Attribute;
use crate::core::Qpn;

/// `IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE`.
const LOG_LARGEST_REQUEST: u32 = 13;
/// Bytes of the driver's response, if it has one (`struct mlx5_ib_create_rwq_ind_tbl_resp`).
const DRIVER_RESPONSE: usize = 8;

/// An indirection table. The core has no object for it: the QPs that use it hold its queues.
#[derive(Debug)]
pub(crate) struct RwqIndTbl {
    pub(crate) queues: Arc<[Qpn]>,
    /// Handles of the work queues, one for each place.
    pub(crate) parents: Vec<u32>,
}

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::RwqIndTbl)];

/// `IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let whole = call.bytes(invoke_write::CORE_IN)?;
    let (head, rest) = ExCreateRwqIndTable::read_from_prefix(&whole).map_err(|_| Errno::ENOSPC)?;
    if head.comp_mask != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if head.log_ind_tbl_size > LOG_LARGEST_REQUEST {
        return Err(Errno::EINVAL);
    }
    let parents = handles(rest, 1 << head.log_ind_tbl_size)?;
    let queues = parents.iter().map(|handle| Ok(call.object(Kind::Wq, *handle)?.wq()?.qpn));
    let queues: Arc<[Qpn]> = queues.collect::<Result<_, Errno>>()?;
    let ind_tbl_handle = call.reserve()?;
    check_driver(call)?;
    if head.log_ind_tbl_size > LOG_MAX_TABLE_SIZE {
        return Err(Errno::EINVAL);
    }
    call.commit(Object::RwqIndTbl(RwqIndTbl { queues, parents }))?;
    let response_length = call.response_length::<ExCreateRwqIndTableResp>();
    // The number is for the firmware, and this front end does not use it.
    let ind_tbl_num = ind_tbl_handle;
    call.response(&ExCreateRwqIndTableResp {
        comp_mask: 0,
        response_length,
        ind_tbl_handle,
        ind_tbl_num,
    })
}

/// The handles after the header. The bytes after them must be zero (`uverbs_request_finish`).
fn handles(bytes: &[u8], count: usize) -> Result<Vec<u32>, Errno> {
    let (handles, rest) = bytes.split_at_checked(count * 4).ok_or(Errno::ENOSPC)?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    let words = handles.chunks_exact(4);
    Ok(words.map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect())
}

fn check_driver(call: &Call<'_>) -> Result<(), Errno> {
    let driver = call.driver();
    if !driver.is_clear_from(0)? {
        return Err(Errno::EOPNOTSUPP);
    }
    match driver.output_length() {
        1..DRIVER_RESPONSE => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// `IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL`.
pub(crate) fn destroy_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: ExDestroyRwqIndTable = call.request()?;
    if request.comp_mask != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    call.destroy(Kind::RwqIndTbl, request.ind_tbl_handle)
}
