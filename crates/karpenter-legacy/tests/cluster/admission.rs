//! Admission of Provisioners and AWSNodeTemplates by the API server.

use karpenter_legacy::crd;
use karpenter_legacy::v1alpha1::AWSNodeTemplate;
use karpenter_legacy::v1alpha5::Provisioner;
use karpenter_testbed::Testbed;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams};
use serde_json::{Value, json};

async fn server() -> Testbed {
    let testbed = Testbed::builder().start().await;
    let definitions = [crd::provisioner(), crd::aws_node_template()];
    testbed.apply_crds(definitions).await.unwrap();
    testbed
}

async fn create(testbed: &Testbed, object: Value) -> Result<DynamicObject, String> {
    let resource = match object["kind"].as_str().unwrap() {
        "Provisioner" => ApiResource::erase::<Provisioner>(&()),
        _ => ApiResource::erase::<AWSNodeTemplate>(&()),
    };
    let api: Api<DynamicObject> = Api::all_with(testbed.admin_client(), &resource);
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let created = api.create(&PostParams::default(), &object).await;
    created.map_err(|error| error.to_string())
}

#[tokio::test]
async fn the_documents_of_the_walkthroughs_are_admitted_unchanged() {
    let testbed = server().await;
    for name in [
        "1-just-in-time-v0.16/provisioner.yaml",
        "2-windows-v0.29/provisioners.yaml",
    ] {
        let path = format!("{}/../../tests/seeds/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        for document in text.split("---\n") {
            let object: Value = serde_saphyr::from_str(document).unwrap();
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
