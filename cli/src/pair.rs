//! The two ends of a measurement or game: how the listening one begins, and how a client starts it as a second process on this machine.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use serde::Deserialize;
use serde_json::json;

use crate::args::DeviceChoice;
use crate::device::{self, Chosen};
use crate::failure::{Context, Failure, Outcome};
use crate::output::{print, print_json};
use crate::rendezvous::{Rendezvous, listen, port_of};

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

/// How the listening end was asked to begin.
pub(crate) struct Beginning<'a> {
    pub(crate) choice: &'a DeviceChoice,
    pub(crate) port: u16,
    /// The client that started this process: it ends with it and listens to this machine alone.
    pub(crate) child_of: Option<u32>,
    pub(crate) json: bool,
}

impl Beginning<'_> {
    /// Chooses the device, listens, and prints what `about` says of the device and the port.
    pub(crate) fn listen(
        &self,
        about: impl FnOnce(&Chosen) -> String,
    ) -> Outcome<(Chosen, TcpListener)> {
        self.child_of.map_or(Ok(()), die_with)?;
        let chosen = device::choose(self.choice)?;
        let host = if self.child_of.is_some() { "127.0.0.1" } else { "0.0.0.0" };
        let listener = listen(host, self.port)?;
        let port = port_of(&listener)?;
        if self.json {
            print_json(&json!({ "listening_on_port": port }))?;
        } else {
            print(format_args!("{}\nlistening on port {port}", about(&chosen)))?;
        }
        Ok((chosen, listener))
    }
}

/// Ends with the process that started this one, however that ends.
fn die_with(parent: u32) -> Outcome {
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
