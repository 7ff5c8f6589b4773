//! Responses: whole bodies and streams.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::{Response, StatusCode};
use http_body::Frame;
use serde_json::Value;

use crate::server::wire::error::ApiError;

/// A response body: one buffer, or a stream of buffers.
pub enum Body {
    Full(Option<Bytes>),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full(bytes) => f.debug_tuple("Full").field(bytes).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Stream(stream) => stream
                .as_mut()
                .poll_next(cx)
                .map(|item| item.map(|b| Ok(Frame::data(b)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Full(Some(bytes)) => http_body::SizeHint::with_exact(bytes.len() as u64),
            Self::Full(None) => http_body::SizeHint::with_exact(0),
            Self::Stream(_) => http_body::SizeHint::default(),
        }
    }
}

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
            body: Body::Full(Some(bytes)),
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
            body: Body::Stream(Box::pin(stream)),
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
