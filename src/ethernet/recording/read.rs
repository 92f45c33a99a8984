//! Reading recordings.

use std::io::{self, Read};

use super::blocks::Sections;
use super::{ETHERNET, LONGEST, SECTION_HEADER};
use crate::error::{Error, Result};

const VERB: &str = "read_recording";
const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// The format of some old Linux distributions, with longer frame headers.
const MODIFIED: u32 = 0xa1b2_cd34;

/// A frame of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Bytes of the frame on the wire. May be more than `bytes` has, if only a part was recorded.
    pub length: u32,
    /// The recorded bytes, from the destination address on, without the check sequence (FCS).
    pub bytes: Vec<u8>,
}

impl Recorded {
    /// Whether all of the frame was recorded.
    pub fn is_whole(&self) -> bool {
        self.bytes.len() == self.length as usize
    }
}

/// Reads a recording frame by frame. Give it a buffered reader. The iterator ends after an error.
#[derive(Debug)]
pub struct Recording<R> {
    source: Source<R>,
    format: Format,
    ended: bool,
}

#[derive(Debug)]
enum Format {
    Pcap(Pcap),
    Pcapng(Sections),
}

/// Contents of the header of a pcap file.
#[derive(Debug, Clone, Copy)]
struct Pcap {
    order: Order,
    /// Nanoseconds per unit of the timestamps' fraction.
    fraction: u32,
    /// Bytes of the check sequence after each frame.
    check_sequence: u32,
}

/// The byte order of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    pub(super) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) fn words<const N: usize>(self, bytes: &[u8]) -> [u32; N] {
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = self.u32([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        words
    }
}

/// The reader, and the number of bytes read.
#[derive(Debug)]
pub(super) struct Source<R> {
    from: R,
    at: u64,
}

impl<R: Read> Source<R> {
    /// Reads `N` bytes; `None` if the file ends before the first of them.
    pub(super) fn header<const N: usize>(&mut self, of: &str) -> Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        match self.fill(&mut bytes)? {
            0 => Ok(None),
            filled if filled < N => Err(self.truncated(of)),
            _ => Ok(Some(bytes)),
        }
    }

    pub(super) fn exactly<const N: usize>(&mut self, of: &str) -> Result<[u8; N]> {
        self.header(of)?.ok_or_else(|| self.truncated(of))
    }

    /// Reads `count` bytes. Allocates as they arrive, because the count may be wrong.
    pub(super) fn bytes(&mut self, count: u32, of: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = (&mut self.from).take(count.into()).read_to_end(&mut bytes);
        read.map_err(|error| Error::io(VERB, &error))?;
        self.at += bytes.len() as u64;
        if bytes.len() < count as usize { Err(self.truncated(of)) } else { Ok(bytes) }
    }

    /// Skips `count` bytes.
    pub(super) fn skip(&mut self, count: u32, of: &str) -> Result<()> {
        let copied = io::copy(&mut (&mut self.from).take(count.into()), &mut io::sink());
        let copied = copied.map_err(|error| Error::io(VERB, &error))?;
        self.at += copied;
        if copied < count.into() { Err(self.truncated(of)) } else { Ok(()) }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.from.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(VERB, &error)),
            }
        }
        self.at += filled as u64;
        Ok(filled)
    }

    fn truncated(&self, of: &str) -> Error {
        self.refuse(format!("the file ends within {of}"))
    }

    /// An error with the offset in the file.
    pub(super) fn refuse(&self, cause: impl Into<String>) -> Error {
        Error::invalid(VERB, cause.into()).asked(format!("byte {}", self.at))
    }

    /// Refuses frames longer than [`LONGEST`].
    pub(super) fn check_length(&self, recorded: u32) -> Result<()> {
        if recorded <= LONGEST {
            return Ok(());
        }
        let cause =
            format!("a frame of {recorded} bytes: more than {LONGEST}, the file is damaged");
        Err(self.refuse(cause))
    }
}

impl<R: Read> Recording<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    /// `InvalidInput` if it is not a recording of Ethernet frames; I/O errors.
    pub fn new(from: R) -> Result<Self> {
        let mut source = Source { from, at: 0 };
        let Some(first) = source.header("the first word")? else {
            return Err(source.refuse("the file is empty"));
        };
        let format = match (u32::from_le_bytes(first), u32::from_be_bytes(first)) {
            (SECTION_HEADER, _) => Format::Pcapng(Sections::first(&mut source)?),
            (magic @ (MICROSECONDS | NANOSECONDS), _) => {
                Format::Pcap(Pcap::read(&mut source, magic, Order::Little)?)
            }
            (_, magic @ (MICROSECONDS | NANOSECONDS)) => {
                Format::Pcap(Pcap::read(&mut source, magic, Order::Big)?)
            }
            (MODIFIED, _) | (_, MODIFIED) => {
                let cause = "a pcap file of the modified format: convert it with editcap";
                return Err(source.refuse(cause));
            }
            _ => return Err(source.refuse("neither a pcap nor a pcapng file")),
        };
        Ok(Self { source, format, ended: false })
    }
}

impl Pcap {
    /// Reads the header after the magic number.
    fn read(source: &mut Source<impl Read>, magic: u32, order: Order) -> Result<Self> {
        let [version, _, _, _, link] = order.words(&source.exactly::<20>("the file's header")?);
        let major = if order == Order::Little { version & 0xffff } else { version >> 16 };
        if major != 2 {
            return Err(source.refuse(format!("pcap version {major}: only 2 is known")));
        }
        check_link(source, link as u16)?;
        let fraction = if magic == NANOSECONDS { 1 } else { 1000 };
        // The upper bits say whether frames have check sequences, and their length
        // (draft-ietf-opsawg-pcap, section 4).
        let check_sequence = if link & 1 << 26 != 0 { (link >> 28) * 2 } else { 0 };
        Ok(Self { order, fraction, check_sequence })
    }

    fn next(self, source: &mut Source<impl Read>) -> Result<Option<Recorded>> {
        let Some(header) = source.header::<16>("a frame's header")? else { return Ok(None) };
        let [seconds, fraction, recorded, length] = self.order.words(&header);
        source.check_length(recorded)?;
        let mut bytes = source.bytes(recorded, "a frame")?;
        let length = length.max(recorded).saturating_sub(self.check_sequence);
        bytes.truncate(length as usize);
        let time =
            u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * u64::from(self.fraction);
        Ok(Some(Recorded { time, length, bytes }))
    }
}

/// Refuses other link types than Ethernet.
pub(super) fn check_link(source: &Source<impl Read>, link: u16) -> Result<()> {
    if link == ETHERNET {
        return Ok(());
    }
    let cause = format!("frames of link type {link}: only Ethernet (1) is known");
    Err(source.refuse(cause))
}

impl<R: Read> Iterator for Recording<R> {
    type Item = Result<Recorded>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = match &mut self.format {
            Format::Pcap(pcap) => pcap.next(&mut self.source),
            Format::Pcapng(sections) => sections.next(&mut self.source),
        };
        let next = next.transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
