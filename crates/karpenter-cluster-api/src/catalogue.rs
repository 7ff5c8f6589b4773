//! The instance types of a node class: one for each name, with an offering for each MachineDeployment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use karpenter_api::labels::{self, taints};
use karpenter_core::instance_type::{InstanceType, Overhead};
use karpenter_core::offering::Offering;
use karpenter_core::requirements::Requirement;
use karpenter_core::resources::Resources;
use karpenter_kube::clock::Clock;
use parking_lot::Mutex;

use crate::deployment::Shape;

/// How long nothing is launched from a MachineDeployment after it had no capacity.
const UNAVAILABLE: Duration = Duration::from_secs(3 * 60);

/// MachineDeployments that had no capacity, and until when nothing is launched from them.
#[derive(Debug, Default)]
pub struct Unavailable(Mutex<BTreeMap<String, Timestamp>>);

impl Unavailable {
    /// Records that a MachineDeployment has no capacity.
    pub fn mark(&self, deployment: &str, clock: Clock) {
        let until = clock
            .now()
            .saturating_add(jiff::SignedDuration::try_from(UNAVAILABLE).unwrap_or_default());
        self.0
            .lock()
            .insert(deployment.to_owned(), until.unwrap_or(Timestamp::MAX));
    }

    /// Returns until when nothing is launched from a MachineDeployment.
    fn until(&self, deployment: &str, now: Timestamp) -> Option<Timestamp> {
        self.0
            .lock()
            .get(deployment)
            .copied()
            .filter(|until| *until > now)
    }
}

/// Returns the price per hour of a shape without one: an order by size, so that consolidation prefers smaller nodes.
#[must_use]
pub fn price_by_size(capacity: &Resources) -> f64 {
    let gpus: i64 = capacity
        .iter()
        .filter(|(name, _)| name.contains("/gpu"))
        .map(|(_, n)| n)
        .sum();
    let gibibytes = capacity.get("memory") as f64 / f64::from(1 << 30);
    capacity.get("cpu") as f64 / 1000.0 * 0.03 + gibibytes * 0.004 + gpus as f64
}

/// Returns why a shape cannot be offered beside an earlier one, and what to change.
#[must_use]
pub fn conflict(earlier: &[Shape], shape: &Shape) -> Option<String> {
    let same = earlier
        .iter()
        .find(|other| other.instance_type == shape.instance_type)?;
    let (name, other) = (&shape.instance_type, &same.deployment);
    if same.capacity != shape.capacity || same.labels != shape.labels {
        return Some(format!(
            "MachineDeployment `{other}` has another capacity or other labels for instance type `{name}`: give it another name in label `{}`",
            labels::INSTANCE_TYPE
        ));
    }
    let mut others = earlier
        .iter()
        .filter(|other| other.instance_type == shape.instance_type);
    let twin = others
        .find(|other| other.zone == shape.zone && other.capacity_type == shape.capacity_type)?;
    Some(format!(
        "MachineDeployment `{}` already offers instance type `{name}` in zone `{}` as {}",
        twin.deployment, shape.zone, shape.capacity_type
    ))
}

/// Returns whether Nodes of a shape have no taints but those of a NodePool, which its pods tolerate.
#[must_use]
pub fn tolerated(shape: &Shape, pool: &[Taint]) -> bool {
    shape.taints.iter().all(|taint| {
        pool.iter()
            .any(|own| taints::same(own, taint) && own.value == taint.value)
    })
}

/// Returns the instance types of shapes that do not conflict. `is_full` says whether a MachineDeployment has all its Machines.
#[must_use]
pub fn instance_types(
    shapes: &[Shape],
    reserved: &Resources,
    unavailable: &Unavailable,
    is_full: impl Fn(&Shape) -> bool,
    now: Timestamp,
) -> Vec<InstanceType> {
    let mut all: BTreeMap<&str, InstanceType> = BTreeMap::new();
    for shape in shapes {
        let entry = all
            .entry(&shape.instance_type)
            .or_insert_with(|| instance_type(shape, reserved));
        let place = [
            Requirement::equal(labels::ZONE, &shape.zone),
            Requirement::equal(labels::CAPACITY_TYPE, &shape.capacity_type),
        ];
        let price = shape
            .price
            .unwrap_or_else(|| price_by_size(&shape.capacity));
        let mut offering = Offering::new(place.into_iter().collect(), price);
        offering.unavailable_until = unavailable.until(&shape.deployment, now);
        offering.available =
            offering.unavailable_until.is_none() && !shape.paused && !is_full(shape);
        *entry = entry.clone().with_offering(offering);
    }
    all.into_values().collect()
}

fn instance_type(shape: &Shape, reserved: &Resources) -> InstanceType {
    let of = |key: &str, default: &'static str| {
        shape
            .labels
            .get(key)
            .map_or(default, String::as_str)
            .to_owned()
    };
    let mut requirements: Vec<Requirement> = vec![
        Requirement::equal(labels::INSTANCE_TYPE, &shape.instance_type),
        Requirement::equal(labels::ARCH, &of(labels::ARCH, "amd64")),
        Requirement::equal(labels::OS, &of(labels::OS, "linux")),
    ];
    let known = [
        labels::INSTANCE_TYPE,
        labels::ARCH,
        labels::OS,
        labels::ZONE,
        labels::CAPACITY_TYPE,
    ];
    let others = shape
        .labels
        .iter()
        .filter(|(key, _)| !known.contains(&key.as_str()));
    requirements.extend(others.map(|(key, value)| Requirement::equal(key, value)));
    InstanceType::new(
        &shape.instance_type,
        requirements.into_iter().collect(),
        shape.capacity.clone(),
    )
    .with_overhead(Overhead {
        kube_reserved: reserved.clone(),
        ..Overhead::default()
    })
}

/// Keeps the list that was returned last for each NodePool: an equal one is the same `Arc`, which the engine compiles once.
#[derive(Debug, Default)]
pub struct InstanceTypeCache(Mutex<BTreeMap<String, Arc<[InstanceType]>>>);

impl InstanceTypeCache {
    /// Returns the list, as the `Arc` of before if it is equal.
    pub fn of(&self, pool: &str, types: Vec<InstanceType>) -> Arc<[InstanceType]> {
        let mut kept = self.0.lock();
        if let Some(before) = kept.get(pool).filter(|before| before[..] == types[..]) {
            return Arc::clone(before);
        }
        let types: Arc<[InstanceType]> = types.into();
        kept.insert(pool.to_owned(), Arc::clone(&types));
        types
    }
}
