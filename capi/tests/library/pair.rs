//! Two processes that work together, each of which may wait for the other for ever.

use std::fmt::Write;
use std::fs;
use std::process::Child;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

/// How long two processes may take, far longer than any two do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// How long a process may go on after the other one has failed.
const GRACE: Duration = Duration::from_secs(10);

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: &'static str,
    pub(crate) success: bool,
    /// What it wrote, and its threads if it had to be killed.
    pub(crate) text: String,
}

/// Waits until both processes have ended. Kills what goes on for too long.
pub(crate) fn both_ended(processes: [(&'static str, Child); 2]) -> [Ended; 2] {
    let mut running = processes.each_ref().map(|(name, child)| (*name, child.id())).to_vec();
    let (sender, receiver) = channel();
    for (name, child) in processes {
        let sender = sender.clone();
        thread::spawn(move || sender.send(end_of(name, child)));
    }
    let (mut ended, mut killed, mut patience) = (Vec::new(), String::new(), PATIENCE);
    while !running.is_empty() {
        match receiver.recv_timeout(patience) {
            Ok(end) => {
                running.retain(|(name, _)| *name != end.name);
                patience = if end.success { patience } else { GRACE };
                ended.push(end);
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("this function has a sender"),
            Err(RecvTimeoutError::Timeout) => {
                running.iter().for_each(|(name, id)| killed += &kill(name, *id));
            }
        }
    }
    ended.iter_mut().for_each(|end| end.text += &killed);
    ended.try_into().unwrap()
}

fn end_of(name: &'static str, child: Child) -> Ended {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Ended { name, success: output.status.success(), text }
}

/// Kills a process; returns what its threads were doing.
fn kill(name: &str, id: u32) -> String {
    let text = format!("\n{name} went on and was killed:{}", threads_of(id));
    // It may have ended meanwhile.
    let _ = signal::kill(Pid::from_raw(id as i32), Signal::SIGKILL);
    text
}

/// A line for each thread of a process: its state and processor times (`stat` of proc(5)), system
/// call and place in the kernel.
fn threads_of(id: u32) -> String {
    let mut text = String::new();
    for task in fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten() {
        let files = ["stat", "syscall", "wchan"].map(|file| task.path().join(file));
        let files = files.map(|path| fs::read_to_string(path).unwrap_or_default());
        let _ = write!(text, "\n  {}", files.map(|file| file.trim_end().to_owned()).join(" | "));
    }
    text
}
