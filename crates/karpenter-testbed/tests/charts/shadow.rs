//! The chart with `shadow.enabled`: read permissions only, and nothing that collides with the Karpenter that runs the cluster.

use std::collections::BTreeSet;

use super::permissions::rights;
use super::{notes, objects, template};

const SHADOW: &str = "
settings: {clusterName: demo}
replicas: 3
additionalClusterRoleRules:
  - {apiGroups: [example.com], resources: [things], verbs: [delete]}
shadow:
  enabled: true
  changes: [policy.default=Balanced, budget.default=10%]
";

const KWOK_SHADOW: &str = "
provider: kwok
shadow: {enabled: true}
";

#[test]
fn a_shadow_has_read_permissions_only() {
    needs_helm!();
    for values in [SHADOW, KWOK_SHADOW] {
        let manifests = template("karpenter", values);
        let of_all = rights(&manifests, "ClusterRole", |_| true);
        let verbs: BTreeSet<&str> = of_all.iter().map(|right| right[3].as_str()).collect();
        assert_eq!(verbs, BTreeSet::from(["get", "list", "watch"]));
        let sees = |resource: &str| of_all.iter().any(|right| right[1] == resource);
        assert!(sees("pods") && sees("nodeclaims") && !sees("secrets") && !sees("leases"));
        assert_eq!(rights(&manifests, "Role", |_| true), BTreeSet::new());
    }
}

#[test]
fn a_shadow_is_one_replica_without_webhook_lease_and_disruption_budget() {
    needs_helm!();
    let manifests = template("karpenter", SHADOW);
    for kind in ["Role", "RoleBinding", "Secret", "PodDisruptionBudget"] {
        assert_eq!(objects(&manifests, kind).len(), 0, "{kind}");
    }
    // Rights of users on Karpenter's resources are the business of the Karpenter that runs the cluster.
    assert!(!manifests.contains("aggregate-to-"));
    let service = &objects(&manifests, "Service")[0];
    assert_eq!(service["spec"]["ports"].as_array().map(Vec::len), Some(1));
    let deployment = &objects(&manifests, "Deployment")[0];
    assert_eq!(deployment["spec"]["replicas"], 1);
    let template = &deployment["spec"]["template"];
    let label = &template["metadata"]["labels"]["decisions.karpenter.sh/shadow"];
    assert_eq!(label, "true");
    let env = template["spec"]["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| {
        let found = env.iter().find(|it| it["name"] == name);
        found.map(|it| it["value"].as_str().unwrap_or_default())
    };
    assert_eq!(value("SHADOW"), Some("true"));
    let changes = "policy.default=Balanced;budget.default=10%";
    assert_eq!(value("SHADOW_IF"), Some(changes));
    assert_eq!(value("DISABLE_WEBHOOK"), Some("true"));
    assert!(notes(SHADOW).starts_with("A shadow of Karpenter "));
}

#[test]
fn without_the_value_there_is_no_trace_of_a_shadow() {
    needs_helm!();
    let manifests = template("karpenter", "settings: {clusterName: demo}");
    assert!(!manifests.to_lowercase().contains("shadow"));
    assert!(!objects(&manifests, "Role").is_empty());
}
