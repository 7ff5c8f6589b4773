//! The report of a measurement.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use jiff::Timestamp;
use karpenter_kwok::catalogue;
use serde_json::{Map, Value, json};

use crate::audit;
use crate::controller::Controller;
use crate::helm::KARPENTER;

/// Name of a figure.
pub(super) const SECONDS: &str = "seconds until the last pod was bound";

/// Figures in the order of the report.
#[derive(Debug, Default)]
pub(super) struct Report(Vec<(String, Value)>);

impl Report {
    pub(super) fn add(&mut self, name: &str, value: Value) {
        self.0.push((name.to_owned(), value));
    }

    /// Adds the number of nodes, and their price.
    pub(super) fn nodes(&mut self, nodes: &[Value]) {
        self.add("nodes", nodes.len().into());
        self.add("dollars per hour", json!(round(price(nodes))));
    }

    /// Adds the requests to the API server.
    pub(super) fn requests(&mut self, log: &Path, since: Timestamp) -> Result<()> {
        let requests = audit::requests(log, KARPENTER, since)?;
        let counts = audit::counts(&requests);
        let conflicts: usize = counts.iter().map(|(_, _, bad)| bad).sum();
        self.add("requests", requests.len().into());
        self.add("conflicts", conflicts.into());
        let longest = audit::longest_gap(&requests, "leases");
        self.add(
            "longest time between renewals of the lease",
            json!(round(longest)),
        );
        for (what, all, conflicts) in counts.iter().take(8) {
            let text = match conflicts {
                0 => all.to_string(),
                _ => format!("{all}, {conflicts} of them conflicts"),
            };
            self.add(&format!("  {what}"), text.into());
        }
        Ok(())
    }

    /// Adds the number of scheduling decisions and, where the controller counts them, the shares of pods that were bound where they
    /// were planned, and that were planned once.
    pub(super) fn decisions(&mut self, metrics: &str) {
        let sum = |name: &str, label: &str| -> f64 {
            let lines = metrics.lines();
            let lines = lines.filter(|line| line.starts_with(name) && line.contains(label));
            lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        const DECISIONS: &str = "karpenter_scheduler_scheduling_duration_seconds_count";
        const BOUND: &str = "karpenter_pods_nominations_bound_total{";
        let decisions = sum(DECISIONS, "controller=\"provisioner\"");
        self.add("decisions", json!(decisions));
        let all = sum(BOUND, "");
        if all > 0.0 {
            let percent = |label: &str| json!(round(sum(BOUND, label) * 100.0 / all));
            self.add(
                "percent of nominated pods bound where planned",
                percent("as_planned=\"true\""),
            );
            self.add(
                "percent of nominated pods planned once",
                percent("plans=\"one\""),
            );
        }
    }

    /// Adds the resource usage of the process.
    pub(super) fn process(&mut self, controller: &Controller) {
        if let Some((seconds, peak)) = process_of(controller) {
            self.add("processor seconds", json!(round(seconds)));
            self.add("peak MiB", json!(round(peak)));
        }
    }

    pub(super) fn figures(&self) -> Map<String, Value> {
        self.0.iter().cloned().collect()
    }

    pub(super) fn print(&self, as_json: bool) {
        if as_json {
            println!("{}", Value::from(self.figures()));
            return;
        }
        for (name, value) in &self.0 {
            let text = value.as_str().map_or(value.to_string(), str::to_owned);
            println!("{name:46} {text}");
        }
    }
}

/// Returns the price of nodes per hour, from the prices of the built-in instance types.
pub(super) fn price(nodes: &[Value]) -> f64 {
    let mut prices: BTreeMap<(String, String), f64> = BTreeMap::new();
    for instance_type in catalogue::generate() {
        for offering in &instance_type.offerings {
            let mut requirements = offering.requirements.iter();
            let capacity = requirements.find(|r| r.key == "karpenter.sh/capacity-type");
            let capacity = capacity.and_then(|r| r.values.first());
            let key = (
                instance_type.name.clone(),
                capacity.cloned().unwrap_or_default(),
            );
            prices.insert(key, offering.price);
        }
    }
    let of = |node: &Value| {
        let label = |key: &str| {
            let value = node["metadata"]["labels"][key].as_str();
            value.unwrap_or_default().to_owned()
        };
        let key = (
            label("node.kubernetes.io/instance-type"),
            label("karpenter.sh/capacity-type"),
        );
        prices.get(&key).copied().unwrap_or_default()
    };
    nodes.iter().map(of).sum()
}

pub(super) fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// Returns the CPU seconds of a process, and its peak memory in MiB.
fn process_of(controller: &Controller) -> Option<(f64, f64)> {
    let process = procfs::process::Process::new(i32::try_from(controller.id()).ok()?).ok()?;
    let stat = process.stat().ok()?;
    let ticks = stat.utime + stat.stime;
    let peak = process.status().ok()?.vmhwm?;
    let seconds = ticks as f64 / procfs::ticks_per_second() as f64;
    Some((seconds, peak as f64 / 1024.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_of_nodes_follows_their_instance_type_and_capacity_type() {
        let node = |instance_type: &str, capacity: &str| {
            json!({ "metadata": { "labels": {
                "node.kubernetes.io/instance-type": instance_type, "karpenter.sh/capacity-type": capacity,
            } } })
        };
        let nodes = [
            node("c-1x-amd64-linux", "on-demand"),
            node("c-1x-amd64-linux", "spot"),
        ];
        assert!((price(&nodes) - 0.027147483648 - 0.0190032385536).abs() < 1e-9);
        assert_eq!(price(&[node("unknown", "spot")]), 0.0);
    }
}
