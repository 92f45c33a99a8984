//! Passes arbitrary bytes, or text that may be a dump, to all decoders, checks, explanations and
//! formatters.

use arbitrary::{Result, Unstructured};
use uverbs_mlx5::format::{self, MiniCqeArray, MiniCqeFormat};
use uverbs_mlx5_inspect::{
    Cqe, CqeBody, ReceiveWqe, Service, Wqe, decode_ring, expand_session, expand_session_at,
    parse_dump, poll_cqe,
};
use zerocopy::FromBytes;

/// The input chooses how the rest is decoded.
pub fn run(data: &[u8]) {
    // An error means that the input was too short to choose from.
    let _ = try_run(&mut Unstructured::new(data));
}

fn try_run(u: &mut Unstructured<'_>) -> Result<()> {
    match u.int_in_range(0..=5)? {
        0 => ring(u)?,
        1 => dump(u)?,
        2 => receive(u)?,
        3 => cqe(u)?,
        4 => session(u)?,
        _ => guess(u.bytes(u.len())?),
    }
    Ok(())
}

fn ring(u: &mut Unstructured<'_>) -> Result<()> {
    let service = *u.choose(&Service::ALL)?;
    let whole: bool = u.arbitrary()?;
    let claimed: Option<u16> = u.arbitrary()?;
    let bytes = u.bytes(u.len())?;
    let blocks = if whole { Some(bytes.len() / 64) } else { claimed.map(usize::from) };
    let entries = decode_ring(bytes, blocks, service);
    assert!(entries.len() <= bytes.len() / 64 + 1);
    for entry in &entries {
        assert!(entry.slot <= bytes.len() / 64);
        let text = format!("{}{}", entry.wqe, entry.wqe.explain(service));
        assert!(!text.is_empty());
        entry.findings.iter().for_each(|finding| assert!(!finding.to_string().is_empty()));
    }
    Ok(())
}

fn dump(u: &mut Unstructured<'_>) -> Result<()> {
    let reversed = u.arbitrary()?;
    let text = String::from_utf8_lossy(u.bytes(u.len())?);
    match parse_dump(&text, reversed) {
        Ok(bytes) => {
            assert!(bytes.len() <= text.len());
            guess(&bytes);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Ok(())
}

fn guess(bytes: &[u8]) {
    match Wqe::guess(bytes) {
        Ok((wqe, service)) => {
            assert!(!wqe.to_string().is_empty() && !wqe.explain(service).is_empty())
        }
        Err(error) => assert!(bytes.len() < error.needed && error.got == bytes.len()),
    }
}

fn receive(u: &mut Unstructured<'_>) -> Result<()> {
    let shared = u.arbitrary()?;
    let bytes = u.bytes(u.len())?;
    if let Ok(wqe) = ReceiveWqe::decode(bytes, shared) {
        assert_eq!(wqe.encode(), &bytes[..bytes.len() / 16 * 16]);
        assert!(wqe.list().len() <= wqe.entries.len());
        assert!(!wqe.to_string().is_empty());
        let _ = wqe.findings();
    }
    Ok(())
}

fn cqe(u: &mut Unstructured<'_>) -> Result<()> {
    let large = u.arbitrary()?;
    let lap = u.arbitrary()?;
    let bytes = u.bytes(u.len())?;
    let (decoded, size) =
        if large { (Cqe::decode_128(bytes), 128) } else { (Cqe::decode(bytes), 64) };
    let Ok(cqe) = decoded else { return Ok(()) };
    assert_eq!(cqe.encode(), &bytes[..size]);
    assert!(!cqe.to_string().is_empty() && !cqe.explain().is_empty());
    cqe.findings(lap).iter().for_each(|finding| assert!(!finding.text.is_empty()));
    if let Some(polled) = poll_cqe(&cqe) {
        assert!(!polled.status.text().is_empty());
    }
    Ok(())
}

/// A session in a queue, at a position chosen by the first byte.
fn session_at(queue: &[u8], format: MiniCqeFormat) {
    let at = usize::from(queue.first().copied().unwrap_or(0));
    for (stride, is_whole) in [(64, false), (64, true), (128, false), (128, true)] {
        if let Ok(cqes) = expand_session_at(queue, stride, at % 8, is_whole, format) {
            assert!(cqes.len() <= queue.len() / 8);
        }
    }
}

/// The inspector's expansion of a compressed session.
fn session(u: &mut Unstructured<'_>) -> Result<()> {
    let format = MiniCqeFormat(u.arbitrary()?);
    session_at(u.peek_bytes(u.len()).unwrap_or_default(), format);
    let Ok(title) = format::Cqe::read_from_bytes(u.bytes(64)?) else { return Ok(()) };
    let arrays: Vec<_> = u
        .bytes(u.len())?
        .chunks_exact(64)
        .filter_map(|bytes| MiniCqeArray::read_from_bytes(bytes).ok())
        .collect();
    match expand_session(&title, &arrays, format) {
        Ok(cqes) => {
            assert_eq!(cqes.len(), title.byte_count.get() as usize);
            for cqe in cqes {
                let cqe = Cqe { lower: None, body: CqeBody::Completion(cqe) };
                assert!(!cqe.to_string().is_empty());
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Ok(())
}
