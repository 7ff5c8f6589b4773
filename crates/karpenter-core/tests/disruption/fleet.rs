//! Running nodes with their NodeClaims, and disruption decisions as text.

use std::sync::Arc;

use karpenter_core::disruption::{DisruptionPlan, DisruptionRequest, VerdictKind, plan};
use karpenter_core::fake;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use serde_json::Value;

use crate::fixture::{
    CAPACITY_TYPE, HOSTNAME, INITIALIZED, INSTANCE_TYPE, NODE_POOL, Node, NodeClaim, NodePool,
    Object, Pod, Types, World, Z1, Z2, Z3, claim_of, now, pdb, pod,
};

pub const SPOT: &str = "spot";
pub const ON_DEMAND: &str = "on-demand";

/// Returns an instance type offered on demand at `price` and as spot at half of it, in every zone.
pub fn priced_type(name: &str, cores: i64, price: f64) -> InstanceType {
    let offer = |capacity_type, factor| {
        [Z1, Z2, Z3].map(|zone| fake::offering(capacity_type, zone, price * factor))
    };
    let offerings = [offer(ON_DEMAND, 1.0), offer(SPOT, 0.5)].concat();
    type_with_offerings(name, cores, offerings)
}

/// Returns an instance type with the given offerings.
pub fn type_with_offerings(name: &str, cores: i64, offerings: Vec<Offering>) -> InstanceType {
    let sized = fake::instance_type(name).cpu(cores).gib(64).pods(100);
    sized.offerings(offerings).build()
}

/// Returns four instance types: `small` 2 cores at $0.2, `medium` 4 at $0.4, `large` 8 at $0.8, `huge` 16 at $1.6.
pub fn sizes() -> Arc<[InstanceType]> {
    [
        ("small", 2, 0.2),
        ("medium", 4, 0.4),
        ("large", 8, 0.8),
        ("huge", 16, 1.6),
    ]
    .map(|(name, cores, price)| priced_type(name, cores, price))
    .into()
}

/// Returns a world of `sizes` with an on-demand NodePool `default` that consolidates at once and whose budget allows everything.
pub fn world() -> World {
    world_of(on_demand_pool("default"))
}

/// Returns a world of `sizes` with a NodePool.
pub fn world_of(pool: Object<NodePool>) -> World {
    World::of(pool).with_types(sizes())
}

/// Returns a world of these instance types with a NodePool whose budgets allow everything.
pub fn world_with(types: impl Types) -> World {
    World::of(open_pool("default")).with_types(types)
}

/// Returns an on-demand NodePool whose budgets allow everything.
pub fn on_demand_pool(name: &str) -> Object<NodePool> {
    open_pool(name).requires(CAPACITY_TYPE, "In", &[ON_DEMAND])
}

/// Returns a NodePool whose budgets allow everything.
pub fn open_pool(name: &str) -> Object<NodePool> {
    crate::fixture::node_pool(name).budget("100%")
}

/// A Node and its NodeClaim.
pub struct FleetNode {
    pub claim: Object<NodeClaim>,
    pub node: Object<Node>,
}

/// Returns an initialized, consolidatable on-demand node of the pool `default` in zone 1.
pub fn node(name: &str, instance_type: &str) -> FleetNode {
    let cores = match instance_type {
        "small" => "2",
        "medium" => "4",
        "large" => "8",
        _ => "16",
    };
    let node = crate::fixture::node(name)
        .label(INSTANCE_TYPE, instance_type)
        .without_label("karpenter.test.sh/testnodeclass")
        .cpu(cores)
        .memory("64Gi")
        .pods("100")
        .ready();
    let conditions = [
        "Launched",
        "Registered",
        "Initialized",
        "Ready",
        "Consolidatable",
    ];
    let claim = conditions
        .into_iter()
        .fold(claim_of(&node).created(CREATED), |claim, condition| {
            claim.is_since(condition, CREATED)
        });
    FleetNode { claim, node }
}

/// The time at which the nodes were created: a day before the decisions.
const CREATED: &str = "2025-12-31T00:00:00Z";

impl FleetNode {
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// Sets a label of NodeClaim and Node.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.claim = self.claim.label(key, value);
        self.node = self.node.label(key, value);
        self
    }

    pub fn pool(self, name: &str) -> Self {
        self.label(NODE_POOL, name)
    }

    pub fn spot(self) -> Self {
        self.label(CAPACITY_TYPE, SPOT)
    }

    /// Removes a condition of the NodeClaim.
    pub fn without(mut self, condition: &str) -> Self {
        self.claim = self.claim.without_condition(condition);
        self
    }

    /// Adds a True condition of the NodeClaim since a time.
    pub fn since(mut self, condition: &str, time: &str) -> Self {
        self.claim = self.claim.is_since(condition, time);
        self
    }

    pub fn drifted(self, time: &str) -> Self {
        self.since("Drifted", time)
    }

    /// Sets an annotation of the Node.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.node = self.node.annotation(key, value);
        self
    }

    /// Takes the label of initialized nodes from the Node.
    pub fn uninitialized(mut self) -> Self {
        self.node = self.node.without_label(INITIALIZED);
        self
    }

    pub fn claim(mut self, pointer: &str, value: Value) -> Self {
        self.claim = self.claim.set(pointer, value);
        self
    }

    pub fn node(mut self, pointer: &str, value: Value) -> Self {
        self.node = self.node.set(pointer, value);
        self
    }
}

/// Returns a pod that runs on a node and requests cores.
pub fn running(name: &str, node: &str, cpu: &str) -> Object<Pod> {
    pod(name)
        .cpu(cpu)
        .controlled_by("ReplicaSet", "rs")
        .on(node)
}

/// Returns a running pod on each node, with the name `p-NODE`.
pub fn on_each<const N: usize>(nodes: [&str; N], cpu: &str) -> [Object<Pod>; N] {
    nodes.map(|node| running(&format!("p-{node}"), node, cpu))
}

/// Returns a running pod that shares no node with others of its kind.
pub fn alone(name: &str, node: &str, cpu: &str) -> Object<Pod> {
    let pod = running(name, node, cpu).label("app", "x");
    pod.anti_affinity(HOSTNAME, ("app", "x"))
}

pub trait Fleet: Sized {
    fn run(self, nodes: impl IntoIterator<Item = FleetNode>) -> Self;
    fn pdb(self, name: &str, namespace: &str, spec: Value, allowed: i32) -> Self;
    fn decide(&self) -> Vec<String>;
    fn decide_with(&self, change: impl FnOnce(&mut DisruptionRequest)) -> DisruptionPlan;
    fn verdict(&self, name: &str) -> String;
}

impl Fleet for World {
    fn run(mut self, nodes: impl IntoIterator<Item = FleetNode>) -> Self {
        for node in nodes {
            self.add((node.claim, node.node));
        }
        self
    }

    fn pdb(self, name: &str, namespace: &str, spec: Value, allowed: i32) -> Self {
        let pdb = pdb(name).namespace(namespace).set("/spec", spec);
        self.with(pdb.of(("app", "guarded")).allows(allowed))
    }

    fn decide(&self) -> Vec<String> {
        commands(&self.decide_with(|_| ()))
    }

    fn decide_with(&self, change: impl FnOnce(&mut DisruptionRequest)) -> DisruptionPlan {
        let mut request = DisruptionRequest::at(now());
        request.policy = self.policy.clone();
        request.query = self.query.clone();
        change(&mut request);
        let snapshot = self.cluster.snapshot();
        let found = plan(&snapshot, &request);
        let cancels = [
            &request.single_node_cancel,
            &request.multi_node.cancel,
            &request.query.cancel,
        ];
        if cancels.iter().all(|cancel| cancel.is_none()) && request.stopwatch.is_none() {
            request.finds_reasons = false;
            let without = plan(&snapshot, &request);
            assert_eq!(commands(&without), commands(&found), "without reasons");
        }
        found
    }

    fn verdict(&self, name: &str) -> String {
        verdict(&self.decide_with(|_| ()), name)
    }
}

/// Commands, one line each: `delete a b (saves 0.40)`, `replace a with small medium spot (saves 0.10)`.
pub fn commands(plan: &DisruptionPlan) -> Vec<String> {
    let line = |command: &karpenter_core::disruption::Command| {
        let mut names: Vec<&str> = command.candidates.iter().map(|c| c.name()).collect();
        names.sort_unstable();
        let with: Vec<String> = command
            .replacements
            .iter()
            .map(|draft| {
                format!(
                    " with {} {}",
                    draft.instance_types.join(" "),
                    crate::fixture::values(draft, CAPACITY_TYPE).join("/")
                )
            })
            .collect();
        let decision = command.decision().as_str();
        format!(
            "{decision} {}{} (saves {:.2})",
            names.join(" "),
            with.join(""),
            command.savings
        )
    };
    plan.commands.iter().map(line).collect()
}

/// Returns the verdict on a node as text.
pub fn verdict(plan: &DisruptionPlan, name: &str) -> String {
    let verdict = plan
        .verdicts
        .iter()
        .find(|verdict| verdict.node.name() == name);
    match verdict.map(|verdict| &verdict.kind) {
        Some(VerdictKind::NotDisruptable(blocked)) => blocked.to_string(),
        Some(VerdictKind::Kept(why)) => why.to_string(),
        Some(VerdictKind::Deleted { .. }) => "deleted".to_owned(),
        Some(VerdictKind::Replaced { .. }) => "replaced".to_owned(),
        other => format!("{other:?}"),
    }
}
