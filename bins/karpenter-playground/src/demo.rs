//! The built-in demo, and waiting until the cluster is idle.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use karpenter_lab::local_cluster::LocalCluster;
use karpenter_lab::manifests;
use karpenter_lab::progress::Progress;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

/// The NodePool and the Deployment of the demo.
pub const MANIFESTS: &str = include_str!("demo.yaml");

/// Number of replicas of the demo's Deployment.
pub const REPLICAS: i32 = 500;

/// How often the cluster is polled (real time).
const LOOK: Duration = Duration::from_millis(200);

/// Time (cluster time) without other changes after which pending pods count as permanently pending.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time (cluster time) without changes after which the cluster counts as idle.
const CALM: Duration = Duration::from_secs(3);

/// Progress output: a live line on a terminal, plain lines otherwise.
#[derive(Debug)]
pub struct Screen {
    bar: Option<ProgressBar>,
    last: String,
    started: Timestamp,
}

impl Screen {
    /// Returns a screen that shows times relative to `started`.
    #[must_use]
    pub fn new(started: Timestamp) -> Self {
        let bar = std::io::stdout().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{spinner} [{bar:30}] {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self {
            bar,
            last: String::new(),
            started,
        }
    }

    /// Prints the next step.
    pub fn step(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => println!("{text}"),
        }
    }

    /// Shows the progress towards `goal` running pods.
    pub fn show(&mut self, progress: &Progress, goal: usize, now: Timestamp) {
        let line = progress.line();
        if let Some(bar) = &self.bar {
            bar.set_length(goal.max(1) as u64);
            bar.set_position(progress.running.min(goal.max(1)) as u64);
            bar.set_message(line);
        } else if line != self.last {
            println!(
                "{:>6.1}s  {line}",
                now.duration_since(self.started).as_secs_f64()
            );
            self.last = line;
        }
    }

    /// Clears the live line.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Waits until the cluster is idle; returns whether every pod runs.
///
/// # Errors
/// If the API server does not answer.
pub async fn until_idle(cluster: &LocalCluster, screen: &mut Screen) -> anyhow::Result<bool> {
    let mut still_since: Option<Timestamp> = None;
    loop {
        let progress = Progress::of(cluster)
            .await
            .context("cannot read the cluster state")?;
        let now = cluster.clock.now();
        screen.show(&progress, progress.running + progress.pending, now);
        if progress.is_still() {
            let calm = cluster.clock.since(*still_since.get_or_insert(now));
            if progress.is_quiet() && progress.updating_deployments == 0 && calm >= CALM {
                return Ok(true);
            }
            if calm >= PATIENCE {
                return Ok(progress.pending == 0);
            }
        } else {
            still_since = None;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns the summary of a run: pods, nodes, cost and duration.
///
/// # Errors
/// If the API server does not answer.
pub async fn summary(cluster: &LocalCluster, started: Timestamp) -> anyhow::Result<String> {
    let progress = Progress::of(cluster)
        .await
        .context("cannot read the cluster state")?;
    let now = cluster.clock.now();
    let mut lines = vec![
        format!(
            "pods:      {} running, {} pending",
            progress.running, progress.pending
        ),
        format!(
            "nodes:     {} ready, {} nodeclaims, {} launched in total",
            progress.ready_nodes,
            progress.claims,
            cluster.cloud.launched()
        ),
    ];
    for (name, count) in &progress.types {
        lines.push(format!("           {count} x {name}"));
    }
    lines.push(format!(
        "cost:      ${:.4} per hour, ${:.4} so far",
        progress.hourly_price,
        cluster.cloud.spent(now)
    ));
    lines.push(format!(
        "duration:  {:.1} s",
        now.duration_since(started).as_secs_f64()
    ));
    Ok(lines.join("\n"))
}

/// Applies a NodePool and a Deployment, scales it up and down, and shows the progress.
///
/// # Errors
/// If a step does not finish in time.
pub async fn run(cluster: &LocalCluster) -> anyhow::Result<()> {
    let started = cluster.clock.now();
    let mut screen = Screen::new(started);
    let client = cluster.client();
    let goal = usize::try_from(REPLICAS).unwrap_or_default();

    screen.step("Create a NodePool, a KWOKNodeClass, and a Deployment without replicas.");
    manifests::apply(&client, &manifests::parse(MANIFESTS)?).await?;

    screen.step(&format!("Scale up: {REPLICAS} pods request 1 CPU each."));
    scale(cluster, REPLICAS).await?;
    wait(cluster, &mut screen, goal, "the pods do not run", |p| {
        p.running == goal && p.moving == 0
    })
    .await?;
    let up = cluster.clock.since(started);
    let peak = Progress::of(cluster).await?;
    screen.step(&format!(
        "All {REPLICAS} pods run after {:.1} s on {} nodes at ${:.4} per hour.",
        up.as_secs_f64(),
        peak.ready_nodes,
        peak.hourly_price
    ));

    screen.step("Scale down: the nodes are empty.");
    let before = cluster.clock.now();
    scale(cluster, 0).await?;
    wait(
        cluster,
        &mut screen,
        goal,
        "the nodes are not terminated",
        |p| p.claims == 0 && p.running == 0 && p.types.is_empty(),
    )
    .await?;
    screen.step(&format!(
        "All nodes are terminated after {:.1} s.",
        cluster.clock.since(before).as_secs_f64()
    ));
    screen.finish();
    println!("{}", summary(cluster, started).await?);
    Ok(())
}

async fn wait(
    cluster: &LocalCluster,
    screen: &mut Screen,
    goal: usize,
    else_: &str,
    done: impl Fn(&Progress) -> bool,
) -> anyhow::Result<()> {
    let limit = cluster.clock.instant_after(Duration::from_secs(600));
    while tokio::time::Instant::now() < limit {
        let progress = Progress::of(cluster)
            .await
            .context("cannot read the cluster state")?;
        screen.show(&progress, goal, cluster.clock.now());
        if done(&progress) {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
    bail!("{else_} within ten minutes")
}

async fn scale(cluster: &LocalCluster, replicas: i32) -> anyhow::Result<()> {
    let api: Api<Deployment> = Api::namespaced(cluster.client(), "default");
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    api.patch("inflate", &PatchParams::default(), &patch)
        .await
        .context("scaling `inflate`")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demos_manifests_are_a_class_a_pool_and_a_deployment() {
        let kinds: Vec<_> = manifests::parse(MANIFESTS)
            .unwrap()
            .into_iter()
            .filter_map(|o| o.types)
            .map(|t| t.kind)
            .collect();
        assert_eq!(kinds, ["KWOKNodeClass", "NodePool", "Deployment"]);
    }
}
