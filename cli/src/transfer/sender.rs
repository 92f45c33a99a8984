//! The sending end, which reads the files.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use uverbs::qp::{Immediate, PostFlags};
use uverbs::{MemoryView, Remote, op};

use super::partial::checked_name;
use super::progress::Progress;
use super::protocol::{Hello, Message, VERSION, Welcome, Window};
use super::{SERVICE, patience_to_store, shape};
use crate::args::TransferSend;
use crate::device;
use crate::failure::{Context, Failure, Outcome};
use crate::link::{Link, LocalRange};
use crate::output::{print, print_json};
use crate::rendezvous::{Code, Rendezvous};

/// The most memory that a receiver may make this end register: 64 MiB.
const LARGEST_WINDOW: u64 = 64 << 20;

/// An opened file.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    name: String,
    file: File,
    size: u64,
}

/// Runs `uverbs transfer send`.
pub(super) fn run(arguments: &TransferSend) -> Outcome {
    let (paths, host) = split(&arguments.files_and_host)?;
    let sources = paths.iter().map(|path| Source::open(path)).collect::<Outcome<Vec<_>>>()?;
    require_distinct(&sources)?;
    let chosen = device::choose(&arguments.choice)?.by_address(arguments.cm);
    let code = Code::to_connect(&arguments.code);
    let mut peer = Rendezvous::connect(host, arguments.port, SERVICE, code.as_ref())?;
    // The receiver sends its window first, because it determines the queue pair's size.
    let window: Window = peer.receive()?;
    window.check()?;
    let link = Link::new(&chosen, shape(window.slots, window.slot_bytes))?;
    let mut sender = Sender {
        link,
        peer,
        window,
        chunk: vec![0; window.slot_bytes as usize],
        credits: window.slots,
        unacknowledged: 0,
        posted: 0,
        json: arguments.json,
    };
    let sent =
        sender.connect().and_then(|()| sources.iter().try_for_each(|source| sender.send(source)));
    let sent = sent.and_then(|()| sender.peer.send(&Message::Goodbye));
    sent.inspect_err(|failure| sender.peer.abort(&failure.to_string()))
}

fn split(words: &[PathBuf]) -> Outcome<(&[PathBuf], &str)> {
    match words.split_last() {
        Some((host, files)) if !files.is_empty() => match host.to_str() {
            Some(host) => Ok((files, host)),
            None => Err(Failure::usage(format!("the host name {} is not UTF-8", host.display()))),
        },
        _ => Err(Failure::usage("send needs at least one FILE, and the receiver's HOST last")),
    }
}

/// Checks that no two files have the same name, because all are stored in one directory.
fn require_distinct(sources: &[Source]) -> Outcome {
    let mut names = HashSet::new();
    match sources.iter().find(|source| !names.insert(&source.name)) {
        Some(twice) => Err(Failure::usage(format!(
            "two of the files are called {}, and they go to one directory",
            twice.name
        ))),
        None => Ok(()),
    }
}

impl Source {
    fn open(path: &Path) -> Outcome<Self> {
        let shown = path.display();
        let name =
            path.file_name().ok_or_else(|| Failure::usage(format!("{shown} is not a file")))?;
        let name = name.to_str().ok_or_else(|| {
            Failure::failed(format!("the name of {shown} is not UTF-8; rename it"))
        })?;
        checked_name(name).map_err(|failure| Failure::failed(format!("{failure}; rename it")))?;
        let metadata = path.metadata().context(|| format!("cannot read {shown}"))?;
        if !metadata.is_file() {
            return Err(Failure::usage(format!("{shown} is not a regular file")));
        }
        let file = File::open(path).context(|| format!("cannot read {shown}"))?;
        Ok(Self { path: path.to_owned(), name: name.to_owned(), file, size: metadata.len() })
    }

    /// Fills all of `chunk` with the file's bytes from `offset`.
    fn read(&self, chunk: &mut [u8], offset: u64) -> Outcome {
        self.file.read_exact_at(chunk, offset).map_err(|error| {
            let shown = self.path.display();
            Failure::failed(match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    format!("{shown} became shorter while it was sent")
                }
                _ => format!("cannot read {shown}: {error}"),
            })
        })
    }
}

impl Window {
    /// Whether this end can use a receiver's window.
    fn check(&self) -> Outcome {
        let bytes = u64::from(self.slots) * u64::from(self.slot_bytes);
        if self.slots == 0 || self.slots > 1024 || self.slot_bytes == 0 || bytes > LARGEST_WINDOW {
            return Err(Failure::failed(format!(
                "the receiver offers an unusable window: {self:?}"
            )));
        }
        Ok(())
    }

    fn slot(&self, chunk: u64) -> usize {
        (chunk % u64::from(self.slots)) as usize * self.slot_bytes as usize
    }
}

struct Sender {
    link: Link,
    peer: Rendezvous,
    window: Window,
    chunk: Vec<u8>,
    /// Slots of the receiver that are free.
    credits: u32,
    /// Writes without a completion yet.
    unacknowledged: u32,
    /// Chunks sent so far, of all files.
    posted: u64,
    json: bool,
}

impl Sender {
    fn connect(&mut self) -> Outcome {
        (0..self.window.slots).try_for_each(|_| self.link.receive(None))?;
        self.peer.send(&Hello { transfer_version: VERSION, endpoint: self.link.endpoint()? })?;
        self.link.accept(&mut self.peer)?;
        let welcome: Welcome = self.peer.receive()?;
        self.link.connect(&welcome.endpoint, &mut self.peer)?;
        Ok(())
    }

    fn send(&mut self, source: &Source) -> Outcome {
        self.peer.send(&Message::Offer { name: source.name.clone(), size: source.size })?;
        self.expect_accept()?;
        let progress = Progress::new(&source.name, source.size);
        let mut hash = blake3::Hasher::new();
        let mut offset = 0;
        while offset < source.size {
            let length = (source.size - offset).min(self.window.slot_bytes.into()) as usize;
            source.read(&mut self.chunk[..length], offset)?;
            hash.update(&self.chunk[..length]);
            self.send_chunk(length)?;
            offset += length as u64;
            progress.advance(length as u64);
        }
        self.drain()?;
        self.peer.send(&Message::Done { checksum: hash.finalize().to_hex().to_string() })?;
        self.expect_stored(source.size)?;
        let sent = progress.finish();
        if self.json {
            let (path, peer) = (source.path.to_string_lossy(), self.peer.peer());
            return print_json(&sent.json("sent", &path, &hash.finalize().to_hex(), &peer));
        }
        print(format_args!("sent {}: {sent}, verified by the receiver", source.name))
    }

    fn expect_accept(&mut self) -> Outcome {
        match self.peer.receive()? {
            Message::Accept => Ok(()),
            other => Err(Failure::failed(format!("the receiver says {other:?} to an offer"))),
        }
    }

    /// The receiver may have to write gigabytes to the disk before it answers.
    fn expect_stored(&mut self, bytes: u64) -> Outcome {
        match self.peer.receive_within(patience_to_store(bytes))? {
            Message::Stored => Ok(()),
            other => Err(Failure::failed(format!(
                "the receiver says {other:?} instead of having stored the file"
            ))),
        }
    }

    /// Writes the first `length` bytes of the chunk into the next slot of the receiver, as soon as
    /// it is free.
    fn send_chunk(&mut self, length: usize) -> Outcome {
        while self.credits == 0 {
            self.next_completion()?;
        }
        let offset = self.window.slot(self.posted);
        let memory: MemoryView<'_> = self.link.memory();
        memory.write(offset, &self.chunk[..length])?;
        let remote = Remote::new(self.window.address.wrapping_add(offset as u64), self.window.rkey);
        let operation = op::WriteImmediate(remote, Immediate::from_u32(self.posted as u32));
        self.link.post(operation, LocalRange { offset, length }, PostFlags::SIGNALED)?;
        self.credits -= 1;
        self.unacknowledged += 1;
        self.posted += 1;
        Ok(())
    }

    /// Waits for one completion: of a chunk that has arrived, or of a slot that the receiver
    /// returns.
    fn next_completion(&mut self) -> Outcome {
        let completion = self.link.next(&mut self.peer)?;
        if completion.is_send() {
            self.unacknowledged -= 1;
            return Ok(());
        }
        self.credits += 1;
        self.link.receive(None)
    }

    fn drain(&mut self) -> Outcome {
        while self.unacknowledged > 0 {
            self.next_completion()?;
        }
        Ok(())
    }
}
