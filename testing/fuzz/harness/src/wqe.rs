//! Encodes and decodes WQEs, starting from values or from bytes.

use arbitrary::{Result, Unstructured};
use uverbs_mlx5::format::WQEBB_SIZE;
use uverbs_mlx5_inspect::{Service, Wqe};

use crate::generate;

const RING_BLOCKS: usize = 16;

/// The input chooses a service, then bytes or values.
pub fn run(data: &[u8]) {
    // An error means that the input was too short to choose from.
    let _ = try_run(&mut Unstructured::new(data));
}

fn try_run(u: &mut Unstructured<'_>) -> Result<()> {
    let service = *u.choose(&Service::ALL)?;
    if u.arbitrary()? {
        from_value(&generate::legal_wqe(u, service)?, service);
    } else {
        let bytes = u.bytes(u.len())?;
        from_bytes(bytes, service);
    }
    Ok(())
}

/// decode(encode(x)) = x, and a legal x has no findings.
fn from_value(wqe: &Wqe, service: Service) {
    let bytes = wqe.encode();
    assert_eq!(bytes.len(), usize::from(wqe.control.ds()) * 16);
    assert_eq!(Wqe::decode(&bytes, service).as_ref(), Ok(wqe));
    assert_eq!(wqe.findings(service), []);
    assert!(!wqe.to_string().is_empty() && !wqe.explain(service).is_empty());
    in_a_ring(wqe);
}

/// encode(decode(bytes)) = bytes, up to the WQE's end.
fn from_bytes(bytes: &[u8], service: Service) {
    let Ok(wqe) = Wqe::decode(bytes, service) else {
        assert!(bytes.len() < 16);
        return;
    };
    let units = usize::from(bytes[7] & 0x3f).max(1).min(bytes.len() / 16);
    assert_eq!(wqe.encode(), &bytes[..units * 16]);
    assert_eq!(Wqe::decode(&wqe.encode(), service), Ok(wqe.clone()));
    let end = wqe.offsets().last().map_or(16, |(at, segment)| at + segment.octowords() * 16);
    assert_eq!(end, units * 16);
    assert!(!wqe.to_string().is_empty() && !wqe.explain(service).is_empty());
    for finding in wqe.findings(service) {
        assert!(!finding.text.is_empty() && !finding.to_string().is_empty());
    }
    in_a_ring(&wqe);
}

/// Encoding stays within the WQE's slots, and wraps at the ring's end.
fn in_a_ring(wqe: &Wqe) {
    let mut ring = vec![0xaa; RING_BLOCKS * WQEBB_SIZE];
    assert!(wqe.encode_into_ring(&mut ring));
    let first = usize::from(wqe.control.index()) % RING_BLOCKS;
    ring.rotate_left(first * WQEBB_SIZE);
    let (own, others) = ring.split_at(wqe.blocks() * WQEBB_SIZE);
    assert_eq!(own, wqe.encode_blocks());
    assert!(others.iter().all(|byte| *byte == 0xaa));
    let mut small = [0xaa; WQEBB_SIZE / 2];
    assert!(!wqe.encode_into_ring(&mut small) && small.iter().all(|byte| *byte == 0xaa));
}
