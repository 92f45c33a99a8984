//! Messages at the bounds of the ring, many streams at once, and devices that are removed.

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use uverbs::soft::SoftDevice;
use uverbs::{Context, Device};
use uverbs_stream::tokio::{Listener, Stream};
use uverbs_stream::{Broken, Config};

use crate::network::{address, config};
use crate::random::pattern;

/// A limit for waits that must end; only a defect reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

fn runtimes() -> [Runtime; 2] {
    let [mut one, mut several] = [Builder::new_current_thread(), Builder::new_multi_thread()];
    several.worker_threads(2);
    [&mut one, &mut several].map(|builder| builder.enable_all().build().unwrap())
}

async fn pair(config: &Config, at: SocketAddr) -> (Stream, Stream) {
    let listener = Listener::bind_with(config, at).await.unwrap();
    let client = Stream::connect_with(config, listener.local_addr().unwrap());
    let (server, client) = tokio::join!(listener.accept(), client);
    (server.unwrap().0, client.unwrap())
}

/// Sizes of rings: around those at which a quarter is rounded, and at which a message fits into the
/// work request.
const RINGS: [usize; 10] = [1, 2, 3, 4, 5, 7, 127, 128, 129, 4096];

fn lengths(ring: usize) -> [usize; 6] {
    [0, 1, ring - 1, ring, ring + 1, 3 * ring + 1]
}

/// One side writes each length, the other one reads `step` bytes at a time.
fn exchange(config: &Config, ring: usize, step: usize) {
    let listener = config.bind(address()).unwrap();
    let to = listener.local_addr().unwrap();
    let total: usize = lengths(ring).iter().sum();
    let reading = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut found, mut into) = (Vec::new(), vec![0; step]);
        while found.len() < total {
            let bytes = stream.read(&mut into).unwrap();
            assert_ne!(bytes, 0, "{} of {total} bytes came", found.len());
            found.extend(&into[..bytes]);
        }
        stream.write_all(&found).unwrap();
        assert_eq!(stream.read(&mut into).unwrap(), 0);
        found
    });
    let mut stream = config.connect(to).unwrap();
    let (mut at, mut back) = (0, vec![0; total]);
    for length in lengths(ring) {
        stream.write_all(&pattern(at, length)).unwrap();
        at += length;
    }
    stream.read_exact(&mut back).unwrap();
    drop(stream);
    assert_eq!(reading.join().unwrap(), pattern(0, total), "a ring of {ring}, by {step}");
    assert_eq!(back, pattern(0, total), "a ring of {ring}, by {step}");
}

#[test]
fn every_length_around_the_ring_s_arrives_whole() {
    for ring in RINGS {
        let config = config().receive_ring(ring as u32).send_buffers(4, 16);
        [1, 3, ring, 2 * ring].into_iter().for_each(|step| exchange(&config, ring, step));
    }
}

async fn answers(mut stream: Stream, rounds: usize, bytes: usize) {
    let mut message = vec![0; bytes];
    for _ in 0..rounds {
        stream.read_exact(&mut message).await.unwrap();
        stream.write_all(&message).await.unwrap();
    }
    assert_eq!(stream.read(&mut message).await.unwrap(), 0);
    stream.shutdown().await.unwrap();
}

async fn asks(mut stream: Stream, rounds: usize, bytes: usize) {
    let mut back = vec![0; bytes];
    for round in 0..rounds {
        let message = pattern(7 * round, bytes);
        stream.write_all(&message).await.unwrap();
        stream.read_exact(&mut back).await.unwrap();
        assert!(message == back, "round {round}");
    }
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut back).await.unwrap(), 0);
}

async fn many(streams: usize) {
    let mut tasks = Vec::new();
    for _ in 0..streams {
        let (server, client) = pair(&config(), address()).await;
        tasks.push(tokio::spawn(answers(server, 8, 65_536)));
        tasks.push(tokio::spawn(asks(client, 8, 65_536)));
    }
    for task in tasks {
        timeout(PATIENCE, task).await.expect("it ends").unwrap();
    }
}

#[test]
fn large_messages_on_many_streams_at_once_arrive_whole() {
    for runtime in runtimes() {
        [16, 64].into_iter().for_each(|streams| runtime.block_on(many(streams)));
    }
}

/// A new device, and its address.
fn device() -> (SoftDevice, Context, SocketAddr) {
    let soft = SoftDevice::builder("soft0").build().unwrap();
    let context = Device::from_soft(soft.clone()).open().unwrap();
    let gids = context.gid_table(1).unwrap();
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).expect("an IPv4 address");
    (soft, context, SocketAddr::new(IpAddr::from(ipv4), 0))
}

fn is_removed(error: &std::io::Error) -> bool {
    let broken = error.get_ref().and_then(|inner| inner.downcast_ref::<Broken>());
    matches!(broken, Some(Broken::DeviceRemoved)) && error.kind() == ErrorKind::ConnectionAborted
}

async fn ends<T: std::fmt::Debug>(what: &str, call: impl Future<Output = std::io::Result<T>>) {
    let error = timeout(PATIENCE, call).await.expect(what).expect_err(what);
    assert!(is_removed(&error), "{what}: {error:?}");
}

/// Tasks wait for bytes, for space, and for the delivery of the end.
async fn waits_end_with_the_device() {
    let (soft, context, at) = device();
    let config = Config::new().context(&context).receive_ring(4096);
    let (mut deaf, mut writer) = pair(&config, at).await;
    let writing = tokio::spawn(async move {
        ends("a write", writer.write_all(&[7; 100_000])).await;
        ends("a further write", writer.write(&[7])).await;
        ends("a shutdown", writer.shutdown()).await;
    });
    let (idle, mut reader) = pair(&config, at).await;
    let reading = tokio::spawn(async move {
        ends("a read", reader.read(&mut [0; 8])).await;
        ends("a further read", reader.read(&mut [0; 8])).await;
    });
    tokio::task::yield_now().await;
    tokio::task::spawn_blocking(move || soft.remove()).await.unwrap();
    timeout(PATIENCE, writing).await.expect("writes end").unwrap();
    timeout(PATIENCE, reading).await.expect("reads end").unwrap();
    // Bytes that arrived before may still be read.
    let mut left = Vec::new();
    ends("a read of what was left", deaf.read_to_end(&mut left)).await;
    assert!(left.iter().all(|byte| *byte == 7));
    drop((deaf, idle));
}

#[test]
fn tasks_hear_of_a_removed_device() {
    for runtime in runtimes() {
        runtime.block_on(waits_end_with_the_device());
    }
}

#[test]
fn threads_hear_of_a_removed_device() {
    let (soft, context, at) = device();
    let config = Config::new().context(&context).receive_ring(4096);
    let pair = || {
        let listener = config.bind(at).unwrap();
        let to = listener.local_addr().unwrap();
        let accepting = thread::spawn(move || listener.accept().unwrap().0);
        let client = config.connect(to).unwrap();
        (accepting.join().unwrap(), client)
    };
    let (deaf, mut writer) = pair();
    let writing = thread::spawn(move || writer.write_all(&[7; 100_000]).unwrap_err());
    let (idle, mut reader) = pair();
    let reading = thread::spawn(move || reader.read(&mut [0; 8]).unwrap_err());
    soft.remove();
    let errors = [writing, reading].map(|thread| thread.join().unwrap());
    assert!(errors.iter().all(is_removed), "{errors:?}");
    drop((deaf, idle));
}

/// Connecting and accepting also end.
#[test]
fn a_task_that_connects_or_accepts_hears_of_a_removed_device() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let (soft, context, at) = device();
            let config = Config::new().context(&context);
            let listener = Listener::bind_with(&config, at).await.unwrap();
            let accepting = tokio::spawn(async move { listener.accept().await.map(drop) });
            let silent = config.bind(at).unwrap();
            let to = silent.local_addr().unwrap();
            let connecting = tokio::spawn(async move {
                let config = config;
                Stream::connect_with(&config, to).await.map(drop)
            });
            tokio::task::yield_now().await;
            tokio::task::spawn_blocking(move || soft.remove()).await.unwrap();
            let accepted = timeout(PATIENCE, accepting).await.expect("it ends").unwrap();
            assert_eq!(accepted.unwrap_err().kind(), ErrorKind::NotConnected);
            timeout(PATIENCE, connecting).await.expect("it ends").unwrap().unwrap_err();
        });
    }
}

/// A name server may answer slowly.
#[test]
fn the_time_to_connect_begins_after_the_lookup() {
    const LIMIT: Duration = Duration::from_secs(1);
    struct Name(SocketAddr);
    impl ToSocketAddrs for Name {
        type Iter = std::iter::Once<SocketAddr>;
        fn to_socket_addrs(&self) -> std::io::Result<Self::Iter> {
            thread::sleep(LIMIT);
            Ok(std::iter::once(self.0))
        }
    }
    let listener = config().bind(address()).unwrap();
    let to = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap());
    let client = config().connect_timeout(LIMIT).connect(Name(to)).unwrap();
    drop(accepting.join().unwrap());
    drop(client);
}
