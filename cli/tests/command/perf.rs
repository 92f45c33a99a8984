//! `uverbs perf`.

use serde_json::Value;

use crate::process::{Running, Scratch, run, uverbs};

const OPS: [&str; 5] = ["send", "write", "write-imm", "read", "atomic"];

fn measure(arguments: &[&str]) -> Value {
    let arguments: Vec<&str> =
        ["perf"].iter().chain(arguments).chain(&["--json"]).copied().collect();
    serde_json::from_str(&run(&arguments).success().stdout).expect("JSON")
}

#[test]
fn latency_of_every_operation() {
    for op in OPS {
        let report = measure(&["lat", "--op", op, "--iters", "60"]);
        let latency = &report["results"][0]["latency_us"];
        let names = ["min", "p50", "p90", "p99", "p99.9", "p99.99", "p99.999"];
        let times: Vec<f64> =
            names.iter().map(|name| latency[name].as_f64().expect(name)).collect();
        assert!(times[0] > 0.0 && times.is_sorted(), "{op}: {report}");
        let stalls = latency["worst_stalls"].as_array().expect("stalls");
        assert_eq!(stalls.len(), 10, "{op}: {report}");
        // The histogram rounds to three digits.
        let (longest, max) = (
            stalls[0]["length_us"].as_f64().expect("a time"),
            latency["max"].as_f64().expect("max"),
        );
        assert!((longest - max).abs() <= max / 100.0, "{op}: {report}");
        assert!(
            report["advice"].as_array().is_some_and(|advice| !advice.is_empty()),
            "{op}: {report}"
        );
    }
}

#[test]
fn bandwidth_of_every_operation_over_several_queue_pairs_and_sizes() {
    for op in OPS {
        let sizes = if op == "atomic" { "8" } else { "8,61,70000" };
        let report = measure(&[
            "bw", "--op", op, "--iters", "90", "--qps", "3", "--depth", "8", "--sizes", sizes,
        ]);
        let results = report["results"].as_array().expect("results");
        assert_eq!(results.len(), sizes.split(',').count());
        for result in results {
            assert_eq!(result["messages"], 90, "{op}: {report}");
            assert!(
                result["bandwidth"]["messages_per_second"].as_f64().is_some_and(|rate| rate > 0.0),
                "{op}: {report}"
            );
        }
    }
}

#[test]
fn sizes_may_grow_and_shrink_and_completions_be_waited_for() {
    for op in ["send", "write-imm", "read"] {
        let report =
            measure(&["lat", "--op", op, "--iters", "30", "--events", "--sizes", "8,4000,1,70"]);
        assert_eq!(report["results"].as_array().map(Vec::len), Some(4), "{report}");
        assert_eq!(report["mode"], "events");
    }
}

#[test]
fn two_ends_meet_and_the_picture_is_drawn() {
    let scratch = Scratch::new("picture");
    let picture = scratch.path().join("picture.svg");
    let picture = picture.to_str().expect("a path");
    for measure in ["lat", "bw"] {
        let mut server = Running::start(&mut uverbs(&["perf", "--listen", "--port", "0"]));
        let port = server.port();
        let client = run(&[
            "perf",
            measure,
            "127.0.0.1",
            "--port",
            &port,
            "--iters",
            "40",
            "--sizes",
            "8,64",
            "--plot",
            picture,
        ]);
        let text = client.success().stdout;
        assert!(text.contains(if measure == "lat" { "p99.999" } else { "Gbit/s" }), "{text}");
        server.end().success();
        let svg = std::fs::read_to_string(picture).expect("picture");
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("<polyline"),
            "{svg}"
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn frames_are_measured_round_by_round() {
    let scratch = Scratch::new("frames");
    let picture = scratch.path().join("picture.svg");
    let picture = picture.to_str().expect("a path");
    let few = ["frames", "--iters", "40", "--rate", "1000", "--burst", "8"];
    for size in ["60", "128", "226"] {
        let report = measure(&[&few[..], &["--sizes", size, "--plot", picture]].concat());
        assert_eq!(report["measure"], "frames");
        assert_eq!(report["size"].to_string(), size);
        let times = report["times_us"].as_object().expect("times");
        let names = ["half_round_trip", "fixed_rate", "late", "turnaround", "cold", "warm"];
        for name in names.iter().chain(&["rule_added", "rule_removed"]) {
            let shares = ["min", "p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "max"];
            let times: Vec<_> = shares.map(|share| times[*name][share].as_f64()).into();
            assert!(times[1] > Some(0.0) && times.is_sorted(), "{name}: {report}");
        }
        let stall = &report["times_us"]["half_round_trip"]["worst_stalls"][0];
        assert!(stall["program_us"].as_f64() <= stall["length_us"].as_f64(), "{stall}");
        let burst = &report["burst"];
        assert_eq!((&burst["sent"], &burst["lost"]), (&40.into(), &0.into()), "{burst}");
        assert!(report["stalled"]["seconds"].as_f64() > Some(0.0), "{report}");
        let svg = std::fs::read_to_string(picture).expect("a picture");
        assert!(svg.contains("half round trip") && !svg.contains("NaN"), "{svg}");
    }
    let text = run(&[&["perf"], &few[..]].concat()).success().stdout;
    for words in ["arrival to departure", "round trip, 1000/s", "p99.999", "5 bursts of 8 frames"] {
        assert!(text.contains(words), "{text}");
    }
    run(&["perf", "frames", "--sizes", "1500"]).failure(2, "60 to 226 bytes");
    run(&["perf", "frames", "--rate", "0"]).failure(2, "above 0");
}

#[test]
fn a_killed_end_ends_the_other() {
    for (measure, op) in [("lat", "send"), ("lat", "write"), ("bw", "write"), ("bw", "send")] {
        let mut server = Running::start(&mut uverbs(&["perf", "--listen", "--port", "0"]));
        let port = server.port();
        let mut client = Running::start(&mut uverbs(&[
            "perf",
            measure,
            "127.0.0.1",
            "--port",
            &port,
            "--op",
            op,
            "--iters",
            "1000000000",
        ]));
        server.line("peer ");
        if op == "send" {
            server.kill()
        } else {
            client.kill()
        }
        let survivor = if op == "send" { client } else { server };
        survivor.end().failure(1, "");
    }
}

#[test]
fn a_picture_that_cannot_be_written_fails_before_the_measurement() {
    let scratch = Scratch::new("no-picture");
    let directory = scratch.path().to_str().expect("a path");
    for measure in ["lat", "frames"] {
        let ended = run(&["perf", measure, "--plot", directory]);
        let ended = ended.failure(1, &format!("cannot write {directory}: Is a directory"));
        assert!(ended.stdout.is_empty(), "{ended:?}");
    }
    let picture = scratch.path().join("picture.svg");
    let path = picture.to_str().expect("a path");
    run(&["perf", "lat", "127.0.0.1", "--port", "1", "--plot", path]).failure(1, "cannot reach");
    assert!(!picture.exists(), "nothing was measured");
}

/// The check before the measurement waits for no reader of a FIFO, and leaves no file behind a
/// link.
#[test]
fn a_picture_is_checked_without_opening_a_fifo_or_filling_a_link() {
    let scratch = Scratch::new("odd-pictures");
    let (fifo, link) = (scratch.path().join("fifo"), scratch.path().join("link"));
    let target = scratch.path().join("target.svg");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    for path in [&fifo, &link] {
        let path = path.to_str().expect("a path");
        let ended = run(&["perf", "lat", "127.0.0.1", "--port", "1", "--plot", path]);
        ended.failure(1, "cannot reach");
    }
    assert!(link.is_symlink() && !target.exists(), "nothing was measured");
}
