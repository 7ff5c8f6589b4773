//! What a redacted bundle keeps, and what it does not.

use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::provider::NodeClassKind;
use karpenter_decisions::bundle::redact::redact;
use karpenter_decisions::bundle::{Bundle, Redaction, Settings};
use serde_json::json;

use crate::bundle::{file, lines, now, read};

fn redacted() -> String {
    let mut config = ClusterConfig::default();
    config.node_classes.push(NodeClassKind {
        group: "karpenter.k8s.aws".into(),
        version: "v1".into(),
        kind: "EC2NodeClass".into(),
        plural: "ec2nodeclasses".into(),
    });
    let mut cluster = Cluster::new(config);
    cluster.apply_node(&read(json!({
        "metadata": { "name": "node-a", "uid": "node-a", "labels": {
            "karpenter.sh/capacity-type": "spot",
            "karpenter.k8s.aws/instance-family": "m7i",
            "karpenter.mycompany.com/owner": "SECRET-team",
            "example.com/account": "123456789012",
            "example.com/size": "4",
        } },
        "spec": { "providerID": "aws:///a" }, "status": {},
    })));
    cluster.apply_pod(&read(json!({
        "metadata": { "name": "SECRET-pod", "namespace": "SECRET-namespace", "uid": "SECRET-uid" },
        "spec": { "containers": [], "schedulerName": "SECRET-scheduler", "nodeName": "SECRET-node" },
        "status": { "phase": "Pending", "nominatedNodeName": "SECRET-nominated" },
    })));
    cluster.apply_node_pool(&read(json!({
        "metadata": { "name": "default" },
        "spec": { "template": {
            "metadata": { "annotations": { "karpenter.mycompany.com/owner": "SECRET-team" } },
            "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }, "requirements": [
                { "key": "example.com/bytes", "operator": "Gt", "values": ["999999999999"] },
            ] },
        } },
    })));
    cluster.apply_resource_slice(&read(json!({
        "metadata": { "name": "slice" },
        "spec": {
            "driver": "gpu.example.com", "pool": { "name": "pool", "generation": 1, "resourceSliceCount": 1 },
            "nodeSelector": { "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "SECRET-key", "operator": "In", "values": ["SECRET-value"] }] }] },
            "devices": [],
        },
    })));
    let bundle = Bundle::new("aws", "0.1.0", cluster.snapshot(), Settings::at(now()));
    let (bundle, _) = redact(&bundle, Redaction::Names, None).unwrap();
    lines(&file(&bundle)).join("\n")
}

#[test]
fn no_name_of_a_pod_is_left() {
    let text = redacted();
    for of in ["pod", "namespace", "uid", "scheduler", "node", "nominated"] {
        assert!(!text.contains(&format!("SECRET-{of}")), "{of}: {text}");
    }
}

#[test]
fn only_labels_of_karpenter_and_its_provider_stay() {
    let text = redacted();
    for kept in [
        "\"karpenter.sh/capacity-type\":\"spot\"",
        "\"karpenter.k8s.aws/instance-family\":\"m7i\"",
    ] {
        assert!(text.contains(kept), "{kept}: {text}");
    }
    assert!(
        !text.contains("SECRET") && !text.contains("mycompany"),
        "{text}"
    );
}

#[test]
fn numbers_stay_but_those_with_the_form_of_an_account_id() {
    let text = redacted();
    assert!(!text.contains("123456789012"), "{text}");
    assert!(text.contains(":\"4\""), "{text}");
    assert!(text.contains("999999999999"), "a bound is a number: {text}");
}

#[test]
fn the_node_selector_of_a_resource_slice_keeps_its_terms() {
    let text = redacted();
    assert!(
        text.contains(r#""nodeSelectorTerms":[{"matchExpressions":[{"key":"redacted.invalid/k"#),
        "{text}"
    );
}
