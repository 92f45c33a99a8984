use super::*;
use crate::memory::HostMemory;
use crate::memory::recorder::Recorder;

const BASE: u64 = 0x7000_0000;

/// Copies at every position of a region, and checks the bytes and the access sizes.
#[test]
fn words_inside_the_region_are_accessed_whole() {
    let memory = Recorder::new(BASE, 64);
    for (start, end) in [(0, 64), (3, 61), (5, 12), (9, 15), (16, 40)] {
        for first in start..end {
            for last in first..=end {
                check_words(&memory, (start, end), (first, last));
            }
        }
    }
}

fn check_words(memory: &Recorder, (start, end): (u64, u64), (first, last): (u64, u64)) {
    let margins = Margins { before: first - start, after: end - last };
    let before: Vec<u8> = (0..64).map(|i| 0x80 | i).collect();
    memory.memory.write(BASE, &before).unwrap();
    let data: Vec<u8> = (first..last).map(|i| i as u8).collect();
    memory.write_words(BASE + first, &data, margins).unwrap();
    let mut back = vec![0xff; data.len()];
    memory.read_words(BASE + first, &mut back, margins).unwrap();
    assert_eq!(back, data);
    let mut after = [0; 64];
    memory.memory.read(BASE, &mut after).unwrap();
    let (low, high) = (first as usize, last as usize);
    assert_eq!((&after[..low], &after[high..]), (&before[..low], &before[high..]));
    for (at, size, _) in memory.take() {
        let word = (at - BASE) & !7;
        let whole = word >= start && word + 8 <= end;
        assert_eq!(size, if whole { 8 } else { 1 }, "{at:#x} of {first}..{last}");
        assert!(at - BASE >= start && at - BASE + size <= end, "outside of the region");
    }
}
