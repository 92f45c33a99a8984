//! Decodes and encodes arbitrary bytes: nothing is lost, and nothing panics.

use proptest::prelude::*;
use uverbs_mlx5::format::Opcode;
use uverbs_mlx5_inspect::{Cqe, ReceiveWqe, TooShort, Wqe, decode_ring, parse_dump};

use crate::strategy::service;

/// Bytes that start like a WQE, so that every branch of the decoder is reached.
fn nearly_a_wqe() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop::sample::select(Opcode::KNOWN);
    (prop::collection::vec(any::<u8>(), 16..700), opcode, 0u8..64).prop_map(
        |(mut bytes, opcode, ds)| {
            bytes[3] = opcode.0;
            bytes[7] = ds;
            bytes
        },
    )
}

proptest! {
    #[test]
    fn wqe_bytes_survive(bytes in nearly_a_wqe(), service in service()) {
        let wqe = Wqe::decode(&bytes, service).unwrap();
        let ds = usize::from(bytes[7] & 0x3f).max(1);
        let units = ds.min(bytes.len() / 16);
        prop_assert_eq!(wqe.encode(), &bytes[..units * 16]);
    }

    #[test]
    fn any_wqe_can_be_looked_at(bytes in nearly_a_wqe(), service in service()) {
        let wqe = Wqe::decode(&bytes, service).unwrap();
        prop_assert!(!wqe.to_string().is_empty());
        prop_assert!(!wqe.explain(service).is_empty());
        let _ = wqe.findings(service);
        let _ = Wqe::guess(&bytes);
    }

    #[test]
    fn any_bytes_can_be_a_ring(
        bytes in prop::collection::vec(any::<u8>(), 0..1000), service in service()
    ) {
        let blocks = bytes.len() / 64;
        let entries = decode_ring(&bytes, Some(blocks), service);
        prop_assert!(entries.len() <= blocks + 1);
        let _ = decode_ring(&bytes, None, service);
    }

    #[test]
    fn cqe_bytes_survive(bytes in prop::collection::vec(any::<u8>(), 128)) {
        let cqe = Cqe::decode(&bytes).unwrap();
        prop_assert_eq!(cqe.encode(), &bytes[..64]);
        let large = Cqe::decode_128(&bytes).unwrap();
        prop_assert_eq!(large.encode(), bytes);
        for cqe in [cqe, large] {
            prop_assert!(!cqe.to_string().is_empty() && !cqe.explain().is_empty());
            let _ = cqe.findings(Some(true));
        }
    }

    #[test]
    fn receive_bytes_survive(units in 2usize..32, seed in any::<u8>(), shared in any::<bool>()) {
        let bytes: Vec<u8> = (0..units * 16).map(|at| (at as u8).wrapping_mul(seed)).collect();
        let wqe = ReceiveWqe::decode(&bytes, shared).unwrap();
        prop_assert_eq!(wqe.encode(), bytes);
        prop_assert!(!wqe.to_string().is_empty());
        let _ = wqe.findings();
    }

    #[test]
    fn any_text_can_be_a_dump(text in "\\PC{0,80}(\n\\PC{0,20})?", reversed in any::<bool>()) {
        let _ = parse_dump(&text, reversed);
    }
}

#[test]
fn too_few_bytes() {
    let short = |needed, got| TooShort { needed, got };
    assert_eq!(Wqe::decode(&[0; 15], service_rc()), Err(short(16, 15)));
    assert_eq!(Cqe::decode(&[0; 63]), Err(short(64, 63)));
    assert_eq!(Cqe::decode_128(&[0; 127]), Err(short(128, 127)));
    assert_eq!(ReceiveWqe::decode(&[0; 16], true), Err(short(32, 16)));
}

fn service_rc() -> uverbs_mlx5_inspect::Service {
    uverbs_mlx5_inspect::Service::Rc
}
