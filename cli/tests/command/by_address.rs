//! `--cm`: queue pairs that are connected through the connection manager.

use std::fs;

use serde_json::Value;

use crate::process::{Running, Scratch, run, uverbs};

#[test]
fn a_pingpong_runs_over_a_connection_by_address() {
    let text = run(&["pingpong", "--cm", "--json", "--iters", "40"]).success().stdout;
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["bytes_verified"], 2 * 40 * 64, "{report}");
}

#[test]
fn several_queue_pairs_are_connected_by_address() {
    let words = ["perf", "bw", "--cm", "--qps", "3", "--iters", "200", "--json"];
    let text = run(&words).success().stdout;
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["qps"], 3, "{report}");
}

#[test]
fn files_are_sent_over_a_connection_by_address() {
    let scratch = Scratch::new("by address");
    let out = scratch.directory("out");
    let file = scratch.file("file", &[7; 100_000]);
    let directory = out.to_str().expect("a path");
    let mut receiver = Running::start(&mut uverbs(&["transfer", "recv", directory, "--port", "0"]));
    let port = receiver.port();
    let mut command = uverbs(&["transfer", "send", "--cm", "--port", &port]);
    command.arg(&file).arg("127.0.0.1");
    Running::start(&mut command).end().success();
    receiver.end().success();
    assert!(fs::read(out.join("file")).expect("arrived") == [7; 100_000]);
}

#[test]
fn the_programs_of_libibverbs_know_no_addresses() {
    let words = ["pingpong", "--cm", "--peer", "ibv", "127.0.0.1"];
    run(&words).failure(2, "--cm does not go with --peer ibv");
}
