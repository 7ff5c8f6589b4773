//! CustomResourceDefinitions, generated from the types of this crate.
//!
//! 1. schemars derives a JSON schema from the Rust type: names, nesting, documentation, bounds and patterns.
//! 2. [`normalize`] turns it into a structural schema as `controller-gen` writes it: no `null`, no titles, integer bounds,
//!    defaults only where the CRD has one (`x-default`), fields that serde defaults and the CRD requires (`x-required`).
//! 3. The rules on label keys are added; a provider adds its own label domains to them.
//! 4. Names, printer columns and subresources complete the definition.
//!
//! The result is [`serde_json::Value`], because the typed structure writes every bound as a floating-point number.
//!
//! `kube-derive` does not take the place of this module: tried on NodeOverlay, its definition differs in 35 lines (of 182) even
//! without the rules on label keys: no `required` for a field that serde defaults, no types in the alternatives of a quantity, bounds
//! as floating-point numbers, `nullable`, `title`, and nothing about `apiVersion`, `kind` and `metadata`.

pub mod fields;
pub mod rules;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

pub use rules::RestrictedDomain;

use crate::autoscaling::{CapacityBuffer, CapacityBufferSpec, CapacityBufferStatus};
use crate::labels;
use crate::v1::{
    NodeClaim, NodeClaimSpec, NodeClaimStatus, NodePool, NodePoolSpec, NodePoolStatus,
};
use crate::v1alpha1::{NodeOverlay, NodeOverlaySpec, NodeOverlayStatus};

/// The inputs of a CustomResourceDefinition. Providers use it for their NodeClasses, too.
#[derive(Clone, Debug)]
pub struct Definition {
    /// API group.
    pub group: &'static str,
    /// API version; the only one, served and stored.
    pub version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Plural name.
    pub plural: &'static str,
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// Short names for kubectl.
    pub short_names: &'static [&'static str],
    /// Categories for `kubectl get <category>`.
    pub categories: &'static [&'static str],
    /// The description of the kind in `kubectl explain`.
    pub description: &'static str,
    /// The printer columns of `kubectl get`.
    pub columns: Vec<Column>,
    /// The scale subresource: the paths of desired and actual replicas.
    pub scale: Option<(&'static str, &'static str)>,
}

/// A column of `kubectl get`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// OpenAPI type.
    pub kind: &'static str,
    /// The JSON path of the value.
    pub path: &'static str,
    /// Whether the column is shown only with `-o wide`.
    pub wide: bool,
    /// The description of the value; empty for none.
    pub description: &'static str,
}

impl Column {
    /// Creates a column that is always shown.
    pub const fn new(name: &'static str, kind: &'static str, path: &'static str) -> Self {
        Self {
            name,
            kind,
            path,
            wide: false,
            description: "",
        }
    }

    /// Creates a column that is shown only with `-o wide`.
    pub const fn wide(name: &'static str, kind: &'static str, path: &'static str) -> Self {
        Self {
            wide: true,
            ..Self::new(name, kind, path)
        }
    }

    const fn described(self, description: &'static str) -> Self {
        Self {
            description,
            ..self
        }
    }
}

const READY: Column = Column::new(
    "Ready",
    "string",
    r#".status.conditions[?(@.type=="Ready")].status"#,
);
const AGE: Column = Column::new("Age", "date", ".metadata.creationTimestamp");

impl Definition {
    /// Returns the CustomResourceDefinition with the schemas of `Spec` and `Status`.
    pub fn build<Spec: JsonSchema, Status: JsonSchema>(&self) -> Value {
        let schema = json!({
            "description": self.description,
            "type": "object",
            "required": ["spec"],
            "properties": {
                "apiVersion": { "type": "string", "description": "The versioned schema of this representation of the object." },
                "kind": { "type": "string", "description": "The kind of resource this object represents." },
                "metadata": { "type": "object" },
                "spec": schema_of::<Spec>("The desired state."),
                "status": schema_of::<Status>("The observed state."),
            },
        });
        let mut subresources = json!({ "status": {} });
        if let Some((spec, status)) = self.scale {
            subresources["scale"] =
                json!({ "specReplicasPath": spec, "statusReplicasPath": status });
        }
        let mut names = json!({
            "kind": self.kind,
            "listKind": format!("{}List", self.kind),
            "plural": self.plural,
            "singular": self.kind.to_ascii_lowercase(),
            "categories": self.categories,
        });
        if !self.short_names.is_empty() {
            names["shortNames"] = json!(self.short_names);
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{}.{}", self.plural, self.group) },
            "spec": {
                "group": self.group,
                "names": names,
                "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
                "versions": [{
                    "name": self.version,
                    "served": true,
                    "storage": true,
                    "additionalPrinterColumns": self.columns.iter().map(column).collect::<Vec<_>>(),
                    "schema": { "openAPIV3Schema": schema },
                    "subresources": subresources,
                }],
            },
        })
    }
}

fn column(column: &Column) -> Value {
    let mut value = json!({ "name": column.name, "type": column.kind, "jsonPath": column.path });
    if column.wide {
        value["priority"] = 1.into();
    }
    if !column.description.is_empty() {
        value["description"] = column.description.into();
    }
    value
}

/// Returns the NodePool definition. `provider` adds the label domains that a provider reserves.
pub fn node_pool(provider: &[RestrictedDomain]) -> Value {
    let mut definition = Definition {
        group: NodePool::GROUP,
        version: NodePool::VERSION,
        kind: NodePool::KIND,
        plural: NodePool::PLURAL,
        namespaced: false,
        short_names: &[],
        categories: &["karpenter"],
        description: "NodePool defines a set of nodes that Karpenter may launch, and how it may disrupt them.",
        columns: vec![
            Column::new("NodeClass", "string", ".spec.template.spec.nodeClassRef.name"),
            Column::new("Nodes", "string", ".status.nodes"),
            READY,
            AGE,
            Column::wide("Weight", "integer", ".spec.weight"),
            Column::wide("CPU", "string", ".status.resources.cpu"),
            Column::wide("Memory", "string", ".status.resources.memory"),
        ],
        scale: Some((".spec.replicas", ".status.nodes")),
    }
    .build::<NodePoolSpec, NodePoolStatus>();
    let domains = with_karpenter(provider);
    let forbidden = [labels::NODE_POOL, labels::HOSTNAME];
    let template = &mut schema_mut(&mut definition)["properties"]["spec"]["properties"]["template"]
        ["properties"];
    template["metadata"]["properties"]["labels"]["x-kubernetes-validations"] =
        rules::label_map(&domains, &forbidden);
    requirement_key_mut(&mut template["spec"])["x-kubernetes-validations"] =
        rules::label_key(&domains, &forbidden);
    definition
}

/// Returns the NodeClaim definition. `provider` adds the label domains that a provider reserves.
pub fn node_claim(provider: &[RestrictedDomain]) -> Value {
    let mut definition = Definition {
        group: NodeClaim::GROUP,
        version: NodeClaim::VERSION,
        kind: NodeClaim::KIND,
        plural: NodeClaim::PLURAL,
        namespaced: false,
        short_names: &[],
        categories: &["karpenter"],
        description: "NodeClaim is the request for one node, with its status.",
        columns: vec![
            Column::new(
                "Type",
                "string",
                r".metadata.labels.node\.kubernetes\.io/instance-type",
            ),
            Column::new(
                "Capacity",
                "string",
                r".metadata.labels.karpenter\.sh/capacity-type",
            ),
            Column::new(
                "Zone",
                "string",
                r".metadata.labels.topology\.kubernetes\.io/zone",
            ),
            Column::new("Node", "string", ".status.nodeName"),
            READY,
            AGE,
            Column::wide("ImageID", "string", ".status.imageID"),
            Column::wide("ID", "string", ".status.providerID"),
            Column::wide(
                "NodePool",
                "string",
                r".metadata.labels.karpenter\.sh/nodepool",
            ),
            Column::wide("NodeClass", "string", ".spec.nodeClassRef.name"),
            Column::wide(
                "Drifted",
                "string",
                r#".status.conditions[?(@.type=="Drifted")].status"#,
            ),
        ],
        scale: None,
    }
    .build::<NodeClaimSpec, NodeClaimStatus>();
    let spec = &mut schema_mut(&mut definition)["properties"]["spec"];
    requirement_key_mut(spec)["x-kubernetes-validations"] =
        rules::label_key(&with_karpenter(provider), &[labels::HOSTNAME]);
    definition
}

/// Returns the NodeOverlay definition. `provider` adds the label domains that a provider reserves.
pub fn node_overlay(provider: &[RestrictedDomain]) -> Value {
    let mut definition = Definition {
        group: NodeOverlay::GROUP,
        version: NodeOverlay::VERSION,
        kind: NodeOverlay::KIND,
        plural: NodeOverlay::PLURAL,
        namespaced: false,
        short_names: &["overlays"],
        categories: &["karpenter"],
        description: "NodeOverlay changes the price or adds to the capacity of the instance types it matches.",
        columns: vec![READY, AGE, Column::wide("Weight", "integer", ".spec.weight")],
        scale: None,
    }
    .build::<NodeOverlaySpec, NodeOverlayStatus>();
    let spec = &mut schema_mut(&mut definition)["properties"]["spec"];
    requirement_key_mut(spec)["x-kubernetes-validations"] =
        rules::label_key(&with_karpenter(provider), &[labels::HOSTNAME]);
    definition
}

/// Returns the CapacityBuffer definition.
pub fn capacity_buffer() -> Value {
    Definition {
        group: CapacityBuffer::GROUP,
        version: CapacityBuffer::VERSION,
        kind: CapacityBuffer::KIND,
        plural: CapacityBuffer::PLURAL,
        namespaced: true,
        short_names: &["cb"],
        categories: &["autoscaling"],
        description: "CapacityBuffer keeps spare capacity for pods of a template or of a workload, in chunks the size of one pod.",
        columns: vec![
            Column::new("Strategy", "string", ".spec.provisioningStrategy").described("The provisioning strategy."),
            Column::new("PodTemplate", "string", ".status.podTemplateRef.name").described("The PodTemplate in use."),
            Column::new("Replicas", "integer", ".status.replicas").described("The number of chunks."),
            Column::new("ConditionsType", "string", ".status.conditions[*].type").described("The types of the conditions."),
            Column::new("ConditionsStatus", "string", ".status.conditions[*].status").described("The statuses of the conditions."),
            Column::new("ConditionsReason", "string", ".status.conditions[*].reason").described("The reasons of the conditions."),
            AGE.described("The age of the buffer."),
        ],
        scale: None,
    }
    .build::<CapacityBufferSpec, CapacityBufferStatus>()
}

/// Returns every definition of this crate with its file name. `overlays` are the provider's label domains in NodeOverlays,
/// where fewer labels are allowed.
pub fn all(
    provider: &[RestrictedDomain],
    overlays: &[RestrictedDomain],
) -> Vec<(&'static str, Value)> {
    vec![
        ("karpenter.sh_nodepools.yaml", node_pool(provider)),
        ("karpenter.sh_nodeclaims.yaml", node_claim(provider)),
        ("karpenter.sh_nodeoverlays.yaml", node_overlay(overlays)),
        (
            "autoscaling.x-k8s.io_capacitybuffers.yaml",
            capacity_buffer(),
        ),
    ]
}

fn with_karpenter(provider: &[RestrictedDomain]) -> Vec<RestrictedDomain> {
    std::iter::once(RestrictedDomain::karpenter())
        .chain(provider.iter().cloned())
        .collect()
}

fn schema_mut(definition: &mut Value) -> &mut Value {
    &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

fn requirement_key_mut(spec: &mut Value) -> &mut Value {
    &mut spec["properties"]["requirements"]["items"]["properties"]["key"]
}

/// Returns the structural schema of a type.
pub fn schema_of<T: JsonSchema>(description: &str) -> Value {
    let generator = SchemaSettings::draft07()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    normalize(&mut schema);
    schema["description"] = description.into();
    schema
}

/// Converts a schema of schemars into a structural schema of a CustomResourceDefinition.
fn normalize(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    drop_null(object);
    for key in ["title", "$schema", "nullable", "default"] {
        object.remove(key);
    }
    if let Some(default) = object.remove("x-default") {
        object.insert("default".into(), default);
    }
    for bound in ["minimum", "maximum"] {
        if let Some(whole) = object
            .get(bound)
            .and_then(Value::as_f64)
            .filter(|value| value.fract() == 0.0)
        {
            object.insert(bound.into(), json!(whole as i64));
        }
    }
    // The line breaks of the source do not belong in `kubectl explain`.
    if let Some(description) = object.get("description").and_then(Value::as_str) {
        let joined = description.replace('\n', " ");
        object.insert("description".into(), joined.into());
    }
    if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
        let mut required = Vec::new();
        for (name, property) in properties.iter_mut() {
            normalize(property);
            if property
                .as_object_mut()
                .is_some_and(|property| property.remove("x-required").is_some())
            {
                required.push(Value::from(name.as_str()));
            }
        }
        if !required.is_empty() {
            let list = object.entry("required").or_insert_with(|| json!([]));
            if let Some(list) = list.as_array_mut() {
                list.extend(required);
                list.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
                list.dedup();
            }
        }
    }
    for nested in ["items", "additionalProperties"] {
        if let Some(nested) = object.get_mut(nested) {
            normalize(nested);
        }
    }
}

/// Removes the `null` that schemars allows for an `Option`.
fn drop_null(object: &mut Map<String, Value>) {
    if let Some(kinds) = object.get("type").and_then(Value::as_array) {
        let kinds: Vec<_> = kinds
            .iter()
            .filter(|kind| *kind != "null")
            .cloned()
            .collect();
        if let [kind] = kinds.as_slice() {
            object.insert("type".into(), kind.clone());
        }
    }
    if let Some(values) = object.get_mut("enum").and_then(Value::as_array_mut) {
        values.retain(|value| !value.is_null());
    }
    let alternatives = object
        .get("anyOf")
        .and_then(Value::as_array)
        .map(Vec::as_slice);
    if let Some([alternative, null]) = alternatives
        && null["type"] == "null"
        && let Some(alternative) = alternative.as_object().cloned()
    {
        object.remove("anyOf");
        for (key, value) in alternative {
            object.entry(key).or_insert(value);
        }
    }
}
