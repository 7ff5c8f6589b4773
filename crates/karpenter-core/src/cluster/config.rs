//! The properties of the provider that the model depends on.

use karpenter_api::duration::Duration;
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::labels::taints::{is_known_ephemeral, same};
use karpenter_api::validation::WellKnown;
use serde::{Deserialize, Serialize};

use crate::offering::DEFAULT_RESERVATION_ID;
use crate::provider::{LAUNCH_TIMEOUT, NodeClassKind, ProviderProfile};

/// The properties of the provider that the model depends on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterConfig {
    /// Known labels, resources and values.
    pub well_known: WellKnown,
    /// NodeClass kinds of the provider; a Node with the label of one is managed by Karpenter.
    pub node_classes: Vec<NodeClassKind>,
    /// The label that names a capacity reservation.
    pub reservation_id_label: String,
    /// Volume provisioners that are not supported.
    pub unsupported_provisioners: Vec<String>,
    /// Topology keys of storage classes that are not supported.
    pub unsupported_topology_keys: Vec<String>,
    /// Whether NodeOverlays change instance types.
    pub node_overlays: bool,
    /// How long a launch may take.
    #[serde(default = "launch_timeout", skip_serializing_if = "is_launch_timeout")]
    pub launch_timeout: std::time::Duration,
    /// The termination grace period of NodePools without one; `None` is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_termination_grace_period: Option<Duration>,
    /// Taints of new Nodes that a component of the provider removes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ephemeral_taints: Vec<corev1::Taint>,
}

/// Returns whether a taint is one that every new Node has, or one of the provider's.
pub(super) fn is_ephemeral(taint: &corev1::Taint, own: &[corev1::Taint]) -> bool {
    is_known_ephemeral(taint) || own.iter().any(|own| same(own, taint))
}

fn launch_timeout() -> std::time::Duration {
    LAUNCH_TIMEOUT
}

fn is_launch_timeout(timeout: &std::time::Duration) -> bool {
    *timeout == LAUNCH_TIMEOUT
}

impl ClusterConfig {
    /// Returns the configuration for a provider.
    ///
    /// ```
    /// use karpenter_core::cluster::ClusterConfig;
    /// use karpenter_core::provider::ProviderProfile;
    ///
    /// let profile = ProviderProfile::new("racks", []).with_reservation_id_label("example.com/contract");
    /// assert_eq!(ClusterConfig::of(&profile).reservation_id_label, "example.com/contract");
    /// ```
    pub fn of(profile: &ProviderProfile) -> Self {
        Self {
            well_known: profile.well_known.clone(),
            node_classes: profile.node_classes.clone(),
            reservation_id_label: profile.reservation_id_label.clone(),
            launch_timeout: profile.launch_timeout,
            default_termination_grace_period: profile.default_termination_grace_period.clone(),
            ephemeral_taints: profile.ephemeral_taints.clone(),
            ..Self::default()
        }
    }

    /// Returns whether a taint is removed while a node starts, and is ignored until the node is initialized.
    pub fn is_ephemeral(&self, taint: &corev1::Taint) -> bool {
        is_ephemeral(taint, &self.ephemeral_taints)
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            well_known: WellKnown::default(),
            node_classes: Vec::new(),
            reservation_id_label: DEFAULT_RESERVATION_ID.to_owned(),
            unsupported_provisioners: Vec::new(),
            unsupported_topology_keys: Vec::new(),
            node_overlays: false,
            launch_timeout: LAUNCH_TIMEOUT,
            default_termination_grace_period: None,
            ephemeral_taints: Vec::new(),
        }
    }
}
