//! Reads `cases.jsonl`: one small cluster per line.

use karpenter_api::labels;
use karpenter_core::instance_type::{InstanceType, Overhead};
use karpenter_core::offering::Offering;
use karpenter_core::quantity::Quantity;
use karpenter_core::requirements::{Operator, Requirement};
use karpenter_core::resources::{CPU, MEMORY, PODS, Resources};
use karpenter_spec::World;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Case {
    id: String,
    pools: Vec<Value>,
    types: Vec<Type>,
    nodes: Vec<Value>,
    claims: Vec<Value>,
    pods: Vec<Value>,
    daemonsets: Vec<Value>,
    namespaces: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Type {
    name: String,
    cpu: String,
    memory: String,
    pods: String,
    arch: String,
    os: Vec<String>,
    family: String,
    kube_cpu: String,
    kube_memory: String,
    offerings: Vec<OfferingCase>,
}

#[derive(Deserialize)]
struct OfferingCase {
    zone: String,
    ct: String,
    price: f64,
    available: bool,
}

const FAMILY: &str = "example.io/family";
const INTEGER: &str = "integer";

fn resources(amounts: [(&str, &str); 3]) -> Resources {
    let amounts = amounts.into_iter().filter(|(_, text)| !text.is_empty());
    let amounts = amounts.map(|(name, text)| {
        let quantity: Quantity = text.parse().unwrap();
        (name.to_owned(), quantity.to_string())
    });
    let amounts = amounts.map(|(name, text)| {
        (
            name,
            k8s_openapi::apimachinery::pkg::api::resource::Quantity(text),
        )
    });
    Resources::allocatable_from(&amounts.collect()).unwrap()
}

fn instance_type(of: &Type) -> InstanceType {
    let values = |value: fn(&OfferingCase) -> &str| {
        let mut all: Vec<&str> = of.offerings.iter().map(value).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let requirements = [
        Requirement::equal(labels::INSTANCE_TYPE, &of.name),
        Requirement::equal(labels::ARCH, &of.arch),
        Requirement::new(labels::OS, Operator::In, of.os.iter().map(String::as_str)),
        Requirement::equal(FAMILY, &of.family),
        Requirement::equal(INTEGER, &of.cpu),
        Requirement::new(
            labels::ZONE,
            Operator::In,
            values(|offering| &offering.zone),
        ),
        Requirement::new(
            labels::CAPACITY_TYPE,
            Operator::In,
            values(|offering| &offering.ct),
        ),
    ];
    let capacity = resources([(CPU, &of.cpu), (MEMORY, &of.memory), (PODS, &of.pods)]);
    let mut built = InstanceType::new(&of.name, requirements.into_iter().collect(), capacity);
    let offerings = of.offerings.iter().map(|case| {
        let requirements = [
            Requirement::equal(labels::ZONE, &case.zone),
            Requirement::equal(labels::CAPACITY_TYPE, &case.ct),
        ];
        let mut offering = Offering::new(requirements.into_iter().collect(), case.price);
        offering.available = case.available;
        offering
    });
    built.offerings = offerings.collect::<Vec<_>>().into();
    built.overhead = Overhead {
        kube_reserved: resources([(CPU, &of.kube_cpu), (MEMORY, &of.kube_memory), (PODS, "")]),
        ..Overhead::default()
    };
    built
}

fn read<T: serde::de::DeserializeOwned>(objects: Vec<Value>) -> Vec<T> {
    let objects = objects.into_iter();
    objects
        .map(|object| serde_json::from_value(object).unwrap())
        .collect()
}

/// Returns the cluster of this name.
pub fn world(id: &str) -> World {
    let mut cases = include_str!("cases.jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Case>(line).unwrap());
    let case = cases.find(|case| case.id == id).unwrap();
    let well_known = karpenter_api::validation::WellKnown::default()
        .with_label(FAMILY)
        .with_label(INTEGER);
    let mut world = World {
        well_known: well_known.labels().map(str::to_owned).collect(),
        node_pools: read(case.pools),
        nodes: read(case.nodes),
        node_claims: read(case.claims),
        pods: read(case.pods),
        daemon_sets: read(case.daemonsets),
        namespaces: read(case.namespaces),
        ..World::default()
    };
    let types: Vec<InstanceType> = case.types.iter().map(instance_type).collect();
    for pool in &world.node_pools {
        world
            .instance_types
            .insert(pool.name().to_owned(), types.clone());
    }
    world
}
