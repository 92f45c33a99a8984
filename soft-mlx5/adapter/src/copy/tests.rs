use super::*;

/// Space for the longest copy at any alignment, itself aligned.
#[repr(align(64))]
struct Shared([u8; 512]);

/// Copies `len` bytes out, in and to a vector's end, between these offsets.
fn check(len: usize, shared_at: usize, own_at: usize) {
    let data: Vec<u8> = (0..own_at + len).map(|at| (at * 7 + len) as u8).collect();
    let mut shared = Shared([0xee; 512]);
    let there = shared.0.as_mut_ptr().wrapping_add(shared_at);
    // SAFETY: at most 32 + 400 bytes of an array of 512, which only this pointer accesses.
    unsafe { copy_out(&data[own_at..], there) };
    let mut back = vec![0xdd; own_at + len + 1];
    // SAFETY: as above.
    unsafe { copy_in(there, &mut back[own_at..own_at + len]) };
    assert_eq!(back[own_at..own_at + len], data[own_at..], "{len} {shared_at} {own_at}");
    assert!(back[..own_at].iter().all(|byte| *byte == 0xdd) && back[own_at + len] == 0xdd);
    let mut more = data[..own_at].to_vec();
    // SAFETY: as above.
    unsafe { append(there, len, &mut more) };
    assert_eq!(more, data);
    let (before, after) = (&shared.0[..shared_at], &shared.0[shared_at + len..]);
    assert!(before.iter().chain(after).all(|byte| *byte == 0xee), "{len} {shared_at} {own_at}");
}

#[test]
fn copies_of_every_length_and_alignment_change_no_other_byte() {
    for len in (0..200).chain([255, 256, 257, 319, 384, 400]) {
        for shared_at in 0..20 {
            check(len, shared_at, 0);
            check(len, 16 + len % 17, shared_at);
        }
    }
}
