//! The files that users name for what a run writes: recordings and traces.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl};

use crate::signals::without_signals;

/// Opens a file for writing: through links, to whatever is there. A FIFO without a reader is
/// refused, because the program would wait for one.
///
/// # Errors
/// Those of the file system.
pub fn open_output(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(libc::O_NONBLOCK).open(path).map_err(|error| {
        let is_fifo = || fs::metadata(path).is_ok_and(|data| data.file_type().is_fifo());
        match error.raw_os_error() {
            Some(libc::ENXIO) if is_fifo() => {
                io::Error::new(error.kind(), "no program reads the FIFO; start its reader first")
            }
            _ => error,
        }
    })?;
    // A write waits for a slow reader.
    let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}

/// Says on standard error that a file lacks what was to be written to it. It takes no lock, because
/// a forked child may inherit one that no thread releases.
pub fn say_incomplete(what: &str, path: &Path, error: &io::Error) {
    let text = format!("uverbs: the {what} {} is incomplete: {error}\n", path.display());
    // If this fails, there is no other place for the message.
    let _ = without_signals(|| nix::unistd::write(io::stderr(), text.as_bytes()));
}

/// Creates a file that no device or process of a run has created before. Returns false if one has,
/// or if the directory is gone because the run is over.
#[must_use]
pub fn is_first(marker: &Path) -> bool {
    OpenOptions::new().write(true).create_new(true).open(marker).is_ok()
}

/// The recording of one device. Says so if it cannot be written to its end.
#[derive(Debug)]
pub(super) struct Recording {
    path: PathBuf,
    file: File,
    /// Keeps other devices from recording to the same file.
    _lock: Option<Flock<File>>,
    failed: bool,
}

impl Recording {
    /// Opens a device's recording. A recording has one writer: the first device has the file that
    /// the user named. The names of others, of this process or of another, end with process and
    /// device.
    ///
    /// With a marker, the first device of the run replaces an older recording. Without one, a file
    /// is free if it is empty and no device records to it.
    pub(super) fn open(path: &Path, index: u32, marker: Option<&Path>) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true);
        if is_device(path) {
            return open_output(&mut options, path).map(|file| Self::new(path, file, None));
        }
        match marker {
            Some(marker) if is_first(marker) => {
                // A program that finds no device looks again.
                let unmark = |_: &_| drop(fs::remove_file(marker));
                let file = open_output(options.truncate(true), path).inspect_err(unmark)?;
                return Ok(Self::new(path, file, None));
            }
            Some(_) => {}
            None => {
                if let Some(free) = Self::open_free(&mut options, path)? {
                    return Ok(free);
                }
            }
        }
        let mut other = path.as_os_str().to_owned();
        other.push(format!(".{}-{index}", std::process::id()));
        let other = PathBuf::from(other);
        let file = open_output(options.truncate(true), &other)?;
        Ok(Self::new(&other, file, None))
    }

    fn open_free(options: &mut OpenOptions, path: &Path) -> io::Result<Option<Self>> {
        let file = open_output(options, path)?;
        match Flock::lock(file.try_clone()?, FlockArg::LockExclusiveNonblock) {
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
            Ok(_) if holds_data(&file)? => Ok(None),
            Ok(lock) => Ok(Some(Self::new(path, file, Some(lock)))),
        }
    }

    fn new(path: &Path, file: File, lock: Option<Flock<File>>) -> Self {
        Self { path: path.to_owned(), file, _lock: lock, failed: false }
    }

    /// The first failure is the end of the recording.
    fn note(&mut self, error: &io::Error) {
        let passes = error.kind() == ErrorKind::Interrupted;
        if !passes && !std::mem::replace(&mut self.failed, true) {
            say_incomplete("recording", &self.path, error);
        }
    }
}

impl Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The program must not get a signal if the reader of a FIFO is gone.
        let written = without_signals(|| nix::unistd::write(&self.file, bytes));
        written.map_err(io::Error::from).inspect_err(|error| self.note(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Any number of writers may write to a device node.
fn is_device(path: &Path) -> bool {
    let kind = fs::metadata(path).map(|data| data.file_type());
    kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device())
}

fn holds_data(file: &File) -> io::Result<bool> {
    let data = file.metadata()?;
    Ok(data.is_file() && data.len() > 0)
}

#[cfg(test)]
mod tests;
