//! The messages of a pingpong over TCP: [`Hello`], [`Welcome`], [`Ready`], and after the last round
//! trip [`Step::Done`] and [`Verified`]. The server's process does not see RDMA READs and atomics,
//! so their client also sends [`Step::Playing`] every few seconds.

use serde::{Deserialize, Serialize};
use uverbs::Remote;

use super::{Plan, SERVICE};
use crate::failure::{Failure, Outcome};
use crate::rendezvous::require_version;

/// Incremented with every change that older versions would not understand.
const VERSION: u32 = 3;

/// The client's first message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pingpong_version: u32,
    pub(super) plan: Plan,
    /// The client's queue pair, in the library's endpoint encoding, hexadecimal.
    pub(super) endpoint: String,
    pub(super) memory: Memory,
}

/// The server's answer; its queue pair is connected already.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) endpoint: String,
    pub(super) memory: Memory,
}

/// The client's message after its queue pair is connected as well and its receives are posted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) ready: bool,
}

/// Registered memory, for remote operations.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Memory {
    address: u64,
    rkey: u32,
}

/// The client's messages during the round trips.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub(super) enum Step {
    /// The run continues.
    Playing,
    /// The client has received its last answer.
    Done {
        /// The expected value of the server's counter after the atomics.
        counter: u64,
    },
}

/// The server's result.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Verified {
    pub(super) bytes: u64,
}

impl Hello {
    pub(super) fn new(plan: Plan, endpoint: String, memory: Remote) -> Self {
        Self { pingpong_version: VERSION, plan, endpoint, memory: memory.into() }
    }

    /// The run's parameters, if this end supports them.
    pub(super) fn checked(&self) -> Outcome<Plan> {
        require_version(SERVICE, self.pingpong_version, VERSION)?;
        if self.plan.size == 0 || self.plan.size > 1 << 30 {
            return Err(Failure::failed(format!(
                "the peer asks for messages of {} bytes",
                self.plan.size
            )));
        }
        Ok(self.plan)
    }
}

impl From<Remote> for Memory {
    fn from(remote: Remote) -> Self {
        Self { address: remote.address, rkey: remote.rkey }
    }
}

impl Memory {
    /// The byte at `offset`.
    pub(super) fn at(&self, offset: usize) -> Remote {
        Remote::new(self.address.wrapping_add(offset as u64), self.rkey)
    }
}
