//! The controllers under load: what a large cluster costs them, and how fast they answer a burst.
//!
//! The API server runs in a process of its own (`--cluster`), reached over HTTPS as in a real cluster, so that the memory
//! and the CPU measured in the controllers' process (`--controllers`) are theirs alone. Every measurement has fresh
//! processes.

mod cluster;
mod controllers;

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| -> u64 { arguments.get(at).and_then(|a| a.parse().ok()).unwrap_or(0) };
    // Two providers may be linked in; whoever asks first must find the one we mean.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match arguments.first().map(String::as_str) {
        Some("--cluster") => cluster::serve(number(1) as usize, number(2) as usize),
        Some("--controllers") => controllers::measure(number(1), number(2), number(3), number(4)),
        _ => suite(),
    }
}

/// A measurement in fresh processes: so many nodes and pods, so many seconds of pod events, so many pods at once.
fn measured(nodes: u64, pods: u64, steady: u64, burst: u64) -> Value {
    let arguments = [nodes, pods, steady, burst].map(|n| n.to_string());
    let output = std::env::current_exe().and_then(|program| {
        Command::new(program)
            .arg("--controllers")
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
    });
    match output {
        Ok(output) => serde_json::from_slice(&output.stdout).unwrap_or(Value::Null),
        Err(error) => Value::from(error.to_string()),
    }
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or(f64::NAN)
}

const NODES: u64 = 5_000;
const PODS: u64 = 100_000;
const BURST: u64 = 10_000;

fn suite() {
    let mut suite = karpenter_bench::Suite::from_args("controller");
    let seconds = |value: &Value, key: &str| {
        Duration::try_from_secs_f64(number(value, key)).unwrap_or_default()
    };
    suite.case("resident-5k-nodes-100k-pods", |run| {
        let nothing = measured(0, 0, 0, 0);
        let nodes = measured(NODES, 0, 0, 0);
        let all = measured(NODES, PODS, 0, 0);
        run.parameter("nodes", NODES);
        run.parameter("pods", PODS);
        run.sample((NODES + PODS) as usize, seconds(&all, "synced_seconds"));
        let bytes = |more: &Value, less: &Value, n: u64| {
            (number(more, "rss_mib") - number(less, "rss_mib")) * f64::from(1 << 20) / n as f64
        };
        run.record("synced_seconds", all["synced_seconds"].clone());
        run.record("rss_mib", all["rss_mib"].clone());
        run.record("rss_mib_empty", nothing["rss_mib"].clone());
        run.record("bytes_per_node", bytes(&nodes, &nothing, NODES));
        run.record("bytes_per_pod", bytes(&all, &nodes, PODS));
    });
    suite.case("steady-100-pod-events", |run| {
        let all = measured(NODES, PODS, 60, 0);
        run.parameter("nodes", NODES);
        run.parameter("pods", PODS);
        run.parameter("events_per_second", 100);
        run.sample(6_000, seconds(&all, "steady_cpu_seconds"));
        run.record("cores", all["steady_cores"].clone());
        run.record("cores_idle", all["idle_cores"].clone());
        run.record("rss_mib", all["rss_mib_after"].clone());
    });
    suite.case("burst-10k-pods", |run| {
        let all = measured(NODES, PODS, 0, BURST);
        run.parameter("nodes", NODES);
        run.parameter("pods", PODS);
        run.parameter("burst", BURST);
        run.sample(BURST as usize, seconds(&all, "burst_seconds"));
        run.record("nodeclaims", all["burst_claims"].clone());
        run.record("seconds_after_batch", all["burst_seconds"].clone());
        run.record("rss_mib", all["rss_mib_after"].clone());
    });
}
