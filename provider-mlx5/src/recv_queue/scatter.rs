//! The scatter lists of receives: what may be posted, and how it is written to an entry.
//!
//! A list that is shorter than its entry ends with a terminator.

use super::post::Scatter;
use crate::format::DataSegment;
use crate::request::{Octoword, PostError, Sge, octoword};

/// What ends a list.
#[inline(always)]
pub(super) fn terminator() -> Octoword {
    octoword(DataSegment::TERMINATOR)
}

/// Whether a list can be posted: not too many SGEs, and none too long.
pub(crate) fn check_scatter(data: &[Sge], max_sge: u8) -> Result<(), PostError> {
    if data.len() > usize::from(max_sge) {
        return Err(PostError::TooManySge);
    }
    match data.iter().any(Sge::is_too_long) {
        true => Err(PostError::SgeTooLong),
        false => Ok(()),
    }
}

impl Scatter {
    /// Writes the SGEs that are not empty, of a list that was checked. An empty one is left out,
    /// because it would mean 2 GiB to the device.
    pub(crate) fn write_filled(self, data: &[Sge]) {
        let mut count = 0;
        for sge in data.iter().filter(|sge| !sge.is_empty()) {
            self.put(count, sge.octoword());
            count += 1;
        }
        self.put(count, terminator());
    }

    /// Ends the list after one SGE.
    pub(super) fn terminate(self) {
        self.put(1, terminator());
    }
}
