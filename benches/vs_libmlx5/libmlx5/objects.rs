//! Objects of libmlx5 in its fastest configuration: with a thread domain, so that no lock is taken,
//! and CQs for a single thread.

use std::ffi::c_int;
use std::ptr::null_mut;

use uverbs_libmlx5_harness::abi::*;
use uverbs_libmlx5_harness::{Libmlx5, made};

use crate::halted::{self, QpNumbers};

/// How to install the libraries.
const INSTALL: &str = "Debian: apt install ibverbs-providers";

const INFINIBAND_PORT: u8 = 1;
pub(super) const RC: u32 = 2;
pub(super) const UD: u32 = 4;
/// IBV_ACCESS_LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ and REMOTE_ATOMIC.
const ALL_RIGHTS: c_int = 0xf;
/// `IBV_WC_STANDARD_FLAGS`.
pub(super) const STANDARD: u64 = 127;

/// Makes objects of libmlx5 in a protection domain with a thread domain.
#[derive(Clone, Copy)]
pub(super) struct Maker {
    pub(super) libmlx5: &'static Libmlx5,
    domain: Opaque,
}

/// The attributes in which queue pairs differ.
pub(super) struct QpRequest {
    pub(super) qp_type: u32,
    pub(super) cq: *mut Cq,
    pub(super) srq: *mut Srq,
    /// Send requests, receives, send SGEs, receive SGEs, inline bytes.
    pub(super) capacities: [u32; 5],
    /// The operations that `ibv_wr_*` posts; 0 for a queue pair without these functions.
    pub(super) operations: u64,
}

impl Maker {
    /// Opens the libraries.
    pub(super) fn load() -> Result<Self, String> {
        // The other threads are the devices', which are halted, so no thread reads the environment.
        let libmlx5 = Libmlx5::load_on(|| halted::device("uverbs_libmlx5"))
            .map_err(|missing| format!("{missing} ({INSTALL})"))?;
        let Libmlx5 { context, pd, .. } = libmlx5;
        let extended = libmlx5.verbs_context();
        // SAFETY: libibverbs' contract, with its open device.
        let td = made(unsafe { (extended.alloc_td)(*context, &0) }, "ibv_alloc_td")?;
        let attr = ParentDomainAttr { pd: pd.cast(), td, rest: [0; 4] };
        // SAFETY: as above; both domains were checked.
        let domain = unsafe { (extended.alloc_parent_domain)(*context, &attr) };
        Ok(Self { libmlx5, domain: made(domain, "ibv_alloc_parent_domain")? })
    }

    pub(super) fn completion_queue(&self, wc_flags: u64) -> Result<*mut CqEx, String> {
        let mut attr =
            CqAttrEx { entries: 1023, wc_flags, mask: 1, flags: 1, ..CqAttrEx::default() };
        let create = self.libmlx5.verbs_context().create_cq_ex;
        // SAFETY: libibverbs' contract, with its open device.
        made(unsafe { create(self.libmlx5.context, &mut attr) }, "ibv_create_cq_ex")
    }

    /// A shared receive queue, and its ring.
    pub(super) fn shared_queue(&self, max_wr: u32) -> Result<(*mut Srq, DirectSrq), String> {
        let functions = &self.libmlx5.functions;
        let mut attr = SrqAttr { user: null_mut(), max_wr, max_sge: 1, limit: 0 };
        // SAFETY: libibverbs' contract; the domain was checked.
        let srq = unsafe { (functions.create_srq)(self.domain.cast(), &mut attr) };
        let srq = made(srq, "ibv_create_srq")?;
        // SAFETY: an SRQ, with the object kind and the struct field of SRQs.
        let direct = unsafe { self.libmlx5.direct(srq, DIRECT_SRQ, |objects| &mut objects.srq)? };
        Ok((srq, direct))
    }

    /// A queue pair in RTS.
    ///
    /// # Safety
    /// The queues of the request are libmlx5's, or null.
    pub(super) unsafe fn queue_pair(
        &self,
        request: QpRequest,
    ) -> Result<(*mut Qp, QpNumbers), String> {
        let QpRequest { qp_type, cq, srq, capacities, operations } = request;
        let mut attr = QpAttrEx {
            user: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq,
            capacities,
            kind: qp_type,
            signal_all: 0,
            // A protection domain, and the operations of `ibv_wr_*`.
            mask: if operations == 0 { 1 } else { 1 | 64 },
            pd: self.domain,
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rest: [0; 5],
            send_operations: operations,
        };
        let create = self.libmlx5.verbs_context().create_qp_ex;
        // SAFETY: libibverbs' contract; the caller's promise.
        let qp = unsafe { create(self.libmlx5.context, &mut attr) };
        let qp = made(qp, "ibv_create_qp_ex")?;
        // SAFETY: a queue pair that was checked.
        let number = unsafe {
            to_rts(self.libmlx5, qp, qp_type)?;
            (*qp).number
        };
        Ok((qp, halted::numbers_of(&self.libmlx5.device, number)))
    }

    /// A registered buffer, and its lkey.
    pub(super) fn region(&self, bytes: usize) -> Result<(*mut u8, u32), String> {
        let data = crate::fixture::leak(bytes).as_ptr();
        let register = self.libmlx5.functions.reg_mr;
        // SAFETY: libibverbs' contract; the buffer stays until the program ends.
        let region = unsafe { register(self.libmlx5.pd, data.cast(), bytes, ALL_RIGHTS) };
        let region = made(region, "ibv_reg_mr")?;
        // SAFETY: a region that was checked.
        Ok((data, unsafe { (*region).lkey }))
    }

    /// An address handle.
    pub(super) fn address_handle(&self) -> Result<*mut Ah, String> {
        let create = self.libmlx5.functions.create_ah;
        // SAFETY: libibverbs' contract, with its protection domain.
        made(unsafe { create(self.libmlx5.pd, &path()) }, "ibv_create_ah")
    }
}

/// The address of all peers.
fn path() -> AhAttr {
    AhAttr { dlid: 5, port: INFINIBAND_PORT, ..AhAttr::default() }
}

/// # Safety
/// `qp` is a QP of libibverbs.
unsafe fn to_rts(libmlx5: &Libmlx5, qp: *mut Qp, qp_type: u32) -> Result<(), String> {
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
    let masks = match qp_type {
        UD => [1 | 16 | 32 | 64, 1, 1 | 65536],
        _ => {
            let rtr = 1 | 128 | 256 | 4096 | 32768 | 131_072 | 1_048_576;
            [1 | 8 | 16 | 32, rtr, 1 | 512 | 1024 | 2048 | 8192 | 65536]
        }
    };
    for (state, mask) in (1..).zip(masks) {
        let mut attr = QpAttr { state, ..base() };
        if state == 2 {
            attr.path = path();
        }
        // SAFETY: a QP and its attributes.
        let errno = unsafe { (libmlx5.functions.modify_qp)(qp, &attr, mask) };
        if errno != 0 {
            return Err(format!("ibv_modify_qp to {state}: errno {errno}"));
        }
    }
    Ok(())
}
