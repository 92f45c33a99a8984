//! The kernel refuses to destroy objects.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::sync::Arc;

use uverbs::qp_type::QpType;
use uverbs::soft::{Errno, Fault, Moment, SoftDevice};

use crate::abi::*;
use crate::context::{close_device, open_device};
use crate::device::tests::of_soft;
use crate::{ah, channel, cq, extras, flow, memory, pd, qp, query, srq, window, wq, xrc};

/// An object, and how programs destroy it.
pub(crate) type Object = (*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int);

/// An object with the function of its type that destroys it.
///
/// # Safety
/// The function is for objects of this type.
pub(crate) unsafe fn object<T>(
    object: *mut T,
    destroy: unsafe extern "C" fn(*mut T) -> c_int,
) -> Object {
    assert!(!object.is_null(), "{}", std::any::type_name::<T>());
    // SAFETY: the same function, which takes an address.
    (object.cast(), unsafe {
        std::mem::transmute::<
            unsafe extern "C" fn(*mut T) -> c_int,
            unsafe extern "C" fn(*mut c_void) -> c_int,
        >(destroy)
    })
}

/// One object of each kind. Those that need others come after them.
///
/// # Safety
/// The context is open.
unsafe fn one_of_each(context: *mut ibv_context) -> Vec<Object> {
    // SAFETY: structs of numbers and pointers, which may be zero; the objects are live.
    unsafe {
        let domain = pd::alloc_pd(context);
        let events = channel::create_comp_channel(context);
        let completions = cq::create_cq(context, 16, std::ptr::null_mut(), events, 0);
        let mut shared: ibv_srq_init_attr = zeroed();
        (shared.attr.max_wr, shared.attr.max_sge) = (4, 1);
        let receives = srq::create_srq(domain, &raw mut shared);
        let mut wanted: ibv_qp_init_attr = zeroed();
        (wanted.send_cq, wanted.recv_cq, wanted.srq) = (completions, completions, receives);
        (wanted.cap.max_send_wr, wanted.cap.max_send_sge) = (4, 1);
        wanted.qp_type = QpType::Ud as u32;
        let pair = qp::create_qp(domain, &raw mut wanted);
        let mut queue: ibv_wq_init_attr = zeroed();
        (queue.pd, queue.cq, queue.max_wr, queue.max_sge) = (domain, completions, 4, 1);
        let queue = wq::create_wq(context, &raw mut queue);
        let mut queues = [queue];
        let mut table: ibv_rwq_ind_table_init_attr = zeroed();
        table.ind_tbl = queues.as_mut_ptr();
        let table = wq::create_rwq_ind_table(context, &raw mut table);
        let memory = Box::leak(Box::new([0_u8; 4096])).as_mut_ptr();
        let region = memory::reg_mr(domain, memory.cast(), 4096, 1);
        let mut address: ibv_ah_attr = zeroed();
        (address.is_global, address.port_num) = (1, 1);
        (address.grh.sgid_index, address.grh.hop_limit) = (3, 1);
        let own = (&raw mut address.grh.dgid).cast();
        assert_eq!(query::query_gid(context, 1, 3, own), 0);
        let address = ah::create_ah(domain, &raw mut address);
        let xrcd = &mut ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
        let counters = &mut ibv_counters_init_attr { comp_mask: 0 };
        let bytes = &mut ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
        let direct = crate::dv::tests::one_of_each(domain);
        let verbs = [
            object(domain, pd::dealloc_pd),
            object(completions, cq::destroy_cq),
            object(receives, srq::destroy_srq),
            object(pair, qp::destroy_qp),
            object(queue, wq::destroy_wq),
            object(table, wq::destroy_rwq_ind_table),
            object(region, memory::dereg_mr),
            object(window::alloc_mw(domain, 2), window::dealloc_mw),
            object(address, ah::destroy_ah),
            object(xrc::open_xrcd(context, xrcd), xrc::close_xrcd),
            object(extras::alloc_dm(context, bytes), extras::free_dm),
            object(flow::create_counters(context, counters), flow::destroy_counters),
        ];
        verbs.into_iter().chain(direct).collect()
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[test]
fn an_object_that_was_not_destroyed_is_destroyed_by_the_next_attempt() {
    for errno_of_kernel in [Errno::EBUSY, Errno::EIO, Errno::ENXIO] {
        let soft = SoftDevice::builder("soft0").without_wire().build().expect("device");
        let soft = Arc::new(soft);
        // SAFETY: the device is never freed, and each object destroyed once.
        unsafe {
            let context = open_device(of_soft(&soft));
            let objects = one_of_each(context);
            for (object, destroy) in objects.into_iter().rev() {
                let handles = soft.handle_count();
                for _ in 0..2 {
                    let fault = Fault { moment: Moment::Call(0), errno: errno_of_kernel };
                    (0..9).for_each(|_| soft.inject(fault));
                    super::set_errno(0);
                    assert_eq!(destroy(object), errno_of_kernel as c_int);
                    assert_eq!(errno(), errno_of_kernel as c_int);
                    assert!(soft.clear_faults() < 9, "a command was sent");
                }
                assert_eq!(soft.handle_count(), handles);
                assert_eq!(destroy(object), 0);
                assert_eq!(soft.handle_count(), handles - 1);
            }
            assert_eq!(close_device(context), 0);
        }
    }
}
