//! The clusters that are explored: small, each with what one group of rules is about.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::labels::{self, annotations};
use karpenter_api::v1::NodePool;
use karpenter_core::fake::{catalogue, instance_type, offering};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::lifecycle::after;
use karpenter_core::pod::Pod;
use karpenter_core::schedule::PlannedNodeClaim;
use karpenter_fixtures::{Object, node_pool, pod};

use crate::steps::Step;
use crate::world::change::Change;
use crate::world::objects::{Kind, disrupt};
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

fn empty(changes: Vec<Change>, buffer_pods: Vec<Arc<Pod>>, pools: Vec<Object<NodePool>>) -> World {
    let setting = Setting {
        types: types(),
        buffer_pods,
        changes,
        kinds: vec![Kind::Pod, Kind::Node, Kind::NodeClaim],
        in_order: false,
        nominates_pods: true,
    };
    let now = Timestamp::from_second(START).unwrap_or_default();
    pools.into_iter().fold(World::new(setting, now), with_pool)
}

fn with_pool(mut world: World, pool: Object<NodePool>) -> World {
    world.put(pool.build());
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
        nominates_pods: false,
    };
    let start = || Timestamp::from_second(START).unwrap_or_default();
    World::new(setting, now.unwrap_or_else(start))
}

impl World {
    /// Launches a node of an instance type, with pods.
    fn with_node(mut self, pool: &str, kind: &str, pods: &[&Pod]) -> Self {
        let Some(pool) = self.api.pools.get(pool).map(|it| Arc::clone(&it.value)) else {
            return self;
        };
        let names = self.model.config().well_known.clone();
        let mut claim =
            self.new_claim(PlannedNodeClaim::from_template(&pool, &names).to_node_claim());
        let name = claim.name().to_owned();
        let requirements = &mut claim.spec.requirements;
        requirements.retain(|it| it.key != labels::INSTANCE_TYPE);
        let only = node_pool("only").requires(labels::INSTANCE_TYPE, "In", &[kind]);
        requirements.extend(only.build().spec.template.spec.requirements);
        self.put(claim);
        self.take(&Step::Claim(name.clone()));
        let last = self.tasks.len().saturating_sub(1);
        self.take(&Step::Answer(last, Answer::Right));
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
        self.now = after(self.now, Duration::from_secs(seconds));
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

/// Returns a NodePool with another requirement: its nodes drift.
fn next(pool: Object<NodePool>) -> Object<NodePool> {
    pool.set("/spec/template/spec/requirements/0/values/0", "2")
}

fn put(pool: Object<NodePool>) -> Change {
    Change::PutPool(Box::new(pool.build()))
}

fn add(pod: Pod) -> Change {
    Change::AddPod(Box::new(pod))
}

fn delete_node(name: &str) -> Change {
    Change::DeleteNode(name.to_owned())
}

fn web() -> Pod {
    pod_of("web", "1")
}

fn big() -> Pod {
    pod_of("big", "3")
}

fn guarded() -> Pod {
    pod_of("guarded", "1")
}

fn protected(mut pod: Pod) -> Pod {
    let key = annotations::DO_NOT_DISRUPT.to_owned();
    pod.annotations.insert(key, "true".to_owned());
    pod
}

/// A cluster: its name, and what builds its first state.
pub type Named = (&'static str, fn() -> World);

/// Returns the clusters.
pub fn all() -> [Named; 9] {
    [
        ("one", one),
        ("late", late),
        ("launch", launch),
        ("empty", empty_nodes),
        ("consolidate", consolidate),
        ("move", moved),
        ("expire", expire),
        ("drift", drift),
        ("whole", whole),
    ]
}

/// One pod gets its node, which drifts, or which a user deletes: the states are few enough for several departures.
fn one() -> World {
    let first = || pool("first").budget("1");
    let changes = vec![
        Change::DeleteClaim("nc-0001".to_owned()),
        delete_node("nc-0001"),
        put(next(first())),
    ];
    let mut world = empty(changes, Vec::new(), vec![first()]);
    world.add_pod(&web());
    world
}

/// One pod and a limit of one node, while the watch of NodeClaims is interrupted; a user deletes the Node.
fn late() -> World {
    let changes = vec![delete_node("nc-0001")];
    let pools = vec![pool("first").limit("nodes", "1")];
    let mut world = empty(changes, Vec::new(), pools);
    world.interrupt(Kind::NodeClaim);
    world.stale_until = after(world.now, Duration::from_secs(120));
    world.add_pod(&web());
    world
}

/// Two NodePools, of which the first may have one node, while the limit of the second is lowered; three pods,
/// one of them of another scheduler, and a buffer.
fn launch() -> World {
    let first = || pool("first").weight(10).limit("nodes", "1").budget("1");
    let changes = vec![
        put(pool("second").limit("cpu", "1")),
        Change::RemovePod("web"),
        Change::DeleteClaim("nc-0001".to_owned()),
        put(next(first())),
    ];
    let second = pool("second").consolidate_after("5s");
    let pools = vec![first(), second.limit("cpu", "6")];
    let mut world = empty(changes, vec![buffer_pod("500m")], pools);
    let mut other = web();
    other.scheduler_name = Some("other".into());
    for pod in [big(), web(), other] {
        world.add_pod(&pod);
    }
    world
}

/// Three nodes became empty, and a pod is created while the watch of pods is interrupted; the budget allows all, until it is lowered.
fn empty_nodes() -> World {
    let changes = vec![
        add(web()),
        put(pool("first").budget("1")),
        Change::DeleteClaim("nc-0002".to_owned()),
    ];
    let world = empty(changes, Vec::new(), vec![pool("first").budget("3")]);
    let world = world.with_node("first", "small", &[]);
    let world = world.with_node("first", "small", &[]);
    let mut world = world.with_node("first", "large", &[]).later(60);
    world.interrupt(Kind::Pod);
    world.add_pod(&big());
    world
}

/// Pods of two nodes fit on one, which an earlier process has tainted; a PodDisruptionBudget guards two of them, and allows no eviction once a third fits nowhere.
fn consolidate() -> World {
    let changes = vec![
        add(pod_of("guarded", "5")),
        Change::Protect("web"),
        add(web()),
        Change::DeleteNodeOf("guarded"),
    ];
    let world = empty(changes, Vec::new(), vec![pool("first").budget("2")]);
    let world = world.with_node("first", "large", &[&guarded(), &web()]);
    let mut world = world.with_node("first", "small", &[&guarded()]).later(60);
    world.change("nc-0001", disrupt);
    world
}

/// The pod of a large node needs a small one only; later it fits beside another.
fn moved() -> World {
    let (light, extra) = (pod_of("light", "500m"), pod_of("extra", "500m"));
    let base = protected(pod_of("base", "1"));
    let changes = vec![
        Change::RemovePod("extra"),
        add(light.clone()),
        Change::Protect("light"),
        Change::DeleteNodeOf("light"),
        delete_node("nc-0001"),
    ];
    let world = empty(changes, Vec::new(), vec![pool("first")]);
    let world = world.with_node("first", "large", &[&light]);
    let world = world.with_node("first", "small", &[&base, &extra]);
    world.later(60)
}

/// A node with a volume is about to expire; a PodDisruptionBudget and an annotation protect its pods until its grace period ends.
fn expire() -> World {
    let of = |expires: &str| {
        pool("first")
            .expire_after(expires)
            .termination_grace_period("1m")
    };
    let locked = protected(pod_of("locked", "1"));
    let changes = vec![
        delete_node("nc-0001"),
        add(guarded()),
        Change::RemovePod("locked"),
    ];
    let world = empty(changes, Vec::new(), vec![of("2m")]);
    let mut world = world.with_node("first", "large", &[&guarded(), &locked]);
    world.attach("nc-0001");
    with_pool(world, of("Never")).later(110)
}

/// Two nodes have drifted, one of which an earlier process has tainted, and which two smaller ones replace; there is a limit, and the budget allows one at a time.
fn drift() -> World {
    let of = || {
        let pool = pool("first").budget("1").limit("nodes", "3");
        pool.termination_grace_period("1m")
    };
    let changes = vec![
        Change::Protect("web"),
        Change::DeleteNodeOf("half"),
        Change::RemovePod("web"),
        put(of()),
    ];
    let half = pod_of("half", "1500m");
    let world = empty(changes, Vec::new(), vec![of()]);
    let world = world.with_node("first", "large", &[&half, &half]);
    let mut world = world.with_node("first", "small", &[&web()]).later(60);
    world.change("nc-0001", disrupt);
    with_pool(
        world,
        next(of()).requires(labels::INSTANCE_TYPE, "In", &["small"]),
    )
}

/// Two NodePools, two nodes, three pods, a buffer, a budget, a PodDisruptionBudget, a limit.
fn whole() -> World {
    let of = || pool("first").budget("1").limit("nodes", "2");
    let changes = vec![
        Change::Protect("guarded"),
        add(big()),
        put(next(of())),
        Change::RemovePod("big"),
    ];
    let pools = vec![of(), pool("second").limit("cpu", "4")];
    let world = empty(changes, vec![buffer_pod("500m")], pools);
    let world = world.with_node("first", "large", &[&big()]);
    let pods = [&guarded(), &guarded()];
    world.with_node("second", "large", &pods).later(60)
}
