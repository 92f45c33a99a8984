//! The recorded calls of unmodified programs get the responses of the recorded kernel.

use std::collections::HashMap;

use uverbs_uapi::cm::{Cmd, CmdHdr};
use zerocopy::IntoBytes;

use super::{Client, host};

#[path = "../../../../cm/src/tests/hex.rs"]
mod hex;

/// Replaces 10.9.0.1 of the recording. With this third byte, the MAC's raw traffic bit is as in the
/// recording.
const ADDRESS: [u8; 4] = [127, 19, 0, 1];

/// Bytes of the recorded device, and the bytes of the test's device that replace them.
const SUBSTITUTES: [(&[u8], &[u8]); 4] = [
    // Address.
    (&[10, 9, 0, 1], &ADDRESS),
    // GUID.
    (&[0x00, 0x02, 0xc9, 0x03, 0x00, 0xab, 0xcd, 0x00], &[0, 0, 127, 0xff, 0xfe, 19, 0, 1]),
    // Interface identifier of the link-local address.
    (&[0x00, 0xc9, 0x03, 0xff, 0xfe, 0xab, 0xcd, 0x01], &[0, 0, 127, 0xff, 0xfe, 19, 0, 1]),
    // A flag and the first bytes of the MAC address, in path records.
    (&[0x01, 0x02, 0xc9, 0x03], &[0x01, 0x02, 0x00, 127]),
];

/// The offset of the response's address in each body.
fn response_at(command: Cmd) -> Option<usize> {
    match command {
        Cmd::CREATE_ID => Some(8),
        Cmd::DESTROY_ID
        | Cmd::INIT_QP_ATTR
        | Cmd::GET_EVENT
        | Cmd::LEAVE_MCAST
        | Cmd::MIGRATE_ID
        | Cmd::QUERY
        | Cmd::JOIN_MCAST => Some(0),
        _ => None,
    }
}

/// A recorded call.
struct Recorded<'a> {
    program: &'a str,
    descriptor: u32,
    command: Cmd,
    out: u16,
    body: Vec<u8>,
    answer: Vec<u8>,
}

impl<'a> Recorded<'a> {
    fn parse(words: &[&'a str]) -> Self {
        Self {
            program: words[0],
            descriptor: words[1].parse().unwrap(),
            command: Cmd(words[2].parse().unwrap()),
            out: words[3].parse().unwrap(),
            body: bytes(words[4]),
            answer: bytes(words[5]),
        }
    }

    /// Random bytes of the response: ephemeral ports, packet sequence numbers, and the flow labels
    /// that depend on ports.
    fn random(&self) -> Vec<usize> {
        let ephemeral = |at: usize| self.answer[at] >= 0x80;
        let option = self.body.get(12).copied().unwrap_or_default();
        match (self.command, option) {
            (Cmd::QUERY, 1) => vec![60, 61, 62],
            (Cmd::QUERY, _) => {
                // Ports of both addresses, of IP and of InfiniBand.
                let ports = [18, 146, 46, 174].into_iter().filter(|at| ephemeral(*at));
                ports.flat_map(|at| [at, at + 1]).collect()
            }
            (Cmd::INIT_QP_ATTR, _) => (24..32).chain(56..60).collect(),
            (Cmd::GET_EVENT, _) => (44..48).collect(),
            _ => Vec::new(),
        }
        .into_iter()
        .filter(|at| *at < self.answer.len())
        .collect()
    }
}

/// Bytes of a text in which `[n]` means n zero bytes, with the test device's addresses.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = match text {
        "-" => Vec::new(),
        text => hex::bytes(text),
    };
    for (theirs, ours) in SUBSTITUTES {
        let found: Vec<usize> = (0..(bytes.len() + 1).saturating_sub(theirs.len()))
            .filter(|at| &bytes[*at..at + theirs.len()] == theirs)
            .collect();
        found.into_iter().for_each(|at| bytes[at..at + ours.len()].copy_from_slice(ours));
    }
    bytes
}

/// The programs' open files, by program and recorded descriptor.
type Files<'a> = HashMap<(&'a str, u32), Client>;

fn run(files: &Files<'_>, recorded: &Recorded<'_>, line: usize) {
    let mut answer = vec![0; usize::from(recorded.out).max(1)];
    let mut body = recorded.body.clone();
    if let Some(at) = response_at(recorded.command) {
        let address = answer.as_mut_ptr() as u64;
        body[at..at + 8].copy_from_slice(&address.to_ne_bytes());
    }
    if recorded.command == Cmd::MIGRATE_ID {
        // The descriptor of the id's old channel.
        let theirs = u32::from_ne_bytes(body[12..16].try_into().unwrap());
        let ours = files[&(recorded.program, theirs)].descriptor();
        body[12..16].copy_from_slice(&ours.to_ne_bytes());
    }
    let header = CmdHdr { cmd: recorded.command, input: body.len() as u16, output: recorded.out };
    let message = [header.as_bytes(), &body].concat();
    let what = format!("line {line}: {} {}", recorded.program, recorded.command);
    let file = &files[&(recorded.program, recorded.descriptor)];
    assert_eq!(file.write(&message), Ok(message.len()), "{what}");
    let mut expected = recorded.answer.clone();
    let mut given = answer[..expected.len().min(answer.len())].to_vec();
    for at in recorded.random() {
        (expected[at], given[at]) = (0, 0);
    }
    let difference = expected.iter().zip(&given).position(|(one, other)| one != other);
    assert_eq!(difference, None, "{what}: at this byte\n{expected:02x?}\n{given:02x?}");
}

#[test]
fn recorded_programs_get_the_kernels_answers() {
    let (host, _device) = host(ADDRESS);
    let mut files = Files::new();
    let lines = include_str!("recorded.txt").lines().enumerate();
    for (line, text) in lines.filter(|(_, text)| !text.starts_with('#')) {
        let words: Vec<&str> = text.split(' ').collect();
        if words[2] == "open" {
            files.insert((words[0], words[1].parse().unwrap()), Client::open(&host));
        } else {
            run(&files, &Recorded::parse(&words), line + 1);
        }
    }
    assert_eq!(files.len(), 12);
}
