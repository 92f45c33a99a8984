//! Compares this project's queues with libmlx5, if it is installed. The same requests must result
//! in the same bytes in ring and doorbell record, and the same CQEs in the same completions.
//!
//! Only these differences are allowed:
//! - Bytes of a WQE that libmlx5 does not write (reserved bytes of UMR and atomic segments, padding
//!   of inline data, the rest of the last block) are zero here.
//! - Some requests are refused here that libmlx5 encodes although they are meaningless or become
//!   something else: entries of 2 GiB and more, opcodes that the service does not have, inline data
//!   for reads and atomics, atomics that are not of 8 bytes. libmlx5 does not get these: some make
//!   it copy far beyond the data.
//! - `ibv_wr_bind_mw` treats every window as one of type 2. Type 1 is compared with
//!   `ibv_post_send`.
//! - `ibv_post_send` requires at least one entry for a raw packet, and counts the entries of inline
//!   data. Like `ibv_wr_send_tso`, it puts the data in a wrong place if the header of a packet to
//!   segment reaches the ring's end. libmlx5 gets such requests in the other form, or not at all.
//! - If each packet's headers must be inside the WQE, `ibv_post_send` remembers from one request of
//!   a list to the next how much of a packet's data is inline (`sg_copy_ptr`), and skips that much
//!   of the data of a packet to segment, whose headers come from elsewhere. Such requests are
//!   posted with `ibv_wr_*`.
//! - libmlx5 does not support the completions of masked atomics.
//! - The doorbell may be 8 bytes or the WQE itself.
//! - Empty entries of a shared receive queue are left out here; libmlx5 writes a byte count of 0,
//!   which means 2 GiB.
//! - `ibv_post_wq_recv` writes the list of a striding work queue 16 bytes too early, in place of
//!   the link (rdma-core#1381).
//! - Only this library inserts VLAN tags: libmlx5 does not set that field of the Ethernet segment
//!   (providers/mlx5/qp.c), and verbs have no such request.

mod completions;
mod receives;
mod requests;
mod sends;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use arbitrary::Unstructured;
use uverbs_libmlx5_harness::abi::{Ah, Mr, Mw};
use uverbs_libmlx5_harness::{Libmlx5, QueuePair, QueuePairSpec, Service};
use uverbs_soft::chardev::SoftDevice;

/// The input chooses what both do.
///
/// # Panics
/// If they differ. Without libmlx5 it only prints a message; if `CI` is set, it panics.
pub fn run(data: &[u8]) {
    let Some(queues) = Libmlx5Queues::get() else { return };
    let mut queues = queues.lock().unwrap_or_else(PoisonError::into_inner);
    let mut u = Unstructured::new(data);
    // An error means that the input was too short to choose from.
    let _ = match u.int_in_range(0..=9) {
        Ok(0) => receives::run(&mut queues, &mut u),
        Ok(1) => receives::run_shared(&queues, &mut u),
        Ok(4) => receives::run_work_queue(&queues, &mut u),
        Ok(2 | 3) => completions::run(&mut queues, &mut u),
        _ => sends::run(&mut queues, &mut u),
    };
}

/// Whether the device requires the first 18 bytes of each packet inside the WQE.
static INLINE_HEADERS: AtomicBool = AtomicBool::new(false);

/// Makes the device require the first 18 bytes of each packet inside the WQE. Call this first in
/// the process.
pub fn want_inline_headers() {
    INLINE_HEADERS.store(true, Ordering::Relaxed);
}

/// Whether libmlx5 can be used.
pub fn is_there() -> bool {
    Libmlx5Queues::get().is_some()
}

/// libmlx5 with a queue pair of each kind.
struct Libmlx5Queues {
    libmlx5: &'static Libmlx5,
    /// The first 18 bytes of each packet go into the WQE.
    wants_headers: bool,
    pairs: Vec<(Service, bool, QueuePair)>,
    /// An entry for each request of a list.
    own: Vec<Own>,
}

/// Objects that only one request of a list uses.
struct Own {
    ah: *mut Ah,
    /// The handle's address vector in libmlx5's memory.
    av: *mut [u8; 48],
    mr: *mut Mr,
    mw: *mut Mw,
}

/// Most requests of a list.
const LONGEST: usize = 6;

// SAFETY: libibverbs' objects may be used by any thread; the address vector is accessed only under
// the mutex.
unsafe impl Send for Libmlx5Queues {}

/// Operations that a service's `ibv_wr_*` functions have (`enum ibv_qp_create_send_ops_flags`).
fn operations(service: Service) -> u64 {
    match service {
        Service::Rc | Service::XrcSend => 0x3ff,
        Service::Uc => 0x38f,
        Service::Ud => 0x00c,
        Service::RawPacket => 0x404,
        Service::Dci => 0x27f,
    }
}

impl Libmlx5Queues {
    fn get() -> Option<&'static Mutex<Self>> {
        static ONE: OnceLock<Option<Mutex<Libmlx5Queues>>> = OnceLock::new();
        ONE.get_or_init(|| match Self::bring_up() {
            Ok(queues) => Some(Mutex::new(queues)),
            Err(reason) => {
                assert!(std::env::var_os("CI").is_none(), "{reason}");
                eprintln!("skipped, since libmlx5 cannot be used here: {reason}");
                None
            }
        })
        .as_ref()
    }

    fn bring_up() -> Result<Self, String> {
        use Service as S;
        let device = SoftDevice::builder("mlx5_0").without_wire();
        let wants_headers = INLINE_HEADERS.load(Ordering::Relaxed);
        let device = if wants_headers { device.inline_headers() } else { device };
        let libmlx5 = Libmlx5::load_on(|| device.build())?;
        let mut pairs = Vec::new();
        let services = [S::Rc, S::Uc, S::Ud, S::XrcSend, S::RawPacket, S::Dci];
        for service in services {
            for signal_all in [false, true] {
                let capacities = match service {
                    S::XrcSend | S::Dci => [40, 0, 6, 0, 200],
                    _ => [40, 16, 6, 4, 200],
                };
                let operations = operations(service);
                let spec = QueuePairSpec { service, capacities, signal_all, operations };
                pairs.push((service, signal_all, libmlx5.create_qp(&spec)?));
            }
        }
        let own = (0..LONGEST).map(|_| Own::new(libmlx5)).collect::<Result<_, _>>()?;
        Ok(Self { libmlx5, wants_headers, pairs, own })
    }
}

impl Own {
    fn new(libmlx5: &Libmlx5) -> Result<Self, String> {
        let (ah, av) = libmlx5.create_ah()?;
        let memory = Box::leak(Box::new([0u8; 4096])).as_mut_ptr();
        // SAFETY: memory that is never freed; local write, remote read and write, atomic, binding.
        // A window of type 2.
        let (mr, mw) = unsafe {
            let mr = (libmlx5.functions.reg_mr)(libmlx5.pd, memory.cast(), 4096, 0x1f);
            (mr, ((*libmlx5.context).alloc_mw)(libmlx5.pd, 2))
        };
        if mr.is_null() || mw.is_null() {
            return Err("no memory region or window".into());
        }
        Ok(Self { ah, av, mr, mw })
    }
}

/// Filling of libmlx5's ring. It remains in bytes that libmlx5 does not write.
const UNWRITTEN: u8 = 0xcc;

/// Asserts that this library's bytes are the same as libmlx5's, or zero if libmlx5 did not write
/// them.
fn assert_same(ours: &[u8], theirs: &[u8], what: &str) {
    let same = |at: usize| ours[at] == theirs[at] || theirs[at] == UNWRITTEN && ours[at] == 0;
    let differs = (0..ours.len()).find(|at| !same(*at));
    assert!(
        differs.is_none(),
        "{what}: byte {differs:x?}\nours   {ours:02x?}\ntheirs {theirs:02x?}"
    );
}
