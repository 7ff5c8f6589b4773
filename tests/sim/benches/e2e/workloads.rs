//! The workloads of upstream's performance suite, and its limits for them.
//!
//! UPSTREAM: test/suites/performance/{basic,host_name_spreading,wide_deployments}_test.go

use serde_json::{Value, json};

/// Upstream's limits for a phase.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    /// Seconds.
    pub seconds: Option<f64>,
    /// Share of the nodes' CPU that pods request, at least.
    pub cpu: Option<f64>,
    /// Share of the nodes' memory that pods request, at least.
    pub memory: Option<f64>,
    /// Memory of the controllers in MiB.
    pub mib: Option<f64>,
    /// Cores of the controllers on average.
    pub cores: Option<f64>,
}

/// A workload and its two phases.
pub struct Workload {
    /// Name of the workload.
    pub name: &'static str,
    pub deployments: Vec<Deployment>,
    /// Upstream's limits while pods are placed, and while nodes are terminated.
    pub accepted: [Accepted; 2],
}

/// A Deployment, which is scaled down in the second phase.
#[derive(Debug, Clone)]
pub struct Deployment {
    name: String,
    cpu: &'static str,
    memory: &'static str,
    /// Number of pods in the first and in the second phase.
    pub replicas: [u32; 2],
    by_zone: bool,
    by_host: bool,
    alone: bool,
}

impl Deployment {
    fn new(name: String, cpu: &'static str, memory: &'static str, replicas: [u32; 2]) -> Self {
        Self {
            name,
            cpu,
            memory,
            replicas,
            by_zone: false,
            by_host: false,
            alone: false,
        }
    }

    /// Returns the name of the Deployment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the Deployment with all its pods.
    pub fn object(&self) -> Value {
        let labels = json!({"app": self.name});
        let selector = json!({"matchLabels": labels});
        let mut spec = json!({
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": self.cpu, "memory": self.memory}}}],
        });
        let spread: Vec<Value> = [
            (self.by_zone, "topology.kubernetes.io/zone"),
            (self.by_host, "kubernetes.io/hostname"),
        ]
        .into_iter()
        .filter(|(wanted, _)| *wanted)
        .map(|(_, key)| json!({"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}))
        .collect();
        spec["topologySpreadConstraints"] = json!(spread);
        if self.alone {
            let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": selector});
            spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        }
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": self.name, "namespace": "default"},
            "spec": {"replicas": self.replicas[0], "selector": selector,
                "template": {"metadata": {"labels": labels}, "spec": spec}},
        })
    }
}

fn small_and_large(by_host: bool) -> Vec<Deployment> {
    let small = Deployment::new("small".into(), "900m", "3100Mi", [500, 350]);
    vec![
        Deployment { by_host, ..small },
        Deployment::new("large".into(), "3500m", "28Gi", [500, 350]),
    ]
}

fn wide() -> Vec<Deployment> {
    const CPU: [&str; 30] = [
        "240m", "450m", "650m", "900m", "1400m", "1900m", "2400m", "2800m", "3300m", "3700m",
        "2300m", "900m", "1300m", "2800m", "1800m", "1850m", "3300m", "3800m", "225m", "450m",
        "700m", "900m", "1300m", "1800m", "2400m", "2800m", "3400m", "3800m", "3300m", "2800m",
    ];
    const MEMORY: [&str; 30] = [
        "300Mi", "400Mi", "700Mi", "1Gi", "2Gi", "4Gi", "8Gi", "4Gi", "16Gi", "10Gi", "64Gi",
        "30Gi", "32Gi", "32Gi", "30Gi", "20Gi", "30Gi", "300Mi", "500Mi", "750Mi", "1Gi", "2Gi",
        "4Gi", "8Gi", "16Gi", "32Gi", "28Gi", "64Gi", "13Gi", "24Gi",
    ];
    let one = |(n, (cpu, memory)): (usize, (&'static str, &'static str))| {
        let replicas = if n < 20 { [35, 25] } else { [30, 20] };
        Deployment {
            by_zone: true,
            by_host: (3..6).contains(&n),
            alone: n < 3,
            ..Deployment::new(format!("wide-{n}"), cpu, memory, replicas)
        }
    };
    CPU.into_iter().zip(MEMORY).enumerate().map(one).collect()
}

/// Returns the workload of this name.
pub fn named(name: &str) -> Option<Workload> {
    let phase = |seconds: f64, cpu, memory, mib, cores| Accepted {
        seconds: (seconds > 0.0).then_some(seconds),
        cpu,
        memory,
        mib: Some(mib),
        cores: Some(cores),
    };
    let (name, deployments, accepted) = match name {
        "basic" => (
            "basic",
            small_and_large(false),
            [
                phase(120.0, Some(0.53), Some(0.65), 260.0, 0.50),
                phase(1200.0, None, None, 260.0, 0.25),
            ],
        ),
        "hostname" => (
            "hostname",
            small_and_large(true),
            [
                phase(300.0, Some(0.38), Some(0.40), 680.0, 1.15),
                phase(0.0, Some(0.38), Some(0.40), 575.0, 1.00),
            ],
        ),
        "wide" => (
            "wide",
            wide(),
            [
                phase(300.0, Some(0.20), Some(0.20), 370.0, 0.70),
                phase(2400.0, None, None, 340.0, 0.30),
            ],
        ),
        _ => return None,
    };
    Some(Workload {
        name,
        deployments,
        accepted,
    })
}
