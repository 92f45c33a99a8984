//! HTTP/1 over RDMA with hyper: a server, and a client that sends it a request.
//!
//! `cargo run -p uverbs-stream --features soft,tokio --example http [ADDRESS]`; without an address
//! both ends use the software device.

mod shared;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use shared::Failure;
use uverbs_stream::Config;
use uverbs_stream::tokio::{Listener, Stream};

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = format!("you asked for {}\n", request.uri().path());
    Ok(Response::new(Full::new(text.into())))
}

/// Serves each connection in a task.
async fn serve(listener: Listener) -> Result<(), Failure> {
    loop {
        let (stream, peer) = listener.accept().await?;
        tokio::spawn(async move {
            let server = hyper::server::conn::http1::Builder::new();
            let served = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            match served {
                Ok(()) => println!("{peer} is served"),
                Err(error) => println!("{peer} is not served: {}", shared::in_words(&error)),
            }
        });
    }
}

async fn ask(config: &Config, address: SocketAddr) -> Result<(), Failure> {
    let stream = Stream::connect_with(config, address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driving = tokio::spawn(connection);
    for path in ["/", "/of/any/length"] {
        let host = address.to_string();
        sender.ready().await?;
        let request = Request::get(path).header("host", host).body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        println!("{}", response.status());
        let body = response.into_body().collect().await?.to_bytes();
        print!("{}", String::from_utf8_lossy(&body));
    }
    drop(sender);
    driving.await??;
    Ok(())
}

async fn run() -> Result<(), Failure> {
    let (config, address) = shared::place()?;
    let listener = Listener::bind_with(&config, address).await?;
    let address = listener.local_addr()?;
    println!("listening at {address}");
    let server = tokio::spawn(serve(listener));
    ask(&config, address).await?;
    server.abort();
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    shared::end(run().await)
}
