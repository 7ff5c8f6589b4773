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
mod document;
mod eks_bootstrap;
mod kubelet;
mod mime;
mod node_config;
mod settings;
mod windows;

use std::collections::BTreeMap;

pub use bottlerocket::binds_instance_storage_by_default;
pub use document::{LIMIT_BYTES, UserData, UserDataError, WARNING_BYTES};
pub use mime::MimeError;
pub use settings::{Cluster, NodeSettings, NodeTaint};

use crate::api::AmiFamily;

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
