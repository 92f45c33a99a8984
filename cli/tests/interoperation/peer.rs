//! A C program as the other end: its process, and the exchange of addresses over TCP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use uverbs::gid::GidChoice;
use uverbs::{Endpoint, Gid, Mtu};

use crate::PATIENCE;
use crate::process::{self, Running};

/// The role of this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// The C program and the stream to it.
pub(crate) struct Peer {
    program: Running,
    stream: TcpStream,
}

/// Whether the C programs are installed. With `CI` set they have to be.
pub(crate) fn is_installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    assert!(
        found || std::env::var_os("CI").is_none(),
        "{program} is missing: package ibverbs-utils or rdmacm-utils"
    );
    if !found {
        eprintln!("skipped: no {program} (package ibverbs-utils or rdmacm-utils)");
    }
    found
}

impl Peer {
    /// Starts the program with these options as the other part and meets it; `gid` is the library's
    /// own on a port that needs one.
    pub(crate) fn meet(
        program: &str,
        options: &[&str],
        gid: Option<&GidChoice>,
        role: Role,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("a port").port();
        let mut line: Vec<String> = [program, "-p", &port.to_string()].map(str::to_owned).to_vec();
        line.extend(options.iter().map(|&option| option.to_owned()));
        if let Some(gid) = gid {
            line.extend(["-g".to_owned(), gid.entry.index.to_string()]);
        }
        match role {
            Role::Client => {
                drop(listener);
                let program = Running::start(&mut command(&line));
                process::wait_for_listener(&port.to_string());
                let stream = TcpStream::connect(("127.0.0.1", port)).expect("the program listens");
                Self { program, stream }
            }
            Role::Server => {
                line.push("127.0.0.1".to_owned());
                let program = Running::start(&mut command(&line));
                let (stream, _) = listener.accept().expect("the program comes");
                Self { program, stream }
            }
        }
    }

    /// In one write: the programs do not look for the rest of a short read.
    pub(crate) fn say(&mut self, text: &str) {
        self.stream.write_all(format!("{text}\0").as_bytes()).expect("the program listens");
    }

    /// A text of this many bytes and its zero.
    pub(crate) fn hear(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length + 1];
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        self.stream.read_exact(&mut bytes).expect("the program answers");
        assert_eq!(bytes.pop(), Some(0));
        String::from_utf8(bytes).expect("text")
    }

    /// Exchanges the addresses of as many queue pairs, in the order in which the programs do it,
    /// and connects.
    pub(crate) fn exchange(
        &mut self,
        role: Role,
        own: &[Endpoint],
        mut connect: impl FnMut(&[Endpoint]),
    ) {
        let say = |peer: &mut Self| own.iter().for_each(|endpoint| peer.say(&to_text(endpoint)));
        let hear = |peer: &mut Self| -> Vec<Endpoint> {
            own.iter().map(|own| from_text(&peer.hear(ADDRESS), own)).collect()
        };
        match role {
            Role::Client => {
                say(self);
                connect(&hear(self));
                self.say("done");
            }
            Role::Server => {
                connect(&hear(self));
                say(self);
                assert_eq!(self.hear(4), "done");
            }
        }
    }

    /// Waits for the program's end; panics if it failed.
    pub(crate) fn end(self) {
        self.program.end().success();
    }
}

/// Whether the device under test is a kernel's.
pub(crate) fn is_kernel() -> bool {
    std::env::var_os("UVERBS_TEST_DEVICE").is_some()
}

/// The C program on the device under test.
fn command(line: &[String]) -> Command {
    command_at(None, line)
}

/// The same, on a software device with this address.
pub(crate) fn command_at(address: Option<&str>, line: &[String]) -> Command {
    if is_kernel() {
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]);
        return command;
    }
    process::build_library();
    let mut command = process::uverbs(&["run"]);
    command.args(address.into_iter().flat_map(|address| ["--address", address]));
    command.arg("--").args(line);
    command
}

/// Characters of an address.
const ADDRESS: usize = 51;

pub(crate) fn gid_text(gid: Option<Gid>) -> String {
    gid.unwrap_or_default().0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `LID:QPN:PSN:GID`.
fn to_text(own: &Endpoint) -> String {
    format!("{:04x}:{:06x}:{:06x}:{}", own.lid, own.qpn, own.psn, gid_text(own.gid))
}

fn from_text(text: &str, own: &Endpoint) -> Endpoint {
    let words: Vec<&str> = text.split(':').collect();
    let [lid, qpn, psn, gid] = words[..] else { panic!("not an address: {text}") };
    Endpoint { qpn: number(qpn), psn: number(psn), ..endpoint(lid, gid, own) }
}

pub(crate) fn number(digits: &str) -> u32 {
    u32::from_str_radix(digits, 16).expect("a number")
}

/// A peer of `own`. The exchange leaves out the fields that all C programs set alike: MTU 1024, one
/// READ at a time, the same kind of GID and the same Q_Key.
pub(crate) fn endpoint(lid: &str, gid: &str, own: &Endpoint) -> Endpoint {
    let gid = Gid(u128::from_str_radix(gid.trim(), 16).expect("a GID").to_be_bytes());
    Endpoint {
        lid: number(lid) as u16,
        gid: (!gid.is_zero()).then_some(gid),
        mtu: Mtu::B1024,
        responder_reads: 1,
        initiator_reads: 1,
        srqn: 0,
        ..*own
    }
}
