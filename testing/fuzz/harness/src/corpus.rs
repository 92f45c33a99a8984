//! Committed inputs: one line of hex digits each, in `corpus/TARGET.hex` and
//! `regressions/TARGET.hex`.
//!
//! A line that starts with `#` is the name of the input below it. Fuzzers expect a file per input;
//! the binary `corpus` of this package writes and reads such a directory.

use std::io;
use std::path::{Path, PathBuf};

/// An input and its name: the comment above its line, else its line's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// For messages and file names.
    pub name: String,
    /// The input itself.
    pub bytes: Vec<u8>,
}

/// The files of committed inputs of `target`: a sample of its corpus, and an input for each defect
/// found.
pub fn files(target: &str) -> [PathBuf; 2] {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    ["corpus", "regressions"].map(|kind| fuzz.join(kind).join(format!("{target}.hex")))
}

/// Reads the inputs of a file. A missing file counts as empty.
///
/// # Errors
/// The file cannot be read, or a line is not made of pairs of hex digits.
pub fn read(path: &Path) -> io::Result<Vec<Input>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    parse(&text).map_err(|line| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}:{line}: no hex", path.display()))
    })
}

fn parse(text: &str) -> Result<Vec<Input>, usize> {
    let (mut inputs, mut name) = (Vec::new(), None);
    for (index, line) in text.lines().enumerate() {
        match line.strip_prefix('#') {
            Some(comment) => name = Some(comment.trim().to_owned()),
            None => inputs.push(Input {
                name: name.take().unwrap_or_else(|| format!("line-{}", index + 1)),
                bytes: bytes(line).ok_or(index + 1)?,
            }),
        }
    }
    Ok(inputs)
}

fn bytes(line: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let whole = line.len() % 2 == 0 && line.bytes().all(|digit| digit.is_ascii_hexdigit());
    whole.then(|| line.as_bytes().chunks(2).map(pair).collect())?
}

/// Inputs as lines, sorted by length and without duplicates, so that a new corpus differs little.
pub fn text(inputs: impl IntoIterator<Item = Vec<u8>>) -> String {
    let mut lines: Vec<String> = inputs.into_iter().map(|bytes| line(&bytes)).collect();
    lines.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    lines.dedup();
    lines.concat()
}

fn line(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_reads_back_sorted_and_without_repetition() {
        let text = text([vec![2, 0xff], vec![], vec![1], vec![2, 0xff]]);
        assert_eq!(text, "\n01\n02ff\n");
        let inputs: Vec<_> = parse(&text).unwrap().into_iter().map(|input| input.bytes).collect();
        assert_eq!(inputs, [vec![], vec![1], vec![2, 0xff]]);
    }

    #[test]
    fn comments_name_the_input_below_and_bad_digits_their_line() {
        let inputs = parse("# a finding\n0a\n0b\n").unwrap();
        assert_eq!(inputs[0].name, "a finding");
        assert_eq!(inputs[1].name, "line-3");
        assert_eq!(parse("00\n0\n"), Err(2));
        assert_eq!(parse("zz"), Err(1));
    }
}
