//! Reviews over HTTP, within limits of bytes, time and concurrent conversions.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use http_body::Body;
use karpenter_kube::controller::compute;
use karpenter_listener::{Bodies, Pieces, Refused};
use tokio::sync::Semaphore;

use crate::conversion::{Lookup, NoLookup};
use crate::crd::PATH;
use crate::webhook::{Refusal, answer};

/// The most bytes of a review: the API server converts a list in one review, and 5,000 NodeClaims are 30 MiB.
const MAX_BYTES: usize = 64 << 20;
/// The most bytes of the reviews and responses of all concurrent requests.
const MAX_TOTAL_BYTES: usize = 2 * MAX_BYTES;
/// The most concurrent conversions; further ones wait.
const MAX_CONVERSIONS: usize = 2;
/// The timeout of a request, which is that of the API server.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// The webhook as an HTTP service.
#[derive(Clone)]
pub struct Webhook {
    lookup: Arc<dyn Lookup + Send + Sync>,
    bodies: Bodies,
    most_bytes: usize,
    conversions: Arc<Semaphore>,
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
            bodies: Bodies::new(MAX_TOTAL_BYTES),
            most_bytes: MAX_BYTES,
            conversions: Arc::new(Semaphore::new(MAX_CONVERSIONS)),
        }
    }

    /// Limits the bytes of all concurrent requests.
    #[must_use]
    pub fn at_most(mut self, bytes: usize) -> Self {
        self.bodies = Bodies::new(bytes);
        self.most_bytes = bytes;
        self
    }

    pub async fn respond<B>(self, request: Request<B>) -> Response<Pieces>
    where
        B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let responding = tokio::time::timeout(TIMEOUT, self.review(request));
        match responding.await {
            Ok(Ok(review)) => {
                let mut response = Response::new(review);
                let json = header::HeaderValue::from_static("application/json");
                response.headers_mut().insert(header::CONTENT_TYPE, json);
                response
            }
            Ok(Err((status, text))) => plain(status, text),
            Err(_) => plain(
                StatusCode::REQUEST_TIMEOUT,
                "the request took too long".to_owned(),
            ),
        }
    }

    async fn review<B>(self, request: Request<B>) -> Result<Pieces, (StatusCode, String)>
    where
        B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        if request.uri().path() != PATH {
            return Err((StatusCode::NOT_FOUND, "not found".to_owned()));
        }
        if request.method() != Method::POST {
            let text = "expected a POST of a ConversionReview".to_owned();
            return Err((StatusCode::METHOD_NOT_ALLOWED, text));
        }
        let read = self.bodies.read(request, self.most_bytes, TIMEOUT).await;
        let (body, held) = read.map_err(|refused| {
            let status = match &refused {
                Refused::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
                Refused::TooLargeTogether => StatusCode::SERVICE_UNAVAILABLE,
                Refused::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
                _ => StatusCode::BAD_REQUEST,
            };
            (status, refused.to_string())
        })?;
        let converting = Arc::clone(&self.conversions).acquire_owned().await;
        let convert = move || {
            // Also if the client is gone meanwhile.
            let _converting = converting;
            let response = answer(&body, &*self.lookup, &|bytes| held.grow(bytes))?;
            drop(body);
            Ok::<_, Refusal>(response.held_by(held))
        };
        let converted = compute("the conversion", convert).await;
        let converted =
            converted.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        converted.map_err(|refusal| {
            let status = match &refusal {
                Refusal::NotReady | Refusal::NoRoom(_) => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::BAD_REQUEST,
            };
            (status, refusal.to_string())
        })
    }
}

fn plain(status: StatusCode, text: String) -> Response<Pieces> {
    let mut response = Response::new(Pieces::from(text));
    *response.status_mut() = status;
    response
}
