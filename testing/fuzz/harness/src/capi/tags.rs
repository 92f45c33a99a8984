//! Tag matching, on InfiniBand ports only.

use std::ffi::c_int;
use std::ptr::null_mut;

use arbitrary::{Result, Unstructured};

use super::objects::Kind;
use super::verbs::below;
use super::{Program, code, flags, small};
use crate::abi::*;

/// `IBV_SRQ_INIT_ATTR_*`: the type, the domain, the completion queue, the list.
const MASK: u32 = 1 | 2 | 8 | 16;
/// `IBV_SRQT_TM`.
const TAG_MATCHING: u32 = 2;

impl Program {
    pub(super) fn make_tag_matching_srq(
        &mut self,
        u: &mut Unstructured<'_>,
        context: *mut ibv_context,
    ) -> Result<()> {
        let (pd, cq): (*mut ibv_pd, *mut ibv_cq) =
            (self.pick(u, Kind::Pd)?, self.pick_extended(u, Kind::Cq)?);
        if cq.is_null() {
            return self.make_cq_ex(u, context);
        }
        if pd.is_null() {
            return Ok(());
        }
        let mut attr = ibv_srq_init_attr_ex {
            srq_context: null_mut(),
            attr: ibv_srq_attr { max_wr: small(u)?, max_sge: small(u)?, srq_limit: 0 },
            comp_mask: if u.ratio(7, 8)? { MASK } else { MASK & u.arbitrary::<u32>()? },
            srq_type: TAG_MATCHING,
            pd,
            xrcd: null_mut(),
            cq,
            tm_cap: [small(u)?, small(u)?],
        };
        // SAFETY: an open context, and a struct with live objects.
        let made = unsafe { (below(context).create_srq_ex)(context, &raw mut attr) };
        let of: [*mut _; 2] = [pd.cast(), cq.cast()];
        // Without the mask bit for the type it is an ordinary queue.
        let matches_tags = attr.comp_mask & 1 != 0;
        if self.made(Kind::Srq, made, &of[..if matches_tags { 2 } else { 1 }]) {
            self.object(made).into_iter().for_each(|object| object.extended = matches_tags);
        }
        Ok(())
    }

    /// An object of this kind that is extended; sometimes another one.
    fn pick_extended<T>(&self, u: &mut Unstructured<'_>, kind: Kind) -> Result<*mut T> {
        if u.ratio(1, 8)? {
            return self.pick(u, kind);
        }
        let objects = self.objects.iter().filter(|object| object.kind == kind && object.extended);
        let extended: Vec<_> = objects.map(|object| object.at).collect();
        Ok(if extended.is_empty() { null_mut() } else { u.choose(&extended)?.cast() })
    }

    /// Posts a list of changes to an SRQ, or makes one.
    pub(super) fn change_tags(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let srq: *mut ibv_srq = self.pick_extended(u, Kind::Srq)?;
        if srq.is_null() {
            let context = self.context(u)?;
            return self.make_tag_matching_srq(u, context);
        }
        let mut lists = [self.sges(u)?, self.sges(u)?];
        let [first_list, last_list] = &mut lists;
        let (mut first, mut last) = (tag_change(u, first_list)?, tag_change(u, last_list)?);
        if u.arbitrary()? {
            first.next = &raw mut last;
        }
        let mut bad = null_mut();
        // SAFETY: a live queue, and a list with valid memory.
        let answer = unsafe { (self.table().post_srq_ops)(srq, &raw mut first, &raw mut bad) };
        if !code(answer) && !self.checked {
            assert!(bad == &raw mut first || bad == &raw mut last);
        }
        Ok(())
    }
}

fn tag_change(u: &mut Unstructured<'_>, list: &mut [ibv_sge]) -> Result<ibv_ops_wr> {
    let counts: [c_int; 6] = [0, 1, 1, 1, 2, -1];
    // Few tags, so that messages match entries; handles that exist, and others.
    let add = OpsAdd {
        recv_wr_id: u.arbitrary()?,
        sg_list: list.as_mut_ptr(),
        num_sge: *u.choose(&counts)?,
        tag: u.int_in_range(0..=3)?,
        mask: *u.choose(&[0, 1, 3, u64::MAX])?,
    };
    Ok(ibv_ops_wr {
        wr_id: u.arbitrary()?,
        next: null_mut(),
        opcode: *u.choose(&[0, 0, 0, 1, 2, 3])?,
        flags: flags(u, 3)?,
        tm: OpsTags { unexpected_cnt: small(u)?, handle: small(u)?, add },
    })
}
