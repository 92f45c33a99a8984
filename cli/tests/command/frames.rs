//! `uverbs capture` and `uverbs replay`, between two processes.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use uverbs::ethernet::recording::{Recorded, Recorder, Recording};
use uverbs::flow::UdpMulticast;

use crate::process::{Ended, PATIENCE, Running, Scratch, run, uverbs};

/// A multicast group for each test, because tests run at the same time on one network.
fn line(test: u8) -> UdpMulticast {
    UdpMulticast::new([239, 7, test, (std::process::id() % 251) as u8].into(), 14310)
}

fn frame(line: &UdpMulticast, number: u32) -> Vec<u8> {
    let mut frame = [&line.mac()[..], &[2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 46]].concat();
    frame.extend_from_slice(&[0, 0, 0x40, 0, 16, 17, 0, 0, 10, 0, 0, 1]);
    frame.extend_from_slice(&line.group.octets());
    for word in [9, line.port, 26, 0] {
        frame.extend_from_slice(&word.to_be_bytes());
    }
    frame.extend_from_slice(&number.to_be_bytes());
    frame.resize(60 + number as usize % 100, number as u8);
    frame
}

/// A recording of so many frames, 20 microseconds apart.
fn record(path: &Path, line: &UdpMulticast, frames: u32) -> Vec<Vec<u8>> {
    let file = fs::File::create(path).expect("a file");
    let mut recorder = Recorder::new(std::io::BufWriter::new(file), "test").expect("a recording");
    let frames: Vec<_> = (0..frames).map(|number| frame(line, number)).collect();
    for (time, frame) in (0..).step_by(20_000).zip(&frames) {
        recorder.write(1_700_000_000_000_000_000 + time, frame).expect("space");
    }
    recorder.flush().expect("space");
    frames
}

fn read(path: &Path) -> Vec<Recorded> {
    let file = fs::read(path).expect("a file");
    Recording::new(&file[..]).and_then(Iterator::collect).expect("a recording")
}

/// The number of frames in a file that is being written.
fn recorded_so_far(path: &Path) -> usize {
    read_so_far(path).len()
}

/// The frames of a file that is being written.
fn read_so_far(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::read(path).expect("a file");
    let frames = Recording::new(&file[..]).into_iter().flatten().flatten();
    frames.map(|frame| frame.bytes).collect()
}

fn rule(line: &UdpMulticast) -> String {
    format!("{}:{}", line.group, line.port)
}

/// A capture that listens.
fn capture(line: &UdpMulticast, file: &Path, more: &[&str]) -> Running {
    let (rule, file) = (rule(line), file.to_str().expect("UTF-8"));
    let arguments = [&["capture", file, "--rule", &rule], more].concat();
    let mut running = Running::start(&mut uverbs(&arguments));
    running.line("recording ");
    running
}

fn replay(file: &Path, more: &[&str]) -> Ended {
    run(&[&["replay", file.to_str().expect("UTF-8")], more].concat())
}

#[test]
fn help_tells_what_errors_refer_to() {
    let help = |command: &str| run(&[command, "--help"]).success().stdout;
    for rule in ["GROUP:PORT@VLAN", "udp:PORT", "leftovers", "SIGINT"] {
        assert!(help("capture").contains(rule), "{rule}");
    }
    assert!(help("replay").contains("2 if it is not a recording"));
    let run = help("run");
    for words in ["statically linked programs", "128 plus the signal's number"] {
        assert!(run.contains(words), "{run}");
    }
}

#[test]
fn impossible_rules_are_wrong_arguments() {
    let rules = [
        ("10.0.0.1:5", "not a multicast group"),
        ("239.1.2.3:5@4095", "0 to 4094"),
        ("239.1.2.3:0", "ports are 1 to 65535"),
        ("feed", "GROUP:PORT"),
    ];
    for (rule, words) in rules {
        run(&["capture", "none.pcapng", "--rule", rule, "--device", "soft"]).failure(2, words);
        assert!(!Path::new("none.pcapng").exists());
    }
}

#[test]
fn a_recording_is_replayed_and_captured_again() {
    let (scratch, line) = (Scratch::new("captured"), line(1));
    let [from, to] = ["from.pcapng", "to.pcapng"].map(|name| scratch.path().join(name));
    let frames = record(&from, &line, 100);
    let listening = capture(&line, &to, &["--count", "100"]);
    let sent = replay(&from, &["--json"]).success();
    let sent: Value = serde_json::from_str(&sent.stdout).expect("JSON");
    assert_eq!((&sent["frames"], &sent["skipped"]), (&100.into(), &0.into()), "{sent}");
    assert!(sent["seconds"].as_f64() >= Some(99.0 * 20e-6), "{sent}");
    assert!(sent["late"]["max_us"].as_f64().is_some(), "{sent}");
    let said = listening.end().success().stdout;
    assert!(said.contains("100 frames") && said.contains("0 lost"), "{said}");
    let captured = read(&to);
    assert!(captured.iter().map(|frame| &frame.bytes).eq(&frames));
    assert!(captured.is_sorted_by_key(|frame| frame.time));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("now");
    assert!(now.as_nanos().abs_diff(captured[0].time.into()) < PATIENCE.as_nanos());
}

/// A sniffer and a capture run at the same time: both get all frames.
#[test]
fn a_sniffer_takes_no_frames_from_other_captures() {
    let (scratch, line) = (Scratch::new("sniffed"), line(6));
    let [from, to, all] =
        ["from.pcapng", "to.pcapng", "all.pcapng"].map(|name| scratch.path().join(name));
    let frames = record(&from, &line, 30);
    let listening = capture(&line, &to, &["--count", "30"]);
    let mut sniffing = Running::start(&mut uverbs(&["capture", all.to_str().expect("UTF-8")]));
    sniffing.line("recording sniffer");
    replay(&from, &["--fast"]).success();
    listening.end().success();
    // Frames of other tests arrive, too.
    let own = || read_so_far(&all).into_iter().filter(|frame| frame.starts_with(&line.mac()));
    let began = Instant::now();
    while own().count() < 30 {
        assert!(began.elapsed() < PATIENCE, "{} frames", own().count());
        std::thread::yield_now();
    }
    kill(Pid::from_raw(sniffing.id() as i32), Signal::SIGTERM).expect("kill");
    sniffing.end().success();
    assert!(own().eq(frames));
}

/// A capture into a FIFO waits for no reader, since signals would not end the wait.
#[test]
fn a_capture_into_a_fifo_needs_its_reader() {
    let scratch = Scratch::new("captured-into-a-fifo");
    let fifo = scratch.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let path = fifo.to_str().expect("UTF-8");
    // No frames of other tests arrive, which would fill the FIFO before it is read.
    let rule = rule(&line(8));
    let arguments = ["capture", path, "--overwrite", "--rule", &rule, "--seconds", "1"];
    run(&arguments).failure(1, "no program reads");

    let without_waiting = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let reader = fs::OpenOptions::new().read(true).custom_flags(without_waiting).open(&fifo);
    run(&arguments).success();
    let mut reader = reader.expect("a reader");
    let mut recorded = Vec::new();
    reader.read_to_end(&mut recorded).expect("a recording");
    assert!(Recording::new(&recorded[..]).is_ok());
}

/// It has no reader to wait for.
#[test]
fn a_capture_into_a_socket_is_refused() {
    let scratch = Scratch::new("captured-into-a-socket");
    let socket = scratch.path().join("socket");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    let path = socket.to_str().expect("UTF-8");
    run(&["capture", path, "--overwrite", "--rule", &rule(&line(9))]).failure(1, "cannot create");
}

/// A capture that the device or the system refuses leaves no file.
#[test]
fn a_capture_that_is_refused_leaves_no_file() {
    let (scratch, line) = (Scratch::new("refused"), line(7));
    let to = scratch.path().join("to.pcapng");
    let to_path = to.to_str().expect("UTF-8");
    let rule = rule(&line);
    run(&["capture", to_path, "--rule", "udp:319"]).failure(1, "PTP");
    let nowhere = ["capture", to_path, "--rule", &rule, "--join", "203.0.113.9"];
    run(&nowhere).failure(1, "no network device");
    run(&["capture", to_path, "--rule", &rule, "--real-time"]).failure(1, "REAL_TIME_CLOCK");
    assert!(!to.exists());
    fs::write(&to, "kept").unwrap();
    run(&["capture", to_path, "--rule", &rule]).failure(1, "--overwrite replaces it");
    assert_eq!(fs::read(&to).unwrap(), b"kept");
}

#[test]
fn a_signal_ends_a_capture_with_a_complete_file() {
    let (scratch, line) = (Scratch::new("signal"), line(2));
    let [from, to] = ["from.pcapng", "to.pcapng"].map(|name| scratch.path().join(name));
    record(&from, &line, 20);
    let listening = capture(&line, &to, &["--snap", "50"]);
    replay(&from, &["--fast"]).success();
    let began = Instant::now();
    // It writes its frames whenever it finds no more of them.
    while recorded_so_far(&to) < 20 {
        assert!(began.elapsed() < PATIENCE, "{} frames", recorded_so_far(&to));
        std::thread::yield_now();
    }
    kill(Pid::from_raw(listening.id() as i32), Signal::SIGINT).expect("kill");
    let said = listening.end().success().stdout;
    assert!(said.contains("20 frames"), "{said}");
    assert!(read(&to).iter().all(|frame| frame.bytes.len() == 50 && frame.length >= 60));
    // The last block has the counts.
    let file = fs::read(&to).expect("a file");
    assert_eq!(file[file.len() - 4..], 52u32.to_le_bytes());
}

/// The recording has no frames, or only frames that are not packets, so none is sent.
#[test]
fn a_signal_ends_a_replay_that_sends_nothing() {
    let scratch = Scratch::new("nothing");
    let from = scratch.path().join("from.pcapng");
    for frames in [0, 10] {
        let file = fs::File::create(&from).expect("a file");
        let mut recorder = Recorder::new(file, "test").expect("a recording");
        (0..frames).for_each(|time| recorder.write(time, &[1; 13]).expect("space"));
        recorder.flush().expect("space");
        let file = from.to_str().expect("UTF-8");
        let rounds = "1000000000000";
        let replaying = Running::start(&mut uverbs(&["replay", file, "--loop", rounds]));
        let began = Instant::now();
        while !blocks_interrupts(replaying.id()) {
            assert!(began.elapsed() < PATIENCE, "it does not begin");
            std::thread::yield_now();
        }
        kill(Pid::from_raw(replaying.id() as i32), Signal::SIGINT).expect("kill");
        let said = replaying.end().success().stdout;
        assert!(said.contains("0 frames"), "{said}");
    }
}

/// Whether a process waits for SIGINT itself.
fn blocks_interrupts(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    blocked.is_some_and(|mask| mask & 1 << (Signal::SIGINT as u32 - 1) != 0)
}

#[test]
fn files_rotate_and_the_oldest_go() {
    let (scratch, line) = (Scratch::new("rotated"), line(3));
    let from = scratch.path().join("from.pcapng");
    let frames = record(&from, &line, 10);
    let to = scratch.path().join("to.pcapng");
    // Every frame is later than the file's time limit.
    let more = ["--count", "10", "--rotate-seconds", "0.000000001", "--files", "3"];
    let listening = capture(&line, &to, &more);
    replay(&from, &["--rate", "10000"]).success();
    listening.end().success();
    assert!(!to.exists() && !scratch.path().join("to-00006.pcapng").exists());
    for (number, expected) in (0..).zip(&frames).skip(7) {
        let file = scratch.path().join(format!("to-{number:05}.pcapng"));
        let [only] = &read(&file)[..] else { panic!("{}", file.display()) };
        assert_eq!(&only.bytes, expected);
    }
}

#[test]
fn a_full_disk_and_files_that_exist_are_errors() {
    let (scratch, line) = (Scratch::new("full"), line(4));
    let rule = rule(&line);
    let full = ["capture", "/dev/full", "--overwrite", "--rule", &rule];
    run(&full).failure(1, "No space left");
    let there = scratch.path().join("there.pcapng");
    fs::write(&there, "something").expect("a file");
    let there = there.to_str().expect("UTF-8");
    run(&["capture", there, "--rule", &rule]).failure(1, "exists");
    assert_eq!(fs::read(there).expect("a file"), b"something");
}

#[test]
fn contradictory_options_and_bad_files_are_refused_with_the_cause() {
    run(&["capture", "x", "--rule", "nonsense"]).failure(2, "GROUP:PORT");
    run(&["capture", "x", "--files", "3"]).failure(2, "--rotate-mib");
    run(&["capture", "x", "--seconds", "-1"]).failure(2, "above 0");
    run(&["replay", "/nonexistent.pcap"]).failure(1, "/nonexistent.pcap");
    let scratch = Scratch::new("hostile");
    let file = scratch.path().join("hostile.pcap");
    let refused = |bytes: &[u8], words: &str| {
        fs::File::create(&file).and_then(|mut file| file.write_all(bytes)).expect("a file");
        replay(&file, &["--fast"]).failure(2, words);
    };
    refused(b"", "empty");
    refused(b"neither of the two formats", "neither a pcap nor a pcapng");
    let line = line(5);
    record(&file, &line, 3);
    let good = fs::read(&file).expect("a file");
    refused(&good[..good.len() - 3], "ends within");
    let mut huge = good.clone();
    let section = u32::from_le_bytes(good[4..8].try_into().expect("four bytes")) as usize;
    huge[section + 4..section + 8].copy_from_slice(&0xffff_fff0u32.to_le_bytes());
    refused(&huge, "damaged");
    // A big-endian pcap file whose only frame claims more bytes than a frame can have.
    let mut words = [0xa1b2_c3d4u32, 2 << 16 | 4, 0, 0, 65_535, 1, 0, 0, u32::MAX, u32::MAX];
    let bytes =
        |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
    refused(&bytes(&words), "damaged");
    words[5] = 101;
    refused(&bytes(&words), "link type 101");
}
