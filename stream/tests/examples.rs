//! Runs the examples.

use std::process::{Command, Output};

fn start(name: &str, words: &[&str]) -> Output {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["run", "--quiet", "--offline", "--features", "soft,tokio", "--example", name, "--"])
        .args(words)
        .env("UVERBS_DEVICE", if words.is_empty() { "" } else { "no_such_device" })
        .output()
        .unwrap()
}

fn run(name: &str) -> String {
    let output = start(name, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_example_prints_its_result() {
    let echo = run("stream_echo");
    assert_eq!(echo.matches("says line 3").count(), 2, "{echo}");
    let http = run("http");
    assert_eq!(http.matches("200 OK").count(), 2, "{http}");
    assert!(http.contains("you asked for /of/any/length"), "{http}");
    assert!(run("grpc").contains("answers: hello over RDMA!"));
}

#[test]
fn every_example_prints_its_errors_in_one_line() {
    for name in ["stream_echo", "http", "grpc"] {
        for (address, words) in [("10.0.0.1:7471", "no_such_device"), ("nowhere", "HOST:PORT")] {
            let output = start(name, &[address]);
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success(), "{name} {address}");
            assert!(text.contains(words), "{name} {address}: {text}");
            let has_debug = ["{ ", "Error(", "panicked"].iter().any(|form| text.contains(form));
            assert!(!has_debug && text.lines().count() == 1, "{name} {address}: {text}");
        }
    }
}
