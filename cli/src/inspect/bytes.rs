//! The bytes to decode: from the command line, or from standard input as JSON lines or a dump.
//!
//! A dump is decoded while it is read, so that a dump of any length needs little memory.

use std::io::{BufRead, Cursor, Read};

use serde_json::Value;
use uverbs_mlx5_inspect::{DumpError, DumpLines, is_separator};

use super::{Answer, answer_lines_of};
use crate::failure::{Context, Failure, Outcome};

/// The bytes of a dump that are read before decoding begins: a shorter dump is checked as a whole
/// before anything is printed.
pub(super) const READ_FIRST: usize = 1 << 20;
/// Bytes of text read at a time. A longer line is read in parts.
const SEGMENT: u64 = 64 << 10;

/// A dump that is being read.
pub(super) struct Dump {
    input: Box<dyn BufRead>,
    lines: DumpLines,
    /// Whether the lines so far are in the format of gdb's `x`.
    is_from_gdb: bool,
    /// The end of a part of a long line, cut before a word.
    rest: Vec<u8>,
    is_in_line: bool,
    buffer: Vec<u8>,
    /// Bytes at the front of the buffer that were consumed.
    taken: usize,
    /// Bytes that were removed from the buffer.
    dropped: usize,
    has_ended: bool,
}

/// Opens a dump. If the input consists of JSON lines, answers them and returns `None`.
pub(super) fn read(hex: &[String], answer: impl Fn(&Value) -> Answer) -> Outcome<Option<Dump>> {
    if !hex.is_empty() {
        return Dump::new(Box::new(Cursor::new(hex.join(" ")))).map(Some);
    }
    let mut input = std::io::stdin().lock();
    if first_byte(&mut input)? == Some(b'{') {
        answer_lines_of(input, answer)?;
        return Ok(None);
    }
    Dump::new(Box::new(input)).map(Some)
}

/// The first byte that is not white space; it is not consumed.
fn first_byte(input: &mut impl BufRead) -> Outcome<Option<u8>> {
    loop {
        let ready = input.fill_buf().context(cannot_read)?;
        let blank = ready.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let found = ready.get(blank).copied();
        let is_end = ready.is_empty();
        // White space before the first byte is not part of a dump.
        input.consume(blank);
        if found.is_some() || is_end {
            return Ok(found);
        }
    }
}

fn cannot_read() -> String {
    "cannot read standard input".to_owned()
}

fn no_dump(error: DumpError) -> Failure {
    Failure::usage(format!("this is not a dump of bytes: {error}"))
}

impl Dump {
    /// Reads up to [`READ_FIRST`] bytes.
    fn new(input: Box<dyn BufRead>) -> Outcome<Self> {
        let mut dump = Self {
            input,
            lines: DumpLines::default(),
            is_from_gdb: false,
            rest: Vec::new(),
            is_in_line: false,
            buffer: Vec::new(),
            taken: 0,
            dropped: 0,
            has_ended: false,
        };
        if dump.peek(READ_FIRST + 1)?.is_empty() {
            return Err(no_dump(DumpError::Empty));
        }
        Ok(dump)
    }

    /// The next `count` bytes, or all that are left.
    pub(super) fn peek(&mut self, count: usize) -> Outcome<&[u8]> {
        while self.buffer.len() - self.taken < count && !self.has_ended {
            self.fill()?;
        }
        let rest = &self.buffer[self.taken..];
        Ok(&rest[..rest.len().min(count)])
    }

    /// Consumes bytes that [`Dump::peek`] returned.
    pub(super) fn take(&mut self, count: usize) {
        self.taken += count.min(self.buffer.len() - self.taken);
        // Done rarely, so that each byte is moved about once.
        if self.taken > READ_FIRST {
            self.buffer.drain(..self.taken);
            self.dropped += self.taken;
            self.taken = 0;
        }
    }

    /// The total number of bytes, if all have been read.
    pub(super) fn length(&self) -> Option<usize> {
        self.has_ended.then_some(self.dropped + self.buffer.len())
    }

    /// Reads a line, or a part of a long one.
    fn fill(&mut self) -> Outcome {
        let mut text = std::mem::take(&mut self.rest);
        let mut segment = (&mut self.input).take(SEGMENT);
        let length = segment.read_until(b'\n', &mut text).context(cannot_read)?;
        self.has_ended = length == 0;
        let is_cut = length > 0 && !text.ends_with(b"\n");
        if is_cut && length as u64 == SEGMENT {
            self.rest = text.split_off(last_cut(&text));
        }
        let was_in_line = std::mem::replace(&mut self.is_in_line, is_cut);
        let text = String::from_utf8(text).map_err(|_| {
            Failure::usage("standard input is neither JSON lines nor a dump in hexadecimal")
        })?;
        if self.has_ended && text.is_empty() {
            return Ok(());
        }
        let bytes = if was_in_line {
            self.lines.more_of_line(&text, self.is_from_gdb)
        } else {
            self.is_from_gdb |= is_from_gdb(&text);
            self.lines.line(&text, self.is_from_gdb)
        };
        self.buffer.extend(bytes.map_err(no_dump)?);
        Ok(())
    }
}

/// Where a part of a line may end: after its last separator, or if it has none, after a whole byte.
fn last_cut(text: &[u8]) -> usize {
    let separator = text.iter().rposition(|byte| is_separator(char::from(*byte)));
    separator.map_or(text.len() / 2 * 2, |at| at + 1)
}

/// Whether `gdb`'s `x` wrote the line: an address in hexadecimal before a colon, perhaps after
/// the symbol's name. Its words are numbers of a little-endian machine.
fn is_from_gdb(line: &str) -> bool {
    let address = line.trim_start().split([':', ' ']).next().unwrap_or_default();
    let is_address = address
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
    is_address && (line.contains(":\t") || line.contains(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(text: &str) -> Outcome<Vec<u8>> {
        let mut dump = Dump::new(Box::new(Cursor::new(text.to_owned())))?;
        Ok(dump.peek(usize::MAX)?.to_vec())
    }

    #[test]
    fn words_of_gdb_are_numbers_and_bytes_of_others_are_bytes() {
        let expected = vec![0, 0, 1, 0x0a, 0, 1, 0, 2];
        for text in [
            "0x7ffff7fb0000:\t0x0a010000\t0x02000100",
            "0x7ffff7fb0000 <ring+64>:\t0x0a010000\t0x02000100",
            "0x7ffff7fb0000:\t0x00\t0x00\t0x01\t0x0a\t0x00\t0x01\t0x00\t0x02",
            "0x7ffff7fb0000:\t0x020001000a010000",
            "0x0000010a 0x00010002",
            "0000010a 00010002",
            "0000010a00010002",
            "00000000: 0000 010a 0001 0002                      ........",
            "00000000  00 00 01 0a 00 01 00 02                           |........|",
        ] {
            assert_eq!(dump(text).expect(text), expected, "{text}");
        }
    }

    #[test]
    fn lines_of_any_length_and_words_of_any_length_are_read() {
        let long = 5 * SEGMENT as usize;
        let bytes: Vec<u8> = (0..long).map(|at| (at * 7 + at / 256) as u8).collect();
        for separator in ["", " ", ","] {
            let words: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(dump(&words.join(separator)).expect("a dump") == bytes, "{separator:?}");
        }
        let failure = dump(&"0".repeat(long + 1)).expect_err("odd");
        assert!(failure.to_string().contains("odd number"), "{failure}");
    }

    #[test]
    fn what_was_taken_is_dropped() {
        let text = "00 01 02 03 04 05 06 07\n".repeat(READ_FIRST);
        let mut dump = Dump::new(Box::new(Cursor::new(text))).expect("a dump");
        let mut most = 0;
        while !dump.peek(1000).expect("bytes").is_empty() {
            dump.take(1000);
            most = most.max(dump.buffer.len());
        }
        assert_eq!(dump.length(), Some(8 * READ_FIRST));
        assert!(most < 3 * READ_FIRST, "{most} bytes kept");
    }
}
