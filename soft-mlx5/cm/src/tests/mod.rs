//! Recorded datagrams, for all tests of connection management.

pub(crate) use self::hex::bytes;
use super::mad::{MAD_LEN, Mad};

pub(crate) mod hex;

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
