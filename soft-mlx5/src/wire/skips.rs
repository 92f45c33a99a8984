//! Decides which calls of [`Wire::receive`](super::Wire::receive) skip the sockets.

/// Of calls that may skip the sockets, every 32nd still reads them. An awake device calls `receive`
/// about once in a microsecond.
pub(super) const FILES_EVERY: u32 = 32;

/// See [`Wire::skip_files`](super::Wire::skip_files).
#[derive(Debug, Default)]
pub(super) struct Skips {
    /// Whether the next call may skip the sockets.
    allowed: bool,
    /// How many calls in a row have skipped the sockets.
    in_a_row: u32,
}

impl Skips {
    pub(super) fn allow(&mut self) {
        self.allowed = true;
    }

    pub(super) fn forbid(&mut self) {
        self.allowed = false;
    }

    /// Whether this call skips the sockets.
    pub(super) fn take(&mut self) -> bool {
        self.in_a_row = if std::mem::take(&mut self.allowed) { self.in_a_row + 1 } else { 0 };
        self.in_a_row % FILES_EVERY != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_is_skipped_and_never_too_many_in_a_row() {
        let mut skips = Skips::default();
        assert!(!skips.take());
        skips.allow();
        assert_eq!([skips.take(), skips.take()], [true, false]);
        skips.allow();
        skips.forbid();
        assert!(!skips.take());
        let mut skipped = 0;
        for _ in 0..2 * FILES_EVERY {
            skips.allow();
            skipped += u32::from(skips.take());
        }
        assert_eq!(skipped, 2 * (FILES_EVERY - 1));
    }
}
