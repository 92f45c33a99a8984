//! Tokio streams that are dropped while the peer's device does not acknowledge their end.

use std::io::{BufRead, ErrorKind};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::task::spawn_blocking;
use uverbs_stream::tokio::Stream;

use crate::alone;
use crate::hostile::Peer;

/// Far longer than a test takes if it does not wait for this.
const LINGER: Duration = Duration::from_secs(20);

/// A runtime with one thread, and a second one for blocking work, without timers.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_io().max_blocking_threads(1).build().unwrap()
}

/// Tokio streams whose peers have no receive for the end.
fn streams(count: usize, linger: Duration) -> (Vec<Stream>, Vec<Peer>) {
    let pair = |_| {
        let (stream, peer) = Peer::pair();
        stream.set_linger(linger).unwrap();
        (Stream::from_blocking(stream).unwrap(), peer)
    };
    (0..count).map(pair).unzip()
}

/// The thread of the task that drops the stream must run other tasks meanwhile.
#[test]
fn a_peer_that_takes_no_end_keeps_no_task_waiting() {
    let (runtime, start) = (runtime(), Instant::now());
    let peers = runtime.block_on(async { streams(1, LINGER).1 });
    assert!(start.elapsed() < LINGER / 2, "it took {:?}", start.elapsed());
    // The runtime stops waiting when the peer is gone.
    drop(peers);
    drop(runtime);
    assert!(start.elapsed() < LINGER, "it took {:?}", start.elapsed());
}

#[test]
fn dropped_streams_keep_no_thread_of_the_runtime() {
    let (runtime, start) = (runtime(), Instant::now());
    let peers = runtime.block_on(async {
        let (streams, peers) = streams(2, LINGER);
        drop(streams);
        spawn_blocking(|| ()).await.unwrap();
        peers
    });
    assert!(start.elapsed() < LINGER / 2, "it took {:?}", start.elapsed());
    drop(peers);
}

#[test]
fn a_dropped_stream_ends_after_its_linger_time() {
    const SHORT: Duration = Duration::from_millis(300);
    runtime().block_on(async {
        let (streams, mut peers) = streams(1, SHORT);
        let start = Instant::now();
        drop(streams);
        let ending = move || peers[0].connection.wait_disconnected(Some(LINGER));
        spawn_blocking(ending).await.unwrap().unwrap();
        assert!(start.elapsed() >= SHORT, "it took {:?}", start.elapsed());
    });
}

/// The runtime drops the streams one after the other as it shuts down.
#[test]
fn a_runtime_waits_for_all_its_streams_at_the_same_time() {
    const SHORT: Duration = Duration::from_secs(2);
    const STREAMS: usize = 4;
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    let (streams, peers) = runtime.block_on(async { streams(STREAMS, SHORT) });
    for stream in streams {
        runtime.spawn(async move {
            std::future::pending::<()>().await;
            drop(stream);
        });
    }
    let start = Instant::now();
    drop(runtime);
    let limit = SHORT * STREAMS as u32 / 2;
    assert!((SHORT..limit).contains(&start.elapsed()), "it took {:?}", start.elapsed());
    drop(peers);
}

/// The stream cannot become a tokio stream, because not all its bytes are consumed.
#[test]
fn a_stream_that_is_refused_keeps_no_task_waiting() {
    let (runtime, start) = (runtime(), Instant::now());
    let (mut stream, mut peer) = Peer::pair();
    stream.set_linger(LINGER).unwrap();
    peer.write(8, 8);
    assert_eq!(stream.fill_buf().unwrap().len(), 8);
    let error = runtime.block_on(async { Stream::from_blocking(stream).unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(start.elapsed() < LINGER / 2, "it took {:?}", start.elapsed());
    drop(peer);
}

/// No thread can have a stack of this size.
#[test]
fn a_runtime_that_can_make_no_thread_drops_streams() {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_io().thread_stack_size(1 << 60).build().unwrap();
    let (streams, peers) = runtime.block_on(async { streams(2, LINGER) });
    runtime.block_on(async { drop(streams) });
    drop(peers);
}

#[test]
fn a_stream_that_cannot_be_watched_keeps_no_task_waiting() {
    alone::run("dropped::without_a_descriptor");
}

#[test]
#[ignore = "another test runs it"]
fn without_a_descriptor() {
    if !alone::is_alone() {
        return;
    }
    let runtime = runtime();
    let (stream, peer) = Peer::pair();
    stream.set_linger(LINGER).unwrap();
    let files = alone::take_all_descriptors();
    let start = Instant::now();
    let error = runtime.block_on(async { Stream::from_blocking(stream).unwrap_err() });
    assert_eq!(error.raw_os_error(), Some(nix::libc::EMFILE), "{error}");
    assert!(start.elapsed() < LINGER / 2, "it took {:?}", start.elapsed());
    drop(files);
    drop(peer);
}
