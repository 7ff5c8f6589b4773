//! The CustomResourceDefinition of EC2NodeClass, and what the provider adds to Karpenter's own definitions.

use karpenter_api::crd::{Column, Definition, RestrictedDomain};
use serde_json::Value;

use super::{EC2NodeClass, EC2NodeClassSpec, EC2NodeClassStatus, labels};

/// The CustomResourceDefinition of EC2NodeClass.
pub fn crd() -> Value {
    Definition {
        group: EC2NodeClass::GROUP,
        version: EC2NodeClass::VERSION,
        kind: EC2NodeClass::KIND,
        plural: EC2NodeClass::PLURAL,
        namespaced: false,
        short_names: &["ec2nc", "ec2ncs"],
        categories: &["karpenter"],
        description: "EC2NodeClass is what is particular to machines on EC2.",
        columns: vec![
            Column::new(
                "Ready",
                "string",
                r#".status.conditions[?(@.type=="Ready")].status"#,
            ),
            Column::new("Age", "date", ".metadata.creationTimestamp"),
            Column::wide("Role", "string", ".spec.role"),
        ],
        scale: None,
    }
    .build::<EC2NodeClassSpec, EC2NodeClassStatus>()
}

/// The provider's label domain in NodePools and NodeClaims, where only its well-known labels may be used, and the one that
/// names the node class, which every NodeClaim requires.
pub fn restricted_domain() -> RestrictedDomain {
    let mut domain = domain(|_| true);
    domain.allowed.insert(0, labels::NODE_CLASS.to_owned());
    domain
}

/// The provider's label domain in NodeOverlays, which cannot tell apart what is only known of a single machine: tenancy,
/// capacity reservation, placement group.
pub fn overlay_domain() -> RestrictedDomain {
    domain(|key| {
        key != labels::INSTANCE_TENANCY
            && !key.contains("/capacity-reservation-")
            && !key.contains("/placement-group-")
    })
}

fn domain(allowed: impl Fn(&str) -> bool) -> RestrictedDomain {
    let in_domain = |key: &&str| key.starts_with(labels::GROUP);
    let allowed = labels::WELL_KNOWN
        .into_iter()
        .filter(in_domain)
        .filter(|key| allowed(key));
    RestrictedDomain {
        domain: labels::GROUP.to_owned(),
        allowed: allowed.map(str::to_owned).collect(),
    }
}
