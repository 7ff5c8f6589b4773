//! The twelve fields of KubeletConfiguration that families other than AL2023 support.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value};

use super::document::UserDataError;
use super::settings::{NodeSettings, NodeTaint};

/// The fields for which flags or settings exist; the other fields are supported by AL2023 only.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Kubelet {
    pub(super) cluster_dns: Option<String>,
    pub(super) max_pods: Option<i64>,
    pub(super) pods_per_core: Option<i64>,
    pub(super) system_reserved: Option<BTreeMap<String, String>>,
    pub(super) kube_reserved: Option<BTreeMap<String, String>>,
    pub(super) eviction_hard: Option<BTreeMap<String, String>>,
    pub(super) eviction_soft: Option<BTreeMap<String, String>>,
    pub(super) eviction_soft_grace_period: Option<BTreeMap<String, String>>,
    pub(super) eviction_max_pod_grace_period: Option<i64>,
    pub(super) image_gc_high_threshold_percent: Option<i64>,
    pub(super) image_gc_low_threshold_percent: Option<i64>,
    pub(super) cpu_cfs_quota: Option<bool>,
}

impl Kubelet {
    /// Parses the fields. Other fields are the concern of the node class validation.
    pub(super) fn read(config: &Map<String, Value>) -> Result<Kubelet, UserDataError> {
        Ok(Kubelet {
            cluster_dns: first_of(config, "clusterDNS")?,
            max_pods: integer(config, "maxPods")?,
            pods_per_core: integer(config, "podsPerCore")?,
            system_reserved: strings(config, "systemReserved")?,
            kube_reserved: strings(config, "kubeReserved")?,
            eviction_hard: strings(config, "evictionHard")?,
            eviction_soft: strings(config, "evictionSoft")?,
            eviction_soft_grace_period: strings(config, "evictionSoftGracePeriod")?,
            eviction_max_pod_grace_period: integer(config, "evictionMaxPodGracePeriod")?,
            image_gc_high_threshold_percent: integer(config, "imageGCHighThresholdPercent")?,
            image_gc_low_threshold_percent: integer(config, "imageGCLowThresholdPercent")?,
            cpu_cfs_quota: boolean(config, "cpuCFSQuota")?,
        })
    }

    /// Returns whether pods reach the cluster's DNS by IPv6, so that the cluster is an IPv6 cluster.
    pub(super) fn is_ipv6(&self) -> bool {
        self.cluster_dns
            .as_deref()
            .is_some_and(|address| matches!(address.parse(), Ok(IpAddr::V6(_))))
    }

    /// Returns the kubelet's flags for the fields that are set.
    // UPSTREAM: Options.kubeletExtraArgs. DIFFERS: keys of maps are sorted, upstream's order is random.
    pub(super) fn flags(&self, settings: &NodeSettings) -> Vec<String> {
        let number = |name: &str, value: Option<i64>| value.map(|value| format!("{name}={value}"));
        [
            node_labels_flag(&settings.labels),
            taints_flag(&settings.taints),
            number("--max-pods", self.max_pods),
            number("--pods-per-core", self.pods_per_core),
            map_flag("--system-reserved", self.system_reserved.as_ref(), '='),
            map_flag("--kube-reserved", self.kube_reserved.as_ref(), '='),
            map_flag("--eviction-hard", self.eviction_hard.as_ref(), '<'),
            map_flag("--eviction-soft", self.eviction_soft.as_ref(), '<'),
            map_flag(
                "--eviction-soft-grace-period",
                self.eviction_soft_grace_period.as_ref(),
                '=',
            ),
            number(
                "--eviction-max-pod-grace-period",
                self.eviction_max_pod_grace_period,
            ),
            number(
                "--image-gc-high-threshold",
                self.image_gc_high_threshold_percent,
            ),
            number(
                "--image-gc-low-threshold",
                self.image_gc_low_threshold_percent,
            ),
            self.cpu_cfs_quota
                .map(|value| format!("--cpu-cfs-quota={value}")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Returns the flag `--node-labels`, sorted; `None` without labels.
pub(super) fn node_labels_flag(labels: &BTreeMap<String, String>) -> Option<String> {
    map_flag("--node-labels", Some(labels), '=')
}

fn taints_flag(taints: &[NodeTaint]) -> Option<String> {
    let taints = taints.iter().map(|taint| {
        let NodeTaint { key, value, effect } = taint;
        format!("{key}={value}:{effect}")
    });
    list_flag("--register-with-taints", taints.collect())
}

fn map_flag(name: &str, map: Option<&BTreeMap<String, String>>, between: char) -> Option<String> {
    let entries = map?
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

fn set<'a>(config: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    config.get(field).filter(|value| !value.is_null())
}

fn wrong(field: &str, expected: &'static str) -> UserDataError {
    UserDataError::Kubelet {
        field: field.to_owned(),
        expected,
    }
}

fn integer(config: &Map<String, Value>, field: &str) -> Result<Option<i64>, UserDataError> {
    set(config, field)
        .map(|value| value.as_i64().ok_or_else(|| wrong(field, "a whole number")))
        .transpose()
}

fn boolean(config: &Map<String, Value>, field: &str) -> Result<Option<bool>, UserDataError> {
    set(config, field)
        .map(|value| value.as_bool().ok_or_else(|| wrong(field, "true or false")))
        .transpose()
}

fn strings(
    config: &Map<String, Value>,
    field: &str,
) -> Result<Option<BTreeMap<String, String>>, UserDataError> {
    const EXPECTED: &str = "a map of strings";
    set(config, field)
        .map(|value| {
            let map = value.as_object().ok_or_else(|| wrong(field, EXPECTED))?;
            map.iter()
                .map(|(key, value)| match value {
                    Value::String(text) => Ok((key.clone(), text.clone())),
                    // Quantities may be written as numbers.
                    Value::Number(number) => Ok((key.clone(), number.to_string())),
                    _ => Err(wrong(&format!("{field}.{key}"), "a string")),
                })
                .collect()
        })
        .transpose()
}

fn first_of(config: &Map<String, Value>, field: &str) -> Result<Option<String>, UserDataError> {
    const EXPECTED: &str = "a list of strings";
    let Some(value) = set(config, field) else {
        return Ok(None);
    };
    let list = value.as_array().ok_or_else(|| wrong(field, EXPECTED))?;
    list.first()
        .map(|first| {
            first
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| wrong(field, EXPECTED))
        })
        .transpose()
}
