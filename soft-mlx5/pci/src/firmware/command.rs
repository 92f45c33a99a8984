//! A command's input and output.

use super::refusal::{Done, Refusal};
use crate::bits::Field;
use crate::layout::command as layout;

/// A command's input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command<'a> {
    pub(super) input: &'a [u8],
}

impl<'a> Command<'a> {
    pub(super) fn get(&self, field: Field) -> u64 {
        field.get(self.input)
    }

    pub(super) fn get32(&self, field: Field) -> u32 {
        field.get32(self.input)
    }

    pub(super) fn is_set(&self, field: Field) -> bool {
        field.is_set(self.input)
    }

    /// The object number that most commands carry.
    pub(super) fn number(&self) -> u32 {
        self.get32(layout::object::NUMBER)
    }

    /// A structure inside the input, `bit` bits from its start, to its end.
    pub(super) fn structure(&self, bit: usize) -> &'a [u8] {
        self.input.get(bit / 8..).unwrap_or_default()
    }

    pub(super) fn need(&self, bytes: usize) -> Done {
        let have = self.input.len();
        if have < bytes { Err(Refusal::short_input(have, bytes)) } else { Ok(()) }
    }
}

/// A command's output, as long as the driver's buffer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) output: Vec<u8>,
}

impl Reply {
    pub(super) fn new(length: usize) -> Self {
        Self { output: vec![0; length] }
    }

    pub(super) fn set(&mut self, field: Field, value: u64) {
        field.set(&mut self.output, value);
    }

    pub(super) fn set_number(&mut self, number: u32) {
        self.set(layout::object::NUMBER, u64::from(number));
    }

    /// Stores as many of `bytes` as fit, at `bit` bits from the start.
    pub(super) fn put(&mut self, bit: usize, bytes: &[u8]) {
        for (to, from) in self.output.iter_mut().skip(bit / 8).zip(bytes) {
            *to = *from;
        }
    }

    /// A structure inside the output, `bit` bits from its start, to its end.
    pub(super) fn structure_mut(&mut self, bit: usize) -> &mut [u8] {
        self.output.get_mut(bit / 8..).unwrap_or_default()
    }

    pub(super) fn need(&self, bytes: usize) -> Done {
        let have = self.output.len();
        if have < bytes { Err(Refusal::short_output(have, bytes)) } else { Ok(()) }
    }
}
