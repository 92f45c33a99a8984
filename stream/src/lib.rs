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
//! Streams for tokio are in the module `tokio` (cargo feature `tokio`). The cargo feature `soft`
//! embeds the software device.
//!
//! # How bytes travel
//! Each side registers a ring buffer ([`Config::receive_ring`]), whose address and key they
//! exchange when they connect. A write copies the caller's bytes into a registered buffer, or into
//! the work request if they are few, and posts an RDMA WRITE with immediate, which stores them in
//! the peer's ring; a read copies them out of it. The immediate is the number of bytes. At most 112
//! messages are in flight. The reader reports free space in a message of 24 bytes whenever a
//! quarter of the ring has been read, or a quarter of these 112 messages has arrived. So a writer
//! waits only if the peer does not read, and every message finds a posted receive.
//!
//! A peer's reports are checked: it cannot report bytes that were not sent, nor write outside the
//! ring. It can change bytes in the ring until they are read, so [`Stream::lend`] returns views
//! instead of slices.
//!
//! # What is the same as with TCP
//! Order, half close, back-pressure, reset when a peer dies or [aborts](Config::linger), timeouts
//! (`WouldBlock`), non-blocking calls: the same tests run over TCP and over these streams.
//!
//! # What differs
//! - Both ends must use this library: a peer with another protocol is refused.
//! - Only a write notices that the peer's machine has failed, as with TCP without keep-alive; how
//!   soon depends on [`Config::acknowledgement`]. The end of the peer's process is noticed at once,
//!   because its kernel disconnects; the same holds between software devices with loopback
//!   addresses on one machine. A software device with an interface's address ends with its process,
//!   without a disconnect, like a machine that fails.
//! - Dropping a stream waits for a round trip ([`Config::linger`]); dropping a tokio stream leaves
//!   that to another task.
//! - A stream has registered memory for its ring and its send buffers, and two file descriptors; a
//!   tokio stream has four, as does one whose [`Stream::readiness`] was called.
//! - A forked child cannot use its parent's streams: reads and writes fail there.

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
