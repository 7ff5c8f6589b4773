//! v1beta1 served in addition to v1: an API server that stores v1 and calls the webhook over HTTP.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use karpenter_legacy::conversion::Lookup;
use karpenter_legacy::crd;
use karpenter_legacy::crd::{PATH, Reach};
use karpenter_legacy::serving::Webhook;
use karpenter_listener::{Connections, Listener};
use karpenter_testbed::Testbed;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Serves the webhook on loopback until the guard is dropped.
async fn serve(webhook: Webhook) -> (String, DropGuard) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{PATH}", socket.local_addr().unwrap());
    let stop = CancellationToken::new();
    let listener = Listener::new(socket, Connections::new(8));
    let respond = move |request| webhook.clone().respond(request);
    tokio::spawn(listener.serve(respond, TaskTracker::new(), stop.clone()));
    (url, stop.drop_guard())
}

struct Pools;

impl Lookup for Pools {
    fn expire_after(&self, _: &str) -> Option<String> {
        Some("24h".to_owned())
    }
}

struct Server {
    client: Client,
    _testbed: Testbed,
    _serving: DropGuard,
}

impl Server {
    async fn start() -> Self {
        let (url, serving) = serve(Webhook::new(Pools)).await;
        let reach = Reach::Url(url);
        let domains = [karpenter_aws::api::restricted_domain()];
        let testbed = Testbed::builder().start().await;
        let definitions = [
            crd::node_pool(&domains, &reach),
            crd::node_claim(&domains, &reach),
            crd::ec2_node_class(&reach),
        ];
        testbed.apply_crds(definitions).await.unwrap();
        Self {
            client: testbed.admin_client(),
            _testbed: testbed,
            _serving: serving,
        }
    }

    fn api(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap();
        let kind = GroupVersionKind::gvk(group, version, kind);
        Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind))
    }

    async fn create(&self, object: &Value) -> kube::Result<DynamicObject> {
        let text = |key: &str| object[key].as_str().unwrap();
        let api = self.api(text("apiVersion"), text("kind"));
        let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        api.create(&PostParams::default(), &object).await
    }

    async fn get(&self, api_version: &str, kind: &str) -> DynamicObject {
        self.api(api_version, kind).get("default").await.unwrap()
    }
}

fn seed() -> Vec<Value> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/seeds/3-layered-constraints-and-upgrade-v0.33/nodepool.yaml"
    );
    let text = std::fs::read_to_string(path).unwrap();
    text.split("---\n")
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect()
}

#[tokio::test]
async fn the_v1beta1_documents_of_the_walkthrough_are_read_as_written() {
    let server = Server::start().await;
    for document in seed() {
        let created = server.create(&document).await.unwrap();
        assert_eq!(
            json!(created.types),
            json!({ "apiVersion": document["apiVersion"], "kind": document["kind"] })
        );
    }
    let stored = server.get("karpenter.sh/v1", "NodePool").await;
    assert_eq!(
        stored.data["spec"]["disruption"],
        json!({ "budgets": [{ "nodes": "10%" }], "consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized" })
    );
    assert_eq!(
        stored.data["spec"]["template"]["spec"]["expireAfter"],
        "720h"
    );
    assert_eq!(
        stored.data["spec"]["template"]["spec"]["nodeClassRef"],
        json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" })
    );
    let read = server.get("karpenter.sh/v1beta1", "NodePool").await;
    let mut written = seed()[0]["spec"].clone();
    written["disruption"]["budgets"] = json!([{ "nodes": "10%" }]);
    assert_eq!(
        read.data["spec"], written,
        "the written fields and the schema's default"
    );

    let class = server.get("karpenter.k8s.aws/v1", "EC2NodeClass").await;
    assert_eq!(
        class.data["spec"]["amiSelectorTerms"],
        json!([{ "alias": "al2@latest" }])
    );
    assert_eq!(
        class.data["spec"]["metadataOptions"]["httpPutResponseHopLimit"],
        2
    );
    let read = server
        .get("karpenter.k8s.aws/v1beta1", "EC2NodeClass")
        .await;
    assert_eq!(read.data["spec"]["amiFamily"], "AL2");
}

#[tokio::test]
async fn an_edit_in_v1beta1_keeps_fields_that_only_v1_has() {
    let server = Server::start().await;
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
        "spec": {
            "template": { "spec": {
                "requirements": [], "terminationGracePeriod": "5m", "expireAfter": "1h",
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            } },
            "disruption": { "consolidationPolicy": "Balanced", "consolidateAfter": "1m" },
        },
    });
    server.create(&pool).await.unwrap();
    let before = server.get("karpenter.sh/v1", "NodePool").await;
    let api = server.api("karpenter.sh/v1beta1", "NodePool");
    let old = api.get("default").await.unwrap();
    assert_eq!(
        old.data["spec"]["disruption"]["consolidationPolicy"],
        "WhenUnderutilized"
    );
    assert_eq!(old.data["spec"]["disruption"]["expireAfter"], "1h");
    // Writing the object back unchanged does not change it.
    api.replace("default", &PostParams::default(), &old)
        .await
        .unwrap();
    let unchanged = server.get("karpenter.sh/v1", "NodePool").await;
    assert_eq!(
        (&unchanged.data, unchanged.metadata.generation),
        (&before.data, before.metadata.generation)
    );
    let patch =
        Patch::Merge(json!({ "spec": { "weight": 7, "disruption": { "expireAfter": "2h" } } }));
    api.patch("default", &PatchParams::default(), &patch)
        .await
        .unwrap();
    let after = server.get("karpenter.sh/v1", "NodePool").await;
    let mut wanted = before.data.clone();
    wanted["spec"]["weight"] = 7.into();
    wanted["spec"]["template"]["spec"]["expireAfter"] = "2h".into();
    assert_eq!(after.data, wanted);
}

#[tokio::test]
async fn a_nodeclaim_of_v1beta1_has_the_expiry_of_its_nodepool() {
    let server = Server::start().await;
    let claim = json!({
        "apiVersion": "karpenter.sh/v1beta1", "kind": "NodeClaim",
        "metadata": { "name": "default", "labels": { "karpenter.sh/nodepool": "p" } },
        "spec": { "requirements": [], "nodeClassRef": { "name": "default" }, "kubelet": { "maxPods": 20 } },
    });
    server.create(&claim).await.unwrap();
    let stored = server.get("karpenter.sh/v1", "NodeClaim").await;
    assert_eq!(stored.data["spec"]["expireAfter"], "24h");
    let read = server.get("karpenter.sh/v1beta1", "NodeClaim").await;
    assert_eq!(read.data["spec"], claim["spec"]);
}

#[tokio::test]
async fn v1beta1_is_checked_by_its_own_rules() {
    let server = Server::start().await;
    let pool = |disruption: Value| {
        let mut pool = seed()[0].clone();
        pool["spec"]["disruption"] = disruption;
        pool
    };
    for (disruption, message) in [
        (
            json!({ "consolidationPolicy": "WhenEmpty" }),
            "consolidateAfter must be specified with consolidationPolicy=WhenEmpty",
        ),
        (
            json!({ "consolidationPolicy": "WhenUnderutilized", "consolidateAfter": "30s" }),
            "consolidateAfter cannot be combined with consolidationPolicy=WhenUnderutilized",
        ),
        (
            json!({ "consolidationPolicy": "WhenEmptyOrUnderutilized" }),
            "supported values",
        ),
    ] {
        let error = server
            .create(&pool(disruption))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.to_lowercase().contains(&message.to_lowercase()),
            "{error}"
        );
    }
    let mut class = seed()[1].clone();
    class["spec"]["instanceProfile"] = "both".into();
    let error = server.create(&class).await.unwrap_err().to_string();
    assert!(
        error.contains("must specify exactly one of ['role', 'instanceProfile']"),
        "{error}"
    );
    class = seed()[1].clone();
    class["spec"]["amiFamily"] = "Custom".into();
    let error = server.create(&class).await.unwrap_err().to_string();
    assert!(
        error.contains("amiSelectorTerms is required when amiFamily == 'Custom'"),
        "{error}"
    );
}

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

/// The API server sends lists of thousands in one review.
#[tokio::test]
async fn many_objects_are_converted_at_once() {
    let pool = seed()[0].clone();
    let review = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": { "uid": "u", "desiredAPIVersion": "karpenter.sh/v1", "objects": vec![pool; 2000] },
    });
    let (_, body) = post("POST", PATH, &review.to_string()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["response"]["result"]["status"], "Success");
    let converted = answer["response"]["convertedObjects"].as_array().unwrap();
    assert_eq!(converted.len(), 2000);
    let all: Arc<[&Value]> = converted.iter().map(|c| &c["apiVersion"]).collect();
    assert!(all.iter().all(|version| *version == "karpenter.sh/v1"));
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
