//! Many HTTP requests at once, cancelled requests, connections that are cut, slow readers, and many
//! streams one after the other.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use uverbs_stream::tokio::{Listener, Stream};

use crate::alone;
use crate::cancelled::at_most;
use crate::network::{address, config};
use crate::random::{Random, pattern};
use crate::tasks::PATIENCE;

/// Panics if the future does not end in time.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("an end")
}

async fn listener() -> (Listener, std::net::SocketAddr) {
    let listener = Listener::bind_with(&config(), address()).await.unwrap();
    let to = listener.local_addr().unwrap();
    (listener, to)
}

async fn pair() -> (Stream, Stream) {
    let (listener, to) = listener().await;
    let config = config();
    let both = async { tokio::join!(listener.accept(), Stream::connect_with(&config, to)) };
    let (server, client) = in_time(both).await;
    (server.unwrap().0, client.unwrap())
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::new(body)))
}

type Sender = http2::SendRequest<Full<Bytes>>;

/// The client of an HTTP/2 connection to a server that returns what it gets, in a task.
async fn http2() -> (Sender, tokio::task::AbortHandle) {
    let (server, client) = pair().await;
    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let serving = builder.serve_connection(TokioIo::new(server), service_fn(echo));
    let serving = tokio::spawn(async move { drop(serving.await) });
    let (sender, connection) =
        in_time(http2::handshake(TokioExecutor::new(), TokioIo::new(client))).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    (sender, serving.abort_handle())
}

/// Sends bytes and returns what comes back.
async fn ask(mut sender: Sender, question: Vec<u8>) -> Result<Bytes, hyper::Error> {
    let body = Full::new(Bytes::from(question));
    let request = Request::post("http://peer/").body(body).unwrap();
    let response = sender.send_request(request).await?;
    Ok(response.into_body().collect().await?.to_bytes())
}

/// Cancels every third request; the others return their data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_many_connections_run_at_once_while_others_are_cancelled() {
    const CONNECTIONS: u64 = 8;
    const REQUESTS: u64 = 40;
    let mut all = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let (sender, _serving) = http2().await;
        for request in 0..REQUESTS {
            let (sender, seed) = (sender.clone(), connection * REQUESTS + request);
            all.spawn(async move {
                let mut random = Random(seed);
                let question = pattern(seed as usize, random.size(60_000));
                let answer = ask(sender, question.clone());
                if seed % 3 == 0 {
                    return drop(in_time(at_most(random.size(4), answer)).await);
                }
                let answer = in_time(answer).await.unwrap();
                assert!(answer == question, "request {seed}");
            });
        }
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
}

/// The server aborts a connection with outstanding requests, each of which must end with an answer
/// or an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_connection_that_is_cut_end() {
    for seed in 0..10 {
        let (sender, serving) = http2().await;
        let mut all = JoinSet::new();
        for request in 0..20 {
            let question = pattern(request, 30_000);
            let answer = ask(sender.clone(), question.clone());
            all.spawn(async move {
                let answer = in_time(answer).await;
                answer.is_ok_and(|answer| {
                    assert!(answer == question);
                    true
                })
            });
        }
        let mut answered = 0;
        for _ in 0..seed {
            answered += u32::from(all.join_next().await.unwrap().unwrap());
        }
        serving.abort();
        while let Some(done) = all.join_next().await {
            answered += u32::from(done.unwrap());
        }
        assert!(answered >= seed, "{answered} of {seed}");
        let late = in_time(ask(sender, vec![1])).await;
        assert!(late.is_err());
    }
}

const CHUNK: usize = 10_000;

/// A body of chunks, each generated when it is polled for.
struct Chunks {
    made: Arc<AtomicUsize>,
    count: usize,
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.made.load(Ordering::Relaxed) == self.count {
            return Poll::Ready(None);
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(pattern(number * CHUNK, CHUNK).into()))))
    }
}

/// Waits until the server generates no more chunks, and returns their number.
async fn stopped(made: &AtomicUsize) -> usize {
    let mut before = 0;
    loop {
        sleep(Duration::from_millis(200)).await;
        let now = made.load(Ordering::Relaxed);
        if now != 0 && now == before {
            return now;
        }
        before = now;
    }
}

/// While its reader pauses, the server generates no more data than fits into rings and buffers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_pauses_stops_the_server() {
    const COUNT: usize = 500;
    let (server, client) = pair().await;
    let made = Arc::new(AtomicUsize::new(0));
    let counter = made.clone();
    let answer = service_fn(move |_: Request<Incoming>| {
        let body = Chunks { made: counter.clone(), count: COUNT };
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    let serving =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), answer);
    tokio::spawn(async move { drop(serving.await) });
    let (mut sender, connection) = in_time(http1::handshake(TokioIo::new(client))).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let request = Request::get("/").header("host", "peer").body(Full::new(Bytes::new())).unwrap();
    let mut body = in_time(sender.send_request(request)).await.unwrap().into_body();
    let (mut at, mut pauses) = (0, 0);
    while let Some(frame) = in_time(body.frame()).await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data == pattern(at, data.len()), "after {at} bytes");
        at += data.len();
        if at > pauses * COUNT * CHUNK / 3 && pauses < 2 {
            pauses += 1;
            let under_way = in_time(stopped(&made)).await * CHUNK - at;
            // The limit covers the ring, and hyper's buffers on both sides.
            assert!(under_way < 2 << 20, "{under_way} bytes are under way after {at}");
        }
    }
    assert_eq!((at, pauses), (COUNT * CHUNK, 2));
}

/// The number and the FNV-1a sum of a stream's bytes.
async fn sum_of(mut stream: Stream) -> (u64, u64) {
    let (mut buffer, mut sum, mut bytes) = (vec![0; 64 << 10], Sum::default(), 0);
    loop {
        match stream.read(&mut buffer).await.unwrap() {
            0 => return (bytes, sum.0),
            length => {
                sum.add(&buffer[..length]);
                bytes += length as u64;
            }
        }
    }
}

struct Sum(u64);

impl Default for Sum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// The peak memory use of this process, in bytes.
fn most_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn a_long_transfer_takes_no_more_memory_than_a_short_one() {
    alone::run("load::long_transfer");
}

#[tokio::test]
#[ignore = "another test runs it"]
async fn long_transfer() {
    if !alone::is_alone() {
        return;
    }
    let mut most = Vec::new();
    for bytes in [1 << 20, 24 << 20] {
        let (server, mut client) = pair().await;
        let reading = tokio::spawn(sum_of(server));
        let (mut random, mut sum, mut sent) = (Random(1), Sum::default(), 0);
        let mut block = vec![0; 100_000];
        while sent < bytes {
            let length = random.size(block.len()).min(bytes - sent);
            block[..8].copy_from_slice(&random.next().to_le_bytes());
            in_time(client.write_all(&block[..length])).await.unwrap();
            sum.add(&block[..length]);
            sent += length;
        }
        in_time(client.shutdown()).await.unwrap();
        let found = in_time(reading).await.unwrap();
        assert_eq!(found, (bytes as u64, sum.0));
        most.push(most_memory());
    }
    assert!(most[1] - most[0] < 8 << 20, "{most:?}");
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn streams_one_after_the_other_leave_nothing_open() {
    alone::run("load::many_streams_one_after_the_other");
}

/// Every third peer aborts, and every third gives up while it connects.
#[tokio::test]
#[ignore = "another test runs it"]
async fn many_streams_one_after_the_other() {
    if !alone::is_alone() {
        return;
    }
    let (listener, to) = listener().await;
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut word = [0; 4];
            while stream.read_exact(&mut word).await.is_ok() {
                if stream.write_all(&word).await.is_err() {
                    break;
                }
            }
        }
    });
    let (config, mut open) = (config(), Vec::new());
    for number in 0..450_u32 {
        if number % 3 == 2 {
            drop(in_time(at_most(2, Stream::connect_with(&config, to))).await);
            continue;
        }
        let mut stream = in_time(Stream::connect_with(&config, to)).await.unwrap();
        in_time(stream.write_all(&number.to_le_bytes())).await.unwrap();
        let mut word = [0; 4];
        in_time(stream.read_exact(&mut word)).await.unwrap();
        assert_eq!(word, number.to_le_bytes());
        if number % 3 == 1 {
            stream.set_linger(Duration::ZERO);
        }
        drop(stream);
        open.push(open_files());
    }
    serving.abort();
    let most = |some: &[usize]| some.iter().max().copied();
    let (early, late) = (most(&open[50..100]).unwrap(), most(&open[200..]).unwrap());
    // A few streams are still being closed whenever the files are counted.
    assert!(late <= early + 16, "{early} files were open early, {late} late");
}
