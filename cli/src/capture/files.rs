//! The files of a capture: one, or a ring of them.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use uverbs::ethernet::recording::{Recorder, Snapped};
use uverbs::soft::settings::open_output;

use crate::args::Capture;
use crate::failure::{Context, Failure, Outcome};

/// Bytes that are buffered before they are written.
const BUFFER: usize = 1 << 20;

/// The destination of frames.
pub(super) struct Files {
    path: PathBuf,
    interface: String,
    overwrite: bool,
    limits: Limits,
    open: Open,
    /// The kept files, oldest first; the last one is open.
    names: VecDeque<PathBuf>,
    made: u64,
    /// The time of the last frame.
    time: u64,
}

/// When the next file begins, and how many files are kept.
#[derive(Debug, Clone, Copy)]
struct Limits {
    bytes: Option<u64>,
    time: Option<Duration>,
    files: Option<usize>,
}

impl Limits {
    fn rotates(&self) -> bool {
        self.bytes.is_some() || self.time.is_some()
    }
}

struct Open {
    recorder: Recorder<BufWriter<File>>,
    since: Instant,
    frames: u64,
}

impl Files {
    pub(super) fn create(arguments: &Capture, interface: &str) -> Outcome<Self> {
        let limits = Limits {
            bytes: arguments.rotate_mib.map(|mib| mib << 20),
            time: arguments.rotate_seconds.map(Duration::from_secs_f64),
            files: arguments.files.map(|files| files as usize),
        };
        if limits.files.is_some() && !limits.rotates() {
            let text = "--files goes with --rotate-mib or --rotate-seconds";
            return Err(Failure::usage(text));
        }
        let (path, overwrite) = (arguments.file.clone(), arguments.overwrite);
        let first = if limits.rotates() { numbered(&path, 0) } else { path.clone() };
        let open = Open::new(&first, interface, overwrite)?;
        let (names, interface) = (VecDeque::from([first]), interface.to_owned());
        Ok(Self { path, interface, overwrite, limits, open, names, made: 1, time: 0 })
    }

    pub(super) fn write(&mut self, time: u64, frame: Snapped<'_>) -> Outcome {
        if self.is_full() {
            self.rotate()?;
        }
        self.time = time;
        self.open.frames += 1;
        self.open.recorder.write_start(time, frame).map_err(|error| self.failed(&error))
    }

    fn is_full(&self) -> bool {
        let long = |limit: u64| self.open.recorder.bytes() >= limit;
        let old = |limit: Duration| self.open.since.elapsed() >= limit;
        // A file has at least one frame.
        self.open.frames > 0
            && (self.limits.bytes.is_some_and(long) || self.limits.time.is_some_and(old))
    }

    fn rotate(&mut self) -> Outcome {
        self.flush()?;
        let next = numbered(&self.path, self.made);
        self.open = Open::new(&next, &self.interface, self.overwrite)?;
        self.made += 1;
        self.names.push_back(next);
        let too_many = self.limits.files.is_some_and(|files| self.names.len() > files);
        if too_many && let Some(oldest) = self.names.pop_front() {
            let what = || format!("cannot remove {}", oldest.display());
            fs::remove_file(&oldest).context(what)?;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Outcome {
        self.open.recorder.flush().map_err(|error| self.failed(&error))
    }

    /// Ends the last file with its counts.
    pub(super) fn close(&mut self, received: u64, dropped: u64) -> Outcome {
        let ended = self.open.recorder.statistics(self.time, received, dropped);
        ended.and_then(|()| self.open.recorder.flush()).map_err(|error| self.failed(&error))
    }

    pub(super) fn names(&self) -> Vec<PathBuf> {
        self.names.iter().cloned().collect()
    }

    fn failed(&self, error: &uverbs::Error) -> Failure {
        let name = self.names.back().map_or(Path::new(""), PathBuf::as_path);
        Failure::failed(format!("{}: {error}", name.display()))
    }
}

impl Open {
    fn new(path: &Path, interface: &str, overwrite: bool) -> Outcome<Self> {
        let what = || format!("cannot create {}", path.display());
        let mut options = OpenOptions::new();
        options.write(true).truncate(true).create(overwrite).create_new(!overwrite);
        // SIGINT is blocked by now, so it could not end a wait for the reader of a FIFO.
        let opened = match open_output(&mut options, path) {
            Err(_) if path.is_dir() => {
                let what = format!("{} is a directory: name a file in it", path.display());
                return Err(Failure::usage(what));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let what = format!("{} exists already: --overwrite replaces it", path.display());
                return Err(Failure::failed(what));
            }
            opened => opened.context(what)?,
        };
        let file = BufWriter::with_capacity(BUFFER, opened);
        let mut recorder = Recorder::new(file, interface).context(what)?;
        // Flushed so that a full disk is reported at once.
        recorder.flush().context(what)?;
        Ok(Self { recorder, since: Instant::now(), frames: 0 })
    }
}

/// The name with a number before its extension.
fn numbered(path: &Path, number: u64) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|text| format!(".{}", text.to_string_lossy()));
    path.with_file_name(format!("{stem}-{number:05}{}", extension.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_in_front_of_the_extension() {
        let name = |path: &str, number| numbered(Path::new(path), number).display().to_string();
        assert_eq!(name("/tmp/a.pcapng", 7), "/tmp/a-00007.pcapng");
        assert_eq!(name("feed", 123_456), "feed-123456");
    }
}
