//! How fast programs connect by address: `uverbs::cm` beside librdmacm.
//!
//! `cargo bench -p uverbs-cli --bench connect_rate [-- CONNECTIONS] [-- --json]`. `cmtime` of
//! rdma-core (package rdmacm-utils) is the server of both clients, and one of them. Each process
//! has a software device of `uverbs run`, so both clients make the same calls on the same nodes.
//! They run in alternation. A client takes all connections through a step before it begins the
//! next one. `cargo xtask figures FILE` reads the output of `--json`.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use uverbs::cm::{Channel, ConnectOptions, EventKind, Id, IdKey, PortSpace, QpOptions};
use uverbs::qp_type::Rc;
use uverbs::{CompletionChannel, CompletionQueue, ProtectionDomain, QueuePair};

/// Runs of each client.
const RUNS: usize = 5;
/// Where the server listens; the port is cmtime's.
const SERVER: &str = "127.78.0.1";
const PORT: u16 = 7471;
/// How long an event, or the server's start, may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// cmtime's names of the steps, and ours. Binding is left out: it has no peer.
const STEPS: &[(&str, &str)] = &[
    ("create id", "create ids"),
    ("resolve addr", "resolve the address"),
    ("resolve route", "resolve the route"),
    ("create qp", "create queue pairs"),
    ("connect", "connect"),
    ("disconnect", "disconnect, destroy queue pairs"),
    ("destroy", "destroy ids"),
];

type Failure = Box<dyn std::error::Error>;
/// Microseconds per connection, by cmtime's name of the step.
type Times = BTreeMap<String, f64>;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let count = words.iter().find_map(|word| word.parse().ok()).unwrap_or(200);
    if words.iter().any(|word| word == "--client") {
        return client(count);
    }
    let is_json = words.iter().any(|word| word == "--json");
    build_library()?;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push((ours(count)?, librdmacm(count)?));
    }
    report(&runs, count, is_json);
    Ok(())
}

fn ours(count: usize) -> Result<Times, Failure> {
    let _server = Server::start()?;
    measure(run().arg(std::env::current_exe()?).arg("--client"), count)
}

fn librdmacm(count: usize) -> Result<Times, Failure> {
    let _server = Server::start()?;
    measure(run().args(["cmtime", "-s", SERVER, "-c"]), count)
}

/// The library that `uverbs run` preloads.
fn build_library() -> io::Result<()> {
    let uverbs = Path::new(env!("CARGO_BIN_EXE_uverbs"));
    let target = uverbs.ancestors().nth(2).unwrap_or(uverbs);
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--profile", "bench", "-p", "uverbs-preload", "--target-dir"]);
    cargo.arg(target).status().map(drop)
}

/// A client.
fn run() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uverbs"));
    command.args(["run", "--"]);
    command
}

/// cmtime as the server, until it is dropped. It serves one client: its later queue pairs have the
/// completion queues of its first one, which it destroys.
struct Server(Child);

impl Server {
    /// Starts it, and waits until its trace shows that it listens.
    fn start() -> Result<Self, Failure> {
        let trace = std::env::temp_dir().join(format!("connect-rate-{}", std::process::id()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_uverbs"));
        command.args(["run", "--address", SERVER]).arg(format!("--trace={}", trace.display()));
        command.args(["--", "cmtime", "-b", SERVER]).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self(command.spawn()?);
        let deadline = Instant::now() + PATIENCE;
        while !std::fs::read_to_string(&trace).unwrap_or_default().contains("LISTEN") {
            if Instant::now() > deadline {
                return Err("cmtime does not listen; it is of Debian's rdmacm-utils".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        std::fs::remove_file(trace)?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // `uverbs run` passes it on.
        let _ = signal::kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Runs a client, and takes the last number of each line that has a step.
fn measure(client: &mut Command, count: usize) -> Result<Times, Failure> {
    let output = client.arg(count.to_string()).output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut times = Times::new();
    for (name, numbers) in text.lines().filter_map(|line| line.split_once(':')) {
        let name = name.trim();
        if STEPS.iter().any(|(step, _)| *step == name) {
            times.insert(name.into(), numbers.split_whitespace().last().unwrap_or("").parse()?);
        }
    }
    match output.status.success() && times.len() == STEPS.len() {
        true => Ok(times),
        false => {
            Err(format!("{client:?}: {text}{}", String::from_utf8_lossy(&output.stderr)).into())
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn report(runs: &[(Times, Times)], count: usize, is_json: bool) {
    if !is_json {
        println!(
            "| {count} connections | uverbs::cm, us | librdmacm, us | ratio | lowest to highest |"
        );
        println!("|---|---|---|---|---|");
    }
    for (step, name) in STEPS {
        row(name, runs, |times| times[*step], is_json);
    }
    row("all steps", runs, |times| times.values().sum(), is_json);
}

fn row(name: &str, runs: &[(Times, Times)], of: impl Fn(&Times) -> f64, is_json: bool) {
    let ours = median(runs.iter().map(|(ours, _)| of(ours)).collect());
    let theirs = median(runs.iter().map(|(_, theirs)| of(theirs)).collect());
    let ratios: Vec<f64> = runs.iter().map(|(ours, theirs)| of(ours) / of(theirs)).collect();
    let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let (highest, ratio) = (ratios.iter().copied().fold(0.0, f64::max), median(ratios));
    match is_json {
        true => println!(
            "{{\"table\":\"connect\",\"case\":\"{name}\",\"ours_us\":{ours:.1},\
             \"librdmacm_us\":{theirs:.1},\"ratio\":{ratio:.2},\"lowest\":{lowest:.2},\
             \"highest\":{highest:.2}}}"
        ),
        false => println!(
            "| {name} | {ours:.1} | {theirs:.1} | {ratio:.2} | {lowest:.2} to {highest:.2} |"
        ),
    }
}

/// One end of a connection. The queue pair goes when it is disconnected.
struct Connection {
    id: Id,
    qp: Option<QueuePair<Rc>>,
}

/// The objects that all queue pairs share, as in cmtime.
type Shared = (ProtectionDomain, [(CompletionQueue, CompletionChannel); 2]);

/// Takes all connections through the steps, and prints what each step took.
fn client(count: usize) -> Result<(), Failure> {
    let to: SocketAddr = format!("{SERVER}:{PORT}").parse()?;
    let channel = Channel::open()?;
    let mut all = HashMap::new();
    timed("create id", count, || {
        for _ in 0..count {
            let id = channel.create_id(PortSpace::Tcp)?;
            all.insert(id.key(), Connection { id, qp: None });
        }
        Ok(())
    })?;
    step("resolve addr", &channel, &mut all, |one| one.id.resolve_address(None, to, PATIENCE))?;
    step("resolve route", &channel, &mut all, |one| one.id.resolve_route(PATIENCE))?;
    let mut made = None;
    timed("create qp", count, || {
        for one in all.values_mut() {
            let shared = match &made {
                Some(shared) => shared,
                None => made.insert(share(&one.id)?),
            };
            one.qp = Some(queue_pair(shared, &one.id)?);
        }
        Ok(())
    })?;
    step("connect", &channel, &mut all, |one| match &one.qp {
        Some(qp) => one.id.connect(qp, &ConnectOptions::default()),
        None => Ok(()),
    })?;
    step("disconnect", &channel, &mut all, |one| {
        one.id.disconnect()?;
        one.qp = None;
        Ok(())
    })?;
    timed("destroy", count, || {
        all.clear();
        Ok(())
    })
}

fn share(id: &Id) -> uverbs::Result<Shared> {
    let context = id.context()?;
    let queue = || -> uverbs::Result<_> {
        let channel = context.create_completion_channel()?;
        Ok((context.create_cq(1).channel(&channel).build()?, channel))
    };
    Ok((context.alloc_pd()?, [queue()?, queue()?]))
}

fn queue_pair((pd, [(send, _), (receive, _)]): &Shared, id: &Id) -> uverbs::Result<QueuePair<Rc>> {
    let qp = id.create_qp::<Rc, _>(pd, send.handle(), receive.handle())?.max_inline_data(0);
    qp.max_send_wr(1).max_recv_wr(1).build()
}

fn timed(
    name: &str,
    count: usize,
    work: impl FnOnce() -> uverbs::Result<()>,
) -> Result<(), Failure> {
    let start = Instant::now();
    work()?;
    println!("{name}: {:.2}", start.elapsed().as_secs_f64() * 1e6 / count as f64);
    Ok(())
}

/// Begins a step for all, and waits until all have ended it.
fn step(
    name: &str,
    channel: &Channel,
    all: &mut HashMap<IdKey, Connection>,
    begin: impl Fn(&mut Connection) -> uverbs::Result<()>,
) -> Result<(), Failure> {
    timed(name, all.len(), || {
        all.values_mut().try_for_each(begin)?;
        for _ in 0..all.len() {
            let event = channel.next_event_until(Instant::now() + PATIENCE)?;
            match event.kind {
                EventKind::ConnectResponse(_) => {
                    if let Some(Connection { id, qp: Some(qp) }) = all.get_mut(&event.id) {
                        id.establish(qp, &QpOptions::default())?;
                    }
                }
                EventKind::AddressResolved | EventKind::RouteResolved => {}
                EventKind::Disconnected(result) => result?,
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    })
}
