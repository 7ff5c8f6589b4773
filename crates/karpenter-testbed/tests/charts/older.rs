//! The older generations, which are off by default: what a new cluster does not get, and what the values add.

use std::collections::BTreeSet;

use super::permissions::{listed, rights};
use super::{TODAY, notes, objects, template};

/// The values of both charts that switch the older generations on.
pub(super) const OLDER: &str = "
legacy: {enabled: true}
webhook: {enabled: true}
";

fn older() -> String {
    format!("{TODAY}{OLDER}")
}

#[test]
fn by_default_only_v1_is_served_and_no_webhook_converts_it() {
    needs_helm!();
    let definitions = objects(&template("karpenter-crd", "{}"), "CustomResourceDefinition");
    for definition in &definitions {
        let name = &definition["metadata"]["name"];
        assert!(definition["spec"]["conversion"].is_null(), "{name}");
        let versions = definition["spec"]["versions"].as_array().unwrap();
        assert_eq!(versions.len(), 1, "{name}");
    }
    let served = objects(
        &template("karpenter-crd", OLDER),
        "CustomResourceDefinition",
    );
    let converted = |d: &&serde_json::Value| d["spec"]["conversion"]["strategy"] == "Webhook";
    assert_eq!(served.iter().filter(converted).count(), 3);
    assert_eq!(served.len(), definitions.len() + 2);
}

/// The Secret, the port, and the rights to patch CRDs, to create NodePools, and to create and delete EC2NodeClasses.
#[test]
fn by_default_the_controller_has_neither_a_webhook_nor_rights_for_it() {
    needs_helm!();
    let (without, with) = (
        template("karpenter", TODAY),
        template("karpenter", &older()),
    );
    let ports = |manifests: &str| objects(manifests, "Service")[0]["spec"]["ports"].clone();
    assert_eq!(ports(&without).as_array().map(Vec::len), Some(1));
    assert_eq!(ports(&with)[1]["name"], "https-webhook");
    assert_eq!(objects(&without, "Secret").len(), 0);
    assert_eq!(objects(&with, "Secret").len(), 1);

    let of_all = |manifests: &str, kind: &str| rights(manifests, kind, |_| true);
    let added = |kind: &str| -> BTreeSet<[String; 4]> {
        let (without, with) = (of_all(&without, kind), of_all(&with, kind));
        assert!(without.is_subset(&with), "{kind}");
        with.difference(&without).cloned().collect()
    };
    let mut expected = listed(&[
        "karpenter.sh: provisioners/status: patch",
        "karpenter.sh: provisioners/finalizers: update",
        "karpenter.k8s.aws: awsnodetemplates/status: patch",
        "karpenter.k8s.aws: awsnodetemplates/finalizers: update",
        // Of users with the role `admin` of a cluster.
        "karpenter.sh: provisioners awsnodetemplates: get list watch create delete patch",
        "karpenter.k8s.aws: provisioners awsnodetemplates: get list watch create delete patch",
    ]);
    // Users with the role `admin` may create NodePools and EC2NodeClasses in any case.
    for name in ["nodepools", "nodeclaims"] {
        let definition = format!("{name}.karpenter.sh");
        expected.insert(patch_of_crds(&definition));
    }
    expected.insert(patch_of_crds("ec2nodeclasses.karpenter.k8s.aws"));
    assert_eq!(split_names(&added("ClusterRole")), expected);
    let secret = added("Role");
    assert!(
        secret
            .iter()
            .all(|right| right[1] == "secrets" && right[2] == "karpenter-cert")
    );
    assert_eq!(secret.len(), 4);

    let controller = |manifests: &str| {
        rights(manifests, "ClusterRole", |role| {
            role["metadata"]["name"] == "karpenter"
        })
    };
    let creates = listed(&[
        "karpenter.sh: nodepools: create",
        "karpenter.k8s.aws: ec2nodeclasses: create delete",
    ]);
    assert!(creates.is_disjoint(&controller(&without)));
    assert!(creates.is_subset(&controller(&with)));
}

fn patch_of_crds(name: &str) -> [String; 4] {
    let [group, resource] = ["apiextensions.k8s.io", "customresourcedefinitions"];
    [group, resource, name, "patch"].map(str::to_owned)
}

/// One right for each name.
fn split_names(rights: &BTreeSet<[String; 4]>) -> BTreeSet<[String; 4]> {
    let mut split = BTreeSet::new();
    for [group, resource, names, verb] in rights {
        for name in names.split(' ') {
            split.insert([group, resource, name, verb].map(str::to_owned));
        }
    }
    split
}

#[test]
fn values_of_earlier_charts_without_the_older_generations_are_a_warning() {
    needs_helm!();
    let early = "{clusterName: demo, clusterEndpoint: \"https://a.example\"}";
    let warning = "set legacy.enabled and webhook.enabled of both charts";
    assert!(notes(early).contains(warning), "{}", notes(early));
    let with =
        "{clusterName: demo, clusterEndpoint: \"https://a.example\", legacy: {enabled: true}}";
    assert!(!notes(with).contains(warning), "{}", notes(with));
}
