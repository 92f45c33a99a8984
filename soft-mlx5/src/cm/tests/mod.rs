//! What tests of connection management share: recorded datagrams.

use super::mad::{MAD_LEN, Mad};

/// A datagram recorded between two kernels: the last byte of its sender's address, and its bytes.
pub(super) struct Recorded {
    pub(super) sender: u8,
    pub(super) bytes: Vec<u8>,
}

impl Recorded {
    pub(super) fn mad(&self) -> &Mad {
        Mad::parse(&self.bytes).expect("a kernel sent it")
    }
}

/// The datagrams of `two_kernels.txt`.
pub(super) fn two_kernels() -> Vec<Recorded> {
    let lines = include_str!("two_kernels.txt").lines().filter(|line| !line.starts_with('#'));
    let recorded = lines.map(|line| {
        let (sender, text) = line.split_once(' ').unwrap();
        Recorded { sender: sender.parse().unwrap(), bytes: bytes(text) }
    });
    recorded.inspect(|recorded| assert_eq!(recorded.bytes.len(), MAD_LEN)).collect()
}

/// Bytes of a hexadecimal text in which `[n]` stands for n bytes of zero. Spaces and bars count for
/// nothing.
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
