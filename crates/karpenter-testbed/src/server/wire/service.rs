//! The server as a `tower::Service`, for clients in the same process.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::BodyExt;

use crate::faults::Exempt;
use crate::server::ApiServer;
use crate::server::wire::error::ApiError;
use crate::server::wire::reply::{Body, Reply};
use crate::server::wire::request::MAX_BODY;

/// The server as a service; clones share the server.
#[derive(Debug, Clone)]
pub struct Service {
    server: ApiServer,
    exempt: bool,
}

impl ApiServer {
    /// Returns the server as a service. An `exempt` one has no injected faults.
    #[must_use]
    pub fn service(&self, exempt: bool) -> Service {
        Service {
            server: self.clone(),
            exempt,
        }
    }
}

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.server.clone();
        let exempt = self.exempt;
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            if exempt {
                parts.extensions.insert(Exempt);
            }
            Ok(match collect(body).await {
                Ok(body) => server.handle(&parts, body).await,
                Err(error) => Reply::from(error).into_response(),
            })
        })
    }
}

/// Reads a body, and stops just beyond the limit at which the server rejects it.
async fn collect<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    let mut body = std::pin::pin!(body);
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| ApiError::bad_request(format!("error reading body: {e}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if first.is_empty() && joined.is_empty() {
            first = data;
        } else {
            if joined.is_empty() {
                joined.put_slice(&std::mem::take(&mut first));
            }
            joined.put_slice(&data);
        }
        if first.len() + joined.len() > MAX_BODY {
            break;
        }
    }
    Ok(if joined.is_empty() {
        first
    } else {
        joined.freeze()
    })
}
