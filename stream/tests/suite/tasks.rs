//! Streams in tokio tasks, with the same tests over TCP.

use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use uverbs_stream::tokio::{Listener, Stream};

use crate::alone;
use crate::network::{address, config};
use crate::random::{Random, pattern};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The operations of a network in tasks.
pub(crate) trait Tasks: 'static {
    type Listener: Send + Sync + 'static;
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn listen() -> impl Future<Output = (Self::Listener, SocketAddr)> + Send;
    fn accept(listener: &Self::Listener) -> impl Future<Output = Self::Stream> + Send;
    fn connect(to: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    fn pair() -> impl Future<Output = (Self::Stream, Self::Stream)> + Send {
        async {
            let (listener, to) = Self::listen().await;
            let (server, client) = tokio::join!(Self::accept(&listener), Self::connect(to));
            (server, client.unwrap())
        }
    }
}

pub(crate) struct Rdma;
pub(crate) struct Tcp;

impl Tasks for Rdma {
    type Listener = Listener;
    type Stream = Stream;
    async fn listen() -> (Listener, SocketAddr) {
        let listener = Listener::bind_with(&config(), address()).await.unwrap();
        let to = listener.local_addr().unwrap();
        (listener, to)
    }
    async fn accept(listener: &Listener) -> Stream {
        timeout(PATIENCE, listener.accept()).await.unwrap().unwrap().0
    }
    async fn connect(to: SocketAddr) -> io::Result<Stream> {
        timeout(PATIENCE, Stream::connect_with(&config(), to)).await.unwrap()
    }
}

impl Tasks for Tcp {
    type Listener = TcpListener;
    type Stream = TcpStream;
    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        (listener, to)
    }
    async fn accept(listener: &TcpListener) -> TcpStream {
        listener.accept().await.unwrap().0
    }
    async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(to).await
    }
}

macro_rules! both_in_tasks {
    ($($test:ident),* $(,)?) => {
        mod over_rdma {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() { super::$test::<super::Rdma>().await; })*
        }
        mod over_rdma_on_one_thread {
            $(#[tokio::test] async fn $test() { super::$test::<super::Rdma>().await; })*
        }
        mod over_tcp {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() { super::$test::<super::Tcp>().await; })*
        }
    };
}

pub(crate) use both_in_tasks;

both_in_tasks!(
    echo_in_one_task,
    halves_work_at_the_same_time,
    a_shutdown_stays_complete_while_reading_continues,
    many_streams_share_a_runtime,
    shutdown_ends_the_stream,
    vectored_writes,
    a_dropped_read_loses_no_data,
    a_waiting_writer_survives_a_dropped_reader,
    a_task_that_never_waits_leaves_others_their_turn,
    tasks_accept_from_one_listener,
    nothing_listens,
);

async fn echo_in_one_task<N: Tasks>() {
    let (mut server, mut client) = N::pair().await;
    for number in 0..100u8 {
        client.write_all(&[number; 10]).await.unwrap();
        let mut found = [0; 10];
        server.read_exact(&mut found).await.unwrap();
        server.write_all(&found).await.unwrap();
        found.fill(0);
        client.read_exact(&mut found).await.unwrap();
        assert_eq!(found, [number; 10]);
    }
}

async fn halves_work_at_the_same_time<N: Tasks>() {
    const BYTES: usize = 1_000_000;
    let seed = 0x5eed_0002;
    println!("seed {seed:#x}");
    let (server, client) = N::pair().await;
    let run = |stream: N::Stream, seed: u64| {
        let (mut read, mut write) = split(stream);
        let writing = tokio::spawn(async move {
            let (mut random, mut at) = (Random(seed), 0);
            while at < BYTES {
                let length = random.size(100_000).min(BYTES - at);
                write.write_all(&pattern(at, length)).await.unwrap();
                at += length;
            }
            write.shutdown().await.unwrap();
        });
        let reading = tokio::spawn(async move {
            let mut found = Vec::new();
            read.read_to_end(&mut found).await.unwrap();
            assert!(found == pattern(0, BYTES));
        });
        [writing, reading]
    };
    for task in run(server, seed).into_iter().chain(run(client, !seed)) {
        timeout(PATIENCE, task).await.unwrap().unwrap();
    }
}

/// Reading sends reports to the peer, and the shutdown is complete only after these are.
async fn a_shutdown_stays_complete_while_reading_continues<N: Tasks>() {
    const BYTES: usize = 300_000;
    let (mut server, mut client) = N::pair().await;
    client.shutdown().await.unwrap();
    let writing = tokio::spawn(async move {
        server.write_all(&pattern(0, BYTES)).await.unwrap();
        server
    });
    let (mut at, mut found) = (0, vec![0; 10_000]);
    while at < BYTES {
        client.read_exact(&mut found).await.unwrap();
        assert!(found == pattern(at, found.len()));
        at += found.len();
        timeout(PATIENCE, client.shutdown()).await.unwrap().unwrap();
    }
    drop(writing.await.unwrap());
}

async fn many_streams_share_a_runtime<N: Tasks>() {
    const STREAMS: usize = 60;
    let (listener, to) = N::listen().await;
    let serving = tokio::spawn(async move {
        for _ in 0..STREAMS {
            let stream = N::accept(&listener).await;
            tokio::spawn(async move {
                let (mut read, mut write) = split(stream);
                copy(&mut read, &mut write).await.unwrap();
                write.shutdown().await.unwrap();
            });
        }
    });
    let clients: Vec<_> = (0..STREAMS)
        .map(|number| {
            tokio::spawn(async move {
                let (mut read, mut write) = split(N::connect(to).await.unwrap());
                write.write_all(&pattern(number, 20_000)).await.unwrap();
                write.shutdown().await.unwrap();
                let mut found = Vec::new();
                read.read_to_end(&mut found).await.unwrap();
                assert!(found == pattern(number, 20_000));
            })
        })
        .collect();
    for client in clients {
        timeout(PATIENCE, client).await.unwrap().unwrap();
    }
    serving.await.unwrap();
}

async fn shutdown_ends_the_stream<N: Tasks>() {
    let (mut server, mut client) = N::pair().await;
    server.write_all(b"last words").await.unwrap();
    server.shutdown().await.unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "last words");
    assert_eq!(server.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    client.write_all(b"mine").await.unwrap();
    drop(client);
    text.clear();
    server.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "mine");
}

async fn vectored_writes<N: Tasks>() {
    let (mut server, mut client) = N::pair().await;
    assert!(client.is_write_vectored());
    let parts = [&b"a"[..], b"", b"bc"].map(IoSlice::new);
    assert_eq!(client.write_vectored(&parts).await.unwrap(), 3);
    let mut found = [0; 3];
    server.read_exact(&mut found).await.unwrap();
    assert_eq!(&found, b"abc");
}

async fn a_dropped_read_loses_no_data<N: Tasks>() {
    let (mut server, mut client) = N::pair().await;
    let soon = Duration::from_millis(5);
    assert!(timeout(soon, client.read(&mut [0; 4])).await.is_err());
    server.write_all(b"word").await.unwrap();
    let mut found = [0; 4];
    timeout(PATIENCE, client.read_exact(&mut found)).await.unwrap().unwrap();
    assert_eq!(&found, b"word");
}

/// The event arrives after the task that last waited for it was dropped. The other direction's task
/// must still be woken.
async fn a_waiting_writer_survives_a_dropped_reader<N: Tasks>() {
    let (mut server, client) = N::pair().await;
    let (mut read, mut write) = split(client);
    let writing = tokio::spawn(async move {
        write.write_all(&pattern(0, 20 << 20)).await.unwrap();
        write
    });
    // Since the first byte, the reader has read nothing, so the window becomes full.
    let mut first = [0; 1];
    server.read_exact(&mut first).await.unwrap();
    let soon = Duration::from_millis(20);
    let reading = tokio::spawn(async move { timeout(soon, read.read(&mut [0; 4])).await.is_err() });
    assert!(reading.await.unwrap());
    let mut rest = vec![0; (20 << 20) - 1];
    timeout(PATIENCE, server.read_exact(&mut rest)).await.unwrap().unwrap();
    drop(timeout(PATIENCE, writing).await.unwrap().unwrap());
}

async fn a_task_that_never_waits_leaves_others_their_turn<N: Tasks>() {
    const BYTES: usize = 10_000;
    let (mut server, mut client) = N::pair().await;
    client.write_all(&[1; BYTES]).await.unwrap();
    server.read_exact(&mut [0; 1]).await.unwrap();
    let (is_done, turns) = (std::cell::Cell::new(false), std::cell::Cell::new(0));
    let reading = async {
        for _ in 1..BYTES {
            server.read_exact(&mut [0; 1]).await.unwrap();
        }
        is_done.set(true);
    };
    let other = async {
        while !is_done.get() {
            turns.set(turns.get() + 1);
            tokio::task::yield_now().await;
        }
    };
    // One task polls both, so the other future runs only when the reading one yields.
    tokio::join!(reading, other);
    assert!(turns.get() > 10, "{} turns", turns.get());
}

/// Programs such as hyper read into large buffers that are not initialized.
#[tokio::test]
async fn a_read_initializes_no_more_than_arrived() {
    use std::mem::MaybeUninit;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    let (mut server, mut client) = Rdma::pair().await;
    let mut space = [MaybeUninit::uninit(); 4096];
    let mut into = tokio::io::ReadBuf::uninit(&mut space);
    let mut task = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut server).poll_read(&mut task, &mut into).is_pending());
    assert_eq!(into.initialized().len(), 0);
    client.write_all(b"words").await.unwrap();
    // When one byte is available, the others have also arrived.
    server.read_exact(&mut [0; 1]).await.unwrap();
    assert!(matches!(Pin::new(&mut server).poll_read(&mut task, &mut into), Poll::Ready(Ok(()))));
    assert_eq!((into.filled(), into.initialized().len()), (&b"ords"[..], 4));
}

/// A reading task consumes the writing task's event before tokio has seen it.
#[tokio::test]
async fn a_reading_task_does_not_hide_an_event_from_a_writing_task() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake, Waker};

    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let (mut server, client) = Rdma::pair().await;
    let (mut read, mut write) = client.into_split();
    let data = pattern(0, 1 << 20);
    let mut sent = 0;
    // Writes until the server's ring is full, that is, until no write succeeds for a while.
    while let Ok(bytes) = timeout(Duration::from_millis(100), write.write(&data[sent..])).await {
        sent += bytes.unwrap();
    }
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let writer = Waker::from(woken.clone());
    let mut task = Context::from_waker(&writer);
    let is_pending =
        std::pin::Pin::new(&mut write).poll_write(&mut task, &data[sent..]).is_pending();
    assert!(is_pending);
    server.read_exact(&mut vec![0; sent]).await.unwrap();
    let start = std::time::Instant::now();
    while !woken.0.load(Ordering::Relaxed) {
        assert!(start.elapsed() < PATIENCE, "the writer is never woken");
        // The reader polls by itself first, and then lets tokio poll.
        let mut part = [0; 8];
        let mut into = tokio::io::ReadBuf::new(&mut part);
        let mut task = Context::from_waker(Waker::noop());
        assert!(std::pin::Pin::new(&mut read).poll_read(&mut task, &mut into).is_pending());
        if start.elapsed() > Duration::from_millis(200) {
            tokio::task::yield_now().await;
        }
    }
}

/// A task that has accepted need not accept again.
async fn tasks_accept_from_one_listener<N: Tasks>() {
    const TASKS: usize = 3;
    let (listener, to) = N::listen().await;
    let listener = Arc::new(listener);
    let accept = |_| {
        let listener = listener.clone();
        tokio::spawn(async move { N::accept(&listener).await })
    };
    let accepting = [(); TASKS].map(accept);
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..TASKS {
        drop(N::connect(to).await.unwrap());
    }
    for task in accepting {
        drop(task.await.unwrap());
    }
}

/// As over TCP, the peer waits until a file descriptor is free.
#[test]
fn a_listener_of_tasks_without_a_descriptor_loses_no_connection() {
    alone::run("tasks::peers_of_a_listener_of_tasks_without_a_descriptor");
}

/// An established stream whose listener has not handled the confirmation.
async fn not_accepted(listener: &Listener) -> Stream {
    let connecting = Rdma::connect(listener.local_addr().unwrap());
    // Once the stream is connected, the listener is not polled again.
    tokio::select! {
        biased;
        client = connecting => client.unwrap(),
        _ = listener.accept() => unreachable!("the client has not confirmed"),
    }
}

#[tokio::test]
#[ignore = "another test runs it"]
async fn peers_of_a_listener_of_tasks_without_a_descriptor() {
    if !alone::is_alone() {
        return;
    }
    let (listener, _) = Rdma::listen().await;
    let mut client = not_accepted(&listener).await;
    client.write_all(b"all").await.unwrap();
    let files = alone::take_all_descriptors();
    let accept = || timeout(PATIENCE, listener.accept());
    // Both wait for the event, and each gets the error.
    let (first, second) = tokio::join!(accept(), accept());
    for accepted in [first, second] {
        let error = accepted.unwrap().unwrap_err();
        assert!(error.to_string().contains("Too many open files"), "{error}");
    }
    drop(files);
    let (mut server, _) = accept().await.unwrap().unwrap();
    server.read_exact(&mut [0; 3]).await.unwrap();
    server.write_all(b"back").await.unwrap();
    client.read_exact(&mut [0; 4]).await.unwrap();
    // A stream that waits to be accepted when the listener is dropped is aborted.
    let mut client = not_accepted(&listener).await;
    let files = alone::take_all_descriptors();
    accept().await.unwrap().unwrap_err();
    drop((files, listener));
    let error = timeout(PATIENCE, client.read(&mut [0; 1])).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

async fn nothing_listens<N: Tasks>() {
    let (listener, to) = N::listen().await;
    drop(listener);
    let error = N::connect(to).await.err().expect("no stream");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}

/// The timeout is for all addresses together, as for blocking streams.
#[test]
fn a_connect_ends_at_its_timeout() {
    // These listeners never accept.
    let listeners = [(); 3].map(|()| config().bind(address()).unwrap());
    let to = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let limit = Duration::from_millis(400);
    let config = config().connect_timeout(limit);
    // Without timers.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let start = std::time::Instant::now();
    let error = runtime.block_on(Stream::connect_with(&config, &to[..])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(start.elapsed() >= limit);
    // Each address after the first has no time left, so its listener gets no request.
    for listener in &listeners[1..] {
        listener.set_nonblocking(true).unwrap();
        let mut files = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut files, PollTimeout::ZERO), Ok(0), "it got time of its own");
    }
}

#[tokio::test]
async fn streams_of_threads_become_streams_of_tasks() {
    use crate::network::Network;
    let (server, client) = crate::network::Rdma::pair();
    let mut server = Stream::from_blocking(server).unwrap();
    let mut client = Stream::from_blocking(client).unwrap();
    client.write_all(b"x\nrest").await.unwrap();
    client.shutdown().await.unwrap();
    let mut line = String::new();
    server.read_line(&mut line).await.unwrap();
    assert_eq!(line, "x\n");
    server.read_to_string(&mut line).await.unwrap();
    assert_eq!(line, "x\nrest");
}

#[tokio::test]
async fn tasks_borrow_memory_too() {
    let (mut server, mut client) = Rdma::pair().await;
    let mut at = 0;
    while at < 300_000 {
        let mut buffer = client.reserve().await.unwrap();
        let length = buffer.len();
        buffer.copy_from_slice(&pattern(at, length));
        buffer.commit(length).unwrap();
        let lent = server.lend().await.unwrap();
        let found: Vec<u8> = lent.parts().iter().flat_map(|part| part.to_vec()).collect();
        assert!(found == pattern(at, length));
        lent.consume(length);
        at += length;
    }
}
