//! The permissions that the chart grants: those that the controllers use, and no more.

use std::collections::BTreeSet;

use super::older::OLDER;
use super::{KWOK, TODAY, objects, template};

/// With OwnerReferencesPermissionEnforcement, setting `blockOwnerDeletion` needs permission to update the owner's finalizers.
///
/// Conformance: API-195
#[test]
fn the_controller_may_update_the_finalizers_of_owners_it_sets() {
    needs_helm!();
    let manifests = template("karpenter", &format!("{TODAY}{OLDER}"));
    let rules: Vec<serde_json::Value> = manifests
        .split("\n---\n")
        .map(|text| serde_saphyr::from_str(text.trim_start_matches("---\n")).unwrap())
        .filter(|object: &serde_json::Value| object["kind"] == "ClusterRole")
        .flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default())
        .collect();
    for (group, owner) in [
        ("karpenter.sh", "nodepools"),
        ("karpenter.sh", "nodeclaims"),
        ("karpenter.sh", "provisioners"),
        ("karpenter.k8s.aws", "awsnodetemplates"),
    ] {
        let holds = |rule: &serde_json::Value, field: &str, wanted: &str| {
            let values = rule[field].as_array();
            values.is_some_and(|values| values.iter().any(|value| value == wanted))
        };
        let resource = format!("{owner}/finalizers");
        let allowed = rules.iter().any(|rule| {
            holds(rule, "apiGroups", group)
                && holds(rule, "resources", &resource)
                && holds(rule, "verbs", "update")
        });
        assert!(allowed, "{resource} of {group}");
    }
}

/// The rules of the roles of a kind, as group, resource, names of the objects, and verb.
pub(super) fn rights(
    manifests: &str,
    kind: &str,
    wanted: impl Fn(&serde_json::Value) -> bool,
) -> BTreeSet<[String; 4]> {
    let roles = objects(manifests, kind)
        .into_iter()
        .filter(|role| wanted(role));
    let rules = roles.flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default());
    let mut rights = BTreeSet::new();
    for rule in rules {
        let all = |field: &str| -> Vec<String> {
            let values = rule[field].as_array().cloned().unwrap_or_default();
            values
                .iter()
                .map(|value| value.as_str().unwrap_or_default().to_owned())
                .collect()
        };
        let names = all("resourceNames").join(" ");
        for (group, resource, verb) in
            combinations(&all("apiGroups"), &all("resources"), &all("verbs"))
        {
            rights.insert([group, resource, names.clone(), verb]);
        }
    }
    rights
}

/// The permission to write the status of pods is granted with the feature gate that needs it, and with no other.
#[test]
fn the_status_of_pods_may_be_written_with_the_gate_for_it_alone() {
    needs_helm!();
    let status = listed(&[": pods/status: patch"]);
    for (gate, is_granted) in [("podNomination", true), ("capacityBuffer", false)] {
        let gate_on = format!("provider: kwok\nsettings: {{featureGates: {{{gate}: true}}}}\n");
        let manifests = template("karpenter", &gate_on);
        let core = rights(&manifests, "ClusterRole", |role| {
            role["metadata"]["name"] == "karpenter-core"
        });
        assert_eq!(core.is_superset(&status), is_granted, "{gate}");
    }
}

/// Every combination of three lists.
fn combinations(a: &[String], b: &[String], c: &[String]) -> Vec<(String, String, String)> {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    let triples = pairs.flat_map(|(a, b)| c.iter().map(move |c| (a.clone(), b.clone(), c.clone())));
    triples.collect()
}

/// Lines of `group: resources: verbs`, as combinations.
pub(super) fn listed(lines: &[&str]) -> BTreeSet<[String; 4]> {
    let mut rights = BTreeSet::new();
    for line in lines {
        let [group, resources, verbs] =
            <[&str; 3]>::try_from(line.split(": ").collect::<Vec<_>>()).unwrap();
        for resource in resources.split(' ') {
            for verb in verbs.split(' ') {
                rights.insert([group, resource, "", verb].map(str::to_owned));
            }
        }
    }
    rights
}

/// Section 10 of core-api.md. VerticalPodAutoscalers are not read: see docs/DIFFERENCES.md.
///
/// Conformance: API-195
#[test]
fn the_controller_may_do_what_the_reference_lists_and_nothing_else() {
    needs_helm!();
    let manifests = template("karpenter", TODAY);
    let named =
        |name: &'static str| move |role: &serde_json::Value| role["metadata"]["name"] == name;
    let core = rights(&manifests, "ClusterRole", named("karpenter-core"));
    let read = listed(&[
        "karpenter.sh: nodepools nodepools/status nodeclaims nodeclaims/status nodeoverlays nodeoverlays/status: get list watch",
        "autoscaling.x-k8s.io: capacitybuffers capacitybuffers/status: get list watch",
        ": pods nodes persistentvolumes persistentvolumeclaims replicationcontrollers namespaces podtemplates services: get list watch",
        "storage.k8s.io: storageclasses csinodes volumeattachments: get list watch",
        "apps: daemonsets deployments replicasets statefulsets: get list watch",
        "policy: poddisruptionbudgets: get list watch",
        "resource.k8s.io: resourceslices resourceclaims deviceclasses: get list watch",
    ]);
    let missing: Vec<_> = read.difference(&core).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let writes = [
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        "*",
    ];
    let written: BTreeSet<_> = core
        .iter()
        .filter(|right| writes.contains(&right[3].as_str()))
        .cloned()
        .collect();
    let expected = listed(&[
        "karpenter.sh: nodeclaims nodeclaims/status: create delete update patch",
        "karpenter.sh: nodepools nodepools/status nodeoverlays/status: update patch",
        "karpenter.sh: nodepools/finalizers nodeclaims/finalizers: update",
        "autoscaling.x-k8s.io: capacitybuffers/status: update patch",
        ": events: create patch",
        ": nodes: patch delete update",
        ": pods/eviction: create",
        ": pods: delete",
    ]);
    assert_eq!(written, expected);

    let of_class = listed(&[
        "karpenter.k8s.aws: ec2nodeclasses: get list watch patch update",
        "karpenter.k8s.aws: ec2nodeclasses/status: patch update",
    ]);
    let provider = rights(&manifests, "ClusterRole", named("karpenter"));
    assert!(of_class.is_subset(&provider), "{provider:?}");
    let kwok = rights(
        &template("karpenter", KWOK),
        "ClusterRole",
        named("karpenter"),
    );
    assert!(listed(&[": nodes: create"]).is_subset(&kwok));

    let leases: BTreeSet<_> = rights(&manifests, "Role", named("karpenter"))
        .into_iter()
        .filter(|right| right[1] == "leases")
        .map(|[_, _, names, verb]| (names, verb))
        .collect();
    let of_lease = |name: &str, verb: &str| (name.to_owned(), verb.to_owned());
    let name = "karpenter-leader-election";
    let expected = [
        of_lease("", "get"),
        of_lease("", "watch"),
        of_lease("", "create"),
        of_lease(name, "patch"),
        of_lease(name, "update"),
    ];
    assert_eq!(leases, expected.into());
    let dns = rights(&manifests, "Role", named("karpenter-dns"));
    let dns: Vec<_> = dns.into_iter().collect();
    assert_eq!(
        dns,
        [["", "services", "kube-dns", "get"].map(str::to_owned)]
    );

    let admin = |role: &serde_json::Value| {
        role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"] == "true"
    };
    let admin = rights(&manifests, "ClusterRole", admin);
    let managed = "karpenter.sh: nodepools nodepools/status nodeclaims nodeclaims/status: get list watch create delete patch";
    assert!(listed(&[managed]).is_subset(&admin), "{admin:?}");
    let status = listed(&["autoscaling.x-k8s.io: capacitybuffers/status: create delete patch"]);
    assert!(
        status.is_disjoint(&admin),
        "its owner has one namespace: {admin:?}"
    );
}
