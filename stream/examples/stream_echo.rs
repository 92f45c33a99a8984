//! An echo server and its client, written as for TCP.
//!
//! `cargo run -p uverbs-stream --features soft --example stream_echo [ADDRESS]`; without an address
//! both ends use the software device.

mod shared;

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;

use uverbs_stream::{Config, Listener, Stream};

/// Sends every line back until the client ends its data.
fn serve(mut stream: Stream) -> io::Result<()> {
    let mut line = String::new();
    while stream.read_line(&mut line)? > 0 {
        stream.write_all(line.as_bytes())?;
        line.clear();
    }
    Ok(())
}

/// Serves each client in a thread.
fn accept(listener: &Listener, clients: usize) -> io::Result<()> {
    let mut threads = Vec::new();
    for stream in listener.incoming().take(clients) {
        let stream = stream?;
        threads.push(thread::spawn(move || serve(stream)));
    }
    threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
}

fn client(config: &Config, address: SocketAddr) -> io::Result<()> {
    let mut stream = config.connect(address)?;
    for number in 1..=3 {
        writeln!(stream, "line {number}")?;
        let mut line = String::new();
        stream.read_line(&mut line)?;
        print!("{} says {line}", stream.peer_addr()?);
    }
    Ok(())
}

fn run() -> Result<(), shared::Failure> {
    const CLIENTS: usize = 2;
    let (config, address) = shared::place()?;
    let listener = config.bind(address)?;
    let address = listener.local_addr()?;
    println!("listening at {address}");
    let server = thread::spawn(move || accept(&listener, CLIENTS));
    for _ in 0..CLIENTS {
        client(&config, address)?;
    }
    server.join().expect("no panic")?;
    Ok(())
}

fn main() -> ExitCode {
    shared::end(run())
}
