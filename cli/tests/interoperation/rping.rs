//! The protocol of `rping`. The client advertises memory, and the server READs it and confirms.
//! Then the client advertises other memory, and the server WRITEs there the bytes that it has read
//! and confirms.

use uverbs::qp::PostFlags;
use uverbs::{AccessFlags, Buffer, MemoryRegion, Remote, op};

use crate::connected::{BYTES, Talk};
use crate::message;

/// The number of rounds, as an argument of the program.
pub(crate) const COUNT: &str = "20";
/// Bytes that the client advertises by default.
const SIZE: usize = 64;

fn rounds() -> u64 {
    COUNT.parse().expect("a number")
}

/// A message: address, key and length, big-endian.
fn advertise(region: &MemoryRegion) -> [u8; BYTES as usize] {
    let Remote { address, rkey } = region.remote(0).expect("inside");
    let mut bytes = [0; BYTES as usize];
    bytes[..8].copy_from_slice(&address.to_be_bytes());
    bytes[8..12].copy_from_slice(&rkey.to_be_bytes());
    bytes[12..].copy_from_slice(&(SIZE as u32).to_be_bytes());
    bytes
}

fn advertised(bytes: [u8; BYTES as usize]) -> Remote {
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(word(12), SIZE as u32);
    Remote::new(u64::from(word(0)) << 32 | u64::from(word(4)), word(8))
}

/// The library as the client.
pub(crate) fn ask(talk: &mut Talk) {
    let memory = |rights| {
        let buffer = Buffer::new(SIZE).expect("memory");
        talk.ends.resources.pd.register(buffer, rights).expect("registered")
    };
    let source = memory(AccessFlags::REMOTE_READ);
    let sink = memory(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
    for round in 0..rounds() {
        source.view().write(0, &text(round)).expect("inside");
        talk.send(&advertise(&source));
        talk.receive();
        talk.send(&advertise(&sink));
        talk.receive();
        let mut back = vec![0; SIZE];
        sink.view().read(0, &mut back).expect("inside");
        assert_eq!(back, text(round), "round {round}");
    }
}

/// The client's bytes of a round, with a zero only at the end: the server treats them as a C
/// string, and sends back no byte after the first zero.
fn text(round: u64) -> Vec<u8> {
    let letters = message(SIZE - 1, round).into_iter().map(|byte| byte | 1);
    letters.chain([0]).collect()
}

/// The library as the server. The program compares the bytes that come back with its own.
pub(crate) fn serve(talk: &mut Talk) {
    let slab = talk.ends.resources.pd.create_slab(1, SIZE as u32).expect("memory");
    for _ in 0..rounds() {
        let source = advertised(talk.receive());
        let mut slot = slab.take().expect("a slot");
        slot.set_len(SIZE);
        talk.ends.qp.post_send(op::Read(source), slot, PostFlags::SIGNALED).expect("posted");
        let slot = talk.finished();
        talk.send(&[0; BYTES as usize]);
        let sink = advertised(talk.receive());
        talk.ends.qp.post_send(op::Write(sink), slot, PostFlags::SIGNALED).expect("posted");
        talk.finished();
        talk.send(&[0; BYTES as usize]);
    }
}
