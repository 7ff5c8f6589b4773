//! Where the names of a line are, and what they name.

use karpenter_api::labels;
use karpenter_core::cluster::ClusterConfig;
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// An object, or the value of a label.
    Name,
    /// The key of a label or taint.
    Key,
    /// A NodePool, a NodeClass, a zone or a region: several teams know it.
    Shared,
}

/// Returns the pseudonym of a name; `None` leaves it.
type Rename<'a> = dyn FnMut(Role, &str) -> Option<String> + 'a;

/// Fields whose texts are names of objects.
const NAMES: [&str; 20] = [
    "name",
    "namespace",
    "namespaces",
    "uid",
    "node",
    "nodeName",
    "nominatedNode",
    "schedulerName",
    "volume",
    "volumeName",
    "storageClass",
    "claim",
    "Claim",
    "template",
    "providerID",
    "imageID",
    "resourceClaimName",
    "inFlight",
    "recentReplacements",
    "lastPodEventNode",
];

/// Fields whose texts are names of NodePools.
const POOLS: [&str; 3] = ["pool", "unseenPools", "coolingDownPools"];

/// Where the name of a NodePool is in its line.
const NAME_OF_POOL: &str = "/NodePools/metadata/name";

/// Fields with free text.
const TEXTS: [&str; 3] = ["problem", "error", "message"];

/// Renames what a line names.
pub(super) struct Walk<'a, 'r> {
    config: &'a ClusterConfig,
    rename: &'a mut Rename<'r>,
}

impl<'a, 'r> Walk<'a, 'r> {
    pub(super) fn new(config: &'a ClusterConfig, rename: &'a mut Rename<'r>) -> Self {
        Self { config, rename }
    }

    pub(super) fn line(&mut self, line: &mut Value) {
        let Value::Object(line) = line else { return };
        let section = line.get("s").and_then(Value::as_str).map(str::to_owned);
        let Some(value) = line.get_mut("v") else {
            return;
        };
        match section.as_deref() {
            // Names of resources.
            Some("limits") => {}
            // The name of an instance type is the provider's, and so are the names of its devices.
            Some("types") => {
                for field in ["requirements", "offerings"] {
                    if let Some(value) = value.get_mut("v").and_then(|v| v.get_mut(field)) {
                        self.value(value);
                    }
                }
            }
            _ => match value.pointer_mut(NAME_OF_POOL) {
                Some(name) => {
                    self.text(Role::Shared, name);
                    let kept = name.take();
                    self.value(value);
                    if let Some(name) = value.pointer_mut(NAME_OF_POOL) {
                        *name = kept;
                    }
                }
                None => self.value(value),
            },
        }
    }

    fn value(&mut self, value: &mut Value) {
        match value {
            Value::Array(all) => all.iter_mut().for_each(|value| self.value(value)),
            Value::Object(object) => self.object(object),
            _ => {}
        }
    }

    fn object(&mut self, object: &mut Map<String, Value>) {
        if object.get("key").is_some_and(Value::is_string) {
            return self.expression(object);
        }
        let is_pool = object.get("kind").is_some_and(|kind| kind == "NodePool");
        for (field, value) in object.iter_mut() {
            match field.as_str() {
                // That of a ResourceSlice or a volume has terms, not labels.
                "nodeSelector" if value.get("nodeSelectorTerms").is_some_and(Value::is_array) => {
                    self.value(value);
                }
                "labels" | "matchLabels" | "nodeSelector" | "Labels" if value.is_object() => {
                    self.labels(value);
                }
                "annotations" => self.annotations(value),
                "topologyKey" => self.key_text(value),
                "nodeClassRef" => {
                    if let Some(name) = value.get_mut("name") {
                        self.text(Role::Shared, name);
                    }
                }
                // By node; those of the settings are a list of pods.
                "bufferPods" if value.is_object() => self.keys(Role::Name, value),
                "staticHeadroom" => self.keys(Role::Shared, value),
                "name" | "uid" if is_pool => self.texts(Role::Shared, value),
                field if NAMES.contains(&field) => self.texts(Role::Name, value),
                field if POOLS.contains(&field) => self.texts(Role::Shared, value),
                field if TEXTS.contains(&field) && value.is_string() => {
                    *value = Value::String("redacted".to_owned());
                }
                _ => self.value(value),
            }
        }
    }

    /// Renames a text or the texts of a list; goes on in an object.
    fn texts(&mut self, role: Role, value: &mut Value) {
        match value {
            Value::String(_) => self.text(role, value),
            Value::Array(all) => all.iter_mut().for_each(|value| self.texts(role, value)),
            other => self.value(other),
        }
    }

    fn text(&mut self, role: Role, value: &mut Value) {
        if let Value::String(text) = value
            && let Some(pseudonym) = self.renamed(role, text)
        {
            *text = pseudonym;
        }
    }

    fn renamed(&mut self, role: Role, text: &str) -> Option<String> {
        let stays = text.is_empty()
            || text == "true"
            || text == "false"
            || (text.parse::<i64>().is_ok() && !is_account(text))
            || (role == Role::Key && self.is_known(text));
        if stays {
            None
        } else {
            (self.rename)(role, text)
        }
    }

    fn key_text(&mut self, value: &mut Value) {
        self.text(Role::Key, value);
    }

    /// Renames the keys of a map.
    fn keys(&mut self, role: Role, value: &mut Value) {
        if let Value::Object(map) = value {
            let renamed = std::mem::take(map).into_iter().map(|(key, value)| {
                let pseudonym = self.renamed(role, &key);
                (pseudonym.unwrap_or(key), value)
            });
            *map = renamed.collect();
        }
    }

    fn labels(&mut self, value: &mut Value) {
        if let Value::Object(map) = value {
            let renamed = std::mem::take(map).into_iter().map(|(key, mut value)| {
                self.of_label(&key, &mut value);
                let pseudonym = self.renamed(Role::Key, &key);
                (pseudonym.unwrap_or(key), value)
            });
            *map = renamed.collect();
        }
    }

    /// Renames annotations that are not Karpenter's, whose values have no names but in a pause.
    fn annotations(&mut self, value: &mut Value) {
        let Value::Object(map) = value else { return };
        let renamed = std::mem::take(map).into_iter().map(|(key, mut value)| {
            match &mut value {
                Value::String(text) if key == "operations.karpenter.sh/paused" => {
                    let parts = text.split(';').filter(|part| !part.starts_with("by="));
                    *text = parts.collect::<Vec<_>>().join(";");
                }
                value if !self.is_of_karpenter(&key) => self.text(Role::Name, value),
                _ => {}
            }
            let pseudonym = self.renamed(Role::Key, &key);
            (pseudonym.unwrap_or(key), value)
        });
        *map = renamed.collect();
    }

    /// Renames the values of a label by its key.
    fn of_label(&mut self, key: &str, value: &mut Value) {
        let is_class = |kind: &karpenter_core::provider::NodeClassKind| {
            labels::node_class(&kind.group, &kind.kind) == key
        };
        let role = match key {
            labels::NODE_POOL
            | labels::ZONE
            | labels::REGION
            | "topology.k8s.aws/zone-id"
            | "failure-domain.beta.kubernetes.io/zone"
            | "failure-domain.beta.kubernetes.io/region" => Role::Shared,
            labels::HOSTNAME => Role::Name,
            _ if self.config.node_classes.iter().any(is_class) => Role::Shared,
            _ if self.config.well_known.contains(key)
                || self.is_of_karpenter(key)
                || key.starts_with("beta.kubernetes.io/") =>
            {
                return;
            }
            _ => Role::Name,
        };
        self.texts(role, value);
    }

    /// Renames a requirement, a selector's expression, a toleration or a taint.
    fn expression(&mut self, object: &mut Map<String, Value>) {
        let key = object.get("key").and_then(Value::as_str);
        let key = key.unwrap_or_default().to_owned();
        let compares = object.get("operator").is_some_and(|operator| {
            ["Gt", "Lt", "Gte", "Lte"].contains(&operator.as_str().unwrap_or_default())
        });
        for field in ["values", "value", "in", "notIn"] {
            if let Some(value) = object.get_mut(field).filter(|_| !compares) {
                self.of_label(&key, value);
            }
        }
        if let Some(value) = object.get_mut("key") {
            self.key_text(value);
        }
    }

    /// Reports whether a key is one of Kubernetes, Karpenter or the provider.
    fn is_known(&self, key: &str) -> bool {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        self.config.well_known.contains(key)
            || is_within(domain, "kubernetes.io")
            || is_within(domain, "k8s.io")
            || self.is_of_karpenter(key)
    }

    /// Reports whether the domain of a key is Karpenter's or that of the provider's NodeClasses.
    fn is_of_karpenter(&self, key: &str) -> bool {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let groups = self.config.node_classes.iter();
        let mut groups = groups.map(|kind| kind.group.as_str()).chain([GROUP]);
        groups.any(|group| is_within(domain, group))
    }
}

const GROUP: &str = "karpenter.sh";

/// Reports whether a domain is `suffix` or a subdomain of it.
fn is_within(domain: &str, suffix: &str) -> bool {
    let rest = domain.strip_suffix(suffix);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Reports whether a number has the form of an AWS account id.
fn is_account(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit())
}
