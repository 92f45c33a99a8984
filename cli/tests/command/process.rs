//! Running the command with a bound on its time.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of a run. Commands take a fraction of it, so one that reaches it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The command, on the software device.
pub(crate) fn uverbs<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uverbs"));
    command.args(arguments).env("UVERBS_DEVICE", "soft").env(CODE_VARIABLE, CODE);
    command.stdin(Stdio::null());
    command
}

/// The variable with the code of both ends.
pub(crate) const CODE_VARIABLE: &str = "UVERBS_CODE";
/// The code of all runs that are not about codes.
pub(crate) const CODE: &str = "tests";

/// Builds the library that `uverbs run` puts under programs beside the command: cargo does not know
/// that tests need it.
pub(crate) fn build_library() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let profile = Path::new(env!("CARGO_BIN_EXE_uverbs")).parent().expect("a directory");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "uverbs-preload", "--target-dir"]);
        cargo.arg(profile.parent().expect("a directory"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo").success());
    });
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        assert!(self.status.success(), "{self:?}");
        self
    }

    /// The run failed with `status` and one sentence, which says `words`.
    #[track_caller]
    pub(crate) fn failure(self, status: i32, words: &str) -> Self {
        assert_eq!(self.status.code(), Some(status), "{self:?}");
        let last = self.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("uverbs: ") && last.contains(words), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        self
    }
}

/// Kills a process that is waited for longer than [`PATIENCE`].
struct Watchdog {
    ended: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watchdog {
    fn new(id: u32) -> Self {
        let (ended, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            if receiver.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
            }
        });
        Self { ended: Some(ended), thread: Some(thread) }
    }
}

/// Joins the thread, so that it cannot kill another process that has got the number since.
impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.ended.take());
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// A running command. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: Option<thread::JoinHandle<String>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start uverbs");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let mut stderr = child.stderr.take().expect("stderr");
        let reader = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).expect("stderr");
            text
        });
        Self { child, stdout, stderr: Some(reader) }
    }

    /// Reads standard output up to the line that starts with `word`, and gives the rest of that
    /// line.
    #[track_caller]
    pub(crate) fn line(&mut self, word: &str) -> String {
        let _watchdog = Watchdog::new(self.child.id());
        loop {
            let mut line = String::new();
            let length = self.stdout.read_line(&mut line).expect("stdout");
            assert!(
                length > 0,
                "ended before it said {word:?}: {:?}",
                self.stderr.take().map(thread::JoinHandle::join)
            );
            if let Some(rest) = line.trim_end().strip_prefix(word) {
                return rest.to_owned();
            }
        }
    }

    /// The port and the code that a listening end has chosen and printed.
    #[track_caller]
    pub(crate) fn port_and_code(&mut self) -> (String, String) {
        let code = self.line("code      ");
        let code = code.split(' ').next().expect("a word").to_owned();
        (self.line("listening on port "), code)
    }

    /// The port that a listening end has chosen and printed.
    #[track_caller]
    pub(crate) fn port(&mut self) -> String {
        self.line("listening on port ")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("stdin")
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill");
    }

    /// Waits for the end; panics if it does not come in time.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        let mut stdout = String::new();
        let watchdog = Watchdog::new(self.child.id());
        let began = Instant::now();
        self.stdout.read_to_string(&mut stdout).expect("stdout");
        let status = self.child.wait().expect("wait");
        drop(watchdog);
        assert!(began.elapsed() < PATIENCE, "hung; so far it said {stdout:?}");
        let stderr =
            self.stderr.take().map_or(String::new(), |reader| reader.join().expect("stderr"));
        Ended { status, stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the command to its end.
#[track_caller]
pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Ended {
    Running::start(&mut uverbs(arguments)).end()
}

/// Runs the command with something to read.
#[track_caller]
pub(crate) fn run_with_input<S: AsRef<std::ffi::OsStr>>(arguments: &[S], input: &[u8]) -> Ended {
    let mut running = Running::start(uverbs(arguments).stdin(Stdio::piped()));
    let mut stdin = running.stdin();
    let input = input.to_vec();
    let writer = thread::spawn(move || stdin.write_all(&input));
    let ended = running.end();
    // A command that does not read all of it closes the pipe.
    let _ = writer.join().expect("writer");
    ended
}

/// Waits until /proc/net/tcp shows a listener. A connection would count as a client.
pub(crate) fn wait_for_listener(port: &str) {
    let number: u16 = port.parse().expect("a port");
    let words =
        [format!(":{number:04X} 00000000:0000 0A"), format!(":{number:04X} {:032}:0000 0A", 0)];
    let began = Instant::now();
    loop {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"]
            .map(|table| std::fs::read_to_string(table).unwrap_or_default());
        if tables.iter().any(|table| words.iter().any(|word| table.contains(word))) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "no program listens on port {port}");
        thread::yield_now();
    }
}

/// A directory that is removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        Self::in_directory(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    /// Two tests may give the same name.
    pub(crate) fn in_directory(directory: &Path, name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = directory.join(format!("{name}-{process}-{number}"));
        std::fs::create_dir_all(&path).expect("scratch directory");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, contents).expect("write");
        path
    }

    /// A directory in it.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir(&path).expect("directory");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The names in a directory, hidden ones too.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("read directory");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
