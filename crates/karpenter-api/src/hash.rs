//! The hashes that detect static drift, bit for bit as upstream computes them.
//!
//! A NodePool or NodeClass and every NodeClaim created from it have a hash of the fields that cannot be compared with a node
//! afterwards. Another value for the same object would replace every node of a cluster that migrates from upstream, so the
//! arithmetic of Go's hashstructure v2 is repeated here: FNV-1 (multiply, then xor) over little-endian words,
//! structures by type and field name in order of declaration, lists and maps regardless of order.
//!
//! ```
//! use karpenter_api::hash::{Struct, string};
//! let reference = Struct::new("NodeClassReference").field_if("Kind", "EC2NodeClass").field_if("Name", "").finish();
//! assert_eq!(reference, Struct::new("NodeClassReference").field("Kind", string("EC2NodeClass")).finish());
//! ```
//!
//! UPSTREAM: mitchellh/hashstructure v2 (SlicesAsSets, IgnoreZeroValue, ZeroNil), pkg/apis/v1/nodepool.go Hash

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;

use crate::duration::{Duration, NillableDuration};
use crate::labels::annotations;
use crate::v1::{
    NodeClaimTemplate, NodeClaimTemplateSpec, NodeClassReference, NodePool, TemplateMetadata,
};

/// The version of [`node_pool`], stored with the hash. Nodes with another version get the new hash instead of drifting.
pub const NODE_POOL_HASH_VERSION: &str = "v3";

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Returns the 64-bit FNV-1 hash of bytes.
pub fn bytes(bytes: &[u8]) -> u64 {
    bytes.iter().fold(OFFSET, |hash, byte| {
        hash.wrapping_mul(PRIME) ^ u64::from(*byte)
    })
}

/// Returns the hash of a string.
pub fn string(text: &str) -> u64 {
    bytes(text.as_bytes())
}

/// Returns the hash of a 64-bit integer, or of a duration in nanoseconds.
pub fn int64(value: i64) -> u64 {
    bytes(&value.to_le_bytes())
}

/// Returns the hash of a 32-bit integer.
pub fn int32(value: i32) -> u64 {
    bytes(&value.to_le_bytes())
}

/// Returns the hash of a boolean.
pub fn boolean(value: bool) -> u64 {
    bytes(&[u8::from(value)])
}

/// Returns the hash of two hashes in order.
pub fn ordered(a: u64, b: u64) -> u64 {
    let mut words = [0; 16];
    words[..8].copy_from_slice(&a.to_le_bytes());
    words[8..].copy_from_slice(&b.to_le_bytes());
    bytes(&words)
}

/// Returns the hash of a hash, which hashstructure computes after combining unordered elements.
pub fn finish(hash: u64) -> u64 {
    bytes(&hash.to_le_bytes())
}

/// Returns the hash of a list from its elements' hashes. Order does not matter, and equal elements cancel each other out.
pub fn list(elements: impl IntoIterator<Item = u64>) -> u64 {
    elements.into_iter().fold(0, |hash, element| hash ^ element)
}

/// Returns the hash of a map of strings.
pub fn map(entries: &BTreeMap<String, String>) -> u64 {
    finish(list(
        entries
            .iter()
            .map(|(key, value)| ordered(string(key), string(value))),
    ))
}

/// Returns the hash of a time as Go marshals it, in a process whose time zone is UTC.
pub fn time(time: Timestamp) -> u64 {
    /// Seconds from the year 1 to 1970.
    const UNIX_TO_YEAR_ONE: i64 = 62_135_596_800;
    let seconds = (time.as_second() + UNIX_TO_YEAR_ONE).to_be_bytes();
    let nanos = time.subsec_nanosecond().to_be_bytes();
    let mut marshalled = [0; 15];
    marshalled[0] = 1;
    marshalled[1..9].copy_from_slice(&seconds);
    marshalled[9..13].copy_from_slice(&nanos);
    bytes(&marshalled)
}

/// A builder of the hash of a structure: create it with the type name, add the fields in the order of declaration, and finish it.
///
/// A field with Go's zero value (`""`, 0, false, a nil pointer, list or map) must be left out; a pointer to a zero value
/// and an empty but present list or map must not.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Struct {
    hash: u64,
}

impl Struct {
    /// Creates the builder for a structure of this Go type.
    pub fn new(type_name: &str) -> Self {
        Self {
            hash: string(type_name),
        }
    }

    /// Adds a field that is not zero.
    pub fn field(self, name: &str, value: u64) -> Self {
        Self {
            hash: finish(self.hash ^ ordered(string(name), value)),
        }
    }

    /// Adds a string field, unless it is empty.
    pub fn field_if(self, name: &str, value: &str) -> Self {
        if value.is_empty() {
            self
        } else {
            self.field(name, string(value))
        }
    }

    /// Adds a field behind a pointer, list or map, unless it is nil.
    pub fn field_some(self, name: &str, value: Option<u64>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    /// Returns the hash of the structure.
    pub fn finish(self) -> u64 {
        self.hash
    }
}

/// Writes the hash of a NodePool and its version to the NodePool's annotations.
pub fn stamp(pool: &mut NodePool) {
    let hash = node_pool(pool);
    let all = pool.metadata.annotations.get_or_insert_default();
    all.insert(annotations::NODE_POOL_HASH.into(), hash);
    let version = annotations::NODE_POOL_HASH_VERSION;
    all.insert(version.into(), NODE_POOL_HASH_VERSION.into());
}

/// Returns the static hash of a NodePool, as in [`crate::labels::annotations::NODE_POOL_HASH`].
///
/// It covers the template's labels, annotations, taints, startup taints, NodeClass reference, terminationGracePeriod and
/// expireAfter. Requirements drift by comparison; the other fields do not affect running nodes.
pub fn node_pool(pool: &NodePool) -> String {
    template(&pool.spec.template).to_string()
}

fn template(template: &NodeClaimTemplate) -> u64 {
    let metadata = (!template.metadata.is_empty()).then(|| metadata(&template.metadata));
    Struct::new("NodeClaimTemplate")
        .field_some("ObjectMeta", metadata)
        .field("Spec", spec(&template.spec))
        .finish()
}

fn metadata(metadata: &TemplateMetadata) -> u64 {
    Struct::new("ObjectMeta")
        .field_some("Labels", metadata.labels.as_ref().map(map))
        .field_some("Annotations", metadata.annotations.as_ref().map(map))
        .finish()
}

fn spec(spec: &NodeClaimTemplateSpec) -> u64 {
    let taints = |taints: &Vec<Taint>| list(taints.iter().map(taint));
    Struct::new("NodeClaimTemplateSpec")
        .field_some("Taints", spec.taints.as_ref().map(taints))
        .field_some("StartupTaints", spec.startup_taints.as_ref().map(taints))
        .field("NodeClassRef", node_class_ref(&spec.node_class_ref))
        .field_some(
            "TerminationGracePeriod",
            spec.termination_grace_period.as_ref().map(duration),
        )
        .field_some("ExpireAfter", nillable_duration(&spec.expire_after))
        .finish()
}

fn taint(taint: &Taint) -> u64 {
    let added = taint
        .time_added
        .as_ref()
        .map(|added| Struct::new("Time").field("Time", time(added.0)).finish());
    Struct::new("Taint")
        .field_if("Key", &taint.key)
        .field_if("Value", taint.value.as_deref().unwrap_or_default())
        .field_if("Effect", &taint.effect)
        .field_some("TimeAdded", added)
        .finish()
}

fn node_class_ref(reference: &NodeClassReference) -> u64 {
    Struct::new("NodeClassReference")
        .field_if("Kind", &reference.kind)
        .field_if("Name", &reference.name)
        .field_if("Group", &reference.group)
        .finish()
}

/// Returns the hash of a `metav1.Duration`.
pub fn duration(duration: &Duration) -> u64 {
    let hash = Struct::new("Duration");
    match duration.nanos() {
        0 => hash.finish(),
        nanos => hash.field("Duration", int64(nanos)).finish(),
    }
}

/// Returns the hash of a `NillableDuration`, or `None` for `Never`, which is Go's zero value.
///
/// The zero test of the structure checks its pointer and the raw text, so `0s` is hashed.
pub fn nillable_duration(duration: &NillableDuration) -> Option<u64> {
    match duration {
        NillableDuration::Never => None,
        NillableDuration::After(duration) => Some(
            Struct::new("NillableDuration")
                .field("Duration", int64(duration.nanos()))
                .finish(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(template: serde_json::Value) -> NodePool {
        let mut written = json!({ "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }, "requirements": [],
        } } } });
        json_patch_merge(&mut written["spec"]["template"], &template);
        serde_json::from_value(written).unwrap()
    }

    fn json_patch_merge(target: &mut serde_json::Value, patch: &serde_json::Value) {
        match patch.as_object() {
            Some(patch) if target.is_object() => {
                for (key, value) in patch {
                    json_patch_merge(&mut target[key], value);
                }
            }
            _ => *target = patch.clone(),
        }
    }

    fn hash(template: serde_json::Value) -> String {
        node_pool(&pool(template))
    }

    /// Conformance: API-062
    #[test]
    fn the_vectors_of_upstream_are_reproduced() {
        let full = json!({
            "metadata": { "labels": { "team": "a" } },
            "spec": { "taints": [{ "key": "example.com/special-taint", "effect": "NoSchedule" }], "terminationGracePeriod": "48h" },
        });
        let expire_after = |text: &str| json!({ "spec": { "expireAfter": text } });
        for (template, expected) in [
            (json!({}), "6821555240594823858"),
            (expire_after("720h"), "6821555240594823858"),
            (expire_after("Never"), "17369979337536258260"),
            (full, "9714970648468784407"),
            (
                json!({ "metadata": { "labels": {} } }),
                "1287117484082965808",
            ),
        ] {
            assert_eq!(hash(template), expected);
        }
    }

    /// Conformance: API-063
    #[test]
    fn requirements_and_fields_outside_the_template_do_not_matter() {
        let mut other =
            pool(json!({ "spec": { "requirements": [{ "key": "a", "operator": "Exists" }] } }));
        other.spec.weight = Some(3);
        other.spec.replicas = Some(2);
        other.spec.disruption.budgets.clear();
        other.spec.limits = serde_json::from_value(json!({ "cpu": "1" })).unwrap();
        assert_eq!(node_pool(&other), hash(json!({})));
    }

    /// Conformance: API-064, DIS-057
    #[test]
    fn every_static_field_matters() {
        let changes = [
            json!({ "metadata": { "labels": { "a": "b" } } }),
            json!({ "metadata": { "annotations": { "a": "b" } } }),
            json!({ "spec": { "taints": [{ "key": "a", "effect": "NoSchedule" }] } }),
            json!({ "spec": { "startupTaints": [{ "key": "a", "effect": "NoSchedule" }] } }),
            json!({ "spec": { "taints": [{ "key": "a", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z" }] } }),
            json!({ "spec": { "nodeClassRef": { "name": "other" } } }),
            json!({ "spec": { "nodeClassRef": { "kind": "Other" } } }),
            json!({ "spec": { "nodeClassRef": { "group": "other" } } }),
            json!({ "spec": { "terminationGracePeriod": "0s" } }),
            json!({ "spec": { "terminationGracePeriod": "1s" } }),
            json!({ "spec": { "expireAfter": "1h" } }),
        ];
        let number = changes.len() + 1;
        let hashes = changes.into_iter().map(hash).chain([hash(json!({}))]);
        let hashes: std::collections::BTreeSet<String> = hashes.collect();
        assert_eq!(hashes.len(), number);
    }

    /// Conformance: API-065
    #[test]
    fn order_does_not_matter_and_equal_taints_cancel_out() {
        let a = json!({ "key": "a", "effect": "NoSchedule" });
        let b = json!({ "key": "b", "effect": "NoSchedule" });
        let of = |taints: &[&serde_json::Value]| hash(json!({ "spec": { "taints": taints } }));
        assert_eq!(of(&[&a, &b]), of(&[&b, &a]));
        assert_eq!(of(&[&a, &a]), of(&[]));
    }

    /// Conformance: API-066
    #[test]
    fn present_but_empty_differs_from_absent() {
        for empty in [
            json!({ "metadata": { "labels": {} } }),
            json!({ "metadata": { "annotations": {} } }),
            json!({ "spec": { "taints": [] } }),
            json!({ "spec": { "startupTaints": [] } }),
        ] {
            assert_ne!(hash(empty.clone()), hash(json!({})), "{empty}");
        }
        assert_eq!(hash(json!({ "metadata": {} })), hash(json!({})));
    }

    /// Conformance: API-067
    #[test]
    fn equal_durations_hash_alike_however_they_are_written() {
        let of = |text: &str| hash(json!({ "spec": { "expireAfter": text } }));
        assert_eq!(of("90m"), of("1h30m"));
        assert_eq!(duration(&"0s".parse().unwrap()), string("Duration"));
    }

    #[test]
    fn primitives_have_the_widths_of_go() {
        assert_eq!(int64(0), bytes(&[0; 8]));
        assert_eq!(int32(-1), bytes(&[0xff; 4]));
        assert_eq!(boolean(true), bytes(&[1]));
        assert_eq!(string(""), OFFSET);
        assert_eq!(
            ordered(1, 2),
            bytes(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0])
        );
    }

    /// A vector of upstream's EC2NodeClass hash (v6), which combines structures, lists, maps, pointers to zero values and both
    /// widths of integers: the functions of this module suffice for it.
    #[test]
    fn a_node_class_of_aws_can_be_hashed() {
        let tags = ["1", "2"].map(|n| (format!("keyTag-{n}"), format!("valueTag-{n}")));
        let ebs = Struct::new("BlockDevice")
            .field("DeleteOnTermination", boolean(false))
            .field("Encrypted", boolean(false))
            .field("IOPS", int64(0))
            .field("KMSKeyID", string("fakeKMSKeyID"))
            .field("SnapshotID", string("fakeSnapshot"))
            .field("Throughput", int64(0))
            .field("VolumeSize", string("2G"))
            .field("VolumeType", string("standard"))
            .finish();
        let devices = list([
            Struct::new("BlockDeviceMapping")
                .field("DeviceName", string("map-device-1"))
                .field("EBS", ebs)
                .finish(),
            Struct::new("BlockDeviceMapping")
                .field("DeviceName", string("map-device-2"))
                .finish(),
        ]);
        let metadata = Struct::new("MetadataOptions")
            .field("HTTPEndpoint", string("disabled"))
            .field("HTTPProtocolIPv6", string("disabled"))
            .field("HTTPPutResponseHopLimit", int64(1))
            .field("HTTPTokens", string("optional"))
            .finish();
        let spec = Struct::new("EC2NodeClassSpec")
            .field("AssociatePublicIPAddress", boolean(false))
            .field("UserData", string("userdata-test-1"))
            .field("Role", string("role-1"))
            .field("Tags", map(&BTreeMap::from(tags)))
            .field("BlockDeviceMappings", devices)
            .field("DetailedMonitoring", boolean(false))
            .field("MetadataOptions", metadata)
            .field("Context", string("fake-context"))
            .finish();
        assert_eq!(
            list([
                spec,
                string("Custom"),
                string("test-ca-bundle"),
                string("null")
            ]),
            11_148_166_120_438_674_859
        );
    }
}
