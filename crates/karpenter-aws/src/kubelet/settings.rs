//! The kubelet settings that scheduling, or the user data of some family, depend on.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Maximum number of pods of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MaxPods {
    /// A fixed number.
    Number(i64),
    /// An expression over variables of the instance type.
    Expression(String),
}

/// Kubelet settings that are interpreted. The other fields are passed on unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kubelet {
    /// IP addresses of the cluster's DNS service.
    pub cluster_dns: Vec<String>,
    /// Maximum number of pods.
    pub max_pods: Option<MaxPods>,
    /// Maximum number of pods per vCPU.
    pub pods_per_core: Option<i64>,
    /// Reserved resources for Kubernetes daemons; a value that is not a quantity is an expression.
    pub kube_reserved: BTreeMap<String, String>,
    /// Reserved resources for the operating system; a value that is not a quantity is an expression.
    pub system_reserved: BTreeMap<String, String>,
    /// Hard eviction thresholds by signal.
    pub eviction_hard: BTreeMap<String, String>,
    /// Soft eviction thresholds by signal.
    pub eviction_soft: BTreeMap<String, String>,
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    /// Minimum amount of a resource that an eviction reclaims, by signal.
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    /// Maximum grace period of pods in a soft eviction, in seconds.
    pub eviction_max_pod_grace_period: Option<i64>,
    /// Disk usage in percent at which image garbage collection starts.
    pub image_gc_high_threshold_percent: Option<i64>,
    /// Disk usage in percent at which image garbage collection stops.
    pub image_gc_low_threshold_percent: Option<i64>,
    /// Whether CPU limits are enforced with CFS quota.
    pub cpu_cfs_quota: Option<bool>,
}

impl Kubelet {
    /// Parses the settings. Fields that are not interpreted are skipped.
    ///
    /// # Errors
    /// A message for each field of the wrong type.
    pub fn parse(object: Option<&Map<String, Value>>) -> Result<Self, Vec<String>> {
        let Some(object) = object else {
            return Ok(Self::default());
        };
        let mut reader = Reader {
            object,
            problems: Vec::new(),
        };
        let kubelet = Self {
            cluster_dns: reader.texts("clusterDNS"),
            max_pods: reader.max_pods(),
            pods_per_core: reader.integer("podsPerCore"),
            kube_reserved: reader.map("kubeReserved"),
            system_reserved: reader.map("systemReserved"),
            eviction_hard: reader.map("evictionHard"),
            eviction_soft: reader.map("evictionSoft"),
            eviction_soft_grace_period: reader.map("evictionSoftGracePeriod"),
            eviction_minimum_reclaim: reader.map("evictionMinimumReclaim"),
            eviction_max_pod_grace_period: reader.integer("evictionMaxPodGracePeriod"),
            image_gc_high_threshold_percent: reader.integer("imageGCHighThresholdPercent"),
            image_gc_low_threshold_percent: reader.integer("imageGCLowThresholdPercent"),
            cpu_cfs_quota: reader.boolean("cpuCFSQuota"),
        };
        if reader.problems.is_empty() {
            Ok(kubelet)
        } else {
            Err(reader.problems)
        }
    }
}

struct Reader<'a> {
    object: &'a Map<String, Value>,
    problems: Vec<String>,
}

impl Reader<'_> {
    /// Reads a field; `null` counts as absent.
    fn read<T>(
        &mut self,
        field: &str,
        wanted: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.object.get(field).filter(|value| !value.is_null())?;
        let converted = convert(value);
        if converted.is_none() {
            self.problems
                .push(format!("{field}: {value} is not {wanted}"));
        }
        converted
    }

    fn integer(&mut self, field: &str) -> Option<i64> {
        self.read(field, "an integer", int32)
    }

    fn boolean(&mut self, field: &str) -> Option<bool> {
        self.read(field, "a boolean", Value::as_bool)
    }

    fn max_pods(&mut self) -> Option<MaxPods> {
        self.read(
            "maxPods",
            "an integer or an expression",
            |value| match value {
                Value::String(text) => Some(MaxPods::Expression(text.clone())),
                other => int32(other).map(MaxPods::Number),
            },
        )
    }

    fn texts(&mut self, field: &str) -> Vec<String> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        self.read(field, "a list of strings", |value| {
            value.as_array()?.iter().map(text).collect()
        })
        .unwrap_or_default()
    }

    fn map(&mut self, field: &str) -> BTreeMap<String, String> {
        self.read(field, "a map of strings", |value| {
            let entries = value.as_object()?.iter();
            entries
                .map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect()
        })
        .unwrap_or_default()
    }
}

/// Returns an integer that fits into a Go `int32`.
pub(super) fn int32(value: &Value) -> Option<i64> {
    value.as_i64().filter(|n| i32::try_from(*n).is_ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_read() {
        let object = json!({
            "maxPods": 12, "podsPerCore": 2, "kubeReserved": { "cpu": "100m" }, "clusterDNS": ["10.0.0.10"], "cpuCFSQuota": false,
            "evictionHard": { "memory.available": "5%" }, "serializeImagePulls": false,
        });
        let kubelet = Kubelet::parse(object.as_object()).unwrap();
        assert_eq!(kubelet.max_pods, Some(MaxPods::Number(12)));
        assert_eq!(kubelet.pods_per_core, Some(2));
        assert_eq!(kubelet.kube_reserved["cpu"], "100m");
        assert_eq!(kubelet.cluster_dns, ["10.0.0.10"]);
        assert_eq!(kubelet.cpu_cfs_quota, Some(false));
        assert_eq!(Kubelet::parse(None).unwrap(), Kubelet::default());
    }

    #[test]
    fn wrong_types_are_reported_together() {
        let object = json!({ "podsPerCore": "two", "kubeReserved": { "cpu": 1 }, "maxPods": true, "clusterDNS": null });
        assert_eq!(
            Kubelet::parse(object.as_object()).unwrap_err(),
            [
                "maxPods: true is not an integer or an expression",
                "podsPerCore: \"two\" is not an integer",
                "kubeReserved: {\"cpu\":1} is not a map of strings",
            ]
        );
    }
}
