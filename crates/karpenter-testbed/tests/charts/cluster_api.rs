//! The chart with `provider: cluster-api`: permissions and a kubeconfig for the management cluster.

use std::collections::BTreeSet;

use serde_json::json;

use super::permissions::{listed, rights};
use super::{helm, notes, objects, template};

/// The management cluster is the cluster of the nodes.
pub(super) const ONE_CLUSTER: &str = "
provider: cluster-api
clusterAPI: {cluster: fleet/c1}
";
const TWO_CLUSTERS: &str = "
provider: cluster-api
clusterAPI: {cluster: fleet/c1, kubeconfigSecret: management}
";
const SHADOW: &str = "
provider: cluster-api
clusterAPI: {cluster: fleet/c1}
shadow: {enabled: true}
";

fn pod(manifests: &str) -> serde_json::Value {
    objects(manifests, "Deployment")[0]["spec"]["template"]["spec"].clone()
}

#[test]
fn in_one_cluster_the_release_may_write_machines_in_its_namespace() {
    needs_helm!();
    let manifests = template("karpenter", ONE_CLUSTER);
    for word in [
        "aws",
        "kwok",
        "WEBHOOK",
        "CLUSTER_NAME",
        "CLUSTER_API_KUBECONFIG",
    ] {
        assert!(!manifests.contains(word), "{word}: {manifests}");
    }
    let container = &pod(&manifests)["containers"][0];
    let image = container["image"].as_str().unwrap();
    assert!(image.starts_with("ghcr.io/karpenter-rs/karpenter-cluster-api:"));
    let cluster = json!({ "name": "CLUSTER_API_CLUSTER", "value": "fleet/c1" });
    assert!(container["env"].as_array().unwrap().contains(&cluster));
    let in_fleet = |role: &serde_json::Value| role["metadata"]["namespace"] == "fleet";
    let templates = "infrastructure.cluster.x-k8s.io: *: get create";
    assert_eq!(
        rights(&manifests, "Role", in_fleet),
        listed(&[
            "cluster.x-k8s.io: clusters: get",
            "cluster.x-k8s.io: machinedeployments: list watch",
            "cluster.x-k8s.io: machines: get list watch create patch delete",
            "cluster.x-k8s.io: machines/finalizers: update",
            templates,
            &templates.replace("infrastructure", "bootstrap"),
        ])
    );
    let bindings = objects(&manifests, "RoleBinding");
    let subject = &bindings.iter().find(|it| in_fleet(it)).unwrap()["subjects"][0];
    assert_eq!(subject["namespace"], "kube-system");
    let class = "karpenter.cluster.x-k8s.io: clusterapinodeclasses: get list watch patch update";
    let of_workload = rights(&manifests, "ClusterRole", |_| true);
    assert!(listed(&[class]).is_subset(&of_workload));
    assert!(notes(ONE_CLUSTER).ends_with("Machines of the Cluster fleet/c1."));
}

#[test]
fn the_kubeconfig_of_a_management_cluster_is_mounted_from_its_secret() {
    needs_helm!();
    let manifests = template("karpenter", TWO_CLUSTERS);
    let pod = pod(&manifests);
    let path = "/etc/karpenter/management";
    assert_eq!(
        (&pod["volumes"], &pod["containers"][0]["volumeMounts"]),
        (
            &json!([{ "name": "management-cluster", "secret": { "secretName": "management" } }]),
            &json!([{ "name": "management-cluster", "mountPath": path, "readOnly": true }])
        )
    );
    let file = json!({ "name": "CLUSTER_API_KUBECONFIG", "value": format!("{path}/value") });
    let environment = pod["containers"][0]["env"].as_array().unwrap();
    assert!(environment.contains(&file), "{environment:?}");
    let elsewhere = rights(&manifests, "Role", |role| {
        role["metadata"]["namespace"] != "kube-system"
    });
    assert_eq!(elsewhere, BTreeSet::new(), "they are in the other cluster");
    assert!(
        notes(TWO_CLUSTERS).contains("needs the permissions of templates/role-management.yaml")
    );
}

#[test]
fn a_shadow_reads_the_management_cluster_only() {
    needs_helm!();
    let all = rights(&template("karpenter", SHADOW), "Role", |_| true);
    let verbs: BTreeSet<&str> = all.iter().map(|right| right[3].as_str()).collect();
    assert_eq!(verbs, BTreeSet::from(["get", "list", "watch"]));
    assert!(all.iter().any(|right| right[1] == "machines"), "{all:?}");
}

#[test]
fn the_cluster_must_be_named_with_its_namespace() {
    needs_helm!();
    for (cluster, named) in [
        ("''", "clusterAPI.cluster is required"),
        ("c1", "/clusterAPI/cluster"),
    ] {
        let values = format!("{{provider: cluster-api, clusterAPI: {{cluster: {cluster}}}}}");
        let output = helm(&["template", "karpenter"], "karpenter", &values);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(named), "{error}");
    }
}
