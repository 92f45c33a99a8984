//! Recorded bytes as text.

/// Bytes of a hexadecimal text in which `[n]` means n zero bytes. Spaces and bars are ignored.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, part) in text.split(['[', ']']).enumerate() {
        if index % 2 == 1 {
            out.resize(out.len() + part.parse::<usize>().unwrap(), 0);
            continue;
        }
        let digits: String = part.chars().filter(char::is_ascii_hexdigit).collect();
        let pairs = (0..digits.len()).step_by(2);
        out.extend(pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()));
    }
    out
}
