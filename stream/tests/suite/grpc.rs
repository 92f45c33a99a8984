//! gRPC with tonic, over HTTP/2 over streams.

#[path = "../../examples/grpc/text.rs"]
mod text;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use uverbs_stream::tokio::{Listener, Stream};

use crate::network::{address, config};

/// A channel to a server, over streams.
async fn channel() -> Channel {
    let listener = Listener::bind_with(&config(), address()).await.unwrap();
    let to = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.serve_connection(TokioIo::new(stream), service_fn(text::answer)).await
    });
    let connect =
        move |_| async move { Stream::connect_with(&config(), to).await.map(TokioIo::new) };
    let endpoint = Endpoint::from_static("http://peer");
    endpoint.connect_with_connector(tower::service_fn(connect)).await.unwrap()
}

async fn ask(channel: Channel, question: String) -> Result<String, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let path = text::PATH.parse().unwrap();
    let answer = client.unary(Request::new(question), path, text::TextCodec).await;
    answer.map(tonic::Response::into_inner)
}

/// More bytes than fit into a ring and an HTTP/2 window.
const LONG: usize = 1_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_errors_are_transferred() {
    let channel = channel().await;
    for length in [1, 1000, LONG] {
        let question = "ab".repeat(length);
        let answer = ask(channel.clone(), question).await.unwrap();
        assert!(answer == "ba".repeat(length));
    }
    let refused = ask(channel, String::new()).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "an empty text"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_one_stream_run_at_once() {
    let channel = channel().await;
    let calls: Vec<_> = (0..50)
        .map(|call| (call, tokio::spawn(ask(channel.clone(), format!("{call}-").repeat(1000)))))
        .collect();
    for (call, answer) in calls {
        let backwards: String = format!("{call}-").chars().rev().collect();
        assert_eq!(answer.await.unwrap().unwrap(), backwards.repeat(1000));
    }
}
