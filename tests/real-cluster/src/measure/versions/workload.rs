//! The clusters in which versions are compared.

use serde_json::{Value, json};

/// The Deployments of core issue 3225's cluster, with the cores and GiB of memory that their pods request: those of the example
/// `churning_fleet`. A node of 16 cores has two pods of each.
const DEPLOYMENTS: [(&str, f64, f64); 8] = [
    ("api", 2.0, 4.0),
    ("web", 1.0, 2.0),
    ("cart", 0.5, 2.0),
    ("search", 1.5, 6.0),
    ("queue", 0.25, 1.0),
    ("mail", 0.5, 1.0),
    ("jobs", 1.0, 4.0),
    ("auth", 0.5, 2.0),
];

/// What runs in a cluster, and how it changes.
#[derive(Debug)]
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) deployments: Vec<Deployment>,
    /// Percentage of the pods that go in the first half of each period, and come back in the second.
    pub(super) share: u32,
    /// Seconds of `consolidateAfter`.
    pub(super) consolidate_after: u32,
}

#[derive(Debug)]
pub(super) struct Deployment {
    pub(super) name: String,
    pub(super) replicas: u32,
    /// Cores that a pod requests.
    cpu: f64,
    /// GiB that a pod requests.
    memory: f64,
}

impl Workload {
    /// Returns that of core issue 3225 on so many nodes of 16 cores, in an eighth of the time.
    pub(super) fn of_the_issue(nodes: u32) -> Self {
        let deployments = DEPLOYMENTS.map(|(name, cpu, memory)| Deployment {
            name: name.to_owned(),
            replicas: 2 * nodes,
            cpu,
            memory,
        });
        Self {
            name: "issue-3225".to_owned(),
            deployments: deployments.into(),
            share: 20,
            consolidate_after: 40,
        }
    }

    /// Returns a made-up one for 8 to 24 nodes of 16 cores.
    pub(super) fn generated(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let cores = f64::from(random.u32(8..=24) * 14);
        let number = random.u32(4..=10);
        let mut deployment = |index| {
            let cpu = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0][random.usize(..6)];
            // The nodes have 4 GiB a core.
            let memory = cpu * [1.0, 2.0, 4.0][random.usize(..3)];
            Deployment {
                name: format!("app-{index}"),
                replicas: (cores / f64::from(number) / cpu) as u32,
                cpu,
                memory,
            }
        };
        let deployments = (0..number).map(&mut deployment).collect();
        Self {
            name: format!("generated-{seed}"),
            deployments,
            share: random.u32(10..=30),
            consolidate_after: random.u32(20..=120),
        }
    }

    pub(super) fn pods(&self) -> usize {
        self.deployments.iter().map(|it| it.replicas as usize).sum()
    }
}

impl Deployment {
    /// Returns what a pod requests.
    pub(super) fn requests(&self) -> Value {
        let [cpu, memory] = [self.cpu * 1000.0, self.memory * 1024.0].map(|it| it as u64);
        json!({ "cpu": format!("{cpu}m"), "memory": format!("{memory}Mi") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_pods_request_about_the_cores_of_8_to_24_nodes() {
        for seed in 1..=30 {
            let workload = Workload::generated(seed);
            let of = |it: &Deployment| it.cpu * f64::from(it.replicas);
            let cores: f64 = workload.deployments.iter().map(of).sum();
            assert!((0.8 * 112.0..=336.0).contains(&cores), "{workload:?}");
            assert!(workload.deployments.iter().all(|it| it.replicas > 0));
        }
        let requests = Workload::of_the_issue(1).deployments[3].requests();
        assert_eq!(requests, json!({ "cpu": "1500m", "memory": "6144Mi" }));
    }
}
