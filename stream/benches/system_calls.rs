//! System calls per round trip of tokio streams, compared with TCP over loopback.
//!
//! `cargo bench -p uverbs-stream --features soft,tokio --bench system_calls -- [--json]`
//!
//! perf counts the calls of a process that has both ends, and the device. A figure is the
//! difference between two such processes, of which one makes more round trips, so calls to connect
//! do not count. Nor does sched_yield(2), which the device's thread calls while it polls for 200 µs
//! before it sleeps: how often depends on the machine's load. `cargo xtask figures FILE` reads the
//! output of `--json`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use uverbs_stream::Config;
use uverbs_stream::tokio::{Listener, Stream};

/// The round trips on all streams together: of the process that makes fewer, and of the other one.
const ROUNDS: [usize; 2] = [1280, 11_520];
/// The number of pairs of processes, of which the median is taken.
const RUNS: usize = 5;
/// The environment variable that makes a process the counted one, and says what it does: `NETWORK
/// RUNTIME BYTES STREAMS ROUNDS`.
const COUNTED: &str = "UVERBS_STREAM_COUNTED";

const NETWORKS: [&str; 2] = ["rdma", "tcp"];
const RUNTIMES: [&str; 2] = ["current_thread", "multi_thread"];

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn runtime(flavor: &str) -> io::Result<Runtime> {
    match flavor {
        "current_thread" => Builder::new_current_thread().enable_all().build(),
        _ => Builder::new_multi_thread().worker_threads(2).enable_all().build(),
    }
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    bytes: usize,
    rounds: usize,
) -> io::Result<S> {
    let mut message = vec![0; bytes];
    for _ in 0..rounds {
        stream.read_exact(&mut message).await?;
        stream.write_all(&message).await?;
    }
    Ok(stream)
}

async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    bytes: usize,
    rounds: usize,
) -> io::Result<S> {
    let mut message = vec![7; bytes];
    for _ in 0..rounds {
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
    }
    Ok(stream)
}

/// Makes the round trips. The streams are dropped after the last round trip.
async fn exchange<S>(pairs: Vec<(S, S)>, bytes: usize, rounds: usize) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let rounds = rounds / pairs.len();
    let tasks: Vec<_> = pairs
        .into_iter()
        .flat_map(|(server, client)| {
            [tokio::spawn(answer(server, bytes, rounds)), tokio::spawn(ask(client, bytes, rounds))]
        })
        .collect();
    let mut streams = Vec::new();
    for task in tasks {
        streams.push(task.await??);
    }
    Ok(())
}

async fn streams_of_rdma(count: usize) -> Result<Vec<(Stream, Stream)>, Failure> {
    let context = uverbs::device("soft")?.open()?;
    let gids = context.gid_table(1)?;
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).ok_or("no IPv4 address")?;
    let config = Config::new().context(&context);
    let listener = Listener::bind_with(&config, SocketAddr::new(IpAddr::from(ipv4), 0)).await?;
    let to = listener.local_addr()?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let (server, client) = tokio::join!(listener.accept(), Stream::connect_with(&config, to));
        pairs.push((server?.0, client?));
    }
    Ok(pairs)
}

async fn streams_of_tcp(count: usize) -> Result<Vec<(TcpStream, TcpStream)>, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let to = listener.local_addr()?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let (server, client) = tokio::join!(listener.accept(), TcpStream::connect(to));
        let (server, client) = (server?.0, client?);
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        pairs.push((server, client));
    }
    Ok(pairs)
}

/// Runs the counted process.
fn counted(what: &str) -> Result<(), Failure> {
    let words: Vec<&str> = what.split(' ').collect();
    let [network, flavor, bytes, streams, rounds] = words[..] else { return Err(what.into()) };
    let (bytes, streams, rounds) = (bytes.parse()?, streams.parse()?, rounds.parse()?);
    runtime(flavor)?.block_on(async {
        match network {
            "tcp" => exchange(streams_of_tcp(streams).await?, bytes, rounds).await,
            _ => exchange(streams_of_rdma(streams).await?, bytes, rounds).await,
        }
    })
}

/// The number of system calls of such a process, without sched_yield(2).
fn calls(what: &str) -> Result<usize, Failure> {
    let mut perf = Command::new("perf");
    perf.args(["stat", "-x,", "-e", "raw_syscalls:sys_enter,syscalls:sys_enter_sched_yield"]);
    let counted = perf.arg(std::env::current_exe()?).env(COUNTED, what).output()?;
    if !counted.status.success() {
        return Err(format!("{what}: {counted:?}").into());
    }
    let text = String::from_utf8(counted.stderr)?;
    let count = |event: &str| -> Result<usize, Failure> {
        let line = text.lines().find(|line| line.contains(event)).ok_or("no count")?;
        Ok(line.split(',').next().ok_or("an empty line")?.parse()?)
    };
    Ok(count("raw_syscalls:sys_enter")? - count("sys_enter_sched_yield")?)
}

/// System calls per round trip: the lowest, the median and the highest.
fn per_round_trip(
    network: &str,
    flavor: &str,
    bytes: usize,
    streams: usize,
) -> Result<[f64; 3], Failure> {
    let mut all = Vec::new();
    for _ in 0..RUNS {
        let count = |rounds| calls(&format!("{network} {flavor} {bytes} {streams} {rounds}"));
        let (few, many) = (count(ROUNDS[0])?, count(ROUNDS[1])?);
        all.push((many as f64 - few as f64) / (ROUNDS[1] - ROUNDS[0]) as f64);
    }
    all.sort_by(f64::total_cmp);
    Ok([all[0], all[RUNS / 2], all[RUNS - 1]])
}

fn size(bytes: usize) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { format!("{} KiB", bytes / 1024) }
}

fn main() -> Result<(), Failure> {
    if let Ok(what) = std::env::var(COUNTED) {
        return counted(&what);
    }
    let is_json = std::env::args().any(|word| word == "--json");
    for bytes in [1, 64, 4096, 65_536] {
        for streams in [1, 16, 64] {
            let case = format!("{}, streams at once: {streams}", size(bytes));
            let mut line = format!("{{\"table\":\"stream-calls\",\"case\":\"{case}\"");
            for flavor in RUNTIMES {
                for network in NETWORKS {
                    let [low, median, high] = per_round_trip(network, flavor, bytes, streams)?;
                    let name = format!("{network}_{flavor}");
                    line += &format!(",\"{name}\":\"{median:.1} ({low:.1} to {high:.1})\"");
                }
            }
            match is_json {
                true => println!("{line}}}"),
                false => println!("{}", line.replace(['{', '"'], "")),
            }
        }
    }
    Ok(())
}
