//! Admission of objects of older generations by the API server.

use karpenter_legacy::crd;
use karpenter_testbed::Testbed;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

async fn server() -> Testbed {
    let testbed = Testbed::builder().start().await;
    let definitions = crd::all(&[karpenter_aws::api::restricted_domain()]);
    let definitions = definitions.into_iter().map(|(_, definition)| definition);
    testbed.apply_crds(definitions).await.unwrap();
    testbed
}

async fn create(testbed: &Testbed, object: Value) -> Result<DynamicObject, String> {
    let text = |key: &str| object[key].as_str().unwrap();
    let (group, version) = text("apiVersion").split_once('/').unwrap();
    let kind = GroupVersionKind::gvk(group, version, text("kind"));
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = Api::all_with(testbed.admin_client(), &resource);
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let created = api.create(&PostParams::default(), &object).await;
    created.map_err(|error| error.to_string())
}

/// Returns the documents of a walkthrough's file.
fn seed(name: &str) -> Vec<Value> {
    let path = format!("{}/../../tests/seeds/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.split("---\n")
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect()
}

#[tokio::test]
async fn the_documents_of_the_walkthroughs_are_admitted_unchanged() {
    let testbed = server().await;
    for name in [
        "1-just-in-time-v0.16/provisioner.yaml",
        "2-windows-v0.29/provisioners.yaml",
    ] {
        for object in seed(name) {
            let created = create(&testbed, object.clone()).await.unwrap();
            assert_eq!(created.data["spec"], object["spec"], "nothing is pruned");
        }
    }
}

#[tokio::test]
async fn documents_that_no_release_admitted_are_rejected() {
    let testbed = server().await;
    let provisioner = |spec: Value| json!({ "apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": { "name": "p" }, "spec": spec });
    let template = |spec: Value| json!({ "apiVersion": "karpenter.k8s.aws/v1alpha1", "kind": "AWSNodeTemplate", "metadata": { "name": "t" }, "spec": spec });
    for (object, field) in [
        (provisioner(json!({ "weight": 101 })), "spec.weight"),
        (
            provisioner(json!({ "ttlSecondsAfterEmpty": -1 })),
            "spec.ttlSecondsAfterEmpty",
        ),
        (
            provisioner(json!({ "ttlSecondsUntilExpired": "1h" })),
            "spec.ttlSecondsUntilExpired",
        ),
        (
            provisioner(json!({ "providerRef": {} })),
            "spec.providerRef.name",
        ),
        (
            provisioner(json!({ "limits": { "resources": { "cpu": "many" } } })),
            "spec.limits.resources.cpu",
        ),
        (
            provisioner(json!({ "requirements": [{ "key": "a", "operator": "Near" }] })),
            "spec.requirements[0].operator",
        ),
        (
            template(json!({ "amiFamily": "Solaris" })),
            "spec.amiFamily",
        ),
        (
            template(json!({ "metadataOptions": { "httpTokens": "maybe" } })),
            "spec.metadataOptions.httpTokens",
        ),
        (
            template(json!({ "blockDeviceMappings": [{ "ebs": { "volumeType": "tape" } }] })),
            "spec.blockDeviceMappings[0].ebs.volumeType",
        ),
    ] {
        let refused = create(&testbed, object.clone()).await;
        let error = refused.expect_err(&object.to_string());
        assert!(error.contains(field), "{field}: {error}");
    }
    let inline = provisioner(json!({ "provider": { "subnetSelector": { "a": "b" }, "odd": [1] } }));
    let created = create(&testbed, inline.clone()).await.unwrap();
    assert_eq!(created.data["spec"], inline["spec"]);
}

#[tokio::test]
async fn v1beta1_is_checked_by_its_own_rules() {
    let testbed = server().await;
    let documents = seed("3-layered-constraints-and-upgrade-v0.33/nodepool.yaml");
    let (pool, class) = (&documents[0], &documents[1]);
    for (document, field, value, message) in [
        (
            pool,
            "disruption",
            json!({ "consolidationPolicy": "WhenEmpty" }),
            "consolidateAfter must be specified with consolidationPolicy=WhenEmpty",
        ),
        (
            pool,
            "disruption",
            json!({ "consolidationPolicy": "WhenUnderutilized", "consolidateAfter": "30s" }),
            "consolidateAfter cannot be combined with consolidationPolicy=WhenUnderutilized",
        ),
        (
            pool,
            "disruption",
            json!({ "consolidationPolicy": "WhenEmptyOrUnderutilized" }),
            "upported values",
        ),
        (
            class,
            "instanceProfile",
            json!("both"),
            "must specify exactly one of ['role', 'instanceProfile']",
        ),
        (
            class,
            "amiFamily",
            json!("Custom"),
            "amiSelectorTerms is required when amiFamily == 'Custom'",
        ),
    ] {
        let mut document = document.clone();
        document["spec"][field] = value;
        let error = create(&testbed, document).await.unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}
