//! The server responds to every request: it never panics, and every error is a `Status`.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use karpenter_testbed::Testbed;
use proptest::prelude::*;
use serde_json::{Value, json};
use tower::Service;

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.x.io"},
        "spec": {"group": "x.io", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}},
                        "x-kubernetes-validations": [{"rule": "self.n < 10"}]},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}}}]},
    })
}

fn segment() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => prop::sample::select(vec![
            "api", "apis", "v1", "pods", "nodes", "namespaces", "default", "a", "status", "scale", "binding", "eviction",
            "apps", "deployments", "x.io", "things", "events", "events.k8s.io", "policy", "poddisruptionbudgets",
            "finalize", "openapi", "v3", "customresourcedefinitions", "apiextensions.k8s.io", "jobs", "batch",
        ])
        .prop_map(str::to_owned),
        1 => "[a-z%/.~-]{0,6}",
    ]
}

fn path() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/pods/a",
        "/api/v1/namespaces/default/pods/a/status",
        "/api/v1/namespaces/default/pods/a/eviction",
        "/api/v1/namespaces/default/pods/a/binding",
        "/api/v1/nodes",
        "/api/v1/nodes/a",
        "/api/v1/nodes/a/status",
        "/apis/x.io/v1/namespaces/default/things",
        "/apis/x.io/v1/namespaces/default/things/a",
        "/apis/x.io/v1/namespaces/default/things/a/scale",
        "/apis/x.io/v1/namespaces/default/things/a/status",
        "/apis/apps/v1/namespaces/default/deployments/a",
        "/apis/apps/v1/namespaces/default/deployments/a/scale",
        "/apis/batch/v1/namespaces/default/jobs",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/api/v1/namespaces/default/events",
        "/apis/events.k8s.io/v1/namespaces/default/events/a",
        "/api/v1/namespaces/default/services",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets/a",
        "/api/v1/namespaces",
    ])
    .prop_map(str::to_owned);
    let wild = prop::collection::vec(segment(), 0..7).prop_map(|s| format!("/{}", s.join("/")));
    prop_oneof![3 => known, 1 => wild]
}

fn query() -> impl Strategy<Value = String> {
    let pair = (
        prop::sample::select(vec![
            "limit",
            "continue",
            "labelSelector",
            "fieldSelector",
            "resourceVersion",
            "resourceVersionMatch",
            "dryRun",
            "fieldValidation",
            "force",
            "fieldManager",
            "propagationPolicy",
            "gracePeriodSeconds",
            "includeObject",
            "x",
        ]),
        prop_oneof![
            prop::sample::select(vec![
                "1",
                "0",
                "-1",
                "true",
                "All",
                "Strict",
                "a%20in",
                "a=b",
                "metadata.name=a",
                "Exact",
                "Foreground",
                "Object",
                "eyJydiI6MSwic3RhcnQiOiJhIn0",
                "99999999999999999999",
            ])
            .prop_map(str::to_owned),
            "[a-zA-Z0-9%+=,!()-]{0,8}",
        ],
    );
    prop::collection::vec(pair, 0..3).prop_map(|pairs| {
        pairs
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect::<Vec<_>>()
            .join("&")
    })
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3..5i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-zA-Z0-9./:-]{0,6}".prop_map(Value::from),
        prop::sample::select(vec![
            "a",
            "v1",
            "Pod",
            "1",
            "100m",
            "x.io/v1",
            "Thing",
            "default",
            "2026-01-01T00:00:00Z"
        ])
        .prop_map(Value::from),
    ]
}

/// Values with keys that the server uses.
fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(6, 64, 6, |inner| {
        let key = prop::sample::select(vec![
            "apiVersion",
            "kind",
            "metadata",
            "spec",
            "status",
            "name",
            "labels",
            "annotations",
            "finalizers",
            "managedFields",
            "resourceVersion",
            "ownerReferences",
            "containers",
            "resources",
            "requests",
            "limits",
            "tolerations",
            "template",
            "selector",
            "matchLabels",
            "replicas",
            "conditions",
            "type",
            "taints",
            "op",
            "path",
            "value",
            "target",
            "deleteOptions",
            "preconditions",
            "uid",
            "gracePeriodSeconds",
            "n",
            "cpu",
            "ports",
            "volumes",
            "versions",
            "names",
            "$patch",
            "schema",
            "openAPIV3Schema",
            "deletionTimestamp",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6).prop_map(|pairs| pairs
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<serde_json::Map<_, _>>()
                .into()),
        ]
    })
}

/// An almost valid object.
fn nearly(kind: (&'static str, &'static str), part: Value, other: Value) -> Value {
    let mut object = json!({"apiVersion": kind.0, "kind": kind.1, "metadata": {"name": "a"}, "spec": part, "status": other});
    if kind.1 == "Pod" && object["spec"].is_object() {
        object["spec"]["containers"] = json!([{"name": "c", "image": "i", "resources": other}]);
    }
    object
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop::sample::select(vec![
        ("v1", "Pod"),
        ("v1", "Node"),
        ("x.io/v1", "Thing"),
        ("apps/v1", "Deployment"),
        ("batch/v1", "Job"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("v1", "Service"),
        ("v1", "Event"),
        ("policy/v1", "PodDisruptionBudget"),
        ("v1", "Namespace"),
    ]);
    prop_oneof![
        2 => value().prop_map(|v| v.to_string().into_bytes()),
        4 => (kinds, value(), value()).prop_map(|(k, a, b)| nearly(k, a, b).to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..64),
        1 => Just(Vec::new()),
    ]
}

proptest! {
    #[test]
    fn every_request_is_answered(
        requests in prop::collection::vec((
            prop::sample::select(vec!["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
            path(),
            query(),
            prop::sample::select(vec![
                "application/json", "application/json-patch+json", "application/merge-patch+json",
                "application/strategic-merge-patch+json", "application/apply-patch+yaml", "application/yaml",
                "application/vnd.kubernetes.protobuf", "text/plain", "",
            ]),
            prop::sample::select(vec!["application/json", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "*/*", "text/html"]),
            body(),
        ), 1..12)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let testbed = Testbed::builder().start().await;
            testbed.apply_crds([crd()]).await.unwrap();
            for (method, path, query, content_type, accept, body) in requests {
                let Ok(uri) = format!("{path}?{query}").parse::<http::Uri>() else { continue };
                let request = Request::builder()
                    .method(method)
                    .uri(uri)
                    .header("content-type", content_type)
                    .header("accept", accept)
                    .body(Full::new(Bytes::from(body)))
                    .unwrap();
                let response = testbed.server().service(false).call(request).await.unwrap();
                let code = response.status().as_u16();
                let bytes = response.into_body().collect().await.unwrap().to_bytes();
                if code >= 400 {
                    let status: Value = serde_json::from_slice(&bytes).unwrap();
                    assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)));
                    assert!(!status["message"].as_str().unwrap().is_empty());
                }
            }
        });
    }
}

#[tokio::test]
async fn a_body_above_the_limit_is_rejected() {
    let testbed = Testbed::builder().start().await;
    let body = json!({"metadata": {"name": "a"}, "data": {"a": "x".repeat(4 << 20)}}).to_string();
    let request = Request::post("/api/v1/namespaces/default/configmaps")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = testbed.server().service(false).call(request).await.unwrap();
    assert_eq!(response.status(), 413);
}
