use super::*;

const BASE: u64 = 0x7000_0000;

#[test]
fn buffer_copies_every_alignment_and_length() {
    let memory = BufferMemory::new(BASE, 128);
    for start in 0..9u64 {
        for len in 0..40usize {
            let data: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(7) ^ start as u8).collect();
            memory.write(BASE + start, &[0xee; 64]).unwrap();
            memory.write(BASE + start, &data).unwrap();
            let mut back = vec![0; len + 1];
            memory.read(BASE + start, &mut back).unwrap();
            assert_eq!(&back[..len], data);
            assert_eq!(back[len], 0xee, "wrote behind the end");
        }
    }
}

#[test]
fn accesses_outside_a_buffer_are_refused() {
    let memory = BufferMemory::new(BASE, 64);
    assert!(memory.read(BASE + 63, &mut [0; 2]).is_err());
    assert!(memory.read(BASE - 1, &mut [0; 1]).is_err());
    assert!(memory.read(u64::MAX, &mut [0; 2]).is_err());
    assert!(memory.load_acquire_u32(BASE + 2).is_err(), "unaligned");
    assert!(memory.store_release_u64(BASE + 4, 0).is_err(), "unaligned");
    assert!(memory.update_u64(BASE + 64, &mut |v| v).is_err());
    assert!(memory.update_u32(BASE + 64, &mut |v| v).is_err());
}

#[test]
fn words_are_changed_atomically() {
    let memory = BufferMemory::new(BASE, 16);
    memory.store_release_u64(BASE + 8, 41).unwrap();
    assert_eq!(memory.update_u64(BASE + 8, &mut |v| v + 1), Ok(41));
    assert_eq!(memory.update_u64(BASE + 8, &mut |_| 7), Ok(42));
    assert_eq!(memory.update_u32(BASE, &mut |v| v | 5), Ok(0));
    assert_eq!(memory.load_acquire_u32(BASE), Ok(5));
}
