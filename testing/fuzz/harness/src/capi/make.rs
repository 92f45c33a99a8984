//! Creates objects from attributes that are mostly valid.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

use arbitrary::{Result, Unstructured};

use super::objects::Kind;
use super::verbs::{below, clear_errno};
use super::work::address;
use super::{Program, flags, number, small};
use crate::abi::*;
use crate::arena::SIZE;

/// The flags of `enum ibv_access_flags` that mlx5 supports.
const ACCESS: u32 = 0x01f0_01ff;
/// The types of queue pairs that mlx5 supports.
const TYPES: [u32; 7] = [2, 3, 4, 8, 9, 10, 0xff];
/// `IBV_QPT_RAW_PACKET`.
const RAW: u32 = 8;
/// Bytes of the longest struct that is read whatever its size field says (`ibv_flow_spec_eth`).
const LONGEST_SPEC: usize = 40;

impl Program {
    /// Creates an object that is not a queue.
    pub(super) fn make(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let context = self.context(u)?;
        clear_errno();
        match u.int_in_range(0..=13)? {
            0..=1 => {
                // SAFETY: an open context.
                let made = unsafe { (self.verbs.ibv_alloc_pd)(context) };
                self.made(Kind::Pd, made, &[]);
                Ok(())
            }
            2 => self.make_td(u, context),
            3 => self.make_parent(u, context),
            4..=5 => self.make_mr(u),
            6 => self.make_mw(u),
            7 => self.make_dm(u, context),
            8 => self.make_ah(u),
            9 => self.make_channel(context),
            10 => self.make_xrcd(u, context),
            11 => self.make_counters(context),
            12 => self.make_dm_mr(u),
            _ => self.make_flow(u),
        }
    }

    fn make_td(&mut self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let mut attr = ibv_td_init_attr { comp_mask: flags(u, 0)? };
        // SAFETY: an open context, and a struct.
        let made = unsafe { (below(context).alloc_td)(context, &raw mut attr) };
        self.made(Kind::Td, made, &[]);
        Ok(())
    }

    fn make_parent(&mut self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let (pd, td) = (self.pick(u, Kind::Pd)?, self.maybe(u, Kind::Td)?);
        let comp_mask = flags(u, 2)?;
        let mut attr = ibv_parent_domain_init_attr {
            pd,
            td,
            comp_mask,
            alloc: None,
            free: None,
            pd_context: null_mut(),
        };
        // SAFETY: an open context, and a struct with live objects.
        let made = unsafe { (below(context).alloc_parent_domain)(context, &raw mut attr) };
        self.made(Kind::Pd, made, &[pd.cast(), td.cast()]);
        Ok(())
    }

    fn make_mr(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let pd: *mut ibv_pd = self.pick(u, Kind::Pd)?;
        if pd.is_null() {
            return Ok(());
        }
        let at = address(u)?;
        let length = length(u, at)?;
        let access = if u.ratio(3, 4)? { 0xf } else { flags(u, ACCESS)? };
        let (v, start) = (self.verbs, std::ptr::with_exposed_provenance_mut(at as usize));
        let iova = if u.arbitrary()? { at } else { u.arbitrary()? };
        // SAFETY: a live domain. The memory is in the arena, where the device may write, or is
        // refused.
        let made = unsafe {
            match u.int_in_range(0..=5)? {
                0..=2 => (v.ibv_reg_mr)(pd, start, length, access as c_int),
                3 => (v.ibv_reg_mr_iova2)(pd, start, length, iova, access),
                4 => (self.table().alloc_null_mr)(pd),
                _ => {
                    let fd = *u.choose(&[-1, 9999, self.table().context.cmd_fd])?;
                    (v.ibv_reg_dmabuf_mr)(pd, iova, length, at, fd, access as c_int)
                }
            }
        };
        self.made(Kind::Mr, made, &[pd.cast()]);
        Ok(())
    }

    fn make_mw(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let pd: *mut ibv_pd = self.pick(u, Kind::Pd)?;
        if !pd.is_null() {
            let kind = *u.choose(&[1, 2, 1, 2, 0, 3, u32::MAX])?;
            // SAFETY: a live domain.
            let made = unsafe { (self.table().context.ops.alloc_mw)(pd, kind) };
            self.made(Kind::Mw, made, &[pd.cast()]);
        }
        Ok(())
    }

    fn make_dm(&mut self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let length = if u.arbitrary()? { 64 } else { number(u)? as usize };
        let mut attr =
            ibv_alloc_dm_attr { length, log_align_req: small(u)?, comp_mask: flags(u, 0)? };
        // SAFETY: an open context, and a struct.
        let made = unsafe { (below(context).alloc_dm)(context, &raw mut attr) };
        self.made(Kind::Dm, made, &[]);
        Ok(())
    }

    fn make_dm_mr(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (pd, dm): (*mut ibv_pd, *mut ibv_dm) =
            (self.pick(u, Kind::Pd)?, self.pick(u, Kind::Dm)?);
        if pd.is_null() || dm.is_null() {
            return Ok(());
        }
        let (offset, length) = (wide(u)?, wide(u)? as usize);
        let access = flags(u, ACCESS)?;
        // SAFETY: live objects.
        let made = unsafe { (self.table().reg_dm_mr)(pd, dm, offset, length, access | 1 << 5) };
        self.made(Kind::Mr, made, &[pd.cast(), dm.cast()]);
        Ok(())
    }

    fn make_ah(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let pd: *mut ibv_pd = self.pick(u, Kind::Pd)?;
        if pd.is_null() {
            return Ok(());
        }
        let made = if u.ratio(3, 4)? {
            let mut attr = self.path(u)?;
            // SAFETY: a live domain, and a struct.
            unsafe { (self.verbs.ibv_create_ah)(pd, &raw mut attr) }
        } else {
            self.answer(u, pd)?
        };
        self.made(Kind::Ah, made, &[pd.cast()]);
        Ok(())
    }

    /// An address handle from a completion with an arbitrary routing header.
    fn answer(&self, u: &mut Unstructured<'_>, pd: *mut ibv_pd) -> Result<*mut ibv_ah> {
        let mut header: [u8; 40] = u.arbitrary()?;
        // SAFETY: structs of numbers.
        let (mut wc, mut grh): (ibv_wc, ibv_grh) = unsafe { (zeroed(), zeroed()) };
        (wc.wc_flags, wc.slid, wc.sl) = (flags(u, 1)?, u.arbitrary()?, u.arbitrary()?);
        if u.arbitrary()? {
            header[0] = if u.arbitrary()? { 0x60 } else { 0x45 };
        }
        // SAFETY: as many bytes as the header has; a live domain.
        unsafe {
            (&raw mut grh).cast::<[u8; 40]>().write(header);
            let (none, given) = (null_mut(), &raw mut grh);
            let grh = if wc.wc_flags & 1 == 0 && u.arbitrary()? { none } else { given };
            Ok((self.verbs.ibv_create_ah_from_wc)(pd, &raw mut wc, grh, u.int_in_range(0..=2)?))
        }
    }

    /// A path to this device, or a wrong one.
    pub(super) fn path(&self, u: &mut Unstructured<'_>) -> Result<ibv_ah_attr> {
        // SAFETY: a struct of numbers, and an open context.
        let mut attr: ibv_ah_attr = unsafe {
            let mut attr: ibv_ah_attr = zeroed();
            let gid = &raw mut attr.grh.dgid;
            (self.verbs.ibv_query_gid)(self.contexts[0], 1, 3, gid);
            attr
        };
        (attr.port_num, attr.is_global) = (1, 1);
        (attr.grh.sgid_index, attr.grh.hop_limit) = (3, 64);
        match u.int_in_range(0..=15)? {
            0 => attr.port_num = u.arbitrary()?,
            1 => attr.is_global = 0,
            2 => attr.grh.sgid_index = u.arbitrary()?,
            3 => attr.grh.dgid = u.arbitrary()?,
            4 => (attr.sl, attr.static_rate) = (u.arbitrary()?, u.arbitrary()?),
            5 => attr.dlid = u.arbitrary()?,
            _ => {}
        }
        Ok(attr)
    }

    fn make_channel(&mut self, context: *mut ibv_context) -> Result<()> {
        // SAFETY: an open context; then the channel's descriptor.
        unsafe {
            let made = (self.verbs.ibv_create_comp_channel)(context);
            if self.made(Kind::Channel, made, &[]) {
                libc::fcntl((*made).fd, libc::F_SETFL, libc::O_NONBLOCK);
            }
        }
        Ok(())
    }

    fn make_xrcd(&mut self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let fd = *u.choose(&[-1, -1, -1, 9999])?;
        let comp_mask = if u.ratio(7, 8)? { 3 } else { u.arbitrary()? };
        let mut attr = ibv_xrcd_init_attr { comp_mask, fd, oflags: libc::O_CREAT };
        // SAFETY: an open context, and a struct.
        let made = unsafe { (below(context).open_xrcd)(context, &raw mut attr) };
        self.made(Kind::Xrcd, made, &[]);
        Ok(())
    }

    fn make_counters(&mut self, context: *mut ibv_context) -> Result<()> {
        let mut attr = 0u32;
        // SAFETY: an open context, and a struct of one mask.
        let made = unsafe { (below(context).create_counters)(context, (&raw mut attr).cast()) };
        self.made(Kind::Counters, made, &[]);
        Ok(())
    }

    /// A flow rule with arbitrary specifications. The size of each determines where the next one
    /// begins; the struct of the last one's type may be longer.
    fn make_flow(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let qp: *mut ibv_qp = self.pick(u, Kind::Qp)?;
        if qp.is_null() {
            return Ok(());
        }
        let counters = self.maybe::<ibv_counters>(u, Kind::Counters)?;
        let (mut parts, mut bytes) = (u.int_in_range(0..=4)?, vec![0u8; 20]);
        for _ in 0..parts {
            let kind = *u.choose(&[0x20, 0x30, 0x31, 0x32, 0x40, 0x41, 0x1000, 0x1001, 0x50, 0])?;
            let usual = match kind {
                0x20 => 40,
                0x30 => 24,
                0x31 => 80,
                0x32 | 0x40 | 0x41 => 16,
                0x1000 => 12,
                _ => 8,
            };
            let size = if u.ratio(7, 8)? { usual } else { u.int_in_range(8..=96)? };
            let mut part = vec![0; size];
            part[..4].copy_from_slice(&u32::to_ne_bytes(kind));
            part[4..6].copy_from_slice(&(size as u16).to_ne_bytes());
            let fields = u.bytes(u.len().min(size - 8))?;
            part[8..8 + fields.len()].copy_from_slice(fields);
            bytes.extend(part);
        }
        if !counters.is_null() {
            bytes.extend(0x1003u32.to_ne_bytes());
            bytes.extend([16, 0, 0, 0]);
            bytes.extend((counters.expose_provenance() as u64).to_ne_bytes());
            parts += 1;
        }
        let attr = ibv_flow_attr {
            comp_mask: 0,
            r#type: if u.ratio(3, 4)? { 0 } else { number(u)? },
            size: bytes.len() as u16,
            priority: small(u)? as u16,
            num_of_specs: parts,
            port: if u.ratio(7, 8)? { 1 } else { u.arbitrary()? },
            flags: flags(u, 6)?,
        };
        // SAFETY: the bytes of a whole struct, followed by the specifications that it announces; a
        // live queue pair.
        unsafe {
            assert_eq!(size_of_val(&attr), 20);
            let mut words = vec![0u64; (bytes.len() + LONGEST_SPEC).div_ceil(8)];
            let at = words.as_mut_ptr().cast::<u8>();
            at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            at.cast::<ibv_flow_attr>().write(attr);
            let made = (self.table().ibv_create_flow)(qp, at.cast());
            self.made(Kind::Flow, made, &[qp.cast(), counters.cast()]);
        }
        Ok(())
    }

    /// A queue.
    pub(super) fn make_queue(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let context = self.context(u)?;
        clear_errno();
        match u.int_in_range(0..=9)? {
            0 => self.make_cq(u, context),
            1 => self.make_cq_ex(u, context),
            2 => self.make_srq(u),
            3 => self.make_srq_ex(u, context),
            4 => self.make_wq(u, context),
            5 => self.make_table(u, context),
            6..=7 => self.make_qp(u),
            _ => self.make_qp_ex(u, context),
        }
    }

    fn make_cq(&mut self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let channel: *mut ibv_comp_channel = self.maybe(u, Kind::Channel)?;
        let (cqe, vector) = (small(u)? as c_int, flags(u, 1)? as c_int);
        // SAFETY: an open context, and null or a live channel.
        let made = unsafe { (self.verbs.ibv_create_cq)(context, cqe, null_mut(), channel, vector) };
        self.made(Kind::Cq, made, &[channel.cast()]);
        Ok(())
    }

    pub(super) fn make_cq_ex(
        &mut self,
        u: &mut Unstructured<'_>,
        context: *mut ibv_context,
    ) -> Result<()> {
        let (channel, parent_domain) = (self.maybe(u, Kind::Channel)?, self.maybe(u, Kind::Pd)?);
        let comp_mask = flags(u, 3)?;
        let mut attr = ibv_cq_init_attr_ex {
            cqe: small(u)?,
            cq_context: null_mut(),
            channel,
            comp_vector: flags(u, 1)?,
            wc_flags: flags(u, 0xbff)?.into(),
            comp_mask,
            // Without the flag by which the program guarantees that the queue does not overrun.
            flags: flags(u, 1)? & !2,
            parent_domain,
        };
        let domain = if comp_mask & 2 != 0 { parent_domain } else { null_mut() };
        // SAFETY: an open context, and a struct with live objects.
        let made = unsafe { (below(context).create_cq_ex)(context, &raw mut attr) };
        if self.made(Kind::Cq, made, &[channel.cast(), domain.cast()]) {
            if let Some(object) = self.object(made) {
                object.extended = true;
            }
        }
        Ok(())
    }

    fn make_srq(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let pd: *mut ibv_pd = self.pick(u, Kind::Pd)?;
        if !pd.is_null() {
            let mut attr = ibv_srq_init_attr { srq_context: null_mut(), attr: srq_attr(u)? };
            // SAFETY: a live domain, and a struct.
            let made = unsafe { (self.verbs.ibv_create_srq)(pd, &raw mut attr) };
            self.made(Kind::Srq, made, &[pd.cast()]);
        }
        Ok(())
    }

    fn make_srq_ex(&mut self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        if self.is_infiniband && u.ratio(3, 4)? {
            return self.make_tag_matching_srq(u, context);
        }
        let (pd, xrcd, cq): (*mut ibv_pd, *mut ibv_xrcd, *mut ibv_cq) =
            (self.pick(u, Kind::Pd)?, self.pick(u, Kind::Xrcd)?, self.pick(u, Kind::Cq)?);
        let given = |there: bool, bit: u32| if there { bit } else { 0 };
        let all = 1 | given(!pd.is_null(), 2) | given(!xrcd.is_null(), 4) | given(!cq.is_null(), 8);
        let comp_mask = if u.ratio(3, 4)? { all } else { all & u.arbitrary::<u32>()? };
        let srq_type = if u.ratio(7, 8)? { 1 } else { number(u)? };
        let mut attr = ibv_srq_init_attr_ex {
            srq_context: null_mut(),
            attr: srq_attr(u)?,
            comp_mask,
            srq_type,
            pd,
            xrcd,
            cq,
            tm_cap: [0; 2],
        };
        // SAFETY: an open context, and a struct with live objects in the fields of its mask.
        let made = unsafe { (below(context).create_srq_ex)(context, &raw mut attr) };
        let of_xrc = comp_mask & 1 != 0 && srq_type == 1;
        let of = [pd.cast(), xrcd.cast(), cq.cast()];
        self.made(Kind::Srq, made, &of[..if of_xrc { 3 } else { 1 }]);
        Ok(())
    }

    fn make_wq(&mut self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let (pd, cq) = (self.pick(u, Kind::Pd)?, self.pick(u, Kind::Cq)?);
        let mut attr = ibv_wq_init_attr {
            wq_context: null_mut(),
            wq_type: if u.ratio(7, 8)? { 0 } else { number(u)? },
            max_wr: small(u)?,
            max_sge: small(u)?,
            pd,
            cq,
            comp_mask: flags(u, 1)?,
            create_flags: flags(u, 3)?,
        };
        // SAFETY: an open context, and a struct with live objects.
        let made = unsafe { (below(context).create_wq)(context, &raw mut attr) };
        self.made(Kind::Wq, made, &[pd.cast(), cq.cast()]);
        Ok(())
    }

    fn make_table(&mut self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let log = u.int_in_range(0..=3)?;
        let mut queues = Vec::new();
        for _ in 0..1 << log {
            queues.push(self.live::<ibv_wq>(u, Kind::Wq)?);
        }
        let mut attr = ibv_rwq_ind_table_init_attr {
            log_ind_tbl_size: if u.ratio(7, 8)? { log } else { log + 14 },
            ind_tbl: queues.as_mut_ptr(),
            comp_mask: flags(u, 0)?,
        };
        let of: Vec<*mut c_void> = queues.iter().map(|queue| queue.cast()).collect();
        // SAFETY: an open context, and a struct with its number of queues, or with a number above
        // the limit.
        let made = unsafe { (below(context).create_rwq_ind_table)(context, &raw mut attr) };
        self.made(Kind::Table, made, &of);
        Ok(())
    }

    fn make_qp(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let pd: *mut ibv_pd = self.pick(u, Kind::Pd)?;
        if pd.is_null() {
            return Ok(());
        }
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: self.pick(u, Kind::Cq)?,
            recv_cq: self.pick(u, Kind::Cq)?,
            srq: self.maybe(u, Kind::Srq)?,
            cap: cap(u)?,
            qp_type: qp_type(u)?,
            sq_sig_all: flags(u, 1)? as c_int,
        };
        // SAFETY: live objects, or null.
        let made = unsafe { (self.verbs.ibv_create_qp)(pd, &raw mut attr) };
        let srq = if has_receives(attr.qp_type) { attr.srq } else { null_mut() };
        let of = [pd.cast(), attr.send_cq.cast(), attr.recv_cq.cast(), srq.cast()];
        self.made(Kind::Qp, made, &of);
        Ok(())
    }

    fn make_qp_ex(&mut self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let pd: *mut ibv_pd = self.pick(u, Kind::Pd)?;
        let (xrcd, rwq_ind_tbl): (*mut ibv_xrcd, *mut ibv_rwq_ind_table) =
            (self.pick(u, Kind::Xrcd)?, self.maybe(u, Kind::Table)?);
        let mut key = [0x6d; 40];
        let mut comp_mask = if u.ratio(3, 4)? { 0x41 } else { flags(u, 0x7f)? };
        let mut qp_type = qp_type(u)?;
        if !xrcd.is_null() && qp_type == 10 {
            comp_mask |= 2;
        }
        let spreads = !rwq_ind_tbl.is_null() && u.ratio(3, 4)?;
        if spreads {
            (comp_mask, qp_type) = (0x31, RAW);
        }
        let (key_length, fields) =
            if u.ratio(3, 4)? { (40, 3) } else { (u.arbitrary()?, u.arbitrary()?) };
        let mut attr = ibv_qp_init_attr_ex {
            qp_context: null_mut(),
            send_cq: if spreads { null_mut() } else { self.pick(u, Kind::Cq)? },
            recv_cq: if spreads { null_mut() } else { self.pick(u, Kind::Cq)? },
            srq: if spreads { null_mut() } else { self.maybe(u, Kind::Srq)? },
            cap: cap(u)?,
            qp_type,
            sq_sig_all: flags(u, 1)? as c_int,
            comp_mask,
            pd,
            xrcd,
            create_flags: flags(u, 0x300)?,
            max_tso_header: small(u)? as u16,
            rwq_ind_tbl,
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: if u.ratio(7, 8)? { 1 } else { u.arbitrary()? },
                rx_hash_key_len: key_length,
                rx_hash_key: key.as_mut_ptr(),
                rx_hash_fields_mask: fields,
            },
            source_qpn: 0,
            send_ops_flags: if u.ratio(3, 4)? { 0x7ff } else { u.arbitrary()? },
        };
        if spreads {
            (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (0, 0);
        }
        // SAFETY: an open context, and a struct with live objects, or null.
        let made = unsafe { (below(context).create_qp_ex)(context, &raw mut attr) };
        let (pd, cqs) = (pd.cast(), [attr.send_cq.cast(), attr.recv_cq.cast()]);
        let srq = if has_receives(qp_type) { attr.srq.cast() } else { null_mut() };
        let of = if comp_mask & 0x30 != 0 {
            vec![pd, rwq_ind_tbl.cast()]
        } else if qp_type == 10 {
            vec![xrcd.cast()]
        } else {
            vec![pd, cqs[0], cqs[1], srq]
        };
        self.made(Kind::Qp, made, &of);
        Ok(())
    }
}

fn qp_type(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(if u.ratio(7, 8)? { *u.choose(&TYPES)? } else { number(u)? })
}

/// Whether queue pairs of the type have receives. Neither end of XRC has.
fn has_receives(qp_type: u32) -> bool {
    !(9..=10).contains(&qp_type)
}

fn cap(u: &mut Unstructured<'_>) -> Result<ibv_qp_cap> {
    Ok(ibv_qp_cap {
        max_send_wr: small(u)?,
        max_recv_wr: small(u)?,
        max_send_sge: small(u)?,
        max_recv_sge: small(u)?,
        max_inline_data: small(u)?,
    })
}

fn srq_attr(u: &mut Unstructured<'_>) -> Result<ibv_srq_attr> {
    Ok(ibv_srq_attr { max_wr: small(u)?, max_sge: small(u)?, srq_limit: number(u)? })
}

/// An offset or a length.
pub(super) fn wide(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=7)? {
        0..=4 => small(u)?.into(),
        5 => u64::MAX - u64::from(small(u)?),
        6 => u.arbitrary()?,
        _ => 1 << 40,
    })
}

/// A length of memory at `at`: within the arena, or more than can be mapped.
fn length(u: &mut Unstructured<'_>, at: u64) -> Result<usize> {
    let inside = (SIZE as u64).saturating_sub(at.wrapping_sub(crate::arena::ARENA as u64));
    Ok(match u.int_in_range(0..=7)? {
        0..=4 => u.int_in_range(0..=inside.min(0x1_0000))? as usize,
        5 => usize::MAX - u.int_in_range(0..=8192)?,
        6 => 1 << 50,
        _ => 0,
    })
}
