//! The labels and resources that Karpenter and the provider define.
//!
//! A value built once at start-up from the provider's settings and passed as an argument. DIFFERS: upstream keeps these sets
//! in mutable package variables, so that one process can hold one provider.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::labels;

/// Well-known labels, restricted label domains, and the normalization of legacy names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WellKnown {
    labels: BTreeSet<String>,
    restricted_domains: BTreeSet<String>,
    resources: BTreeSet<String>,
    values: BTreeMap<String, BTreeSet<String>>,
    normalized_keys: BTreeMap<String, String>,
    normalized_values: BTreeMap<String, BTreeMap<String, String>>,
}

/// The error of using a restricted label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("label `{key}` is restricted; use a well-known label ({}), or a label outside the domains {}", .well_known.join(", "), .domains.join(", "))]
pub struct RestrictedLabel {
    key: String,
    well_known: Vec<String>,
    domains: Vec<String>,
}

impl Default for WellKnown {
    /// Returns the labels and resources of Karpenter without a provider.
    fn default() -> Self {
        let strings = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<BTreeSet<_>>()
        };
        let normalized = [
            ("failure-domain.beta.kubernetes.io/zone", labels::ZONE),
            ("failure-domain.beta.kubernetes.io/region", labels::REGION),
            ("beta.kubernetes.io/arch", labels::ARCH),
            ("beta.kubernetes.io/os", labels::OS),
            ("beta.kubernetes.io/instance-type", labels::INSTANCE_TYPE),
        ];
        let capacity_types = strings(&[
            labels::CAPACITY_TYPE_SPOT,
            labels::CAPACITY_TYPE_ON_DEMAND,
            labels::CAPACITY_TYPE_RESERVED,
        ]);
        Self {
            labels: strings(&[
                labels::NODE_POOL,
                labels::CAPACITY_TYPE,
                labels::ZONE,
                labels::REGION,
                labels::INSTANCE_TYPE,
                labels::ARCH,
                labels::OS,
                labels::WINDOWS_BUILD,
            ]),
            restricted_domains: strings(&[labels::GROUP]),
            resources: strings(&["cpu", "memory", "ephemeral-storage", "pods"]),
            values: BTreeMap::from([(labels::CAPACITY_TYPE.to_owned(), capacity_types)]),
            normalized_keys: normalized
                .map(|(from, to)| (from.to_owned(), to.to_owned()))
                .into(),
            normalized_values: BTreeMap::new(),
        }
    }
}

impl WellKnown {
    /// Adds a well-known label: a pod may require it without a NodePool that defines it.
    pub fn with_label(mut self, key: &str) -> Self {
        self.labels.insert(key.to_owned());
        self
    }

    /// Adds a domain that users may not use, with its subdomains, except for well-known labels.
    pub fn with_restricted_domain(mut self, domain: &str) -> Self {
        self.restricted_domains.insert(domain.to_owned());
        self
    }

    /// Adds a resource whose capacity the provider reports.
    pub fn with_resource(mut self, resource: &str) -> Self {
        self.resources.insert(resource.to_owned());
        self
    }

    /// Declares all values of a label.
    pub fn with_values<'a>(mut self, key: &str, values: impl IntoIterator<Item = &'a str>) -> Self {
        self.values
            .entry(key.to_owned())
            .or_default()
            .extend(values.into_iter().map(str::to_owned));
        self
    }

    /// Normalizes one label key to another.
    pub fn with_normalized_key(mut self, from: &str, to: &str) -> Self {
        self.normalized_keys.insert(from.to_owned(), to.to_owned());
        self
    }

    /// Normalizes one value of a label to another. The key is the normalized one.
    pub fn with_normalized_value(mut self, key: &str, from: &str, to: &str) -> Self {
        self.normalized_values
            .entry(key.to_owned())
            .or_default()
            .insert(from.to_owned(), to.to_owned());
        self
    }

    /// Returns whether the label is well known.
    pub fn contains(&self, key: &str) -> bool {
        self.labels.contains(key)
    }

    /// Returns the well-known labels in alphabetical order.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(String::as_str)
    }

    /// Returns whether Karpenter or the provider reports the capacity of the resource.
    pub fn is_resource(&self, resource: &str) -> bool {
        self.resources.contains(resource)
    }

    /// Returns all values of a label, if they are declared.
    pub fn values_of(&self, key: &str) -> Option<&BTreeSet<String>> {
        self.values.get(key)
    }

    /// Returns the normalized key of a label.
    pub fn normalize_key<'a>(&'a self, key: &'a str) -> &'a str {
        self.normalized_keys.get(key).map_or(key, String::as_str)
    }

    /// Returns the normalized value of a label. The key is the normalized one.
    pub fn normalize_value<'a>(&'a self, key: &str, value: &'a str) -> &'a str {
        self.normalized_values
            .get(key)
            .and_then(|values| values.get(value))
            .map_or(value, String::as_str)
    }

    /// Returns whether users may not use the label: it is not well known, and either in a restricted domain or the host name.
    pub fn is_restricted(&self, key: &str) -> bool {
        if self.contains(key) || key == labels::PROVISIONER_NAME {
            return false;
        }
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let within = |restricted: &String| {
            domain
                .strip_suffix(restricted.as_str())
                .is_some_and(|sub| sub.is_empty() || sub.ends_with('.'))
        };
        key == labels::HOSTNAME || self.restricted_domains.iter().any(within)
    }

    /// Returns an error if users may not use the label.
    pub fn check(&self, key: &str) -> Result<(), RestrictedLabel> {
        if !self.is_restricted(key) {
            return Ok(());
        }
        let texts = |set: &BTreeSet<String>| set.iter().cloned().collect();
        Err(RestrictedLabel {
            key: key.to_owned(),
            well_known: texts(&self.labels),
            domains: texts(&self.restricted_domains),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-095
    #[test]
    fn a_restricted_domain_covers_its_subdomains_only() {
        let known = WellKnown::default();
        for (key, expected) in [
            ("karpenter.sh/x", true),
            ("a.karpenter.sh/x", true),
            ("notkarpenter.sh/x", false),
            // A key without a slash has no domain.
            ("foo.karpenter.sh", false),
            ("karpenter.sh/capacity-type", false),
            ("kubernetes.io/hostname", true),
        ] {
            assert_eq!(known.is_restricted(key), expected, "{key}");
        }
    }

    /// Nodes of converted NodePools have the label, and pods select by it; no other node matches such a pod.
    #[test]
    fn the_label_provisioner_name_may_be_used_and_is_not_well_known() {
        let known = WellKnown::default();
        assert!(!known.is_restricted(labels::PROVISIONER_NAME));
        assert!(!known.contains(labels::PROVISIONER_NAME));
    }

    /// Conformance: API-094
    #[test]
    fn karpenter_has_eight_well_known_labels() {
        let known: Vec<String> = WellKnown::default().labels().map(str::to_owned).collect();
        assert_eq!(
            known,
            [
                "karpenter.sh/capacity-type",
                "karpenter.sh/nodepool",
                "kubernetes.io/arch",
                "kubernetes.io/os",
                "node.kubernetes.io/instance-type",
                "node.kubernetes.io/windows-build",
                "topology.kubernetes.io/region",
                "topology.kubernetes.io/zone",
            ]
        );
    }

    /// Conformance: API-096
    #[test]
    fn other_kubernetes_domains_are_open() {
        let known = WellKnown::default();
        for key in [
            "node.kubernetes.io/x",
            "kops.k8s.io/x",
            "kubernetes.io/x",
            "node-restriction.kubernetes.io/x",
        ] {
            assert!(!known.is_restricted(key), "{key}");
        }
    }

    /// Conformance: API-097
    #[test]
    fn a_provider_adds_labels_domains_and_values() {
        let known = WellKnown::default()
            .with_restricted_domain("karpenter.kwok.sh")
            .with_label("karpenter.kwok.sh/instance-size")
            .with_values("tier", ["gold"])
            .with_resource("nvidia.com/gpu");
        assert!(known.check("karpenter.kwok.sh/instance-size").is_ok());
        let error = known.check("karpenter.kwok.sh/other");
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("label `karpenter.kwok.sh/other` is restricted; use a well-known label (karpenter.kwok.sh/instance-size, "), "{error}");
        assert!(known.values_of("tier").unwrap().contains("gold"));
        assert!(known.is_resource("nvidia.com/gpu") && known.is_resource("pods"));
        assert!(!known.is_resource("nodes"));
    }

    /// Conformance: API-098
    #[test]
    fn legacy_keys_and_a_provider_s_values_are_normalized() {
        let known = WellKnown::default()
            .with_normalized_key("topology.ebs.csi.aws.com/zone", labels::ZONE)
            .with_normalized_value(labels::ARCH, "x86_64", "amd64");
        for (legacy, current) in [
            ("failure-domain.beta.kubernetes.io/zone", labels::ZONE),
            ("failure-domain.beta.kubernetes.io/region", labels::REGION),
            ("beta.kubernetes.io/arch", labels::ARCH),
            ("beta.kubernetes.io/os", labels::OS),
            ("beta.kubernetes.io/instance-type", labels::INSTANCE_TYPE),
            ("topology.ebs.csi.aws.com/zone", labels::ZONE),
            ("example.com/zone", "example.com/zone"),
        ] {
            assert_eq!(known.normalize_key(legacy), current);
        }
        assert_eq!(known.normalize_value(labels::ARCH, "x86_64"), "amd64");
        assert_eq!(known.normalize_value(labels::OS, "x86_64"), "x86_64");
    }
}
