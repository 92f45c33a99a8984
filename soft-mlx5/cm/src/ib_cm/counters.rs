//! The counters that the kernel has per port in sysfs, as `cm_tx_msgs`, `cm_tx_retries`,
//! `cm_rx_msgs` and `cm_rx_duplicates`.

use crate::mad::Attribute;

/// A counter for each kind of message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts([u64; Attribute::ALL.len()]);

impl MessageCounts {
    /// The counter of this kind.
    pub fn get(&self, attribute: Attribute) -> u64 {
        self.0[index(attribute)]
    }

    pub(super) fn count(&mut self, attribute: Attribute) {
        self.0[index(attribute)] += 1;
    }
}

fn index(attribute: Attribute) -> usize {
    usize::from(attribute as u16 - Attribute::Req as u16)
}

/// Message counters of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sent for the first time. (The kernel's `cm_tx_msgs` also counts retries.)
    pub sent: MessageCounts,
    /// Sent again.
    pub retried: MessageCounts,
    /// Received.
    pub received: MessageCounts,
    /// Received again.
    pub duplicates: MessageCounts,
}
