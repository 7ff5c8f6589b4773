//! Reviews over HTTP: their errors, and the limits of concurrent ones.

use http_body_util::{BodyExt, Full};
use karpenter_legacy::conversion::Lookup;
use karpenter_legacy::crd::PATH;
use karpenter_legacy::serving::Webhook;
use serde_json::{Value, json};

async fn post(method: &str, path: &str, body: &str) -> (u16, String) {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .body(Full::new(bytes::Bytes::from(body.to_owned())))
        .unwrap();
    let response = Webhook::default().respond(request).await;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn malformed_requests_are_rejected() {
    assert_eq!(post("GET", PATH, "").await.0, 405);
    assert_eq!(post("POST", "/other", "").await.0, 404);
    assert_eq!(post("POST", PATH, "not json").await.0, 400);
    let empty = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview"}"#;
    assert_eq!(
        post("POST", PATH, empty).await,
        (400, "the review has no request".to_owned())
    );
}

#[tokio::test]
async fn an_object_that_cannot_be_converted_fails_the_review_and_is_named() {
    let review = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": { "uid": "u", "desiredAPIVersion": "karpenter.sh/v1", "objects": [
            { "apiVersion": "karpenter.sh/v1beta1", "kind": "NodePool", "metadata": { "name": "fine" }, "spec": {} },
            { "apiVersion": "example.com/v1", "kind": "NodePool", "metadata": { "name": "odd" }, "spec": {} },
        ] },
    });
    let (status, body) = post("POST", PATH, &review.to_string()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["response"]["uid"]), (200, &json!("u")));
    assert_eq!(answer["response"]["result"]["status"], "Failure");
    assert_eq!(
        answer["response"]["result"]["message"],
        "`odd`: cannot convert `example.com/v1`, Kind=NodePool"
    );
    assert_eq!(answer["response"]["convertedObjects"], json!([]));
}

/// A body without end, in pieces.
struct Endless;

impl http_body::Body for Endless {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        let piece = bytes::Bytes::from_static(&[b' '; 1024]);
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data(piece))))
    }
}

/// A body that stalls after its first piece.
struct Stuck(bool);

impl http_body::Body for Stuck {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        if std::mem::replace(&mut self.0, true) {
            return std::task::Poll::Pending;
        }
        let piece = bytes::Bytes::from_static(&[b' '; 1024]);
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data(piece))))
    }
}

fn posted<B>(body: B) -> http::Request<B> {
    http::Request::post(PATH).body(body).unwrap()
}

#[tokio::test]
async fn the_bytes_of_concurrent_reviews_are_limited_and_stalled_ones_make_room() {
    let webhook = Webhook::default().at_most(1536);
    let answer = webhook.clone().respond(posted(Endless)).await;
    assert_eq!(answer.status(), 413, "one that is too large");

    let stuck = tokio::spawn(webhook.clone().respond(posted(Stuck(false))));
    tokio::task::yield_now().await;
    let half = || posted(Full::new(bytes::Bytes::from_static(&[b' '; 1024])));
    let answer = webhook.clone().respond(half()).await;
    assert_eq!(answer.status(), 400, "it is read");
    assert_eq!(stuck.await.unwrap().status(), 503, "it made room");
    let answer = webhook.respond(half()).await;
    assert_eq!(
        answer.status(),
        400,
        "the bytes of ended requests are released"
    );
}

struct NotYet;

impl Lookup for NotYet {
    fn expire_after(&self, _: &str) -> Option<String> {
        None
    }

    fn is_ready(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn nodeclaims_are_not_converted_until_nodepools_are_listed() {
    let review = |kind: &str| {
        let review = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "request": { "uid": "u", "desiredAPIVersion": "karpenter.sh/v1", "objects": [
                { "apiVersion": "karpenter.sh/v1beta1", "kind": kind, "metadata": { "name": "x" }, "spec": {} },
            ] },
        });
        posted(Full::new(bytes::Bytes::from(review.to_string())))
    };
    let status = async |kind| {
        let answer = Webhook::new(NotYet).respond(review(kind)).await;
        answer.status().as_u16()
    };
    assert_eq!(status("NodeClaim").await, 503);
    assert_eq!(status("NodePool").await, 200);
}
