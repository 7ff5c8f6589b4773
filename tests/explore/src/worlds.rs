//! The clusters that are explored: small, each with what one group of rules is about.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::labels::annotations;
use karpenter_api::v1::NodePool;
use karpenter_core::cluster::Cluster;
use karpenter_core::fake::{catalogue, cluster_config, instance_type, offering};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::lifecycle::after;
use karpenter_core::pod::Pod;
use karpenter_core::schedule::PlannedNodeClaim;
use karpenter_fixtures::{Object, node_pool, pod};

use crate::steps::Step;
use crate::world::change::Change;
use crate::world::objects::Kind;
use crate::world::tasks::Answer;
use crate::world::{Faults, Setting, World};

/// The first moment.
const START: i64 = 1_767_225_600;

/// Returns two instance types of 2 and 4 cores, each with one offering.
fn types() -> Arc<[InstanceType]> {
    let sized = |name: &str, cores: i64, price: f64| {
        let offered = offering("on-demand", "test-zone-1", price);
        instance_type(name)
            .cpu(cores)
            .gib(8)
            .pods(10)
            .os(&["linux"])
            .offerings(vec![offered])
            .build()
    };
    [sized("small", 2, 0.2), sized("large", 4, 0.4)].into()
}

/// Returns a pod of a workload.
fn pod_of(app: &str, cpu: &str) -> Pod {
    let built = pod("pd-0000")
        .label("app", app)
        .cpu(cpu)
        .controlled_by("ReplicaSet", app)
        .build();
    let mut pod = Pod::parse(&built);
    pod.key.namespace = "default".to_owned();
    pod
}

fn buffer_pod(cpu: &str) -> Arc<Pod> {
    let built = pod("buffer-1")
        .cpu(cpu)
        .annotation(annotations::CAPACITY_BUFFER_FAKE_POD, "true")
        .annotation(annotations::CAPACITY_BUFFER_NAME, "spare")
        .annotation(annotations::CAPACITY_BUFFER_NAMESPACE, "default");
    let mut pod = Pod::parse(&built.priority(i32::MIN).build());
    pod.unschedulable = true;
    Arc::new(pod)
}

/// A cluster to explore.
#[derive(Debug)]
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// Its first state.
    pub world: World,
}

fn empty(changes: Vec<Change>, buffer_pods: Vec<Arc<Pod>>, pools: Vec<Object<NodePool>>) -> World {
    let setting = Setting {
        types: types(),
        buffer_pods,
        changes,
        kinds: vec![Kind::Pod, Kind::Node, Kind::NodeClaim],
        in_order: false,
    };
    let now = Timestamp::from_second(START).unwrap_or_default();
    let mut world = World::new(setting, Cluster::new(cluster_config()).snapshot(), now);
    for pool in pools {
        world.apply_change(&Change::PutPool(Box::new(pool.build())));
    }
    world
}

/// Returns an empty cluster whose changes happen in their order.
pub(crate) fn cluster(changes: Vec<Change>, kinds: Vec<Kind>, now: Option<Timestamp>) -> World {
    let setting = Setting {
        types: catalogue(),
        buffer_pods: Vec::new(),
        changes,
        kinds,
        in_order: true,
    };
    let now = now
        .or(Timestamp::from_second(START).ok())
        .unwrap_or_default();
    World::new(setting, Cluster::new(cluster_config()).snapshot(), now)
}

impl World {
    /// Launches a node of an instance type, with pods.
    fn with_node(mut self, pool: &str, kind: &str, pods: &[&Pod]) -> Self {
        let Some(pool) = self.api.pools.get(pool).map(|it| Arc::clone(&it.value)) else {
            return self;
        };
        let names = self.model.config().well_known.clone();
        let mut claim = PlannedNodeClaim::from_template(&pool, &names).to_node_claim();
        let name = format!("nc-{:04}", self.number(0));
        claim.metadata.name = Some(name.clone());
        claim.metadata.generate_name = None;
        claim.metadata.uid = Some(name.clone());
        claim.metadata.creation_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now),
        );
        claim
            .spec
            .requirements
            .retain(|it| it.key != karpenter_api::labels::INSTANCE_TYPE);
        let only = node_pool("only")
            .requires(karpenter_api::labels::INSTANCE_TYPE, "In", &[kind])
            .build();
        claim
            .spec
            .requirements
            .extend(only.spec.template.spec.requirements);
        self.put_claim(claim);
        let last = |world: &Self| world.tasks.len().saturating_sub(1);
        self.take(&Step::Claim(name.clone()));
        self.take(&Step::Answer(last(&self), Answer::Right));
        self.take(&Step::Join(name.clone()));
        self.take(&Step::Ready(name.clone()));
        self.take(&Step::Claim(name.clone()));
        for pod in pods {
            let pod = self.add_pod(pod);
            self.take(&Step::Bind(pod, name.clone()));
        }
        self
    }

    /// Lets time pass.
    fn later(mut self, seconds: u64) -> Self {
        self.now = after(self.now, std::time::Duration::from_secs(seconds));
        self
    }

    /// Sets what may go wrong.
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }
}

fn pool(name: &str) -> Object<NodePool> {
    node_pool(name)
        .consolidate_after("30s")
        .expire_after("Never")
        .requires("example.com/generation", "In", &["1"])
}

fn next_generation(pool: Object<NodePool>) -> Change {
    let field = "/spec/template/spec/requirements/0/values/0";
    Change::PutPool(Box::new(pool.set(field, "2").build()))
}

/// Returns the clusters.
pub fn all() -> Vec<Named> {
    let named = |name, world| Named { name, world };
    let web = pod_of("web", "1");
    let big = pod_of("big", "3");
    let guarded = pod_of("guarded", "1");
    vec![
        named("launch", {
            // Two NodePools, of which the first may have one node; three pods and a buffer.
            let first = pool("first").weight(10).limit("nodes", "1");
            let mut world = empty(
                vec![
                    Change::RemovePod("web"),
                    Change::DeleteClaim("nc-0001".to_owned()),
                    next_generation(first.clone()),
                ],
                vec![buffer_pod("500m")],
                vec![first, pool("second").limit("cpu", "6")],
            );
            world.add_pod(&big);
            world.add_pod(&web);
            world.add_pod(&web);
            world
        }),
        named("empty", {
            // Two nodes became empty; the budget allows one at a time.
            let pools = vec![pool("first").budget("1")];
            let changes = vec![
                Change::AddPod(Box::new(web.clone())),
                Change::AddPod(Box::new(big.clone())),
            ];
            let world = empty(changes, Vec::new(), pools).with_node("first", "small", &[]);
            world.with_node("first", "large", &[]).later(60)
        }),
        named("consolidate", {
            // Pods of two nodes fit on one; a PodDisruptionBudget guards two of them.
            let pools = vec![pool("first").budget("2")];
            let changes = vec![
                Change::Protect("web"),
                Change::AddPodLike("web"),
                Change::DeleteNodeOf("guarded"),
            ];
            let world =
                empty(changes, Vec::new(), pools).with_node("first", "large", &[&guarded, &web]);
            world.with_node("first", "small", &[&guarded]).later(60)
        }),
        named("move", {
            // The pod of a large node needs a small one only; later it fits beside another.
            let (light, base, extra) = (
                pod_of("light", "500m"),
                pod_of("base", "1"),
                pod_of("extra", "500m"),
            );
            let changes = vec![
                Change::RemovePod("extra"),
                Change::AddPodLike("light"),
                Change::Protect("light"),
                Change::DeleteNodeOf("light"),
                Change::DeleteNode("nc-0001".to_owned()),
            ];
            let world = empty(changes, Vec::new(), vec![pool("first")]);
            let world = world.with_node("first", "large", &[&light]);
            world
                .with_node("first", "small", &[&base, &extra])
                .later(60)
        }),
        named("expire", {
            // A node has expired; a PodDisruptionBudget and an annotation protect its pods until its grace period ends.
            let of = |expires: &str| {
                pool("first")
                    .expire_after(expires)
                    .termination_grace_period("5m")
            };
            let mut locked = pod_of("locked", "1");
            locked
                .annotations
                .insert(annotations::DO_NOT_DISRUPT.to_owned(), "true".to_owned());
            let changes = vec![
                Change::DeleteNode("nc-0001".to_owned()),
                Change::AddPodLike("guarded"),
                Change::RemovePod("locked"),
            ];
            let world = empty(changes, Vec::new(), vec![of("2m")]);
            let mut world = world.with_node("first", "large", &[&guarded, &locked]);
            world.apply_change(&Change::PutPool(Box::new(of("Never").build())));
            world.later(120)
        }),
        named("drift", {
            // Two nodes have drifted; there is a limit, and the budget allows one at a time.
            let of = || {
                pool("first")
                    .budget("1")
                    .limit("nodes", "2")
                    .termination_grace_period("5m")
            };
            let changes = vec![
                Change::Protect("web"),
                Change::DeleteNodeOf("big"),
                Change::RemovePod("web"),
                Change::AddPodLike("big"),
            ];
            let world = empty(changes, Vec::new(), vec![of()]).with_node("first", "large", &[&big]);
            let mut world = world.with_node("first", "small", &[&web]).later(60);
            world.apply_change(&next_generation(of()));
            world
        }),
        named("whole", {
            // Two NodePools, two nodes, three pods, a buffer, a budget, a PodDisruptionBudget, a limit.
            let of = || pool("first").budget("1").limit("nodes", "2");
            let changes = vec![
                Change::Protect("guarded"),
                Change::AddPodLike("big"),
                next_generation(of()),
                Change::RemovePod("big"),
            ];
            let world = empty(
                changes,
                vec![buffer_pod("500m")],
                vec![of(), pool("second").limit("cpu", "4")],
            );
            let world = world.with_node("first", "large", &[&big]);
            world
                .with_node("second", "large", &[&guarded, &guarded])
                .later(60)
        }),
    ]
}
