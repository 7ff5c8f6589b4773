//! The conversion webhook: what the API server sends to read and write v1beta1, and the HTTP service that answers.
//!
//! [`answer`] is pure. [`Webhook`] is a [`tower::Service`] over HTTP requests, to be put behind whatever serves TLS.
//!
//! UPSTREAM: knative.dev/pkg/webhook/resourcesemantics/conversion, as v1.0 used it

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full, Limited};
use karpenter_api::kube_core::conversion::{
    ConversionRequest, ConversionResponse, ConversionReview,
};
use karpenter_api::kube_core::response::{Status, StatusSummary};

use crate::conversion::{Lookup, NoLookup, convert};

/// The path that the definitions name.
pub const PATH: &str = "/convert";

/// The most bytes a review may have: the API server converts lists in one request.
const MOST_BYTES: usize = 256 << 20;

/// Converts what a review asks for. Objects that cannot be converted fail the review as a whole, and are named.
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

/// The webhook as an HTTP service.
#[derive(Clone)]
pub struct Webhook {
    lookup: Arc<dyn Lookup + Send + Sync>,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").finish_non_exhaustive()
    }
}

impl Default for Webhook {
    /// A webhook that looks nothing up.
    fn default() -> Self {
        Self::new(NoLookup)
    }
}

impl Webhook {
    /// A webhook that looks up what objects do not say.
    pub fn new(lookup: impl Lookup + Send + Sync + 'static) -> Self {
        Self {
            lookup: Arc::new(lookup),
        }
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
            return plain(StatusCode::METHOD_NOT_ALLOWED, "post a ConversionReview");
        }
        let body = match Limited::new(request.into_body(), MOST_BYTES)
            .collect()
            .await
        {
            Ok(body) => body.to_bytes(),
            Err(error) => return plain(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let review: ConversionReview = match serde_json::from_slice(&body) {
            Ok(review) => review,
            Err(error) => return plain(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let Ok(request) = ConversionRequest::from_review(review) else {
            return plain(StatusCode::BAD_REQUEST, "the review has no request");
        };
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

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
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
