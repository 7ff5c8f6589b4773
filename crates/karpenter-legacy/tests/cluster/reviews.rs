//! What a review costs: memory in proportion to its length, whatever it contains.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use karpenter_legacy::crd::PATH;
use karpenter_legacy::serving::Webhook;
use serde_json::{Value, json};

/// The length of a hostile list.
const LENGTH: usize = 16 << 20;
/// The memory of a conversion, besides the review and its response: the object that is being converted.
const OBJECT: u64 = 48 << 20;

fn review(objects: &str) -> String {
    format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{{"uid":"u","desiredAPIVersion":"karpenter.sh/v1","objects":[{objects}]}}}}"#
    )
}

/// A list of one element that is repeated up to a length.
fn repeated(element: &str, length: usize) -> String {
    let mut list = format!("{element},").repeat(length / (element.len() + 1));
    list.pop();
    list
}

fn node_pool(spec: &str) -> String {
    format!(
        r#"{{"apiVersion":"karpenter.sh/v1beta1","kind":"NodePool","metadata":{{"name":"odd"}},"spec":{spec}}}"#
    )
}

/// Posts a review. Returns the largest memory meanwhile, besides the review as the client holds it, and the status and the answer.
fn post_to(webhook: Webhook, review: String) -> (u64, u16, Value) {
    let body = Bytes::from(review);
    // The client has it in any case.
    let _held = body.clone();
    let mut answered = (0, Value::Null);
    let measured = allocation_counter::measure(|| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let request = http::Request::post(PATH).body(Full::new(body)).unwrap();
        let response = runtime.block_on(webhook.respond(request));
        allocation_counter::opt_out(|| {
            let (head, body) = response.into_parts();
            let body = runtime.block_on(BodyExt::collect(body)).unwrap().to_bytes();
            let answer = serde_json::from_slice(&body).unwrap_or_default();
            answered = (head.status.as_u16(), answer);
        });
    });
    (
        measured.bytes_max,
        answered.0,
        answered.1["response"].take(),
    )
}

/// Posts a review that is answered.
fn post(review: String) -> (u64, Value) {
    let (memory, status, answered) = post_to(Webhook::default(), review);
    assert_eq!(status, 200);
    (memory, answered)
}

#[test]
fn a_review_without_an_object_of_karpenter_takes_twice_its_length() {
    for element in ["0", "[0]", r#"{"":0}"#, r#"{"kind":"NodePool"}"#] {
        let review = review(&repeated(element, LENGTH));
        let length = review.len() as u64;
        let (memory, answered) = post(review);
        assert!(memory < 2 * length + (1 << 20), "{element}: {memory}");
        assert_eq!(answered["result"]["status"], "Failure", "{element}");
    }
}

#[test]
fn an_object_with_more_values_than_a_real_one_is_refused_unread() {
    let wide = repeated(r#"{"":0}"#, 2 << 20);
    let review = review(&node_pool(&format!(r#"{{"template":[{wide}]}}"#)));
    let length = review.len() as u64;
    let (memory, answered) = post(review);
    assert!(memory < 2 * length + (1 << 20), "{memory}");
    assert_eq!(
        answered["result"]["message"],
        "`odd`: the object has more than 50000 values"
    );
    let long = node_pool(&format!(r#"{{"a":"{}"}}"#, "x".repeat(3 << 20)));
    let (_, answered) = post(self::review(&long));
    assert_eq!(
        answered["result"]["message"],
        "an object is longer than 3 MiB"
    );
}

#[test]
fn objects_are_converted_one_at_a_time() {
    // As many values as an object may have: memory is that of one.
    let wide = repeated(r#"{"":0}"#, 100_000);
    let object = node_pool(&format!(r#"{{"template":[{wide}]}}"#));
    let review = review(&repeated(&object, 4 << 20));
    let length = review.len() as u64;
    let (memory, answered) = post(review);
    assert_eq!(answered["result"]["status"], "Success");
    let response = answered["convertedObjects"].to_string().len() as u64;
    assert!(memory < length + response + OBJECT, "{memory}");

    let object = json!({
        "apiVersion": "karpenter.sh/v1beta1", "kind": "NodePool", "metadata": { "name": "default" },
        "spec": { "template": { "spec": { "nodeClassRef": { "name": "default" }, "requirements": [] } } },
    });
    let review = self::review(&repeated(&object.to_string(), 4 << 20));
    let length = review.len() as u64;
    let (memory, answered) = post(review);
    assert_eq!(answered["result"]["status"], "Success");
    let converted = answered["convertedObjects"].as_array().unwrap();
    assert_eq!(converted.len(), (4 << 20) / (object.to_string().len() + 1));
    assert!(
        converted
            .iter()
            .all(|o| o["apiVersion"] == "karpenter.sh/v1")
    );
    let response = answered["convertedObjects"].to_string().len() as u64;
    assert!(
        memory < length + response + (1 << 20),
        "{memory} of {length} and {response}"
    );
}

#[test]
fn a_response_counts_beside_its_review_and_is_refused_without_room() {
    const MOST: usize = 4 << 20;
    let review = review(&repeated(&node_pool("{}"), MOST / 4 * 3));
    let length = review.len() as u64;
    let webhook = || Webhook::default().at_most(MOST);
    let (memory, status, _) = post_to(webhook(), review);
    assert_eq!(status, 503);
    assert!(memory < 2 * length + (1 << 20), "{memory}");
    let (_, status, _) = post_to(webhook(), self::review(&node_pool("{}")));
    assert_eq!(status, 200);
}
