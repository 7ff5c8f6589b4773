//! What a machine is told at its first boot, for every family of images.
//!
//! [`generate`] turns what is known of the cluster and of the node into the text EC2 hands to the machine, merged with what
//! the user wrote. Nothing here knows a Kubernetes object: the input is plain, so that each family can be read, and tested,
//! by itself.
//!
//! | family | format | user's part |
//! |---|---|---|
//! | AL2 | MIME, a shell script calling `bootstrap.sh` last | parts before it |
//! | AL2023 | MIME, a `NodeConfig` last, which wins | parts before it |
//! | Bottlerocket | TOML settings | merged, Karpenter's keys win |
//! | Windows | PowerShell | lines before the bootstrap call |
//! | Custom | the user's, untouched | |
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

/// Sizes from here on deserve a warning: 90 % of [`LIMIT_BYTES`].
pub const WARNING_BYTES: usize = LIMIT_BYTES / 10 * 9;

/// A taint the node registers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTaint {
    /// Key.
    pub key: String,
    /// Value, often empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// How a node reaches its cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The EKS cluster's name.
    pub name: String,
    /// URL of the API server.
    pub endpoint: String,
    /// The certificate authority, base64 of its PEM; none if the endpoint's certificate is publicly trusted.
    pub certificate_authority: Option<String>,
    /// The range of service addresses; AL2023 needs it.
    pub service_cidr: Option<String>,
}

/// Everything the user data of a node depends on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeSettings {
    /// The cluster to join.
    pub cluster: Cluster,
    /// The labels the node registers with, as [`kubelet_labels`] gives them.
    pub labels: BTreeMap<String, String>,
    /// The taints the node registers with, as [`kubelet_taints`] gives them.
    pub taints: Vec<NodeTaint>,
    /// The kubelet configuration with concrete values: `maxPods` is a number, reserved resources are quantities,
    /// `clusterDNS` has its default.
    pub kubelet: Map<String, Value>,
    /// Whether instance store volumes are joined to a RAID-0 for pods.
    pub raid0: bool,
    /// Whether the Bottlerocket version binds the usual directories by itself, see [`binds_instance_storage_by_default`].
    pub default_mounts: bool,
    /// What the user wrote.
    pub custom: Option<String>,
}

/// The text handed to a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserData {
    /// The text as the machine reads it.
    pub text: String,
    /// Parts of the user's text that had to be left out, one sentence each.
    pub ignored: Vec<String>,
}

impl UserData {
    fn new(text: String) -> UserData {
        UserData {
            text,
            ignored: Vec::new(),
        }
    }

    /// The form EC2's API takes.
    #[must_use]
    pub fn encoded(&self) -> String {
        STANDARD.encode(&self.text)
    }

    /// The size EC2 limits.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Whether little room is left.
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        self.bytes() >= WARNING_BYTES
    }

    /// Refuses what EC2 would refuse.
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

/// Why there is no user data. All but [`Self::ServiceCidrUnknown`] can only be cured by who wrote the node class.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserDataError {
    /// AL2023 cannot configure a node without the service range, which is still being discovered.
    #[error("the service address range of the cluster is not known yet")]
    ServiceCidrUnknown,
    /// A multi-part document is broken.
    #[error("spec.userData is not a readable MIME document: {0}")]
    Mime(#[from] MimeError),
    /// The document is not TOML.
    #[error("spec.userData is not valid TOML: {0}")]
    Toml(Box<toml::de::Error>),
    /// A setting has a form its consumer refuses.
    #[error("setting `{setting}` of spec.userData must be {expected}")]
    Setting {
        /// The path of the setting.
        setting: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A kubelet field has a form its consumer refuses.
    #[error("spec.kubelet.{field} must be {expected}")]
    Kubelet {
        /// The field, in camel case.
        field: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The certificate authority is not base64.
    #[error("the cluster's certificate authority is not base64: {0}")]
    CertificateAuthority(#[source] base64::DecodeError),
    /// The document could not be written.
    #[error("user data could not be written: {0}")]
    Render(Box<toml::ser::Error>),
    /// EC2 refuses more than [`LIMIT_BYTES`].
    #[error(
        "user data has {bytes} bytes, and EC2 allows {LIMIT_BYTES}: shorten spec.userData or load parts of it at boot"
    )]
    TooLarge {
        /// The size.
        bytes: usize,
    },
}

impl UserDataError {
    /// Whether waiting helps: nothing is wrong with what the user wrote.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::ServiceCidrUnknown)
    }
}

/// The user data of a node of `family`. Equal settings give equal text.
///
/// The size is not judged here: see [`UserData::check_size`].
///
/// # Errors
/// If the user's text or the kubelet configuration cannot be used by the family.
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

/// The labels of a NodeClaim that a kubelet may set on its node, with the mark that taints need no syncing.
///
/// Kubernetes lets no kubelet set labels under `kubernetes.io` and `k8s.io`; those come with registration.
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

/// The taints a node registers with: those of the NodeClaim, its startup taints, and the one that keeps pods away until
/// Karpenter has seen the node.
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
