//! `uverbs cqe decode` of a dump: describes completion-queue bytes.

use uverbs_mlx5::format::{CqeFormat, MiniCqeFormat};
use uverbs_mlx5_inspect::{Cqe, CqeBody, SessionError, expand_session_at};

use super::bytes::{self as input, Dump};
use super::completion::{decode_line, decoded};
use crate::args::{DecodeCqe, Mini};
use crate::failure::{Failure, Outcome};
use crate::output::print;

/// Entries of the largest completion queue (log_max_cq_sz of a ConnectX is 22). `--consumed`
/// requires the whole queue.
const MAX_ENTRIES: usize = 1 << 22;
/// The number of entries that are decoded together if the dump is longer than the first read. A
/// longer compressed session is not decompressed.
const WINDOW: usize = 1 << 13;

/// Runs `uverbs cqe decode`.
pub(crate) fn run(arguments: &DecodeCqe) -> Outcome {
    let Some(mut dump) = input::read(&arguments.hex, decode_line)? else { return Ok(()) };
    if arguments.consumed.is_some() || dump.length().is_some() {
        let most = MAX_ENTRIES * arguments.size.bytes();
        let bytes = dump.peek(most + 1)?;
        if bytes.len() > most {
            let text = format!("a completion queue has at most {MAX_ENTRIES} CQEs");
            return Err(Failure::usage(text));
        }
        let queue = Queue::new(bytes, 0, arguments)?;
        return queue.print(&queue.roles(), queue.entries);
    }
    stream(dump, arguments)
}

/// Decodes a dump of any length, one window at a time. A session that begins in the first half of a
/// window ends within the window.
fn stream(mut dump: Dump, arguments: &DecodeCqe) -> Outcome {
    let size = arguments.size.bytes();
    let (mut first, mut previous) = (0, Vec::new());
    loop {
        let bytes = dump.peek(WINDOW * size)?;
        let is_last = bytes.len() < WINDOW * size;
        let queue = Queue::new(bytes, first, arguments)?;
        let entries = if is_last { queue.entries } else { WINDOW / 2 };
        let mut roles = queue.roles_after(&previous);
        queue.print(&roles, entries)?;
        if is_last {
            return Ok(());
        }
        dump.take(entries * size);
        first += entries;
        previous = roles.split_off(entries);
        let in_session = |role: &&Role| matches!(role, Role::InSession(title) if *title < first);
        previous.truncate(previous.iter().take_while(in_session).count());
    }
}

/// The bytes, split into entries.
struct Queue<'a> {
    bytes: &'a [u8],
    /// Number of entries before these.
    first: usize,
    entries: usize,
    arguments: &'a DecodeCqe,
}

/// The role of an entry in compressed completions.
#[derive(Clone, Debug, Default)]
enum Role {
    /// An uncompressed CQE.
    #[default]
    Alone,
    /// The title of a session, with its decompressed CQEs.
    Title(Result<Vec<Cqe>, SessionError>),
    /// An entry of the session with this title (its number in the dump): mini-CQEs, or unused.
    InSession(usize),
}

impl<'a> Queue<'a> {
    fn new(bytes: &'a [u8], first: usize, arguments: &'a DecodeCqe) -> Outcome<Self> {
        let size = arguments.size.bytes();
        let length = first * size + bytes.len();
        let entries = bytes.len() / size;
        if !length.is_multiple_of(size) {
            return Err(Failure::usage(format!(
                "{length} bytes are not a whole number of CQEs of {size} bytes"
            )));
        }
        if arguments.consumed.is_some() && !entries.is_power_of_two() {
            let text = format!(
                "{entries} CQEs are not a whole completion queue: its size is a power of two"
            );
            return Err(Failure::usage(text));
        }
        Ok(Self { bytes, first, entries, arguments })
    }

    fn cqe(&self, index: usize) -> Outcome<Cqe> {
        let size = self.arguments.size.bytes();
        decoded(&self.bytes[index * size..][..size]).map_err(Failure::usage)
    }

    /// Finds the titles, starting at the oldest new entry, or at the first entry if that is
    /// unknown.
    fn roles(&self) -> Vec<Role> {
        self.roles_after(&[])
    }

    /// As `find`, if the first entries have `previous` roles in sessions that began before these
    /// bytes.
    fn roles_after(&self, previous: &[Role]) -> Vec<Role> {
        let mut roles = previous.to_vec();
        roles.resize(self.entries, Role::default());
        let start = self.arguments.consumed.unwrap_or(0) as usize;
        let mut offset = previous.len();
        while offset < self.entries {
            let at = (start + offset) % self.entries;
            let session = self.session(at);
            let taken = session.as_ref().map_or(1, |cqes| cqes.len().max(1));
            for distance in 1..taken.min(self.entries - offset) {
                roles[(at + distance) % self.entries] = Role::InSession(self.first + at);
            }
            if session != Err(SessionError::NotATitle) {
                roles[at] = Role::Title(session.map(as_cqes));
            }
            offset += taken;
        }
        roles
    }

    fn session(&self, at: usize) -> Result<Vec<uverbs_mlx5::format::Cqe>, SessionError> {
        let Ok(cqe) = self.cqe(at) else { return Err(SessionError::NotATitle) };
        if cqe.op_own().format() != CqeFormat::COMPRESSED {
            return Err(SessionError::NotATitle);
        }
        let (size, is_whole) = (self.arguments.size.bytes(), self.arguments.consumed.is_some());
        expand_session_at(self.bytes, size, at, is_whole, self.arguments.mini.format())
    }

    /// Prints the first `count` entries.
    fn print(&self, roles: &[Role], count: usize) -> Outcome {
        let mut entries = roles.iter().enumerate().take(count);
        entries.try_for_each(|(index, role)| print(self.in_words(index, role)?))
    }

    fn in_words(&self, index: usize, role: &Role) -> Outcome<String> {
        let mut lines = vec![format!("CQE {}", self.first + index)];
        match role {
            Role::InSession(title) => {
                lines.push(format!("taken by the completions of CQE {title}"))
            }
            role => self.describe(index, role, &mut lines)?,
        }
        Ok(lines.join("\n"))
    }

    fn describe(&self, index: usize, role: &Role, lines: &mut Vec<String>) -> Outcome {
        let cqe = self.cqe(index)?;
        lines.push(cqe.to_string());
        let lap = self.arguments.consumed;
        let lap = lap.map(|consumed| owner_when_new(consumed, index, self.entries));
        lines.extend(cqe.findings(lap).iter().map(ToString::to_string));
        lines.extend(self.arguments.explain.then(|| cqe.explain()));
        match role {
            Role::Title(Ok(cqes)) => self.describe_all(self.first + index, cqes, lines),
            Role::Title(Err(error)) => lines.push(format!("cannot be written out: {error}")),
            _ => {}
        }
        Ok(())
    }

    fn describe_all(&self, title: usize, cqes: &[Cqe], lines: &mut Vec<String>) {
        for (number, cqe) in cqes.iter().enumerate() {
            lines.push(format!("CQE {title}, completion {} of {}", number + 1, cqes.len()));
            lines.push(cqe.to_string());
            lines.extend(self.arguments.explain.then(|| cqe.explain()));
        }
    }
}

fn as_cqes(cqes: Vec<uverbs_mlx5::format::Cqe>) -> Vec<Cqe> {
    cqes.into_iter().map(|cqe| Cqe { lower: None, body: CqeBody::Completion(cqe) }).collect()
}

impl Mini {
    fn format(self) -> MiniCqeFormat {
        match self {
            Self::Hash => MiniCqeFormat::HASH,
            Self::Checksum => MiniCqeFormat::CHECKSUM,
            Self::StrideIndex => MiniCqeFormat::CHECKSUM_STRIDE_INDEX,
        }
    }
}

/// The owner bit of the next CQE that the device writes at `place`, in a queue of `entries` (a
/// power of two) of which `consumed` CQEs were polled.
fn owner_when_new(consumed: u32, place: usize, entries: usize) -> bool {
    let consumed = consumed as usize;
    let distance = place.wrapping_sub(consumed) % entries;
    consumed.wrapping_add(distance) & entries != 0
}
