//! Futures that are dropped after any number of polls, with the same tests over TCP. A stream must
//! neither lose nor repeat a byte, and a listener must continue to accept.

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, IoSlice};
use std::pin::pin;
use std::task::Poll;

use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf,
    WriteHalf, split,
};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::random::{Random, pattern};
use crate::tasks::{PATIENCE, Rdma, Tasks, Tcp, both_in_tasks};

const BYTES: usize = 400_000;

both_in_tasks!(
    calls_that_are_dropped_change_no_byte,
    a_shutdown_may_be_dropped_and_called_again,
    a_listener_survives_peers_that_give_up,
);

/// Polls a future at most `polls` times; `None` if it is still pending.
pub(crate) async fn at_most<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), polls);
    let result = poll_fn(|task| {
        left -= 1;
        match future.as_mut().poll(task) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    result.await
}

/// Sometimes until it is ready, so that the test does not only poll.
fn some_polls(random: &mut Random) -> usize {
    [1, 1, 2, 3, usize::MAX][random.next() as usize % 5]
}

async fn write<S: AsyncWrite>(mut stream: WriteHalf<S>, seed: u64) -> WriteHalf<S> {
    let (mut random, mut at) = (Random(seed), 0);
    while at < BYTES {
        let data = pattern(at, random.size(40_000).min(BYTES - at));
        let (first, rest) = data.split_at(random.next() as usize % (data.len() + 1));
        let parts = [&[][..], first, &[], rest, &[]].map(IoSlice::new);
        let polls = some_polls(&mut random);
        let written = match random.next() % 2 {
            0 => at_most(polls, stream.write(&data)).await,
            _ => at_most(polls, stream.write_vectored(&parts)).await,
        };
        match written {
            Some(bytes) => at += bytes.unwrap(),
            None => yield_now().await,
        }
    }
    stream
}

async fn read<S: AsyncRead>(stream: ReadHalf<S>, seed: u64) {
    let mut stream = BufReader::with_capacity(5_000, stream);
    let (mut random, mut at) = (Random(seed), 0);
    loop {
        let polls = some_polls(&mut random);
        let mut into = vec![0; random.size(30_000)];
        let found = if random.next() % 2 == 0 {
            let read = at_most(polls, stream.read(&mut into)).await;
            read.map(|bytes| into[..bytes.unwrap()].to_vec())
        } else {
            let found = at_most(polls, stream.fill_buf()).await;
            let found = found.map(|bytes| bytes.unwrap().to_vec());
            stream.consume(found.as_ref().map_or(0, Vec::len));
            found
        };
        match found {
            None => yield_now().await,
            Some(found) if found.is_empty() => break,
            Some(found) => {
                assert!(found == pattern(at, found.len()), "after {at} bytes");
                at += found.len();
            }
        }
    }
    assert_eq!(at, BYTES);
}

async fn calls_that_are_dropped_change_no_byte<N: Tasks>() {
    for seed in 0..4 {
        println!("seed {seed}");
        let (server, client) = N::pair().await;
        let ((there, back), (here, forth)) = (split(server), split(client));
        let readers = [tokio::spawn(read(there, seed)), tokio::spawn(read(here, seed + 10))];
        let writers = [tokio::spawn(write(forth, seed)), tokio::spawn(write(back, seed + 20))];
        for writer in writers {
            let mut stream = timeout(PATIENCE, writer).await.unwrap().unwrap();
            stream.shutdown().await.unwrap();
        }
        for reader in readers {
            timeout(PATIENCE, reader).await.unwrap().unwrap();
        }
    }
}

async fn a_shutdown_may_be_dropped_and_called_again<N: Tasks>() {
    for polls in 1..4 {
        let (mut server, mut client) = N::pair().await;
        let length = 50_000;
        let writing = async {
            client.write_all(&pattern(0, length)).await.unwrap();
            for _ in 0..3 {
                at_most(polls, client.shutdown()).await;
            }
            client.shutdown().await.unwrap();
            client.shutdown().await.unwrap();
        };
        let reading = async {
            let mut found = Vec::new();
            server.read_to_end(&mut found).await.unwrap();
            assert!(found == pattern(0, length));
        };
        let both = async { tokio::join!(writing, reading) };
        timeout(PATIENCE, both).await.unwrap();
    }
}

async fn a_listener_survives_peers_that_give_up<N: Tasks>() {
    let (listener, to) = N::listen().await;
    let serving = tokio::spawn(async move {
        loop {
            // A dropped call loses no peer.
            at_most(1, N::accept(&listener)).await.into_iter().for_each(echo::<N>);
            echo::<N>(N::accept(&listener).await);
        }
    });
    for polls in 1..12 {
        let gave_up = at_most(polls, N::connect(to)).await;
        drop(gave_up);
    }
    let talking = async {
        let mut client = N::connect(to).await.unwrap();
        client.write_all(b"still there?").await.unwrap();
        client.shutdown().await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "still there?");
    };
    timeout(PATIENCE, talking).await.unwrap();
    serving.abort();
}

fn echo<N: Tasks>(stream: N::Stream) {
    tokio::spawn(async move {
        let (mut read, mut write) = split(stream);
        // A peer that gave up may have reset the connection.
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    });
}

/// Features that TCP lacks: lent memory, and a buffer of the stream.
#[tokio::test]
async fn borrowed_memory_that_is_given_back_unused_changes_no_byte() {
    let (server, client) = Rdma::pair().await;
    let ((mut read, _back), (_here, mut write)) = (server.into_split(), client.into_split());
    let writing = async move {
        let (mut random, mut at) = (Random(1), 0);
        while at < BYTES {
            let Some(buffer) = at_most(some_polls(&mut random), write.reserve()).await else {
                yield_now().await;
                continue;
            };
            let mut buffer = buffer.unwrap();
            let length = random.size(buffer.len()).min(BYTES - at);
            buffer[..length].copy_from_slice(&pattern(at, length));
            if random.next() % 3 > 0 {
                buffer.commit(length).unwrap();
                at += length;
            }
        }
        write
    };
    let reading = async move {
        let (mut random, mut at) = (Random(2), 0);
        while at < BYTES {
            let polls = some_polls(&mut random);
            let taken = match random.next() % 2 {
                0 => buffered(&mut read, polls, at, &mut random).await,
                _ => lent(&mut read, polls, at, &mut random).await,
            };
            match taken {
                Some(taken) => at += taken,
                None => yield_now().await,
            }
        }
    };
    timeout(PATIENCE, async { tokio::join!(writing, reading) }).await.unwrap();
}

/// Takes some bytes of the stream's buffer.
async fn buffered(
    read: &mut uverbs_stream::tokio::ReadHalf,
    polls: usize,
    at: usize,
    random: &mut Random,
) -> Option<usize> {
    let found = at_most(polls, read.fill_buf()).await?.unwrap();
    let taken = random.size(found.len());
    assert!(found[..taken] == pattern(at, taken), "after {at} bytes");
    read.consume(taken);
    Some(taken)
}

/// Takes some bytes of the ring, if the buffer is empty.
async fn lent(
    read: &mut uverbs_stream::tokio::ReadHalf,
    polls: usize,
    at: usize,
    random: &mut Random,
) -> Option<usize> {
    let lent = match at_most(polls, read.lend()).await? {
        Err(error) if error.kind() == ErrorKind::InvalidInput => return None,
        lent => lent.unwrap(),
    };
    let found: Vec<u8> = lent.parts().iter().flat_map(|part| part.to_vec()).collect();
    let taken = random.size(found.len());
    assert!(found[..taken] == pattern(at, taken), "after {at} bytes");
    if random.next() % 3 == 0 {
        return None;
    }
    lent.consume(taken);
    Some(taken)
}
