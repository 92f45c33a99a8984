use super::*;
use crate::memory::recorder::Recorder;

#[test]
fn plain_operations() {
    assert_eq!(AtomicRequest::fetch_add(3).apply(u64::MAX), 2);
    assert_eq!(AtomicRequest::compare_swap(5, 9).apply(5), 9);
    assert_eq!(AtomicRequest::compare_swap(5, 9).apply(6), 6);
    assert!(AtomicRequest::fetch_add(3).is_plain());
}

#[test]
fn masks_limit_what_is_compared_and_swapped() {
    let masked = AtomicRequest {
        compare_mask: 0xff,
        swap_mask: 0xff00,
        ..AtomicRequest::compare_swap(0x12, 0xabcd)
    };
    assert!(!masked.is_plain());
    assert_eq!(masked.apply(0x7712), 0xab12);
    assert_eq!(masked.apply(0x7713), 0x7713);
}

#[test]
fn four_byte_atomics_change_the_word_that_contains_them() {
    let memory = Recorder::new(0x7000_0000, 16);
    memory.memory.write(0x7000_0000, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]).unwrap();
    let add = AtomicRequest { size: 4, ..AtomicRequest::fetch_add(u32::from_le(0x10).into()) };
    for (at, in_word, size) in [(0, true, 8), (4, true, 8), (8, false, 4), (12, true, 8)] {
        let address = 0x7000_0000 + at;
        let before = add.execute(&memory, Operand { address, in_word }).unwrap();
        assert_eq!(u32::from_le(before as u32), at as u32 / 4 + 1);
        assert!(memory.take().iter().all(|access| access.1 == size), "{at}");
    }
    let mut after = [0; 16];
    memory.memory.read(0x7000_0000, &mut after).unwrap();
    assert_eq!(after, [0x11, 0, 0, 0, 0x12, 0, 0, 0, 0x13, 0, 0, 0, 0x14, 0, 0, 0]);
}

#[test]
fn carries_stop_at_boundaries() {
    let fields = AtomicRequest { boundary: 0x80_80, ..AtomicRequest::fetch_add(0x01_01) };
    assert_eq!(fields.apply(0x00_ff), 0x01_00);
    assert_eq!(fields.apply(0xff_7f), 0x00_80);
    let words = AtomicRequest { boundary: 1 << 31, ..AtomicRequest::fetch_add(1) };
    assert_eq!(words.apply(0xffff_ffff), 0);
    assert_eq!(AtomicRequest::fetch_add(1).apply(0xffff_ffff), 1 << 32);
}

#[test]
fn a_duplicate_is_answered_as_the_newest_atomic_with_its_psn() {
    let (psn, other) = (Psn::new(0xff_ffff), Psn::new(3));
    let mut executed = ExecutedAtomics::default();
    executed.add(psn, 1, 3);
    executed.add(other, 2, 3);
    assert_eq!([psn, other].map(|psn| executed.original(psn)), [Some(1), Some(2)]);
    // The PSNs wrapped around meanwhile.
    executed.add(psn, 7, 3);
    assert_eq!(executed.original(psn), Some(7));
    [4, 5, 6].into_iter().for_each(|psn| executed.add(Psn::new(psn), 0, 3));
    assert_eq!([psn, other].map(|psn| executed.original(psn)), [None, None], "only three are kept");
}
