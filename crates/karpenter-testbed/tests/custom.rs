//! Custom resources: rules for changes, updates of CRDs.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use karpenter_testbed::Testbed;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};
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
async fn a_crd_that_cannot_be_served_is_rejected() {
    let testbed = Testbed::builder().start().await;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut misnamed = crd(json!({"strategy": "None"}), 1);
    misnamed["metadata"]["name"] = "others.x.io".into();
    assert_eq!(ask(&testbed, "POST", path, misnamed).await.0, 422);
}

/// A real API server would reject a CRD with a rule that does not compile.
#[test]
fn every_rule_of_every_crd_of_the_repository_compiles() {
    fn walk(schema: &Value, rules: &mut usize) {
        if let Some(own) = schema["x-kubernetes-validations"].as_array() {
            let errors = kube_cel::compile_schema(schema).compilation_errors().len();
            assert_eq!(errors, 0, "{own:?}");
            *rules += own.len();
        }
        let fields = schema.as_object().into_iter().flat_map(Map::values);
        let elements = schema.as_array().into_iter().flatten();
        fields.chain(elements).for_each(|part| walk(part, rules));
    }
    let mut rules = 0;
    for folder in ["crds", "crds/legacy", "crds/kwok", "crds/cluster-api"] {
        let folder = format!("{}/../../{folder}", env!("CARGO_MANIFEST_DIR"));
        for file in std::fs::read_dir(folder).unwrap() {
            let file = file.unwrap().path();
            if file.is_file() {
                let text = std::fs::read_to_string(file).unwrap();
                walk(&serde_saphyr::from_str(&text).unwrap(), &mut rules);
            }
        }
    }
    assert!(rules > 200, "{rules} rules");
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
