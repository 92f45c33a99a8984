//! `--trace`: like strace, for verbs. One line per call on a device node.
//!
//! ```text
//! [4712] 0.013370 uverbs0 ALLOC_PD core_out={pd_handle=1} uhw_out={pdn=2} = 0 <8 us>
//! ```
//! Process id, seconds since the library was loaded, node, method or write command, attributes
//! (outputs with the returned values), result, duration.

mod names;
mod payload;
mod request;

use std::ffi::{OsStr, c_int};
use std::fmt::{Display, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::errno::Errno;
use uverbs_soft::settings::{TRACED, is_first, open_output, say_incomplete};
use uverbs_soft::signals::without_signals;
use uverbs_uapi::cm::CmdHdr;
use uverbs_uapi::mlx5::MmapCommand;
use zerocopy::FromBytes;

use crate::node::Node;
use crate::settings;
use request::Request;

/// The file of the trace, and its start time.
struct Trace {
    file: File,
    /// The file's name; `None` for standard error.
    path: Option<PathBuf>,
    start: Instant,
    /// Whether a line was lost.
    incomplete: AtomicBool,
}

static TRACE: OnceLock<Trace> = OnceLock::new();

/// Starts the trace: to standard error for `-`, else to the end of a file, which the processes of
/// one run share.
pub(crate) fn begin(target: &OsStr) -> io::Result<()> {
    let path = (target != "-").then(|| PathBuf::from(target));
    let file = match &path {
        Some(path) => open(path)?,
        None => Some(File::from(io::stderr().as_fd().try_clone_to_owned()?)),
    };
    let Some(file) = file else { return Ok(()) };
    let (start, incomplete) = (Instant::now(), AtomicBool::new(false));
    // Set once, when the library is loaded.
    let _ = TRACE.set(Trace { file, path, start, incomplete });
    Ok(())
}

/// The first process of a run empties the file. If the file cannot be written, that process fails,
/// but later ones continue without a trace, because its reader may have ended.
fn open(path: &Path) -> io::Result<Option<File>> {
    let token = settings::of_run(TRACED);
    let is_first = token.as_ref().is_some_and(|token| is_first(token));
    match open_output(OpenOptions::new().create(true).append(true), path) {
        Err(error) if token.is_some() && !is_first => {
            say_incomplete("trace", path, &error);
            Ok(None)
        }
        Err(error) => Err(error),
        Ok(file) => {
            if is_first && file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            Ok(Some(file))
        }
    }
}

impl Trace {
    /// One write per line, so that lines of several threads and processes stay whole.
    fn line(&self, node: usize, at: Instant, text: impl Display) {
        self.line_of(format_args!("uverbs{node}"), at, text);
    }

    fn line_of(&self, node: impl Display, at: Instant, text: impl Display) {
        let since = at.saturating_duration_since(self.start);
        let line = format!(
            "[{}] {}.{:06} {node} {text}\n",
            std::process::id(),
            since.as_secs(),
            since.subsec_micros()
        );
        // The program continues if the trace's reader has ended, or if the file may not grow.
        if let Err(error) = without_signals(|| (&self.file).write_all(line.as_bytes())) {
            self.lost(&error);
        }
    }

    /// Reports once that lines are missing.
    #[cold]
    fn lost(&self, error: &io::Error) {
        let Some(path) = &self.path else { return };
        if !self.incomplete.swap(true, Ordering::Relaxed) {
            say_incomplete("trace", path, error);
        }
    }
}

/// Records that the program opened a node.
pub(crate) fn opened(index: usize, fd: c_int) {
    if let Some(trace) = TRACE.get() {
        trace.line(index, Instant::now(), format_args!("open = {fd}"));
    }
}

/// Records that the last descriptor of a node was closed.
pub(crate) fn closed(index: usize) {
    if let Some(trace) = TRACE.get() {
        trace.line(index, Instant::now(), "close");
    }
}

/// Executes an ioctl on a node and records it.
///
/// # Safety
/// As `OpenFile::ioctl`.
pub(crate) unsafe fn ioctl(node: &Node, request: *mut u8) -> Result<(), Errno> {
    let Some(trace) = TRACE.get() else {
        // SAFETY: passed on.
        return unsafe { node.file.ioctl(request) };
    };
    let before = Request::read(request as u64);
    let start = Instant::now();
    // SAFETY: passed on.
    let result = unsafe { node.file.ioctl(request) };
    let taken = start.elapsed();
    let mut text = match before {
        Some(before) => before.describe(request as u64, result.is_ok()),
        None => format!("ioctl({request:p}: not a request)"),
    };
    // Writing to a String cannot fail.
    let _ = write!(text, " = {} <{} us>", outcome(result), taken.as_micros());
    trace.line(node.index, start, text);
    result
}

/// Records that the program opened the connection manager's node.
pub(crate) fn cm_opened(fd: c_int) {
    cm_line(format_args!("open = {fd}"));
}

/// Records that the last descriptor of a file of the connection manager was closed.
pub(crate) fn cm_closed() {
    cm_line("close");
}

/// Records a command to the connection manager.
pub(crate) fn cm_command(address: u64, length: usize, result: Result<usize, Errno>) {
    if TRACE.get().is_none() || length < size_of::<CmdHdr>() {
        return;
    }
    let Some(bytes) = payload::read(address, size_of::<CmdHdr>()) else { return };
    let Ok(header) = CmdHdr::read_from_bytes(&bytes) else { return };
    let (command, result) = (header.cmd, outcome(result.map(drop)));
    cm_line(format_args!("{command} in={} out={} = {result}", header.input, header.output));
}

fn cm_line(text: impl Display) {
    if let Some(trace) = TRACE.get() {
        trace.line_of("rdma_cm", Instant::now(), text);
    }
}

fn outcome(result: Result<(), Errno>) -> String {
    match result {
        Ok(()) => "0".into(),
        Err(errno) => format!("-1 {errno:?} ({})", errno.desc()),
    }
}

/// The first command number in the offsets that the kernel gives to UAR and DM objects
/// (`MLX5_IB_MMAP_OFFSET_START` of mlx5_ib.h).
const OBJECTS: u32 = 9;

/// Records a mapping of a node.
pub(crate) fn mapped(node: &Node, length: usize, offset: i64, result: Result<u64, Errno>) {
    let Some(trace) = TRACE.get() else { return };
    let page = offset as u64 / 4096;
    let (command, index) = match (page >> 8 & 0xff) as u32 {
        OBJECTS.. => ("OBJECT".into(), page),
        command => (MmapCommand(command).to_string(), page & 0xff | page >> 16 << 8),
    };
    let result = result.map_or_else(|errno| outcome(Err(errno)), |address| format!("{address:#x}"));
    trace.line(
        node.index,
        Instant::now(),
        format_args!("mmap({command}, index={index}, length={length}) = {result}"),
    );
}
