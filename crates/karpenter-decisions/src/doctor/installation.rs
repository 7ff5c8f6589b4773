//! What only the operator knows about its installation: missing permissions, and feature gates whose resources are not installed.

use super::check::Check;
use super::evidence::Evidence;
use super::scan::Scan;
use super::{Draft, Subject};

/// What is known about the installation; `None` where it was not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    /// Permissions that Karpenter lacks.
    pub missing_permissions: Option<Vec<MissingPermission>>,
    /// Resources of enabled feature gates that are not installed.
    pub missing_kinds: Option<Vec<MissingKind>>,
}

/// A permission that Karpenter lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingPermission {
    /// The verb.
    pub verb: String,
    /// The resource, with its group: `pods`, `nodeclaims.karpenter.sh`, `pods/eviction`.
    pub resource: String,
}

/// A resource that is not installed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingKind {
    /// The feature gate that needs it.
    pub gate: String,
    /// The name of its CustomResourceDefinition.
    pub crd: String,
}

impl Installation {
    /// Returns the number of checks that can be made.
    pub fn checks(&self) -> usize {
        let known = Check::ALL.into_iter();
        known.filter(|check| self.is_known_for(*check)).count()
    }

    /// Reports whether a check can be made.
    pub(super) fn is_known_for(&self, check: Check) -> bool {
        match check {
            Check::PermissionMissing => self.missing_permissions.is_some(),
            Check::CrdMissing => self.missing_kinds.is_some(),
            _ => true,
        }
    }
}

pub(super) fn check(scan: &Scan<'_>, installation: &Installation, found: &mut Vec<Draft>) {
    for pool in scan.pools() {
        let condition = pool.not_ready_class();
        let Some((message, since)) = condition else {
            continue;
        };
        let class = &pool.pool.spec.template.spec.node_class_ref;
        let evidence = Evidence::NodeClassNotReady {
            node_pool: pool.name().to_owned(),
            node_class: format!("{} {}", class.kind, class.name),
            message,
        };
        found.push(
            Draft::new(evidence)
                .about(Subject::cluster(&class.kind, &class.name))
                .since(since),
        );
    }
    for missing in installation.missing_permissions.iter().flatten() {
        let (verb, resource) = (missing.verb.clone(), missing.resource.clone());
        let evidence = Evidence::PermissionMissing { verb, resource };
        found.push(Draft::new(evidence));
    }
    for missing in installation.missing_kinds.iter().flatten() {
        let (gate, crd) = (missing.gate.clone(), missing.crd.clone());
        let subject = Subject::cluster("CustomResourceDefinition", &crd);
        found.push(Draft::new(Evidence::CrdMissing { gate, crd }).about(subject));
    }
}
