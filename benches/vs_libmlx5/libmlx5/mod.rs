//! Debian's libibverbs and libmlx5, unmodified, opened at run time and used on a halted software
//! device.
//!
//! They are in their fastest configuration: with a thread domain, so that no lock is taken, and a
//! CQ for a single thread.

pub(crate) mod cases;
pub(crate) mod grid;
pub(crate) mod many;
pub(crate) mod polls;

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::null_mut;

use uverbs_libmlx5_harness::Libmlx5;
use uverbs_libmlx5_harness::abi::*;

use crate::OPERATIONS;
use crate::halted::{self, QpNumbers};
use crate::producer::Producer;
use polls::Polls;

/// How to install the libraries.
const INSTALL: &str = "Debian: apt install ibverbs-providers";

const INFINIBAND_PORT: u8 = 1;
const RC: u32 = 2;
const UD: u32 = 4;
const LOCAL_KEY_RIGHTS: c_int = 0xf;

/// Queues of libmlx5, and the device's part of them.
pub(crate) struct Libmlx5Queues {
    libmlx5: &'static Libmlx5,
    /// A protection domain with a thread domain.
    domain: Opaque,
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
        // The only other thread is the device's, which is halted, so no thread reads the
        // environment.
        let libmlx5 = Libmlx5::load_on(|| halted::device("uverbs_libmlx5"))
            .map_err(|missing| format!("{missing} ({INSTALL})"))?;
        // SAFETY: the libraries are libibverbs and libmlx5.
        unsafe { make(libmlx5) }
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

fn check<T>(pointer: *mut T, verb: &str) -> Result<*mut T, String> {
    let error = std::io::Error::last_os_error();
    if pointer.is_null() { Err(format!("{verb}: {error}")) } else { Ok(pointer) }
}

/// # Safety
/// The libraries are libibverbs and libmlx5.
unsafe fn make(libmlx5: &'static Libmlx5) -> Result<Libmlx5Queues, String> {
    let Libmlx5 { functions, context, pd, device } = libmlx5;
    let (context, pd) = (*context, *pd);
    let extended = libmlx5.verbs_context();
    // SAFETY: libibverbs' contract; every pointer was checked.
    unsafe {
        let td = check((extended.alloc_td)(context, &0), "ibv_alloc_td")?;
        let domain = ParentDomainAttr { pd: pd.cast(), td, rest: [0; 4] };
        let domain = (extended.alloc_parent_domain)(context, &domain);
        let domain = check(domain, "ibv_alloc_parent_domain")?;

        let data = crate::fixture::leak(64 * OPERATIONS).as_ptr();
        let region = (functions.reg_mr)(pd, data.cast(), 64 * OPERATIONS, LOCAL_KEY_RIGHTS);
        let lkey = (*check(region, "ibv_reg_mr")?).lkey;
        let make_cq = || {
            let attr =
                CqAttrEx { entries: 1023, wc_flags: 127, mask: 1, flags: 1, ..CqAttrEx::default() };
            let mut attr = attr;
            check((extended.create_cq_ex)(context, &mut attr), "ibv_create_cq_ex")
        };
        let (cq, cq_ex) = (make_cq()?.cast::<Cq>(), make_cq()?);
        let mut attr = SrqAttr { user: null_mut(), max_wr: 511, max_sge: 1, limit: 0 };
        let srq = check((functions.create_srq)(domain.cast(), &mut attr), "ibv_create_srq")?;

        let make_qp_of = |kind: u32, cq: *mut Cq, srq, capacities, operations| {
            let mut attr = QpAttrEx {
                user: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq,
                capacities,
                kind,
                signal_all: 0,
                // A protection domain; for connected ones also the operations of `ibv_wr_*`.
                mask: if kind == RC { 1 | 64 } else { 1 },
                pd: domain,
                xrcd: null_mut(),
                create_flags: 0,
                max_tso_header: 0,
                rest: [0; 5],
                send_operations: operations,
            };
            let qp = check((extended.create_qp_ex)(context, &mut attr), "ibv_create_qp_ex")?;
            to_rts(libmlx5, qp, kind)?;
            Ok::<_, String>((qp, halted::numbers_of(device, (*qp).number)))
        };
        let make_qp = |kind: u32, cq: *mut Cq, srq: *mut Srq| {
            let receives = if srq.is_null() { 512 } else { 0 };
            // Write and send.
            make_qp_of(kind, cq, srq, [512, receives, 1, receives.min(1), 64], 1 | 4)
        };
        let (qp, numbers) = make_qp(RC, cq, null_mut())?;
        // Writes, sends, reads and atomics.
        let (wide, wide_numbers) = make_qp_of(RC, cq, null_mut(), [1024, 512, 16, 4, 220], 127)?;
        let (lazy, lazy_numbers) = make_qp(RC, cq_ex.cast(), null_mut())?;
        let (ud, ud_numbers) = make_qp(UD, cq, null_mut())?;
        let (_, srq_numbers) = make_qp(RC, cq, srq)?;

        let mut srq_direct = DirectSrq::default();
        let srq_object = [srq as usize, (&raw mut srq_direct) as usize];
        let mut objects = DirectObjects { srq: srq_object, ..DirectObjects::default() };
        if (functions.init_obj)(&mut objects, DIRECT_SRQ) != 0 {
            return Err("mlx5dv_init_obj".to_owned());
        }
        let attr = AhAttr { dlid: 5, port: INFINIBAND_PORT, ..AhAttr::default() };
        let ah = check((functions.create_ah)(pd, &attr), "ibv_create_ah")?;

        Ok(Libmlx5Queues {
            libmlx5,
            domain,
            polls: BTreeMap::new(),
            context,
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
            ah,
            lkey,
            data,
            sends: Vec::new(),
            sges: Vec::new(),
            receives: Vec::new(),
            completions: vec![WorkCompletion::default(); 16],
        })
    }
}

/// # Safety
/// `qp` is a QP of libibverbs.
unsafe fn to_rts(libmlx5: &Libmlx5, qp: *mut Qp, kind: u32) -> Result<(), String> {
    let path = AhAttr { dlid: 5, port: INFINIBAND_PORT, ..AhAttr::default() };
    let base = || QpAttr {
        mtu: 5,
        qkey: 0x1111_1111,
        receive_psn: 1,
        send_psn: 2,
        peer: 0x777,
        access: 0xf,
        reads: 16,
        peer_reads: 16,
        rnr_timer: 12,
        port: INFINIBAND_PORT,
        timeout: 14,
        retries: 7,
        rnr_retries: 7,
        ..QpAttr::default()
    };
    // INIT, RTR, RTS, with what each demands (ibv_modify_qp(3)).
    let masks = match kind {
        UD => [1 | 16 | 32 | 64, 1, 1 | 65536],
        _ => {
            let rtr = 1 | 128 | 256 | 4096 | 32768 | 131_072 | 1_048_576;
            [1 | 8 | 16 | 32, rtr, 1 | 512 | 1024 | 2048 | 8192 | 65536]
        }
    };
    let mut path = Some(path);
    for (state, mask) in (1..).zip(masks) {
        let mut attr = QpAttr { state, ..base() };
        if state == 2 {
            attr.path = path.take().unwrap_or_default();
        }
        // SAFETY: a QP and its attributes.
        let errno = unsafe { (libmlx5.functions.modify_qp)(qp, &attr, mask) };
        if errno != 0 {
            return Err(format!("ibv_modify_qp to {state}: errno {errno}"));
        }
    }
    Ok(())
}
