//! The chart with the kwok provider.

use super::{KWOK, notes, objects, template};

#[test]
fn with_the_kwok_provider_the_chart_has_no_aws_objects() {
    needs_helm!();
    let manifests = template("karpenter", KWOK);
    for word in [
        "aws",
        "AWS",
        "WEBHOOK",
        "webhook",
        "CLUSTER_NAME",
        "CLUSTER_CA",
        "INTERRUPTION_QUEUE",
        "kube-dns",
    ] {
        assert!(!manifests.contains(word), "{word}: {manifests}");
    }
    let deployment = &objects(&manifests, "Deployment")[0];
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        container["image"],
        format!(
            "ghcr.io/karpenter-rs/karpenter-kwok:{}",
            env!("CARGO_PKG_VERSION")
        )
    );
    let path = "/types/types.json";
    let file = serde_json::json!({ "name": "INSTANCE_TYPES_FILE_PATH", "value": path });
    let environment = container["env"].as_array().unwrap();
    assert!(environment.contains(&file), "{environment:?}");
    let roles = objects(&manifests, "ClusterRole");
    let provider = roles
        .iter()
        .find(|role| role["metadata"]["name"] == "karpenter");
    assert_eq!(
        provider.unwrap()["rules"],
        serde_json::json!([
            { "apiGroups": ["karpenter.kwok.sh"], "resources": ["kwoknodeclasses"], "verbs": ["get", "list", "watch"] },
            { "apiGroups": ["karpenter.kwok.sh"], "resources": ["kwoknodeclasses", "kwoknodeclasses/status"], "verbs": ["patch", "update"] },
            { "apiGroups": [""], "resources": ["nodes"], "verbs": ["create"] },
        ])
    );
    let notes = notes(KWOK);
    assert!(notes.contains("must run in the cluster"), "{notes}");
}
