//! A peer in another process, which runs one of the ignored tests of this test program.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, alarm};

/// Environment variable of a peer.
const ROLE: &str = "UVERBS_TEST_ROLE";

/// This process's role, set by its parent; `None` if it is not a peer. Makes the process end after
/// five minutes, so that its parent does not wait forever.
pub(crate) fn role() -> Option<String> {
    let role = std::env::var(ROLE).ok()?;
    alarm::set(300);
    Some(role)
}

/// Reports that this peer is ready, and returns when the parent ends or closes the pipe.
#[allow(dead_code, reason = "for some of the tests")]
pub(crate) fn wait_for_parent() {
    println!("\nready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// The parent's handle of a peer. Dropping it kills the peer.
pub(crate) struct Peer {
    child: Child,
    /// The pipe on which the peer and its children wait.
    #[allow(dead_code, reason = "for some of the tests")]
    pub(crate) input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

#[allow(dead_code, reason = "for some of the tests")]
impl Peer {
    /// Starts the ignored test of this name, which gets its role from [`role`].
    pub(crate) fn start(test: &str, role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]).env(ROLE, role);
        command.env("UVERBS_DEVICE", "soft");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Taken, because `Child::wait` would close it.
        let input = child.stdin.take();
        Self { child, input, lines }
    }

    /// The rest of the line that begins with this word.
    pub(crate) fn after(&mut self, word: &str) -> String {
        let mut found = self.lines.by_ref().map(|line| line.expect("the peer lives"));
        found.find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Stops the process (SIGSTOP), and returns when all of its threads have stopped: the kernel
    /// notifies the parent after the last one.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let peer = Pid::from_raw(self.child.id() as i32);
        let status = waitpid(peer, Some(WaitPidFlag::WUNTRACED));
        assert_eq!(status, Ok(WaitStatus::Stopped(peer, Signal::SIGSTOP)));
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
