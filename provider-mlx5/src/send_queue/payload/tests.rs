//! Tests of payloads: inline data and lists of SGEs.

use super::*;
use crate::send_queue::wide::narrow;

const LIMITS: Limits = Limits { max_sge: 4, max_inline: 500 };

/// An inline segment, byte by byte.
fn expected(data: &[u8]) -> Vec<u8> {
    let mut bytes = (0x8000_0000 | data.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    bytes
}

fn bytes_of(octowords: &[Octoword]) -> Vec<u8> {
    octowords.as_flattened().iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn octowords_of(payload: impl Payload, size: usize) -> Vec<Octoword> {
    // SAFETY: all octowords but the last are full.
    let octoword = |i| unsafe { if i + 1 < size { payload.full(i) } else { payload.last(i) } };
    (0..size).map(octoword).map(narrow).collect()
}

#[test]
fn inline_data_of_every_length() {
    let data: Vec<u8> = (1..=255).chain(1..=255).collect();
    for length in 0..=505 {
        // An allocation of exactly this length, so that sanitizers find a read beyond the end.
        let data: Box<[u8]> = data[..length].into();
        let inline = Inline(&data);
        let usual = inline.usual(&LIMITS, 0);
        assert_eq!(usual.is_some(), (1..=500).contains(&length));
        match inline.filled(&LIMITS, &mut SgeList::new()) {
            Err(error) => assert_eq!((error, length > 500), (PostError::InlineTooLong, true)),
            Ok((_, 0)) => assert_eq!(length, 0),
            Ok((inline, size)) => {
                assert_eq!(usual, Some(size));
                assert_eq!(bytes_of(&octowords_of(inline, size)), expected(&data), "{length}");
            }
        }
    }
}

/// The bytes that a payload after `header` octowords of a WQE stores, and the bytes after it.
fn stored(payload: impl Payload, size: usize, header: usize) -> Vec<u8> {
    let mut octowords = [wide([!0; 2]); 40];
    let to = octowords.as_mut_ptr();
    let blocks = (header + size).div_ceil(4);
    let (least, most) = if blocks > 4 { (17, 40) } else { (4 * blocks - 3, 4 * blocks) };
    // SAFETY: the size is the payload's, within these bounds, and below 40 octowords.
    unsafe { payload.store(to, size, least.saturating_sub(header), most - header) };
    bytes_of(&octowords.map(narrow))
}

#[test]
fn storing_inline_data_changes_no_further_byte() {
    let data: Vec<u8> = (1..=255).chain(1..=255).collect();
    for length in 1..=500 {
        let data: Box<[u8]> = data[..length].into();
        let size = segment_octowords(length);
        for header in 1..=5 {
            let stored = stored(Inline(&data), size, header);
            let (segment, behind) = stored.split_at(4 + length);
            assert_eq!(segment, &expected(&data)[..4 + length], "{length} behind {header}");
            assert!(behind.iter().all(|byte| *byte == 0xff), "{length} behind {header}");
        }
    }
}

#[test]
fn storing_a_list_changes_no_further_byte() {
    let sges: [Sge; 30] = core::array::from_fn(|i| Sge::new(i as u64, 8, 1));
    for header in 1..=5 {
        for count in 0..=30 {
            let stored = stored(&sges[..count], count, header);
            let (list, behind) = stored.split_at(16 * count);
            assert_eq!(list, bytes_of(&octowords_of(&sges[..count], count)));
            assert!(behind.iter().all(|byte| *byte == 0xff), "{count} behind {header}");
        }
    }
}

#[test]
fn empty_sges_of_a_list_are_skipped() {
    let sge = |i| Sge::new(i, 8, 1);
    let (empty, long) = (Sge::new(9, 0, 1), Sge::new(9, u32::MAX, 1));
    let full = [sge(1), sge(2), sge(3), sge(4)];
    assert_eq!(full.as_slice().usual(&LIMITS, 0), Some(4));
    assert_eq!(octowords_of(full.as_slice(), 4), full.map(|sge| sge.octoword()));
    let gaps = [empty, sge(1), empty, sge(2)];
    assert_eq!(gaps.as_slice().usual(&LIMITS, 0), None);
    let mut list = SgeList::new();
    let mut filled = |sges: &[Sge]| {
        let (filled, size) = sges.filled(&LIMITS, &mut list)?;
        assert_eq!(filled.len(), size);
        Ok(filled.to_vec())
    };
    assert_eq!(filled(&gaps), Ok(vec![sge(1), sge(2)]));
    let refused = [sge(1), long];
    assert_eq!(refused.as_slice().usual(&LIMITS, 0), None);
    assert_eq!(filled(&refused), Err(PostError::SgeTooLong));
    assert_eq!(filled(&[empty, long]), Err(PostError::SgeTooLong));
    let many = [sge(1); 5];
    assert_eq!(many.as_slice().usual(&LIMITS, 0), None);
    assert_eq!(filled(&many), Err(PostError::TooManySge));
    assert_eq!(filled(&[empty; 5]), Err(PostError::TooManySge));
    assert_eq!(filled(&[empty; 4]), Ok(vec![]));
}

/// An SGE that is empty or too long is found wherever it is in the list.
#[test]
fn lists_with_an_unusual_sge_are_not_usual() {
    const MOST: usize = 9;
    let limits = Limits { max_sge: MOST as u32, ..LIMITS };
    for length in 0..=MOST {
        let list = [Sge::new(1, 2, 3); MOST];
        assert_eq!((&list[..length]).usual(&limits, 1), Some(1 + length));
        for (at, unusual) in (0..MOST).flat_map(|at| [(at, 0), (at, u32::MAX)]) {
            let mut list = list;
            list[at] = Sge::new(1, unusual, 3);
            assert_eq!((&list[..length]).usual(&limits, 1).is_none(), at < length, "{length} {at}");
        }
    }
    assert_eq!((&[Sge::new(1, 2, 3); MOST + 1][..]).usual(&limits, 1), None);
}
