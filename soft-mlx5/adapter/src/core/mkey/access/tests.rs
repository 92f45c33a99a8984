use super::*;
use crate::memory::recorder::Recorder;
use crate::prng::RandomSource;

const BASE: u64 = 0x7000_0000;
const ACCESSOR: Accessor = Accessor { pd: Pdn(1), qpn: 1, reserved_lkey: false };

/// A region of bytes 4..60 with remote access, a window of its bytes 9..30, and their memory.
fn keys() -> (Mkeys, [Mkey; 2], Recorder) {
    keys_of(false)
}

fn keys_of(on_demand: bool) -> (Mkeys, [Mkey; 2], Recorder) {
    let all = Access::all();
    let mut keys = Mkeys::new(16, RandomSource::new(Some(1)));
    let memory = PageMap::linear(BASE + 4);
    let region = MkeyParams::region(Pdn(1), BASE + 4, 56, all, memory);
    let region = keys.create(MkeyParams { on_demand, ..region }).unwrap();
    let entry = KlmEntry { len: 21, mkey: region, address: BASE + 9 };
    let window = MkeyParams {
        translation: Translation::Klm(vec![entry]),
        ..MkeyParams::region(Pdn(1), BASE + 9, 21, all, PageMap::linear(0))
    };
    let window = keys.create(window).unwrap();
    (keys, [region, window], Recorder::new(BASE, 64))
}

#[test]
fn remote_accesses_use_whole_words_inside_the_region() {
    for on_demand in [false, true] {
        accesses_whole_words(keys_of(on_demand));
    }
}

fn accesses_whole_words((keys, [region, window], memory): (Mkeys, [Mkey; 2], Recorder)) {
    for key in [region, window] {
        keys.write(&memory, ACCESSOR, key, BASE + 11, &[1; 15], Access::REMOTE_WRITE).unwrap();
        let mut back = [0; 15];
        keys.read(&memory, ACCESSOR, key, BASE + 11, &mut back, Access::REMOTE_READ).unwrap();
        assert_eq!(back, [1; 15]);
        let accesses = memory.take();
        assert!(accesses.iter().all(|(at, size, _)| (at % 8, *size) == (0, 8)), "{accesses:?}");
    }
    // The region holds only half of the first and of the last word.
    keys.write(&memory, ACCESSOR, region, BASE + 4, &[2; 56], Access::REMOTE_WRITE).unwrap();
    let bytes = memory.take().into_iter().filter(|(_, size, _)| *size == 1);
    let bytes: Vec<u64> = bytes.map(|(at, ..)| at - BASE).collect();
    assert_eq!(bytes, [4, 5, 6, 7, 56, 57, 58, 59]);
}

#[test]
fn local_accesses_stay_inside_their_buffer() {
    for on_demand in [false, true] {
        let (keys, [region, _], memory) = keys_of(on_demand);
        keys.write(&memory, ACCESSOR, region, BASE + 11, &[1; 15], Access::LOCAL_WRITE).unwrap();
        let accesses = memory.take();
        let inside = |&(at, size, _): &(u64, u64, bool)| at >= BASE + 11 && at + size <= BASE + 26;
        assert!(accesses.iter().all(inside), "{accesses:?}");
    }
}

#[test]
fn operands_report_whether_their_word_is_inside_the_region() {
    let (keys, [region, window], memory) = keys();
    let operand = |key, at, size| {
        let found = keys.word(&memory, ACCESSOR, key, BASE + at, size, Access::REMOTE_ATOMIC);
        found.unwrap().unwrap().in_word
    };
    assert!(!operand(region, 4, 4) && !operand(region, 56, 4));
    assert!(operand(region, 8, 4) && operand(region, 12, 4) && operand(region, 8, 8));
    assert!(operand(window, 12, 4), "the window's edges are not the region's");
}
