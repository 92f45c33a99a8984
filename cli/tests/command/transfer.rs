//! `uverbs transfer`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::process::{CODE, CODE_VARIABLE, Ended, Running, Scratch, names, run, uverbs};

/// Bytes of a sparse file: sending it takes long enough to interrupt, and it takes no disk space.
const LONG: u64 = 1 << 30;

fn receiver(directory: &Path, options: &[&str]) -> (Running, String) {
    let directory = directory.to_str().expect("a path");
    let arguments: Vec<&str> =
        ["transfer", "recv", directory, "--port", "0"].iter().chain(options).copied().collect();
    let mut receiver = Running::start(&mut uverbs(&arguments));
    let port = receiver.port();
    (receiver, port)
}

fn sender<P: AsRef<Path>>(files: &[P], port: &str) -> Running {
    let mut command = uverbs(&["transfer", "send", "--port", port]);
    command.args(files.iter().map(AsRef::as_ref)).arg("127.0.0.1");
    Running::start(&mut command)
}

fn transfer<P: AsRef<Path>>(files: &[P], directory: &Path, options: &[&str]) -> (Ended, Ended) {
    let (receiver, port) = receiver(directory, options);
    let sent = sender(files, &port).end();
    (sent, receiver.end())
}

fn sparse(scratch: &Scratch, name: &str) -> std::path::PathBuf {
    let path = scratch.path().join(name);
    File::create(&path).and_then(|file| file.set_len(LONG)).expect("a sparse file");
    path
}

#[test]
fn files_of_all_sizes_arrive_unchanged() {
    let scratch = Scratch::new("sizes");
    let out = scratch.directory("out");
    let sizes = [0usize, 1, 4095, 4097, 524_288, 524_289, 10_000_019];
    let contents =
        |size: usize| (0..size).map(|at| (at * at + at / 251) as u8).collect::<Vec<u8>>();
    let files: Vec<_> =
        sizes.iter().map(|size| scratch.file(&format!("file {size}"), &contents(*size))).collect();
    let (sent, received) = transfer(&files, &out, &[]);
    assert_eq!(sent.success().stdout.lines().count(), sizes.len());
    assert!(received.success().stderr.is_empty(), "no progress bar without a terminal");
    assert_eq!(names(&out).len(), sizes.len());
    for size in sizes {
        let arrived = fs::read(out.join(format!("file {size}"))).expect("arrived");
        assert!(arrived == contents(size), "{size} bytes");
    }
}

/// Options go between the files and the host, too.
#[test]
fn the_last_word_is_the_host() {
    let scratch = Scratch::new("words");
    let files = ["a", "b"].map(|name| scratch.file(name, b"contents"));
    let [a, b] = files.each_ref().map(|file| file.to_str().expect("a path"));
    for options in [&[][..], &["--cm"]] {
        let out = scratch.directory(&format!("out{}", options.len()));
        let (receiver, port) = receiver(&out, &[]);
        let words = [&["transfer", "send", a, b], options, &["--port", &port, "127.0.0.1"]];
        run(&words.concat()).success();
        receiver.end().success();
        assert_eq!(names(&out), ["a", "b"]);
    }
    let help = run(&["transfer", "send", "--help"]).success().stdout;
    assert!(help.contains("send [OPTIONS] <FILE>... <HOST>"), "{help}");
}

#[test]
fn an_existing_file_is_kept_unless_told_otherwise() {
    let scratch = Scratch::new("taken");
    let out = scratch.directory("out");
    fs::write(out.join("a"), "old").expect("write");
    let file = scratch.file("a", b"new");
    let (sent, received) = transfer(&[&file], &out, &[]);
    received.failure(1, "exists already");
    sent.failure(1, "exists already");
    assert_eq!(fs::read(out.join("a")).expect("read"), b"old");
    let (sent, received) = transfer(&[&file], &out, &["--overwrite"]);
    received.success();
    sent.success();
    assert_eq!(fs::read(out.join("a")).expect("read"), b"new");
    assert_eq!(names(&out), ["a"]);
}

#[test]
fn a_receiver_without_descriptors_waits_for_them() {
    let scratch = Scratch::new("descriptors");
    let out = scratch.directory("out");
    let receive = uverbs(&["transfer", "recv", out.to_str().expect("a path"), "--port", "0"]);
    let mut limited = Command::new("sh");
    // Enough for the device and the session, but not for the strangers' connections.
    limited.args(["-c", "ulimit -n 40 && exec \"$0\" \"$@\""]).arg(receive.get_program());
    limited.args(receive.get_args());
    limited.envs(receive.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut receiver = Running::start(&mut limited);
    let port = receiver.port();
    let number = port.parse::<u16>().expect("a port");
    let strangers: Vec<_> = (0..60).map(|_| TcpStream::connect(("127.0.0.1", number))).collect();
    assert!(strangers.iter().all(Result::is_ok));
    sender(&[scratch.file("a", b"contents")], &port).end().success();
    receiver.end().success();
    assert_eq!(names(&out), ["a"]);
}

#[test]
fn a_killed_sender_leaves_no_file() {
    let scratch = Scratch::new("killed-sender");
    let out = scratch.directory("out");
    let (mut receiver, port) = receiver(&out, &[]);
    let mut sender = sender(&[sparse(&scratch, "long")], &port);
    receiver.line("receiving long");
    sender.kill();
    receiver.end().failure(1, "");
    assert!(names(&out).is_empty(), "{:?}", names(&out));
}

#[test]
fn a_killed_receiver_ends_the_sender() {
    let scratch = Scratch::new("killed-receiver");
    let out = scratch.directory("out");
    let (mut receiver, port) = receiver(&out, &[]);
    let sender = sender(&[sparse(&scratch, "long")], &port);
    receiver.line("receiving long");
    receiver.kill();
    sender.end().failure(1, "");
}

#[test]
fn a_file_that_becomes_shorter_ends_both_sides() {
    let scratch = Scratch::new("shorter");
    let out = scratch.directory("out");
    let (mut receiver, port) = receiver(&out, &[]);
    let long = sparse(&scratch, "long");
    let sender = sender(&[&long], &port);
    receiver.line("receiving long");
    File::options().write(true).open(&long).and_then(|file| file.set_len(1000)).expect("truncate");
    sender.end().failure(1, "became shorter");
    receiver.end().failure(1, "became shorter");
    assert!(names(&out).is_empty(), "{:?}", names(&out));
}

#[test]
fn both_ends_report_lack_of_space_before_a_byte_is_sent() {
    let scratch = Scratch::new("room");
    let out = scratch.directory("out");
    let small = scratch.file("small", &[7; 100]);
    let large = sparse(&scratch, "large");
    let (receiver, port) = limited_receiver(&out);
    let sent = sender(&[&small, &large], &port).end();
    receiver.end().failure(1, "no space for");
    sent.failure(1, "no space for");
    // Files that were complete before stay.
    assert_eq!(names(&out), ["small"]);
}

/// A receiver whose files cannot have more than 32 MiB, or 64 (some shells count blocks of 512
/// bytes, some of 1 KiB).
fn limited_receiver(directory: &Path) -> (Running, String) {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 65536 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_uverbs")]);
    command
        .args(["transfer", "recv"])
        .arg(directory)
        .args(["--port", "0", "--device", "soft", "--code", CODE]);
    let mut receiver = Running::start(&mut command);
    let port = receiver.port();
    (receiver, port)
}

#[test]
fn both_ends_report_a_directory_that_cannot_be_written() {
    let scratch = Scratch::new("readonly");
    let file = scratch.file("a", b"a");
    let gone = scratch.directory("gone");
    let (receiver, port) = receiver(&gone, &[]);
    fs::remove_dir(&gone).expect("nothing is in it");
    sender(&[&file], &port).end().failure(1, "cannot create a file in ");
    receiver.end().failure(1, "cannot create a file in ");
}

#[test]
fn a_receiver_with_a_directory_that_cannot_be_written_does_not_listen() {
    // No user can make files there, root included.
    run(&["transfer", "recv", "/proc"]).failure(1, "cannot create a file in /proc");
}

/// A sender that speaks the protocol of `uverbs transfer` over TCP, with messages of the test.
struct Impostor(BufReader<TcpStream>);

impl Impostor {
    /// Connects to a receiver that wants no code. Proofs are those of the empty code.
    fn connect(port: &str) -> Self {
        let port = port.parse().expect("a port");
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a receiver");
        let mut own = Self(BufReader::new(stream));
        let greeting = own.receive();
        assert_eq!(
            (&greeting["uverbs"], &greeting["needs_code"]),
            (&json!("transfer"), &json!(false))
        );
        let (nonce, listener) = ([3; 32], greeting["nonce"].as_str().expect("a nonce"));
        let listener = blake3::Hash::from_hex(listener).expect("32 bytes");
        let key =
            blake3::derive_key("uverbs command, rendezvous of two ends, code, version 1", b"");
        let proof = |role: &[u8]| {
            let mut hasher = blake3::Hasher::new_keyed(&key);
            hasher.update(role).update(listener.as_bytes()).update(&nonce).update(b"transfer");
            hasher.finalize().to_hex().to_string()
        };
        let hex = blake3::Hash::from_bytes(nonce).to_hex().to_string();
        own.send(&json!({ "nonce": hex, "proof": proof(b"client  ") }));
        assert_eq!(own.receive()["proof"], proof(b"listener"));
        own
    }

    /// Connects, and exchanges the lines that precede the first offer.
    fn introduced(port: &str) -> Self {
        let mut own = Self::connect(port);
        assert!(own.receive()["slots"].as_u64().is_some_and(|slots| slots > 0));
        own.send(&json!({ "transfer_version": 2, "endpoint": silent_endpoint() }));
        assert!(own.receive()["endpoint"].is_string());
        own
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.0.get_mut(), "{message}").expect("the receiver listens");
    }
}

/// The endpoint of a queue pair that posts nothing.
fn silent_endpoint() -> String {
    let context = uverbs::device("soft").and_then(|device| device.open()).expect("a device");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_raw_cq(1).build().expect("a queue");
    let qp = pd
        .create_raw_qp::<uverbs::qp_type::Rc>(cq.handle(), cq.handle())
        .build()
        .expect("a queue pair");
    qp.endpoint().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn contents_with_another_checksum_are_refused() {
    let scratch = Scratch::new("checksum");
    let out = scratch.directory("out");
    let (receiver, port) = receiver(&out, &["--no-code"]);
    let mut sender = Impostor::introduced(&port);
    sender.send(&json!({ "say": "offer", "name": "empty", "size": 0 }));
    assert_eq!(sender.receive()["say"], "accept");
    sender.send(&json!({ "say": "done", "checksum": "00".repeat(32) }));
    let reason = sender.receive()["abort"].to_string();
    assert!(reason.contains("the checksums differ"), "{reason}");
    receiver.end().failure(1, "empty arrived with wrong contents");
    assert!(names(&out).is_empty(), "{:?}", names(&out));
}

#[test]
fn names_that_would_disturb_a_terminal_are_refused_by_both_ends() {
    let scratch = Scratch::new("names");
    for name in ["a\u{1b}[2Jb", "a\nb", "a\u{202e}txt"] {
        let out = scratch.path().join("out");
        fs::create_dir_all(&out).expect("directory");
        let (receiver, port) = receiver(&out, &["--no-code"]);
        let mut sender = Impostor::introduced(&port);
        sender.send(&json!({ "say": "offer", "name": name, "size": 0 }));
        let reason = sender.receive()["abort"].to_string();
        assert!(reason.contains("control or formatting characters"), "{reason}");
        let ended = receiver.end().failure(1, "control or formatting characters");
        assert!(!(ended.stdout + &ended.stderr).contains(name), "{name:?}");
        assert!(names(&out).is_empty());
        let own = scratch.file(name, b"contents");
        let ended = self::sender(&[own], "1").end().failure(1, "rename it");
        assert!(!ended.stderr.contains(name), "{ended:?}");
    }
}

#[test]
fn a_peers_reason_is_shown_escaped() {
    let scratch = Scratch::new("reason");
    let (receiver, port) = receiver(&scratch.directory("out"), &["--no-code"]);
    let mut sender = Impostor::introduced(&port);
    sender.send(&json!({ "abort": "no\u{1b}[2J\nuverbs: all is well\u{202e}" }));
    receiver.end().failure(1, "the peer gave up: no\\u{1b}[2J\\u{a}uverbs: all is well\\u{202e}");
}

#[test]
fn an_announced_file_takes_no_space_before_its_bytes_arrive() {
    let scratch = Scratch::new("announced");
    let out = scratch.directory("out");
    let (mut receiver, port) = receiver(&out, &["--no-code"]);
    let mut sender = Impostor::introduced(&port);
    sender.send(&json!({ "say": "offer", "name": "large", "size": LONG }));
    assert_eq!(sender.receive()["say"], "accept");
    receiver.line("receiving large");
    let blocks = open_files_below(receiver.id(), &out);
    assert_eq!(blocks, [0], "blocks of the file under construction");
}

/// Blocks of the files below `directory` that a process has open, with a name or without.
fn open_files_below(process: u32, directory: &Path) -> Vec<u64> {
    use std::os::unix::fs::MetadataExt;
    let open = fs::read_dir(format!("/proc/{process}/fd")).expect("fds").flatten();
    let below = open
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(directory)));
    below.map(|entry| fs::metadata(entry.path()).expect("metadata").blocks()).collect()
}

#[test]
fn the_receiver_chooses_a_code_that_the_sender_must_have() {
    let scratch = Scratch::new("code");
    let out = scratch.directory("out");
    let file = scratch.file("a", b"contents");
    let directory = out.to_str().expect("a path");
    let mut command = uverbs(&["transfer", "recv", directory, "--port", "0"]);
    let mut receiver = Running::start(command.env_remove(CODE_VARIABLE));
    let (port, code) = receiver.port_and_code();
    // The receiver goes on after a connection that is closed at once, another protocol, a wrong
    // code, and no code.
    drop(TcpStream::connect(("127.0.0.1", port.parse::<u16>().expect("a port"))));
    let mut foreign = TcpStream::connect(("127.0.0.1", port.parse::<u16>().expect("a port")));
    foreign.as_mut().expect("connect").write_all(b"GET / HTTP/1.1\r\n\r\n").expect("write");
    let send = |options: &[&str]| {
        let mut command = uverbs(&["transfer", "send", "--port", &port]);
        command.args(options).arg(&file).arg("127.0.0.1").env_remove(CODE_VARIABLE);
        Running::start(&mut command).end()
    };
    send(&[]).failure(2, "asks for a code: give --code CODE");
    send(&["--no-code"]).failure(2, "asks for a code");
    send(&["--code", "guess"]).failure(1, "the code is wrong");
    send(&["--code", &code]).success();
    let ended = receiver.end().success();
    for remark in ["speaks another protocol", "has a wrong code", "gave up"] {
        assert!(ended.stderr.contains(remark), "{ended:?}");
    }
    assert_eq!(fs::read(out.join("a")).expect("read"), b"contents");
}

#[test]
fn both_ends_need_the_option_to_use_no_code() {
    let scratch = Scratch::new("no-code");
    let file = scratch.file("a", b"contents");
    let (receiver, port) = receiver(&scratch.directory("out"), &["--no-code"]);
    sender(&[&file], &port).end().failure(2, "give --no-code here, too");
    let mut command = uverbs(&["transfer", "send", "--no-code", "--port", &port]);
    Running::start(command.arg(&file).arg("127.0.0.1")).end().success();
    receiver.end().success();
}

#[test]
fn by_default_only_this_machine_can_connect() {
    let scratch = Scratch::new("loopback");
    let out = scratch.directory("out");
    for (options, address) in [(&[][..], "127.0.0.1"), (&["--listen", "0.0.0.0"], "0.0.0.0")] {
        let (receiver, port) = receiver(&out, options);
        assert_eq!(listening_address(&port), address);
        drop(receiver);
    }
    for subcommand in ["pingpong", "perf"] {
        for (address, expected) in [(None, "127.0.0.1"), (Some("0.0.0.0"), "0.0.0.0")] {
            let mut command = uverbs(&[subcommand, "--listen"]);
            let mut server = Running::start(command.args(address).args(["--port", "0"]));
            assert_eq!(listening_address(&server.port()), expected, "{subcommand}");
        }
    }
}

/// The IPv4 address of the listener on a port of this machine, from /proc/net/tcp.
fn listening_address(port: &str) -> String {
    let port = format!("{:04X}", port.parse::<u16>().expect("a port"));
    let table = fs::read_to_string("/proc/net/tcp").expect("/proc/net/tcp");
    let local = table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (address, its_port) = words.next()?.split_once(':')?;
        (its_port == port && words.nth(1) == Some("0A")).then(|| address.to_owned())
    });
    let number = u32::from_str_radix(&local.expect("a listener"), 16).expect("an address");
    std::net::Ipv4Addr::from(number.to_ne_bytes()).to_string()
}

#[test]
fn json_output_has_address_code_and_checksum() {
    let scratch = Scratch::new("json");
    let out = scratch.directory("out");
    let file = scratch.file("a", b"contents");
    let directory = out.to_str().expect("a path");
    let mut command = uverbs(&["transfer", "recv", directory, "--port", "0", "--json"]);
    let mut receiver = Running::start(command.env_remove(CODE_VARIABLE));
    let listening: Value = serde_json::from_str(&receiver.line("")).expect("JSON");
    assert_eq!(listening["listening_on_address"], "127.0.0.1");
    let (port, code) = (listening["listening_on_port"].to_string(), listening["code"].as_str());
    let mut command = uverbs(&["transfer", "send", "--json", "--port", &port]);
    let command = command.args(["--code", code.expect("a code")]).arg(&file).arg("127.0.0.1");
    let sent = Running::start(command).end().success().stdout;
    let sent: Value = serde_json::from_str(&sent).expect("JSON");
    let stored: Value = serde_json::from_str(&receiver.end().success().stdout).expect("JSON");
    assert_eq!(stored["stored"], json!(out.join("a")));
    assert_eq!((&stored["bytes"], &stored["blake3"]), (&sent["bytes"], &sent["blake3"]));
    assert_eq!(stored["bytes"], 8);
}
