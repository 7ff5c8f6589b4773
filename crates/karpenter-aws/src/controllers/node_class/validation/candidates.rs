//! Selection of the instance type for the dry run of a launch: one that the class's NodePools could launch, without
//! accelerators and cheap if possible.
//!
//! UPSTREAM: pkg/controllers/nodeclass/validation.go getPrioritizedInstanceTypes, getTenancyType

use std::sync::Arc;

use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodePool;
use karpenter_api::validation::WellKnown;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::requirements::Requirements;

use crate::api::labels::{INSTANCE_ACCELERATOR_COUNT, INSTANCE_GPU_COUNT, TENANCY_DEFAULT};
use crate::api::{AmiFamily, EC2NodeClass};
use crate::providers::image::first_compatible;
use crate::providers::instance::filter::tenancy;

/// Instance types of the dry run if no NodePool determines one.
const DEFAULT_TYPES: [&str; 2] = ["m5.large", "m6g.large"];

/// The instance type and tenancy of a dry run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate<'a> {
    pub(super) type_: &'a InstanceType,
    pub(super) tenancy: &'static str,
}

/// Returns the candidate; `None` if no instance type can boot an AMI of the class.
// DIFFERS: the tenancy is that of a launch for the NodePool; upstream uses dedicated hardware as soon as it is allowed.
pub(super) fn candidate<'a>(
    class: &EC2NodeClass,
    types: &'a [InstanceType],
    pools: &[Arc<NodePool>],
    well_known: &WellKnown,
) -> Option<Candidate<'a>> {
    let bootable: Vec<&InstanceType> = types
        .iter()
        .filter(|t| first_compatible(&class.status.amis, &t.requirements).is_some())
        .collect();
    let mut linked: Vec<&Arc<NodePool>> = pools.iter().filter(|p| names(p, class)).collect();
    linked.sort_by_key(|pool| pool.name());
    let asked: Vec<Requirements> = linked
        .into_iter()
        .filter_map(|pool| requirements(pool, well_known))
        .collect();
    let windows = matches!(
        class.ami_family(),
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025
    );
    let of_pools = bootable
        .iter()
        .filter(|_| !windows)
        .filter_map(|t| {
            let pool = asked
                .iter()
                .find(|pool| t.requirements.intersects(pool).is_ok())?;
            Some(Candidate {
                type_: t,
                tenancy: tenancy(pool),
            })
        })
        .min_by(|a, b| rank(a.type_).partial_cmp(&rank(b.type_)).unwrap_or(ORDER));
    let ordinary = |type_: &'a InstanceType| Candidate {
        type_,
        tenancy: TENANCY_DEFAULT,
    };
    let default_type = || {
        let mut found = DEFAULT_TYPES.iter();
        found.find_map(|name| bootable.iter().find(|t| t.name == *name))
    };
    let any = || {
        let better =
            |a: &&&InstanceType, b: &&&InstanceType| rank(a).partial_cmp(&rank(b)).unwrap_or(ORDER);
        bootable.iter().min_by(better)
    };
    of_pools
        .or_else(|| default_type().map(|t| ordinary(t)))
        .or_else(|| any().map(|t| ordinary(t)))
}

const ORDER: std::cmp::Ordering = std::cmp::Ordering::Equal;

fn names(pool: &NodePool, class: &EC2NodeClass) -> bool {
    let reference = &pool.spec.template.spec.node_class_ref;
    reference.group == EC2NodeClass::GROUP
        && reference.kind == EC2NodeClass::KIND
        && Some(&reference.name) == class.metadata.name.as_ref()
        && pool.metadata.deletion_timestamp.is_none()
}

/// Returns the requirements of a NodePool; `None` if they are invalid, which the NodePool's own condition reports.
fn requirements(pool: &NodePool, well_known: &WellKnown) -> Option<Requirements> {
    let template = &pool.spec.template;
    let mut asked = Requirements::from_api(&template.spec.requirements, well_known).ok()?;
    let labels = template.metadata.labels.iter().flatten();
    asked.add_all(&Requirements::from_labels(labels, well_known));
    Some(asked)
}

/// Returns whether the offering is available on demand.
pub(super) fn is_launchable(offering: &Offering) -> bool {
    offering.available && offering.capacity_type() == Some(core_labels::CAPACITY_TYPE_ON_DEMAND)
}

/// Sort key: instance types without accelerators first, then the cheapest; those without an available offering last.
fn rank(t: &InstanceType) -> (bool, f64, &str) {
    let accelerated = [INSTANCE_GPU_COUNT, INSTANCE_ACCELERATOR_COUNT]
        .iter()
        .any(|key| t.requirements.get(key).is_some_and(|r| !r.allows_absent()));
    let price = t
        .offerings
        .iter()
        .filter(|o| is_launchable(o))
        .map(|o| o.price)
        .fold(f64::INFINITY, f64::min);
    (accelerated, price, &t.name)
}

#[cfg(test)]
mod tests {
    use karpenter_core::fake;
    use karpenter_core::requirements::{Operator, Requirement};
    use serde_json::{Value, json};

    use super::*;

    fn class(family: &str) -> EC2NodeClass {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "default" },
            "spec": { "amiFamily": family, "subnetSelectorTerms": [], "securityGroupSelectorTerms": [], "amiSelectorTerms": [{ "id": "ami-1" }] },
            "status": { "amis": [
                { "id": "ami-1", "requirements": [{ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] }] },
            ] },
        }))
        .unwrap()
    }

    fn instance_type(name: &str, arch: &str, price: f64, gpus: Option<&str>) -> InstanceType {
        let key = crate::api::labels::INSTANCE_TENANCY;
        let tenancy = Requirement::new(key, Operator::In, ["default", "dedicated"]);
        let none: [&str; 0] = [];
        let gpus = match gpus {
            Some(count) => Requirement::equal(INSTANCE_GPU_COUNT, count),
            None => Requirement::new(INSTANCE_GPU_COUNT, Operator::DoesNotExist, none),
        };
        let fake = fake::instance_type(name).arch(arch);
        let offered = fake.offerings(vec![fake::offering("on-demand", "a", price)]);
        offered.requires(tenancy).requires(gpus).build()
    }

    fn instance_types() -> Vec<InstanceType> {
        vec![
            instance_type("c5.large", "amd64", 0.08, None),
            instance_type("g4dn.xlarge", "amd64", 0.01, Some("1")),
            instance_type("m5.large", "amd64", 0.1, None),
            instance_type("m6g.large", "arm64", 0.05, None),
            instance_type("m7i.large", "amd64", 0.09, None),
        ]
    }

    fn pool(name: &str, requirements: Value) -> Arc<NodePool> {
        let pool: NodePool = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name },
            "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "requirements": requirements,
            } } },
        }))
        .unwrap();
        Arc::new(pool)
    }

    fn among(key: &str, values: &[&str]) -> Value {
        json!({ "key": key, "operator": "In", "values": values })
    }

    fn chosen(family: &str, pools: &[Arc<NodePool>]) -> (String, &'static str) {
        let types = instance_types();
        let found = candidate(&class(family), &types, pools, &crate::api::well_known()).unwrap();
        (found.type_.name.clone(), found.tenancy)
    }

    /// Conformance: AWS-validation-14
    #[test]
    fn without_a_matching_pool_the_default_types_are_used() {
        assert_eq!(chosen("Custom", &[]).0, "m5.large");
        let other = pool("other", json!([among(core_labels::ARCH, &["riscv64"])]));
        assert_eq!(chosen("Custom", &[other]).0, "m5.large");
        let foreign = {
            let mut foreign = NodePool::clone(&pool("foreign", json!([])));
            foreign.spec.template.spec.node_class_ref.name = "another".into();
            Arc::new(foreign)
        };
        assert_eq!(chosen("Custom", &[foreign]).0, "m5.large");

        let mut arm = class("Custom");
        arm.status.amis[0].requirements[0].values = Some(vec!["arm64".into()]);
        let types = instance_types();
        let known = crate::api::well_known();
        assert_eq!(
            candidate(&arm, &types, &[], &known).unwrap().type_.name,
            "m6g.large"
        );
        let few = [instance_type("c5.large", "amd64", 0.08, None)];
        assert_eq!(
            candidate(&class("Custom"), &few, &[], &known)
                .unwrap()
                .type_
                .name,
            "c5.large",
            "any type, where the default ones are not offered"
        );
        assert_eq!(candidate(&arm, &few, &[], &known), None, "no type boots");
    }

    /// Conformance: AWS-validation-15
    #[test]
    fn windows_uses_the_default_types_whatever_the_pools_require() {
        let cheap = pool(
            "a",
            json!([among(core_labels::INSTANCE_TYPE, &["c5.large"])]),
        );
        assert_eq!(chosen("Custom", std::slice::from_ref(&cheap)).0, "c5.large");
        assert_eq!(chosen("Windows2022", &[cheap]).0, "m5.large");
    }

    /// Conformance: AWS-validation-17
    #[test]
    fn accelerated_types_are_used_only_if_there_is_nothing_else() {
        let both = pool(
            "a",
            json!([among(
                core_labels::INSTANCE_TYPE,
                &["g4dn.xlarge", "m7i.large"]
            )]),
        );
        assert_eq!(chosen("Custom", &[both]).0, "m7i.large");
        let one = pool(
            "a",
            json!([among(core_labels::INSTANCE_TYPE, &["g4dn.xlarge"])]),
        );
        assert_eq!(chosen("Custom", &[one]).0, "g4dn.xlarge");
    }

    #[test]
    fn dedicated_tenancy_is_used_only_where_a_launch_would_use_it() {
        let tenancies = |values: &[&str]| {
            let asked = json!([among("karpenter.k8s.aws/instance-tenancy", values)]);
            chosen("Custom", &[pool("a", asked)]).1
        };
        assert_eq!(tenancies(&["default", "dedicated"]), "default");
        assert_eq!(tenancies(&["dedicated"]), "dedicated");
        assert_eq!(chosen("Custom", &[pool("a", json!([]))]).1, "default");
    }
}
