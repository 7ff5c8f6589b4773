//! Custom resources: versions and their conversion, rules for changes, updates of CRDs.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use futures::StreamExt as _;
use http::Request;
use http_body_util::{BodyExt, Full};
use karpenter_testbed::Testbed;
use kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
    WatchEvent, WatchParams,
};
use kube::{Api, ResourceExt as _};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
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
async fn a_changed_crd_defaults_old_objects_when_they_are_read() {
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
async fn a_crd_is_deleted_after_its_objects_and_these_after_their_finalizers() {
    const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.x.io";
    let testbed = Testbed::builder().start().await;
    testbed
        .apply_crds([crd(json!({"strategy": "None"}), 1)])
        .await
        .unwrap();
    let (_, stored) = ask(&testbed, "GET", DEFINITION, Value::Null).await;
    assert_eq!(stored["status"]["conditions"][1]["type"], "Established");

    let client = testbed.client();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("x.io", "v2", "Thing"));
    let things: Api<DynamicObject> = Api::all_with(client, &resource);
    let mut held = thing("v2", json!({}));
    held["metadata"] = json!({"name": "held", "finalizers": ["x.io/hold"]});
    for object in [thing("v2", json!({})), held] {
        let object = serde_json::from_value(object).unwrap();
        things
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }
    let version = things.list(&ListParams::default()).await.unwrap().metadata;
    let version = version.resource_version.unwrap();
    let mut events = things
        .watch(&WatchParams::default(), &version)
        .await
        .unwrap()
        .boxed();
    let mut deleted = async || loop {
        if let WatchEvent::Deleted(object) = events.next().await.unwrap().unwrap() {
            return object.name_any();
        }
    };

    let (code, terminating) = ask(&testbed, "DELETE", DEFINITION, Value::Null).await;
    assert_eq!(code, 200);
    assert_eq!(
        terminating["status"]["conditions"][2]["type"],
        "Terminating"
    );
    assert_eq!(deleted().await, "t");
    let (code, refused) = ask(
        &testbed,
        "POST",
        "/apis/x.io/v2/things",
        thing("v2", json!({})),
    )
    .await;
    assert_eq!(
        (code, &refused["reason"]),
        (405, &json!("MethodNotAllowed"))
    );

    let (code, _) = ask(
        &testbed,
        "PATCH",
        "/apis/x.io/v2/things/held",
        json!({"metadata": {"finalizers": null}}),
    )
    .await;
    assert_eq!(code, 200);
    assert_eq!(deleted().await, "held");
    while ask(&testbed, "GET", DEFINITION, Value::Null).await.0 != 404 {
        tokio::task::yield_now().await;
    }
    for path in ["/apis/x.io/v2/things", "/apis/x.io"] {
        assert_eq!(ask(&testbed, "GET", path, Value::Null).await.0, 404);
    }
}

#[tokio::test]
async fn an_invalid_crd_is_rejected() {
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

/// Responds to a ConversionReview by renaming `old` (v1) to `new` (v2) and back.
async fn convert(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
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
    stream.shutdown().await.unwrap();
}

/// A webhook at a URL.
async fn webhook() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/convert", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(convert(stream));
        }
    });
    url
}

/// A webhook with TLS under a Service's name: its port, and its certificate as PEM.
async fn tls_webhook(name: &str) -> (u16, String) {
    let pair = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(pair.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move { convert(acceptor.accept(stream).await.unwrap()).await });
        }
    });
    (port, pair.cert.pem())
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

#[tokio::test]
async fn a_conversion_webhook_behind_a_service_is_found_through_its_endpoints() {
    let testbed = Testbed::builder().start().await;
    let (port, certificate) = tls_webhook("converter.kube-system.svc").await;
    let conversion = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {
        "service": {"namespace": "kube-system", "name": "converter", "path": "/convert", "port": 443},
        "caBundle": base64::engine::general_purpose::STANDARD.encode(certificate),
    }}});
    testbed.apply_crds([crd(conversion, 1)]).await.unwrap();
    let create = || {
        ask(
            &testbed,
            "POST",
            "/apis/x.io/v1/things",
            thing("v1", json!({"old": "x"})),
        )
    };
    let (code, refused) = create().await;
    assert_eq!(code, 500);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.ends_with(r#"failed: no endpoints available for service "converter""#),
        "{message}"
    );
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "converter-1", "labels": {"kubernetes.io/service-name": "converter"}},
        "endpoints": [{"addresses": ["127.0.0.2"], "conditions": {"ready": false}}, {"addresses": ["127.0.0.1"]}],
        "ports": [{"port": port}]});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";
    assert_eq!(ask(&testbed, "POST", slices, slice).await.0, 201);
    assert_eq!(create().await.0, 201);
    let (_, stored) = ask(&testbed, "GET", "/apis/x.io/v2/things/t", Value::Null).await;
    assert_eq!(stored["spec"]["new"], "x", "{stored}");
}

/// CRDs that a real API server would reject must not be released: `crds/`, `crds/legacy`.
#[tokio::test]
async fn every_crd_of_the_repository_is_accepted() {
    let testbed = Testbed::builder().start().await;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All";
    let mut accepted = 0;
    for folder in ["crds", "crds/legacy"] {
        let folder = format!("{}/../../{folder}", env!("CARGO_MANIFEST_DIR"));
        for entry in std::fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            if file
                .extension()
                .is_some_and(|extension| extension == "yaml")
            {
                let text = std::fs::read_to_string(&file).unwrap();
                let definition: Value = serde_saphyr::from_str(&text).unwrap();
                let (code, answer) = ask(&testbed, "POST", path, definition).await;
                assert_eq!(code, 201, "{}: {}", file.display(), answer["message"]);
                accepted += 1;
            }
        }
    }
    assert!(accepted >= 10, "{accepted} definitions were found");
}

#[tokio::test]
async fn a_stored_version_cannot_be_removed() {
    let testbed = Testbed::builder().start().await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, created) = ask(&testbed, "POST", definitions, crd(json!({}), 1)).await;
    assert_eq!(
        (code, &created["status"]["storedVersions"]),
        (201, &json!(["v2"]))
    );

    let path = format!("{definitions}/things.x.io");
    let mut without = created["spec"]["versions"].clone();
    without.as_array_mut().unwrap().remove(1);
    without[0]["storage"] = json!(true);
    let change = json!({"spec": {"versions": without}});
    let (code, refused) = ask(&testbed, "PATCH", &path, change).await;
    assert_eq!(code, 422, "{refused}");
    let cause = &refused["details"]["causes"][0];
    assert_eq!(cause["field"], "status.storedVersions[0]");
    let message = cause["message"].as_str().unwrap();
    assert!(message.starts_with(
        "Invalid value: \"v2\": missing from spec.versions; v2 was previously a storage version"
    ));
}

/// Conformance: API-113
#[tokio::test]
async fn another_manager_applies_a_condition_beside_those_that_are_there() {
    let testbed = Testbed::builder().start().await;
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../crds/karpenter.sh_nodeoverlays.yaml"
    );
    let definition: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    testbed.apply_crds([definition]).await.unwrap();
    let kind = GroupVersionKind::gvk("karpenter.sh", "v1alpha1", "NodeOverlay");
    let resource = ApiResource::from_gvk(&kind);
    let overlays: Api<DynamicObject> = Api::all_with(testbed.client(), &resource);
    let mut overlay = DynamicObject::new("dear", &resource);
    overlay.data = json!({"spec": {"requirements": [], "price": "1"}});
    let created = PostParams::default();
    overlays.create(&created, &overlay).await.unwrap();

    for (manager, condition) in [("karpenter", "Ready"), ("auditor", "example.com/Audited")] {
        let status = json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "status": {"conditions": [{
            "type": condition, "status": "True", "reason": condition.rsplit('/').next(), "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        let params = PatchParams::apply(manager).force();
        let status = Patch::Apply(status);
        let written = overlays.patch_status("dear", &params, &status).await;
        written.unwrap();
    }

    let found = overlays.get("dear").await.unwrap();
    let conditions = found.data["status"]["conditions"].as_array().unwrap();
    let types: Vec<_> = conditions.iter().map(|c| &c["type"]).collect();
    assert_eq!(types, ["Ready", "example.com/Audited"]);
}
