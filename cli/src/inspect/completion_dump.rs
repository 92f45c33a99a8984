//! `uverbs cqe decode` of a dump: completion-queue bytes to words.

use uverbs_mlx5::format::{CqeFormat, MiniCqeFormat};
use uverbs_mlx5_inspect::{Cqe, CqeBody, SessionError, expand_session_at};

use super::bytes as input;
use super::completion::{decode_line, decoded};
use crate::args::{DecodeCqe, Mini};
use crate::failure::{Failure, Outcome};
use crate::output::print;

/// Runs `uverbs cqe decode`.
pub(crate) fn run(arguments: &DecodeCqe) -> Outcome {
    let Some(bytes) = input::read(&arguments.hex, decode_line)? else { return Ok(()) };
    let queue = Queue::new(bytes, arguments)?;
    let roles = queue.roles();
    (0..queue.entries).try_for_each(|index| print(queue.in_words(index, &roles[index])?))
}

/// The bytes, cut into entries.
struct Queue<'a> {
    bytes: Vec<u8>,
    entries: usize,
    arguments: &'a DecodeCqe,
}

/// What an entry is to compressed completions.
#[derive(Clone, Debug, Default)]
enum Role {
    /// Nothing: a CQE of its own.
    #[default]
    Alone,
    /// Their title, and what follows written out.
    Title(Result<Vec<Cqe>, SessionError>),
    /// One of the entries behind this title, mini-CQEs or unused.
    Behind(usize),
}

impl<'a> Queue<'a> {
    fn new(bytes: Vec<u8>, arguments: &'a DecodeCqe) -> Outcome<Self> {
        let (length, size) = (bytes.len(), arguments.size.bytes());
        let entries = length / size;
        if length % size != 0 {
            return Err(Failure::usage(format!("{length} bytes are no whole CQEs of {size}")));
        }
        if arguments.consumed.is_some() && !entries.is_power_of_two() {
            let text = format!("{entries} CQEs are no whole completion queue: 1, 2, 4 and so on");
            return Err(Failure::usage(text));
        }
        Ok(Self { bytes, entries, arguments })
    }

    fn cqe(&self, index: usize) -> Outcome<Cqe> {
        let size = self.arguments.size.bytes();
        decoded(&self.bytes[index * size..][..size]).map_err(Failure::usage)
    }

    /// Looks for titles from the oldest new entry on, or from the first one if that is not known.
    fn roles(&self) -> Vec<Role> {
        let mut roles = vec![Role::default(); self.entries];
        let start = self.arguments.consumed.unwrap_or(0) as usize;
        let mut ahead = 0;
        while ahead < self.entries {
            let at = (start + ahead) % self.entries;
            let session = self.session(at);
            let taken = session.as_ref().map_or(1, |cqes| cqes.len().max(1));
            for behind in 1..taken.min(self.entries - ahead) {
                roles[(at + behind) % self.entries] = Role::Behind(at);
            }
            if session != Err(SessionError::NotATitle) {
                roles[at] = Role::Title(session.map(as_cqes));
            }
            ahead += taken;
        }
        roles
    }

    fn session(&self, at: usize) -> Result<Vec<uverbs_mlx5::format::Cqe>, SessionError> {
        let Ok(cqe) = self.cqe(at) else { return Err(SessionError::NotATitle) };
        if cqe.op_own().format() != CqeFormat::COMPRESSED {
            return Err(SessionError::NotATitle);
        }
        let (size, is_whole) = (self.arguments.size.bytes(), self.arguments.consumed.is_some());
        expand_session_at(&self.bytes, size, at, is_whole, self.arguments.mini.format())
    }

    fn in_words(&self, index: usize, role: &Role) -> Outcome<String> {
        let mut lines = vec![format!("CQE {index}")];
        match role {
            Role::Behind(title) => lines.push(format!("taken by the completions of CQE {title}")),
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
            Role::Title(Ok(cqes)) => self.describe_all(index, cqes, lines),
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

/// The owner bit of what the device writes next at this place of a queue of so many entries (a power of two), from which `consumed`
/// CQEs have been taken.
fn owner_when_new(consumed: u32, place: usize, entries: usize) -> bool {
    let consumed = consumed as usize;
    let ahead = place.wrapping_sub(consumed) % entries;
    consumed.wrapping_add(ahead) & entries != 0
}
