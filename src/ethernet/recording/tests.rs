use super::*;
use crate::error::{ErrorKind, Result};

fn read(file: &[u8]) -> Result<Vec<Recorded>> {
    Recording::new(file)?.collect()
}

#[track_caller]
fn refused(file: &[u8], words: &str) {
    let error = read(file).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains(words), "{error} says nothing of {words:?}");
}

fn words(words: &[u32], big: bool) -> Vec<u8> {
    words
        .iter()
        .flat_map(|word| if big { word.to_be_bytes() } else { word.to_le_bytes() })
        .collect()
}

/// A pcap file with one frame of ten bytes.
fn pcap(magic: u32, big: bool, fraction: u32) -> Vec<u8> {
    let version = if big { 2 << 16 | 4 } else { 4 << 16 | 2 };
    let header = words(&[magic, version, 0, 0, 65_535, 1], big);
    [&header[..], &words(&[100, fraction, 10, 60], big), &[9; 10]].concat()
}

fn pcapng(big: bool, resolution: u8, [high, low]: [u32; 2]) -> Vec<u8> {
    let half = |a: u32, b: u32| if big { a << 16 | b } else { b << 16 | a };
    let resolution = if big {
        u32::from_be_bytes([resolution, 0, 0, 0])
    } else {
        u32::from_le_bytes([resolution, 0, 0, 0])
    };
    let section = [SECTION_HEADER, 28, BYTE_ORDER, half(1, 0), u32::MAX, u32::MAX, 28];
    let interface = [INTERFACE, 32, half(1, 0), 0, half(9, 1), resolution, 0, 32];
    let unknown = [0x0bad, 16, 0, 16];
    let frame = [ENHANCED_PACKET, 36, 0, high, low, 4, 60, 0x0909_0909, 36];
    let simple = [SIMPLE_PACKET, 20, 3, 0x0909_0909, 20];
    words(&[&section[..], &interface, &unknown, &frame, &simple].concat(), big)
}

#[test]
fn what_is_written_is_read() {
    let mut file = Vec::new();
    let mut recorder = Recorder::new(&mut file, "mlx5_0").expect("a file");
    for length in 0..70usize {
        recorder.write(length as u64 * 7_000_000_003, &vec![length as u8; length]).expect("space");
    }
    let snapped = Snapped { start: &[1; 5], length: 1500 };
    recorder.write_start(u64::MAX, snapped).expect("space");
    recorder.statistics(1, 71, 3).expect("space");
    let bytes = recorder.bytes();
    assert_eq!(bytes, file.len() as u64);
    let frames = read(&file).expect("a recording");
    for (length, frame) in frames.iter().take(70).enumerate() {
        assert_eq!(frame.bytes, vec![length as u8; length]);
        assert!(frame.is_whole() && frame.time == length as u64 * 7_000_000_003);
    }
    let last = Recorded { time: u64::MAX, length: 1500, bytes: vec![1; 5] };
    assert_eq!(frames[70..], [last]);
}

#[test]
fn pcap_of_both_orders_and_resolutions_is_read() {
    for big in [false, true] {
        for (magic, nanoseconds) in [(0xa1b2_c3d4, 5000), (0xa1b2_3c4d, 5)] {
            let frames = read(&pcap(magic, big, 5)).expect("a recording");
            let time = 100_000_000_000 + nanoseconds;
            assert_eq!(frames, [Recorded { time, length: 60, bytes: vec![9; 10] }]);
        }
    }
}

#[test]
fn check_sequences_of_a_recording_are_no_part_of_frames() {
    let mut file = pcap(0xa1b2_3c4d, false, 0);
    // Two units of two bytes after each frame.
    file[20..24].copy_from_slice(&(1u32 | 1 << 26 | 2 << 28).to_le_bytes());
    file[36..40].copy_from_slice(&10u32.to_le_bytes());
    let frames = read(&file).expect("a recording");
    assert_eq!(frames, [Recorded { time: 100_000_000_000, length: 6, bytes: vec![9; 6] }]);
}

#[test]
fn pcapng_of_both_orders_and_resolutions_is_read() {
    for big in [false, true] {
        for (resolution, time, expected) in [
            (9, [1, 5], (1 << 32) + 5),
            (6, [0, 7], 7000),
            (12, [0, 7000], 7),
            (0x80 | 30, [0, 1 << 29], 500_000_000),
            (0, [0, 3], 3_000_000_000),
        ] {
            let frames = read(&pcapng(big, resolution, time)).expect("a recording");
            let frame = Recorded { time: expected, length: 60, bytes: vec![9; 4] };
            let simple = Recorded { time: expected, length: 3, bytes: vec![9; 3] };
            assert_eq!(frames, [frame, simple], "{resolution}");
        }
    }
}

#[test]
fn a_file_that_is_not_a_capture_is_refused_with_the_cause() {
    refused(b"", "empty");
    refused(b"ab", "first word");
    refused(b"GIF89a, not frames", "neither a pcap nor a pcapng");
    refused(&words(&[0xa1b2_cd34], false), "modified");
    let good = pcap(0xa1b2_c3d4, false, 0);
    let with = |at: usize, word: u32| {
        let mut file = good.clone();
        file[at..at + 4].copy_from_slice(&word.to_le_bytes());
        file
    };
    refused(&with(4, 9), "version 9");
    refused(&with(20, 113), "link type 113");
    refused(&with(32, u32::MAX), "damaged");
    refused(&with(32, 11), "ends within a frame");
    let good = pcapng(false, 9, [0, 0]);
    let with = |at: usize, word: u32| {
        let mut file = good.clone();
        file[at..at + 4].copy_from_slice(&word.to_le_bytes());
        file
    };
    refused(&with(4, 8), "damaged");
    refused(&with(4, u32::MAX - 3), "damaged");
    refused(&with(8, 1), "byte-order magic");
    refused(&with(12, 2), "version 2");
    refused(&with(24, 32), "says 32 at its end");
    refused(&with(36, 12), "link type 12");
    refused(&with(48, 200), "resolution 0xc8");
    refused(&with(84, 7), "interface 7");
    refused(&with(96, 400), "shorter block");
    refused(&with(96, u32::MAX), "damaged");
    // An unknown block with a length beyond the file takes no memory.
    refused(&with(64, 0xffff_fff0), "ends within a block");
}

#[test]
fn every_truncation_is_refused_or_a_shorter_recording() {
    for file in [pcap(0xa1b2_3c4d, true, 1), pcapng(true, 9, [0, 1])] {
        let whole = read(&file).expect("a recording");
        for length in 0..file.len() {
            match read(&file[..length]) {
                Ok(frames) => assert!(whole.starts_with(&frames) && frames.len() < whole.len()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}"),
            }
        }
    }
}

#[test]
fn damaged_files_do_no_harm() {
    let seed = 20_260_807u64;
    let mut random = seed;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize
    };
    for round in 0..5000 {
        let mut file =
            if round % 2 == 0 { pcap(0xa1b2_3c4d, false, 1) } else { pcapng(false, 9, [0, 1]) };
        for _ in 0..1 + next() % 4 {
            let at = next() % file.len();
            file[at] = next() as u8;
        }
        // No panic, no endless loop, no memory beyond the file's.
        let frames = Recording::new(&file[..]).map_or(0, Iterator::count);
        assert!(frames <= file.len(), "seed {seed}, round {round}");
    }
}
