//! The files of the dashboard.

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use karpenter_dashboard::{HEADERS, find};

use super::status::{Body, with_body};

/// Returns the file that a request asks for; `None` if it asks for something else.
pub(super) fn file<B>(request: &Request<B>) -> Option<Response<Body>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let file = find(request.uri().path())?;
    let header = |name| request.headers().get(name).and_then(|it| it.to_str().ok());
    let known = header(IF_NONE_MATCH)
        .is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == file.etag));
    let zipped = takes_gzip(request);
    let (status, bytes) = match (known, zipped) {
        (true, _) => (StatusCode::NOT_MODIFIED, Bytes::new()),
        (false, true) => (StatusCode::OK, Bytes::from_static(file.gzip)),
        (false, false) => (StatusCode::OK, Bytes::from(file.plain())),
    };
    let length = bytes.len();
    let mut response = with_body(status, file.media_type, Full::new(bytes).boxed_unsync());
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(ETAG, HeaderValue::from_static(file.etag));
    if !known {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    encoded(&mut response, zipped && !known);
    Some(response)
}

/// Reports whether a client takes gzip.
pub(super) fn takes_gzip<B>(request: &Request<B>) -> bool {
    let encodings = request.headers().get(ACCEPT_ENCODING);
    let encodings = encodings.and_then(|value| value.to_str().ok());
    encodings.is_some_and(accepts_gzip)
}

/// Sets the headers of a response whose encoding depends on the client.
pub(super) fn encoded(response: &mut Response<Body>, zipped: bool) {
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if zipped {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
}

/// Reports whether a client takes gzip: `gzip;q=0` is a refusal.
fn accepts_gzip(encodings: &str) -> bool {
    encodings.split(',').any(|encoding| {
        let (name, quality) = encoding.split_once(';').unwrap_or((encoding, ""));
        let refused = quality.trim().trim_start_matches("q=").parse() == Ok(0.0);
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}
