//! gRPC over RDMA with tonic: a server, and a client that calls it.
//!
//! `cargo run -p uverbs-stream --features soft,tokio --example grpc [ADDRESS]`; without an address
//! both ends use the software device.

#[path = "../shared/mod.rs"]
mod shared;
mod text;

use std::net::SocketAddr;
use std::process::ExitCode;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use shared::Failure;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use uverbs_stream::Config;
use uverbs_stream::tokio::{Listener, Stream};

/// Serves each connection in a task.
async fn serve(listener: Listener) -> Result<(), Failure> {
    loop {
        let (stream, peer) = listener.accept().await?;
        tokio::spawn(async move {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let answers = service_fn(text::answer);
            let served = server.serve_connection(TokioIo::new(stream), answers).await;
            match served {
                Ok(()) => println!("{peer} is served"),
                Err(error) => println!("{peer} is not served: {}", shared::in_words(&error)),
            }
        });
    }
}

/// A tonic channel whose connections are streams over RDMA.
async fn channel(config: Config, address: SocketAddr) -> Result<Channel, Failure> {
    let connector = tower::service_fn(move |_| {
        let config = config.clone();
        async move { Stream::connect_with(&config, address).await.map(TokioIo::new) }
    });
    Ok(Endpoint::from_static("http://peer").connect_with_connector(connector).await?)
}

async fn ask(config: Config, address: SocketAddr) -> Result<(), Failure> {
    let mut client = Grpc::new(channel(config, address).await?);
    client.ready().await?;
    let request = tonic::Request::new("!AMDR revo olleh".to_owned());
    let answer = client.unary(request, text::PATH.parse()?, text::TextCodec).await?;
    println!("{address} answers: {}", answer.into_inner());
    Ok(())
}

async fn run() -> Result<(), Failure> {
    let (config, address) = shared::place()?;
    let listener = Listener::bind_with(&config, address).await?;
    let to = listener.local_addr()?;
    let serving = tokio::spawn(serve(listener));
    ask(config, to).await?;
    serving.abort();
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    shared::end(run().await)
}
