//! Passes that carry over evaluations return the plan of a pass from nothing.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_core::cluster::Cluster;
use karpenter_core::disruption::{DisruptionPlan, DisruptionRequest, Planner, plan};
use karpenter_core::schedule::DefaultSpread;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;

use crate::fixture::{
    Applied, CAPACITY_TYPE, HOSTNAME, Object, Pod, World, Z1, Z2, Z3, ZONE, csi_node, daemon_set,
    now, pdb, persistent_volume_claim, pod, storage_class,
};
use crate::fleet::{FleetNode, node, open_pool, priced_type, sizes};

/// A change, by its kind and by what it is made of.
type Change = (u8, u16, u16);

/// A cluster that changes, and the names of what is in it.
struct Scene {
    cluster: Cluster,
    nodes: Vec<String>,
    pods: Vec<(String, String)>,
    made: usize,
    now: Timestamp,
}

const SIZES: [&str; 4] = ["small", "medium", "large", "huge"];
const KEYS: [&str; 3] = [ZONE, HOSTNAME, CAPACITY_TYPE];

fn apply(cluster: &mut Cluster, object: impl Applied) {
    object.apply(cluster);
}

impl Scene {
    fn new(nodes: u16) -> Self {
        let world = World::empty()
            .with_types(sizes())
            .with_pool(open_pool("default").consolidate_after("30s"))
            .with_pool(open_pool("cheap").weight(10).consolidate_after("0s"));
        let mut scene = Self {
            cluster: world.cluster,
            nodes: Vec::new(),
            pods: Vec::new(),
            made: 0,
            now: now(),
        };
        apply(&mut scene.cluster, [storage_class("fast")]);
        for claim in 0..2 {
            let claim = persistent_volume_claim(&format!("data-{claim}"))
                .set("/spec/storageClassName", "fast");
            apply(&mut scene.cluster, [claim]);
        }
        for number in 0..nodes {
            scene.add_node(number, number / 3);
            for pod in 0..4 {
                scene.add_pod(
                    number.wrapping_mul(5) + pod,
                    number.wrapping_mul(7) + pod,
                    number.into(),
                );
            }
        }
        scene
    }

    fn fleet_node(name: &str, a: u16, b: u16) -> FleetNode {
        let mut node = node(name, SIZES[usize::from(a % 4)])
            .label(ZONE, [Z1, Z2, Z3][usize::from(b % 3)])
            .pool(["default", "cheap"][usize::from(a / 4 % 2)]);
        if b.is_multiple_of(2) {
            node = node.spot();
        }
        if a.is_multiple_of(11) {
            node.node = node.node.taint("team", "search", "NoSchedule");
        }
        if b.is_multiple_of(13) {
            node = node.label("disk", "ssd");
        }
        node
    }

    fn add_node(&mut self, a: u16, b: u16) {
        // Names are given from both ends: new nodes come before others and after them.
        let number = match a % 2 {
            0 => 500 + self.made,
            _ => 500 - self.made,
        };
        self.made += 1;
        let name = format!("node-{number:03}");
        self.put_node(&name, a, b);
        self.nodes.push(name);
    }

    fn put_node(&mut self, name: &str, a: u16, b: u16) {
        let node = Self::fleet_node(name, a, b);
        apply(&mut self.cluster, (node.claim, node.node));
    }

    /// Returns a pod of one of a few workloads.
    fn pod(name: &str, a: u16) -> Object<Pod> {
        let app = format!("app-{}", a % 5);
        let pod = pod(name)
            .label("app", &app)
            .controlled_by("ReplicaSet", "rs")
            .created(&format!("2025-12-01T00:00:{:02}Z", a % 50))
            .cpu(["250m", "500m", "1", "1500m", "3"][usize::from(a / 5 % 5)]);
        let key = KEYS[usize::from(a / 25 % 3)];
        let chosen = ("app", app.as_str());
        match a / 75 % 14 {
            0 => pod.spread(key, 1 + i32::from(a % 2), chosen),
            1 => pod.anti_affinity(key, chosen),
            2 => pod.affinity(key, chosen),
            3 => pod.prefer_anti_affinity(1, key, chosen),
            4 => pod.prefer_affinity(1, key, ("app", "app-0")),
            5 => pod.anti_affinity(key, ("app", "app-1")),
            6 => pod.select("disk", "ssd"),
            7 => pod.tolerate(json!({ "key": "team", "operator": "Exists" })),
            8 if a.is_multiple_of(2) => pod.prefer(5, ZONE, "In", &[Z2]),
            8 => pod.prefer(5, "disk", "In", &["ssd"]),
            9 => pod.host_port(8000 + i32::from(a % 2)),
            10 => pod.volume(&format!("data-{}", a % 2)),
            11 => pod.require(ZONE, "In", &[Z1, Z2]),
            _ => pod,
        }
    }

    fn add_pod(&mut self, a: u16, kind: u16, node: usize) {
        let Some(node) = self.nodes.get(node % self.nodes.len().max(1)).cloned() else {
            return;
        };
        self.made += 1;
        let name = format!(
            "pod-{:03}",
            (a as usize * 31 + self.made * 7) % 1000 + self.made * 1000
        );
        apply(&mut self.cluster, [Self::pod(&name, kind).on(&node)]);
        self.pods.push((name, node));
    }

    fn remove_pod(&mut self, index: usize) -> Option<(String, String)> {
        let at = index.checked_rem(self.pods.len())?;
        let (name, node) = self.pods.swap_remove(at);
        self.cluster.remove_pod("default", &name);
        Some((name, node))
    }

    fn change(&mut self, (kind, a, b): Change) {
        let (x, y) = (usize::from(a), usize::from(b));
        let node = self.nodes.get(x % self.nodes.len().max(1)).cloned();
        match (kind % 48, node) {
            (0..=7, _) => self.add_pod(a, b, x),
            (8..=13, _) => {
                self.remove_pod(x);
            }
            (14..=16, _) => {
                if let Some((name, _)) = self.remove_pod(x) {
                    let node = self.nodes[y % self.nodes.len()].clone();
                    apply(&mut self.cluster, [Self::pod(&name, b).on(&node)]);
                    self.pods.push((name, node));
                }
            }
            (17, _) => {
                if let Some((name, node)) = self.remove_pod(x) {
                    let pod = Self::pod(&name, b)
                        .on(&node)
                        .deleted("2026-01-01T00:00:00Z");
                    apply(&mut self.cluster, [pod]);
                    self.pods.push((name, node));
                }
            }
            (18..=20, _) => self.add_node(a, b),
            (21 | 22, Some(node)) if self.nodes.len() > 2 => {
                self.nodes.retain(|other| *other != node);
                self.pods.retain(|(name, on)| {
                    if *on == node {
                        self.cluster.remove_pod("default", name);
                    }
                    *on != node
                });
                self.cluster.remove_node(&node);
                self.cluster.remove_node_claim(&node);
            }
            // Other labels, taints and sizes.
            (23 | 24, Some(node)) => self.put_node(&node, b, a),
            // The kubelet's report alone.
            (25, Some(node)) => {
                let again = Self::fleet_node(&node, a, b);
                let again =
                    again
                        .node
                        .condition("Ready", "True", "Kubelet", "2025-12-31T12:00:00Z");
                apply(&mut self.cluster, [again]);
            }
            (26 | 27, Some(node)) => {
                let fresh = Self::fleet_node(&node, a, b);
                let fresh = match b % 4 {
                    0 => fresh.drifted("2025-12-31T12:00:00Z"),
                    1 => fresh.without("Consolidatable"),
                    2 => fresh.claim("/status/lastPodEventTime", json!(self.now.to_string())),
                    _ => fresh.claim(
                        "/metadata/annotations",
                        json!({ "karpenter.sh/do-not-disrupt": "true" }),
                    ),
                };
                apply(&mut self.cluster, (fresh.claim, fresh.node));
            }
            (28, Some(node)) => {
                let id = self
                    .cluster
                    .snapshot()
                    .node(&node)
                    .and_then(|node| node.provider_id().map(str::to_owned));
                if let Some(id) = id {
                    match b % 2 {
                        0 => self.cluster.mark_for_deletion(&[&id]),
                        _ => self.cluster.unmark_for_deletion(&[&id]),
                    }
                }
            }
            (29, Some(node)) => self
                .cluster
                .nominate(&node, self.now + SignedDuration::from_secs(20)),
            (30 | 31, _) => {
                let pool = open_pool("default").consolidate_after("30s");
                let pool = match b % 6 {
                    0 => pool.limit("cpu", "64"),
                    1 => pool.weight(20),
                    2 => pool.requires(ZONE, "In", &[Z1, Z3]),
                    3 => pool.set("/status/nodes", 7),
                    4 => pool.taint("team", "soft", "PreferNoSchedule"),
                    _ => pool.budget("10%"),
                };
                apply_pool(&mut self.cluster, &pool);
            }
            (32 | 33, _) => {
                self.made += 1;
                let name = format!("pending-{}", self.made);
                apply(
                    &mut self.cluster,
                    [Self::pod(&name, b).condition(
                        "PodScheduled",
                        "False",
                        "Unschedulable",
                        "2025-12-31T00:00:00Z",
                    )],
                );
                self.pods.push((name, String::new()));
            }
            (34..=37, _) => self.now += SignedDuration::from_secs(i64::from(a % 100)),
            (38 | 39, _) => {
                let app = format!("app-{}", b % 5);
                match a % 3 {
                    0 => {
                        self.cluster.remove_pdb("default", &app);
                    }
                    allowed => apply(
                        &mut self.cluster,
                        [pdb(&app).of(("app", &app)).allows(i32::from(allowed) - 1)],
                    ),
                }
            }
            (40, _) => match b % 2 {
                0 => apply(&mut self.cluster, [daemon_set("log").cpu("100m")]),
                _ => {
                    self.cluster.remove_daemon_set("kube-system", "log");
                }
            },
            (41, _) => {
                // Equal types, or one more.
                let mut types = sizes().to_vec();
                if b.is_multiple_of(2) {
                    types.push(priced_type("tiny", 1, 0.05 + f64::from(a % 5) / 10.0));
                }
                let types: Arc<[_]> = types.into();
                self.cluster
                    .set_instance_types("default", Ok(types.clone()));
                self.cluster.set_instance_types("cheap", Ok(types));
            }
            (42, _) => {
                let class = ["fast", "slow"][usize::from(b % 2)];
                let claim = persistent_volume_claim("data-0").set("/spec/storageClassName", class);
                apply(&mut self.cluster, [claim]);
            }
            (43, Some(node)) => {
                let driver = json!([{ "name": "csi.example.com", "nodeID": node, "allocatable": { "count": b % 3 } }]);
                apply(
                    &mut self.cluster,
                    [csi_node(&node).set("/spec/drivers", driver)],
                );
            }
            _ => {}
        }
    }

    fn request(&self, search: bool, spread: bool) -> DisruptionRequest {
        let mut request = DisruptionRequest::at(self.now);
        request.spot_to_spot = true;
        if !search {
            request.multi_node.cancel = Some(Arc::new(|| true));
        }
        if spread {
            request.policy.default_spread = vec![DefaultSpread {
                topology_key: ZONE.to_owned(),
                max_skew: 2,
                min_domains: None,
                hard: false,
                honor_affinity: true,
                honor_taints: false,
            }];
        }
        request
    }
}

pub fn apply_pool(cluster: &mut Cluster, pool: &Object<crate::fixture::NodePool>) {
    cluster.apply_node_pool(&pool.clone().build());
}

/// Returns everything that a plan decides, as text.
pub fn text(plan: &DisruptionPlan) -> String {
    let mut plan = plan.clone();
    plan.carried_over = 0;
    plan.evaluated = 0;
    format!("{plan:#?}")
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec((any::<u8>(), any::<u16>(), any::<u16>()), 1..24)
}

/// Applies changes one after the other, and compares the passes after each; returns how many evaluations were carried over.
fn compare(
    (nodes, changes): (u16, Vec<Change>),
    (search, spread): (bool, bool),
) -> Result<usize, TestCaseError> {
    let mut scene = Scene::new(nodes);
    let mut planner = Planner::default();
    let mut carried_over = 0;
    for change in std::iter::once((47, 0, 0)).chain(changes) {
        scene.change(change);
        let snapshot = scene.cluster.snapshot();
        let request = scene.request(search, spread);
        let carrying = planner.plan(&snapshot, &request);
        let from_nothing = plan(&snapshot, &request);
        prop_assert_eq!(text(&carrying), text(&from_nothing), "after {:?}", change);
        prop_assert_eq!(from_nothing.carried_over, 0);
        carried_over += carrying.carried_over;
    }
    Ok(carried_over)
}

#[test]
fn a_pass_with_carried_evaluations_returns_the_plan_of_one_from_nothing() {
    let default = ProptestConfig::default();
    let config = ProptestConfig {
        source_file: Some(file!()),
        test_name: Some("carried"),
        // A case is a sequence of passes: fewer than usual, unless PROPTEST_CASES asks for another number.
        cases: if default.cases == 256 {
            24
        } else {
            default.cases
        },
        ..default
    };
    let options = (prop::bool::weighted(0.2), any::<bool>());
    let carried_over = std::cell::Cell::new(0);
    let outcome =
        TestRunner::new(config).run(&((3u16..14, changes()), options), |(scene, options)| {
            carried_over.set(carried_over.get() + compare(scene, options)?);
            Ok(())
        });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    assert!(carried_over.get() > 0, "no evaluation was carried over");
}
