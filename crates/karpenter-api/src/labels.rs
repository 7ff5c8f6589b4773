//! Labels, annotations, taints and finalizers that Karpenter reads and writes.
//!
//! UPSTREAM: pkg/apis/v1/labels.go, pkg/apis/v1/taints.go

use k8s_openapi::api::core::v1::Taint;

/// The API group of Karpenter's own resources, and the domain of its labels.
pub const GROUP: &str = "karpenter.sh";

/// The NodePool that owns a NodeClaim and its Node. Only Karpenter sets it.
pub const NODE_POOL: &str = "karpenter.sh/nodepool";
/// The Provisioner of a node, up to v0.32. Pods may still select by it, so users may set it on a NodePool's
/// nodes; it is an ordinary label otherwise.
pub const PROVISIONER_NAME: &str = "karpenter.sh/provisioner-name";
/// [`CAPACITY_TYPE_SPOT`], [`CAPACITY_TYPE_ON_DEMAND`] or [`CAPACITY_TYPE_RESERVED`].
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
/// `true` on a Node that Karpenter has registered.
pub const REGISTERED: &str = "karpenter.sh/registered";
/// `true` on a Node that Karpenter has initialized.
pub const INITIALIZED: &str = "karpenter.sh/initialized";
/// `true` on a Node: registration adds no taints of the NodeClaim to it.
pub const DO_NOT_SYNC_TAINTS: &str = "karpenter.sh/do-not-sync-taints";
/// Set to `karpenter` on a Node that is being terminated, so that load balancers remove it.
pub const EXCLUDE_FROM_EXTERNAL_LOAD_BALANCERS: &str =
    "node.kubernetes.io/exclude-from-external-load-balancers";

/// The zone of a Node.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// The region of a Node.
pub const REGION: &str = "topology.kubernetes.io/region";
/// The instance type of a Node.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// The CPU architecture of a Node: [`ARCH_AMD64`] or [`ARCH_ARM64`].
pub const ARCH: &str = "kubernetes.io/arch";
/// The operating system of a Node.
pub const OS: &str = "kubernetes.io/os";
/// The build number of a Windows Node.
pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
/// The host name of a Node. It is never a scheduling choice, so NodePools and pods may not require it.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// Value of [`CAPACITY_TYPE`]: interruptible capacity.
pub const CAPACITY_TYPE_SPOT: &str = "spot";
/// Value of [`CAPACITY_TYPE`]: capacity billed by use.
pub const CAPACITY_TYPE_ON_DEMAND: &str = "on-demand";
/// Value of [`CAPACITY_TYPE`]: capacity paid for in advance.
pub const CAPACITY_TYPE_RESERVED: &str = "reserved";
/// Value of [`ARCH`].
pub const ARCH_AMD64: &str = "amd64";
/// Value of [`ARCH`].
pub const ARCH_ARM64: &str = "arm64";

/// Returns the key of the label for the name of a NodeClass on its NodeClaims and Nodes: `<group>/<kind in lower case>`.
///
/// ```
/// assert_eq!(karpenter_api::labels::node_class("karpenter.k8s.aws", "EC2NodeClass"), "karpenter.k8s.aws/ec2nodeclass");
/// ```
pub fn node_class(group: &str, kind: &str) -> String {
    format!("{group}/{}", kind.to_ascii_lowercase())
}

/// Annotation keys.
pub mod annotations {
    /// On a Node only exactly `true` counts; on a Pod `true` or a positive Go duration.
    pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
    /// [`DO_NOT_DISRUPT`] on a Pod, up to v0.32; `true` still counts.
    pub const DO_NOT_EVICT: &str = "karpenter.sh/do-not-evict";
    /// On a Node, up to v0.32: it is not consolidated; `true` still counts.
    pub const DO_NOT_CONSOLIDATE: &str = "karpenter.sh/do-not-consolidate";
    /// The static hash of a NodePool, on the NodePool and on NodeClaims at their creation.
    pub const NODE_POOL_HASH: &str = "karpenter.sh/nodepool-hash";
    /// The version of the algorithm behind [`NODE_POOL_HASH`].
    pub const NODE_POOL_HASH_VERSION: &str = "karpenter.sh/nodepool-hash-version";
    /// The time when a NodeClaim's node must be terminated (RFC 3339): deletion plus termination grace period.
    pub const TERMINATION_TIMESTAMP: &str = "karpenter.sh/nodeclaim-termination-timestamp";
    /// `true` when minValues were lowered to find an instance type.
    pub const MIN_VALUES_RELAXED: &str = "karpenter.sh/nodeclaim-min-values-relaxed";
    /// Comma-separated DRA drivers of the devices that the claim's pods request.
    pub const REQUESTED_DRA_DRIVERS: &str = "karpenter.sh/requested-dra-drivers";
    /// The claim's price comes from a NodeOverlay.
    pub const PRICE_OVERLAY_APPLIED: &str = "karpenter.sh/price-overlay-applied";
    /// The claim's capacity comes from a NodeOverlay.
    pub const CAPACITY_OVERLAY_APPLIED: &str = "karpenter.sh/capacity-overlay-applied";
    /// Marks the in-memory pods of a CapacityBuffer.
    pub const CAPACITY_BUFFER_FAKE_POD: &str = "karpenter.sh/capacity-buffer-fake-pod";
    /// The CapacityBuffer of an in-memory pod.
    pub const CAPACITY_BUFFER_NAME: &str = "karpenter.sh/capacity-buffer-name";
    /// The namespace of the CapacityBuffer of an in-memory pod.
    pub const CAPACITY_BUFFER_NAMESPACE: &str = "karpenter.sh/capacity-buffer-namespace";
    /// On a NodePool and its NodeClaims: the kubelet settings of its v1beta1 version, as JSON. They replace those of the
    /// NodeClass.
    pub const KUBELET_COMPATIBILITY: &str = "compatibility.karpenter.sh/v1beta1-kubelet-conversion";
    /// On a NodePool: its voluntary disruption is paused; `kubectl karpenter pause` writes the value. Not upstream's.
    pub const PAUSED: &str = "operations.karpenter.sh/paused";
    /// On a NodePool: `true` or `false`, whether consolidation moves no pods to its nodes within `consolidateAfter`, instead of the
    /// setting. Not upstream's.
    pub const CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS: &str =
        "operations.karpenter.sh/consolidate-after-applies-to-destinations";
}

/// Finalizer keys.
pub mod finalizers {
    /// Kept on Nodes and NodeClaims until their instance is terminated.
    pub const TERMINATION: &str = "karpenter.sh/termination";
}

/// Taint keys and the taints that Karpenter sets on Nodes.
pub mod taints {
    use super::Taint;

    /// Effect: new pods without a toleration are not scheduled.
    pub const NO_SCHEDULE: &str = "NoSchedule";
    /// Effect: new pods without a toleration are scheduled on other nodes if possible.
    pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";
    /// Effect: pods without a toleration are evicted.
    pub const NO_EXECUTE: &str = "NoExecute";

    /// Key of the taint on a Node that is being disrupted or terminated.
    pub const DISRUPTED: &str = "karpenter.sh/disrupted";
    /// Key of the taint with which a kubelet registers; Karpenter's registration removes it.
    pub const UNREGISTERED: &str = "karpenter.sh/unregistered";
    /// Key prefix of taints that readiness controllers remove.
    pub const READINESS_PREFIX: &str = "readiness.k8s.io/";

    /// Returns the taint `karpenter.sh/disrupted:NoSchedule`.
    pub fn disrupted() -> Taint {
        taint(DISRUPTED, None, NO_SCHEDULE)
    }

    /// Returns the taint `karpenter.sh/unregistered:NoExecute`.
    pub fn unregistered() -> Taint {
        taint(UNREGISTERED, None, NO_EXECUTE)
    }

    /// Returns whether two taints have the same key and effect.
    pub fn same(a: &Taint, b: &Taint) -> bool {
        a.key == b.key && a.effect == b.effect
    }

    /// Returns whether `taint` is removed while a node starts, and is ignored until the node is initialized.
    ///
    /// UPSTREAM: pkg/scheduling/taints.go, KnownEphemeralTaints
    pub fn is_known_ephemeral(taint: &Taint) -> bool {
        let key_and_effect = (taint.key.as_str(), taint.effect.as_str());
        matches!(
            key_and_effect,
            ("node.kubernetes.io/not-ready", NO_SCHEDULE | NO_EXECUTE)
                | ("node.kubernetes.io/unreachable", NO_SCHEDULE)
                | (
                    "node.cloudprovider.kubernetes.io/uninitialized",
                    NO_SCHEDULE
                )
                | (UNREGISTERED, NO_EXECUTE)
        ) || taint.key.starts_with(READINESS_PREFIX)
    }

    fn taint(key: &str, value: Option<&str>, effect: &str) -> Taint {
        Taint {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            effect: effect.to_owned(),
            time_added: None,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Conformance: API-090
        #[test]
        fn karpenter_s_own_taints_have_upstream_s_key_and_effect() {
            assert_eq!(
                (disrupted().key.as_str(), disrupted().effect.as_str()),
                ("karpenter.sh/disrupted", "NoSchedule")
            );
            assert_eq!(
                (unregistered().key.as_str(), unregistered().effect.as_str()),
                ("karpenter.sh/unregistered", "NoExecute")
            );
        }

        /// Conformance: API-091
        #[test]
        fn ephemeral_taints_match_by_key_and_effect_only() {
            assert!(is_known_ephemeral(&taint(
                "node.kubernetes.io/not-ready",
                Some("x"),
                NO_EXECUTE
            )));
            assert!(is_known_ephemeral(&taint(
                "node.kubernetes.io/not-ready",
                None,
                NO_SCHEDULE
            )));
            assert!(is_known_ephemeral(&taint(
                "node.kubernetes.io/unreachable",
                None,
                NO_SCHEDULE
            )));
            assert!(!is_known_ephemeral(&taint(
                "node.kubernetes.io/unreachable",
                None,
                NO_EXECUTE
            )));
            assert!(is_known_ephemeral(&taint(
                "node.cloudprovider.kubernetes.io/uninitialized",
                Some("true"),
                NO_SCHEDULE
            )));
            assert!(is_known_ephemeral(&unregistered()));
            assert!(is_known_ephemeral(&taint(
                "readiness.k8s.io/gpu",
                None,
                PREFER_NO_SCHEDULE
            )));
            assert!(!is_known_ephemeral(&disrupted()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 1 of lifecycle-and-disruption.md.
    ///
    /// Conformance: DIS-131
    #[test]
    fn names_are_upstream_s() {
        use crate::conditions::types;
        for (name, spelt) in [
            (finalizers::TERMINATION, "karpenter.sh/termination"),
            (NODE_POOL, "karpenter.sh/nodepool"),
            (REGISTERED, "karpenter.sh/registered"),
            (INITIALIZED, "karpenter.sh/initialized"),
            (CAPACITY_TYPE, "karpenter.sh/capacity-type"),
            (DO_NOT_SYNC_TAINTS, "karpenter.sh/do-not-sync-taints"),
            (
                EXCLUDE_FROM_EXTERNAL_LOAD_BALANCERS,
                "node.kubernetes.io/exclude-from-external-load-balancers",
            ),
            (annotations::DO_NOT_DISRUPT, "karpenter.sh/do-not-disrupt"),
            (annotations::NODE_POOL_HASH, "karpenter.sh/nodepool-hash"),
            (
                annotations::NODE_POOL_HASH_VERSION,
                "karpenter.sh/nodepool-hash-version",
            ),
            (
                annotations::TERMINATION_TIMESTAMP,
                "karpenter.sh/nodeclaim-termination-timestamp",
            ),
            (
                annotations::MIN_VALUES_RELAXED,
                "karpenter.sh/nodeclaim-min-values-relaxed",
            ),
            (
                annotations::REQUESTED_DRA_DRIVERS,
                "karpenter.sh/requested-dra-drivers",
            ),
            (types::LAUNCHED, "Launched"),
            (types::REGISTERED, "Registered"),
            (types::INITIALIZED, "Initialized"),
            (types::CONSOLIDATABLE, "Consolidatable"),
            (types::DRIFTED, "Drifted"),
            (types::DRAINED, "Drained"),
            (types::VOLUMES_DETACHED, "VolumesDetached"),
            (types::INSTANCE_TERMINATING, "InstanceTerminating"),
            (types::CONSISTENT_STATE_FOUND, "ConsistentStateFound"),
            (types::DISRUPTION_REASON, "DisruptionReason"),
            (types::READY, "Ready"),
            (types::VALIDATION_SUCCEEDED, "ValidationSucceeded"),
            (types::NODE_CLASS_READY, "NodeClassReady"),
            (types::NODE_REGISTRATION_HEALTHY, "NodeRegistrationHealthy"),
        ] {
            assert_eq!(name, spelt);
        }
        use crate::conditions::HasConditions as _;
        use crate::v1::{NodeClaim, NodePool};
        assert_eq!(
            NodeClaim::TYPES.dependents,
            ["Launched", "Registered", "Initialized"]
        );
        assert_eq!(
            NodePool::TYPES.dependents,
            ["ValidationSucceeded", "NodeClassReady"]
        );
    }
}
