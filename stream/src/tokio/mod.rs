//! Streams and listeners for tokio.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # async fn example(config: uverbs_stream::Config) -> std::io::Result<()> {
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! # /*
//! let listener = uverbs_stream::tokio::Listener::bind("10.0.0.1:7471").await?;
//! let (mut stream, _peer) = listener.accept().await?;
//! # */
//! # let listener = uverbs_stream::tokio::Listener::bind_with(&config, "10.0.0.1:7471").await?;
//! # let (mut stream, _peer) = listener.accept().await?;
//! let mut word = [0; 4];
//! stream.read_exact(&mut word).await?;
//! stream.write_all(&word).await?;
//! stream.shutdown().await
//! # }
//! ```
//!
//! Every future here is cancel safe. A task that reads and one that writes may wait at the same
//! time.

mod accepting;
mod delivery;
mod listener;
mod reactor;
mod stream;

pub use listener::Listener;
pub use stream::{ReadHalf, Stream, WriteHalf};
