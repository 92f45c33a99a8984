//! The output files of a run: recordings and traces.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl};

use crate::signals::without_signals;

/// Opens a file for writing, through links, and of any type. A FIFO without a reader is refused,
/// because the program would wait for one.
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
    // Writes wait for a slow reader.
    let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}

/// Reports on standard error that a file is incomplete. Takes no lock, because a forked child may
/// inherit a lock that no thread releases.
pub fn say_incomplete(what: &str, path: &Path, error: &io::Error) {
    let text = format!("uverbs: the {what} {} is incomplete: {error}\n", path.display());
    // If this fails, there is no other place for the message.
    let _ = without_signals(|| nix::unistd::write(io::stderr(), text.as_bytes()));
}

/// The name of a run's token for recordings: the first device to record takes it.
pub const RECORDED: &str = "recorded";
/// The name of a run's token for traces: the first process to trace takes it.
pub const TRACED: &str = "traced";

/// Takes a run's token, a file that exists until the first device or process takes it. Returns
/// false if it was taken, or if its directory is gone because the run is over. A directory that was
/// created again has no token.
#[must_use]
pub fn is_first(token: &Path) -> bool {
    fs::rename(token, taken(token)).is_ok()
}

fn taken(token: &Path) -> PathBuf {
    token.with_extension("taken")
}

/// A run's token. Dropping this value gives the token back, unless it is kept.
#[derive(Debug)]
struct Taken {
    token: PathBuf,
    is_kept: bool,
}

impl Taken {
    fn take(token: &Path) -> Option<Self> {
        is_first(token).then(|| Self { token: token.to_owned(), is_kept: false })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_kept {
            // It fails if the run is over, and then the token is no longer needed.
            let _ = fs::rename(taken(&self.token), &self.token);
        }
    }
}

/// Bytes that wait for the recording to begin; `None` when it has.
type Held = Arc<Mutex<Option<Vec<u8>>>>;

fn lock(held: &Held) -> MutexGuard<'_, Option<Vec<u8>>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A recording that has not begun. Until its device exists, the file keeps its contents, and if
/// creating the device fails and is tried again, the same file is used.
#[derive(Debug)]
pub(super) struct Start {
    file: Arc<File>,
    held: Held,
    taken: Option<Taken>,
}

impl Start {
    /// Starts the recording, which replaces the file's contents.
    pub(super) fn begin(mut self) -> io::Result<()> {
        let mut held = lock(&self.held);
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        let bytes = held.as_deref().unwrap_or_default();
        without_signals(|| (&*self.file).write_all(bytes))?;
        *held = None;
        self.taken.iter_mut().for_each(|taken| taken.is_kept = true);
        Ok(())
    }
}

/// The recording of one device. Reports an error if it becomes incomplete.
#[derive(Debug)]
pub(super) struct Recording {
    path: PathBuf,
    file: Arc<File>,
    /// Keeps other devices from recording to the same file.
    _lock: Option<Flock<File>>,
    held: Held,
    failed: bool,
}

impl Recording {
    /// Opens a device's recording. A recording has one writer: the first device has the file that
    /// the user named. The names of others, of this process or of another, end with process and
    /// device.
    ///
    /// With a token, the device that takes it replaces an older recording. Without one, a file is
    /// free if it is empty. No device records to a file that another records to.
    pub(super) fn open(path: &Path, index: u32, token: Option<&Path>) -> io::Result<(Self, Start)> {
        if is_device(path) {
            return Ok(Self::new(path, create(path)?, None, None));
        }
        let named = match token {
            Some(token) => match Taken::take(token) {
                Some(taken) => Self::open_first(path, taken)?,
                None => None,
            },
            None => Self::open_free(path)?,
        };
        if let Some(named) = named {
            return Ok(named);
        }
        let mut other = path.as_os_str().to_owned();
        other.push(format!(".{}-{index}", std::process::id()));
        let other = PathBuf::from(other);
        Ok(Self::new(&other, create(&other)?, None, None))
    }

    fn open_first(path: &Path, mut taken: Taken) -> io::Result<Option<(Self, Start)>> {
        let file = create(path)?;
        let Some(lock) = Lock::of(&file)? else {
            // Another run records to this file. Its recording must not be replaced later either, so
            // the token is not given back.
            taken.is_kept = true;
            return Ok(None);
        };
        Ok(Some(Self::new(path, file, lock.0, Some(taken))))
    }

    fn open_free(path: &Path) -> io::Result<Option<(Self, Start)>> {
        // Checked before it is opened, because the user may not be allowed to write to it.
        if fs::metadata(path).is_ok_and(|data| holds_data(&data)) {
            return Ok(None);
        }
        let file = create(path)?;
        let lock = Lock::of(&file)?;
        let is_taken = holds_data(&file.metadata()?);
        Ok(lock.filter(|_| !is_taken).map(|lock| Self::new(path, file, lock.0, None)))
    }

    fn new(
        path: &Path,
        file: File,
        lock: Option<Flock<File>>,
        taken: Option<Taken>,
    ) -> (Self, Start) {
        let (file, held) = (Arc::new(file), Arc::new(Mutex::new(Some(Vec::new()))));
        let start = Start { file: file.clone(), held: held.clone(), taken };
        (Self { path: path.to_owned(), file, _lock: lock, held, failed: false }, start)
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
        if let Some(held) = &mut *lock(&self.held) {
            held.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        // The program must not get a signal if the reader of a FIFO has ended.
        let written = without_signals(|| (&*self.file).write(bytes));
        written.inspect_err(|error| self.note(error))
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

fn holds_data(data: &Metadata) -> bool {
    data.is_file() && data.len() > 0
}

fn create(path: &Path) -> io::Result<File> {
    open_output(OpenOptions::new().write(true).create(true), path)
}

/// The lock of a recording; `None` inside if the file system has no locks.
struct Lock(Option<Flock<File>>);

impl Lock {
    /// Returns `None` if another device records to the file.
    fn of(file: &File) -> io::Result<Option<Self>> {
        Ok(match Flock::lock(file.try_clone()?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Some(Self(Some(lock))),
            Err((_, Errno::EWOULDBLOCK)) => None,
            // Some network file systems have no locks.
            Err(_) => Some(Self(None)),
        })
    }
}

#[cfg(test)]
mod tests;
