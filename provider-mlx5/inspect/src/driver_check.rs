//! Checks the WQEs that only drivers post: new values of signature variables, and changes of a tag
//! list.
//!
//! The rules are derived from `mlx5_umr_set_psv`, `set_tm_seg` and `mlx5_post_srq_ops`
//! (`providers/mlx5/qp.c` of rdma-core) and from `set_psv_wr` (`drivers/infiniband/hw/mlx5/wr.c` of
//! Linux).

use super::wqe_check::reserved;
use super::{Finding, Segment, Wqe};
use uverbs_mlx5::format::{DataSegment, Opcode, SetPsvSegment, TagMatchingSegment};

/// The largest number of a PSV: a signature segment has 24 bits for it.
const LAST_PSV: u32 = 0xff_ffff;

pub(super) fn set_psv(offset: usize, psv: &SetPsvSegment, found: &mut Vec<Finding>) {
    if psv.psv_index.get() > LAST_PSV {
        found.push(Finding::illegal(offset, "the number of a PSV has 24 bits"));
    }
    if psv.syndrome.get() != 0 {
        let text = "the variable starts with an error; drivers write 0";
        found.push(Finding::suspicious(offset + 4, text));
    }
    reserved(offset + 6, &psv.reserved6.to_bytes(), found);
}

pub(super) fn tag_matching(offset: usize, tag: &TagMatchingSegment, found: &mut Vec<Finding>) {
    use TagMatchingSegment as T;
    let known = T::FLAG_COMPLETION | T::FLAG_SOFTWARE_COUNT;
    if tag.flags & !known != 0 {
        found.push(Finding::suspicious(offset + 1, "reserved flag bits are set"));
    }
    reserved(offset + 4, &tag.reserved4.to_bytes(), found);
    if tag.software_count.get() != 0 && tag.flags & T::FLAG_SOFTWARE_COUNT == 0 {
        let text = "a count of unexpected messages, without the flag that makes it count";
        found.push(Finding::suspicious(offset + 6, text));
    }
    reserved(offset + 8, &tag.reserved8.to_bytes(), found);
    let names_tag = (tag.tag.get(), tag.mask.get()) != (0, 0);
    match tag.operation {
        T::OPERATION_APPEND => {}
        T::OPERATION_REMOVE if names_tag => {
            let text = "a tag, but an entry is removed by its place";
            found.push(Finding::suspicious(offset + 16, text));
        }
        T::OPERATION_NOP if names_tag || tag.index.get() != 0 => {
            let text = "a place or a tag, but nothing changes in the list";
            found.push(Finding::suspicious(offset, text));
        }
        T::OPERATION_REMOVE | T::OPERATION_NOP => {}
        other => {
            let text = format!("{other:#04x} is not an operation on a tag list");
            found.push(Finding::illegal(offset, text));
        }
    }
}

/// Checks the buffers of a tag-list WQE: an append has one, other operations have none.
pub(super) fn tag_buffer(wqe: &Wqe, found: &mut Vec<Finding>) {
    let tag = wqe.segments.iter().find_map(|segment| match segment {
        Segment::TagMatching(tag) => Some(tag),
        _ => None,
    });
    let (Some(tag), Opcode::TAG_MATCHING) = (tag, wqe.control.opcode()) else { return };
    let appends = tag.operation == TagMatchingSegment::OPERATION_APPEND;
    match (appends, wqe.data().count()) {
        (true, 1) | (false, 0) => {}
        (true, 0) => {
            let text = "no buffer for the message: libmlx5 writes a terminator for an empty one";
            found.push(Finding::suspicious(7, text));
        }
        (true, count) => {
            let text = format!("{count} buffers: an entry of a tag list has one");
            found.push(Finding::illegal(7, text));
        }
        (false, _) => found.push(Finding::suspicious(7, "a buffer, but nothing is appended")),
    }
}

/// Whether this is the terminator that represents an empty buffer of a tag-list entry.
pub(super) fn ends_with_terminator(opcode: Opcode, data: &DataSegment) -> bool {
    opcode == Opcode::TAG_MATCHING && data.is_terminator()
}
