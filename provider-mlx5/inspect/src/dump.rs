//! Reads dumps of memory: plain hex, `xxd`, `hexdump`, `od`, `gdb`'s `x` command, driver logs.

/// Why a text cannot be read as a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// There are no hex digits.
    #[error("there are no hex digits")]
    Empty,
    /// A word consists of hex digits, but of an odd number of them.
    #[error("line {line}: not whole bytes, but an odd number of hex digits in a row ({digits})")]
    OddDigits {
        /// Number of the line, from 1.
        line: usize,
        /// How many digits.
        digits: usize,
    },
    /// A word is not hex.
    #[error("line {line}: not hex bytes")]
    NotHex {
        /// Number of the line, from 1.
        line: usize,
    },
}

/// Reads the bytes of a dump.
///
/// A line may contain hex digits with or without spaces, `0x` before a word, and `:` or `,` between
/// bytes. In front there may be an address with a colon (`xxd`, `gdb`, kernel logs, also with time
/// stamps), eight digits and two spaces (`hexdump -C`), or six or seven digits without a colon (`od
/// -t x1`, `hexdump`). A text column after two spaces or a bar is ignored, and so are the lines of
/// C that `xxd -i` prints.
///
/// Words without `0x` are bytes in order of address, except for the 16-bit words of `hexdump`
/// without options, which are little-endian. `gdb`'s `x/16xw` prints words in the machine's byte
/// order: with `words_are_little_endian`, the bytes of words after `0x` are reversed.
///
/// # Errors
/// See [`DumpError`].
pub fn parse_dump(text: &str, words_are_little_endian: bool) -> Result<Vec<u8>, DumpError> {
    let mut bytes = Vec::new();
    let mut lines = DumpLines::default();
    for line in text.lines() {
        bytes.extend(lines.line(line, words_are_little_endian)?);
    }
    if bytes.is_empty() { Err(DumpError::Empty) } else { Ok(bytes) }
}

/// Reads a dump line by line, with memory for one line only. [`parse_dump`] lists the formats.
#[derive(Clone, Debug, Default)]
pub struct DumpLines {
    /// Lines read so far.
    lines: usize,
    /// Digits of the offset in the previous line, if it had one of `od` or `hexdump`; else 0.
    offset_digits: usize,
}

impl DumpLines {
    /// The bytes of the next line.
    ///
    /// # Errors
    /// [`DumpError::OddDigits`] and [`DumpError::NotHex`].
    pub fn line(
        &mut self,
        text: &str,
        words_are_little_endian: bool,
    ) -> Result<Vec<u8>, DumpError> {
        self.lines += 1;
        let line = without_time(text.trim());
        let parsed = match offset_line(line, self.offset_digits) {
            Some(rest) => {
                self.offset_digits = line.len() - line.trim_start_matches(is_hex).len();
                parse_words(rest)
            }
            None => parse_line(line, words_are_little_endian),
        };
        parsed.ok_or_else(|| dump_error(line, self.lines))
    }

    /// The bytes of further words of the last line, for lines that are too long to be read at once.
    /// They have no address before them and no text column after them.
    ///
    /// # Errors
    /// As for [`DumpLines::line`].
    pub fn more_of_line(
        &mut self,
        text: &str,
        words_are_little_endian: bool,
    ) -> Result<Vec<u8>, DumpError> {
        let line = text.trim();
        let mut bytes = Vec::new();
        for word in split_words(line) {
            let word = parse_word(word, words_are_little_endian);
            bytes.extend(word.ok_or_else(|| dump_error(line, self.lines.max(1)))?);
        }
        Ok(bytes)
    }
}

fn is_hex(character: char) -> bool {
    character.is_ascii_hexdigit()
}

/// Removes the time stamp (`[12.345678]`) at the start of a line of a kernel log.
fn without_time(line: &str) -> &str {
    let time = line.strip_prefix('[').and_then(|line| line.split_once(']'));
    time.map_or(line, |(_, rest)| rest.trim_start())
}

/// The rest of an `od` or `hexdump` line after its offset, which has seven digits, or six before
/// single bytes. The last line is only an offset, with as many digits as those of the previous
/// lines.
fn offset_line(line: &str, digits_before: usize) -> Option<&str> {
    let (offset, rest) = line.split_once(' ').unwrap_or((line, ""));
    let is_offset = offset.chars().all(is_hex);
    let rest = rest.split_once("  >").map_or(rest, |(bytes, _)| bytes).trim();
    let first = rest.split(' ').next().unwrap_or_default();
    let fits = match offset.len() {
        6 => first.len() == 2 || rest.is_empty() && digits_before == 6,
        7 => true,
        _ => false,
    };
    (is_offset && fits).then_some(rest)
}

/// The bytes of words that are all single bytes, or all little-endian 16-bit words.
fn parse_words(words: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for word in words.split_ascii_whitespace() {
        bytes.extend(parse_hex(word)?.into_iter().rev());
    }
    Some(bytes)
}

fn parse_line(line: &str, reversed: bool) -> Option<Vec<u8>> {
    let is_c = line.starts_with("unsigned ") || line.starts_with("};");
    if is_c {
        return Some(Vec::new());
    }
    let mut bytes = Vec::new();
    for word in words(line) {
        bytes.extend(parse_word(word, reversed)?);
    }
    Some(bytes)
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    split_words(byte_column(line))
}

fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_separator)
}

/// Whether the character separates words of a dump.
pub fn is_separator(character: char) -> bool {
    matches!(character, ' ' | '\t' | ',' | ':')
}

fn digits(word: &str) -> Option<&str> {
    word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"))
}

/// The error of a line that cannot be read.
fn dump_error(text: &str, line: usize) -> DumpError {
    let mut lengths = words(text).map(|word| {
        let digits = digits(word).unwrap_or(word);
        digits.chars().all(is_hex).then_some(digits.len())
    });
    match lengths.find(|length| length.is_none_or(|length| length % 2 != 0)) {
        Some(Some(digits)) => DumpError::OddDigits { line, digits },
        _ => DumpError::NotHex { line },
    }
}

fn parse_word(word: &str, reversed: bool) -> Option<Vec<u8>> {
    let digits = digits(word);
    let mut bytes = parse_hex(digits.unwrap_or(word))?;
    if reversed && digits.is_some() {
        bytes.reverse();
    }
    Some(bytes)
}

/// Removes the address in front of the bytes and the text after them.
fn byte_column(line: &str) -> &str {
    if let Some((bytes, _)) = line.split_once('|') {
        // hexdump -C: eight digits and two spaces in front.
        return bytes.split_once("  ").map_or(bytes, |(_, bytes)| bytes).trim_end();
    }
    match without_address(line) {
        // xxd: the text follows two spaces.
        Some(rest) => rest.split_once("  ").map_or(rest, |(bytes, _)| bytes),
        None => line,
    }
}

/// The rest of a line after the prefixes that end in a colon and white space: kernel logs have a
/// name and an address in front of the bytes, `gdb` an address and a symbol.
fn without_address(line: &str) -> Option<&str> {
    let end = [": ", ":\t"].iter().filter_map(|end| line.find(end)).min()?;
    if line[..end].contains("  ") {
        return None;
    }
    let rest = line[end + 1..].trim_start();
    Some(without_address(rest).unwrap_or(rest))
}

/// Reads the bytes of hex digits and nothing else. `None` if there is anything else, or an odd
/// number of them.
pub fn parse_hex(digits: &str) -> Option<Vec<u8>> {
    if digits.len() % 2 != 0 || !digits.chars().all(is_hex) {
        return None;
    }
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{DumpError, DumpLines, parse_dump};

    #[test]
    fn plain_digits_are_read() {
        assert_eq!(parse_dump("0a0B\n 0c:0d", false), Ok(vec![10, 11, 12, 13]));
    }

    #[test]
    fn xxd_lines_are_read() {
        let text = "00000010: 0000 010a 0001 0002  ........\n00000020: ffff ab";
        assert_eq!(parse_dump(text, false), Ok(vec![0, 0, 1, 0x0a, 0, 1, 0, 2, 0xff, 0xff, 0xab]));
    }

    #[test]
    fn the_text_of_a_short_xxd_line_is_ignored() {
        let text = "00000000: 6162 6364                                abcd";
        assert_eq!(parse_dump(text, false), Ok(vec![0x61, 0x62, 0x63, 0x64]));
    }

    #[test]
    fn hexdump_lines_are_read() {
        let text = "00000000  00 01 02 03 04 05 06 07  08 09 0a 0b 0c 0d 0e 0f  |................|";
        assert_eq!(parse_dump(text, false), Ok((0..16).collect()));
    }

    #[test]
    fn kernel_log_lines_are_read() {
        let text = "cqe_dump: 00000030: 00 00 00 00 9d 00 53 04 0a 00 15 42 00 19 b0 d2";
        let bytes = parse_dump(text, false).unwrap();
        assert_eq!((bytes.len(), bytes[7], bytes[15]), (16, 4, 0xd2));
    }

    #[test]
    fn gdb_lines_are_read() {
        let bytes = "0x7ffff000 <ring+16>:\t0x0a\t0x01";
        assert_eq!(parse_dump(bytes, false), Ok(vec![0x0a, 0x01]));
        let words = "0x7ffff000:\t0x0a010000\t0x02000100";
        assert_eq!(parse_dump(words, true), Ok(vec![0, 0, 1, 0x0a, 0, 1, 0, 2]));
    }

    #[test]
    fn other_forms_of_one_dump_give_the_same_bytes() {
        let expected = Ok(vec![0, 0, 0, 0x0a, 0, 1, 0, 2]);
        for text in [
            "0000000 00 00 00 0a 00 01 00 02\n0000010\n",
            "000000 00 00 00 0a 00 01 00 02  >........<\n000008\n",
            "0000000 0000 0a00 0100 0200\n0000008\n",
            "[   12.345678] 00000000: 00 00 00 0a 00 01 00 02\n",
            "unsigned char wqe[] = {\n  0x00, 0x00, 0x00, 0x0a, 0x00, 0x01,\n  0x00, 0x02\n};\nunsigned int wqe_len = 8;\n",
        ] {
            assert_eq!(parse_dump(text, false), expected, "{text}");
        }
        // A single word of six digits is three bytes. It is an offset only if other words follow.
        assert_eq!(parse_dump("00000a", false), Ok(vec![0, 0, 10]));
    }

    #[test]
    fn a_long_line_can_be_read_in_parts() {
        let mut lines = DumpLines::default();
        assert_eq!(lines.line("00 01", false), Ok(vec![0, 1]));
        // At the start of a line this would be an offset of hexdump and two bytes.
        assert_eq!(lines.more_of_line(" 0a0b0c 0d 0e", false), Ok(vec![10, 11, 12, 13, 14]));
        assert_eq!(lines.more_of_line("0x0100,", true), Ok(vec![0, 1]));
        assert_eq!(
            lines.more_of_line("00 000", false),
            Err(DumpError::OddDigits { line: 1, digits: 3 })
        );
    }

    #[test]
    fn texts_that_are_not_dumps_are_refused() {
        assert_eq!(parse_dump("\n", false), Err(DumpError::Empty));
        assert_eq!(parse_dump("00\nxyz", false), Err(DumpError::NotHex { line: 2 }));
        assert_eq!(parse_dump("abc", false), Err(DumpError::OddDigits { line: 1, digits: 3 }));
        assert_eq!(
            parse_dump("00\n0x00 0x1", false),
            Err(DumpError::OddDigits { line: 2, digits: 1 })
        );
        assert_eq!(parse_dump("abcx", false), Err(DumpError::NotHex { line: 1 }));
        assert_eq!(parse_dump("0000000 00\n*\n", false), Err(DumpError::NotHex { line: 2 }));
        assert_eq!(parse_dump("é 0", false), Err(DumpError::NotHex { line: 1 }));
    }
}
