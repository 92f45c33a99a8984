//! Recordings of frames: pcap and pcapng files.
//!
//! [`Recorder`] writes pcapng with nanosecond timestamps and drop counts. [`Recording`] reads pcap
//! (microseconds and nanoseconds) and pcapng, of both byte orders. It does not trust the file:
//! lengths are checked before memory is allocated.
//!
//! ```
//! use uverbs::ethernet::recording::{Recorder, Recording};
//! let mut file = Vec::new();
//! let mut recorder = Recorder::new(&mut file, "mlx5_0")?;
//! recorder.write(1_700_000_000_000_000_001, &[7; 60])?;
//! let frames = Recording::new(&file[..])?.collect::<uverbs::Result<Vec<_>>>()?;
//! assert_eq!(frames[0].time, 1_700_000_000_000_000_001);
//! assert_eq!(frames[0].bytes, [7; 60]);
//! # Ok::<(), uverbs::Error>(())
//! ```

mod blocks;
mod read;
mod write;

pub use read::{Recorded, Recording};
pub use write::{Recorder, Snapped};

/// Bytes of the longest frame that [`Recording`] accepts: libpcap's greatest snapshot length
/// (MAXIMUM_SNAPLEN, pcap-int.h).
pub const LONGEST: u32 = 262_144;

/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

#[cfg(test)]
mod tests;
