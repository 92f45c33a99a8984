//! HTTP/1 with hyper, over streams.

use std::convert::Infallible;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use uverbs_stream::tokio::{Listener, Stream};

use crate::network::{address, config};
use crate::random::pattern;

/// Answers with the path and the request's body.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut body = request.uri().path().as_bytes().to_vec();
    body.extend(request.into_body().collect().await.unwrap().to_bytes());
    Ok(Response::new(Full::new(body.into())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_bodies_are_transferred() {
    let listener = Listener::bind_with(&config(), address()).await.unwrap();
    let to = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let server = hyper::server::conn::http1::Builder::new();
        server.serve_connection(TokioIo::new(stream), service_fn(answer)).await.unwrap();
    });
    let stream = Stream::connect_with(&config(), to).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let driving = tokio::spawn(connection);
    for length in [0, 1, 1000, 400_000] {
        let body = Full::new(Bytes::from(pattern(0, length)));
        let request = Request::post("/echo/").header("host", "peer").body(body).unwrap();
        sender.ready().await.unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let found = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&found[..6], b"/echo/");
        assert!(found[6..] == pattern(0, length));
    }
    drop(sender);
    driving.await.unwrap().unwrap();
    serving.await.unwrap();
}
