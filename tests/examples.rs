//! The examples run.

use std::process::{Command, Output};

fn start(name: &str, words: &[&str]) -> Output {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["run", "--quiet", "--offline", "--package", "uverbs", "--features", "soft,tokio"])
        .args(["--example", name, "--"])
        .args(words)
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
    assert!(run("echo").contains("1000 messages went there and back on soft0"));
    let table = run("key_value");
    assert!(table.contains("8 clients inserted 128 keys and visited them 128 times"), "{table}");
    assert!(run("event_loop").contains("100 messages arrived"));
    let chat = run("chat");
    assert_eq!(chat.matches("heard by 3").count(), 4, "{chat}");
    assert!(chat.contains("Grace: yes"), "{chat}");
    let server = run("cm_server");
    assert!(server.contains("16 clients connected by address; their numbers add up to 136"));
    assert!(run("cm_tasks").contains("400 messages of 8 clients echoed by a task"));
    let again = run("cm_reconnect");
    assert!(again.contains("\"at last\" arrived with attempt 4"), "{again}");
    let server = run("srq_server");
    assert!(server.contains("1600 requests of 32 clients answered"), "{server}");
    assert!(!server.contains(", 0 refills"), "{server}");
    let dynamic = run("dynamic");
    assert!(dynamic.contains("reached 24 servers; their numbers add up to 114960"), "{dynamic}");
    let window = run("memory_window");
    assert!(window.contains("written through the window: borrowed"), "{window}");
    assert!(window.contains("taken back: RemoteAccess"), "{window}");
    let feed = run("market_data");
    assert!(feed.contains("200 quotes from soft0 to soft1, 0 not in order, 0 lost"), "{feed}");
    let desk = run("tick_to_trade");
    assert!(
        desk.contains(" 14 gaps, ") && desk.contains(" 0 too long, 0 rejected, 0 lost"),
        "{desk}"
    );
    assert!(
        desk.contains(", 501 orders") && desk.contains("the exchange got 501 orders"),
        "{desk}"
    );
    let replayed = run("replay");
    assert!(replayed.contains("seed 4: ") && replayed.contains(" missing, "), "{replayed}");
    assert!(run("tokio_echo").contains("200 messages echoed"));
}

/// A polling loop calls `poll_idle` after an empty poll, or sleeps. `yield_now` would also let a
/// software device make progress, but on hardware it costs a system call for each empty poll.
#[test]
fn loops_that_poll_call_poll_idle() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let examples = std::fs::read_dir(root.join("examples")).unwrap();
    let examples = examples.map(|entry| entry.unwrap().path());
    let mut polling = 0;
    for path in examples.chain(["README.md", "src/lib.rs"].map(|name| root.join(name))) {
        let text = std::fs::read_to_string(&path).unwrap();
        let has = |word| text.contains(word);
        assert!(!has("yield_now"), "{}", path.display());
        if has("cq.poll()") {
            let sleeps = has("poll(&mut fds") || has(".event().await");
            assert!(sleeps || has(".poll_idle()"), "{}", path.display());
            polling += 1;
        }
    }
    assert!(polling > 5, "{polling}");
}

/// The error output of an example with wrong arguments.
fn error_of(name: &str, words: &[&str]) -> String {
    let output = start(name, words);
    assert!(!output.status.success(), "{name} {words:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn every_example_reports_wrong_arguments() {
    let names = [
        "echo",
        "key_value",
        "event_loop",
        "chat",
        "cm_reconnect",
        "cm_server",
        "cm_tasks",
        "dynamic",
        "market_data",
        "replay",
        "srq_server",
        "memory_window",
        "tick_to_trade",
        "tokio_echo",
    ];
    for name in names {
        let text = error_of(name, &["no_such_device"]);
        assert!(text.contains("no_such_device"), "{name}: {text}");
        assert!(!text.contains("panicked"), "{name}: {text}");
    }
    let text = error_of("key_value", &["soft", "33"]);
    assert!(text.contains("33 clients: the table holds the keys of 1 to 32"), "{text}");
    let text = error_of("key_value", &["soft", "many"]);
    assert!(text.contains("CLIENTS must be a number, not many"), "{text}");
    assert!(error_of("replay", &["Cargo.toml"]).contains("Cargo.toml: read_recording"));
}
