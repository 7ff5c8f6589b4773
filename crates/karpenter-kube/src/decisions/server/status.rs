//! Responses: JSON, and errors as Kubernetes `Status` objects.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;
use serde::Serialize;
use serde_json::{Value, json};

/// The body of a response: a text, or a stream.
pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// How long a client waits before it asks again, in seconds.
const RETRY_AFTER_SECONDS: &str = "5";

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    code: StatusCode,
    reason: &'static str,
    message: String,
    /// Name and kind of the object that the error is about.
    details: Option<(String, &'static str)>,
    /// The field that is invalid.
    field: Option<Box<str>>,
    /// The methods that are served instead.
    allow: &'static str,
}

impl Failure {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            field: None,
            allow: "GET, HEAD",
        }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(super) fn no_flight_recorder() -> Self {
        Self::bad_request(
            "cannot look back: the feature gate FlightRecorder is off (chart value settings.featureGates.flightRecorder)",
        )
    }

    pub(super) fn forbidden(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// No such path. The path is not repeated: it may be anything.
    pub(super) fn unknown_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    pub(super) fn not_found(kind: &'static str, name: &str) -> Self {
        let message = format!("{kind} \"{name}\" not found");
        Self {
            details: Some((name.to_owned(), kind)),
            ..Self::new(StatusCode::NOT_FOUND, "NotFound", message)
        }
    }

    pub(super) fn not_found_in(kind: &'static str, namespace: &str, name: &str) -> Self {
        let message = format!("{kind} \"{name}\" not found in namespace \"{namespace}\"");
        Self {
            message,
            ..Self::not_found(kind, name)
        }
    }

    pub(super) fn method_not_allowed() -> Self {
        let message = "only GET and HEAD are served";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// The path is a question with a body.
    pub(super) fn only_post() -> Self {
        let message = "only POST is served";
        Self {
            allow: "POST",
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
        }
    }

    /// The question is understood, but what it asks about is invalid.
    pub(super) fn invalid(message: impl Into<String>, field: Option<&str>) -> Self {
        Self {
            field: field.map(Into::into),
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
        }
    }

    pub(super) fn media_type() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            "the content type must be application/json",
        )
    }

    pub(super) fn too_large() -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            "the body is longer than 4 MiB",
        )
    }

    pub(super) fn too_slow(message: &str) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message)
    }

    /// There is no comparison: this Karpenter is not a shadow.
    pub(super) fn no_shadow() -> Self {
        let message =
            "this Karpenter runs the cluster: only one with --shadow compares itself with another";
        Self {
            details: Some(("shadow".to_owned(), "ShadowReport")),
            ..Self::new(StatusCode::NOT_FOUND, "NotFound", message)
        }
    }

    pub(super) fn conflict(kind: &'static str, name: &str) -> Self {
        let message = format!("{kind} \"{name}\" has another uid");
        Self {
            details: Some((name.to_owned(), kind)),
            ..Self::new(StatusCode::CONFLICT, "Conflict", message)
        }
    }

    pub(super) fn gone() -> Self {
        let message = "the record to continue from was dropped: start again";
        Self::new(StatusCode::GONE, "Expired", message)
    }

    pub(super) fn too_many() -> Self {
        Self::busy("8 event streams are open already")
    }

    pub(super) fn busy(message: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    pub(super) fn not_synced() -> Self {
        Self::unavailable("the cluster model is not in sync")
    }

    fn unavailable(message: impl Into<String>) -> Self {
        let code = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(code, "ServiceUnavailable", message)
    }

    /// This replica does not lead; `leader` is the name of the leader's pod, if it is known.
    pub(super) fn not_leading(leader: Option<&str>) -> Self {
        let message = match leader {
            Some(leader) => format!("this replica does not lead: ask pod {leader}"),
            None => "this replica does not lead".to_owned(),
        };
        Self {
            details: leader.map(|leader| (leader.to_owned(), "Pod")),
            ..Self::unavailable(message)
        }
    }

    pub(super) fn internal(error: &impl ToString) -> Self {
        let message = error.to_string();
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// Returns the error as a `Status`.
    pub(super) fn response(&self) -> Response<Body> {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        if let Some((name, kind)) = &self.details {
            status["details"] = json!({ "name": name, "kind": kind });
        }
        if let Some(field) = &self.field {
            let cause =
                json!({ "reason": "FieldValueInvalid", "field": field, "message": self.message });
            status["details"]["causes"] = json!([cause]);
        }
        let mut response = json(self.code, &status);
        let headers = response.headers_mut();
        match self.code {
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(ALLOW, HeaderValue::from_static(self.allow));
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
            }
            _ => {}
        }
        response
    }
}

pub(super) fn json(code: StatusCode, value: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(body) => with_body(
            code,
            "application/json",
            Full::new(Bytes::from(body)).boxed_unsync(),
        ),
        Err(error) => Failure::internal(&error).response(),
    }
}

/// Returns a response that is neither stored nor taken for another type.
pub(super) fn with_body(code: StatusCode, media: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// An answer in JSON.
pub(super) fn value(answer: &impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(answer).map_err(|error| Failure::internal(&error))
}
