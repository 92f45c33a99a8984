//! Compares streams over the software device with TCP over loopback, in one process and one run.
//!
//! `cargo bench -p uverbs-stream --features soft,tokio --bench beside_tcp -- [MESSAGES] [--json]`
//!
//! Runs of the two alternate, and a ratio is the median of the ratios of the runs; absolute numbers
//! hold only for the machine. `cargo xtask figures FILE` reads the output of `--json`.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use uverbs_stream::{Config, Listener, Stream};

/// The bytes of a message in a round trip.
const MESSAGE: usize = 64;
/// The number of runs, of which the median is taken.
const RUNS: usize = 5;

/// Elapsed time and processor time of the whole process.
#[derive(Clone, Copy)]
struct Times {
    wall: Duration,
    processor: Duration,
}

struct Stopwatch {
    start: Instant,
    used: Duration,
}

impl Stopwatch {
    fn start() -> Self {
        Self { start: Instant::now(), used: processor_time() }
    }

    /// The times per message since the start.
    fn stop(&self, messages: usize) -> Times {
        let (wall, processor) = (self.start.elapsed(), processor_time() - self.used);
        let per = |time: Duration| time.div_f64(messages as f64);
        Times { wall: per(wall), processor: per(processor) }
    }
}

fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the system counts");
    let duration = |time: TimeVal| Duration::from_micros(time.num_microseconds() as u64);
    duration(usage.user_time()) + duration(usage.system_time())
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The configuration and address of this crate's streams.
struct Place {
    config: Config,
    address: SocketAddr,
}

impl Place {
    fn new() -> Result<Self, Failure> {
        let context = uverbs::device("soft")?.open()?;
        let gids = context.gid_table(1)?;
        let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).ok_or("no IPv4 address")?;
        let config = Config::new().context(&context).receive_ring(64 << 10);
        let address = SocketAddr::new(IpAddr::from(ipv4), 0);
        Ok(Self { config: config.send_buffers(8, 16 << 10), address })
    }

    fn pair(&self) -> io::Result<(Stream, Stream)> {
        let listener: Listener = self.config.bind(self.address)?;
        let to = listener.local_addr()?;
        let accepting = thread::spawn(move || listener.accept());
        let client = self.config.connect(to)?;
        Ok((accepting.join().expect("no panic")?.0, client))
    }
}

fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let to = listener.local_addr()?;
    let accepting = thread::spawn(move || listener.accept());
    let client = TcpStream::connect(to)?;
    let server = accepting.join().expect("no panic")?.0;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((server, client))
}

/// The time of a round trip between two threads.
fn round_trip<S>((mut server, mut client): (S, S), messages: usize) -> io::Result<Times>
where
    S: Read + Write + Send + 'static,
{
    let echo = thread::spawn(move || -> io::Result<()> {
        let mut message = [0; MESSAGE];
        for _ in 0..messages {
            server.read_exact(&mut message)?;
            server.write_all(&message)?;
        }
        Ok(())
    });
    let mut message = [7; MESSAGE];
    let watch = Stopwatch::start();
    for _ in 0..messages {
        client.write_all(&message)?;
        client.read_exact(&mut message)?;
    }
    let times = watch.stop(messages);
    echo.join().expect("no panic")?;
    Ok(times)
}

/// The time for `bytes` in one direction, with writes of 64 KiB.
fn transfer<S>((mut server, mut client): (S, S), bytes: usize) -> io::Result<Times>
where
    S: Read + Write + Send + 'static,
{
    let watch = Stopwatch::start();
    let writing = thread::spawn(move || -> io::Result<()> {
        let chunk = vec![7; 64 << 10];
        (0..bytes / chunk.len()).try_for_each(|_| server.write_all(&chunk))
    });
    let mut chunk = vec![0; 64 << 10];
    while client.read(&mut chunk)? > 0 {}
    writing.join().expect("no panic")?;
    Ok(watch.stop(1))
}

/// The time per round trip on many streams at once, in tasks on two threads.
fn crowd<S>(pairs: Vec<(S, S)>, messages: usize) -> io::Result<Times>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let rounds = messages.div_ceil(pairs.len());
    let total = rounds * pairs.len();
    let run = async move {
        let watch = Stopwatch::start();
        let tasks: Vec<_> = pairs
            .into_iter()
            .flat_map(|(server, client)| {
                [tokio::spawn(answer(server, rounds)), tokio::spawn(ask(client, rounds))]
            })
            .collect();
        // Keeps the streams until the time is measured.
        let mut streams = Vec::new();
        for task in tasks {
            streams.push(task.await??);
        }
        Ok(watch.stop(total))
    };
    tokio::runtime::Handle::current().block_on(run)
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, rounds: usize) -> io::Result<S> {
    let mut message = [0; MESSAGE];
    for _ in 0..rounds {
        stream.read_exact(&mut message).await?;
        stream.write_all(&message).await?;
    }
    Ok(stream)
}

async fn ask<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, rounds: usize) -> io::Result<S> {
    let mut message = [0; MESSAGE];
    for _ in 0..rounds {
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
    }
    Ok(stream)
}

fn tasks_of_rdma(place: &Place, streams: usize) -> io::Result<Vec<(Tasks, Tasks)>> {
    let task = uverbs_stream::tokio::Stream::from_blocking;
    (0..streams)
        .map(|_| place.pair().and_then(|(server, client)| Ok((task(server)?, task(client)?))))
        .collect()
}

type Tasks = uverbs_stream::tokio::Stream;

fn tasks_of_tcp(streams: usize) -> io::Result<Vec<(tokio::net::TcpStream, tokio::net::TcpStream)>> {
    let task = |stream: TcpStream| {
        stream.set_nonblocking(true)?;
        tokio::net::TcpStream::from_std(stream)
    };
    (0..streams)
        .map(|_| tcp_pair().and_then(|(server, client)| Ok((task(server)?, task(client)?))))
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures both networks in alternating runs, and prints a row.
struct Table {
    is_json: bool,
}

impl Table {
    fn head(&self) {
        if !self.is_json {
            println!("| | streams, us | TCP, us | ratio | lowest to highest | of processor time |");
            println!("|---|---|---|---|---|---|");
        }
    }

    fn compare(
        &self,
        case: &str,
        mut rdma: impl FnMut() -> io::Result<Times>,
        mut tcp: impl FnMut() -> io::Result<Times>,
    ) -> io::Result<()> {
        let runs = (0..RUNS).map(|_| Ok((rdma()?, tcp()?))).collect::<io::Result<Vec<_>>>()?;
        let all = |of: fn(&(Times, Times)) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let ours = median(runs.iter().map(|(ours, _)| micros(ours.wall)).collect());
        let tcp = median(runs.iter().map(|(_, tcp)| micros(tcp.wall)).collect());
        let ratios = all(|(ours, tcp)| ours.wall.as_secs_f64() / tcp.wall.as_secs_f64());
        let processor =
            median(all(|(ours, tcp)| ours.processor.as_secs_f64() / tcp.processor.as_secs_f64()));
        let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let (highest, ratio) = (ratios.iter().copied().fold(0.0, f64::max), median(ratios));
        match self.is_json {
            true => println!(
                "{{\"table\":\"streams\",\"case\":\"{case}\",\"ours_us\":{ours:.1},\"tcp_us\":{tcp:.1},\
                 \"ratio\":{ratio:.2},\"lowest\":{lowest:.2},\"highest\":{highest:.2},\
                 \"processor_ratio\":{processor:.2}}}"
            ),
            false => println!(
                "| {case} | {ours:.1} | {tcp:.1} | {ratio:.2} | {lowest:.2} to {highest:.2} \
                 | {processor:.2} |"
            ),
        }
        Ok(())
    }
}

/// Raises the limit of open files: each end of a tokio stream has four, and the device has two for
/// it.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

fn main() -> Result<(), Failure> {
    let messages = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(10_000);
    raise_file_limit();
    let place = Place::new()?;
    let spin = place.config.clone().spin(Duration::from_millis(1));
    let spinning = Place { config: spin, address: place.address };
    let table = Table { is_json: std::env::args().any(|word| word == "--json") };
    table.head();
    table.compare(
        "round trip of 64 bytes, threads that sleep",
        || round_trip(place.pair()?, messages),
        || round_trip(tcp_pair()?, messages),
    )?;
    table.compare(
        "round trip of 64 bytes, threads that poll",
        || round_trip(spinning.pair()?, messages),
        || round_trip(tcp_pair()?, messages),
    )?;
    table.compare(
        "64 MiB one way, writes of 64 KiB",
        || transfer(place.pair()?, 64 << 20),
        || transfer(tcp_pair()?, 64 << 20),
    )?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    let _entered = runtime.enter();
    for streams in [1, 10, 100, 1000] {
        table.compare(
            &format!("round trip of 64 bytes, tasks, streams at once: {streams}"),
            || crowd(tasks_of_rdma(&place, streams)?, messages),
            || crowd(tasks_of_tcp(streams)?, messages),
        )?;
    }
    Ok(())
}
