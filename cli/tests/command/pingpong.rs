//! `uverbs pingpong`.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Running, run, uverbs};

const OPS: [&str; 5] = ["send", "write", "write-imm", "read", "atomic"];

fn play(arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = ["pingpong", "--json"].iter().chain(arguments).copied().collect();
    serde_json::from_str(&run(&arguments).success().stdout).expect("JSON")
}

#[test]
fn the_other_end_of_a_device_at_a_given_address_takes_another() {
    let mut command = uverbs(&["pingpong", "--iters", "10"]);
    Running::start(command.env("UVERBS_SOFT_ADDRESS", "127.18.77.4")).end().success();
}

#[test]
fn every_operation_verifies_every_byte_polling_and_sleeping() {
    for op in OPS {
        for mode in ["--poll", "--events"] {
            let report = play(&["--op", op, mode, "--iters", "40"]);
            let both_ways = match op {
                "read" => 40 * 64,
                // The results, and the counter in the end.
                "atomic" => 41 * 8,
                _ => 2 * 40 * 64,
            };
            assert_eq!(report["bytes_verified"], both_ways, "{op} {mode}: {report}");
            assert_eq!(report["device"], "soft0");
        }
    }
}

#[test]
fn all_sizes_cross() {
    for op in ["send", "write", "write-imm", "read"] {
        for size in ["1", "31", "4096", "4097", "65537"] {
            let report = play(&["--op", op, "--size", size, "--iters", "6"]);
            let bytes = report["bytes_verified"].as_u64().expect("a number");
            let ways = if op == "read" { 1 } else { 2 };
            assert_eq!(
                bytes,
                6 * ways * size.parse::<u64>().expect("a size"),
                "{op} {size}: {report}"
            );
        }
    }
}

/// A report without its numbers and units, and without the reason for the device.
fn shape(report: &str) -> Vec<String> {
    let shape = |line: &str| {
        let line = line.split(" (built-in").next().unwrap_or_default();
        let words = line.split(' ').map(|word| word.trim_end_matches(','));
        let words = words.filter(|word| !["ns", "µs", "ms", "s"].contains(word));
        let words = words.map(|word| word.replace(|c: char| c.is_ascii_digit(), ""));
        words.collect::<Vec<_>>().join(" ")
    };
    report.trim_end().lines().map(shape).collect()
}

#[test]
fn the_report_tells_device_link_bytes_rate_and_percentiles() {
    let text = run(&["pingpong", "--iters", "50"]).success().stdout;
    for expected in [
        "device    soft0 (built-in software ConnectX; asked for by UVERBS_DEVICE)",
        "link      port 1, Ethernet",
        "test      send, 64 bytes, 50 round trips, poll",
        "verified  6400 bytes",
        "round trips/s",
        "p50 ",
        "p99 ",
        "p99.9 ",
        "max ",
    ] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    let readme = include_str!("../../../README.md");
    let (_, sample) = readme.split_once("```text\ndevice ").expect("a report in the README");
    let (sample, _) = sample.split_once("```").expect("its end");
    assert_eq!(shape(&text), shape(&format!("device {sample}")), "README.md shows another report");
    let report = play(&["--iters", "50"]);
    let latency = &report["latency"];
    let at = |name: &str| latency[name].as_f64().expect("a time");
    assert!(
        0.0 < at("p50_us") && at("p50_us") <= at("p99_us") && at("p99_us") <= at("p99_9_us"),
        "{report}"
    );
    assert!(at("p99_9_us") <= at("max_us") * 1.001, "{report}");
}

/// The other end of a client that is still running has said as much.
#[test]
fn the_connecting_end_tells_what_it_does_before_it_does_it() {
    let mut running = Running::start(&mut uverbs(&["pingpong", "--iters", "1000000000"]));
    running.line("device    soft0");
    running.line("test      send, 64 bytes, 1000000000 round trips, poll");
    running.kill();
}

/// Long before a minute of silence.
#[test]
fn a_device_that_goes_away_ends_every_measurement() {
    let kinds = [
        "pingpong --iters 1000000000",
        "pingpong --iters 1000000000 --op write",
        "pingpong --iters 1000000000 --op read",
        "perf lat --iters 1000000000",
        "perf lat --iters 1000000000 --op atomic --cm",
        "perf bw --iters 1000000000 --op write",
        "perf frames --iters 1000000000",
    ];
    for kind in kinds {
        let arguments: Vec<&str> = kind.split(' ').collect();
        let mut command = uverbs(&arguments);
        command.env("UVERBS_SOFT_FAULTS", "7,remove=300");
        let began = Instant::now();
        let ended = Running::start(&mut command).end().failure(1, "device");
        assert!(began.elapsed() < Duration::from_secs(30), "{kind}: {ended:?}");
    }
}

#[test]
fn a_device_that_goes_away_is_no_matter_of_rounds() {
    let pingpong = ["pingpong", "--peer", "ibv", "--device", "soft"];
    let mut command = uverbs(&[&pingpong[..], &["--listen", "--port", "0"]].concat());
    let mut listening = Running::start(command.env("UVERBS_SOFT_FAULTS", "7,remove=2000"));
    let port = listening.port();
    // This end expects the answers of the C program, and ends at the first message, or before it if
    // the device is gone by then.
    run(&[&pingpong[..], &["127.0.0.1", "--port", &port]].concat()).failure(1, "");
    let ended = listening.end().failure(1, "device");
    assert!(!ended.stderr.contains("needs -n"), "{ended:?}");
}

#[test]
fn without_a_real_device_the_software_one_is_taken_and_the_reason_told() {
    if !uverbs_is_alone() {
        eprintln!("skipped: this machine has RDMA devices");
        return;
    }
    let ended = Running::start(uverbs(&["pingpong", "--iters", "10"]).env_remove("UVERBS_DEVICE"))
        .end()
        .success();
    assert!(ended.stdout.contains("the kernel has no RDMA device"), "{ended:?}");
}

fn uverbs_is_alone() -> bool {
    fs::read_dir("/sys/class/infiniband_verbs").map_or(true, |mut entries| entries.next().is_none())
}

#[test]
fn two_ends_meet_at_a_port() {
    let mut server =
        Running::start(&mut uverbs(&["pingpong", "--listen", "--port", "0", "--gid-index", "1"]));
    let port = server.port();
    let client = run(&[
        "pingpong",
        "localhost",
        "--port",
        &port,
        "--iters",
        "20",
        "--op",
        "write-imm",
        "--gid-index",
        "1",
    ]);
    assert!(client.success().stdout.contains("GID 1 fe80"));
    let ended = server.end().success();
    assert!(ended.stdout.contains("verified  1280 bytes from 127.0.0.1"), "{ended:?}");
}

/// A server and a client that run an endless pingpong.
fn endless(op: &str, mode: &str) -> (Running, Running) {
    let mut server = Running::start(&mut uverbs(&["pingpong", "--listen", "--port", "0", mode]));
    let port = server.port();
    let endless =
        ["pingpong", "127.0.0.1", "--port", &port, "--iters", "1000000000", "--op", op, mode];
    let client = Running::start(&mut uverbs(&endless));
    server.line("peer ");
    (server, client)
}

#[test]
fn a_killed_client_ends_the_server() {
    for op in OPS {
        for mode in ["--poll", "--events"] {
            let (server, mut client) = endless(op, mode);
            client.kill();
            server.end().failure(1, "");
        }
    }
}

#[test]
fn a_killed_server_ends_the_client() {
    for op in OPS {
        for mode in ["--poll", "--events"] {
            let (mut server, client) = endless(op, mode);
            server.kill();
            client.end().failure(1, "");
        }
    }
}

#[test]
fn an_interrupt_takes_the_second_process_along() {
    for signal in ["-TERM", "-INT", "-KILL"] {
        let both =
            Running::start(&mut interruptible(&uverbs(&["pingpong", "--iters", "1000000000"])));
        let child = child_of(both.id());
        let status = Command::new("kill").args([signal, &both.id().to_string()]).status();
        assert!(status.expect("kill").success());
        let ended = both.end();
        assert_eq!(ended.status.code(), None, "ended by the signal: {ended:?}");
        wait_until("the second process is gone", || !is_running(child));
    }
}

/// The same with the default action for SIGINT. A shell script starts background processes with
/// SIGINT ignored, and the processes that these tests start would inherit that.
fn interruptible(command: &Command) -> Command {
    let mut wrapped = Command::new("env");
    wrapped.arg("--default-signal=INT").arg(command.get_program()).args(command.get_args());
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped.stdin(Stdio::null());
    wrapped
}

/// The process that `parent` starts, as soon as it has.
fn child_of(parent: u32) -> u32 {
    let mut found = None;
    wait_until("the second process has started", || {
        found = fs::read_dir("/proc").expect("/proc").flatten().find_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            (field(id, 1)?.parse() == Ok(parent)).then_some(id)
        });
        found.is_some()
    });
    found.expect("a process")
}

fn is_running(process: u32) -> bool {
    field(process, 0).is_some_and(|state| state != "Z")
}

/// A field of /proc/PID/stat after the name: 0 is the state, 1 the parent.
fn field(process: u32, index: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(index).map(str::to_owned)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "waited in vain until {what}");
        std::thread::yield_now();
    }
}
