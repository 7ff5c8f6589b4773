//! What blocks a pending pod, and what would help: one cluster for each typical mistake.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use jiff::Timestamp;
use karpenter_core::cluster::Cluster;
use karpenter_core::fake::{cluster_config, instance_type, offering};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::schedule::{DefaultSpread, Policy};
use karpenter_decisions::blocking::{Blocking, Effect, Prepared, Relaxation, Side, blocking};
use karpenter_fixtures::{
    ARCH, CAPACITY_TYPE, INSTANCE_TYPE, NodePool, Object, Pod, Z1, Z2, Z3, ZONE, node, node_pool,
    pod, read,
};
use serde_json::{Value, json};

/// A cluster with one NodePool of four instance types: 2, 4, 8 and 16 cores with twice as many GiB, in three zones.
struct World {
    cluster: Cluster,
    policy: Policy,
}

fn types() -> Vec<InstanceType> {
    [2, 4, 8, 16]
        .map(|cpu| {
            instance_type(&format!("m-{cpu}"))
                .cpu(cpu)
                .gib(2 * cpu)
                .pods(20)
                .build()
        })
        .into()
}

/// A pending pod of Deployment shop/web that requests one core.
fn web(name: &str) -> Object<Pod> {
    pod(name)
        .namespace("shop")
        .label("app", "web")
        .label("pod-template-hash", "7c9")
        .controlled_by("ReplicaSet", "web-7c9")
        .cpu("1")
}

/// The NodePool `default` without requirements.
fn default_pool() -> Object<NodePool> {
    node_pool("default")
}

impl World {
    fn new() -> Self {
        Self {
            cluster: Cluster::new(cluster_config()),
            policy: Policy::at(Timestamp::UNIX_EPOCH),
        }
    }

    fn pool(self, pool: Object<NodePool>) -> Self {
        self.pool_of(pool, types())
    }

    fn pool_of(mut self, pool: Object<NodePool>, types: Vec<InstanceType>) -> Self {
        let name = pool.name().to_owned();
        self.cluster.apply_node_pool(&pool.build());
        self.cluster.set_instance_types(&name, Ok(types.into()));
        self
    }

    /// Adds a Ready node of a NodePool with 4 cores and its pods.
    fn node(mut self, name: &str, zone: &str, pods: Vec<Object<Pod>>) -> Self {
        let node = node(name).zone(zone).label(CAPACITY_TYPE, "spot");
        let node = node.cpu("4").memory("8Gi").pods("20").ready();
        self.cluster.apply_node(&node.build());
        for pod in pods {
            self.cluster.apply_pod(&pod.on(name).build());
        }
        self
    }

    fn ask(mut self, pod: Object<Pod>) -> Blocking {
        let name = pod.name().to_owned();
        self.cluster.apply_pod(&pod.build());
        let snapshot = self.cluster.snapshot();
        let pod = snapshot.pod("shop", &name).unwrap();
        blocking(&snapshot, &self.policy, None, pod)
    }
}

fn ids(answer: &Blocking) -> Vec<&str> {
    assert!(
        answer.blocking.exact && answer.blocking.minimal && !answer.truncated,
        "{answer:#?}"
    );
    let atoms = answer.blocking.atoms.iter();
    atoms.map(|atom| atom.id.as_str()).collect()
}

fn texts(answer: &Blocking) -> Vec<&str> {
    let changes = answer.relaxations.iter();
    changes.map(|change| change.text.as_str()).collect()
}

fn assert_patch(relaxation: &Relaxation, kind: &str, target: &str, value: Value) {
    let patch = relaxation.patch.as_ref().unwrap();
    assert_eq!((patch.kind, patch.target.as_str()), (kind, target));
    assert_eq!(patch.value, value);
}

fn one_zone() -> World {
    World::new().pool(in_zones("default", &[Z1]))
}

fn ask(pool: Object<NodePool>, pod: Object<Pod>) -> Blocking {
    World::new().pool(pool).ask(pod)
}

fn in_zones(name: &str, zones: &[&str]) -> Object<NodePool> {
    node_pool(name).requires(ZONE, "In", zones)
}

/// Conformance: EXP-01
#[test]
fn a_zone_that_no_node_pool_allows_is_blocked_by_each_requirement() {
    let world = World::new()
        .pool(in_zones("a", &[Z1]))
        .pool(in_zones("b", &[Z2]))
        .node("n1", Z1, vec![]);
    let answer = world.ask(web("p").select(ZONE, Z3));
    assert_eq!(
        ids(&answer),
        [
            &format!("pod.nodeSelector[{ZONE}]") as &str,
            "pool[a].requirements[0]",
            "pool[b].requirements[0]"
        ]
    );
    let first = &answer.relaxations[0];
    assert_eq!(first.text, format!("drop nodeSelector {ZONE}=test-zone-3"));
    assert_eq!(first.delta_per_hour, 0.0);
    assert_eq!(first.effect, Effect::Node("n1".to_owned()));
    let drop = json!([{ "op": "remove", "path": "/spec/template/spec/nodeSelector/topology.kubernetes.io~1zone" }]);
    assert_patch(first, "json", "Deployment/shop/web", drop);
    let second = &answer.relaxations[1];
    assert_eq!(
        second.text,
        format!("NodePool a: {ZONE} In: add test-zone-3")
    );
    let add = json!([{ "op": "add", "path": "/spec/template/spec/requirements/0/values/-", "value": "test-zone-3" }]);
    assert_patch(second, "json", "NodePool/a", add);
    let reasons = [("NodeSelector".to_owned(), 1)];
    assert_eq!(answer.existing.reasons, reasons.into());
}

#[test]
fn a_limit_is_raised_to_what_the_smallest_node_needs() {
    let world = World::new().pool(default_pool().limit("cpu", "5")).node(
        "n1",
        Z1,
        vec![web("other").cpu("4")],
    );
    let answer = world.ask(web("p").cpu("3"));
    assert_eq!(
        ids(&answer),
        ["pod.requests[cpu]", "pool[default].limits[cpu]"]
    );
    let mut changes = answer.relaxations.iter();
    let limit = changes.find(|it| it.side == Side::Pool).unwrap();
    assert_eq!(limit.text, "NodePool default: limits cpu 5 -> 8");
    let raised = json!({ "spec": { "limits": { "cpu": "8" } } });
    assert_patch(limit, "merge", "NodePool/default", raised);
}

/// Conformance: EXP-03
#[test]
fn an_untolerated_taint_is_tolerated_or_removed() {
    let answer = World::new()
        .pool(default_pool().taint("team", "search", "NoSchedule"))
        .ask(web("p"));
    assert_eq!(
        ids(&answer),
        [
            "pod.toleration[team=search:NoSchedule]",
            "pool[default].taints[0]"
        ]
    );
    assert!(answer.blocking.minimum);
    assert_eq!(
        texts(&answer),
        [
            "tolerate taint team=search:NoSchedule",
            "NodePool default: drop taint team=search:NoSchedule"
        ]
    );
    let [tolerate, drop] = &answer.relaxations[..] else {
        panic!("{answer:#?}");
    };
    let toleration =
        json!({ "effect": "NoSchedule", "key": "team", "operator": "Equal", "value": "search" });
    let tolerant = json!({ "spec": { "template": { "spec": { "tolerations": [toleration] } } } });
    assert_patch(tolerate, "strategic", "Deployment/shop/web", tolerant);
    assert_eq!(tolerate.delta_per_hour, drop.delta_per_hour);
}

/// Conformance: EXP-07
#[test]
fn a_request_too_large_for_every_type_is_lowered_to_the_largest_that_fits() {
    let answer = ask(default_pool(), web("p").memory("40Gi"));
    assert_eq!(ids(&answer), ["pod.requests[memory]"]);
    // 32 GiB, less the 10 MiB of the kubelet.
    assert_eq!(texts(&answer), ["requests memory 40Gi -> 31.99Gi"]);
    let exactly = answer.relaxations[0].change.as_ref();
    let exactly = exactly.map(|change| (change.from.as_str(), change.to.as_str()));
    assert_eq!(exactly, Some(("40Gi", "32758Mi")));
}

#[test]
fn each_mistake_is_named_with_the_change_that_undoes_it() {
    let arm = || web("p").select(ARCH, "arm64");
    let seven = default_pool().requires_min(INSTANCE_TYPE, "Exists", &[], 7);
    for (mistake, pool, pod, blocks, helps) in [
        (
            "an architecture that nothing has",
            default_pool(),
            arm(),
            "pod.nodeSelector[kubernetes.io/arch]",
            "drop nodeSelector kubernetes.io/arch=arm64",
        ),
        (
            "more values than there are",
            seven,
            web("p"),
            "pool[default].requirements[0].minValues",
            "NodePool default: minValues of node.kubernetes.io/instance-type 7 -> 4",
        ),
        (
            "two at once",
            default_pool(),
            arm().memory("40Gi"),
            "pod.nodeSelector[kubernetes.io/arch]",
            "drop nodeSelector kubernetes.io/arch=arm64 and drop requests memory 40Gi",
        ),
    ] {
        let answer = ask(pool, pod);
        assert_eq!(ids(&answer), [blocks], "{mistake}");
        assert_eq!(texts(&answer), [helps], "{mistake}");
    }
}

/// Conformance: DEC-019
#[test]
fn a_misspelt_label_is_reported_with_the_label_that_was_meant() {
    let misspelt = web("p").select("kubernetes.io/arhc", "amd64");
    let answer = ask(default_pool(), misspelt);
    assert_eq!(ids(&answer), ["pod.nodeSelector[kubernetes.io/arhc]"]);
    assert_eq!(
        answer.blocking.atoms[0].hint.as_deref(),
        Some(
            "no node and no NodePool has the label kubernetes.io/arhc; did you mean kubernetes.io/arch?"
        )
    );
    // A label that exists, with a value that nothing has, is not misspelt.
    let answer = ask(default_pool(), web("p").select(ARCH, "arm64"));
    assert_eq!(answer.blocking.atoms[0].hint, None);
}

#[test]
fn a_misspelt_architecture_is_reported_with_the_one_that_was_meant() {
    let hint = |pod| ask(default_pool(), pod).blocking.atoms[0].hint.clone();
    let expected = Some("kubernetes.io/arch is never amd46; did you mean amd64?".to_owned());
    assert_eq!(hint(web("p").select(ARCH, "amd46")), expected);
    assert_eq!(hint(web("p").require(ARCH, "In", &["amd46"])), expected);
}

#[test]
fn a_prepared_cluster_answers_as_one_prepared_for_the_pod() {
    let mut world = one_zone();
    let asked = [
        web("zone").select(ZONE, Z3),
        web("large").cpu("100"),
        web("arch").select(ARCH, "arm64"),
        web("fits"),
    ];
    for pod in asked {
        world.cluster.apply_pod(&pod.build());
    }
    let snapshot = world.cluster.snapshot();
    let prepared = Prepared::new(&snapshot, &world.policy);
    for name in ["zone", "large", "arch", "fits", "zone"] {
        let pod = snapshot.pod("shop", name).unwrap();
        let alone = blocking(&snapshot, &world.policy, None, pod);
        assert_eq!(prepared.blocking(None, pod), alone, "{name}");
    }
}

#[test]
fn a_spread_that_one_zone_cannot_meet_is_relaxed_by_its_skew() {
    let spread = |name: &str| web(name).spread(ZONE, 1, ("app", "web"));
    let full = web("full").remove("/metadata/labels").cpu("4");
    // Nothing can be launched in test-zone-2, which counts because of its node.
    let world = World::new()
        .pool(in_zones("default", &[Z1]))
        .node("n1", Z1, vec![spread("w1"), spread("w2"), spread("w3")])
        .node("n2", Z2, vec![full]);
    let answer = world.ask(spread("p"));
    assert!(ids(&answer).contains(&"pod.spread[0]"), "{answer:#?}");
    let mut changes = answer.relaxations.iter();
    let skew = changes.find(|it| it.text.contains("maxSkew")).unwrap();
    assert_eq!(skew.text, "topologySpreadConstraints[0] maxSkew 1 -> 4");
    let path = "/spec/template/spec/topologySpreadConstraints/0/maxSkew";
    let four = json!([{ "op": "replace", "path": path, "value": 4 }]);
    assert_patch(skew, "json", "Deployment/shop/web", four);
}

#[test]
fn an_offering_that_is_unavailable_can_be_waited_for() {
    let mut spot = offering("spot", Z1, 0.1);
    spot.available = false;
    let kind = instance_type("m-2")
        .offerings(vec![spot, offering("on-demand", Z2, 0.3)])
        .build();
    let answer = World::new()
        .pool_of(default_pool(), vec![kind])
        .ask(web("p").select(ZONE, Z1));
    assert_eq!(
        ids(&answer),
        [
            &format!("pod.nodeSelector[{ZONE}]") as &str,
            "offer[default/spot/test-zone-1]"
        ]
    );
    assert_eq!(
        texts(&answer),
        [
            "wait until spot capacity is available in test-zone-1 (NodePool default)",
            &format!("drop nodeSelector {ZONE}=test-zone-1"),
        ]
    );
}

/// Conformance: EXP-05
#[test]
fn the_anti_affinity_of_another_workload_names_it_and_comes_last() {
    let other = pod("db-0")
        .namespace("shop")
        .label("app", "db")
        .controlled_by("StatefulSet", "db")
        .cpu("1")
        .anti_affinity(ZONE, ("app", "web"));
    let answer = one_zone().node("n1", Z1, vec![other]).ask(web("p"));
    assert!(
        ids(&answer).contains(&"antiAffinity[StatefulSet shop/db][0]"),
        "{answer:#?}"
    );
    let last = answer.relaxations.last().unwrap();
    assert_eq!(last.affects.as_deref(), Some("StatefulSet shop/db"));
    assert_eq!(last.text, "drop the anti-affinity of StatefulSet shop/db");
}

#[test]
fn a_node_pool_that_is_not_ready_blocks() {
    let since = "2026-01-01T00:00:00Z";
    let not_ready = default_pool().condition("Ready", "False", "No", since);
    let answer = ask(not_ready, web("p"));
    assert_eq!(ids(&answer), ["pool[default].NotReady"]);
    let text = &answer.blocking.atoms[0].text;
    assert_eq!(text, "NodePool default: is not Ready");
}

#[test]
fn the_default_spread_of_the_scheduler_blocks_like_one_of_the_pod() {
    let mut world = one_zone();
    world.policy.default_spread = vec![DefaultSpread {
        topology_key: "rack".to_owned(),
        max_skew: 1,
        min_domains: None,
        hard: true,
        honor_affinity: true,
        honor_taints: false,
    }];
    world.cluster.apply_replica_set(&read(json!({
        "metadata": { "name": "web-7c9", "namespace": "shop", "uid": "web-7c9" }, "spec": { "selector": { "matchLabels": { "app": "web" } } },
    })));
    assert_eq!(ids(&world.ask(web("p"))), ["pod.defaultSpread"]);
}

#[test]
fn a_pod_that_fits_alone_is_said_to() {
    let answer = ask(default_pool(), web("p"));
    assert!(answer.fits_alone);
    assert!(answer.blocking.atoms.is_empty() && answer.relaxations.is_empty());
}

#[test]
fn without_node_pools_nothing_that_can_be_changed_blocks() {
    let answer = World::new().ask(web("p"));
    assert!(!answer.fits_alone);
    assert!(answer.blocking.atoms.is_empty() && answer.relaxations.is_empty());
}

#[test]
fn a_label_of_the_node_pool_does_not_block_a_pod_that_asks_for_it() {
    let labelled = || {
        default_pool()
            .node_label("intent", "apps")
            .requires("example.com/team", "In", &["a", "b"])
    };
    let wants = |memory: &str| {
        let asking = web("p")
            .select("intent", "apps")
            .select("example.com/team", "a")
            .memory(memory);
        ask(labelled(), asking)
    };
    assert!(wants("1Gi").fits_alone);
    assert_eq!(ids(&wants("64Gi")), ["pod.requests[memory]"]);
    let answer = ask(labelled(), web("p").select("intent", "web"));
    assert!(ids(&answer).contains(&"pod.nodeSelector[intent]"));
}
