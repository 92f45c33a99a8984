//! Many queue pairs of libmlx5 that share a thread domain and a completion queue.

use std::ptr::null_mut;

use uverbs_libmlx5_harness::Libmlx5;
use uverbs_libmlx5_harness::abi::*;

use super::objects::{Maker, QpRequest, RC, STANDARD};
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
        let maker = Maker::load()?;
        let Libmlx5 { context, device, .. } = maker.libmlx5;
        let cq = maker.completion_queue(STANDARD)?.cast();
        let pair = |_| {
            let capacities = [GROUP as u32, 4, 1, 1, 8];
            // IBV_QP_EX_WITH_RDMA_WRITE.
            let request = QpRequest { qp_type: RC, cq, srq: null_mut(), capacities, operations: 1 };
            // SAFETY: the completion queue that was just made.
            unsafe { maker.queue_pair(request) }
        };
        let made = (0..count).map(pair).collect::<Result<Vec<_>, String>>()?;
        let (pairs, numbers): (_, Vec<_>) = made.into_iter().map(|(qp, n)| (qp.cast(), n)).unzip();
        let cqe = halted::producer(device, numbers[0]);
        let completions = vec![WorkCompletion::default(); GROUP];
        Ok(Rig::new(Self { context: *context, cq, pairs, completions }, numbers, cqe))
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
