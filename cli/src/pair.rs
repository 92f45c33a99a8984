//! Both ends on this machine: this process is the client, and starts the listening end as a second process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use serde::Deserialize;

use crate::device::Chosen;
use crate::failure::{Context, Failure, Outcome};
use crate::rendezvous::Rendezvous;

/// The server's process, killed if it is still there when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// What the server prints first.
#[derive(Debug, Deserialize)]
struct Listening {
    listening_on_port: u16,
}

/// In the server: ends with the process that started it, however that ends.
pub(crate) fn die_with(parent: u32) -> Outcome {
    set_pdeathsig(Signal::SIGKILL).context(|| "cannot bind to the life of the client".into())?;
    // It may have died before.
    if getppid() != Pid::from_raw(parent as i32) {
        return Err(Failure::failed("the client has gone away"));
    }
    Ok(())
}

impl Server {
    /// Starts `uverbs SUBCOMMAND --listen` on the same device.
    pub(crate) fn start(subcommand: &str, chosen: &Chosen, options: &[&str]) -> Outcome<Self> {
        let doing = || "cannot start the server's process".to_owned();
        let mut command = Command::new(std::env::current_exe().context(doing)?);
        command.args([subcommand, "--listen", "--json", "--port", "0"]).args(options);
        command.args(["--child-of", &std::process::id().to_string()]);
        command.args(["--device", chosen.context.device().name()]);
        command.args(["--gid-index", &chosen.gid.entry.index.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context(doing)?;
        let output = child.stdout.take().ok_or_else(|| Failure::failed(doing()))?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    /// Connects to it.
    pub(crate) fn connect(&mut self) -> Outcome<Rendezvous> {
        Rendezvous::connect("127.0.0.1", self.port()?)
    }

    fn port(&mut self) -> Outcome<u16> {
        let mut line = String::new();
        self.output.read_line(&mut line).context(|| "cannot hear the server's process".into())?;
        let listening: Listening = serde_json::from_str(&line)
            .map_err(|_| Failure::failed("the server's process ended before it listened"))?;
        Ok(listening.listening_on_port)
    }

    /// Waits for its end, which must be a good one.
    pub(crate) fn finish(mut self) -> Outcome {
        let mut rest = String::new();
        self.output
            .read_to_string(&mut rest)
            .context(|| "cannot hear the server's process".into())?;
        let status = self.child.wait().context(|| "cannot wait for the server's process".into())?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::failed(format!("the server's process failed: {status}")))
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Of no effect on a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
