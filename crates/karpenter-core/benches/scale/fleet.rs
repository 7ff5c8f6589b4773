//! Clusters of any size: pods of workloads on spot nodes, none of which consolidation can delete.

use jiff::Timestamp;
use karpenter_bench::Random;
use karpenter_core::cluster::{Cluster, Delta};
use karpenter_core::fake;
use karpenter_core::pod::{Pod, PodKey};
use karpenter_fixtures::{
    CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, Z1, Z2, Z3, ZONE, claim_of, daemon_set, node,
    node_pool, pod,
};

/// The number of workloads whose pods need more than half of a node.
const LARGE: usize = 20;

/// The size of a cluster.
#[derive(Clone, Copy)]
pub struct Fleet {
    pub nodes: usize,
    pub pods_per_node: usize,
    pub pools: usize,
    pub types: usize,
    pub daemons: usize,
    /// Workloads of small pods: a tenth is spread by zone, a twentieth spread by host, a twentieth alone on its host.
    pub workloads: usize,
    /// All workloads of small pods have a topology constraint.
    pub constrained: bool,
}

impl Fleet {
    pub fn of(nodes: usize, pods_per_node: usize) -> Self {
        Self {
            nodes,
            pods_per_node,
            pools: 20,
            types: 700,
            daemons: 0,
            workloads: 200,
            constrained: false,
        }
    }

    pub fn pods(&self) -> usize {
        self.nodes * self.pods_per_node
    }

    /// Returns the cluster. Each node has a pod that needs more than half of it, which fits on no other; its other pods do.
    pub fn build(&self) -> Cluster {
        let mut cluster = self.empty();
        let templates = self.templates();
        for index in 0..self.nodes {
            self.add_node(&mut cluster, index);
            self.add_pods(&mut cluster, index, &templates);
        }
        cluster
    }

    /// Returns a cluster without nodes.
    pub fn empty(&self) -> Cluster {
        let types = fake::families(self.types);
        let mut cluster = Cluster::new(fake::cluster_config());
        for index in 0..self.pools {
            let pool = node_pool(&format!("pool-{index:02}"))
                .weight(i32::try_from(self.pools - index).unwrap())
                .budget("100%")
                .consolidate_after("0s")
                .build();
            cluster.set_instance_types(pool.metadata.name.as_deref().unwrap(), Ok(types.clone()));
            cluster.apply_node_pool(&pool);
        }
        for index in 0..self.daemons {
            cluster.apply_daemon_set(
                &daemon_set(&format!("daemon-{index}"))
                    .cpu("10m")
                    .memory("16Mi")
                    .build(),
            );
        }
        cluster
    }

    /// Returns a parsed pod of each workload; the large ones come last.
    pub fn templates(&self) -> Vec<Pod> {
        let mut random = Random(11);
        // The small pods of a node request up to 7 of its 16 cores.
        let scale = 20_f64 / self.pods_per_node.max(2) as f64;
        (0..self.workloads + LARGE)
            .map(|workload| {
                let (cpu, mib) = match workload >= self.workloads {
                    true => (8500.0, 40.0 * 1024.0),
                    false => (
                        (200 + 10 * random.below(16)) as f64 * scale,
                        (256 + random.below(768)) as f64 * scale,
                    ),
                };
                let app = format!("app-{workload:04}");
                let pod = pod("template")
                    .label("app", &app)
                    .controlled_by("ReplicaSet", "rs")
                    .cpu(&format!("{}m", cpu as usize))
                    .memory(&format!("{}Mi", mib as usize))
                    .on("node");
                let kind = match self.constrained {
                    true => workload % 2 * 5 + 5,
                    false => workload % 20,
                };
                let pod = match kind {
                    _ if workload >= self.workloads => pod,
                    0 | 10 => pod.spread(ZONE, 100, ("app", &app)),
                    5 => pod.spread(HOSTNAME, 2, ("app", &app)),
                    15 => pod.anti_affinity(HOSTNAME, ("app", &app)),
                    _ => pod,
                };
                Pod::parse(&pod.build())
            })
            .collect()
    }

    /// Adds a node of 16 cores and its NodeClaim.
    pub fn add_node(&self, cluster: &mut Cluster, index: usize) {
        let (node, claim) = self.node(index);
        cluster.apply_node_claim(&claim);
        cluster.apply_node(&node);
    }

    /// Returns a node of 16 cores and its NodeClaim.
    pub fn node(&self, index: usize) -> (karpenter_fixtures::Node, karpenter_fixtures::NodeClaim) {
        let node = node(&name(index))
            .pool(&format!("pool-{:02}", index % self.pools))
            .zone([Z1, Z2, Z3][index % 3])
            .label(CAPACITY_TYPE, "spot")
            .label(INSTANCE_TYPE, "g0-4-16x")
            .without_label("karpenter.test.sh/testnodeclass")
            .cpu("15900m")
            .memory("63Gi")
            .pods("250")
            .ready();
        let created = "2025-12-31T00:00:00Z";
        let claim = claim_of(&node)
            .created(created)
            .is_since("Consolidatable", created);
        (node.build(), claim.build())
    }

    /// Adds the pods of a node.
    pub fn add_pods(&self, cluster: &mut Cluster, index: usize, templates: &[Pod]) {
        let last = self.pods_per_node - 1;
        let first = index * last % self.workloads;
        for place in 0..self.pods_per_node {
            let workload = match place == last {
                true => self.workloads + index % LARGE,
                false => (first + place) % self.workloads,
            };
            let number = index * self.pods_per_node + place;
            bind(cluster, &templates[workload], number, &name(index));
        }
    }
}

/// Adds a copy of a pod, bound to a node.
pub fn bind(cluster: &mut Cluster, template: &Pod, number: usize, node: &str) -> Delta<Pod> {
    let mut pod = template.clone();
    pod.key = key(number);
    pod.node_name = Some(node.into());
    cluster.insert_pod(pod)
}

/// Adds a copy of a pod that has no node.
pub fn pend(cluster: &mut Cluster, template: &Pod, number: usize) {
    let mut pod = template.clone();
    pod.key = key(number);
    pod.node_name = None;
    pod.phase = karpenter_core::pod::Phase::Pending;
    pod.unschedulable = true;
    cluster.insert_pod(pod);
}

fn key(number: usize) -> PodKey {
    let uid = format!("6f9c1b2e-0000-4000-8000-{number:012}");
    PodKey::new("default", &format!("running-{number:07}"), &uid)
}

/// Returns the name of a node.
pub fn name(index: usize) -> String {
    format!("node-{index:06}")
}

pub fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}
