//! Writing pcapng (draft-ietf-opsawg-pcapng): one section, one interface, nanoseconds.

use std::io::{self, Write};

use super::{BYTE_ORDER, ENHANCED_PACKET, ETHERNET, INTERFACE, SECTION_HEADER, STATISTICS};
use crate::error::{Error, Result};

const VERB: &str = "write_recording";
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const USER_APPLICATION: u16 = 4;
const IFRECV: u16 = 4;
const IFDROP: u16 = 5;
/// log10 of timestamps per second.
const NANOSECONDS: u8 = 9;

/// Writes frames to a pcapng file. Give it a buffered writer.
///
/// Writing a frame makes no copy and no allocation.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    to: W,
    bytes: u64,
}

/// A frame that is recorded only in part.
#[derive(Debug, Clone, Copy)]
pub struct Snapped<'f> {
    /// The recorded bytes, from the start of the frame.
    pub start: &'f [u8],
    /// Bytes of the whole frame.
    pub length: u32,
}

impl<W: Write> Recorder<W> {
    /// Writes the file's header. `interface` is the name of the frames' source.
    ///
    /// # Errors
    /// I/O errors.
    pub fn new(to: W, interface: &str) -> Result<Self> {
        let mut recorder = Self { to, bytes: 0 };
        let mut section = Vec::new();
        section.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        section.extend_from_slice(&[1, 0, 0, 0]);
        // The section's length is not known yet.
        section.extend_from_slice(&u64::MAX.to_le_bytes());
        let by = concat!("uverbs ", env!("CARGO_PKG_VERSION"));
        option(&mut section, USER_APPLICATION, by.as_bytes());
        let mut interface_block = Vec::new();
        interface_block.extend_from_slice(&ETHERNET.to_le_bytes());
        // Reserved, and a snapshot length of 0: no limit.
        interface_block.extend_from_slice(&[0; 6]);
        let name = interface.as_bytes();
        option(&mut interface_block, IF_NAME, name.get(..255).unwrap_or(name));
        option(&mut interface_block, IF_TSRESOL, &[NANOSECONDS]);
        let written = recorder.block(SECTION_HEADER, &end(section));
        let written = written.and_then(|()| recorder.block(INTERFACE, &end(interface_block)));
        written.map_err(|error| failed(&error))?;
        Ok(recorder)
    }

    /// Records a frame that arrived at `time`, in nanoseconds since 1970.
    ///
    /// # Errors
    /// I/O errors, such as ENOSPC.
    pub fn write(&mut self, time: u64, frame: &[u8]) -> Result<()> {
        self.write_start(time, Snapped { start: frame, length: frame.len() as u32 })
    }

    /// As [`Recorder::write`], for the start of a frame.
    ///
    /// # Errors
    /// As for [`Recorder::write`].
    pub fn write_start(&mut self, time: u64, frame: Snapped<'_>) -> Result<()> {
        self.packet(time, frame).map_err(|error| failed(&error))
    }

    fn packet(&mut self, time: u64, frame: Snapped<'_>) -> io::Result<()> {
        let recorded = frame.start.len() as u32;
        let padding = (4 - recorded % 4) % 4;
        let total = 32 + recorded + padding;
        let words = [
            ENHANCED_PACKET,
            total,
            0,
            (time >> 32) as u32,
            time as u32,
            recorded,
            frame.length.max(recorded),
        ];
        let mut header = [0; 28];
        for (bytes, word) in header.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.to.write_all(&header)?;
        self.to.write_all(frame.start)?;
        let mut trailer = [0; 7];
        trailer[3..].copy_from_slice(&total.to_le_bytes());
        self.to.write_all(&trailer[3 - padding as usize..])?;
        self.bytes += u64::from(total);
        Ok(())
    }

    /// Records the number of frames that arrived until `time`, and of those that were dropped.
    ///
    /// # Errors
    /// As for [`Recorder::write`].
    pub fn statistics(&mut self, time: u64, received: u64, dropped: u64) -> Result<()> {
        let mut body = Vec::new();
        for word in [0, (time >> 32) as u32, time as u32] {
            body.extend_from_slice(&word.to_le_bytes());
        }
        option(&mut body, IFRECV, &received.to_le_bytes());
        option(&mut body, IFDROP, &dropped.to_le_bytes());
        self.block(STATISTICS, &end(body)).map_err(|error| failed(&error))
    }

    /// Flushes the writer.
    ///
    /// # Errors
    /// As for [`Recorder::write`].
    pub fn flush(&mut self) -> Result<()> {
        self.to.flush().map_err(|error| failed(&error))
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the writer. Tries to flush it, and ignores errors.
    pub fn into_inner(mut self) -> W {
        let _ = self.to.flush();
        self.to
    }

    /// Writes a block. The length of its body is a multiple of four bytes.
    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let total = body.len() as u32 + 12;
        for bytes in [&kind.to_le_bytes(), &total.to_le_bytes(), body, &total.to_le_bytes()] {
            self.to.write_all(bytes)?;
        }
        self.bytes += u64::from(total);
        Ok(())
    }
}

fn failed(error: &io::Error) -> Error {
    Error::io(VERB, error)
}

fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend_from_slice(&code.to_le_bytes());
    to.extend_from_slice(&(value.len() as u16).to_le_bytes());
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Appends the end-of-options marker.
fn end(mut options: Vec<u8>) -> Vec<u8> {
    options.extend_from_slice(&[0; 4]);
    options
}
