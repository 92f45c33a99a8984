//! The end that survives: blocking streams, or tokio streams. A call that does not return in time
//! fails.

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use uverbs_stream::{Config, tokio as tasks};

use crate::peer::PATIENCE;

pub(crate) trait End: Sync {
    type Listener: Send;
    type Stream: Send;
    fn bind(&self, config: &Config, address: SocketAddr) -> Self::Listener;
    fn address(&self, listener: &Self::Listener) -> SocketAddr;
    fn accept(&self, listener: &mut Self::Listener) -> Self::Stream;
    fn connect(&self, config: &Config, to: SocketAddr) -> io::Result<Self::Stream>;
    fn read(&self, stream: &mut Self::Stream, into: &mut [u8]) -> io::Result<usize>;
    fn write(&self, stream: &mut Self::Stream, data: &[u8]) -> io::Result<usize>;
    /// Ends the data of this side.
    fn finish(&self, stream: &mut Self::Stream) -> io::Result<()>;

    /// Reads to the end: all bytes, and the result.
    fn read_all(&self, stream: &mut Self::Stream) -> (Vec<u8>, io::Result<()>) {
        let (mut all, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            match self.read(stream, &mut part) {
                Ok(0) => return (all, Ok(())),
                Ok(count) => all.extend_from_slice(&part[..count]),
                Err(error) => return (all, Err(error)),
            }
        }
    }

    fn write_all(&self, stream: &mut Self::Stream, mut data: &[u8]) {
        while !data.is_empty() {
            data = &data[self.write(stream, data).unwrap()..];
        }
    }
}

pub(crate) struct Blocking;

impl End for Blocking {
    type Listener = uverbs_stream::Listener;
    type Stream = uverbs_stream::Stream;

    fn bind(&self, config: &Config, address: SocketAddr) -> Self::Listener {
        config.bind(address).unwrap()
    }

    fn address(&self, listener: &Self::Listener) -> SocketAddr {
        listener.local_addr().unwrap()
    }

    fn accept(&self, listener: &mut Self::Listener) -> Self::Stream {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn connect(&self, config: &Config, to: SocketAddr) -> io::Result<Self::Stream> {
        let stream = config.connect(to)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    fn read(&self, stream: &mut Self::Stream, into: &mut [u8]) -> io::Result<usize> {
        stream.read(into)
    }

    fn write(&self, stream: &mut Self::Stream, data: &[u8]) -> io::Result<usize> {
        stream.write(data)
    }

    fn finish(&self, stream: &mut Self::Stream) -> io::Result<()> {
        stream.shutdown(Shutdown::Write)
    }
}

pub(crate) struct Tokio(Runtime);

impl Tokio {
    pub(crate) fn new() -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        Self(runtime.worker_threads(1).enable_all().build().unwrap())
    }

    fn wait<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        self.0.block_on(async { tokio::time::timeout(PATIENCE, work).await? })
    }
}

impl End for Tokio {
    type Listener = tasks::Listener;
    type Stream = tasks::Stream;

    fn bind(&self, config: &Config, address: SocketAddr) -> Self::Listener {
        self.wait(tasks::Listener::bind_with(config, address)).unwrap()
    }

    fn address(&self, listener: &Self::Listener) -> SocketAddr {
        listener.local_addr().unwrap()
    }

    fn accept(&self, listener: &mut Self::Listener) -> Self::Stream {
        self.wait(listener.accept()).unwrap().0
    }

    fn connect(&self, config: &Config, to: SocketAddr) -> io::Result<Self::Stream> {
        self.wait(tasks::Stream::connect_with(config, to))
    }

    fn read(&self, stream: &mut Self::Stream, into: &mut [u8]) -> io::Result<usize> {
        self.wait(stream.read(into))
    }

    fn write(&self, stream: &mut Self::Stream, data: &[u8]) -> io::Result<usize> {
        self.wait(stream.write(data))
    }

    fn finish(&self, stream: &mut Self::Stream) -> io::Result<()> {
        self.wait(stream.shutdown())
    }
}
