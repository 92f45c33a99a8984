//! The examples run to their end.

use std::process::Command;

fn run(name: &str) -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["run", "--quiet", "--offline", "--features", "soft,tokio", "--example", name])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_example_does_what_it_says() {
    let echo = run("stream_echo");
    assert_eq!(echo.matches("says line 3").count(), 2, "{echo}");
    let http = run("http");
    assert_eq!(http.matches("200 OK").count(), 2, "{http}");
    assert!(http.contains("you asked for /of/any/length"), "{http}");
    assert!(run("grpc").contains("answers: hello over RDMA!"));
}
