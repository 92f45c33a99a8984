//! A command: its input, and the output that it fills.

use super::refusal::{Done, Refusal};
use crate::firmware::bits::Field;
use crate::firmware::layout::command::{self as layout, header, result};

/// A command in progress.
#[derive(Debug)]
pub struct Command<'a> {
    /// Its bytes.
    pub input: &'a [u8],
    /// The output for the sender.
    pub reply: Reply,
}

impl<'a> Command<'a> {
    /// A command whose sender has a buffer of `output_length` bytes for the output.
    pub fn new(input: &'a [u8], output_length: usize) -> Self {
        Self { input, reply: Reply::new(output_length) }
    }

    /// A field of its input.
    pub fn get(&self, field: Field) -> u64 {
        field.get(self.input)
    }

    /// A field of at most 32 bits.
    pub fn get32(&self, field: Field) -> u32 {
        field.get32(self.input)
    }

    /// Whether a field is not zero.
    pub fn is_set(&self, field: Field) -> bool {
        field.is_set(self.input)
    }

    /// The user context that it comes from; 0 is the driver.
    pub fn user_context(&self) -> u16 {
        self.get(header::UID) as u16
    }

    /// The object number that most commands carry.
    pub fn number(&self) -> u32 {
        self.get32(layout::object::NUMBER)
    }

    /// A structure inside the input, `bit` bits from its start, to its end.
    pub fn structure(&self, bit: usize) -> &'a [u8] {
        self.input.get(bit / 8..).unwrap_or_default()
    }

    /// Checks the input's length.
    ///
    /// # Errors
    /// A refusal if the input is shorter than this.
    pub fn need(&self, bytes: usize) -> Done {
        let have = self.input.len();
        if have < bytes { Err(Refusal::short_input(have, bytes)) } else { Ok(()) }
    }

    /// Replaces the output by the reason for the refusal.
    pub fn refuse(&mut self, refusal: &Refusal) {
        self.reply = Reply::new(self.reply.output.len());
        self.reply.set(result::STATUS, refusal.status as u64);
        self.reply.set(result::SYNDROME, refusal.syndrome.into());
    }
}

/// A command's output, as long as the sender's buffer.
#[derive(Debug)]
pub struct Reply {
    /// Its bytes.
    pub output: Vec<u8>,
}

impl Reply {
    /// An output of zeros.
    fn new(length: usize) -> Self {
        Self { output: vec![0; length] }
    }

    /// Stores a field.
    pub fn set(&mut self, field: Field, value: u64) {
        field.set(&mut self.output, value);
    }

    /// Stores the number of the object that the command has created.
    pub fn set_number(&mut self, number: u32) {
        self.set(layout::object::NUMBER, u64::from(number));
    }

    /// Stores as many of `bytes` as fit, at `bit` bits from the start.
    pub fn put(&mut self, bit: usize, bytes: &[u8]) {
        for (to, from) in self.output.iter_mut().skip(bit / 8).zip(bytes) {
            *to = *from;
        }
    }

    /// A structure inside the output, `bit` bits from its start, to its end.
    pub fn structure_mut(&mut self, bit: usize) -> &mut [u8] {
        self.output.get_mut(bit / 8..).unwrap_or_default()
    }

    /// Checks the output's length.
    ///
    /// # Errors
    /// A refusal if the sender's buffer is shorter than this.
    pub fn need(&self, bytes: usize) -> Done {
        let have = self.output.len();
        if have < bytes { Err(Refusal::short_output(have, bytes)) } else { Ok(()) }
    }
}
