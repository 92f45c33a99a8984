//! A TCP connection: one `write` per message, no delay.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;

use crate::link::{Case, Link, Wait};

/// The most bytes of one `read`, if many messages arrive.
const LARGEST_READ: usize = 256 << 10;

pub(crate) struct Tcp {
    stream: TcpStream,
    message: Vec<u8>,
    received: Vec<u8>,
}

impl Tcp {
    pub(crate) fn new(stream: TcpStream, case: Case) -> Self {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_nonblocking(case.wait == Wait::Poll).expect("O_NONBLOCK");
        Self { stream, message: vec![7; case.size], received: vec![0; LARGEST_READ] }
    }
}

/// Repeats the call until it succeeds or fails for good.
fn retry(mut call: impl FnMut() -> std::io::Result<usize>) -> usize {
    loop {
        match call() {
            Ok(0) => panic!("the partner has gone away"),
            Ok(count) => return count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
}

impl Link for Tcp {
    fn send(&mut self) {
        let mut sent = 0;
        while sent < self.message.len() {
            sent += retry(|| self.stream.write(&self.message[sent..]));
        }
    }

    fn receive(&mut self, count: u64) {
        let mut left = count as usize * self.message.len();
        while left > 0 {
            let most = left.min(self.received.len());
            left -= retry(|| self.stream.read(&mut self.received[..most]));
        }
    }
}
