//! `uverbs transfer`: files over RDMA WRITE.

mod partial;
mod progress;
mod protocol;
mod receiver;
mod sender;

use std::time::Duration;

use crate::args::Transfer;
use crate::failure::Outcome;
use crate::link::{Shape, USUAL_INLINE};
use crate::rendezvous::PATIENCE;

/// The name of the subcommand.
const SERVICE: &str = "transfer";
/// Most outstanding chunks.
const SLOTS: u32 = 16;
/// Bytes of a chunk: large enough that the cost per chunk is small, small enough that the work of
/// both ends overlaps.
const SLOT_BYTES: u32 = 512 << 10;

/// Runs the command.
pub(crate) fn run(command: &Transfer) -> Outcome {
    match command {
        Transfer::Recv(arguments) => receiver::run(arguments),
        Transfer::Send(arguments) => sender::run(arguments),
    }
}

/// The time that the receiver may take to write a file of `bytes` bytes to its disk: at least 1 MiB
/// per second.
fn patience_to_store(bytes: u64) -> Duration {
    PATIENCE + Duration::from_secs(bytes >> 20)
}

/// A link with a window of `slots` chunks, each of which has one message out and one message in.
fn shape(slots: u32, slot_bytes: u32) -> Shape {
    Shape {
        bytes: slots as usize * slot_bytes as usize,
        sends: 2 * slots,
        receives: slots,
        sleeps: true,
        inline_bytes: USUAL_INLINE,
    }
}
