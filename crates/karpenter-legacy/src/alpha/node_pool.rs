//! Converts a Provisioner into a NodePool.
//!
//! UPSTREAM: tools/karpenter-convert of v0.32, and the migration guides of v1beta1 and v1

use std::collections::BTreeMap;

use jiff::SignedDuration;
use karpenter_api::duration::{Duration, NillableDuration};
use karpenter_api::labels;
use karpenter_api::v1::{
    ConsolidationPolicy, Disruption, NodeClaimTemplate, NodeClaimTemplateSpec, NodePoolSpec,
    NodeSelectorRequirement, NodeSelectorRequirementWithMinValues as Requirement, Operator,
    TemplateMetadata,
};
use karpenter_aws::api::labels as aws;
use serde_json::{Map, Value};

use super::ProjectionSettings;
use crate::finding::Notebook;
use crate::names;
use crate::v1alpha5::{KubeletConfiguration, ProvisionerSpec};

/// Converts all fields but the reference to the NodeClass.
pub(super) fn spec(
    name: &str,
    old: &ProvisionerSpec,
    settings: &ProjectionSettings,
    notes: &mut Notebook,
) -> NodePoolSpec {
    let spec = NodeClaimTemplateSpec {
        taints: (!old.taints.is_empty()).then(|| old.taints.clone()),
        startup_taints: (!old.startup_taints.is_empty()).then(|| old.startup_taints.clone()),
        requirements: requirements(old, notes),
        expire_after: expire_after(old, notes),
        ..NodeClaimTemplateSpec::default()
    };
    NodePoolSpec {
        template: NodeClaimTemplate {
            metadata: metadata(name, old, settings, notes),
            spec,
        },
        disruption: disruption(old, notes),
        limits: old
            .limits
            .as_ref()
            .map(|limits| limits.resources.clone())
            .unwrap_or_default(),
        weight: old.weight,
        replicas: None,
    }
}

fn metadata(
    name: &str,
    old: &ProvisionerSpec,
    settings: &ProjectionSettings,
    notes: &mut Notebook,
) -> TemplateMetadata {
    let mut of_nodes = old.labels.clone();
    if settings.provisioner_label {
        of_nodes.insert(labels::PROVISIONER_NAME.to_owned(), name.to_owned());
    }
    let mut annotations = BTreeMap::new();
    for (key, value) in &old.annotations {
        match names::successor(key) {
            Some(new) => {
                notes.note(
                    "spec.annotations",
                    format!("`{key}` becomes `{new}`, which also blocks drift"),
                    "",
                );
                annotations.insert(new.to_owned(), value.clone());
            }
            None => {
                annotations.insert(key.clone(), value.clone());
            }
        }
    }
    let some = |map: BTreeMap<String, String>| (!map.is_empty()).then_some(map);
    TemplateMetadata {
        labels: some(of_nodes),
        annotations: some(annotations),
    }
}

/// Returns the user's requirements and those that the webhook of older releases added.
fn requirements(old: &ProvisionerSpec, notes: &mut Notebook) -> Vec<Requirement> {
    let mut all: Vec<Requirement> = Vec::new();
    for (index, requirement) in old.requirements.iter().enumerate() {
        let NodeSelectorRequirement {
            key,
            operator,
            values,
        } = requirement;
        let at = format!("spec.requirements[{index}]");
        if *key == names::INSTANCE_PODS {
            notes.loss(
                &at,
                format!("the label `{key}` no longer exists; the requirement is left out"),
                "limit pods with the kubelet setting maxPods, or select instance types",
            );
        } else if *key == labels::PROVISIONER_NAME {
            notes.loss(
                &at,
                format!("`{key}` is reserved by Karpenter; the requirement is left out"),
                "remove it",
            );
        } else {
            all.push(Requirement::new(key, operator.clone(), values.clone()));
        }
    }
    let constrained = |keys: &[&str]| {
        let required = |key: &&str| all.iter().any(|requirement| requirement.key == **key);
        keys.iter()
            .any(|key| required(key) || old.labels.contains_key(*key))
    };
    let mut added = Vec::new();
    let single = [
        (labels::OS, "linux"),
        (labels::ARCH, labels::ARCH_AMD64),
        (labels::CAPACITY_TYPE, labels::CAPACITY_TYPE_ON_DEMAND),
    ];
    for (key, value) in single {
        if !constrained(&[key]) {
            added.push(Requirement::new(key, Operator::In, [value]));
        }
    }
    let of_instances = [
        labels::INSTANCE_TYPE,
        aws::INSTANCE_FAMILY,
        aws::INSTANCE_CATEGORY,
        aws::INSTANCE_GENERATION,
    ];
    if !constrained(&of_instances) {
        let categories = ["c", "m", "r"];
        added.push(Requirement::new(
            aws::INSTANCE_CATEGORY,
            Operator::In,
            categories,
        ));
        added.push(Requirement::new(
            aws::INSTANCE_GENERATION,
            Operator::Gt,
            ["2"],
        ));
    }
    if !added.is_empty() {
        let keys: Vec<_> = added.iter().map(|r| format!("`{}`", r.key)).collect();
        let problem = format!("implicit defaults become explicit: {}", keys.join(", "));
        notes.note("spec.requirements", problem, "");
    }
    all.extend(added);
    all
}

fn seconds(count: i64) -> NillableDuration {
    let text = format!("{count}s");
    text.parse::<Duration>().map_or_else(
        |_| NillableDuration::after(SignedDuration::from_secs(count)),
        NillableDuration::After,
    )
}

fn expire_after(old: &ProvisionerSpec, notes: &mut Notebook) -> NillableDuration {
    let Some(count) = old.ttl_seconds_until_expired else {
        // Without expireAfter the default of 30 days would apply.
        return NillableDuration::Never;
    };
    if count < 0 {
        notes.error(
            "spec.ttlSecondsUntilExpired",
            "is negative",
            "remove it, or set a non-negative number",
        );
    }
    notes.note(
        "spec.ttlSecondsUntilExpired",
        "expiration no longer waits for a replacement, and changing it replaces nodes",
        "",
    );
    seconds(count)
}

fn disruption(old: &ProvisionerSpec, notes: &mut Notebook) -> Disruption {
    let consolidates = old
        .consolidation
        .as_ref()
        .and_then(|consolidation| consolidation.enabled)
        .unwrap_or(false);
    let (policy, after) = match (consolidates, old.ttl_seconds_after_empty) {
        (true, Some(_)) => {
            notes.error(
                "spec.ttlSecondsAfterEmpty",
                "excludes consolidation.enabled",
                "remove one of them",
            );
            return Disruption::default();
        }
        (true, None) => (ConsolidationPolicy::WhenEmptyOrUnderutilized, seconds(0)),
        (false, Some(count)) => {
            if count < 0 {
                notes.error(
                    "spec.ttlSecondsAfterEmpty",
                    "is negative",
                    "remove it, or set a non-negative number",
                );
            }
            (ConsolidationPolicy::WhenEmpty, seconds(count))
        }
        (false, None) => (ConsolidationPolicy::WhenEmpty, NillableDuration::Never),
    };
    Disruption {
        consolidate_after: after,
        consolidation_policy: policy,
        ..Disruption::default()
    }
}

/// Returns the kubelet settings in the format of an EC2NodeClass, or `None` if there are none.
pub(super) fn kubelet(
    old: Option<&KubeletConfiguration>,
    at: &str,
    notes: &mut Notebook,
) -> Option<Map<String, Value>> {
    let old = old?;
    if let Some(runtime) = &old.container_runtime {
        let at = format!("{at}.containerRuntime");
        match runtime.as_str() {
            "containerd" => notes.note(&at, "containerd is the only runtime and is left out", ""),
            other => notes.loss(
                &at,
                format!("`{other}` is no longer supported; nodes run containerd"),
                "check that pods do not need the Docker socket",
            ),
        }
    }
    let settings = serde_json::to_value(&old.settings).unwrap_or_default();
    match settings {
        Value::Object(map) if !map.is_empty() => Some(map),
        _ => None,
    }
}
