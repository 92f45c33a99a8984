//! The messages of a transfer.
//!
//! Over TCP, one JSON line each: the receiver's [`Window`], then [`Hello`] and [`Welcome`] connect
//! a queue pair on both sides; then, for every file, the sender's `Offer`, the receiver's `Accept`,
//! the sender's `Done`, the receiver's `Stored`. Either end may give up with its reason at any
//! time. Each message and each chunk has a deadline.
//!
//! Over RDMA, the contents: chunk number n goes by RDMA WRITE with immediate n into slot n mod
//! slots of the receiver's window. The receiver writes it to the file, posts a new receive and
//! returns the slot with an empty SEND, so that at most `slots` chunks are in flight and both sides
//! register a fixed amount of memory whatever the file's size.

use serde::{Deserialize, Serialize};

/// Incremented with every change that older versions would not understand.
pub(crate) const VERSION: u32 = 2;

/// The sender's first message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`VERSION`] of the sender.
    pub(crate) transfer_version: u32,
    /// The sender's queue pair, in the library's endpoint encoding, hexadecimal.
    pub(crate) endpoint: String,
}

/// The receiver's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The receiver's queue pair.
    pub(crate) endpoint: String,
}

/// Registered memory of the receiver, divided into slots.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Address of the first slot.
    pub(crate) address: u64,
    /// Key for remote writes.
    pub(crate) rkey: u32,
    /// Number of slots.
    pub(crate) slots: u32,
    /// Bytes of each.
    pub(crate) slot_bytes: u32,
}

/// The messages after the set-up.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub(crate) enum Message {
    /// Sender: a file of this name and size is next.
    Offer {
        /// A single path component.
        name: String,
        /// Bytes.
        size: u64,
    },
    /// Receiver: ready for the file.
    Accept,
    /// Sender: all chunks have arrived; this is the checksum of the contents.
    Done {
        /// BLAKE3 of the contents, hexadecimal.
        checksum: String,
    },
    /// Receiver: the file is verified, durable, and has its name.
    Stored,
    /// Sender: there are no more files.
    Goodbye,
}
