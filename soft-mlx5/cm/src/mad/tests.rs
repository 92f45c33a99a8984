use std::net::{IpAddr, Ipv6Addr};

use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::tests::{bytes, two_kernels};
use uverbs_soft_packet::prng::Prng;

const CLIENT: CommId = CommId(0x54d8_dda3);
const SERVER: CommId = CommId(0x6820_1ced);
const TID: u64 = 0x0000_0002_a3dd_d854;

/// The recorded datagrams of rping, built from their values.
fn rping() -> [Mad; 5] {
    let mut req = Req::default();
    req.service_id = 0x0106_1c06.into();
    req.ca_guid = 0x0000_7fff_fe12_0003.into();
    req.pkey = 0xffff.into();
    req.set_local_id(CLIENT)
        .set_vendor_id(0x15b3)
        .set_qpn(0x4f)
        .set_transport(TransportService::Rc);
    req.set_responder_resources(1).set_initiator_depth(1);
    req.set_remote_cm_response_timeout(20).set_local_cm_response_timeout(20);
    req.set_starting_psn(0xfc1026).set_retry_count(7).set_rnr_retry_count(7);
    req.set_path_mtu(3).set_max_cm_retries(15);
    let gid = |last| uverbs_soft_packet::Gid::from_ipv4(std::net::Ipv4Addr::new(10, 9, 0, last)).0;
    let path = &mut req.primary;
    (path.local_lid, path.remote_lid) = (0xffff.into(), 0xffff.into());
    (path.local_gid, path.remote_gid) = (gid(2), gid(1));
    path.hop_limit = 64;
    path.set_flow_label(0x76fa4).set_ack_timeout(18);
    let address = |last| IpAddr::from([10, 9, 0, last]);
    let header = CmaHdr::new(address(2), 0xc0a2, address(1)).unwrap();
    assert!(req.set_private_data(header.as_bytes()));

    let mut rep = Rep::default();
    rep.ca_guid = 0x0000_7fff_fe12_0002.into();
    rep.set_ids(SERVER, CLIENT).set_qpn(0x4d).set_starting_psn(0x546629).set_vendor_id(0x15b3);
    (rep.responder_resources, rep.initiator_depth) = (1, 1);
    rep.set_target_ack_delay(16).set_rnr_retry_count(7);

    [
        Mad::new(TID, 0, req),
        Mad::new(TID, 0, rep),
        Mad::new(TID, 0, Rtu::new(CLIENT, SERVER)),
        Mad::new(TID, 0, Dreq::new(CLIENT, SERVER, 0x4d)),
        Mad::new(TID, 0, Drep::new(SERVER, CLIENT)),
    ]
}

#[test]
fn recorded_datagrams_are_built_exactly() {
    let recorded = two_kernels();
    for (built, recorded) in rping().iter().zip(&recorded[2..7]) {
        assert_eq!(built.as_bytes(), recorded.bytes, "{:?}", built.attribute());
    }
    assert_eq!(recorded.iter().map(|mad| mad.sender).collect::<Vec<_>>()[2..7], [2, 1, 2, 2, 1]);
}

#[test]
fn recorded_refusals_and_resolutions_are_built_exactly() {
    let recorded = two_kernels();
    let request = recorded[0].mad();
    // Bytes 28..32 of the refused request return as the sender's id.
    let (of_request, vendor) = request.first_words();
    let rej = Rej::new(vendor, of_request, Rejected::REQ, RejReason::INVALID_SERVICE_ID);
    let tid = request.header.tid.get();
    assert_eq!(Mad::new(tid, 0, rej).as_bytes(), recorded[1].bytes);

    let sent = recorded[12].mad();
    let sidr = sent.body::<SidrReq>().unwrap();
    let mut again = SidrReq::new(sidr.request_id(), 0xffff, 0x0111_1c06);
    assert!(again.set_private_data(&sidr.private_data));
    let tid = sent.header.tid.get();
    assert_eq!(Mad::new(tid, 0, again).as_bytes(), recorded[12].bytes);

    let mut rep = SidrRep::new(sidr.request_id(), SidrStatus::SUCCESS, 0x0111_1c06);
    rep.qkey = 0x0123_4567.into();
    rep.set_qpn(0x50);
    assert_eq!(Mad::new(tid, 0, rep).as_bytes(), recorded[13].bytes);
}

#[test]
fn bodies_of_a_kernels_loopback_connection_are_built_exactly() {
    // Captured from one kernel: the body from byte 24 on, without trailing zeros.
    let same = |mad: Mad, text: &str| {
        let captured = bytes(text);
        let (head, rest) = mad.as_bytes()[24..].split_at(captured.len());
        assert_eq!((head, rest.iter().any(|byte| *byte != 0)), (&captured[..], false));
    };
    let mut rep = Rep::default();
    rep.ca_guid = 0x0002_c903_00ab_cd00.into();
    rep.set_ids(CommId(0xd7d4_60b8), CommId(0xd0d4_60b8)).set_qpn(0xdef222);
    (rep.responder_resources, rep.initiator_depth) = (3, 5);
    rep.set_vendor_id(0x15b3).set_starting_psn(0xb58cff);
    rep.set_target_ack_delay(16).set_rnr_retry_count(5);
    same(
        Mad::new(0, 0, rep),
        "d7d460b8 d0d460b8 00000000 def222 00 000000 15 b58cff b3 03 05 80 a0 0002c90300abcd00",
    );
    let mut rej = Rej::new(CommId(0xded4_60b8), CommId(0), Rejected::OTHER, RejReason::TIMEOUT);
    assert!(rej.set_ari(&0x0002_c903_00ab_cd00u64.to_be_bytes()));
    assert_eq!(rej.ca_guid(), 0x0002_c903_00ab_cd00);
    same(Mad::new(0, 0, rej), "ded460b8 00000000 80 10 0004 0002c90300abcd00");
    let mra = Mra::new(CommId(0x77e1_2b62), CommId(0x76e1_2b62), Rejected::REQ, 24);
    same(Mad::new(0, 0, mra), "77e12b62 76e12b62 00 c0");
    let mut sidr = SidrRep::new(CommId(0x7be1_2b62), SidrStatus::SUCCESS, 0x0111_1e14);
    sidr.qkey = 0x0123_4567.into();
    sidr.set_qpn(0x000601).set_vendor_id(0x15b3);
    same(Mad::new(0, 0, sidr), "7be12b62 00 00 0015 000601 b3 0000000001111e14 01234567");
}

#[test]
fn the_fields_of_a_kernels_request_are_read() {
    let recorded = two_kernels();
    let mad = recorded[2].mad();
    assert_eq!(mad.attribute(), Ok(Attribute::Req));
    assert!(mad.body::<Rep>().is_none());
    let req = mad.body::<Req>().unwrap();
    assert_eq!(
        (req.transport(), req.qpn(), req.starting_psn()),
        (TransportService::Rc, 0x4f, 0xfc1026)
    );
    assert_eq!((req.path_mtu(), req.max_cm_retries(), req.has_alternate()), (3, 15, false));
    assert_eq!(req.primary.remote().to_ipv4(), Some([10, 9, 0, 1].into()));
    let (header, rest) = CmaHdr::read_from_prefix(&req.private_data).unwrap();
    assert_eq!(header.ip_version(), Some(IpVersion::V4));
    assert_eq!((header.source(), header.port.get()), (Some([10, 9, 0, 2].into()), 0xc0a2));
    assert_eq!((header.destination(), rest.len()), (Some([10, 9, 0, 1].into()), 56));
}

#[test]
fn the_length_of_private_data_is_the_specified_one() {
    let capacities = [
        (Req::PRIVATE_DATA_LEN, 92),
        (Mra::PRIVATE_DATA_LEN, 222),
        (Rej::PRIVATE_DATA_LEN, 148),
        (Rep::PRIVATE_DATA_LEN, 196),
        (Rtu::PRIVATE_DATA_LEN, 224),
        (Dreq::PRIVATE_DATA_LEN, 220),
        (Drep::PRIVATE_DATA_LEN, 224),
        (SidrReq::PRIVATE_DATA_LEN, 216),
        (SidrRep::PRIVATE_DATA_LEN, 136),
        (Lap::PRIVATE_DATA_LEN, 168),
        (Apr::PRIVATE_DATA_LEN, 148),
    ];
    assert!(capacities.iter().all(|(here, specified)| here == specified), "{capacities:?}");
}

#[test]
fn data_that_does_not_fit_is_refused() {
    let mut rej = Rej::default();
    assert!(rej.set_private_data(&[7; 148]) && rej.set_private_data(&[8]));
    assert_eq!((rej.private_data[0], rej.private_data[1]), (8, 0), "the rest is cleared");
    assert!(!rej.set_private_data(&[0; 149]));
    assert!(!rej.set_ari(&[0; 73]) && rej.set_ari(&[1; 72]));
}

#[test]
fn addresses_of_both_versions_round_trip() {
    let v6 = |last| IpAddr::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, last));
    let header = CmaHdr::new(v6(1), 80, v6(2)).unwrap();
    assert_eq!(header.ip_version(), Some(IpVersion::V6));
    assert_eq!((header.source(), header.destination()), (Some(v6(1)), Some(v6(2))));
    assert!(CmaHdr::new(v6(1), 80, IpAddr::from([1, 2, 3, 4])).is_none());
    assert_eq!(CmaHdr::default().source(), None);
    let later = CmaHdr::read_from_bytes(&[1; 36]).unwrap();
    assert_eq!(later.ip_version(), None);
}

#[test]
fn other_classes_and_lengths_are_refused() {
    let good = rping()[0];
    assert!(Mad::parse(good.as_bytes()).is_ok());
    assert_eq!(Mad::parse(&good.as_bytes()[1..]), Err(MadError::Length(255)));
    for at in 0..4 {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] ^= 0x10;
        assert!(matches!(Mad::parse(&bytes), Err(MadError::NotCm { .. })), "byte {at}");
    }
    let mut bytes = good.as_bytes().to_vec();
    bytes[17] = 0x1b;
    assert_eq!(Mad::parse(&bytes), Err(MadError::UnknownAttribute(0x1b)));
}

/// Every accessor of every body reads any bytes. Setting a field changes no other field.
#[test]
fn any_bytes_are_read_and_fields_do_not_overlap() {
    let mut prng = Prng::new(16);
    for round in 0..2000 {
        let mut bytes = [0u8; MAD_LEN];
        bytes.fill_with(|| prng.next() as u8);
        let attribute = Attribute::ALL[prng.below(11) as usize];
        let header = MadHeader::new(attribute, prng.next(), 0);
        bytes[..24].copy_from_slice(header.as_bytes());
        let mad = Mad::parse(&bytes).unwrap();
        assert_eq!(mad.attribute(), Ok(attribute));
        read_all(mad);
        fields_do_not_overlap(&mut prng, &bytes, round);
    }
}

fn read_all(mad: &Mad) {
    if let Some(rej) = mad.body::<Rej>() {
        assert!(rej.ari().len() <= Rej::ARI_LEN && rej.rejected().0 < 4);
        let _ = (rej.ca_guid(), rej.reason());
    }
    if let Some(rep) = mad.body::<SidrRep>() {
        assert!(rep.info().len() <= SidrRep::INFO_LEN && rep.vendor_id() < 1 << 16);
    }
    if let Some(apr) = mad.body::<Apr>() {
        assert!(apr.info().len() <= Apr::INFO_LEN);
    }
    if let Some(req) = mad.body::<Req>() {
        let _ = (req.transport(), CmaHdr::read_from_prefix(&req.private_data).unwrap().0.source());
    }
    let _ = mad.first_words();
}

fn fields_do_not_overlap(prng: &mut Prng, bytes: &[u8; MAD_LEN], round: u32) {
    let (mut req, _) = Req::read_from_prefix(&bytes[24..]).unwrap();
    let (before, value) = (req, prng.next() as u32 & 0xff_ffff);
    req.set_qpn(value).set_vendor_id(value).set_starting_psn(!value & 0xff_ffff);
    assert_eq!((req.qpn(), req.vendor_id()), (value, value), "round {round}");
    assert_eq!(req.responder_resources(), before.responder_resources());
    assert_eq!(req.local_cm_response_timeout(), before.local_cm_response_timeout());
    req.set_qpn(before.qpn()).set_vendor_id(before.vendor_id());
    req.set_starting_psn(before.starting_psn());
    assert_eq!(req, before);
    let (mut rep, _) = Rep::read_from_prefix(&bytes[24..]).unwrap();
    let (qpn, psn) = (rep.qpn(), rep.starting_psn());
    rep.set_vendor_id(value);
    assert_eq!((rep.vendor_id(), rep.qpn(), rep.starting_psn()), (value, qpn, psn));
}
