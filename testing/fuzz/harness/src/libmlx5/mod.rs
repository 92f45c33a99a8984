//! The same requests to libmlx5 and to this project's queues, where libmlx5 is installed: the same
//! bytes in ring and doorbell record. The same CQEs to both pollers: the same completions.
//!
//! What differs on purpose, and is all that may differ:
//! - bytes of a WQE that libmlx5 leaves as they were (reserved ones of UMR and atomic segments,
//!   padding of inline data, what follows a WQE in its last block) are zero in ours;
//! - requests that libmlx5 encodes although they mean nothing, or something else, are refused:
//!   entries of 2 GiB and more, opcodes that the service lacks, inline data to be read or for
//!   atomics, atomics that are not of 8 bytes. libmlx5 is not given these: some make it copy far
//!   beyond the data;
//! - `ibv_wr_bind_mw` takes every window for one of type 2; type 1 is compared with
//!   `ibv_post_send`;
//! - `ibv_post_send` wants at least one entry for a raw packet, counts the entries of inline data
//!   too, and, as `ibv_wr_send_tso` does, puts the data in a wrong place if the header to segment
//!   by reaches the ring's end: such requests are given to libmlx5 in the other form, or not at
//!   all;
//! - where each packet's headers have to be inside the WQE, `ibv_post_send` remembers over its list
//!   how much of a packet's data went inline (`sg_copy_ptr`) and takes that off the data of a later
//!   packet to segment, whose headers it copies from elsewhere: such requests are built;
//! - libmlx5 does not know the completions of masked atomics;
//! - whether the doorbell is 8 bytes or the WQE itself;
//! - empty entries of a shared receive queue are left out (libmlx5 writes a byte count of 0, which
//!   stands for 2 GiB);
//! - `ibv_post_wq_recv` has the list of a striding work queue 16 bytes too early, in the place of
//!   the link (rdma-core#1381);
//! - only ours inserts VLAN tags: libmlx5 sets no such field of the Ethernet segment
//!   (providers/mlx5/qp.c), and verbs have no request for it.

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
/// If they differ. Where there is no libmlx5 nothing happens, after a message; where `CI` is set
/// that is an error.
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

/// Whether the device wants the first 18 bytes of each packet inside the WQE.
static INLINE_HEADERS: AtomicBool = AtomicBool::new(false);

/// From the start of this process on the device wants the first 18 bytes of each packet inside the
/// WQE. Before all else.
pub fn want_inline_headers() {
    INLINE_HEADERS.store(true, Ordering::Relaxed);
}

/// Whether there is a libmlx5 to compare with.
pub fn is_there() -> bool {
    Libmlx5Queues::get().is_some()
}

/// libmlx5 with a queue pair of each kind.
struct Libmlx5Queues {
    libmlx5: &'static Libmlx5,
    /// The first 18 bytes of each packet go into the WQE.
    wants_headers: bool,
    pairs: Vec<(Service, bool, QueuePair)>,
    /// One for each request that a list may have.
    own: Vec<Own>,
}

/// What only one request of a list uses.
struct Own {
    ah: *mut Ah,
    /// Where libmlx5 keeps that handle's address vector.
    av: *mut [u8; 48],
    mr: *mut Mr,
    mw: *mut Mw,
}

/// Requests of a list, at most.
const LONGEST: usize = 6;

// SAFETY: libibverbs' objects may be used by any thread; the address vector is reached through the
// mutex alone.
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
        // SAFETY: memory that stays; local write, remote read and write, atomic, binding. A window
        // of type 2.
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

/// What the other side's bytes may be: libmlx5's ring was filled with this before.
const UNWRITTEN: u8 = 0xcc;

/// Our bytes are libmlx5's, or zero where it wrote nothing.
fn assert_same(ours: &[u8], theirs: &[u8], what: &str) {
    let same = |at: usize| ours[at] == theirs[at] || theirs[at] == UNWRITTEN && ours[at] == 0;
    let differs = (0..ours.len()).find(|at| !same(*at));
    assert!(
        differs.is_none(),
        "{what}: byte {differs:x?}\nours   {ours:02x?}\ntheirs {theirs:02x?}"
    );
}
