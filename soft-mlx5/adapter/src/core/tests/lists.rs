//! Memory keys that WQEs configure: lists of parts of other keys, and interleaved lists.

use uverbs_mlx5_format::{
    Klm, MkeyContextSegment, Opcode, RepeatBlock, RepeatEntry, Syndrome, U16, U32, U64,
    UmrControlSegment,
};
use zerocopy::IntoBytes;

use super::harness::*;
use super::windows::local_invalidate;
use crate::core::*;

type U = UmrControlSegment;

/// Configures a key with the encoding of `mlx5dv_wr_mkey_configure` and both of its setters.
fn configure(key: Mkey, access: Access, length: u64, list: &[u8]) -> Wr {
    let control = UmrControlSegment {
        flags: U::FLAG_INLINE,
        klm_octowords: U16::new(list.len().next_multiple_of(64) as u16 / 16),
        mkey_mask: U64::new(
            U::MASK_FREE
                | U::MASK_KEY
                | U::MASK_LENGTH
                | U::MASK_LOCAL_WRITE
                | U::MASK_REMOTE_READ
                | U::MASK_REMOTE_WRITE
                | U::MASK_ATOMIC,
        ),
        ..U::default()
    };
    let context = MkeyContextSegment {
        access_flags: access.bits(),
        qpn_mkey: U32::new(ANY_QP << 8),
        length: U64::new(length),
        ..MkeyContextSegment::default()
    };
    let mut raw = [control.as_bytes(), context.as_bytes(), list].concat();
    raw.resize(raw.len().next_multiple_of(16), 0);
    Wr { raw, ..Wr::new(Opcode::UMR).immediate(Opcode::UMR, key.0) }
}

fn klm(region: Region, offset: u64, len: u32) -> Klm {
    Klm {
        byte_count: U32::new(len),
        mkey: U32::new(region.key.0),
        address: U64::new(region.address + offset),
    }
}

/// `cycles` times 3 bytes, 8 bytes apart, and 2 bytes, 5 bytes apart.
fn interleaved(region: Region, cycles: u32) -> Vec<u8> {
    let head = RepeatBlock {
        byte_count: U32::new(5),
        operation: U32::new(RepeatBlock::OPERATION),
        repeat_count: U32::new(cycles),
        entries: U16::new(2),
        ..RepeatBlock::default()
    };
    let entry = |offset, len, stride| RepeatEntry {
        stride: U16::new(stride),
        byte_count: U16::new(len),
        mkey: U32::new(region.key.0),
        address: U64::new(region.address + offset),
    };
    let entries = [entry(0, 3, 8), entry(40, 2, 5)];
    [head.as_bytes(), entries.as_bytes()].concat()
}

/// A connection, and at host 1 a free key of four entries and a region.
fn bench() -> (Pair, Mkey, Region) {
    let mut pair = Pair::new(QpType::Rc);
    let host = pair.host(1);
    let key = host.core.create_mkey(MkeyParams {
        free: true,
        translation: Translation::Klm(Vec::new()),
        translation_octowords: 4,
        access: Access::UMR | Access::LOCAL_READ,
        ..MkeyParams::region(host.pd, 0, 0, Access::empty(), crate::memory::PageMap::linear(0))
    });
    let key = key.unwrap();
    let region = host.region(64, Access::LOCAL_WRITE);
    host.memory_write(region.address, &[0; 64]);
    (pair, key, region)
}

fn posted(pair: &mut Pair, side: usize, wr: &Wr) -> Option<Syndrome> {
    pair.post(side, wr);
    pair.world.run_until_idle();
    pair.one(side).syndrome
}

/// The offsets of the region's bytes that are not zero, sorted by the bytes' values.
fn written(pair: &mut Pair, region: Region) -> Vec<usize> {
    let bytes = pair.host(1).bytes(region.address, region.len);
    let mut places: Vec<_> = (0..bytes.len()).filter(|&place| bytes[place] != 0).collect();
    places.sort_by_key(|&place| bytes[place]);
    places
}

#[test]
fn a_list_of_keys_is_one_address_range() {
    let (mut pair, key, region) = bench();
    let list = [klm(region, 50, 3), klm(region, 7, 4)];
    let wr = configure(key, Access::REMOTE_WRITE, 7, list.as_bytes());
    assert_eq!(posted(&mut pair, 1, &wr), None);
    assert_eq!(posted(&mut pair, 0, &Wr::write(1, key).inline(&[1, 2, 3, 4, 5])), None);
    assert_eq!(written(&mut pair, region), [51, 52, 7, 8, 9]);
    let beyond = Wr::write(3, key).inline(&[9; 5]);
    assert_eq!(posted(&mut pair, 0, &beyond), Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn an_interleaved_list_alternates_its_elements() {
    let (mut pair, key, region) = bench();
    let list = interleaved(region, 3);
    let wr = configure(key, Access::REMOTE_WRITE, 15, &list);
    assert_eq!(posted(&mut pair, 1, &wr), None);
    let bytes: Vec<u8> = (1..=14).collect();
    assert_eq!(posted(&mut pair, 0, &Wr::write(1, key).inline(&bytes)), None);
    let places = [1, 2, 40, 41, 8, 9, 10, 45, 46, 16, 17, 18, 50, 51];
    assert_eq!(written(&mut pair, region), places);
    // An access that starts inside the second cycle.
    pair.host(1).memory_write(region.address, &[0; 64]);
    assert_eq!(posted(&mut pair, 0, &Wr::write(7, key).inline(&[1, 2, 3, 4])), None);
    assert_eq!(written(&mut pair, region), [10, 45, 46, 16]);
}

#[test]
fn a_key_can_be_configured_again_and_is_invalidated() {
    let (mut pair, key, region) = bench();
    for offset in [0, 16] {
        let list = [klm(region, offset, 4)];
        let wr = configure(key, Access::REMOTE_WRITE, 4, list.as_bytes());
        assert_eq!(posted(&mut pair, 1, &wr), None);
    }
    let interleaved = interleaved(region, 1);
    let wr = configure(key, Access::REMOTE_WRITE, 5, &interleaved);
    assert_eq!(posted(&mut pair, 1, &wr), None);
    assert_eq!(posted(&mut pair, 1, &local_invalidate(key)), None);
    let write = Wr::write(0, key).inline(&[1]);
    assert_eq!(posted(&mut pair, 0, &write), Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn invalid_lists_are_refused() {
    type Bytes = fn(Region) -> (u64, Vec<u8>);
    let lists: [(&str, Bytes); 6] = [
        ("more entries than the key has", |region| (5, [klm(region, 0, 1); 5].as_bytes().to_vec())),
        ("outside of the region", |region| (4, klm(region, 61, 4).as_bytes().to_vec())),
        ("shorter than the key", |region| (5, klm(region, 0, 4).as_bytes().to_vec())),
        ("cycles beyond the region", |region| (30, interleaved(region, 6))),
        ("cycles without bytes", |region| {
            let mut list = interleaved(region, u32::MAX);
            [16, 32].iter().for_each(|entry| list[entry + 2..entry + 4].fill(0));
            (0, list)
        }),
        ("shorter than its head says", |region| (5, interleaved(region, 1)[..32].to_vec())),
    ];
    for (name, list) in lists {
        let (mut pair, key, region) = bench();
        let (length, list) = list(region);
        let wr = configure(key, Access::REMOTE_WRITE, length, &list);
        assert!(posted(&mut pair, 1, &wr).is_some(), "{name}");
    }
}
