//! The CustomResourceDefinition of EC2NodeClass, and the label domains that other CustomResourceDefinitions reserve for
//! the provider.

use karpenter_api::crd::{Column, Definition, RestrictedDomain};
use serde_json::Value;

use super::{EC2NodeClass, EC2NodeClassSpec, EC2NodeClassStatus, labels};

/// Returns the CustomResourceDefinition of EC2NodeClass.
pub fn crd() -> Value {
    Definition {
        group: EC2NodeClass::GROUP,
        version: EC2NodeClass::VERSION,
        kind: EC2NodeClass::KIND,
        plural: EC2NodeClass::PLURAL,
        namespaced: false,
        short_names: &["ec2nc", "ec2ncs"],
        categories: &["karpenter"],
        description: "EC2NodeClass is the Schema for the EC2NodeClass API: the EC2-specific settings of nodes.",
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

/// Returns the provider's label domain for NodePools and NodeClaims. Only the provider's well-known labels may be used
/// in it, and the label that names the node class, which every NodeClaim requires.
pub fn restricted_domain() -> RestrictedDomain {
    domain(|_| true)
}

/// Returns the provider's label domain for NodeOverlays. Labels that are known only per instance are not allowed in it:
/// tenancy, capacity reservation, placement group.
pub fn overlay_domain() -> RestrictedDomain {
    domain(|key| {
        key != labels::INSTANCE_TENANCY
            && !key.contains("/capacity-reservation-")
            && !key.contains("/placement-group-")
    })
}

fn domain(allowed: impl Fn(&str) -> bool) -> RestrictedDomain {
    let in_domain = |key: &&str| key.starts_with(labels::GROUP);
    let well_known = labels::WELL_KNOWN
        .into_iter()
        .filter(in_domain)
        .filter(|key| allowed(key));
    let allowed = [labels::NODE_CLASS].into_iter().chain(well_known);
    RestrictedDomain {
        domain: labels::GROUP.to_owned(),
        allowed: allowed.map(str::to_owned).collect(),
    }
}
