//! The number of system calls of tokio streams, counted by strace in a separate process.

use std::collections::HashMap;
use std::process::Command;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use uverbs_stream::Config;
use uverbs_stream::tokio::{Listener, Stream};

use crate::network::{address, config};

const STREAMS: usize = 16;
const ROUNDS: usize = 200;
/// The environment variable with the number of rounds of the counted process.
const VARIABLE: &str = "UVERBS_TEST_ROUNDS";

async fn pair(listener: &Listener, config: &Config) -> (Stream, Stream) {
    let client = Stream::connect_with(config, listener.local_addr().unwrap());
    let (server, client) = tokio::join!(listener.accept(), client);
    (server.unwrap().0, client.unwrap())
}

async fn answer(mut stream: Stream, rounds: usize) {
    let mut message = [0; 64];
    for _ in 0..rounds {
        stream.read_exact(&mut message).await.unwrap();
        stream.write_all(&message).await.unwrap();
    }
}

async fn ask(mut stream: Stream, rounds: usize) {
    let mut message = [7; 64];
    for _ in 0..rounds {
        stream.write_all(&message).await.unwrap();
        stream.read_exact(&mut message).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "another test counts the system calls of this one"]
async fn round_trips_on_streams_in_tasks() {
    let rounds = std::env::var(VARIABLE).unwrap().parse().unwrap();
    let listener = Listener::bind_with(&config(), address()).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..STREAMS {
        let (server, client) = pair(&listener, &config()).await;
        tasks.extend([tokio::spawn(answer(server, rounds)), tokio::spawn(ask(client, rounds))]);
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// The number of calls of each system call for `rounds` rounds; `None` without strace.
fn calls(rounds: usize) -> Option<HashMap<String, usize>> {
    let table = std::env::temp_dir().join(format!("uverbs-stream-{}", std::process::id()));
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-o"]).arg(&table).arg(std::env::current_exe().unwrap());
    strace.args(["--ignored", "--exact", "system_calls::round_trips_on_streams_in_tasks"]);
    let Ok(traced) = strace.env(VARIABLE, rounds.to_string()).output() else {
        assert!(std::env::var_os("CI").is_none(), "strace is missing");
        eprintln!("skipped: no strace");
        return None;
    };
    assert!(traced.status.success(), "{traced:?}");
    let text = std::fs::read_to_string(&table).unwrap();
    std::fs::remove_file(&table).unwrap();
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // The fourth column has the number of calls, the last one the name.
    let rows = rows.filter_map(|row| Some((row.last()?.to_string(), row.get(3)?.parse().ok()?)));
    Some(rows.collect())
}

/// A waiting task takes the event that ends its wait with one read(2), without a poll(2) or
/// getpid(2). Both ends of a stream wait once per round trip. The device reads no socket, because
/// both ends are on it.
#[test]
fn a_task_makes_one_system_call_for_an_event_that_it_waited_for() {
    let (Some(none), Some(all)) = (calls(0), calls(ROUNDS)) else { return };
    let count = |name| {
        let of = |calls: &HashMap<String, usize>| calls.get(name).copied().unwrap_or(0);
        of(&all).saturating_sub(of(&none))
    };
    let (events, few) = (2 * STREAMS * ROUNDS, STREAMS * ROUNDS / 8);
    // On a busy machine the next message may arrive before a task waits for it.
    assert!(count("read") > few && count("read") < events + few, "{all:?}");
    for name in ["poll", "getpid", "recvmmsg"] {
        assert!(count(name) < few, "{name}: {all:?}");
    }
}
