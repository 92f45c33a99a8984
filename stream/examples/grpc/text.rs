//! A gRPC service without generated code, whose calls take and return a string.

use std::convert::Infallible;
use std::future::Ready;

use bytes::{Buf, BufMut};
use hyper::body::Incoming;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::UnaryService;
use tonic::{Request, Response, Status};

/// The path of the service's only method.
pub(crate) const PATH: &str = "/text.Text/Answer";

/// Encodes a message as the bytes of a string.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TextCodec;

impl Codec for TextCodec {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for TextCodec {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for TextCodec {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = from.copy_to_bytes(from.remaining()).to_vec();
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

/// Returns the string reversed; refuses an empty one.
#[derive(Clone, Copy, Debug)]
struct Backwards;

impl UnaryService<String> for Backwards {
    type Response = String;
    type Future = Ready<Result<Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let text: String = request.into_inner().chars().rev().collect();
        std::future::ready(match text.is_empty() {
            true => Err(Status::invalid_argument("an empty text")),
            false => Ok(Response::new(text)),
        })
    }
}

/// Answers a call.
pub(crate) async fn answer(
    call: hyper::Request<Incoming>,
) -> Result<hyper::Response<tonic::body::Body>, Infallible> {
    let call = call.map(tonic::body::Body::new);
    Ok(tonic::server::Grpc::new(TextCodec).unary(Backwards, call).await)
}
