//! Expands compressed completions.

use zerocopy::FromBytes;

use uverbs_mlx5::format::{
    CQE_SIZE, Cqe, CqeFormat, CqeOpcode, MINI_CQES_PER_SLOT, MiniCqe, MiniCqeArray, MiniCqeFormat,
    OpOwn, U16, U32,
};

/// Why a compressed session cannot be expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The title's format is not "compressed".
    #[error("the CQE is not the title of a compressed session")]
    NotATitle,
    /// The title announces more mini-CQEs than were given.
    #[error("the title promises {promised} completions, the arrays hold {given}")]
    TooFewArrays {
        /// Completions that the title announces.
        promised: u32,
        /// Mini-CQEs given.
        given: usize,
    },
    /// A responder's mini-CQE format that this crate does not know.
    #[error("mini-CQE format {0}")]
    Format(MiniCqeFormat),
}

/// The completions of a compressed session, in order.
///
/// `title` is the CQE of format compressed. `arrays` are the slots of mini-CQEs: the slot after the
/// title, then every eighth slot. `format` is the content of a responder's mini-CQEs. Each
/// completion is a copy of the title with the mini-CQE's fields, the format "no inline data" and
/// the title's owner bit.
///
/// # Errors
/// See [`SessionError`].
pub fn expand_session(
    title: &Cqe,
    arrays: &[MiniCqeArray],
    format: MiniCqeFormat,
) -> Result<Vec<Cqe>, SessionError> {
    if title.op_own.format() != CqeFormat::COMPRESSED {
        return Err(SessionError::NotATitle);
    }
    let responder = title.op_own.opcode() != CqeOpcode::REQUESTER;
    if responder && format.name().is_none() {
        return Err(SessionError::Format(format));
    }
    let promised = title.byte_count.get();
    let given = arrays.len() * MINI_CQES_PER_SLOT;
    if promised as usize > given {
        return Err(SessionError::TooFewArrays { promised, given });
    }
    let minis = arrays.iter().flat_map(|array| &array.entries).take(promised as usize);
    let first = title.wqe_counter.get();
    let counters = (0..=u16::MAX).cycle().map(|step| first.wrapping_add(step));
    let expanded = minis.zip(counters).map(|(mini, counter)| match responder {
        true => received(title, mini, counter, format),
        false => sent(title, mini),
    });
    Ok(expanded.collect())
}

/// The completions of the compressed session whose title is entry `at` of `queue`. Entries have
/// `stride` bytes (64 or 128), and the CQE is the last 64 of them. If the bytes are a whole queue
/// (`is_whole`), a session may continue at its start. The session occupies as many entries as it
/// has completions.
///
/// # Errors
/// See [`SessionError`]; [`SessionError::NotATitle`] also if there is no such entry.
pub fn expand_session_at(
    queue: &[u8],
    stride: usize,
    at: usize,
    is_whole: bool,
    format: MiniCqeFormat,
) -> Result<Vec<Cqe>, SessionError> {
    let entries = queue.len().checked_div(stride).unwrap_or(0);
    let title =
        Cqe::read_from_bytes(entry(queue, stride, at)).map_err(|_| SessionError::NotATitle)?;
    if title.op_own.format() != CqeFormat::COMPRESSED {
        return Err(SessionError::NotATitle);
    }
    let wanted = (title.byte_count.get() as usize).div_ceil(MINI_CQES_PER_SLOT);
    // A title may announce 2^32 completions. The check before any array is read limits memory, and
    // keeps the time linear for a dump full of such titles.
    let given = next_arrays(if is_whole { entries } else { entries - at });
    if wanted > given {
        let promised = title.byte_count.get();
        return Err(SessionError::TooFewArrays { promised, given: given * MINI_CQES_PER_SLOT });
    }
    let places = (0..wanted).map(|array| at + (array * MINI_CQES_PER_SLOT).max(1));
    let places = places.map(|place| if is_whole { place % entries } else { place });
    let read = |place| MiniCqeArray::read_from_bytes(entry(queue, stride, place)).ok();
    expand_session(&title, &places.map_while(read).collect::<Vec<_>>(), format)
}

/// Number of arrays of mini-CQEs in `entries` entries, the first of which is the title: one right
/// after it, then one in every eighth entry.
fn next_arrays(entries: usize) -> usize {
    if entries < 2 { 0 } else { 1 + (entries - 1) / MINI_CQES_PER_SLOT }
}

/// The CQE of an entry, the last 64 bytes; empty if there is no such entry.
fn entry(queue: &[u8], stride: usize, place: usize) -> &[u8] {
    let end = place.checked_add(1).and_then(|count| count.checked_mul(stride));
    let start = end.and_then(|end| end.checked_sub(CQE_SIZE));
    start.zip(end).and_then(|(start, end)| queue.get(start..end)).unwrap_or_default()
}

fn template(title: &Cqe) -> Cqe {
    let old = title.op_own;
    let op_own = OpOwn::new(old.opcode(), CqeFormat::NO_INLINE, old.is_solicited(), old.owner());
    Cqe { op_own, ..*title }
}

fn received(title: &Cqe, mini: &MiniCqe, counter: u16, format: MiniCqeFormat) -> Cqe {
    let mut cqe = template(title);
    cqe.byte_count = mini.byte_count;
    cqe.wqe_counter = U16::new(counter);
    match format {
        MiniCqeFormat::HASH => cqe.rss_hash = U32::new(mini.hash()),
        MiniCqeFormat::CHECKSUM_STRIDE_INDEX => {
            cqe.checksum = U16::new(mini.checksum());
            cqe.wqe_counter = U16::new(mini.stride_index());
        }
        _ => cqe.checksum = U16::new(mini.checksum()),
    }
    cqe
}

fn sent(title: &Cqe, mini: &MiniCqe) -> Cqe {
    let mut cqe = template(title);
    cqe.byte_count = mini.byte_count;
    cqe.wqe_counter = U16::new(mini.wqe_counter());
    cqe.opcode_qpn_flow_tag = U32::new(u32::from(mini.opcode().0) << 24 | title.qpn());
    cqe
}
