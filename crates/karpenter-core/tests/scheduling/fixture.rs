//! A cluster to schedule in, and short texts of the outcomes.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::fake;
use karpenter_core::fake::TypeBuilder;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::schedule::{Packing, Plan, PlannedNodeClaim, Policy, Query, schedule};
use serde_json::json;

pub use karpenter_fixtures::*;

pub fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// A cluster, the policy, the query, and the instance types of the provider.
pub struct World {
    pub cluster: Cluster,
    pub policy: Policy,
    pub query: Query,
    types: Arc<[InstanceType]>,
}

impl World {
    /// Creates a world with one NodePool called `default` and upstream's fake instance types.
    pub fn new() -> Self {
        Self::of(node_pool("default"))
    }

    /// Creates a world with one NodePool and upstream's fake instance types.
    pub fn of(pool: Object<NodePool>) -> Self {
        Self::empty().with_pool(pool)
    }

    /// Creates a world without NodePools.
    pub fn empty() -> Self {
        Self::configured(|_| ())
    }

    pub fn configured(change: impl FnOnce(&mut ClusterConfig)) -> Self {
        let mut config = fake::cluster_config();
        change(&mut config);
        Self {
            cluster: Cluster::new(config),
            policy: Policy::at(now()),
            query: Query::default(),
            types: fake::catalogue(),
        }
    }

    /// Sets the instance types of all NodePools.
    pub fn with_types(mut self, types: impl Types) -> Self {
        self.types = types.list();
        for pool in self.cluster.snapshot().node_pools() {
            let name = pool.metadata.name.as_ref().unwrap();
            self.cluster
                .set_instance_types(name, Ok(self.types.clone()));
        }
        self
    }

    pub fn with_pool(mut self, pool: Object<NodePool>) -> Self {
        let name = pool.name().to_owned();
        self.cluster.apply_node_pool(&pool.build());
        self.cluster
            .set_instance_types(&name, Ok(self.types.clone()));
        self
    }

    /// Adds pods and nodes: one, a list, or a tuple of both.
    pub fn with(mut self, objects: impl Applied) -> Self {
        self.add(objects);
        self
    }

    /// Adds pods and nodes: one, a list, or a tuple of both.
    pub fn add(&mut self, objects: impl Applied) {
        objects.apply(&mut self.cluster);
    }

    /// Places pods by size alone, without trying other orders.
    pub fn by_size(mut self) -> Self {
        self.policy = self.policy.with_packing(Packing::FewestNodes);
        self
    }

    pub fn plan(&self) -> Plan {
        schedule(&self.cluster.snapshot(), &self.policy, &self.query)
    }

    /// Returns whether the plan has a place for every pod.
    pub fn is_placed(&self) -> bool {
        all_placed(&self.plan())
    }

    /// Returns whether the plan has a place for every pod once these objects are added.
    pub fn places(self, objects: impl Applied) -> bool {
        self.with(objects).is_placed()
    }

    /// Returns the cheapest instance type of the first planned node; empty if there is none.
    pub fn first_type(&self) -> String {
        let claims = self.plan().new_node_claims;
        let first = claims.first().map(|draft| draft.instance_types[0].clone());
        first.unwrap_or_default()
    }

    /// Returns the numbers of pods of the planned nodes, in descending order.
    pub fn sizes(&self) -> Vec<usize> {
        sizes(&self.plan())
    }

    /// Schedules, launches a node of the cheapest type for each new claim, and binds the placed pods.
    pub fn launch_and_bind(&mut self) -> Plan {
        let plan = self.plan();
        let before = self.cluster.snapshot().nodes().count();
        for (index, draft) in plan.new_node_claims.iter().enumerate() {
            let name = format!("node-{:03}", before + index);
            self.launch(&name, draft);
            for pod in &draft.pods {
                self.bind(&pod.namespace, &pod.name, &name);
            }
        }
        for placement in &plan.existing {
            self.bind(
                &placement.pod.namespace,
                &placement.pod.name,
                &placement.node,
            );
        }
        plan
    }

    /// Launches the cheapest offering of a draft: adds its NodeClaim and an initialized node.
    pub fn launch(&mut self, name: &str, draft: &PlannedNodeClaim) {
        let types = self
            .cluster
            .snapshot()
            .instance_types(&draft.node_pool)
            .cloned()
            .unwrap()
            .unwrap();
        let mut claim: NodeClaim = draft.to_node_claim();
        let admits = |key: &str, value: Option<&str>| {
            let mut requirements = claim.spec.requirements.iter();
            let listed = requirements.find(|it| it.key == key && it.operator.as_str() == "In");
            listed.is_none_or(|it| value.is_some_and(|value| it.values.iter().any(|v| v == value)))
        };
        let is_admitted = |offering: &Offering| {
            offering.available
                && admits(ZONE, offering.zone())
                && admits(CAPACITY_TYPE, offering.capacity_type())
                && (offering.capacity_type() != Some("reserved")
                    || admits(fake::RESERVATION_ID, offering.single(fake::RESERVATION_ID)))
        };
        let listed = (types.iter()).filter(|it| draft.instance_types.contains(&it.name));
        let offered = listed.flat_map(|it| it.offerings.iter().map(move |offering| (it, offering)));
        let (instance_type, offering) = offered
            .filter(|(_, offering)| is_admitted(offering))
            .min_by(|(_, a), (_, b)| a.price.total_cmp(&b.price))
            .expect("an offering for the draft");
        let mut labels = claim.metadata.labels.clone().unwrap_or_default();
        for requirement in instance_type
            .requirements
            .iter()
            .chain(offering.requirements.iter())
        {
            if let Some(value) = requirement.single() {
                labels.insert(requirement.key().to_owned(), value.to_owned());
            }
        }
        claim.metadata.name = Some(format!("{name}-claim"));
        claim.metadata.uid = Some(format!("{name}-claim"));
        claim.metadata.labels = Some(labels.clone());
        claim.status.provider_id = Some(format!("fake://{name}"));
        claim.status.capacity = instance_type.capacity.to_quantities();
        claim.status.allocatable = instance_type.allocatable_of(offering).to_quantities();
        self.cluster.apply_node_claim(&claim);
        labels.insert(HOSTNAME.into(), name.into());
        labels.insert("karpenter.sh/registered".into(), "true".into());
        labels.insert("karpenter.sh/initialized".into(), "true".into());
        self.cluster.apply_node(&read(json!({
            "metadata": { "name": name, "uid": name, "labels": labels },
            "spec": { "providerID": format!("fake://{name}"), "taints": claim.spec.taints },
            "status": { "capacity": claim.status.capacity, "allocatable": claim.status.allocatable },
        })));
    }

    pub fn bind(&mut self, namespace: &str, name: &str, node: &str) {
        let pod = self
            .cluster
            .snapshot()
            .pod(namespace, name)
            .cloned()
            .unwrap();
        let mut pod = pod.as_ref().clone();
        pod.node_name = Some(node.into());
        pod.unschedulable = false;
        self.cluster.insert_pod(pod);
    }

    /// Returns the numbers of bound pods with a label per value of a node label, in descending order.
    pub fn skew(&self, key: &str, label: (&str, &str)) -> Vec<usize> {
        let snapshot = self.cluster.snapshot();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for node in snapshot.nodes() {
            let pods = snapshot.pods_on(node.name());
            let count = pods
                .iter()
                .filter(|pod| pod.shape.labels.get(label.0).map(String::as_str) == Some(label.1))
                .count();
            if let Some(value) = node.labels().get(key).filter(|_| count > 0) {
                *counts.entry(value.to_owned()).or_default() += count;
            }
        }
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }
}

/// Instance types, built or not: one or several.
pub trait Types: Sized {
    fn append(self, all: &mut Vec<InstanceType>);

    fn list(self) -> Arc<[InstanceType]> {
        let mut all = Vec::new();
        self.append(&mut all);
        all.into()
    }
}

impl Types for InstanceType {
    fn append(self, all: &mut Vec<InstanceType>) {
        all.push(self);
    }
}

impl Types for TypeBuilder {
    fn append(self, all: &mut Vec<InstanceType>) {
        all.push(self.build());
    }
}

impl Types for Arc<[InstanceType]> {
    fn append(self, all: &mut Vec<InstanceType>) {
        all.extend_from_slice(&self);
    }
}

impl<T: Types> Types for Vec<T> {
    fn append(self, all: &mut Vec<InstanceType>) {
        self.into_iter().for_each(|one| one.append(all));
    }
}

impl<T: Types, const N: usize> Types for [T; N] {
    fn append(self, all: &mut Vec<InstanceType>) {
        self.into_iter().for_each(|one| one.append(all));
    }
}

/// Objects that a cluster can be told of.
pub trait Applied {
    fn apply(self, cluster: &mut Cluster);
}

macro_rules! applied_kinds {
    ($($kind:ty: $apply:ident,)+) => {$(
        impl Applied for Object<$kind> {
            fn apply(self, cluster: &mut Cluster) {
                cluster.$apply(&self.build());
            }
        }
    )+};
}
applied_kinds! {
    Pod: apply_pod,
    Node: apply_node,
    NodeClaim: apply_node_claim,
    DaemonSet: apply_daemon_set,
    PodDisruptionBudget: apply_pdb,
    PersistentVolumeClaim: apply_volume_claim,
    PersistentVolume: apply_volume,
    StorageClass: apply_storage_class,
    CSINode: apply_csi_node,
}

impl<I: Iterator, T: Applied, F: FnMut(I::Item) -> T> Applied for std::iter::Map<I, F> {
    fn apply(self, cluster: &mut Cluster) {
        self.for_each(|object| object.apply(cluster));
    }
}

impl<T: Applied> Applied for Option<T> {
    fn apply(self, cluster: &mut Cluster) {
        self.into_iter().for_each(|object| object.apply(cluster));
    }
}

impl<T: Applied> Applied for Vec<T> {
    fn apply(self, cluster: &mut Cluster) {
        self.into_iter().for_each(|object| object.apply(cluster));
    }
}

impl<T: Applied, const N: usize> Applied for [T; N] {
    fn apply(self, cluster: &mut Cluster) {
        self.into_iter().for_each(|object| object.apply(cluster));
    }
}

macro_rules! applied_tuples {
    ($(($($field:ident)+))+) => {$(
        impl<$($field: Applied),+> Applied for ($($field,)+) {
            fn apply(self, cluster: &mut Cluster) {
                #[expect(non_snake_case, reason = "fields have the names of their types")]
                let ($($field,)+) = self;
                $($field.apply(cluster);)+
            }
        }
    )+};
}
applied_tuples!((A B) (A B C) (A B C D) (A B C D E) (A B C D E F));

/// The label of the pods that constraints count.
pub const APP: (&str, &str) = ("app", "x");

/// Returns a pod with the label `APP`.
pub fn member(name: &str) -> Object<Pod> {
    pod(name).label(APP.0, APP.1)
}

/// Returns the pod of a capacity buffer.
pub fn buffer_pod(pod: Object<Pod>) -> Arc<karpenter_core::pod::Pod> {
    let pod = pod.annotation("karpenter.sh/capacity-buffer-fake-pod", "true");
    Arc::new(karpenter_core::pod::Pod::parse(&pod.build()))
}

/// Returns the plan for these objects in a new world.
pub fn plan_of(objects: impl Applied) -> Plan {
    World::new().with(objects).plan()
}

/// Returns whether every pod was placed.
pub fn all_placed(plan: &Plan) -> bool {
    plan.unplaced.is_empty() && plan.undecided.is_empty()
}

/// Returns the values that a claim's requirement lists.
pub fn values(draft: &PlannedNodeClaim, key: &str) -> Vec<String> {
    let requirements = draft.to_node_claim().spec.requirements.into_iter();
    requirements
        .filter(|requirement| requirement.key == key)
        .flat_map(|requirement| requirement.values)
        .collect()
}

/// Returns the values that the first new claim's requirement lists.
pub fn first_values(plan: &Plan, key: &str) -> Vec<String> {
    values(&plan.new_node_claims[0], key)
}

/// Returns the planned node of a pod.
pub fn claim_with<'a>(plan: &'a Plan, pod: &str) -> Option<&'a PlannedNodeClaim> {
    let mut claims = plan.new_node_claims.iter();
    claims.find(|draft| draft.pods.iter().any(|placed| placed.name == pod))
}

/// Returns the values that the planned node of a pod lists; none if there is no such node.
pub fn values_with(plan: &Plan, pod: &str, key: &str) -> Vec<String> {
    let draft = claim_with(plan, pod);
    draft.map(|draft| values(draft, key)).unwrap_or_default()
}

/// Returns the zones that each planned node lists.
pub fn all_zones(plan: &Plan) -> Vec<Vec<String>> {
    let claims = plan.new_node_claims.iter();
    claims.map(|draft| values(draft, ZONE)).collect()
}

/// Returns the numbers of pods placed on existing nodes, and of new claims.
pub fn counts(plan: &Plan) -> (usize, usize) {
    (plan.existing.len(), plan.new_node_claims.len())
}

/// Returns the numbers of pods of the new claims, in descending order.
pub fn sizes(plan: &Plan) -> Vec<usize> {
    let mut sizes: Vec<usize> = plan
        .new_node_claims
        .iter()
        .map(|draft| draft.pods.len())
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

/// Returns the event text of a pod that was not placed.
pub fn why(plan: &Plan, pod: &str) -> String {
    let unplaced = plan
        .unplaced
        .iter()
        .find(|unplaced| unplaced.pod.name == pod);
    unplaced
        .map(|unplaced| unplaced.why.to_string())
        .unwrap_or_default()
}

/// Checks that the event text of a pod that was not placed contains a text.
#[track_caller]
pub fn assert_why(plan: &Plan, pod: &str, text: &str) {
    let why = why(plan, pod);
    assert!(why.contains(text), "{why}");
}

/// Returns how many values of a key a claim must keep.
pub fn min_values(draft: &PlannedNodeClaim, key: &str) -> Option<i64> {
    let mut requirements = draft.to_node_claim().spec.requirements.into_iter();
    requirements.find(|it| it.key == key)?.min_values
}
