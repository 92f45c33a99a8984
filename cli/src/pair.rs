//! The listening end of a measurement or pingpong: how it starts, and how a client starts it as a
//! second process on this machine.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use serde::Deserialize;
use serde_json::{Value, json};
use uverbs::soft::wire::HostAddress;

use crate::args::PairOptions;
use crate::device::{self, ADDRESS_VARIABLE, Chosen};
use crate::failure::{Context, Failure, Outcome};
use crate::output::{print, print_json};
use crate::rendezvous::{CODE_VARIABLE, Code, Listener, Rendezvous};

/// The server's process, killed on drop if it is still running.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    service: &'static str,
    code: Code,
}

/// The first output of the server.
#[derive(Debug, Deserialize)]
struct Listening {
    listening_on_port: u16,
}

/// The arguments of a listening end.
pub(crate) struct ListenOptions<'a> {
    /// The subcommand.
    pub(crate) service: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) options: &'a PairOptions,
}

impl ListenOptions<'_> {
    /// Chooses the device, listens, and prints the lines of `about`, the code and the port.
    pub(crate) fn listen(
        &self,
        about: impl FnOnce(&Chosen) -> String,
    ) -> Outcome<(Chosen, Listener)> {
        let PairOptions { choice, code, child_of, json, .. } = self.options;
        // This process must end with the client that started it.
        child_of.map_or(Ok(()), die_with)?;
        let chosen = device::choose(choice)?;
        let code = Code::to_listen(code)?;
        let listener = Listener::bind(self.address.ip(), self.address.port(), self.service, code)?;
        if *json {
            print_json(&listening_json(&listener)?)?;
        } else {
            print(format_args!("{}\n{}", about(&chosen), listening(&listener)?))?;
        }
        Ok((chosen, listener))
    }
}

/// The data with which a script reaches a listening end. The code is included only if this end
/// generated it.
pub(crate) fn listening_json(listener: &Listener) -> Outcome<Value> {
    let address = listener.address()?;
    Ok(json!({
        "listening_on_address": address.ip().to_string(),
        "listening_on_port": address.port(),
        "code": listener.code_to_pass_on(),
    }))
}

/// The text with which a user reaches a listening end. The port comes last, so that a reader that
/// has the port has everything.
pub(crate) fn listening(listener: &Listener) -> Outcome<String> {
    let address = listener.address()?;
    let code = listener
        .code_to_pass_on()
        .map_or(String::new(), |code| format!("code      {code} (the other end's --code)\n"));
    Ok(format!("{}\n{code}listening on port {}", address_line(&address), address.port()))
}

fn address_line(address: &SocketAddr) -> String {
    let reach = if address.ip().is_loopback() {
        " (this machine only; --listen ADDRESS for others)"
    } else {
        ""
    };
    format!("address   {}{reach}", address.ip())
}

/// Ends this process when the one that started it ends.
fn die_with(parent: u32) -> Outcome {
    set_pdeathsig(Signal::SIGKILL).context(|| "cannot arrange to end with the client".into())?;
    // The client may have ended before the call.
    if getppid() != Pid::from_raw(parent as i32) {
        return Err(Failure::failed("the client has gone away"));
    }
    Ok(())
}

/// Fails if the client's software device has the address of an interface: the server's process
/// would take a free loopback address, which that device cannot reach.
fn require_another_address(service: &str, address: Option<&HostAddress>) -> Outcome {
    match address {
        Some(address) if address.station().is_none() => Err(Failure::usage(format!(
            "one end has {address}, and the other end needs an address of its own: start it with \
             uverbs {service} --listen --address ADDRESS, and give this one its HOST"
        ))),
        _ => Ok(()),
    }
}

impl Server {
    /// Starts `uverbs SUBCOMMAND --listen` on the same device.
    ///
    /// The server gets a code of its own through the environment, because other users can see the
    /// arguments of a process.
    pub(crate) fn start(service: &'static str, chosen: &Chosen, options: &[&str]) -> Outcome<Self> {
        require_another_address(service, chosen.address.as_ref())?;
        let doing = || "cannot start the server's process".to_owned();
        let code = Code::make_up()?;
        let mut command = Command::new(std::env::current_exe().context(doing)?);
        command.args([service, "--listen", "--json", "--port", "0"]).args(options);
        command.env(CODE_VARIABLE, code.to_pass_on().unwrap_or_default());
        // Each software device needs its own address.
        command.env_remove(ADDRESS_VARIABLE);
        command.args(["--child-of", &std::process::id().to_string()]);
        command.args(["--device", chosen.context.device().name()]);
        command.args(["--gid-index", &chosen.gid.entry.index.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context(doing)?;
        let output = child.stdout.take().ok_or_else(|| Failure::failed(doing()))?;
        Ok(Self { child, output: BufReader::new(output), service, code })
    }

    /// Connects to the server.
    pub(crate) fn connect(&mut self) -> Outcome<Rendezvous> {
        let port = self.port()?;
        Rendezvous::connect("127.0.0.1", port, self.service, Some(&self.code))
    }

    fn port(&mut self) -> Outcome<u16> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .context(|| "cannot read the output of the server's process".into())?;
        let listening: Listening = serde_json::from_str(&line)
            .map_err(|_| Failure::failed("the server's process ended before it listened"))?;
        Ok(listening.listening_on_port)
    }

    /// Waits until the server ends, and fails if it failed.
    pub(crate) fn finish(mut self) -> Outcome {
        let mut rest = String::new();
        self.output
            .read_to_string(&mut rest)
            .context(|| "cannot read the output of the server's process".into())?;
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
        // Has no effect if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_cannot_have_the_address_of_an_interface() {
        let refused = |text: &str| {
            let address: HostAddress = text.parse().expect("an address");
            require_another_address("perf", Some(&address)).is_err()
        };
        assert!(require_another_address("perf", None).is_ok());
        assert_eq!(["127.0.0.9", "10.0.0.1", "::1"].map(refused), [false, true, true]);
    }
}
