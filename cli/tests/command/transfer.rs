//! `uverbs transfer`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::process::{Ended, Running, Scratch, names, uverbs};

/// Takes a while at any speed, and no room on the disk.
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
fn files_of_all_sizes_arrive_as_they_were() {
    let scratch = Scratch::new("sizes");
    let out = scratch.directory("out");
    let sizes = [0usize, 1, 4095, 4097, 524_288, 524_289, 10_000_019];
    let contents =
        |size: usize| (0..size).map(|at| (at * at + at / 251) as u8).collect::<Vec<u8>>();
    let files: Vec<_> =
        sizes.iter().map(|size| scratch.file(&format!("file {size}"), &contents(*size))).collect();
    let (sent, received) = transfer(&files, &out, &[]);
    assert_eq!(sent.success().stdout.lines().count(), sizes.len());
    assert!(received.success().stderr.is_empty(), "no progress bar where there is no terminal");
    assert_eq!(names(&out).len(), sizes.len());
    for size in sizes {
        let arrived = fs::read(out.join(format!("file {size}"))).expect("arrived");
        assert!(arrived == contents(size), "{size} bytes");
    }
}

#[test]
fn a_name_that_is_taken_is_kept_unless_told_otherwise() {
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
fn a_killed_sender_leaves_nothing() {
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
fn a_file_that_becomes_shorter_ends_both_and_leaves_nothing() {
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
fn no_room_is_told_to_both_before_a_byte_is_sent() {
    let scratch = Scratch::new("room");
    let out = scratch.directory("out");
    let small = scratch.file("small", &[7; 100]);
    let large = sparse(&scratch, "large");
    let (receiver, port) = limited_receiver(&out);
    let sent = sender(&[&small, &large], &port).end();
    receiver.end().failure(1, "no room for");
    sent.failure(1, "no room for");
    // What was complete before stays.
    assert_eq!(names(&out), ["small"]);
}

/// A receiver whose files cannot have more than 32 MiB, or 64 (some shells count blocks of 512 bytes, some of 1 KiB).
fn limited_receiver(directory: &Path) -> (Running, String) {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 65536 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_uverbs")]);
    command.args(["transfer", "recv"]).arg(directory).args(["--port", "0", "--device", "soft"]);
    let mut receiver = Running::start(&mut command);
    let port = receiver.port();
    (receiver, port)
}

#[test]
fn a_directory_that_cannot_be_written_is_told_to_both() {
    let scratch = Scratch::new("readonly");
    let file = scratch.file("a", b"a");
    // Nobody can make files there, root included.
    let (sent, received) = transfer(&[&file], Path::new("/proc"), &[]);
    received.failure(1, "cannot create a file in /proc");
    sent.failure(1, "cannot create a file in /proc");
}

/// A sender of the test's own, which speaks what `uverbs transfer` speaks over TCP.
struct Impostor(BufReader<TcpStream>);

impl Impostor {
    fn connect(port: &str) -> Self {
        let port = port.parse().expect("a port");
        Self(BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("a receiver")))
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.0.get_mut(), "{message}").expect("the receiver listens");
    }
}

/// Of a queue pair with nothing to say: its file is empty.
fn silent_endpoint() -> String {
    let context = uverbs::device("soft").and_then(|device| device.open()).expect("a device");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(1).build().expect("a queue");
    let qp =
        pd.create_qp::<uverbs::qp::Rc>(cq.handle(), cq.handle()).build().expect("a queue pair");
    qp.endpoint().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn contents_with_another_checksum_are_refused_and_leave_nothing() {
    let scratch = Scratch::new("checksum");
    let out = scratch.directory("out");
    let (receiver, port) = receiver(&out, &[]);
    let mut sender = Impostor::connect(&port);
    assert!(sender.hear()["slots"].as_u64().is_some_and(|slots| slots > 0));
    sender.say(&json!({ "transfer_version": 1, "endpoint": silent_endpoint() }));
    assert!(sender.hear()["endpoint"].is_string());
    sender.say(&json!({ "say": "offer", "name": "empty", "size": 0 }));
    assert_eq!(sender.hear()["say"], "accept");
    sender.say(&json!({ "say": "done", "checksum": "00".repeat(32) }));
    let reason = sender.hear()["abort"].to_string();
    assert!(reason.contains("the checksums differ"), "{reason}");
    receiver.end().failure(1, "empty arrived with wrong contents");
    assert!(names(&out).is_empty(), "{:?}", names(&out));
}
