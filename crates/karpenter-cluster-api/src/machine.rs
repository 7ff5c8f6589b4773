//! The Machine of a NodeClaim: its name, what is written into it, and what is read from it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use karpenter_api::labels;
use karpenter_api::labels::taints;
use karpenter_api::v1::NodeClaim;
use kube::core::{ApiResource, DynamicObject};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::deployment::fingerprint;

/// The label of Machines with the uid of their NodeClaim. Karpenter deletes no Machine without it.
pub const UID_LABEL: &str = "karpenter.cluster.x-k8s.io/nodeclaim-uid";
/// The label of Machines and infrastructure with the name of their Cluster.
pub const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";
/// The annotation of NodeClaims with the name of their Machine. `cluster.x-k8s.io/machine` is Cluster API's own, on Nodes.
pub const MACHINE_ANNOTATION: &str = "karpenter.cluster.x-k8s.io/machine";
/// The annotation of Machines with what was launched.
const LAUNCHED_ANNOTATION: &str = "karpenter.cluster.x-k8s.io/launched";
/// Labels with which a MachineSet would adopt the Machine.
const ADOPTED_BY: [&str; 3] = [
    "cluster.x-k8s.io/deployment-name",
    "cluster.x-k8s.io/set-name",
    "machine-template-hash",
];
/// Annotations of a Machine that Karpenter deletes: its node is drained, or drained as far as its grace period allowed.
pub const WITHOUT_DRAIN: [&str; 2] = [
    "machine.cluster.x-k8s.io/exclude-node-draining",
    "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach",
];

/// What was launched, as it is in the Machine: an attempt after a crash gives the same answer, whatever has changed since.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Launched {
    pub node_claim: String,
    pub deployment: String,
    /// See [`fingerprint`].
    pub fingerprint: String,
    /// The infrastructure template.
    pub image_id: String,
    pub labels: BTreeMap<String, String>,
    pub capacity: BTreeMap<String, Quantity>,
    /// Capacity available to pods.
    pub allocatable: BTreeMap<String, Quantity>,
}

/// Returns the string at a JSON pointer, unless it is empty.
#[must_use]
pub fn text<'a>(data: &'a Value, at: &str) -> Option<&'a str> {
    data.pointer(at)?.as_str().filter(|text| !text.is_empty())
}

/// Returns the name of a NodeClaim's Machine, which two NodeClaims of one name do not share.
#[must_use]
pub fn name_of(claim: &NodeClaim) -> String {
    let uid = claim
        .uid()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(8);
    let name: String = claim.name().chars().take(54).collect();
    format!(
        "{}-{}",
        name.trim_end_matches(['-', '.']),
        uid.collect::<String>().to_ascii_lowercase()
    )
}

/// Returns the name of a NodeClaim's Machine as it was recorded, or as it is derived.
#[must_use]
pub fn recorded_name(claim: &NodeClaim) -> String {
    claim
        .annotation(MACHINE_ANNOTATION)
        .map_or_else(|| name_of(claim), str::to_owned)
}

/// Returns the Machine to create for a NodeClaim from a MachineDeployment.
#[must_use]
pub fn new(
    resource: &ApiResource,
    deployment: &DynamicObject,
    claim: &NodeClaim,
    launched: &Launched,
) -> DynamicObject {
    let name = name_of(claim);
    let mut machine = DynamicObject::new(&name, resource);
    let template = deployment.data.pointer("/spec/template");
    let of = |at: &str| -> BTreeMap<String, String> {
        let map = template.and_then(|template| template.pointer(at)).cloned();
        map.and_then(|map| serde_json::from_value(map).ok())
            .unwrap_or_default()
    };
    let mut all = of("/metadata/labels");
    all.retain(|key, _| !ADOPTED_BY.contains(&key.as_str()));
    let mut spec = template
        .and_then(|template| template.get("spec"))
        .cloned()
        .unwrap_or_else(|| json!({}));
    let cluster = text(&spec, "/clusterName").unwrap_or_default().to_owned();
    all.insert(CLUSTER_LABEL.to_owned(), cluster);
    all.insert(UID_LABEL.to_owned(), claim.uid().to_owned());
    let mut annotations = of("/metadata/annotations");
    let text = serde_json::to_string(launched).unwrap_or_default();
    annotations.insert(LAUNCHED_ANNOTATION.to_owned(), text);
    for reference in ["/infrastructureRef", "/bootstrap/configRef"] {
        if let Some(Value::Object(reference)) = spec.pointer_mut(reference) {
            reference.insert("name".to_owned(), json!(name));
            let kind = reference
                .get("kind")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let kind = without_template(kind).to_owned();
            reference.insert("kind".to_owned(), json!(kind));
        }
    }
    machine
        .metadata
        .namespace
        .clone_from(&deployment.metadata.namespace);
    machine.metadata.labels = Some(all);
    machine.metadata.annotations = Some(annotations);
    machine.data = json!({ "spec": spec });
    machine
}

/// Returns the kind of the objects that are made of a kind of templates.
#[must_use]
pub fn without_template(kind: &str) -> &str {
    kind.strip_suffix("Template").unwrap_or(kind)
}

/// Returns the object to create from a template for a Machine, which owns it.
#[must_use]
pub fn from_template(
    resource: &ApiResource,
    template: &DynamicObject,
    template_kind: (&str, &str),
    machine: &DynamicObject,
    machines: &ApiResource,
) -> DynamicObject {
    let mut object = DynamicObject::new(&machine.name_any(), resource);
    let of = |at: &str| -> BTreeMap<String, String> {
        let map = template.data.pointer(at).cloned();
        map.and_then(|map| serde_json::from_value(map).ok())
            .unwrap_or_default()
    };
    let mut all = of("/spec/template/metadata/labels");
    let cluster = machine
        .labels()
        .get(CLUSTER_LABEL)
        .cloned()
        .unwrap_or_default();
    all.insert(CLUSTER_LABEL.to_owned(), cluster);
    let mut annotations = of("/spec/template/metadata/annotations");
    let (kind, group) = template_kind;
    annotations.insert(
        "cluster.x-k8s.io/cloned-from-name".to_owned(),
        template.name_any(),
    );
    annotations.insert(
        "cluster.x-k8s.io/cloned-from-groupkind".to_owned(),
        format!("{kind}.{group}"),
    );
    object
        .metadata
        .namespace
        .clone_from(&machine.metadata.namespace);
    object.metadata.labels = Some(all);
    object.metadata.annotations = Some(annotations);
    object.metadata.owner_references = machine
        .controller_owner_ref(machines)
        .map(|owner| vec![owner]);
    let spec = template
        .data
        .pointer("/spec/template/spec")
        .cloned()
        .unwrap_or_else(|| json!({}));
    object.data = json!({ "spec": spec });
    if resource.kind == "KubeadmConfig" {
        register_with_taint(&mut object.data);
    }
    object
}

/// Has kubeadm's kubelets register with the taint that keeps pods away until Karpenter has registered the Node.
fn register_with_taint(data: &mut Value) {
    let registration = &mut data["spec"]["joinConfiguration"]["nodeRegistration"];
    let present = registration.get("taints").cloned();
    let mut all: Vec<Taint> = present
        .and_then(|all| serde_json::from_value(all).ok())
        .unwrap_or_default();
    let unregistered = taints::unregistered();
    if !all.iter().any(|taint| taints::same(taint, &unregistered)) {
        all.push(unregistered);
        registration["taints"] = json!(all);
    }
}

/// Returns what was launched; `None` if the Machine is not one of Karpenter's.
#[must_use]
pub fn launched(machine: &DynamicObject) -> Option<Launched> {
    machine.labels().get(UID_LABEL)?;
    serde_json::from_str(machine.annotations().get(LAUNCHED_ANNOTATION)?).ok()
}

/// Returns a Machine as a NodeClaim; `None` if it is not one of Karpenter's.
#[must_use]
pub fn claim_of(machine: &DynamicObject) -> Option<NodeClaim> {
    let launched = launched(machine)?;
    let mut claim = NodeClaim::new(&launched.node_claim, Default::default());
    let placed = text(&machine.data, "/status/failureDomain");
    claim.status.provider_id = provider_id(machine).map(str::to_owned);
    claim.status.image_id = Some(launched.image_id);
    claim.status.capacity = launched.capacity;
    claim.status.allocatable = launched.allocatable;
    let mut all = launched.labels;
    if let Some(zone) = placed {
        all.entry(labels::ZONE.to_owned())
            .or_insert_with(|| zone.to_owned());
    }
    claim.metadata.labels = Some(all);
    claim.metadata.annotations = Some([(MACHINE_ANNOTATION.to_owned(), machine.name_any())].into());
    claim
        .metadata
        .creation_timestamp
        .clone_from(&machine.metadata.creation_timestamp);
    claim
        .metadata
        .deletion_timestamp
        .clone_from(&machine.metadata.deletion_timestamp);
    Some(claim)
}

/// Returns the provider id, once the infrastructure is provisioned.
#[must_use]
pub fn provider_id(machine: &DynamicObject) -> Option<&str> {
    text(&machine.data, "/spec/providerID")
}

/// Returns why the launch of a Machine has failed for good, in either version.
#[must_use]
pub fn failure(machine: &DynamicObject) -> Option<String> {
    let at = [
        "/status/failureMessage",
        "/status/deprecated/v1beta1/failureMessage",
    ];
    at.iter()
        .find_map(|at| text(&machine.data, at))
        .map(str::to_owned)
}

/// Returns the conditions of a Machine, in either version.
fn conditions(machine: &DynamicObject) -> impl Iterator<Item = &Value> {
    let lists = ["/status/conditions", "/status/v1beta2/conditions"];
    let lists = lists.map(|at| machine.data.pointer(at).and_then(Value::as_array));
    lists.into_iter().flatten().flatten()
}

/// Why a Machine ends although Karpenter does not end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A user or Cluster API deletes it.
    Deleted,
    /// A MachineHealthCheck found it unhealthy, and asks its owner to replace it. Its owner is Karpenter: it belongs to no MachineSet.
    Unhealthy,
}

/// Returns why a Machine ends although Karpenter does not end it.
#[must_use]
pub fn ending(machine: &DynamicObject) -> Option<Ending> {
    if machine.metadata.deletion_timestamp.is_some() {
        return Some(Ending::Deleted);
    }
    let is_asked = |condition: &Value| {
        text(condition, "/type") == Some("OwnerRemediated")
            && text(condition, "/status") == Some("False")
    };
    conditions(machine)
        .any(is_asked)
        .then_some(Ending::Unhealthy)
}

/// Returns what a Machine waits for, as its conditions say.
#[must_use]
pub fn waits_for(machine: &DynamicObject) -> String {
    let waiting = conditions(machine).filter(|condition| {
        let kind = text(condition, "/type").unwrap_or_default();
        matches!(kind, "BootstrapConfigReady" | "InfrastructureReady")
            && text(condition, "/status") != Some("True")
    });
    let messages: Vec<String> = waiting
        .map(|condition| {
            let kind = text(condition, "/type").unwrap_or_default();
            let why = text(condition, "/message").or(text(condition, "/reason"));
            format!("{kind}: {}", why.unwrap_or("not yet"))
        })
        .collect();
    messages.join("; ")
}

/// Returns whether a MachineDeployment still is what a Machine was launched from.
#[must_use]
pub fn is_current(launched: &Launched, deployment: &DynamicObject) -> bool {
    launched.fingerprint == fingerprint(deployment)
}
