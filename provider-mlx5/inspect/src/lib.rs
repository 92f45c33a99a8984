//! Decodes, shows, checks, explains and encodes work queue and completion queue entries.
//!
//! This crate is for reading dumps, for tests and for fuzzing. It allocates and formats freely; the
//! queues do not use it. A WQE is decoded into a [`Wqe`], a list of segments, and a CQE into a
//! [`Cqe`]. Both are lossless: encoding them again gives the same bytes, legal or not. A check
//! returns what is illegal or suspicious as a list of [`Finding`]s.
//!
//! ```
//! use uverbs_mlx5_inspect::{Service, Wqe};
//!
//! let bytes = [
//!     0x00, 0x00, 0x01, 0x0a, 0x00, 0x01, 0x00, 0x02, 0, 0, 0, 0x08, 0, 0, 0, 0, // control
//!     0x00, 0x00, 0x00, 0x40, 0x00, 0x12, 0x34, 0x00, 0, 0, 0x7e, 0, 0, 0, 0, 0, // data
//! ];
//! let wqe = Wqe::decode(&bytes, Service::Rc)?;
//! assert_eq!(wqe.control.qpn(), 0x100);
//! assert!(wqe.findings(Service::Rc).is_empty());
//! assert_eq!(wqe.encode(), bytes);
//! println!("{wqe}\n{}", wqe.explain(Service::Rc));
//! # Ok::<(), uverbs_mlx5_inspect::TooShort>(())
//! ```

#![deny(unsafe_code)]

mod cqe;
mod cqe_check;
mod decode;
mod driver_check;
mod dump;
mod errno;
mod error_text;
mod explain;
mod finding;
mod plain_memory;
mod poll;
mod post;
mod post_receive;
mod receive;
mod ring;
mod segment;
mod session;
mod show;
mod wqe;
mod wqe_check;

pub use cqe::{Cqe, CqeBody};
pub use dump::{DumpError, DumpLines, is_separator, parse_dump, parse_hex};
pub use errno::{receive_errno, send_errno};
pub use error_text::ErrorText;
pub use finding::{Finding, Severity};
pub use poll::{Polled, poll_cqe};
pub use post::{Buffer, Posted, PostedWqe, SendQueueSpec, SpecError, Work, post_sends};
pub use post_receive::{RecvQueueSpec, SharedRecvQueueSpec, post_receives, post_shared_receives};
pub use receive::ReceiveWqe;
pub use ring::{LONGEST_WQE, RingEntry, RingWalk, decode_ring};
pub use segment::{EthData, InlineData, Segment};
pub use session::{SessionError, expand_session, expand_session_at};
pub use wqe::{TooShort, Wqe};

pub use uverbs_mlx5::send_queue::Service;
