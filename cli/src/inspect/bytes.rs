//! Where the bytes to decode come from: the command line, or standard input as JSON lines or as a dump.

use std::io::Read;

use uverbs_mlx5_inspect::parse_dump;

use super::{Answer, answer_line};
use crate::failure::{Context, Failure, Outcome};
use serde_json::Value;

/// Gives a dump's bytes back, or answers JSON lines and gives back nothing.
pub(super) fn read(hex: &[String], answer: impl Fn(&Value) -> Answer) -> Outcome<Option<Vec<u8>>> {
    if !hex.is_empty() {
        return dump(&hex.join(" ")).map(Some);
    }
    let mut input = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut input)
        .context(|| "cannot read standard input".into())?;
    if input.trim_ascii_start().starts_with(b"{") {
        let lines = input.strip_suffix(b"\n").unwrap_or(&input);
        lines.split(|byte| *byte == b'\n').try_for_each(|line| answer_line(line, &answer))?;
        return Ok(None);
    }
    let text = String::from_utf8(input).map_err(|_| {
        Failure::usage("standard input is neither JSON lines nor a dump in hexadecimal")
    })?;
    dump(&text).map(Some)
}

fn dump(text: &str) -> Outcome<Vec<u8>> {
    parse_dump(text, is_from_gdb(text))
        .map_err(|error| Failure::usage(format!("this is no dump of bytes: {error}")))
}

/// Whether `gdb`'s `x` wrote it: an address in hexadecimal before a colon, with the symbol's name behind it perhaps. Its
/// words are numbers of a little-endian machine.
fn is_from_gdb(text: &str) -> bool {
    text.lines().any(|line| {
        let address = line.trim_start().split([':', ' ']).next().unwrap_or_default();
        let is_address = address
            .strip_prefix("0x")
            .is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        is_address && (line.contains(":\t") || line.contains(": "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
