//! What a MachineDeployment offers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use karpenter_api::labels;
use karpenter_core::resources::Resources;
use kube::ResourceExt;
use kube::core::{DynamicObject, SelectorExt};
use serde_json::Value;

use crate::machine::text;
use crate::node_class::{ClusterAPINodeClassSpec, GROUP};

/// MachineDeployments have this label, with the empty value, if Karpenter launches from them.
pub const MEMBER_LABEL: &str = "node.cluster.x-k8s.io/karpenter-member";
/// The annotation of a MachineDeployment with its price per hour.
pub const PRICE_ANNOTATION: &str = "karpenter.cluster.x-k8s.io/price";
/// The annotation of a MachineDeployment with the price per hour that infrastructure providers write.
const CURRENT_PRICE_ANNOTATION: &str = "cluster.x-k8s.io/machine-current-price";
/// The annotation of a MachineDeployment with the most Machines that Karpenter may launch from it.
pub const MAX_SIZE_ANNOTATION: &str = "karpenter.cluster.x-k8s.io/max-size";
const AUTOSCALER_PREFIX: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-";
const CAPACITY_PREFIX: &str = "capacity.cluster-autoscaler.kubernetes.io/";
/// Template labels of these domains, and of those below, are labels of Nodes.
const NODE_DOMAINS: [&str; 3] = [
    "node-role.kubernetes.io",
    "node-restriction.kubernetes.io",
    "node.cluster.x-k8s.io",
];
const DEFAULT_PODS: i64 = 110;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TemplateRef {
    pub group: String,
    /// Kind, such as `DevMachineTemplate`.
    pub kind: String,
    /// Name; the namespace is that of the Cluster.
    pub name: String,
}

impl TemplateRef {
    /// Reads a reference of either version: with an API group (v1beta2) or an API version (v1beta1).
    pub fn read(reference: &Value) -> Option<Self> {
        let group = text(reference, "/apiGroup").or_else(|| {
            text(reference, "/apiVersion")
                .map(|version| version.split('/').next().unwrap_or(version))
        })?;
        Some(Self {
            group: group.to_owned(),
            kind: text(reference, "/kind")?.to_owned(),
            name: text(reference, "/name")?.to_owned(),
        })
    }
}

/// What is launched from a MachineDeployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub deployment: String,
    pub instance_type: String,
    pub zone: String,
    pub capacity_type: String,
    /// Labels of its Nodes, beside instance type, zone and capacity type: architecture and operating system among them.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub capacity: Resources,
    /// The price per hour, if it is known.
    pub price: Option<f64>,
    /// The most Machines of Karpenter.
    pub max_size: Option<usize>,
    /// Whether Cluster API does not reconcile it.
    pub paused: bool,
}

/// Returns whether Karpenter launches from a MachineDeployment, for a class with this selector.
#[must_use]
pub fn is_selected(
    deployment: &DynamicObject,
    cluster: &str,
    spec: &ClusterAPINodeClassSpec,
) -> bool {
    let own = deployment.labels();
    let matches = spec
        .scalable_resource_selector
        .as_ref()
        .is_none_or(|selector| {
            kube::core::Selector::try_from(selector.clone())
                .is_ok_and(|selector| selector.matches(own))
        });
    own.get(MEMBER_LABEL).is_some_and(String::is_empty)
        && text(&deployment.data, "/spec/clusterName") == Some(cluster)
        && deployment.metadata.deletion_timestamp.is_none()
        && matches
}

/// Returns a text that changes if and only if Machines launched before have drifted. It is equal in all versions of Cluster API.
#[must_use]
pub fn fingerprint(deployment: &DynamicObject) -> String {
    let spec = deployment
        .data
        .pointer("/spec/template/spec")
        .unwrap_or(&Value::Null);
    let name = |at: &str| {
        let template = spec.pointer(at).and_then(TemplateRef::read);
        template.map_or_else(String::new, |t| format!("{}/{}", t.kind, t.name))
    };
    let plain = |at: &str| text(spec, at).unwrap_or_default().to_owned();
    let taints = spec
        .pointer("/taints")
        .map(Value::to_string)
        .unwrap_or_default();
    [
        plain("/version"),
        plain("/failureDomain"),
        name("/infrastructureRef"),
        name("/bootstrap/configRef"),
        plain("/bootstrap/dataSecretName"),
        taints,
    ]
    .join("|")
}

/// Returns what is launched from a MachineDeployment; `template` is its infrastructure template, if it is known.
///
/// # Errors
/// Why nothing can be launched from it, and what to change.
pub fn shape(
    deployment: &DynamicObject,
    template: Option<&DynamicObject>,
    spec: &ClusterAPINodeClassSpec,
) -> Result<Shape, String> {
    let annotations = deployment.annotations();
    if let Some(key) = annotations
        .keys()
        .find(|key| key.starts_with(AUTOSCALER_PREFIX))
    {
        return Err(format!(
            "annotation `{key}` lets Cluster Autoscaler scale it: remove it, and use `{MAX_SIZE_ANNOTATION}` for a limit"
        ));
    }
    let given = |name: &str| {
        annotations
            .get(&format!("{CAPACITY_PREFIX}{name}"))
            .map(String::as_str)
    };
    let mut node_labels = node_labels(deployment, template, given("labels").unwrap_or_default());
    let capacity = capacity(template, given)?;
    let mut taken = |key: &str| node_labels.remove(key);
    let name = deployment.name_any();
    let instance_type = taken(labels::INSTANCE_TYPE).unwrap_or_else(|| name.clone());
    let failure_domain = text(&deployment.data, "/spec/template/spec/failureDomain");
    let zone = taken(labels::ZONE).or_else(|| failure_domain.map(str::to_owned)).ok_or_else(|| {
        format!(
            "it has no zone: set spec.template.spec.failureDomain, or `{}` in annotation `{CAPACITY_PREFIX}labels`",
            labels::ZONE
        )
    })?;
    let capacity_type =
        taken(labels::CAPACITY_TYPE).unwrap_or_else(|| labels::CAPACITY_TYPE_ON_DEMAND.to_owned());
    let max_size = annotations
        .get(MAX_SIZE_ANNOTATION)
        .map(|text| text.parse());
    let max_size = max_size.transpose().map_err(|_| {
        format!("invalid annotation `{MAX_SIZE_ANNOTATION}`: it must be a whole number")
    })?;
    let taints = deployment
        .data
        .pointer("/spec/template/spec/taints")
        .cloned();
    let taints = taints.map(serde_json::from_value).transpose();
    Ok(Shape {
        price: price(annotations, spec, &instance_type, &zone)?,
        deployment: name,
        instance_type,
        zone,
        capacity_type,
        labels: node_labels,
        taints: taints
            .map_err(|error| format!("invalid spec.template.spec.taints: {error}"))?
            .unwrap_or_default(),
        capacity,
        max_size,
        paused: annotations.contains_key("cluster.x-k8s.io/paused")
            || deployment.data.pointer("/spec/paused") == Some(&Value::Bool(true)),
    })
}

/// Returns the labels of Nodes: those of the template that Cluster API copies, and those of the annotation, which win.
fn node_labels(
    deployment: &DynamicObject,
    template: Option<&DynamicObject>,
    annotation: &str,
) -> BTreeMap<String, String> {
    let info = |at: &str| template.and_then(|template| text(&template.data, at));
    let arch = info("/status/nodeInfo/architecture").unwrap_or("amd64");
    let os = info("/status/nodeInfo/operatingSystem").unwrap_or("linux");
    let mut all: BTreeMap<String, String> = [(labels::ARCH, arch), (labels::OS, os)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let of_template = deployment.data.pointer("/spec/template/metadata/labels");
    for (key, value) in of_template.and_then(Value::as_object).into_iter().flatten() {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let copied = NODE_DOMAINS.iter().any(|own| {
            domain == *own
                || domain
                    .strip_suffix(own)
                    .is_some_and(|rest| rest.ends_with('.'))
        });
        if let (true, Some(value)) = (copied, value.as_str()) {
            all.insert(key.clone(), value.to_owned());
        }
    }
    let pairs = annotation
        .split(',')
        .filter_map(|pair| pair.split_once('='));
    all.extend(pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())));
    all
}

/// Returns the capacity: of the annotations, else of the infrastructure template's status, each resource by itself.
fn capacity<'a>(
    template: Option<&DynamicObject>,
    given: impl Fn(&str) -> Option<&'a str>,
) -> Result<Resources, String> {
    let of_template = template.and_then(|template| template.data.pointer("/status/capacity"));
    let of_template = of_template.cloned().map(serde_json::from_value).transpose();
    let mut all: BTreeMap<String, Quantity> = of_template
        .map_err(|error| {
            format!("invalid status.capacity of the infrastructure template: {error}")
        })?
        .unwrap_or_default();
    let gpu = given("gpu-type").filter(|name| !name.is_empty());
    let annotations = [
        ("cpu", Some("cpu")),
        ("memory", Some("memory")),
        ("ephemeral-disk", Some("ephemeral-storage")),
        ("maxPods", Some("pods")),
        ("gpu-count", gpu),
    ];
    for (annotation, resource) in annotations {
        let Some(value) = given(annotation).filter(|value| !value.is_empty()) else {
            continue;
        };
        let resource = resource.ok_or_else(|| {
            format!("annotation `{CAPACITY_PREFIX}gpu-count` needs `{CAPACITY_PREFIX}gpu-type`")
        })?;
        let quantity = Quantity(value.to_owned());
        Resources::allocatable_from(&[(resource.to_owned(), quantity.clone())].into()).map_err(
            |error| format!("invalid annotation `{CAPACITY_PREFIX}{annotation}`: {error}"),
        )?;
        all.insert(resource.to_owned(), quantity);
    }
    let mut capacity = Resources::allocatable_from(&all).map_err(|error| {
        format!("invalid status.capacity of the infrastructure template: {error}")
    })?;
    for required in ["cpu", "memory"] {
        if capacity.get(required) <= 0 {
            return Err(format!(
                "its {required} is not known: set annotation `{CAPACITY_PREFIX}{required}`"
            ));
        }
    }
    if !capacity.contains("pods") {
        capacity.set("pods", DEFAULT_PODS);
    }
    Ok(capacity)
}

fn price(
    annotations: &BTreeMap<String, String>,
    spec: &ClusterAPINodeClassSpec,
    instance_type: &str,
    zone: &str,
) -> Result<Option<f64>, String> {
    let fits = |entry: &&crate::node_class::PriceEntry| {
        entry.instance_type == instance_type && entry.zone.as_ref().is_none_or(|own| own == zone)
    };
    let keys = [PRICE_ANNOTATION, CURRENT_PRICE_ANNOTATION];
    let annotated = keys
        .iter()
        .find_map(|key| Some((*key, annotations.get(*key)?)));
    let given = annotated.or_else(|| {
        let entry = spec.prices.iter().find(fits)?;
        Some(("spec.prices of the node class", &entry.price))
    });
    let Some((source, text)) = given else {
        return Ok(None);
    };
    let price = text
        .parse()
        .ok()
        .filter(|price: &f64| price.is_finite() && *price >= 0.0);
    price
        .map(Some)
        .ok_or_else(|| format!("invalid price `{text}` in {source}: it must be a decimal number"))
}

/// Returns the label key, restricted to the provider, that Karpenter in Go has for this property.
#[must_use]
pub fn own_label(name: &str) -> String {
    format!("{GROUP}/{name}")
}
