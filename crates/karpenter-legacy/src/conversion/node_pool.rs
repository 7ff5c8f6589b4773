//! NodePool: the location of kubelet settings, expiry and NodeClass reference, and the name of a policy.

use serde_json::{Map, Value};

use super::object::{annotate, annotation, object_at, take_annotation};
use crate::names::{KUBELET_COMPATIBILITY, NODE_CLASS_REF_COMPATIBILITY};

const GROUP: &str = "karpenter.k8s.aws";
const KIND: &str = "EC2NodeClass";
const TEMPLATE: &str = "/spec/template/spec";

pub(super) fn up(pool: &mut Value) {
    let expire_after =
        object_at(pool, "/spec/disruption").and_then(|disruption| disruption.remove("expireAfter"));
    if let Some(disruption) = object_at(pool, "/spec/disruption") {
        policy_up(disruption);
    }
    if let Some(template) = object_at(pool, TEMPLATE)
        && let Some(expire_after) = expire_after
    {
        template.insert("expireAfter".to_owned(), expire_after);
    }
    kubelet_up(pool, TEMPLATE);
    if let Some(reference) = object_at(pool, "/spec/template/spec/nodeClassRef") {
        reference_up(reference);
    }
}

pub(super) fn down(pool: &mut Value) {
    let expire_after = object_at(pool, TEMPLATE).and_then(|template| {
        template.remove("terminationGracePeriod");
        template.remove("expireAfter")
    });
    if let Some(spec) = object_at(pool, "/spec") {
        spec.remove("replicas");
        if let Some(expire_after) = expire_after {
            let disruption = spec
                .entry("disruption")
                .or_insert_with(|| Value::Object(Map::new()));
            if let Some(disruption) = disruption.as_object_mut() {
                disruption.insert("expireAfter".to_owned(), expire_after);
            }
        }
    }
    if let Some(disruption) = object_at(pool, "/spec/disruption") {
        policy_down(disruption);
    }
    kubelet_down(pool, TEMPLATE);
    reference_down(pool, "/spec/template/spec/nodeClassRef");
}

/// Sets consolidateAfter, which v1 requires; WhenUnderutilized consolidated at once.
fn policy_up(disruption: &mut Map<String, Value>) {
    let underutilized = disruption
        .get("consolidationPolicy")
        .is_none_or(|policy| policy == "WhenUnderutilized");
    if underutilized {
        disruption.insert(
            "consolidationPolicy".to_owned(),
            "WhenEmptyOrUnderutilized".into(),
        );
        // `Never` was allowed and disabled consolidation.
        let never = disruption.get("consolidateAfter") == Some(&Value::from("Never"));
        if !never {
            disruption.insert("consolidateAfter".to_owned(), "0s".into());
        }
    } else {
        let after = disruption
            .entry("consolidateAfter")
            .or_insert_with(|| "Never".into());
        if after.is_null() {
            *after = "Never".into();
        }
    }
}

fn policy_down(disruption: &mut Map<String, Value>) {
    let policy = disruption
        .get("consolidationPolicy")
        .and_then(Value::as_str)
        .unwrap_or("WhenEmptyOrUnderutilized");
    if policy == "WhenEmpty" {
        return;
    }
    disruption.insert("consolidationPolicy".to_owned(), "WhenUnderutilized".into());
    if disruption.get("consolidateAfter") != Some(&Value::from("Never")) {
        disruption.remove("consolidateAfter");
    }
}

/// Moves the kubelet settings, which v1's template does not have, into an annotation.
pub(super) fn kubelet_up(object: &mut Value, spec: &str) {
    let kubelet = object_at(object, spec).and_then(|spec| spec.remove("kubelet"));
    if let Some(kubelet) = kubelet {
        annotate(object, KUBELET_COMPATIBILITY, kubelet.to_string());
    }
}

pub(super) fn kubelet_down(object: &mut Value, spec: &str) {
    let read = annotation(object, KUBELET_COMPATIBILITY)
        .and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    if let Some(kubelet) = read
        && let Some(spec) = object_at(object, spec)
    {
        spec.insert("kubelet".to_owned(), Value::Object(kubelet));
        take_annotation(object, KUBELET_COMPATIBILITY);
    }
}

pub(super) fn reference_up(reference: &mut Map<String, Value>) {
    let api_version = reference.remove("apiVersion");
    let group = match api_version.as_ref().and_then(Value::as_str) {
        None | Some("") => GROUP,
        Some(text) => text.split_once('/').map_or(text, |(group, _)| group),
    };
    reference.insert("group".to_owned(), group.into());
    let kind = reference.get("kind").and_then(Value::as_str);
    if kind.is_none_or(str::is_empty) {
        reference.insert("kind".to_owned(), KIND.into());
    }
}

/// Restores the reference from the annotation of upstream's webhook if it is unchanged; else sets the version v1beta1.
pub(super) fn reference_down(object: &mut Value, at: &str) {
    let was = annotation(object, NODE_CLASS_REF_COMPATIBILITY)
        .and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    let Some(reference) = object_at(object, at) else {
        return;
    };
    if let Some(was) = was {
        let mut now = was.clone();
        reference_up(&mut now);
        if now == *reference {
            *reference = was;
            take_annotation(object, NODE_CLASS_REF_COMPATIBILITY);
            return;
        }
    }
    if let Some(Value::String(group)) = reference.remove("group")
        && !group.is_empty()
    {
        reference.insert("apiVersion".to_owned(), format!("{group}/v1beta1").into());
    }
}
