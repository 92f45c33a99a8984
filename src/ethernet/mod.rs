//! Receiving and sending Ethernet frames without the kernel's network stack: for market data and
//! orders.
//!
//! [`RxQueue`] is a completion queue, a receive queue and a target of steering rules in one object
//! that one thread owns. It owns its buffers. A poll lends a [`Frame`]; dropping the frame gives
//! its buffer back to the device, so a loop cannot run out of receives by forgetting one.
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
//! [`TxQueue`] sends frames from [`Template`]s: a whole frame inside a work request, whose fields
//! have names. It can be built into the ring and held back until the decision is made:
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
//! [`crate::flow`] describes rules and their pitfalls. For full control use
//! [`crate::qp::QueuePair`] of type [`RawPacket`](crate::qp_type::RawPacket).
//!
//! # Clocks
//! The format of timestamps is part of a queue's type: [`FreeRunning`] ticks, which a
//! [`UtcClock`] converts, or [`RealTime`], which is UTC already. See [`Timestamp`]. A queue whose
//! completions are compressed is [`Untimed`].
//!
//! # Costs
//! `docs/trading.md` says how many instructions a poll and a send take, and CI keeps them so. No
//! path of a poll allocates, locks, makes a system call or panics; skipping a frame that was too
//! long does not either.

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
