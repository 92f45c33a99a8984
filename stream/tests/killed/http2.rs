//! HTTP/2 clients that are killed while bodies of their requests are transferred in both
//! directions.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;
use uverbs_stream::Config;
use uverbs_stream::tokio::{Listener, Stream};

use crate::peer::{PATIENCE, address_of, pattern};
use crate::process::{Peer, wait_for_parent};
use crate::setup::Own;

const CLIENTS: usize = 3;
/// The number of concurrent requests of a client.
const REQUESTS: usize = 4;

/// A body that never ends.
struct Endless;

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; 10_000])))))
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Panics if the future does not end in time.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("an end")
}

async fn connect<B>(config: &Config, to: SocketAddr) -> SendRequest<B>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let stream = in_time(Stream::connect_with(config, to)).await.unwrap();
    let (sender, connection) =
        in_time(handshake(TokioExecutor::new(), TokioIo::new(stream))).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    sender
}

async fn send<B>(sender: &mut SendRequest<B>, body: B) -> Incoming
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let request = Request::post("http://peer/").body(body).unwrap();
    in_time(sender.send_request(request)).await.unwrap().into_body()
}

/// The process that is killed. It is ready once each of its requests has an answer.
pub(crate) fn client(context: &uverbs::Context, to: SocketAddr) {
    let (runtime, config) = (runtime(), Config::new().context(context));
    let _sender = runtime.block_on(async {
        let mut sender = connect(&config, to).await;
        for _ in 0..REQUESTS {
            let mut answer = send(&mut sender, Endless).await;
            in_time(answer.frame()).await.unwrap().unwrap();
            tokio::spawn(async move { while answer.frame().await.is_some() {} });
        }
        sender
    });
    wait_for_parent();
}

async fn echo(request: Request<Incoming>) -> Result<Response<Incoming>, Infallible> {
    Ok(Response::new(request.into_body()))
}

async fn serve(stream: Stream) -> hyper::Result<()> {
    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder.serve_connection(TokioIo::new(stream), service_fn(echo)).await
}

async fn accept(listener: &Listener, served: &mut JoinSet<hyper::Result<()>>) {
    let (stream, _) = in_time(listener.accept()).await.unwrap();
    served.spawn(serve(stream));
}

/// The kind of the stream's error that ended a connection.
fn kind(ended: hyper::Result<()>) -> Option<ErrorKind> {
    let error = ended.err()?;
    let mut sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.find_map(|error| Some(error.downcast_ref::<io::Error>()?.kind()))
}

/// Another client's request is under way meanwhile, and gets its bytes.
#[test]
fn a_server_serves_on_when_clients_are_killed() {
    let (own, runtime) = (Own::new(), runtime());
    let work = async || {
        let listener = Listener::bind_with(&own.config(), address_of(&own.context)).await.unwrap();
        let to = listener.local_addr().unwrap();
        let (mut killed, mut lives) = (JoinSet::new(), JoinSet::new());
        let mut peers: Vec<_> = (0..CLIENTS).map(|_| Peer::connecting("http2", to)).collect();
        // They connect in any order, so all are accepted before the test waits for one.
        for _ in &peers {
            accept(&listener, &mut killed).await;
        }
        peers.iter_mut().for_each(Peer::wait_until_ready);
        let config = own.config();
        let (mut sender, ()) = tokio::join!(connect(&config, to), accept(&listener, &mut lives));
        let answer = send(&mut sender, Full::new(pattern(0, 500_000).into())).await;
        peers.iter_mut().for_each(Peer::kill);
        while let Some(ended) = in_time(killed.join_next()).await {
            let kind = kind(ended.unwrap());
            let is_reset = matches!(kind, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
            assert!(is_reset, "{kind:?}");
        }
        assert!(in_time(answer.collect()).await.unwrap().to_bytes() == pattern(0, 500_000));
        drop(sender);
        in_time(lives.join_next()).await.unwrap().unwrap().unwrap();
    };
    own.keeps_nothing(|| runtime.block_on(work()));
}
