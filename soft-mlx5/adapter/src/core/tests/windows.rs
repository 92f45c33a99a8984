//! Memory windows, invalidation, and user UMR WQEs.

use uverbs_mlx5_format::{
    Klm, MkeyContextSegment, Opcode, Syndrome, U16, U32, U64, UmrControlSegment,
};
use zerocopy::IntoBytes;

use super::harness::*;
use crate::core::*;

type U = UmrControlSegment;

/// libmlx5's encoding of a bind (`set_umr_control_seg` and the functions around it): 16 + 48 + 64 +
/// 64 bytes.
fn bind(window: Mkey, new_variant: u8, qpn: Option<Qpn>, region: Region, access: Access) -> Wr {
    let mut control = UmrControlSegment {
        flags: U::FLAG_TRANSLATION_OFFSET | U::FLAG_INLINE,
        klm_octowords: U16::new(U::octowords_for(1)),
        ..UmrControlSegment::default()
    };
    let mut mask = U::MASK_FREE
        | U::MASK_KEY
        | U::MASK_LENGTH
        | U::MASK_START_ADDRESS
        | U::MASK_LOCAL_WRITE
        | U::MASK_REMOTE_READ
        | U::MASK_REMOTE_WRITE
        | U::MASK_ATOMIC;
    if qpn.is_some() {
        mask |= U::MASK_QPN;
        control.flags |= 1 << 5;
    }
    control.mkey_mask = U64::new(mask);
    let owner = qpn.map_or(ANY_QP, |qpn| qpn.0);
    let context = MkeyContextSegment {
        access_flags: access.bits(),
        qpn_mkey: U32::new(owner << 8 | u32::from(new_variant)),
        start_address: U64::new(region.address),
        length: U64::new(region.len),
        ..MkeyContextSegment::default()
    };
    let klm = Klm {
        byte_count: U32::new(region.len as u32),
        mkey: U32::new(region.key.0),
        address: U64::new(region.address),
    };
    let mut raw = control.as_bytes().to_vec();
    raw.extend_from_slice(context.as_bytes());
    raw.extend_from_slice(klm.as_bytes());
    raw.resize(48 + 64 + 64, 0);
    Wr { raw, ..Wr::new(Opcode::UMR).immediate(Opcode::UMR, window.0) }
}

/// libmlx5's encoding of an invalidation (`set_umr_control_seg`) requests the check of the QP.
pub(super) fn local_invalidate(key: Mkey) -> Wr {
    let control = UmrControlSegment {
        flags: U::FLAG_TRANSLATION_OFFSET | U::FLAG_INLINE | U::FLAG_CHECK_QPN,
        mkey_mask: U64::new(U::MASK_FREE | U::MASK_KEY | U::MASK_QPN),
        ..UmrControlSegment::default()
    };
    let context = MkeyContextSegment {
        free: MkeyContextSegment::FREE,
        qpn_mkey: U32::new(ANY_QP << 8),
        ..MkeyContextSegment::default()
    };
    let mut raw = control.as_bytes().to_vec();
    raw.extend_from_slice(context.as_bytes());
    Wr { raw, ..Wr::new(Opcode::UMR).immediate(Opcode::UMR, key.0) }
}

/// A pair, a region of side 1 with these rights, and a window over all of it, bound on side 1's QP.
fn bound(type_2: bool, rights: Access) -> (Pair, Region) {
    let mut pair = Pair::new(QpType::Rc);
    let region = pair.host(1).region(256, Access::LOCAL_WRITE);
    let pd = pair.host(1).pd;
    let window = pair.host(1).core.create_mkey(MkeyParams::window(pd, type_2)).unwrap();
    let qpn = pair.qps[1].qpn;
    let wr = bind(window, 7, type_2.then_some(qpn), region, rights);
    pair.post(1, &wr);
    pair.world.run_until_idle();
    assert_eq!(pair.one(1).syndrome, None);
    let key = Mkey(window.0 & !0xff | 7);
    (pair, Region { key, ..region })
}

fn write_status(pair: &mut Pair, region: Region) -> Option<Syndrome> {
    pair.post(0, &Wr::write(region.address, region.key).inline(b"window!!"));
    pair.world.run_until_idle();
    pair.one(0).syndrome
}

#[test]
fn a_window_grants_rights_that_its_region_lacks() {
    for type_2 in [false, true] {
        let (mut pair, window) = bound(type_2, Access::REMOTE_WRITE);
        assert_eq!(write_status(&mut pair, window), None);
        assert_eq!(pair.host(1).bytes(window.address, 8), b"window!!");
        let local = pair.host(0).region(8, ALL);
        pair.post(0, &Wr::read(window.address, window.key).all_of(local));
        pair.world.run_until_idle();
        assert_eq!(pair.one(0).syndrome, Some(Syndrome::REMOTE_ACCESS), "not granted");
    }
}

#[test]
fn the_old_key_of_a_window_grants_no_access() {
    let (mut pair, window) = bound(false, Access::REMOTE_WRITE);
    let old = Region { key: Mkey(window.key.0 & !0xff), ..window };
    assert_eq!(write_status(&mut pair, old), Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn a_write_beyond_the_end_of_a_window_fails() {
    let (mut pair, window) = bound(true, Access::REMOTE_WRITE);
    let outside = Region { address: window.address + 249, ..window };
    assert_eq!(write_status(&mut pair, outside), Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn windows_are_invalidated_locally_and_by_send() {
    let (mut pair, window) = bound(true, Access::REMOTE_WRITE);
    pair.post(1, &local_invalidate(window.key));
    pair.world.run_until_idle();
    assert_eq!(pair.one(1).syndrome, None);
    assert_eq!(write_status(&mut pair, window), Some(Syndrome::REMOTE_ACCESS));

    let (mut pair, window) = bound(true, Access::REMOTE_WRITE);
    let inbox = pair.host(1).region(64, ALL);
    pair.post_receive(1, inbox);
    pair.post(0, &Wr::send().immediate(Opcode::SEND_INVALIDATE, window.key.0));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, None);
    assert_eq!(pair.one(1).immediate, window.key.0);
    assert_eq!(write_status(&mut pair, window), Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn a_key_without_remote_invalidation_is_not_invalidated_by_a_peer() {
    let mut pair = Pair::new(QpType::Rc);
    let region = pair.host(1).region(64, ALL);
    pair.post_receive(1, region);
    pair.post(0, &Wr::send().immediate(Opcode::SEND_INVALIDATE, region.key.0));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, Some(Syndrome::REMOTE_ACCESS));
    assert!(!pair.host(1).core.query_mkey(region.key).unwrap().free);
}

#[test]
fn invalid_binds_fail() {
    // Outside the region; REMOTE_WRITE over a region without LOCAL_WRITE; a wrong key; a type 2
    // window bound twice.
    for wrong in ["bounds", "rights", "key", "twice", "no window"] {
        let mut pair = Pair::new(QpType::Rc);
        let rights = if wrong == "rights" { Access::empty() } else { Access::LOCAL_WRITE };
        let mut region = pair.host(1).region(256, rights);
        let pd = pair.host(1).pd;
        let mut window = pair.host(1).core.create_mkey(MkeyParams::window(pd, true)).unwrap();
        let qpn = pair.qps[1].qpn;
        match wrong {
            "bounds" => region.len += 1,
            "key" => region.key.0 ^= 1,
            "twice" => {
                pair.post(1, &bind(window, 1, Some(qpn), region, Access::REMOTE_WRITE));
                pair.world.run_until_idle();
                pair.poll(1);
            }
            "no window" => window = Mkey(0x77_7700),
            _ => {}
        }
        pair.post(1, &bind(window, 7, Some(qpn), region, Access::REMOTE_WRITE));
        pair.world.run_until_idle();
        assert_eq!(pair.one(1).syndrome, Some(Syndrome::MW_BIND), "{wrong}");
        assert_eq!(pair.state(1), QpState::Error);
    }
}

#[test]
fn type_2_windows_belong_to_their_qp_and_type_1_windows_to_all() {
    for (type_2, expected) in [(true, Some(Syndrome::REMOTE_ACCESS)), (false, None)] {
        let (mut pair, window) = bound(type_2, Access::REMOTE_WRITE);
        let cq = pair.cqs.clone();
        let qps = [0, 1].map(|side| pair.host(side).qp(QpType::Rc, &cq[side]));
        for side in [0, 1] {
            let gid = pair.world.hosts[1 - side].gid;
            let attributes = pair.host(side).attributes(gid, qps[1 - side].qpn);
            pair.host(side).make_rts(&qps[side], &attributes);
        }
        pair.qps = qps;
        assert_eq!(write_status(&mut pair, window), expected);
    }
}

#[test]
fn users_cannot_configure_a_key_for_arbitrary_memory() {
    let mut pair = Pair::new(QpType::Rc);
    let region = pair.host(1).region(4096, ALL);
    let control = UmrControlSegment {
        flags: U::FLAG_INLINE,
        klm_octowords: U16::new(4),
        ..UmrControlSegment::default()
    };
    let mut raw = control.as_bytes().to_vec();
    raw.extend_from_slice(MkeyContextSegment::default().as_bytes());
    raw.extend_from_slice(&[0x11; 64]);
    let wr = Wr { raw, ..Wr::new(Opcode::UMR).immediate(Opcode::UMR, region.key.0) };
    pair.post(1, &wr);
    pair.world.run_until_idle();
    assert_eq!(pair.one(1).syndrome, Some(Syndrome::MW_BIND));
    let key = pair.host(1).core.query_mkey(region.key).unwrap().clone();
    assert_eq!(
        key.translation,
        Translation::Memory(crate::memory::PageMap::linear(region.address))
    );
}

#[test]
fn users_cannot_widen_a_region() {
    for mask in [U::MASK_LENGTH, U::MASK_START_ADDRESS, U::MASK_REMOTE_WRITE, U::MASK_PAGE_SIZE] {
        let mut pair = Pair::new(QpType::Rc);
        let region = pair.host(1).region(64, Access::empty());
        let before = pair.host(1).core.query_mkey(region.key).unwrap().clone();
        let control = UmrControlSegment { mkey_mask: U64::new(mask), ..Default::default() };
        let context = MkeyContextSegment {
            access_flags: 0xff,
            length: U64::new(1 << 40),
            ..MkeyContextSegment::default()
        };
        let mut raw = control.as_bytes().to_vec();
        raw.extend_from_slice(context.as_bytes());
        pair.post(1, &Wr { raw, ..Wr::new(Opcode::UMR).immediate(Opcode::UMR, region.key.0) });
        pair.world.run_until_idle();
        assert_eq!(pair.one(1).syndrome, Some(Syndrome::MW_BIND));
        assert_eq!(*pair.host(1).core.query_mkey(region.key).unwrap(), before);
    }
}
