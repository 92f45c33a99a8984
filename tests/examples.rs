//! The examples run.

use std::process::Command;

fn run(name: &str) -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["run", "--quiet", "--offline", "--package", "uverbs", "--features", "soft,tokio"])
        .args(["--example", name])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_example_does_what_it_says() {
    assert!(run("echo").contains("1000 messages went there and back on soft0"));
    assert!(run("key_value").contains("asked for 4 times"));
    assert!(run("event_loop").contains("100 messages arrived"));
    let chat = run("chat");
    assert_eq!(chat.matches("heard by 3").count(), 4, "{chat}");
    assert!(chat.contains("Grace: yes"), "{chat}");
    let server = run("srq_server");
    assert!(server.contains("1600 requests of 32 clients answered"), "{server}");
    assert!(!server.contains(", 0 refills"), "{server}");
    let window = run("memory_window");
    assert!(window.contains("written through the window: borrowed"), "{window}");
    assert!(window.contains("taken back: RemoteAccess"), "{window}");
    assert!(run("tokio_echo").contains("200 messages echoed"));
}
