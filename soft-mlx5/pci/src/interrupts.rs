//! MSI-X vectors. Each is an eventfd, by which the client raises an interrupt in the guest.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

/// The vectors of the function.
#[derive(Debug)]
pub(super) struct Interrupts {
    vectors: Vec<Option<File>>,
}

impl Interrupts {
    pub(super) fn new(count: u32) -> Self {
        Self { vectors: (0..count).map(|_| None).collect() }
    }

    pub(super) fn count(&self) -> u32 {
        self.vectors.len() as u32
    }

    pub(super) fn set(&mut self, vector: u32, event: Option<OwnedFd>) {
        if let Some(slot) = self.vectors.get_mut(vector as usize) {
            *slot = event.map(File::from);
        }
    }

    /// Raises an interrupt in the guest, if the guest has set up the vector. The client defers
    /// interrupts of masked vectors.
    pub(super) fn raise(&mut self, vector: u32) {
        let Some(Some(event)) = self.vectors.get_mut(vector as usize) else { return };
        if let Err(error) = event.write_all(&1u64.to_ne_bytes()) {
            tracing::warn!(vector, %error, "interrupt lost");
        }
    }
}
