//! The conversion webhook: answers ConversionReviews of the API server for v1beta1 over HTTP.
//!
//! [`answer`] is pure. [`Webhook`] is a [`tower::Service`] of HTTP requests; a server of TLS calls it (`serving`, with the feature
//! `controller`).
//!
//! UPSTREAM: knative.dev/pkg/webhook/resourcesemantics/conversion, as v1.0 used it

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use karpenter_api::kube_core::conversion::{
    ConversionRequest, ConversionResponse, ConversionReview,
};
use karpenter_api::kube_core::response::{Status, StatusSummary};

use crate::conversion::{Kind, Lookup, NoLookup, V1, convert};

/// The path of the webhook in the definitions.
pub const PATH: &str = "/convert";

/// The most bytes of all concurrent requests: the API server converts a list in one request, and clients are not authenticated.
const MOST_BYTES: usize = 64 << 20;

/// Converts the objects of a review. An object that cannot be converted fails the whole review, and the response names it.
#[must_use]
pub fn answer(request: ConversionRequest, lookup: &dyn Lookup) -> ConversionResponse {
    let wanted = request.desired_api_version.clone();
    let mut converted = Vec::with_capacity(request.objects.len());
    for object in &request.objects {
        match convert(object, &wanted, lookup) {
            Ok(object) => converted.push(object),
            Err(error) => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let mut status = Status::failure(&format!("`{name}`: {error}"), "BadRequest");
                status.status = Some(StatusSummary::Failure);
                return ConversionResponse::for_request(request).failure(status);
            }
        }
    }
    ConversionResponse::for_request(request).success(converted)
}

/// Returns whether a request has NodeClaims whose expiry needs a lookup.
fn looks_up(request: &ConversionRequest) -> bool {
    let wanted = format!("{}/{V1}", Kind::NodeClaim.group());
    request.desired_api_version == wanted
        && request
            .objects
            .iter()
            .any(|object| object["kind"] == Kind::NodeClaim.as_str())
}

/// The bytes of all requests being read.
#[derive(Debug, Default)]
struct InFlight(AtomicUsize);

/// The bytes of one request.
struct Held<'a> {
    all: &'a InFlight,
    bytes: usize,
}

impl Held<'_> {
    /// Adds bytes and returns the total of all requests.
    fn take(&mut self, bytes: usize) -> usize {
        self.bytes += bytes;
        self.all.0.fetch_add(bytes, Ordering::Relaxed) + bytes
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The webhook as an HTTP service.
#[derive(Clone)]
pub struct Webhook {
    lookup: Arc<dyn Lookup + Send + Sync>,
    in_flight: Arc<InFlight>,
    most_bytes: usize,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").finish_non_exhaustive()
    }
}

impl Default for Webhook {
    /// Creates a webhook without lookups.
    fn default() -> Self {
        Self::new(NoLookup)
    }
}

impl Webhook {
    /// Creates a webhook with lookups of values that objects do not have.
    pub fn new(lookup: impl Lookup + Send + Sync + 'static) -> Self {
        Self {
            lookup: Arc::new(lookup),
            in_flight: Arc::default(),
            most_bytes: MOST_BYTES,
        }
    }

    /// Limits the bytes of all concurrent requests.
    #[must_use]
    pub fn at_most(mut self, bytes: usize) -> Self {
        self.most_bytes = bytes;
        self
    }

    /// Reads the body of a request, unless it or all concurrent ones together are too large.
    async fn read<B>(&self, body: B, held: &mut Held<'_>) -> Result<Vec<u8>, Response<Full<Bytes>>>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut body = pin!(body);
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = match frame {
                Ok(frame) => frame.into_data(),
                Err(error) => {
                    let error: Box<dyn std::error::Error + Send + Sync> = error.into();
                    return Err(plain(StatusCode::BAD_REQUEST, &error.to_string()));
                }
            };
            let Ok(mut data) = data else { continue };
            let all = held.take(data.remaining());
            if held.bytes > self.most_bytes {
                return Err(plain(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "the review is too large",
                ));
            }
            if all > self.most_bytes {
                return Err(plain(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "concurrent reviews are too large",
                ));
            }
            while data.has_remaining() {
                let chunk = data.chunk();
                read.extend_from_slice(chunk);
                let taken = chunk.len();
                data.advance(taken);
            }
        }
        Ok(read)
    }

    async fn respond<B>(self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if request.uri().path() != PATH {
            return plain(StatusCode::NOT_FOUND, "not found");
        }
        if request.method() != Method::POST {
            return plain(
                StatusCode::METHOD_NOT_ALLOWED,
                "expected a POST of a ConversionReview",
            );
        }
        let mut held = Held {
            all: &self.in_flight,
            bytes: 0,
        };
        let body = match self.read(request.into_body(), &mut held).await {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        let review: ConversionReview = match serde_json::from_slice(&body) {
            Ok(review) => review,
            Err(error) => return plain(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let Ok(request) = ConversionRequest::from_review(review) else {
            return plain(StatusCode::BAD_REQUEST, "the review has no request");
        };
        if looks_up(&request) && !self.lookup.is_ready() {
            return plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "NodePools are not listed yet",
            );
        }
        let review = answer(request, &*self.lookup).into_review();
        match serde_json::to_vec(&review) {
            Ok(body) => {
                let mut response = Response::new(Full::new(Bytes::from(body)));
                let json = header::HeaderValue::from_static("application/json");
                response.headers_mut().insert(header::CONTENT_TYPE, json);
                response
            }
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

pub(crate) fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())));
    *response.status_mut() = status;
    response
}

impl<B> tower::Service<Request<B>> for Webhook
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let webhook = self.clone();
        Box::pin(async move { Ok(webhook.respond(request).await) })
    }
}
