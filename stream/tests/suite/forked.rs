//! Streams in a forked child.

use std::io::{ErrorKind, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork};

use crate::alone;
use crate::network::{Network, Rdma, address, config};

/// Runs `run` in a forked child, which is killed if it does not end.
fn in_child(run: impl FnOnce()) {
    // SAFETY: no other thread of this process has a lock that the child needs.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(60);
            let result = catch_unwind(AssertUnwindSafe(run));
            // SAFETY: `_exit` has no preconditions; it ends the process at once.
            unsafe { nix::libc::_exit(i32::from(result.is_err())) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }
}

#[test]
fn a_child_waits_for_no_thread_of_the_parent() {
    alone::run("forked::a_stream_that_another_thread_uses");
}

/// At most forks the other thread has the stream's lock, which nothing unlocks in the child.
#[test]
#[ignore = "another test runs it"]
fn a_stream_that_another_thread_uses() {
    if !alone::is_alone() {
        return;
    }
    let (server, client) = Rdma::pair();
    server.set_nonblocking(true).unwrap();
    let (mut read, write) = server.into_split();
    let mut write = Some(write);
    let mut client = Some(client);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(read.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
            }
        });
        for _ in 0..30 {
            in_child(|| {
                let writing = write.as_mut().unwrap().write(b"x");
                assert_eq!(writing.unwrap_err().kind(), ErrorKind::PermissionDenied);
                drop(write.take());
                drop(client.take());
            });
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(write.as_mut().unwrap().write(b"x").unwrap(), 1);
}

#[test]
fn a_child_neither_waits_nor_ends_streams() {
    alone::run("forked::streams_of_the_parent");
}

#[test]
#[ignore = "another test runs it"]
fn streams_of_the_parent() {
    if !alone::is_alone() {
        return;
    }
    let (server, client) = Rdma::pair();
    let (other, mut polled) = Rdma::pair();
    // Without an error it would poll for longer than the child lives.
    let config = config().spin(Duration::from_secs(600));
    let listener = config.bind(address()).unwrap();
    let to = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap());
    let mut spinning = config.connect(to).unwrap();
    let accepted = accepting.join().unwrap();
    let mut streams = [Some(server), Some(client)];
    polled.set_nonblocking(true).unwrap();
    other.set_linger(Duration::MAX).unwrap();
    let mut other = Some(other);
    in_child(|| {
        let [server, _] = &mut streams;
        let is_refused = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
        let server = server.as_mut().unwrap();
        assert!(is_refused(server.read(&mut [0; 1]).unwrap_err()));
        assert!(is_refused(server.write(b"x").unwrap_err()));
        assert!(is_refused(spinning.read(&mut [0; 1]).unwrap_err()));
        assert!(is_refused(polled.read(&mut [0; 1]).unwrap_err()));
        drop(other.take());
    });
    drop(accepted);
    // The parent's streams still work.
    let [server, client] = streams.each_mut().map(|stream| stream.as_mut().unwrap());
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0; 1]).unwrap();
    other.as_mut().unwrap().write_all(b"x").unwrap();
}
