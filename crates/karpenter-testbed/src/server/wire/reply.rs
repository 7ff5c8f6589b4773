//! Responses: whole bodies and streams.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::Value;

use crate::server::wire::error::ApiError;

/// A response body: one buffer, or a stream of buffers.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A response before its conversion to HTTP.
#[derive(Debug)]
pub struct Reply {
    pub code: u16,
    pub body: Body,
    pub content_type: &'static str,
    /// Texts of `Warning: 299` headers.
    pub warnings: Vec<String>,
    pub retry_after: Option<u32>,
}

impl Reply {
    /// Returns a response with serialized JSON.
    #[must_use]
    pub fn bytes(code: u16, bytes: Bytes) -> Self {
        Self {
            code,
            body: Full::new(bytes).boxed_unsync(),
            content_type: "application/json",
            warnings: Vec::new(),
            retry_after: None,
        }
    }

    /// Returns a response with a JSON value.
    #[must_use]
    pub fn json(code: u16, value: &Value) -> Self {
        Self::bytes(code, serde_json::to_vec(value).unwrap_or_default().into())
    }

    /// Returns a response with plain text.
    #[must_use]
    pub fn text(code: u16, text: impl Into<Bytes>) -> Self {
        Self {
            content_type: "text/plain; charset=utf-8",
            ..Self::bytes(code, text.into())
        }
    }

    #[must_use]
    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self {
            body: BodyExt::boxed_unsync(StreamBody::new(stream.map(|it| Ok(Frame::data(it))))),
            ..Self::bytes(200, Bytes::new())
        }
    }

    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = warnings;
        self
    }

    #[must_use]
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() =
            StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        for warning in self.warnings {
            let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
                headers.append(WARNING, value);
            }
        }
        response
    }
}

impl From<ApiError> for Reply {
    fn from(error: ApiError) -> Self {
        let retry_after = error.retry_after;
        Self {
            retry_after,
            ..Self::json(error.code, &error.status())
        }
    }
}
