//! The kernel refuses changes of queue pairs.

use std::mem::zeroed;
use std::sync::Arc;

use uverbs::soft::{DeviceBuilder, Errno, Fault, Moment, SoftDevice};

use super::*;
use crate::context::{close_device, open_device};
use crate::cq::{create_cq, destroy_cq};
use crate::device::tests::of_soft;
use crate::pd::{alloc_pd, dealloc_pd};

/// Runs `body` with a queue pair, and with a way to have the next command refused.
fn with_pair(
    builder: DeviceBuilder,
    qp_type: QpType,
    body: impl FnOnce(*mut ibv_qp, &dyn Fn(Errno)),
) {
    let soft = Arc::new(builder.without_wire().build().expect("device"));
    let refuse = |errno| soft.inject(Fault { moment: Moment::Call(0), errno });
    // SAFETY: structs of numbers and pointers, which may be zero; each object is destroyed once.
    unsafe {
        let context = open_device(of_soft(&soft));
        let domain = alloc_pd(context);
        let cq = create_cq(context, 16, null_mut(), null_mut(), 0);
        let mut wanted: ibv_qp_init_attr = zeroed();
        (wanted.send_cq, wanted.recv_cq, wanted.qp_type) = (cq, cq, qp_type as u32);
        (wanted.cap.max_send_wr, wanted.cap.max_send_sge) = (4, 1);
        let qp = create_qp(domain, &raw mut wanted);
        assert!(!qp.is_null());
        body(qp, &refuse);
        soft.clear_faults();
        assert_eq!((destroy_qp(qp), destroy_cq(cq), dealloc_pd(domain)), (0, 0, 0));
        assert_eq!(close_device(context), 0);
    }
}

/// Brings a queue pair of frames to RTS.
///
/// # Safety
/// It is live.
unsafe fn activate(qp: *mut ibv_qp) {
    for (state, mask) in [
        (State::Init, QpAttrMask::STATE | QpAttrMask::PORT),
        (State::Rtr, QpAttrMask::STATE),
        (State::Rts, QpAttrMask::STATE),
    ] {
        // SAFETY: a struct of numbers; the caller's promise.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            (attr.qp_state, attr.port_num) = (state as u32, 1);
            assert_eq!(modify_qp(qp, &raw mut attr, mask.bits() as c_int), 0);
        }
    }
}

#[test]
fn a_refused_rate_keeps_the_errno_of_the_kernel() {
    with_pair(SoftDevice::builder("soft0"), QpType::RawPacket, |qp, refuse| {
        let limited = |max_burst_sz, errno| {
            let mut attr = ibv_qp_rate_limit_attr {
                rate_limit: 1000,
                max_burst_sz,
                typical_pkt_sz: 0,
                comp_mask: 0,
            };
            refuse(errno);
            // SAFETY: a live queue pair.
            unsafe { modify_qp_rate_limit(qp, &raw mut attr) }
        };
        // SAFETY: as above.
        unsafe { activate(qp) };
        assert_eq!(limited(0, Errno::EOPNOTSUPP), libc::EOPNOTSUPP);
        assert_eq!(limited(0, Errno::ENOMEM), libc::ENOMEM);
        assert_eq!(limited(1 << 10, Errno::EOPNOTSUPP), libc::EINVAL);
    });
}

#[test]
fn an_alternate_path_that_cannot_be_checked_keeps_the_errno_of_the_kernel() {
    let changed = |qp| {
        // SAFETY: a struct of numbers; a live queue pair.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            (attr.alt_port_num, attr.alt_ah_attr.port_num) = (1, 1);
            let mask = QpAttrMask::STATE | QpAttrMask::ALT_PATH;
            modify_qp(qp, &raw mut attr, mask.bits() as c_int)
        }
    };
    with_pair(SoftDevice::builder("soft0").infiniband(), QpType::Rc, |qp, refuse| {
        for errno in [Errno::EIO, Errno::ENOMEM] {
            refuse(errno);
            assert_eq!(changed(qp), errno as c_int);
        }
        assert_eq!(changed(qp), libc::EINVAL);
    });
    with_pair(SoftDevice::builder("soft0"), QpType::Rc, |qp, _| {
        assert_eq!(changed(qp), libc::EINVAL);
    });
}
