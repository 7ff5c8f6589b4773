//! User data of instances, for every AMI family.
//!
//! [`generate`] combines the settings of the cluster and of the node with the user's text into the user data of an
//! instance. The input has no Kubernetes objects, so that each family can be read and tested on its own.
//!
//! | family | format | the user's text |
//! |---|---|---|
//! | AL2 | MIME, a shell script calling `bootstrap.sh` last | parts before it |
//! | AL2023 | MIME, a `NodeConfig` last, which takes precedence | parts before it |
//! | Bottlerocket | TOML settings | merged, Karpenter's keys take precedence |
//! | Windows | PowerShell | lines before the bootstrap call |
//! | Custom | the user's, unchanged | |
// UPSTREAM: pkg/providers/amifamily/bootstrap

mod bottlerocket;
mod eks_bootstrap;
mod kubelet;
mod mime;
mod node_config;
mod windows;

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

pub use bottlerocket::binds_instance_storage_by_default;
pub use mime::MimeError;

use crate::api::AmiFamily;

/// EC2's limit on user data, in bytes before encoding.
pub const LIMIT_BYTES: usize = 16_384;

/// Size from which a warning is logged: 90 % of [`LIMIT_BYTES`].
pub const WARNING_BYTES: usize = LIMIT_BYTES * 9 / 10;

/// A taint the node registers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTaint {
    /// Taint key.
    pub key: String,
    /// Taint value, often empty.
    pub value: String,
    /// Taint effect: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// The cluster that nodes join.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Name of the EKS cluster.
    pub name: String,
    /// URL of the API server.
    pub endpoint: String,
    /// Certificate authority, base64 of its PEM; `None` if the endpoint's certificate is publicly trusted.
    pub certificate_authority: Option<String>,
    /// CIDR of the cluster's services; AL2023 needs it.
    pub service_cidr: Option<String>,
}

/// The input of a node's user data.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeSettings {
    /// The cluster to join.
    pub cluster: Cluster,
    /// Labels that the node registers with, as [`kubelet_labels`] returns them.
    pub labels: BTreeMap<String, String>,
    /// Taints that the node registers with, as [`kubelet_taints`] returns them.
    pub taints: Vec<NodeTaint>,
    /// Kubelet settings for the instance type: `maxPods` is a number, reserved resources are quantities, `clusterDNS`
    /// has its default.
    pub kubelet: Map<String, Value>,
    /// Whether instance store volumes are joined to a RAID-0 for pods.
    pub raid0: bool,
    /// Whether the Bottlerocket version binds the usual directories by default, see
    /// [`binds_instance_storage_by_default`].
    pub default_mounts: bool,
    /// The user's text, `spec.userData`.
    pub custom: Option<String>,
}

/// User data of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserData {
    /// The text before encoding.
    pub text: String,
    /// A message for each part of the user's text that was left out.
    pub ignored: Vec<String>,
}

impl UserData {
    fn new(text: String) -> UserData {
        UserData {
            text,
            ignored: Vec::new(),
        }
    }

    /// Returns the user data in base64, as EC2's API expects it.
    #[must_use]
    pub fn encoded(&self) -> String {
        STANDARD.encode(&self.text)
    }

    /// Returns the size in bytes that EC2 limits.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Returns whether the size is near the limit.
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        self.bytes() >= WARNING_BYTES
    }

    /// Checks that the size does not exceed EC2's limit.
    ///
    /// # Errors
    /// If the text is larger than [`LIMIT_BYTES`].
    pub fn check_size(&self) -> Result<(), UserDataError> {
        let bytes = self.bytes();
        if bytes > LIMIT_BYTES {
            return Err(UserDataError::TooLarge { bytes });
        }
        Ok(())
    }
}

/// User data cannot be generated. All errors but [`Self::ServiceCidrUnknown`] need a change of the node class.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserDataError {
    /// AL2023 needs the service CIDR, which has not been discovered yet.
    #[error("the service CIDR of the cluster is not known yet")]
    ServiceCidrUnknown,
    /// A multi-part document cannot be parsed.
    #[error("invalid MIME document in spec.userData: {0}")]
    Mime(#[from] MimeError),
    /// The user data of Bottlerocket is not TOML.
    #[error("invalid TOML in spec.userData: {0}")]
    Toml(Box<toml::de::Error>),
    /// A setting has the wrong type.
    #[error("setting `{setting}` of spec.userData must be {expected}")]
    Setting {
        /// Path of the setting.
        setting: String,
        /// Expected type.
        expected: &'static str,
    },
    /// A kubelet field has the wrong type.
    #[error("spec.kubelet.{field} must be {expected}")]
    Kubelet {
        /// Name of the field, in camel case.
        field: String,
        /// Expected type.
        expected: &'static str,
    },
    /// The certificate authority is not base64.
    #[error("invalid certificate authority of the cluster, not base64: {0}")]
    CertificateAuthority(#[source] base64::DecodeError),
    /// The document cannot be rendered.
    #[error("cannot render user data: {0}")]
    Render(Box<toml::ser::Error>),
    /// The user data is larger than [`LIMIT_BYTES`].
    #[error(
        "user data has {bytes} bytes, and EC2 allows {LIMIT_BYTES}: shorten spec.userData or load parts of it at boot"
    )]
    TooLarge {
        /// Size of the user data.
        bytes: usize,
    },
}

impl UserDataError {
    /// Returns whether a retry may succeed without a change of the node class.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::ServiceCidrUnknown)
    }
}

/// Returns the user data of a node of `family`. Equal settings give equal text.
///
/// The size is not checked: see [`UserData::check_size`].
///
/// # Errors
/// If the user's text or the kubelet settings are invalid for the family.
pub fn generate(family: AmiFamily, settings: &NodeSettings) -> Result<UserData, UserDataError> {
    match family {
        AmiFamily::Al2 => eks_bootstrap::generate(settings),
        AmiFamily::Al2023 => node_config::generate(settings),
        AmiFamily::Bottlerocket => bottlerocket::generate(settings),
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => {
            windows::generate(settings)
        }
        AmiFamily::Custom => Ok(UserData::new(settings.custom.clone().unwrap_or_default())),
    }
}

/// Returns the labels of a NodeClaim that the kubelet may set on its node, with the label that disables the syncing of
/// taints.
///
/// Kubernetes does not let the kubelet set labels under `kubernetes.io` and `k8s.io`; those are set on registration.
#[must_use]
pub fn kubelet_labels<'a>(
    labels: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<String, String> {
    let mut kept: BTreeMap<String, String> = labels
        .into_iter()
        .filter(|(key, _)| !is_reserved(key))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    kept.insert(DO_NOT_SYNC_TAINTS.to_owned(), "true".to_owned());
    kept
}

const DO_NOT_SYNC_TAINTS: &str = "karpenter.sh/do-not-sync-taints";
const UNREGISTERED: &str = "karpenter.sh/unregistered";

fn is_reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return false;
    };
    ["kubernetes.io", "k8s.io"].iter().any(|reserved| {
        domain
            .strip_suffix(reserved)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// Returns the taints a node registers with: those of the NodeClaim, its startup taints, and the one that keeps pods
/// away until Karpenter has registered the node.
#[must_use]
pub fn kubelet_taints(taints: Vec<NodeTaint>, startup: Vec<NodeTaint>) -> Vec<NodeTaint> {
    let mut all: Vec<NodeTaint> = taints.into_iter().chain(startup).collect();
    if !all
        .iter()
        .any(|taint| taint.key == UNREGISTERED && taint.effect == "NoExecute")
    {
        all.push(NodeTaint {
            key: UNREGISTERED.to_owned(),
            value: String::new(),
            effect: "NoExecute".to_owned(),
        });
    }
    all
}

#[cfg(test)]
mod tests;
