//! NodeClaim: the expiry, which v1beta1 had in the NodePool only, the kubelet and the reference to the NodeClass.

use karpenter_api::labels;
use serde_json::Value;

use super::Lookup;
use super::node_pool::{kubelet_down, kubelet_up, reference_down, reference_up};
use super::object::object_at;

pub(super) fn up(claim: &mut Value) {
    kubelet_up(claim, "/spec");
    if let Some(reference) = object_at(claim, "/spec/nodeClassRef") {
        reference_up(reference);
    }
}

/// Sets the expiry of a NodeClaim without one to that of its NodePool, which applies to it in v1beta1.
pub(super) fn look_up(claim: &mut Value, lookup: &dyn Lookup) {
    if claim["spec"].get("expireAfter").is_some() {
        return;
    }
    let pool = claim["metadata"]["labels"]
        .get(labels::NODE_POOL)
        .and_then(Value::as_str);
    let expire_after = pool.and_then(|pool| lookup.expire_after(pool));
    if let Some(expire_after) = expire_after
        && let Some(spec) = object_at(claim, "/spec")
    {
        spec.insert("expireAfter".to_owned(), expire_after.into());
    }
}

pub(super) fn down(claim: &mut Value) {
    kubelet_down(claim, "/spec");
    reference_down(claim, "/spec/nodeClassRef");
    if let Some(spec) = object_at(claim, "/spec") {
        spec.remove("expireAfter");
        spec.remove("terminationGracePeriod");
    }
}
