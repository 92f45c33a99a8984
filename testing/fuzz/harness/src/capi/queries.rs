//! Queries and events.

use std::ffi::{CStr, c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;

use arbitrary::{Result, Unstructured};

use super::objects::Kind;
use super::verbs::{below, clear_errno, errno};
use super::{Program, code, flags, minus, number, small};
use crate::abi::*;

impl Program {
    /// Runs a query.
    pub(super) fn ask(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let context = self.context(u)?;
        clear_errno();
        match u.int_in_range(0..=5)? {
            0 => self.query_device(u, context),
            1 => self.query_port(u, context),
            2 => self.query_gid(u, context),
            3 => self.query_qp(u),
            4 => self.query_counters(u),
            _ => self.query_names(u),
        }
    }

    fn query_device(&self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let mut device = MaybeUninit::<ibv_device_attr>::uninit();
        // Programs for a newer release have a longer struct, those for an older release a shorter
        // one.
        let size = u.int_in_range(0..=size_of::<ibv_device_attr_ex>() + 64)?;
        let mut longer = vec![0xa5u8; size + 1];
        let mut values = ibv_values_ex {
            comp_mask: flags(u, 1)?,
            // SAFETY: numbers.
            raw_clock: unsafe { zeroed() },
        };
        // SAFETY: an open context, and space for `size` bytes.
        unsafe {
            assert!(code((self.verbs.ibv_query_device)(context, device.as_mut_ptr())));
            let table = below(context);
            let into = longer.as_mut_ptr().cast();
            code((table.query_device_ex)(context, std::ptr::null(), into, size));
            assert_eq!(longer[size], 0xa5, "the byte after the program's struct");
            code((table.query_rt_values)(context, &raw mut values));
            assert_ne!((self.verbs.ibv_get_device_guid)((*context).device), 0);
            let other =
                (self.verbs.ibv_import_device)(*u.choose(&[-1, 9999, (*context).cmd_fd])?);
            assert!(other.is_null() && errno() > 0);
        }
        Ok(())
    }

    fn query_port(&self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let port = if u.ratio(3, 4)? { 1 } else { u.arbitrary()? };
        let size = u.int_in_range(0..=size_of::<ibv_port_attr>() + 16)?;
        let mut space = vec![0xa5u8; 128];
        let (mut pkey, mut speed) = (0, 0);
        // SAFETY: an open context, and more space than requested.
        unsafe {
            let into = space.as_mut_ptr().cast();
            code((below(context).query_port)(context, port, into, size));
            assert!(space[size..].iter().all(|byte| *byte == 0xa5));
            code((self.verbs.ibv_query_port)(context, port, into));
            minus((self.verbs.ibv_query_pkey)(context, port, small(u)? as c_int, &raw mut pkey));
            let index = (self.verbs.ibv_get_pkey_index)(context, port, u.arbitrary()?);
            assert!(index >= 0 || errno() > 0);
            let port = if u.arbitrary()? { port.into() } else { number(u)? };
            code((self.verbs.ibv_query_port_speed)(context, port, &raw mut speed));
        }
        Ok(())
    }

    fn query_gid(&self, u: &mut Unstructured<'_>, context: *mut ibv_context) -> Result<()> {
        let (index, mut gid) = (small(u)?, [0u64; 2]);
        let port = if u.ratio(3, 4)? { 1 } else { number(u)? };
        let (count, flags) = (u.int_in_range(0..=64)?, flags(u, 0)?);
        // SAFETY: an open context, and as much space as requested.
        unsafe {
            let v = self.verbs;
            minus((v.ibv_query_gid)(context, port as u8, index as c_int, &raw mut gid));
            let mut entries: Vec<ibv_gid_entry> = vec![zeroed(); count + 1];
            let (into, size) = (entries.as_mut_ptr(), size_of::<ibv_gid_entry>());
            code((v._ibv_query_gid_ex)(context, port, index, into, flags, size));
            let told = (v._ibv_query_gid_table)(context, into, count, flags, size);
            assert!(told >= -133 && told <= count as isize, "{told}");
        }
        Ok(())
    }

    fn query_qp(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let qp: *mut ibv_qp = self.pick(u, Kind::Qp)?;
        if qp.is_null() {
            return Ok(());
        }
        let mask = flags(u, 0x1f_ffff)? as c_int;
        // SAFETY: a live queue pair, and structs of numbers and pointers.
        unsafe {
            let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
            if code((self.verbs.ibv_query_qp)(qp, &raw mut attr, mask, &raw mut init)) {
                assert_eq!((init.qp_type, attr.qp_state), ((*qp).qp_type, (*qp).state));
            }
        }
        Ok(())
    }

    fn query_counters(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let counters: *mut ibv_counters = self.pick(u, Kind::Counters)?;
        if counters.is_null() {
            return Ok(());
        }
        let (counter_desc, index) = (small(u)?, small(u)?);
        let mut attr = ibv_counter_attach_attr { counter_desc, index, comp_mask: 0 };
        let count = u.int_in_range(0..=4)?;
        let mut values = [0u64; 4];
        // SAFETY: live counters, and space for the requested numbers.
        unsafe {
            let table = self.table();
            code((table.attach_counters_point_flow)(counters, &raw mut attr, null_mut()));
            let into = if count == 0 { null_mut() } else { values.as_mut_ptr() };
            code((table.read_counters)(counters, into, count, flags(u, 1)?));
        }
        Ok(())
    }

    /// Queries names and rates for arbitrary codes.
    fn query_names(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let value = number(u)?;
        let v = self.verbs;
        // SAFETY: strings of the library.
        unsafe {
            for text in [
                (v.ibv_wc_status_str)(value),
                (v.ibv_event_type_str)(value),
                (v.ibv_node_type_str)(value),
                (v.ibv_port_state_str)(value),
            ] {
                assert!(!CStr::from_ptr(text).is_empty());
            }
            (v.ibv_rate_to_mult)(value);
            (v.mult_to_ibv_rate)(value as c_int);
            (v.ibv_rate_to_mbps)(value);
            (v.mbps_to_ibv_rate)(value as c_int);
        }
        Ok(())
    }

    /// Reads events of either kind. Those of completion queues are acknowledged at once, or later.
    pub(super) fn events(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let context = self.context(u)?;
        let channel: *mut ibv_comp_channel = self.pick(u, Kind::Channel)?;
        // SAFETY: an open context and a live channel, whose descriptors do not block.
        unsafe {
            clear_errno();
            let mut event: ibv_async_event = zeroed();
            if minus((self.verbs.ibv_get_async_event)(context, &raw mut event)) {
                (self.verbs.ibv_ack_async_event)(&raw mut event);
            }
            if channel.is_null() {
                return Ok(());
            }
            let (mut cq, mut cq_context): (_, *mut c_void) = (null_mut::<ibv_cq>(), null_mut());
            clear_errno();
            if minus((self.verbs.ibv_get_cq_event)(channel, &raw mut cq, &raw mut cq_context)) {
                let object = self.object(cq).expect("an event of a live queue");
                object.held += 1;
            }
        }
        if u.arbitrary()? {
            self.acknowledge();
        }
        Ok(())
    }
}
