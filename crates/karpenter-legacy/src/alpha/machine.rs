//! Converts a Machine into a NodeClaim for reference: NodeClaims do not adopt the instances of Machines.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::duration::NillableDuration;
use karpenter_api::labels;
use karpenter_api::v1::{
    NodeClaim, NodeClaimSpec, NodeClassReference,
    NodeSelectorRequirementWithMinValues as Requirement, ResourceRequirements,
};
use karpenter_aws::api::EC2NodeClass;

use crate::finding::{Finding, Notebook};
use crate::names;
use crate::v1alpha5::Machine;

/// Converts a Machine into a NodeClaim and records findings about it.
#[must_use]
pub fn node_claim(old: &Machine) -> (NodeClaim, Vec<Finding>) {
    let mut notes = Notebook::new(Machine::KIND, old.name());
    notes.loss(
        "status",
        "NodeClaims do not adopt the instances of Machines",
        "taint the nodes karpenter.sh/legacy=true:NoSchedule and delete them once the new NodePools have launched nodes",
    );
    if old.spec.kubelet.is_some() {
        notes.loss(
            "spec.kubelet",
            "is left out; v1 has the kubelet settings in the EC2NodeClass",
            "convert the Provisioner together with its AWSNodeTemplate",
        );
    }
    let mut of_claim = old.metadata.labels.clone().unwrap_or_default();
    if let Some(pool) = of_claim.remove(labels::PROVISIONER_NAME) {
        of_claim.insert(labels::NODE_POOL.to_owned(), pool);
    }
    let mut annotations = old.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !names::OWN_ANNOTATIONS.contains(&key.as_str()));
    let template = old.spec.machine_template_ref.as_ref();
    let spec = NodeClaimSpec {
        taints: old.spec.taints.clone(),
        startup_taints: old.spec.startup_taints.clone(),
        requirements: old
            .spec
            .requirements
            .iter()
            .map(|r| Requirement::new(&r.key, r.operator.clone(), r.values.clone()))
            .collect(),
        resources: ResourceRequirements {
            requests: old.spec.resources.requests.clone(),
        },
        node_class_ref: NodeClassReference {
            group: EC2NodeClass::GROUP.to_owned(),
            kind: EC2NodeClass::KIND.to_owned(),
            name: template.map(|t| t.name.clone()).unwrap_or_default(),
        },
        termination_grace_period: None,
        expire_after: NillableDuration::Never,
    };
    let claim = NodeClaim {
        metadata: ObjectMeta {
            name: old.metadata.name.clone(),
            labels: (!of_claim.is_empty()).then_some(of_claim),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        },
        spec,
        status: Default::default(),
    };
    (claim, notes.findings)
}
