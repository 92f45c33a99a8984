//! Changes queue pairs, posts and polls.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

use arbitrary::{Result, Unstructured};

use super::make::wide;
use super::objects::Kind;
use super::verbs::errno;
use super::{Program, code, flags, number, small};
use crate::abi::*;
use crate::arena::{ARENA, SIZE};

/// A multicast GID, and a GID that is not multicast.
pub(super) const GROUPS: [[u64; 2]; 2] = [[0x0000_0000_0000_15ff, 0x0900_0000_0000_0000], [1, 2]];
/// LIDs of groups.
pub(super) const LIDS: [u16; 2] = [0, 0xc001];
/// Length of the SGE lists. The number in a request may be smaller or larger.
const LIST: usize = 64;

/// An address in the arena, or one where nothing is mapped.
pub(super) fn address(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=15)? {
        0 => 0,
        1 => (ARENA + SIZE) as u64,
        2 => u64::MAX - u64::from(small(u)?),
        3 => (ARENA + SIZE) as u64 - u64::from(small(u)?),
        _ => ARENA as u64 + u.int_in_range(0..=0x1_0000)?,
    })
}

/// The attributes of each step from RESET to RTS, by type: the masks of INIT, RTR, RTS.
fn steps(qp_type: u32) -> [u32; 3] {
    match qp_type {
        2 | 9 | 10 => [0x39, 0x12_1181 | 0x8000, 0x1_2e01],
        3 => [0x39, 0x10_1181, 0x1_0001],
        4 => [0x71, 1, 0x1_0001],
        _ => [0x21, 1, 1],
    }
}

impl Program {
    /// Brings a queue pair, which is its own peer, to a state chosen by the input.
    pub(super) fn connect(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let qp: *mut ibv_qp = self.live(u, Kind::Qp)?;
        if qp.is_null() {
            return Ok(());
        }
        let path = self.path(u)?;
        // SAFETY: a live queue pair, and a struct of numbers.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            (attr.port_num, attr.qp_access_flags, attr.qkey) = (1, 0xf, 7);
            (attr.path_mtu, attr.dest_qp_num, attr.ah_attr) = (3, (*qp).qp_num, path);
            (attr.max_dest_rd_atomic, attr.max_rd_atomic, attr.min_rnr_timer) = (1, 1, 1);
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (14, 7, 7);
            if u.ratio(1, 8)? {
                attr.dest_qp_num = u.arbitrary()?;
            }
            let mut stop = 0;
            if u.ratio(3, 4)? {
                stop = u.int_in_range(2..=3)?;
            }
            for (state, mask) in (1..=stop).zip(steps((*qp).qp_type)) {
                attr.qp_state = state;
                if !code((self.verbs.ibv_modify_qp)(qp, &raw mut attr, mask as c_int)) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Changes an object.
    pub(super) fn change(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=8)? {
            0..=2 => self.change_qp(u),
            3 => self.join(u),
            4 => self.change_srq(u),
            5 => self.change_cq(u),
            6 => self.change_wq(u),
            7 => self.change_mr(u),
            _ => self.use_dm(u),
        }
    }

    fn change_qp(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let qp: *mut ibv_qp = self.pick(u, Kind::Qp)?;
        if qp.is_null() {
            return Ok(());
        }
        let mut bytes = [0u8; size_of::<ibv_qp_attr>()];
        let given = u.bytes(u.len().min(bytes.len()))?;
        bytes[..given.len()].copy_from_slice(given);
        // SAFETY: a struct of numbers from arbitrary bytes; a live queue pair.
        unsafe {
            let mut attr: ibv_qp_attr = bytes.as_ptr().cast::<ibv_qp_attr>().read_unaligned();
            attr.qp_state = *u.choose(&[0, 1, 2, 3, 4, 5, 6, 7, attr.qp_state])?;
            let mask = if u.arbitrary()? { 1 } else { flags(u, 0x3ff_ffff)? };
            code((self.verbs.ibv_modify_qp)(qp, &raw mut attr, mask as c_int));
            let (rate_limit, comp_mask) = (number(u)?, flags(u, 0)?);
            let (max_burst_sz, typical_pkt_sz) = (small(u)?, small(u)? as u16);
            let mut limit =
                ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask };
            code((self.table().modify_qp_rate_limit)(qp, &raw mut limit));
            let mut ece = ibv_ece { vendor_id: small(u)?, options: small(u)?, comp_mask: 0 };
            code((self.verbs.ibv_set_ece)(qp, &raw mut ece));
            code((self.verbs.ibv_query_ece)(qp, &raw mut ece));
        }
        Ok(())
    }

    /// Joins a group, or leaves it.
    fn join(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let qp: *mut ibv_qp = self.pick(u, Kind::Qp)?;
        if qp.is_null() {
            return Ok(());
        }
        let (group, lid) = (u.choose(&GROUPS)?, *u.choose(&LIDS)?);
        // SAFETY: a live queue pair, and a GID.
        unsafe {
            let verbs = self.verbs;
            if u.ratio(2, 3)? {
                if code((verbs.ibv_attach_mcast)(qp, group, lid)) {
                    self.object(qp).into_iter().for_each(|object| object.held += 1);
                }
            } else if code((verbs.ibv_detach_mcast)(qp, group, lid)) {
                self.object(qp).into_iter().for_each(|object| object.held -= 1);
            }
        }
        Ok(())
    }

    fn change_srq(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let srq: *mut ibv_srq = self.pick(u, Kind::Srq)?;
        if srq.is_null() {
            return Ok(());
        }
        let mut attr = ibv_srq_attr { max_wr: small(u)?, max_sge: small(u)?, srq_limit: small(u)? };
        let mut number = 0;
        // SAFETY: a live queue, and structs.
        unsafe {
            code((self.verbs.ibv_modify_srq)(srq, &raw mut attr, flags(u, 3)? as c_int));
            code((self.verbs.ibv_query_srq)(srq, &raw mut attr));
            code((self.table().get_srq_num)(srq, &raw mut number));
        }
        Ok(())
    }

    fn change_cq(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let cq: *mut ibv_cq = self.pick(u, Kind::Cq)?;
        if cq.is_null() {
            return Ok(());
        }
        let attr_mask = if u.ratio(3, 4)? { 1 } else { u.arbitrary()? };
        let mut attr = ibv_modify_cq_attr { attr_mask, moderate: u.arbitrary()? };
        // SAFETY: a live queue, and a struct.
        unsafe {
            code((self.table().modify_cq)(cq, &raw mut attr));
            if code((self.verbs.ibv_resize_cq)(cq, small(u)? as c_int)) {
                assert!((*cq).cqe > 0);
            }
        }
        Ok(())
    }

    fn change_wq(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let wq: *mut ibv_wq = self.pick(u, Kind::Wq)?;
        if wq.is_null() {
            return Ok(());
        }
        let mut attr = ibv_wq_attr {
            attr_mask: if u.ratio(3, 4)? { 1 } else { u.arbitrary()? },
            wq_state: if u.ratio(7, 8)? { u.int_in_range(0..=3)? } else { u.arbitrary()? },
            curr_wq_state: u.int_in_range(0..=3)?,
            flags: flags(u, 3)?,
            flags_mask: flags(u, 3)?,
        };
        // SAFETY: a live queue, and a struct.
        code(unsafe { (self.table().modify_wq)(wq, &raw mut attr) });
        Ok(())
    }

    fn change_mr(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (mr, pd): (*mut ibv_mr, *mut ibv_pd) =
            (self.pick(u, Kind::Mr)?, self.pick(u, Kind::Pd)?);
        if mr.is_null() || pd.is_null() {
            return Ok(());
        }
        let (at, change) = (address(u)?, flags(u, 7)?);
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(at as usize);
        let inside = (SIZE as u64).saturating_sub(at.wrapping_sub(ARENA as u64));
        let length = if u.ratio(7, 8)? { inside.min(4096) as usize } else { usize::MAX };
        let access = flags(u, 0x1f)? as c_int;
        // SAFETY: a live region and domain. The memory is in the arena, or is refused.
        let answer =
            unsafe { (self.verbs.ibv_rereg_mr)(mr, change as c_int, pd, start, length, access) };
        assert!((-6..=0).contains(&answer), "{answer}");
        if (answer == 0 || answer < -1) && change & 2 != 0 {
            if let Some(object) = self.object(mr) {
                if answer == 0 {
                    object.of[0] = pd.cast();
                } else {
                    // The error does not reveal to which of the two domains the region now belongs.
                    object.held = 1;
                    object.of.push(pd.cast());
                }
            }
        }
        Ok(())
    }

    fn use_dm(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let dm: *mut ibv_dm = self.live(u, Kind::Dm)?;
        if dm.is_null() {
            return Ok(());
        }
        let (offset, length) = (wide(u)?, u.int_in_range(0..=128)?);
        let mut bytes = vec![0u8; length];
        // SAFETY: live memory of at least that many bytes.
        unsafe {
            if let Some(copy) = (*dm).memcpy_to_dm {
                code(copy(dm, offset, bytes.as_ptr().cast(), length));
            }
            if let Some(copy) = (*dm).memcpy_from_dm {
                code(copy(bytes.as_mut_ptr().cast(), dm, offset, length));
            }
        }
        Ok(())
    }

    pub(super) fn sges(&self, u: &mut Unstructured<'_>) -> Result<[ibv_sge; LIST]> {
        let mr: *mut ibv_mr = self.live(u, Kind::Mr)?;
        // SAFETY: null, or a live region.
        let own = unsafe { mr.as_ref() }.map_or(0, |mr| mr.lkey);
        let mut list = [ibv_sge { addr: ARENA as u64, length: 1, lkey: own }; LIST];
        for sge in list.iter_mut().take(3) {
            sge.addr = address(u)?;
            sge.length = small(u)?;
            if u.ratio(1, 8)? {
                sge.lkey = u.arbitrary()?;
            }
        }
        Ok(list)
    }

    /// Posts a list of requests, of receives, or of changes of tags.
    pub(super) fn post(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if self.is_infiniband && u.ratio(1, 4)? {
            return self.change_tags(u);
        }
        if u.arbitrary()? { self.send(u) } else { self.receive(u) }
    }

    fn send(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let qp: *mut ibv_qp = self.pick(u, Kind::Qp)?;
        if qp.is_null() {
            return Ok(());
        }
        let mut sges = Vec::new();
        let mut requests = Vec::new();
        for _ in 0..u.int_in_range(0..=3)? {
            sges.push(self.sges(u)?);
        }
        for list in &mut sges {
            requests.push(self.request(u, list)?);
        }
        let mut next = null_mut();
        for request in requests.iter_mut().rev() {
            request.next = next;
            next = &raw mut *request;
        }
        let mut bad = null_mut();
        // SAFETY: a live queue pair, and a list with valid memory.
        unsafe {
            let no_place = u.ratio(1, 16)? && requests.is_empty();
            let place = if no_place { null_mut() } else { &raw mut bad };
            if !code((self.table().context.ops.post_send)(qp, next, place)) && !self.checked {
                assert!(requests.iter().any(|request| std::ptr::eq(request, bad)));
            }
        }
        Ok(())
    }

    /// A request. Data to be copied is in the arena.
    fn request(&self, u: &mut Unstructured<'_>, list: &mut [ibv_sge; LIST]) -> Result<ibv_send_wr> {
        let send_flags = flags(u, 0x1f)?;
        if send_flags & 8 != 0 {
            list.iter_mut().take(3).for_each(|sge| sge.addr = ARENA as u64);
        }
        let num_sge = *u.choose(&[0, 1, 1, 1, 2, 3, -1, 63, 64, 65, c_int::MAX, c_int::MIN])?;
        let opcode = if u.ratio(7, 8)? { u.int_in_range(0..=11)? } else { number(u)? };
        let key: *mut ibv_mr = self.live(u, Kind::Mr)?;
        // SAFETY: a struct of numbers and pointers that may be null.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        // SAFETY: null, or a live region.
        let rkey = unsafe { key.as_ref() }.map_or(0, |mr| mr.rkey);
        (wr.wr_id, wr.sg_list, wr.num_sge) = (u.arbitrary()?, list.as_mut_ptr(), num_sge);
        (wr.opcode, wr.send_flags, wr.imm_data) = (opcode, send_flags, rkey);
        wr.qp_type = u.arbitrary()?;
        let ah = self.maybe(u, Kind::Ah)?;
        match opcode {
            5 | 6 => {
                let (compare_add, swap) = (u.arbitrary()?, u.arbitrary()?);
                let remote_addr = address(u)?;
                wr.wr = Wr { atomic: Atomic { remote_addr, compare_add, swap, rkey } };
            }
            2 | 3 if u.ratio(3, 4)? => {
                // SAFETY: null, or a live queue pair.
                let peer = unsafe { self.live::<ibv_qp>(u, Kind::Qp)?.as_ref() };
                let remote_qpn = peer.map_or(0, |peer| peer.qp_num);
                wr.wr = Wr { ud: Ud { ah, remote_qpn, remote_qkey: 7 } };
            }
            // For datagrams the union begins with an address handle.
            2 | 3 if self.has_datagrams() => {}
            _ => wr.wr = Wr { rdma: Rdma { remote_addr: address(u)?, rkey } },
        }
        if opcode == 8 {
            let (mw, mr) = (self.live(u, Kind::Mw)?, self.maybe(u, Kind::Mr)?);
            let bind_info = self.window(u, mr)?;
            wr.bind_mw = Extra { bind_mw: BindMw { mw, rkey: u.arbitrary()?, bind_info } };
        } else if opcode == 10 {
            let hdr = std::ptr::with_exposed_provenance_mut(ARENA);
            wr.bind_mw =
                Extra { tso: Tso { hdr, hdr_sz: small(u)? as u16, mss: small(u)? as u16 } };
        }
        Ok(wr)
    }

    fn has_datagrams(&self) -> bool {
        let mut qps = self.objects.iter().filter(|object| object.kind == Kind::Qp);
        // SAFETY: live queue pairs.
        qps.any(|object| unsafe { (*object.at.cast::<ibv_qp>()).qp_type == 4 })
    }

    fn window(&self, u: &mut Unstructured<'_>, mr: *mut ibv_mr) -> Result<ibv_mw_bind_info> {
        let (addr, length) = (address(u)?, wide(u)?);
        Ok(ibv_mw_bind_info { mr, addr, length, mw_access_flags: flags(u, 0x2f)? })
    }

    fn receive(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let mut lists = [self.sges(u)?, self.sges(u)?];
        let counts = [0, 1, 1, 2, 3, -1, 64, 65, c_int::MAX];
        let mut last = ibv_recv_wr {
            wr_id: u.arbitrary()?,
            next: null_mut(),
            sg_list: lists[0].as_mut_ptr(),
            num_sge: *u.choose(&counts)?,
        };
        let mut first = ibv_recv_wr {
            wr_id: u.arbitrary()?,
            next: if u.arbitrary()? { &raw mut last } else { null_mut() },
            sg_list: lists[1].as_mut_ptr(),
            num_sge: *u.choose(&counts)?,
        };
        let mut bad = null_mut();
        // SAFETY: live queues, and a list with valid memory.
        unsafe {
            let answer = match u.int_in_range(0..=3)? {
                0 => {
                    let srq: *mut ibv_srq = self.pick(u, Kind::Srq)?;
                    if srq.is_null() {
                        return Ok(());
                    }
                    let post = self.table().context.ops.post_srq_recv;
                    post(srq, &raw mut first, &raw mut bad)
                }
                1 => {
                    let wq: *mut ibv_wq = self.live(u, Kind::Wq)?;
                    if wq.is_null() {
                        return Ok(());
                    }
                    ((*wq).post_recv)(wq, &raw mut first, &raw mut bad)
                }
                _ => {
                    let qp: *mut ibv_qp = self.pick(u, Kind::Qp)?;
                    if qp.is_null() {
                        return Ok(());
                    }
                    (self.table().context.ops.post_recv)(qp, &raw mut first, &raw mut bad)
                }
            };
            if !code(answer) && !self.checked {
                assert!(bad == &raw mut first || bad == &raw mut last);
            }
        }
        Ok(())
    }

    /// Requests by `ibv_wr_*` calls, between `ibv_wr_start` and `ibv_wr_complete`.
    pub(super) fn build(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let qp: *mut ibv_qp = self.live(u, Kind::Qp)?;
        if qp.is_null() {
            return Ok(());
        }
        // SAFETY: a live queue pair.
        let ex = unsafe { (self.verbs.ibv_qp_to_qp_ex)(qp) };
        if ex.is_null() {
            assert_eq!(errno(), libc::EINVAL);
            return Ok(());
        }
        // SAFETY: a live queue pair with these functions. Each start is followed by an end.
        unsafe {
            ((*ex).wr_start)(ex);
            let mut built = Ok(());
            for _ in 0..u.int_in_range(0..=4).unwrap_or(0) {
                built = built.and_then(|()| self.build_one(u, ex));
            }
            if u.ratio(1, 8).unwrap_or(true) {
                ((*ex).wr_abort)(ex);
            } else {
                code(((*ex).wr_complete)(ex));
            }
            built
        }
    }

    /// One request by `ibv_wr_*` calls.
    ///
    /// # Safety
    /// `ex` is live, and a batch has begun.
    unsafe fn build_one(&self, u: &mut Unstructured<'_>, ex: *mut ibv_qp_ex) -> Result<()> {
        // SAFETY: null, or a live region.
        let rkey = unsafe { self.live::<ibv_mr>(u, Kind::Mr)?.as_ref() }.map_or(0, |mr| mr.rkey);
        let at = address(u)?;
        // SAFETY: the caller's promise; memory that is copied is in the arena.
        unsafe {
            let qx = &mut *ex;
            (qx.wr_id, qx.wr_flags) = (u.arbitrary()?, flags(u, 0x1f)?);
            match u.int_in_range(0..=13)? {
                0 => (qx.wr_atomic_cmp_swp)(ex, rkey, at, 1, 2),
                1 => (qx.wr_atomic_fetch_add)(ex, rkey, at, 3),
                2 => self.bind(u, ex)?,
                3 => (qx.wr_local_inv)(ex, if u.arbitrary()? { rkey } else { u.arbitrary()? }),
                4 => (qx.wr_rdma_read)(ex, rkey, at),
                5..=6 => (qx.wr_rdma_write)(ex, rkey, at),
                7 => (qx.wr_rdma_write_imm)(ex, rkey, at, 5),
                8 => (qx.wr_send)(ex),
                9 => (qx.wr_send_imm)(ex, 6),
                10 => (qx.wr_send_inv)(ex, rkey),
                11 => {
                    let header = std::ptr::with_exposed_provenance_mut(ARENA);
                    (qx.wr_send_tso)(ex, header, small(u)? as u16, small(u)? as u16);
                }
                12 => (qx.wr_flush)(ex, rkey, at, 8, 0, 0),
                _ => {
                    let data = std::ptr::with_exposed_provenance(ARENA);
                    (qx.wr_atomic_write)(ex, rkey, at, data);
                }
            }
            for _ in 0..u.int_in_range(0..=3)? {
                self.set(u, ex)?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Program::build_one`].
    unsafe fn bind(&self, u: &mut Unstructured<'_>, ex: *mut ibv_qp_ex) -> Result<()> {
        let (mw, mr): (*mut ibv_mw, *mut ibv_mr) =
            (self.live(u, Kind::Mw)?, self.maybe(u, Kind::Mr)?);
        let info = self.window(u, mr)?;
        if !mw.is_null() {
            // SAFETY: the caller's promise; live objects.
            unsafe { ((*ex).wr_bind_mw)(ex, mw, u.arbitrary()?, &raw const info) };
        }
        Ok(())
    }

    /// Calls a setter of the request.
    ///
    /// # Safety
    /// As for [`Program::build_one`].
    unsafe fn set(&self, u: &mut Unstructured<'_>, ex: *mut ibv_qp_ex) -> Result<()> {
        let list = self.sges(u)?;
        let arena = std::ptr::with_exposed_provenance_mut(ARENA);
        // SAFETY: the caller's promise; memory that is copied is in the arena, or longer than any
        // queue takes; as many entries as the calls say.
        unsafe {
            let qx = &*ex;
            match u.int_in_range(0..=5)? {
                0 => (qx.wr_set_sge)(ex, list[0].lkey, list[0].addr, list[0].length),
                1 => (qx.wr_set_sge_list)(ex, u.int_in_range(0..=LIST)?, list.as_ptr()),
                2 => (qx.wr_set_inline_data)(ex, arena, wide(u)? as usize),
                3 => {
                    let length =
                        if u.ratio(3, 4)? { small(u)? as usize } else { wide(u)? as usize };
                    let buffer = ibv_data_buf { addr: arena, length };
                    let count = u.int_in_range(0..=4)?;
                    (qx.wr_set_inline_data_list)(ex, count, [buffer; 4].as_ptr());
                }
                4 => {
                    let ah: *mut ibv_ah = self.live(u, Kind::Ah)?;
                    if !ah.is_null() {
                        (qx.wr_set_ud_addr)(ex, ah, qx.qp_base.qp_num, 7);
                    }
                }
                _ => (qx.wr_set_xrc_srqn)(ex, small(u)?),
            }
        }
        Ok(())
    }

    /// Polls with the plain or the extended functions.
    pub(super) fn poll(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let cq: *mut ibv_cq = self.live(u, Kind::Cq)?;
        if cq.is_null() {
            return Ok(());
        }
        let is_extended = self.object(cq).is_some_and(|object| object.extended);
        // SAFETY: a live queue, and space for the completions.
        unsafe {
            if is_extended && u.arbitrary()? {
                self.poll_extended(u, cq.cast())?;
            }
            let mut wc: [ibv_wc; 16] = zeroed();
            let most = *u.choose(&[1, 16, 0, -1, c_int::MIN])?;
            let count = (self.table().context.ops.poll_cq)(cq, most, wc.as_mut_ptr());
            assert!((-1..=most.max(0)).contains(&count), "{count}");
            for wc in &wc[..count.max(0) as usize] {
                assert!(!(self.verbs.ibv_wc_status_str)(wc.status).is_null());
            }
            code((self.table().context.ops.req_notify_cq)(cq, flags(u, 1)? as c_int));
        }
        Ok(())
    }

    /// # Safety
    /// `cq` is live, and was made by `ibv_create_cq_ex`.
    unsafe fn poll_extended(&self, u: &mut Unstructured<'_>, cq: *mut ibv_cq_ex) -> Result<()> {
        let mut attr: c_uint = if u.ratio(7, 8)? { 0 } else { u.arbitrary()? };
        // SAFETY: the caller's promise; fields are read of a completion that is there.
        unsafe {
            let mut answer = ((*cq).start_poll)(cq, (&raw mut attr).cast());
            if answer != 0 {
                assert!((1..=133).contains(&answer), "{answer}");
                return Ok(());
            }
            for _ in 0..8 {
                assert!(!(self.verbs.ibv_wc_status_str)((*cq).status).is_null());
                ((*cq).read_opcode)(cq);
                ((*cq).read_vendor_err)(cq);
                ((*cq).read_byte_len)(cq);
                ((*cq).read_imm_data)(cq);
                ((*cq).read_qp_num)(cq);
                ((*cq).read_src_qp)(cq);
                ((*cq).read_wc_flags)(cq);
                ((*cq).read_slid)(cq);
                ((*cq).read_sl)(cq);
                ((*cq).read_dlid_path_bits)(cq);
                ((*cq).read_completion_ts)(cq);
                ((*cq).read_cvlan)(cq);
                ((*cq).read_flow_tag)(cq);
                let mut info = zeroed();
                ((*cq).read_tm_info)(cq, &raw mut info);
                answer = ((*cq).next_poll)(cq);
                if answer != 0 {
                    break;
                }
            }
            assert!((0..=133).contains(&answer), "{answer}");
            ((*cq).end_poll)(cq);
        }
        Ok(())
    }
}
