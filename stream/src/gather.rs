//! Taking the bytes of several buffers in order.

use std::io::IoSlice;

/// The bytes that a vectored write has yet to send.
#[derive(Debug)]
pub(crate) struct Gather<'a> {
    buffers: &'a [IoSlice<'a>],
    /// The number of bytes taken from the first buffer.
    offset: usize,
    left: usize,
    taken: usize,
}

impl<'a> Gather<'a> {
    pub(crate) fn new(buffers: &'a [IoSlice<'a>]) -> Self {
        let left = buffers.iter().fold(0usize, |sum, buffer| sum.saturating_add(buffer.len()));
        Self { buffers, offset: 0, left, taken: 0 }
    }

    /// The number of bytes left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// The number of bytes taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Copies the next bytes into `into`, as many as there are.
    pub(crate) fn take(&mut self, mut into: &mut [u8]) {
        while let (Some(buffer), false) = (self.buffers.first(), into.is_empty()) {
            let rest = &buffer[self.offset..];
            let length = rest.len().min(into.len());
            let (now, later) = into.split_at_mut(length);
            now.copy_from_slice(&rest[..length]);
            into = later;
            self.advance(length, rest.len());
        }
    }

    fn advance(&mut self, length: usize, of: usize) {
        (self.taken, self.left) = (self.taken + length, self.left - length);
        if length == of {
            (self.buffers, self.offset) = (&self.buffers[1..], 0);
        } else {
            self.offset += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_whatever_the_cuts() {
        let all: Vec<u8> = (0..50).collect();
        let cuts = [&all[..0], &all[..7], &all[7..7], &all[7..8], &all[8..50], &all[..0]];
        for step in 1..60 {
            let buffers = cuts.map(IoSlice::new);
            let (mut data, mut found) = (Gather::new(&buffers), Vec::new());
            while data.left() > 0 {
                let mut part = vec![0; step.min(data.left())];
                data.take(&mut part);
                found.extend(part);
            }
            assert_eq!((found, data.taken()), (all.clone(), 50));
        }
    }
}
