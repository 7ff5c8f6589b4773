//! The CEL rules of the CRDs. Users and tools match on their messages, so the texts are upstream's.

use serde_json::{Value, json};

fn rule(message: &str, rule: &str) -> Value {
    json!({ "message": message, "rule": rule })
}

const IN_HAS_VALUES: (&str, &str) = (
    "requirements with operator 'In' must have a value defined",
    "self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)",
);
const BOUND_HAS_ONE_INTEGER: &str = "self.all(x, (x.operator == 'Gt' || x.operator == 'Lt' || x.operator == 'Gte' || x.operator == 'Lte') ? (x.values.size() == 1 && int(x.values[0]) >= 0) : true)";

/// Rules of the requirements of NodePools and NodeClaims.
pub fn requirements() -> Value {
    json!([
        rule(IN_HAS_VALUES.0, IN_HAS_VALUES.1),
        rule(
            "requirements operator 'Gt', 'Lt', 'Gte', or 'Lte' must have a single positive integer value",
            BOUND_HAS_ONE_INTEGER
        ),
        rule(
            "requirements with 'minValues' must have at least that many values specified in the 'values' field",
            "self.all(x, (x.operator == 'In' && has(x.minValues)) ? x.values.size() >= x.minValues : true)"
        ),
    ])
}

/// Rules of the requirements of NodeOverlays.
pub(crate) fn overlay_requirements() -> Value {
    json!([
        rule(
            "requirements with operator 'NotIn' must have a value defined",
            "self.all(x, x.operator == 'NotIn' ? x.values.size() != 0 : true)"
        ),
        rule(IN_HAS_VALUES.0, IN_HAS_VALUES.1),
        rule(
            "requirements operator 'Gt', 'Lt', 'Gte' or 'Lte' must have a single positive integer value",
            BOUND_HAS_ONE_INTEGER
        ),
    ])
}

/// Rules of a disruption's budgets.
pub fn budgets() -> Value {
    json!([rule(
        "'schedule' must be set with 'duration'",
        "self.all(x, has(x.schedule) == has(x.duration))"
    )])
}

/// Rules of a NodePool's spec.
pub(crate) fn node_pool_spec() -> Value {
    json!([
        rule(
            "Cannot transition NodePool between static (replicas set) and dynamic (replicas unset) provisioning modes",
            "has(self.replicas) == has(oldSelf.replicas)"
        ),
        rule(
            "only 'limits.nodes' is supported on static NodePools",
            "!has(self.replicas) || (!has(self.limits) || size(self.limits) == 0 || (size(self.limits) == 1 && 'nodes' in self.limits))"
        ),
        rule(
            "'weight' is not supported on static NodePools",
            "!has(self.replicas) || !has(self.weight)"
        ),
    ])
}

/// Rules of a NodePool's reference to its NodeClass.
pub(crate) fn node_class_ref_immutable() -> Value {
    json!([
        rule(
            "nodeClassRef.group is immutable",
            "self.group == oldSelf.group"
        ),
        rule(
            "nodeClassRef.kind is immutable",
            "self.kind == oldSelf.kind"
        ),
    ])
}

pub(crate) fn immutable_spec() -> Value {
    json!([rule("spec is immutable", "self == oldSelf")])
}

pub(crate) fn node_overlay_spec() -> Value {
    json!([rule(
        "cannot set both 'price' and 'priceAdjustment'",
        "!has(self.price) || !has(self.priceAdjustment)"
    )])
}

pub(crate) fn overlay_capacity() -> Value {
    json!([rule(
        "invalid resource restricted",
        "self.all(x, !(x in ['cpu', 'memory', 'ephemeral-storage', 'pods']))"
    )])
}

/// Rules of a CapacityBuffer's spec.
pub(crate) fn capacity_buffer_spec() -> Value {
    json!([
        rule(
            "If podTemplateRef is set, replicas or limits must also be set",
            "!has(self.podTemplateRef) || has(self.replicas) || has(self.limits)"
        ),
        rule(
            "You must define either PodTemplateRef or ScalableRef, but not both",
            "!(has(self.podTemplateRef) && has(self.scalableRef))"
        ),
    ])
}

pub(crate) fn not_empty(field: &str) -> Value {
    json!([rule(&format!("{field} may not be empty"), "self != ''")])
}

/// A label domain that users may not use, and the allowed labels in it.
///
/// The CEL test is a plain suffix match on the text before the first `/`, which is stricter than the runtime check
/// (`notkarpenter.sh/x` is rejected too): kept, because existing clusters enforce it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestrictedDomain {
    /// The domain, with all domains that end with it.
    pub domain: String,
    /// Keys in the domain that are allowed.
    pub allowed: Vec<String>,
}

impl RestrictedDomain {
    /// Returns the domain `karpenter.sh` with the labels that requirements may use.
    pub fn karpenter() -> Self {
        Self {
            domain: crate::labels::GROUP.to_owned(),
            allowed: vec![
                crate::labels::CAPACITY_TYPE.into(),
                crate::labels::NODE_POOL.into(),
                crate::labels::PROVISIONER_NAME.into(),
            ],
        }
    }

    fn test(&self, variable: &str) -> String {
        let allowed = self
            .allowed
            .iter()
            .map(|key| format!("\"{key}\""))
            .collect::<Vec<_>>()
            .join(", ");
        format!(
            "{variable} in [{allowed}] || !{variable}.find(\"^([^/]+)\").endsWith(\"{}\")",
            self.domain
        )
    }

    fn message(&self) -> String {
        format!("label domain \"{}\" is restricted", self.domain)
    }
}

/// Rules of one label key of a requirement.
pub fn label_key(domains: &[RestrictedDomain], forbidden: &[&str]) -> Value {
    let domains = domains
        .iter()
        .map(|domain| rule(&domain.message(), &domain.test("self")));
    let forbidden = forbidden.iter().map(|key| {
        rule(
            &format!("label \"{key}\" is restricted"),
            &format!("self != \"{key}\""),
        )
    });
    domains.chain(forbidden).collect()
}

/// Rules of the keys of a map of labels.
pub fn label_map(domains: &[RestrictedDomain], forbidden: &[&str]) -> Value {
    let domains = domains.iter().map(|domain| {
        rule(
            &domain.message(),
            &format!("self.all(x, {})", domain.test("x")),
        )
    });
    let forbidden = forbidden.iter().map(|key| {
        rule(
            &format!("label \"{key}\" is restricted"),
            &format!("self.all(x, x != \"{key}\")"),
        )
    });
    domains.chain(forbidden).collect()
}
