//! Reading completions of tag matching, on any queue, and of messages on queues made with
//! `IBV_WC_EX_WITH_TM_INFO`.

use std::ffi::c_uint;

use uverbs::cq::{CompletionOpcode, TagEvent};
use uverbs::raw::Completion;

use super::extended::current;
use super::wc::{bit, flags};
use crate::abi::*;

/// The longest message that libmlx5 lets the device store in the first bytes of a CQE. It then
/// takes the GRH's flag from the message: for a FIN from bits 28 and 29 of a memory key, and
/// pyverbs' tests show that hardware's keys have 0 there. So such messages never have the flag
/// here, wherever the data is. Datagrams are longer: their length includes 40 bytes for a GRH. The
/// data of an RDMA write is never in a CQE.
const MAX_DATA: u32 = 32;

/// `ibv_wc_read_wc_flags` of a queue made with `IBV_WC_EX_WITH_TM_INFO`.
pub(crate) unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: programs read fields between start and end of a poll.
    let completion = unsafe { current(cq) };
    if completion.is_send() { 0 } else { tagged_flags(&completion) }
}

/// The flags of a receive, or of a change of a list of tags.
pub(super) fn tagged_flags(completion: &Completion<'_>) -> c_uint {
    let may_hold_data = completion.byte_len() <= MAX_DATA
        && completion.opcode() != CompletionOpcode::RecvWriteImmediate;
    let plain = flags(completion) & !bit(wc_flags::GRH, may_hold_data);
    let Some(event) = completion.tag_event() else { return plain };
    bit(wc_flags::TM_SYNC_REQ, completion.asks_for_tag_sync())
        | bit(wc_flags::TM_MATCH, event.is_of_entry() && event != TagEvent::EXPECTED)
        | bit(wc_flags::TM_DATA_VALID, event.is_last_of_entry())
        | if event.is_of_change() { 0 } else { plain }
}

/// `ibv_wc_read_tm_info`.
pub(crate) unsafe extern "C" fn read_tm_info(cq: *mut ibv_cq_ex, into: *mut ibv_wc_tm_info) {
    // SAFETY: programs read fields between start and end of a poll.
    let (tag, context) = unsafe { current(cq) }.tag_info();
    // SAFETY: the caller's struct, to be written.
    unsafe { write_padded(&ibv_wc_tm_info { tag, r#priv: context }, into) };
}
