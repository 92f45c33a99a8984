//! The raw layer: queues that take addresses and keys, in `unsafe` functions with a documented
//! contract.
//!
//! Its builders come from [`Context::create_raw_cq`](crate::Context::create_raw_cq),
//! [`ProtectionDomain::create_raw_qp`](crate::ProtectionDomain::create_raw_qp) and
//! [`ProtectionDomain::create_raw_srq`](crate::ProtectionDomain::create_raw_srq). Memory for it is
//! registered as a [`MemoryRegion`](crate::MemoryRegion).
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use uverbs::{AccessFlags, Buffer, PollError, cq::Status, op, qp::PostFlags, qp_type::Rc};
//!
//! let context = uverbs::device("soft")?.open()?; // "mlx5_0" is a real one
//! let pd = context.alloc_pd()?;
//! let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let region = pd.register(Buffer::new(8192)?, rights)?;
//! let mut cq = context.create_raw_cq(64).build()?;
//! let mut near = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build()?;
//! let far = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
//! // A peer needs the right both at the region and at the queue pair.
//! let mut far = far.access(AccessFlags::REMOTE_WRITE).build()?;
//! near.connect(&far.endpoint())?;
//! far.connect(&near.endpoint())?;
//!
//! region.view().write(0, b"hello")?;
//! let (from, to) = (region.sge(0, 5)?, region.remote(4096)?);
//! let begin = std::time::Instant::now();
//! for wr_id in 0..100 {
//!     // SAFETY: the region is deregistered after its queue pairs are gone, and nothing uses these
//!     // bytes before the request has completed.
//!     unsafe { near.post_send(wr_id, op::Write(to), from, PostFlags::SIGNALED) }?;
//!     loop {
//!         match cq.poll() {
//!             Ok(done) => {
//!                 assert_eq!((done.status(), done.wr_id()), (Status::Success, wr_id));
//!                 break;
//!             }
//!             Err(PollError::Empty) => context.poll_idle(),
//!             Err(error) => return Err(error.into()),
//!         }
//!     }
//! }
//! println!("{:?} for each write", begin.elapsed() / 100);
//! drop((near, far));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use uverbs_mlx5::completion_queue::{Completion, PollBatch};
pub use uverbs_mlx5::recv_queue::RecvBatch as ReceiveBatch;
pub use uverbs_mlx5::send_queue::{Batch, Template};

use uverbs_mlx5::mmio::BlueFlame;

pub use crate::cq::poll::CqLayout;
use crate::layer::Raw;
pub use crate::mlx5::RingLayout;
pub use crate::qp::raw::{QpLayout, TagBatch};
pub use crate::srq::post::RawSharedReceiveBatch as SharedReceiveBatch;

/// A completion queue that returns the ids of requests.
pub type CompletionQueue = crate::cq::CompletionQueue<Raw>;
/// A queue pair that takes addresses and keys.
pub type QueuePair<T, R = BlueFlame> = crate::qp::QueuePair<T, Raw, R>;
/// A shared receive queue that takes addresses and keys.
pub type SharedReceiveQueue = crate::srq::SharedReceiveQueue<Raw>;
/// A receive work queue that takes addresses and keys.
pub type WorkQueue = crate::qp::work_queue::WorkQueue<Raw>;
/// A handle to a [`CompletionQueue`], for making queue pairs.
pub type CqHandle = crate::CqHandle<Raw>;
/// A handle to a [`SharedReceiveQueue`], for making queue pairs.
pub type SrqHandle = crate::SrqHandle<Raw>;
/// Makes a [`CompletionQueue`]: from [`Context::create_raw_cq`](crate::Context::create_raw_cq).
pub type CqBuilder = crate::CqBuilder<Raw>;
/// Makes a
/// [`QueuePair`]: from [`ProtectionDomain::create_raw_qp`](crate::ProtectionDomain::create_raw_qp).
pub type QpBuilder<T> = crate::QpBuilder<T, Raw>;
/// Makes a [`SharedReceiveQueue`]: from
/// [`ProtectionDomain::create_raw_srq`](crate::ProtectionDomain::create_raw_srq).
pub type SrqBuilder = crate::SrqBuilder<Raw>;
/// Makes a [`WorkQueue`]: from
/// [`ProtectionDomain::create_raw_wq`](crate::ProtectionDomain::create_raw_wq).
pub type WqBuilder = crate::qp::work_queue::WqBuilder<Raw>;
