//! Debian's libibverbs and libmlx5, unmodified, opened at run time and used on a halted software
//! device.

pub(crate) mod cases;
pub(crate) mod grid;
pub(crate) mod many;
mod objects;
pub(crate) mod polls;

use std::collections::BTreeMap;
use std::ptr::null_mut;

use uverbs_libmlx5_harness::Libmlx5;
use uverbs_libmlx5_harness::abi::*;

use crate::OPERATIONS;
use crate::halted::{self, QpNumbers};
use crate::producer::Producer;
use objects::{Maker, QpRequest, RC, STANDARD, UD};
use polls::Polls;

/// Queues of libmlx5, and the device's part of them.
pub(crate) struct Libmlx5Queues {
    maker: Maker,
    /// By the number of queue pairs; made when they are first needed.
    polls: BTreeMap<usize, Polls>,
    context: *mut Context,
    cq: *mut Cq,
    cqe: Producer,
    cq_ex: *mut CqEx,
    cqe_ex: Producer,
    /// On `cq`.
    qp: *mut Qp,
    qp_ex: *mut QpEx,
    numbers: QpNumbers,
    posted: u32,
    /// On `cq`, with space for the longest requests of the grid and all their operations.
    wide: *mut QpEx,
    wide_numbers: QpNumbers,
    wide_posted: u32,
    /// On `cq_ex`.
    lazy: *mut Qp,
    lazy_numbers: QpNumbers,
    lazy_posted: u32,
    ud: *mut Qp,
    ud_numbers: QpNumbers,
    ud_posted: u32,
    srq: *mut Srq,
    srq_numbers: QpNumbers,
    srq_direct: DirectSrq,
    ah: *mut Ah,
    lkey: u32,
    data: *mut u8,
    sends: Vec<SendWr>,
    sges: Vec<Sge>,
    receives: Vec<RecvWr>,
    completions: Vec<WorkCompletion>,
}

impl Libmlx5Queues {
    /// Opens the libraries and makes their queues.
    ///
    /// # Errors
    /// A text that says what is missing.
    pub(crate) fn new() -> Result<Self, String> {
        let maker = Maker::load()?;
        let Libmlx5 { context, device, .. } = maker.libmlx5;
        let (data, lkey) = maker.region(64 * OPERATIONS)?;
        let (cq, cq_ex) =
            (maker.completion_queue(STANDARD)?.cast(), maker.completion_queue(STANDARD)?);
        let (srq, srq_direct) = maker.shared_queue(511)?;
        // Writes and sends.
        let small = |cq| QpRequest {
            qp_type: RC,
            cq,
            srq: null_mut(),
            capacities: [512, 512, 1, 1, 64],
            operations: 1 | 4,
        };
        // SAFETY: the queues that were just made.
        let make = |request| unsafe { maker.queue_pair(request) };
        let (qp, numbers) = make(small(cq))?;
        // Writes, sends, reads and atomics.
        let capacities = [1024, 512, 16, 4, 220];
        let (wide, wide_numbers) = make(QpRequest { capacities, operations: 127, ..small(cq) })?;
        let (lazy, lazy_numbers) = make(small(cq_ex.cast()))?;
        let (ud, ud_numbers) = make(QpRequest { qp_type: UD, operations: 0, ..small(cq) })?;
        let capacities = [512, 0, 1, 0, 64];
        let (_, srq_numbers) = make(QpRequest { srq, capacities, ..small(cq) })?;
        Ok(Self {
            maker,
            polls: BTreeMap::new(),
            context: *context,
            cq,
            cqe: halted::producer(device, numbers),
            cq_ex,
            cqe_ex: halted::producer(device, lazy_numbers),
            qp,
            // `ibv_qp_to_qp_ex`: an extended QP is one that begins with a QP.
            qp_ex: qp.cast(),
            numbers,
            posted: 0,
            wide: wide.cast(),
            wide_numbers,
            wide_posted: 0,
            lazy,
            lazy_numbers,
            lazy_posted: 0,
            ud,
            ud_numbers,
            ud_posted: 0,
            srq,
            srq_numbers,
            srq_direct,
            ah: maker.address_handle()?,
            lkey,
            data,
            sends: Vec::new(),
            sges: Vec::new(),
            receives: Vec::new(),
            completions: vec![WorkCompletion::default(); 16],
        })
    }

    /// The last of `blocks`-block sends on the plain QP completes; everything before it is retired.
    fn retire(&mut self, blocks: u32) {
        self.posted += OPERATIONS as u32 * blocks;
        let last = self.posted.wrapping_sub(blocks);
        self.cqe.send(self.numbers.user_index, 8 << 24 | self.numbers.number, last);
        self.poll_one();
    }

    /// [`Libmlx5Queues::retire`] of the QP for the grid.
    fn retire_wide(&mut self, blocks: usize) {
        self.wide_posted += (OPERATIONS * blocks) as u32;
        let last = self.wide_posted.wrapping_sub(blocks as u32);
        self.cqe.send(self.wide_numbers.user_index, 8 << 24 | self.wide_numbers.number, last);
        self.poll_one();
    }

    /// [`Libmlx5Queues::retire`] of the UD QP.
    fn retire_ud(&mut self, blocks: u32) {
        self.ud_posted += OPERATIONS as u32 * blocks;
        let last = self.ud_posted.wrapping_sub(blocks);
        self.cqe.send(self.ud_numbers.user_index, 10 << 24 | self.ud_numbers.number, last);
        self.poll_one();
    }

    fn poll_one(&mut self) {
        // SAFETY: space for one completion.
        let count = unsafe { ((*self.context).poll_cq)(self.cq, 1, self.completions.as_mut_ptr()) };
        assert!(count == 1 && self.completions[0].status == 0, "libmlx5 takes the completion");
    }
}
