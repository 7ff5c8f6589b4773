//! The server as a `tower::Service`, for clients in the same process.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};

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
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
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
            let error = match Limited::new(body, MAX_BODY).collect().await {
                Ok(body) => return Ok(server.handle(&parts, body.to_bytes()).await),
                Err(error) if error.is::<LengthLimitError>() => ApiError::new(
                    413,
                    "RequestEntityTooLarge",
                    format!("Request entity too large: limit is {MAX_BODY}"),
                ),
                Err(error) => ApiError::bad_request(format!("error reading body: {error}")),
            };
            Ok(Reply::from(error).into_response())
        })
    }
}
