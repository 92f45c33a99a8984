//! Many queue pairs of libmlx5 that share a thread domain and a completion queue.

use std::ptr::null_mut;

use uverbs_libmlx5_harness::Libmlx5;
use uverbs_libmlx5_harness::abi::*;

use super::{INSTALL, RC, check, to_rts};
use crate::halted;
use crate::scale::{GROUP, Rig, Side};

/// The queue pairs, and their completion queue.
pub(crate) struct Many {
    context: *mut Context,
    cq: *mut Cq,
    pairs: Vec<*mut QpEx>,
    completions: Vec<WorkCompletion>,
}

impl Many {
    /// Creates `count` queue pairs, and the rig that completes their requests.
    ///
    /// # Errors
    /// A text that says what is missing.
    pub(crate) fn rig(count: usize) -> Result<Rig<Self>, String> {
        // The other threads are the devices', which are halted, so no thread reads the
        // environment.
        let libmlx5 = Libmlx5::load_on(|| halted::device("uverbs_libmlx5"))
            .map_err(|missing| format!("{missing} ({INSTALL})"))?;
        // SAFETY: the libraries are libibverbs and libmlx5.
        unsafe { make(libmlx5, count) }
    }
}

/// # Safety
/// The libraries are libibverbs and libmlx5.
unsafe fn make(libmlx5: &Libmlx5, count: usize) -> Result<Rig<Many>, String> {
    let Libmlx5 { context, pd, device, .. } = libmlx5;
    let extended = libmlx5.verbs_context();
    // SAFETY: libibverbs' contract; every pointer was checked.
    unsafe {
        let td = check((extended.alloc_td)(*context, &0), "ibv_alloc_td")?;
        let domain = ParentDomainAttr { pd: pd.cast(), td, rest: [0; 4] };
        let domain = (extended.alloc_parent_domain)(*context, &domain);
        let domain = check(domain, "ibv_alloc_parent_domain")?;
        let mut attr =
            CqAttrEx { entries: 1023, wc_flags: 127, mask: 1, flags: 1, ..CqAttrEx::default() };
        let cq = check((extended.create_cq_ex)(*context, &mut attr), "ibv_create_cq_ex")?;
        let cq = cq.cast::<Cq>();
        let pair = |_| {
            let mut attr = QpAttrEx {
                user: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq: null_mut(),
                capacities: [GROUP as u32, 4, 1, 1, 8],
                kind: RC,
                signal_all: 0,
                // A protection domain, and the operations of `ibv_wr_*`: writes.
                mask: 1 | 64,
                pd: domain,
                xrcd: null_mut(),
                create_flags: 0,
                max_tso_header: 0,
                rest: [0; 5],
                send_operations: 1,
            };
            let qp = check((extended.create_qp_ex)(*context, &mut attr), "ibv_create_qp_ex")?;
            to_rts(libmlx5, qp, RC)?;
            Ok(qp.cast::<QpEx>())
        };
        let pairs = (0..count).map(pair).collect::<Result<Vec<_>, String>>()?;
        let number = |qp: &*mut QpEx| (*qp.cast::<Qp>()).number;
        let numbers: Vec<_> =
            pairs.iter().map(|qp| halted::numbers_of(device, number(qp))).collect();
        let cqe = halted::producer(device, numbers[0]);
        let completions = vec![WorkCompletion::default(); GROUP];
        Ok(Rig::new(Many { context: *context, cq, pairs, completions }, numbers, cqe))
    }
}

impl Side for Many {
    #[inline(always)]
    fn post(&mut self, at: usize) {
        let qp = self.pairs[at];
        let mut data = [7u8; 8];
        // SAFETY: a QP of libmlx5, used by this thread alone; the data is inline.
        unsafe {
            ((*qp).start)(qp);
            (*qp).wr_id = at as u64;
            // `IBV_SEND_SIGNALED`.
            (*qp).wr_flags = 2;
            ((*qp).rdma_write)(qp, 0x1234, 0x1000);
            ((*qp).set_inline_data)(qp, data.as_mut_ptr(), 8);
            assert_eq!(((*qp).complete)(qp), 0);
        }
    }

    #[inline(always)]
    fn poll(&mut self) {
        let (cq, space) = (self.cq, self.completions.as_mut_ptr());
        // SAFETY: space for as many completions.
        let count = unsafe { ((*self.context).poll_cq)(cq, GROUP as i32, space) };
        assert!(count == GROUP as i32 && self.completions[0].status == 0, "completions");
    }
}
