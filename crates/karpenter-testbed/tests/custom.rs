//! Custom resources at run time: versions and their conversion, rules over changes, definitions that change.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use karpenter_testbed::Testbed;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::Service;

fn crd(conversion: Value, default: i64) -> Value {
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "default": {}, "properties": {
                "size": {"type": "integer", "default": default}, "old": {"type": "string"}, "new": {"type": "string"},
            }, "x-kubernetes-validations": [{"rule": "self.size >= oldSelf.size", "message": "must not shrink"}]},
            "status": {"type": "object", "properties": {"seen": {"type": "integer"}}},
        }}}})
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.x.io"},
        "spec": {"group": "x.io", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
            "conversion": conversion, "versions": [version("v1", false), version("v2", true)]},
    })
}

async fn ask(testbed: &Testbed, method: &str, path: &str, body: Value) -> (u16, Value) {
    let content_type = if method == "PATCH" {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = testbed.server().service(false).call(request).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

fn thing(version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("x.io/{version}"), "kind": "Thing", "metadata": {"name": "t"}, "spec": spec})
}

#[tokio::test]
async fn rules_see_the_old_object_and_unknown_fields_are_pruned() {
    let testbed = Testbed::builder().start().await;
    testbed
        .apply_crds([crd(json!({"strategy": "None"}), 1)])
        .await
        .unwrap();
    let (code, created) = ask(
        &testbed,
        "POST",
        "/apis/x.io/v2/things",
        thing("v2", json!({"size": 3, "junk": 1})),
    )
    .await;
    assert_eq!((code, &created["spec"]), (201, &json!({"size": 3})));
    let (code, refused) = ask(
        &testbed,
        "PATCH",
        "/apis/x.io/v2/things/t",
        json!({"spec": {"size": 2}}),
    )
    .await;
    assert_eq!(code, 422);
    assert_eq!(
        refused["details"]["causes"][0]["message"],
        "Invalid value: must not shrink"
    );
    let (_, other) = ask(&testbed, "GET", "/apis/x.io/v1/things/t", Value::Null).await;
    assert_eq!(
        (&other["apiVersion"], &other["spec"]["size"]),
        (&json!("x.io/v1"), &json!(3))
    );
    let (_, status) = ask(
        &testbed,
        "PATCH",
        "/apis/x.io/v2/things/t/status",
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"size": 9}, "status": {"seen": 1}}),
    )
    .await;
    assert_eq!(
        (
            &status["spec"]["size"],
            &status["status"]["seen"],
            &status["metadata"]["labels"]
        ),
        (&json!(3), &json!(1), &Value::Null)
    );
}

#[tokio::test]
async fn a_changed_definition_defaults_old_objects_when_they_are_read() {
    let testbed = Testbed::builder().start().await;
    let mut before = crd(json!({"strategy": "None"}), 1);
    for version in before["spec"]["versions"].as_array_mut().unwrap() {
        version["schema"]["openAPIV3Schema"]["properties"]["spec"] =
            json!({"type": "object", "default": {}});
    }
    testbed.apply_crds([before]).await.unwrap();
    let (_, created) = ask(
        &testbed,
        "POST",
        "/apis/x.io/v2/things",
        thing("v2", json!({})),
    )
    .await;
    assert_eq!(created["spec"], json!({}));
    testbed
        .apply_crds([crd(json!({"strategy": "None"}), 7)])
        .await
        .unwrap();
    let (_, read) = ask(&testbed, "GET", "/apis/x.io/v2/things/t", Value::Null).await;
    assert_eq!(read["spec"]["size"], 7);
    let (_, list) = ask(&testbed, "GET", "/apis/x.io/v2/things", Value::Null).await;
    assert_eq!(list["items"][0]["spec"]["size"], 7);
}

#[tokio::test]
async fn a_deleted_definition_is_no_longer_served() {
    let testbed = Testbed::builder().start().await;
    testbed
        .apply_crds([crd(json!({"strategy": "None"}), 1)])
        .await
        .unwrap();
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.x.io";
    let (_, stored) = ask(&testbed, "GET", path, Value::Null).await;
    assert_eq!(stored["status"]["conditions"][1]["type"], "Established");
    assert_eq!(ask(&testbed, "DELETE", path, Value::Null).await.0, 200);
    assert_eq!(
        ask(&testbed, "GET", "/apis/x.io/v2/things", Value::Null)
            .await
            .0,
        404
    );
    assert_eq!(ask(&testbed, "GET", "/apis/x.io", Value::Null).await.0, 404);
}

#[tokio::test]
async fn a_broken_definition_is_refused() {
    let testbed = Testbed::builder().start().await;
    let mut broken = crd(json!({"strategy": "None"}), 1);
    broken["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"]
        [0]["rule"] = "self.(".into();
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, status) = ask(&testbed, "POST", path, broken).await;
    assert_eq!(code, 422, "{status}");
    let mut misnamed = crd(json!({"strategy": "None"}), 1);
    misnamed["metadata"]["name"] = "others.x.io".into();
    assert_eq!(ask(&testbed, "POST", path, misnamed).await.0, 422);
}

/// Answers every ConversionReview by renaming `old` (v1) to `new` (v2) and back.
async fn webhook() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/convert", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut received = Vec::new();
                let review: Value = loop {
                    let mut buffer = [0; 4096];
                    let n = stream.read(&mut buffer).await.unwrap();
                    received.extend_from_slice(&buffer[..n]);
                    let text = String::from_utf8_lossy(&received);
                    let Some((_, body)) = text.split_once("\r\n\r\n") else {
                        continue;
                    };
                    if let Ok(review) = serde_json::from_str(body) {
                        break review;
                    }
                };
                let wanted = review["request"]["desiredAPIVersion"].clone();
                let mut object = review["request"]["objects"][0].clone();
                let (from, to) = if wanted == "x.io/v2" {
                    ("old", "new")
                } else {
                    ("new", "old")
                };
                object["apiVersion"] = wanted;
                let spec = object["spec"].as_object_mut().unwrap();
                if let Some(value) = spec.remove(from) {
                    spec.insert(to.to_owned(), value);
                }
                let answer = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {
                    "uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": [object],
                }})
                .to_string();
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    answer.len()
                );
                stream
                    .write_all(format!("{head}{answer}").as_bytes())
                    .await
                    .unwrap();
            });
        }
    });
    url
}

#[tokio::test]
async fn versions_convert_through_a_webhook() {
    let testbed = Testbed::builder().start().await;
    let conversion = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"url": webhook().await},
    }});
    testbed.apply_crds([crd(conversion, 1)]).await.unwrap();
    let (code, created) = ask(
        &testbed,
        "POST",
        "/apis/x.io/v1/things",
        thing("v1", json!({"old": "x"})),
    )
    .await;
    assert_eq!(
        (code, &created["spec"]["old"]),
        (201, &json!("x")),
        "{created}"
    );
    let (_, stored) = ask(&testbed, "GET", "/apis/x.io/v2/things/t", Value::Null).await;
    assert_eq!(
        (&stored["spec"]["new"], &stored["spec"]["old"]),
        (&json!("x"), &Value::Null),
        "{stored}"
    );
    let (_, back) = ask(&testbed, "GET", "/apis/x.io/v1/things", Value::Null).await;
    assert_eq!(back["items"][0]["spec"]["old"], "x");
}
