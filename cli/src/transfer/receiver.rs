//! The receiving end, which stores the files.

use std::path::Path;

use nix::sys::signal::{SigHandler, Signal, signal};
use uverbs::op;
use uverbs::qp::PostFlags;

use super::partial::{Partial, require_writable};
use super::progress::Progress;
use super::protocol::{Hello, Message, VERSION, Welcome, Window};
use super::{SERVICE, SLOT_BYTES, SLOTS, shape};
use crate::args::TransferRecv;
use crate::device;
use crate::failure::{Failure, Outcome};
use crate::link::{Link, LocalRange};
use crate::output::{print, print_json};
use crate::pair::{listening, listening_json};
use crate::rendezvous::{Code, Listener, Rendezvous, require_version};

/// One of this many credits is signaled; its completion also retires the ones before it.
const SIGNAL_EVERY: u64 = SLOTS as u64 / 2;

/// Runs `uverbs transfer recv`.
pub(super) fn run(arguments: &TransferRecv) -> Outcome {
    let directory = arguments.dir.display();
    if !arguments.dir.exists() {
        return Err(Failure::usage(format!("{directory} does not exist (mkdir {directory})")));
    }
    if !arguments.dir.is_dir() {
        return Err(Failure::usage(format!("{directory} is not a directory")));
    }
    // Reported now instead of to the first sender.
    require_writable(&arguments.dir)?;
    report_file_limits();
    let chosen = device::choose(&arguments.choice)?;
    let code = Code::to_listen(&arguments.code)?;
    let listener = Listener::bind(arguments.listen, arguments.port, SERVICE, code)?;
    if arguments.json {
        print_json(&listening_json(&listener)?)?;
    } else {
        print(format_args!("device    {}\n{}", chosen.device_line(), listening(&listener)?))?;
    }
    let peer = listener.accept()?;
    let link = Link::new(&chosen, shape(SLOTS, SLOT_BYTES))?;
    let chunk = vec![0; SLOT_BYTES as usize];
    let mut receiver = Receiver { link, peer, chunk, taken: 0, json: arguments.json };
    let received =
        receiver.connect().and_then(|()| receiver.receive_all(&arguments.dir, arguments.overwrite));
    received.inspect_err(|failure| receiver.peer.abort(&failure.to_string()))
}

/// Turns writes beyond the process's file size limit (`ulimit -f`) into errors, like a full disk.
/// By default the signal would end the process.
#[allow(unsafe_code)]
fn report_file_limits() {
    // SAFETY: ignoring a signal installs no handler. It cannot fail for SIGXFSZ.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}

struct Receiver {
    link: Link,
    peer: Rendezvous,
    chunk: Vec<u8>,
    /// Chunks received so far, of all files.
    taken: u64,
    json: bool,
}

impl Receiver {
    fn connect(&mut self) -> Outcome {
        (0..SLOTS).try_for_each(|_| self.link.receive(None))?;
        let remote = self.link.remote()?;
        let window = Window {
            address: remote.address,
            rkey: remote.rkey,
            slots: SLOTS,
            slot_bytes: SLOT_BYTES,
        };
        self.peer.send(&window)?;
        let hello: Hello = self.peer.receive()?;
        require_version(SERVICE, hello.transfer_version, VERSION)?;
        self.link.connect(&hello.endpoint, &mut self.peer)?;
        self.peer.send(&Welcome { endpoint: self.link.endpoint()? })
    }

    fn receive_all(&mut self, directory: &Path, overwrite: bool) -> Outcome {
        loop {
            match self.peer.receive()? {
                Message::Offer { name, size } => self.receive(directory, &name, size, overwrite)?,
                Message::Goodbye => return Ok(()),
                other => {
                    return Err(Failure::failed(format!(
                        "the sender says {other:?} between two files"
                    )));
                }
            }
        }
    }

    fn receive(&mut self, directory: &Path, name: &str, size: u64, overwrite: bool) -> Outcome {
        let partial = Partial::begin(directory, name, size, overwrite)?;
        if !self.json {
            print(format_args!("receiving {name}: {size} bytes from {}", self.peer.peer()))?;
        }
        self.peer.send(&Message::Accept)?;
        let progress = Progress::new(name, size);
        let mut hash = blake3::Hasher::new();
        let mut offset = 0;
        while offset < size {
            let length = (size - offset).min(SLOT_BYTES.into()) as usize;
            self.take_chunk(length)?;
            hash.update(&self.chunk[..length]);
            partial.write_at(&self.chunk[..length], offset)?;
            offset += length as u64;
            progress.advance(length as u64);
        }
        self.require_checksum(name, &hash.finalize())?;
        let path = partial.finish()?;
        self.peer.send(&Message::Stored)?;
        let stored = progress.finish();
        let checksum = hash.finalize().to_hex();
        if self.json {
            let (path, peer) = (path.to_string_lossy(), self.peer.peer());
            return print_json(&stored.json("stored", &path, &checksum, &peer));
        }
        print(format_args!("stored {}: {stored}, checksum {checksum}", path.display()))
    }

    fn require_checksum(&mut self, name: &str, found: &blake3::Hash) -> Outcome {
        match self.peer.receive()? {
            Message::Done { checksum } if checksum == found.to_hex().as_str() => Ok(()),
            Message::Done { .. } => Err(Failure::failed(format!(
                "{name} arrived with wrong contents (the checksums differ)"
            ))),
            other => {
                Err(Failure::failed(format!("the sender says {other:?} instead of a checksum")))
            }
        }
    }

    /// Waits for the next chunk, copies it out of its slot and returns the slot.
    fn take_chunk(&mut self, length: usize) -> Outcome {
        let completion = self.link.next_receive(&mut self.peer)?;
        let number = completion.immediate().map(|immediate| immediate.to_u32());
        if number != Some(self.taken as u32) || completion.byte_len() as usize != length {
            let came = number.map_or("a message without a number".into(), |n| format!("chunk {n}"));
            return Err(Failure::failed(format!(
                "chunk {} of {length} bytes was due, {came} of {} bytes came",
                self.taken,
                completion.byte_len()
            )));
        }
        let offset = (self.taken % u64::from(SLOTS)) as usize * SLOT_BYTES as usize;
        self.link.memory().read(offset, &mut self.chunk[..length])?;
        self.link.receive(None)?;
        self.return_slot()
    }

    fn return_slot(&mut self) -> Outcome {
        let flags = if self.taken.is_multiple_of(SIGNAL_EVERY) {
            PostFlags::SIGNALED
        } else {
            PostFlags::empty()
        };
        self.taken += 1;
        self.link.post(op::Send, LocalRange { offset: 0, length: 0 }, flags)
    }
}
