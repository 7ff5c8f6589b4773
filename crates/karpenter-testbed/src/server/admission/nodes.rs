//! Nodes.
//!
//! UPSTREAM: plugin/pkg/admission/nodetaint, pkg/apis/core/validation ValidateNodeUpdate

use serde_json::{Value, json};

use super::super::value::{map_of, object_of};
use crate::quantity;
use crate::server::wire::error::Cause;

/// Adds the not-ready taint of a new node.
pub fn prepare(node: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let taints = object_of(node, "spec")
        .entry("taints")
        .or_insert_with(|| json!([]));
    if let Some(taints) = taints.as_array_mut()
        && !taints
            .iter()
            .any(|t| t["key"] == taint["key"] && t["effect"] == taint["effect"])
    {
        taints.push(taint);
    }
}

pub fn default(node: &mut Value) {
    let status = object_of(node, "status");
    // Allocatable defaults to the capacity.
    if let Some(capacity) = status.get("capacity").cloned() {
        status.entry("allocatable").or_insert(capacity);
    }
}

/// Validates taints and resources.
pub fn validate(node: &Value, causes: &mut Vec<Cause>) {
    let taints = node["spec"]["taints"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    for (i, taint) in taints.iter().enumerate() {
        let path = format!("spec.taints[{i}]");
        let effect = taint["effect"].as_str().unwrap_or_default();
        if effect.is_empty() {
            causes.push(Cause::required(format!("{path}.effect"), ""));
        } else if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            causes.push(Cause::unsupported(
                format!("{path}.effect"),
                &taint["effect"],
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            ));
        }
        let key = taint["key"].as_str().unwrap_or_default();
        if let Some(why) = super::names::qualified_name(key) {
            causes.push(Cause::invalid(format!("{path}.key"), &key.into(), &why));
        }
        if taints[..i]
            .iter()
            .any(|t| t["key"] == taint["key"] && t["effect"] == taint["effect"])
        {
            causes.push(Cause::duplicate(path, taint));
        }
    }
    for field in ["capacity", "allocatable"] {
        for (name, amount) in node["status"][field].as_object().into_iter().flatten() {
            if quantity::is_negative(amount) {
                causes.push(Cause::invalid(
                    format!("status.{field}.{name}"),
                    &quantity::text(amount).into(),
                    "must be greater than or equal to 0",
                ));
            }
        }
    }
}

pub fn validate_change(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let was = old["spec"]["providerID"].as_str().unwrap_or_default();
    if !was.is_empty() && new["spec"]["providerID"] != was {
        causes.push(Cause::forbidden(
            "spec.providerID",
            "node updates may not change providerID except from \"\" to valid",
        ));
    }
    let immutable = |node: &Value| {
        let mut spec = node["spec"].clone();
        for key in [
            "providerID",
            "taints",
            "unschedulable",
            "podCIDR",
            "podCIDRs",
            "configSource",
        ] {
            if key != "providerID" || was.is_empty() {
                map_of(&mut spec).remove(key);
            }
        }
        spec
    };
    if immutable(old) != immutable(new) {
        causes.push(Cause::forbidden(
            "[]",
            "node updates may only change labels, taints, or capacity (or configSource, if the DynamicKubeletConfig feature gate is enabled)",
        ));
    }
}
