//! What a burst of pods costs per hour if it is planned in several decisions: `burst [PODS] [SECONDS] [RUNS]`.
//!
//! Virtual time: 40 workloads are created over some seconds, five at a time, as kube-controller-manager does. kube-scheduler
//! ([`scheduler`]) binds pods to nodes that are ready; the engine plans those without a place in batches, and its nodes are
//! ready some seconds later. Pods that have a place keep it as the provisioner's nominations do. Every line is a policy; the
//! first makes one decision for all pods.

mod scheduler;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels;
use karpenter_api::v1::{NodeClassReference, NodePool};
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::instance_type::{InstanceType, Overhead};
use karpenter_core::offering::{Offering, Price};
use karpenter_core::pod::{Phase, Pod};
use karpenter_core::resources::Resources;
use karpenter_core::schedule::{Plan, Policy, Query, schedule};
use serde_json::json;

use scheduler::{Amounts, Queues, Room, choose};

const GIB: i64 = 1 << 30;
/// Milliseconds of a step.
const STEP: u64 = 50;
/// How many pods kube-scheduler tries in a second.
const RATE: u64 = 200;

/// How later decisions are made.
#[derive(Debug, Clone, Copy)]
struct How {
    name: &'static str,
    /// All pods are there before the first decision.
    at_once: bool,
    idle: u64,
    max: u64,
    /// Milliseconds from a decision to the readiness of its nodes.
    ready: u64,
    /// Pods with a place keep it until then.
    keeps_places: bool,
    /// Pods are planned where kube-scheduler will probably bind them, not where they were planned before.
    predicts: bool,
    /// kube-scheduler binds pods only where they were planned.
    pinned: bool,
    /// Milliseconds that a pod waits for room elsewhere after others took its place.
    rest: u64,
}

const TURNS: How = How {
    name: "in turns",
    at_once: false,
    idle: 1000,
    max: 10_000,
    ready: 3000,
    keeps_places: true,
    predicts: false,
    pinned: false,
    rest: 0,
};

struct SimPod {
    workload: usize,
    need: Amounts,
    arrives: u64,
    bound: Option<usize>,
    place: Option<usize>,
    since: u64,
    attempts: u32,
    lost: Option<u64>,
}

struct SimNode {
    instance_type: String,
    price: f64,
    ready: u64,
    room: Room,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u64| {
        let given = arguments.next().and_then(|text| text.parse().ok());
        given.unwrap_or(usual)
    };
    let (pods, seconds, seeds) = (number(5000) as usize, number(40), number(1));
    let hows = [
        How {
            name: "one decision",
            at_once: true,
            ..TURNS
        },
        TURNS,
        How {
            name: "bound where planned",
            pinned: true,
            ..TURNS
        },
        How {
            name: "nodes ready after 8 s",
            ready: 8000,
            ..TURNS
        },
        How {
            name: "batches of 10 s idle",
            idle: 10_000,
            ..TURNS
        },
        How {
            name: "batches of 20 s at most",
            max: 20_000,
            ..TURNS
        },
        How {
            name: "places not kept",
            keeps_places: false,
            ..TURNS
        },
        How {
            name: "predicted binding",
            keeps_places: false,
            predicts: true,
            ..TURNS
        },
        How {
            name: "lost places rest 10 s",
            rest: 10_000,
            ..TURNS
        },
    ];
    for how in hows {
        for seed in 0..seeds {
            run(&how, pods, seconds, seed);
        }
    }
}

/// A pseudo-random sequence (splitmix64).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Returns the pods of 40 workloads; five workloads are created at a time.
fn workloads(pods: usize, seconds: u64, at_once: bool) -> Vec<SimPod> {
    const CPU: [i64; 5] = [100, 250, 500, 1000, 2000];
    const MEMORY: [i64; 4] = [GIB / 8, GIB / 2, GIB, 4 * GIB];
    let each = pods / 40;
    let mut all = Vec::new();
    for group in 0..8 {
        for _ in 0..each {
            for one in 0..5 {
                let workload = group * 5 + one;
                let at = (all.len() as u64 * seconds * 1000) / pods as u64;
                all.push(SimPod {
                    workload,
                    need: [CPU[workload % 5], MEMORY[workload / 5 % 4]],
                    arrives: if at_once { 0 } else { at },
                    bound: None,
                    place: None,
                    since: 0,
                    attempts: 0,
                    lost: None,
                });
            }
        }
    }
    all
}

/// Returns kwok's generated instance types for linux.
fn catalogue() -> Vec<InstanceType> {
    let mut all = Vec::new();
    for cpu in [1_i64, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256] {
        for (family, factor) in [("c", 2), ("s", 4), ("m", 8)] {
            for arch in [labels::ARCH_AMD64, labels::ARCH_ARM64] {
                let memory = cpu * factor;
                let price = 0.025 * cpu as f64 + 0.001 * (memory * GIB) as f64 / 1e9;
                let capacity = Resources::new()
                    .with("cpu", cpu * 1000)
                    .with("memory", memory * GIB)
                    .with("pods", (cpu * 16).min(1024));
                let name = format!("{family}-{cpu}x-{arch}-linux");
                let mut one = InstanceType::linux(&name, arch, capacity).with_overhead(Overhead {
                    kube_reserved: Resources::new().with("cpu", 100).with("memory", 120 << 20),
                    ..Overhead::default()
                });
                for zone in ["a", "b", "c", "d"] {
                    one = one
                        .with_offering(Offering::on_demand(zone, Price::per_hour(price)))
                        .with_offering(Offering::spot(zone, Price::per_hour(price * 0.7)));
                }
                all.push(one);
            }
        }
    }
    all
}

struct Burst {
    types: Vec<InstanceType>,
    pods: Vec<SimPod>,
    nodes: Vec<SimNode>,
    ready: BTreeMap<usize, Room>,
}

fn run(how: &How, pods: usize, seconds: u64, seed: u64) {
    let mut random = seed;
    let mut burst = Burst {
        types: catalogue(),
        pods: workloads(pods, seconds, how.at_once),
        nodes: Vec::new(),
        ready: BTreeMap::new(),
    };
    let mut queues = Queues::default();
    let (mut arrived, mut decisions, mut left) = (0, 0, pods);
    let (mut opened, mut last, mut again): (Option<u64>, u64, u64) = (None, 0, 0);
    let mut waiting: BTreeSet<usize> = BTreeSet::new();
    let (mut now, mut done) = (0, 0);
    let mut planned = 0.0;
    while left > 0 && now < 600_000 {
        now += STEP;
        while arrived < pods && burst.pods[arrived].arrives <= now {
            queues.arrive(arrived);
            arrived += 1;
        }
        let new: Vec<usize> = (burst.nodes.iter().enumerate())
            .filter(|(index, node)| node.ready <= now && !burst.ready.contains_key(index))
            .map(|(index, _)| index)
            .collect();
        for index in new {
            burst.ready.insert(index, burst.nodes[index].room.clone());
            queues.wake(now);
        }
        for _ in 0..RATE * STEP / 1000 {
            let Some(pod) = queues.next(now) else { break };
            let (workload, need) = (burst.pods[pod].workload, burst.pods[pod].need);
            let found = if how.pinned {
                let place = burst.pods[pod].place;
                place.filter(|node| burst.ready.get(node).is_some_and(|room| room.fits(need)))
            } else {
                choose(&burst.ready, workload, need, draw(&mut random))
            };
            match found {
                Some(node) => {
                    if let Some(room) = burst.ready.get_mut(&node) {
                        room.add(workload, need);
                    }
                    burst.pods[pod].bound = Some(node);
                    waiting.remove(&pod);
                    left -= 1;
                    done = now;
                }
                None => {
                    if !queues.is_known(pod) {
                        opened.get_or_insert(now);
                        last = now;
                    }
                    queues.refuse(pod, now);
                    waiting.insert(pod);
                }
            }
        }
        let closes = opened.is_some_and(|open| now >= (last + how.idle).min(open + how.max));
        let repeats = opened.is_none() && now >= again + 10_000;
        let all_there = !how.at_once || waiting.len() == pods;
        if !(closes || repeats) || !all_there {
            continue;
        }
        (opened, again) = (None, now);
        let asked = burst.unplaced(how, &waiting, now);
        let asked: BTreeSet<usize> = if how.predicts {
            burst.left_over(asked, &queues, random)
        } else {
            asked
        };
        if asked.is_empty() {
            continue;
        }
        decisions += 1;
        planned += burst.decide(how, &waiting, &asked, now);
    }
    let price: f64 = burst.nodes.iter().map(|node| node.price).sum();
    let free: i64 = burst
        .ready
        .values()
        .map(|room| room.total[0] - room.used[0])
        .sum();
    let total: i64 = burst.ready.values().map(|room| room.total[0]).sum();
    println!(
        "{:<28} {:>8.2} $/h, {:>3} nodes, {:>2} decisions, last pod bound after {:>5.1} s, {:.1} % of CPUs free, {left} left, planned {planned:.2}",
        how.name,
        price,
        burst.nodes.len(),
        decisions,
        done as f64 / 1000.0,
        100.0 * free as f64 / total.max(1) as f64,
    );
}

impl Burst {
    /// Returns the pods to plan: those without a place, and those whose place is gone or overdue.
    fn unplaced(&mut self, how: &How, waiting: &BTreeSet<usize>, now: u64) -> BTreeSet<usize> {
        if !how.keeps_places {
            return waiting.clone();
        }
        let mut by_node: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for pod in waiting {
            if let Some(node) = self.pods[*pod].place {
                by_node.entry(node).or_default().push(*pod);
            }
        }
        for (node, mut there) in by_node {
            let Some(room) = self.ready.get(&node) else {
                continue;
            };
            let mut room = room.clone();
            there.sort_by_key(|pod| {
                let need = self.pods[*pod].need;
                (-need[0], -need[1], *pod)
            });
            for pod in there {
                let one = &mut self.pods[pod];
                if room.fits(one.need) {
                    room.add(one.workload, one.need);
                } else {
                    one.place = None;
                    one.attempts = 0;
                    one.lost = Some(now);
                }
            }
        }
        let nodes = &self.nodes;
        let due = |pod: &SimPod| {
            let Some(node) = pod.place else {
                return pod.lost.is_none_or(|lost| lost + how.rest <= now);
            };
            let back_off = 10_000 << pod.attempts.saturating_sub(1).min(5);
            pod.since.max(nodes[node].ready) + back_off <= now
        };
        waiting
            .iter()
            .copied()
            .filter(|pod| due(&self.pods[*pod]))
            .collect()
    }

    /// Returns the pods without room if kube-scheduler binds all pods in the order of its queue: new ones first.
    fn left_over(
        &self,
        asked: BTreeSet<usize>,
        queues: &Queues,
        mut random: u64,
    ) -> BTreeSet<usize> {
        let mut rooms = self.ready.clone();
        for (index, node) in self.nodes.iter().enumerate() {
            rooms.entry(index).or_insert_with(|| node.room.clone());
        }
        let mut order: Vec<usize> = asked.into_iter().collect();
        order.sort_by_key(|pod| (queues.is_known(*pod), std::cmp::Reverse(*pod)));
        let mut left = BTreeSet::new();
        for pod in order {
            let (workload, need) = (self.pods[pod].workload, self.pods[pod].need);
            match choose(&rooms, workload, need, draw(&mut random)) {
                Some(node) => {
                    if let Some(room) = rooms.get_mut(&node) {
                        room.add(workload, need);
                    }
                }
                None => {
                    left.insert(pod);
                }
            }
        }
        left
    }

    /// Plans the pods, launches nodes and records places; returns the price of the new nodes.
    fn decide(
        &mut self,
        how: &How,
        waiting: &BTreeSet<usize>,
        asked: &BTreeSet<usize>,
        now: u64,
    ) -> f64 {
        let plan = self.plan(how, waiting, asked);
        let index_of = |name: &str| {
            name.trim_start_matches("pod-")
                .parse::<usize>()
                .unwrap_or(0)
        };
        let mut places: Vec<(usize, usize)> = (plan.existing.iter())
            .map(|p| {
                (
                    index_of(&p.pod.name),
                    p.node.trim_start_matches("node-").parse().unwrap_or(0),
                )
            })
            .collect();
        let mut price = 0.0;
        for claim in &plan.new_node_claims {
            let Some(name) = claim.instance_types.first() else {
                continue;
            };
            let Some(one) = self.types.iter().find(|one| one.name == **name) else {
                continue;
            };
            let allocatable = one.allocatable();
            places.extend(
                claim
                    .pods
                    .iter()
                    .map(|pod| (index_of(&pod.name), self.nodes.len())),
            );
            price += claim.hourly_price;
            self.nodes.push(SimNode {
                instance_type: one.name.clone(),
                price: claim.hourly_price,
                ready: now + how.ready,
                room: Room {
                    total: [allocatable.get("cpu"), allocatable.get("memory")],
                    used: [0, 0],
                    pods: 0,
                    most_pods: allocatable.get("pods") as usize,
                    of: BTreeMap::new(),
                },
            });
        }
        for (pod, node) in places {
            let one = &mut self.pods[pod];
            (one.place, one.since) = (Some(node), now);
            one.attempts += 1;
        }
        price
    }

    fn plan(&self, how: &How, waiting: &BTreeSet<usize>, asked: &BTreeSet<usize>) -> Plan {
        let mut cluster = Cluster::new(ClusterConfig::default());
        let class = NodeClassReference {
            group: "example.com".into(),
            kind: "Rack".into(),
            name: "any".into(),
        };
        cluster.apply_node_pool(&NodePool::ready("default", class));
        cluster.set_instance_types("default", Ok(self.types.clone().into()));
        // With predicted binding, all free room is already assigned.
        let nodes = if how.predicts {
            &[][..]
        } else {
            &self.nodes[..]
        };
        for (index, node) in nodes.iter().enumerate() {
            let name = format!("node-{index}");
            let quantities = Resources::new()
                .with("cpu", node.room.total[0])
                .with("memory", node.room.total[1])
                .with("pods", node.room.most_pods as i64)
                .to_quantities();
            let object = json!({
                "metadata": { "name": name, "uid": name, "labels": {
                    labels::HOSTNAME: name, labels::NODE_POOL: "default", labels::REGISTERED: "true", labels::INITIALIZED: "true",
                    labels::INSTANCE_TYPE: node.instance_type,
                } },
                "spec": { "providerID": format!("sim://{name}") },
                "status": { "capacity": quantities, "allocatable": quantities },
            });
            if let Ok(object) = serde_json::from_value::<Node>(object) {
                cluster.apply_node(&object);
            }
        }
        let insert = |cluster: &mut Cluster, index: usize, node: Option<usize>| {
            let one = &self.pods[index];
            let requests = Resources::new()
                .with("cpu", one.need[0])
                .with("memory", one.need[1]);
            let mut pod = Pod::pending("default", &format!("pod-{index}"), requests);
            pod = pod.with_shape(|shape| {
                shape
                    .labels
                    .insert("app".into(), format!("work-{}", one.workload));
            });
            if let Some(node) = node {
                pod.node_name = Some(format!("node-{node}").into());
                pod.phase = Phase::Running;
            }
            cluster.insert_pod(pod);
        };
        if !how.predicts {
            for (index, pod) in self.pods.iter().enumerate() {
                let kept = pod
                    .place
                    .filter(|_| waiting.contains(&index) && !asked.contains(&index));
                if let Some(node) = pod.bound.or(kept) {
                    insert(&mut cluster, index, Some(node));
                }
            }
        }
        for index in asked {
            insert(&mut cluster, *index, None);
        }
        schedule(
            &cluster.snapshot(),
            &Policy::at(Timestamp::UNIX_EPOCH),
            &Query::default(),
        )
    }
}
