//! Byte streams over RDMA, in the shape of [`TcpListener`](std::net::TcpListener) and
//! [`TcpStream`](std::net::TcpStream).
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use std::io::{Read, Write};
//! # let context = uverbs::device("soft")?.open()?;
//! # let config = uverbs_stream::Config::new().context(&context);
//! # let listener = config.bind("127.0.0.1:0")?;
//! # let address = listener.local_addr()?;
//! # /*
//! let listener = uverbs_stream::Listener::bind("10.0.0.1:7471")?;
//! # */
//! let server = std::thread::spawn(move || -> std::io::Result<()> {
//!     let (mut stream, _peer) = listener.accept()?;
//!     stream.write_all(b"welcome")
//! });
//! # let mut stream = config.connect(address)?;
//! # /*
//! let mut stream = uverbs_stream::Stream::connect("10.0.0.1:7471")?;
//! # */
//! let mut text = String::new();
//! stream.read_to_string(&mut text)?;
//! assert_eq!(text, "welcome");
//! server.join().expect("no panic")?;
//! # }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Streams of tokio are in the module `tokio` (cargo feature `tokio`). The feature `soft`
//! embeds the software device.
//!
//! # How bytes travel
//! Each side registers a ring ([`Config::receive_ring`]) and tells the other where it is when they
//! connect. A write copies the caller's bytes into a registered buffer, or into the work request if
//! they are few, and an RDMA WRITE with immediate puts them into the peer's ring, where a read
//! copies them out. The immediate is their number. At most 112 messages are in flight. A reader
//! reports free space in messages of 24 bytes, each time that a quarter of the ring, or a quarter
//! of these messages, has been read. So a writer waits only while its own peer does not read, and
//! every message finds a receive posted.
//!
//! Reports of a peer are checked: it cannot report bytes that were not sent, nor write outside the
//! ring. It can change bytes in the ring until they are read, so [`Stream::lend`] lends views and
//! no slices.
//!
//! # What is as with TCP
//! Order, half close, back-pressure, reset when a peer dies or [aborts](Config::linger), timeouts
//! (`WouldBlock`), non-blocking calls: the same tests run over both.
//!
//! # What differs
//! - Both ends are this library's: a peer that speaks another protocol is refused.
//! - Only a write notices that the peer's machine vanished, as with TCP without keep-alive. How
//!   soon depends on [`Config::acknowledgement`]. The death of the peer's process is noticed at
//!   once, because its kernel disconnects. So it is between software devices on one machine's
//!   loopback network. A software device at an interface's address ends with its process, as a
//!   machine that vanishes.
//! - Dropping a stream waits for a round trip: [`Config::linger`]. In tasks, another task does.
//! - A stream has memory registered for its ring and its send buffers, and two files. In tasks, or
//!   once [`Stream::readiness`] was called, it has four.
//! - No stream survives fork(2) in the child: reads and writes fail there.

#![forbid(unsafe_code)]

mod broken;
mod buffers;
mod config;
mod connect;
mod core;
mod gather;
mod halves;
mod handshake;
mod lent;
mod listener;
mod lookup;
mod prepared;
mod readiness;
mod shared;
mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;
mod window;

pub use broken::Broken;
pub use config::Config;
pub use halves::{ReadHalf, WriteHalf};
pub use lent::{Lent, Reservation};
pub use listener::Listener;
pub use stream::Stream;
