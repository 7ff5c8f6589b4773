//! Kubelet settings for the families that have flags or settings of their own for them. AL2023 takes all fields as they
//! are.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::document::UserDataError;
use super::settings::{NodeSettings, NodeTaint};
use crate::kubelet::{Kubelet, MaxPods};

/// Parses the fields. Other fields are the concern of the node class validation.
pub(super) fn parse(settings: &NodeSettings) -> Result<Kubelet, UserDataError> {
    Kubelet::parse(Some(&settings.kubelet))
        .map_err(|problems| UserDataError::Kubelet(problems.join("; ")))
}

/// Returns the maximum number of pods; its expression has been evaluated.
pub(super) fn max_pods(kubelet: &Kubelet) -> Option<i64> {
    match kubelet.max_pods {
        Some(MaxPods::Number(number)) => Some(number),
        _ => None,
    }
}

/// Returns whether pods reach the cluster's DNS by IPv6, so that the cluster is an IPv6 cluster.
pub(super) fn is_ipv6(kubelet: &Kubelet) -> bool {
    let address = kubelet.cluster_dns.first();
    address.is_some_and(|address| matches!(address.parse(), Ok(IpAddr::V6(_))))
}

/// Returns the kubelet's flags for the fields that are set.
// UPSTREAM: Options.kubeletExtraArgs. DIFFERS: keys of maps are sorted, upstream's order is random.
pub(super) fn flags(kubelet: &Kubelet, settings: &NodeSettings) -> Vec<String> {
    let number = |name: &str, value: Option<i64>| value.map(|value| format!("{name}={value}"));
    [
        node_labels_flag(&settings.labels),
        taints_flag(&settings.taints),
        number("--max-pods", max_pods(kubelet)),
        number("--pods-per-core", kubelet.pods_per_core),
        map_flag("--system-reserved", &kubelet.system_reserved, '='),
        map_flag("--kube-reserved", &kubelet.kube_reserved, '='),
        map_flag("--eviction-hard", &kubelet.eviction_hard, '<'),
        map_flag("--eviction-soft", &kubelet.eviction_soft, '<'),
        map_flag(
            "--eviction-soft-grace-period",
            &kubelet.eviction_soft_grace_period,
            '=',
        ),
        number(
            "--eviction-max-pod-grace-period",
            kubelet.eviction_max_pod_grace_period,
        ),
        number(
            "--image-gc-high-threshold",
            kubelet.image_gc_high_threshold_percent,
        ),
        number(
            "--image-gc-low-threshold",
            kubelet.image_gc_low_threshold_percent,
        ),
        kubelet
            .cpu_cfs_quota
            .map(|value| format!("--cpu-cfs-quota={value}")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the flag `--node-labels`, sorted; `None` without labels.
pub(super) fn node_labels_flag(labels: &BTreeMap<String, String>) -> Option<String> {
    map_flag("--node-labels", labels, '=')
}

fn taints_flag(taints: &[NodeTaint]) -> Option<String> {
    let taints = taints.iter().map(|taint| {
        let NodeTaint { key, value, effect } = taint;
        format!("{key}={value}:{effect}")
    });
    list_flag("--register-with-taints", taints.collect())
}

fn map_flag(name: &str, map: &BTreeMap<String, String>, between: char) -> Option<String> {
    let entries = map
        .iter()
        .map(|(key, value)| format!("{key}{between}{value}"));
    list_flag(name, entries.collect())
}

fn list_flag(name: &str, entries: Vec<String>) -> Option<String> {
    (!entries.is_empty()).then(|| {
        let list = entries.join(",").replace('\\', "\\\\").replace('"', "\\\"");
        format!("{name}=\"{list}\"")
    })
}
