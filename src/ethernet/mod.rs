//! Receiving and sending Ethernet frames without the kernel's network stack, for market data and
//! orders.
//!
//! [`RxQueue`] is a completion queue, a receive queue and a destination of steering rules in one
//! object. It owns its buffers. A poll returns a borrowed [`Frame`]; dropping the frame posts its
//! buffer again, so a loop cannot run out of receives.
//!
//! ```no_run
//! use std::net::Ipv4Addr;
//! use uverbs::flow::UdpMulticast;
//! let context = uverbs::open_default()?;
//! let pd = context.alloc_pd()?;
//! let mut rx = pd.create_rx_queue(1024).build()?;
//! let feed = UdpMulticast::new(Ipv4Addr::new(239, 1, 2, 3), 14310).tag(7);
//! let _rule = rx.steer(&feed)?;
//! loop {
//!     while let Ok(frame) = rx.poll() {
//!         if frame.checksums_ok() && frame.flow_tag() == 7 {
//!             println!("{:?}: {} bytes", frame.timestamp(), frame.bytes().len());
//!         }
//!     }
//!     rx.wait(10_000, None)?;
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`TxQueue`] sends frames from [`Template`]s. A template is a whole frame inside a work request,
//! with named fields. [`TxQueue::warm`] prepares the caches, and [`TxQueue::stage`] builds a frame
//! in the ring before the decision to send it:
//!
//! ```no_run
//! use uverbs::ethernet::{Field, blocks};
//! use uverbs::qp::{EthChecksum, EthernetOffload};
//! # let context = uverbs::open_default()?;
//! # let pd = context.alloc_pd()?;
//! # let frame = [0; 98];
//! const PRICE: Field<u64, 50> = Field::new();
//! let sums = EthernetOffload { checksum: EthChecksum::IP_CSUM, ..EthernetOffload::default() };
//! let mut tx = pd.create_tx_queue(256).build()?;
//! let mut order = tx.template::<{ blocks(98) }>(&frame, sums)?;
//! tx.warm(&order)?;
//! assert!(order.set(PRICE, 1_234_500));
//! tx.send(1, &order)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`crate::flow`] describes steering rules. For full control use [`crate::qp::QueuePair`] of type
//! [`RawPacket`](crate::qp_type::RawPacket).
//!
//! # Clocks
//! The format of timestamps is part of a queue's type: [`FreeRunning`] ticks, which a
//! [`UtcClock`] converts, or [`RealTime`], which is UTC already. See [`Timestamp`]. A queue whose
//! completions are compressed is [`Untimed`].
//!
//! # Costs
//! `docs/trading.md` has the instruction counts of a poll and a send, which CI checks. A poll never
//! allocates, locks, makes a system call or panics, even if it skips a frame that was too long.

mod checksum;
mod clock;
mod counters;
mod receiver;
pub mod recording;
mod rings;
mod rx;
mod rx_builder;
mod striding;
mod striding_builder;
mod template;
mod tx;
mod tx_builder;
mod wait;

pub use crate::qp::striding::{StrideBytes, StridesPerWqe, Striding};
pub use checksum::fill_checksums;
pub use clock::{Clock, FreeRunning, RealTime, Timed, Timestamp, Untimed, UtcClock};
pub use counters::RxCounters;
pub use rx::{Frame, RxBatch, RxQueue};
pub use rx_builder::RxBuilder;
pub use striding::{StridedFrame, StridingCounters, StridingQueue};
pub use striding_builder::StridingBuilder;
pub use template::{Field, Sum, Tailed, Template, Value, blocks, blocks_with_tail};
pub use tx::{Sent, Staged, TxCounters, TxQueue};
pub use tx_builder::TxBuilder;
pub use uverbs_mlx5::completion_queue::FrameError;

use uverbs_mlx5::completion_queue::PollError;

use crate::error::{Error, ErrorKind};

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        let kind = match error {
            FrameError::Empty => ErrorKind::WouldBlock,
            FrameError::Queue(PollError::DeviceRemoved) => ErrorKind::DeviceGone,
            _ => ErrorKind::Refused,
        };
        Self::new("poll", kind, error.to_string()).with_source(error)
    }
}
