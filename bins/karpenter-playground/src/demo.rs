//! The built-in demo, and waiting until the cluster is idle.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Event;
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_lab::local_cluster::LocalCluster;
use karpenter_lab::manifests;
use karpenter_lab::progress::Progress;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

/// The NodePool, and a Deployment without replicas.
const MANIFESTS: &str = include_str!("demo.yaml");

const BURST: &str = include_str!("burst.yaml");

/// The number of pods of `burst.yaml`, and of these in the Deployment `web`, before and after it is scaled down.
const PODS: usize = 300;
const WEB_REPLICAS: usize = 200;
const SCALED_REPLICAS: usize = 40;

/// A Deployment whose pod fits on no node of the NodePool.
const REPORT: &str = include_str!("report.yaml");

const NAMESPACE: &str = "default";

const HOURS_A_MONTH: f64 = 730.0;

/// Time (cluster time) without changes after which nodes count as consolidated: longer than `consolidateAfter`, the interval of passes,
/// the validation of a proposal and the drain of a node together.
const CONSOLIDATION_TIME: Duration = Duration::from_secs(45);

/// The longest time (cluster time) of all acts, which take two minutes.
const DEMO_TIMEOUT: Duration = Duration::from_secs(600);

/// The longest time (real time) without a line.
const OUTPUT_INTERVAL: Duration = Duration::from_secs(4);

/// How often the cluster is polled (real time).
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Time (cluster time) without other changes after which pending pods count as permanently pending.
const PENDING_TIMEOUT: Duration = Duration::from_secs(120);

/// Time (cluster time) without changes after which the cluster counts as idle.
const IDLE_TIME: Duration = Duration::from_secs(3);

/// Progress output: a live line on a terminal, plain lines otherwise.
#[derive(Debug)]
pub struct Screen {
    bar: Option<ProgressBar>,
    last: (String, Instant),
    started: Timestamp,
}

impl Screen {
    /// Returns a screen that shows times relative to `started`.
    #[must_use]
    pub fn new(started: Timestamp) -> Self {
        Self {
            bar: None,
            last: (String::new(), Instant::now()),
            started,
        }
    }

    /// Prints the next step.
    pub fn step(&mut self, text: &str) {
        self.finish();
        println!("{text}");
    }

    /// Shows the progress towards `goal` running pods.
    pub fn show(&mut self, progress: &Progress, goal: usize, now: Timestamp) {
        let line = progress.line();
        if std::io::stdout().is_terminal() {
            let bar = self.bar.get_or_insert_with(bar);
            bar.set_length(goal.max(1) as u64);
            bar.set_position(progress.running.min(goal.max(1)) as u64);
            bar.set_message(line);
        } else if line != self.last.0 || self.last.1.elapsed() >= OUTPUT_INTERVAL {
            println!(
                "{:>6.1}s  {line}",
                now.duration_since(self.started).as_secs_f64()
            );
            self.last = (line, Instant::now());
        }
    }

    /// Clears the live line.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{spinner} [{bar:30}] {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
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
            if progress.is_quiet() && progress.updating_deployments == 0 && calm >= IDLE_TIME {
                return Ok(true);
            }
            if calm >= PENDING_TIMEOUT {
                return Ok(progress.pending == 0);
            }
        } else {
            still_since = None;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn types(progress: &Progress) -> String {
    let types: Vec<_> = progress
        .types
        .iter()
        .map(|(name, count)| format!("{count} x {name}"))
        .collect();
    types.join(", ")
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

/// Runs the acts of the demo: a burst, a pod that cannot run, a spot interruption, a rehearsed change with the consolidation that
/// follows, and the end without nodes. `kubeconfig` is what the plugin's commands use.
///
/// # Errors
/// If the acts do not end within ten minutes, or if the plugin gets no answer.
pub async fn run(cluster: &LocalCluster, kubeconfig: &Path) -> anyhow::Result<()> {
    let mut demo = Demo {
        cluster,
        kubeconfig,
        screen: Screen::new(cluster.clock.now()),
        act: 0,
    };
    let acts = async {
        demo.burst().await?;
        demo.pod_that_cannot_run().await?;
        demo.spot_interruption().await?;
        demo.rehearsed_change().await?;
        demo.end().await
    };
    let ended = tokio::time::timeout_at(cluster.clock.instant_after(DEMO_TIMEOUT), acts).await;
    ended.context("the demo did not end within ten minutes")?
}

struct Demo<'d> {
    cluster: &'d LocalCluster,
    kubeconfig: &'d Path,
    screen: Screen,
    act: u8,
}

impl Demo<'_> {
    fn act(&mut self, title: &str) {
        self.act += 1;
        self.screen.step(&format!("\n{}. {title}", self.act));
    }

    async fn burst(&mut self) -> anyhow::Result<()> {
        self.act("A burst: 300 pods of three Deployments, in a cluster without nodes.");
        let started = self.cluster.clock.now();
        self.apply(MANIFESTS).await?;
        self.apply(BURST).await?;
        let settled = |p: &Progress| p.running == PODS && p.moving == 0;
        let now = self.until(settled).await?;
        self.screen.step(&format!(
            "   All {PODS} pods run after {:.1} s on {} nodes at ${:.4}/h: {}.",
            self.cluster.clock.since(started).as_secs_f64(),
            now.ready_nodes,
            now.hourly_price,
            types(&now)
        ));
        Ok(())
    }

    async fn pod_that_cannot_run(&mut self) -> anyhow::Result<()> {
        self.act(
            "A pod that cannot run: its image is for arm64, and the NodePool launches amd64 only.",
        );
        self.apply(REPORT).await?;
        let events: Api<Event> = Api::namespaced(self.cluster.client(), NAMESPACE);
        let by_karpenter = |event: &Event| {
            event.reporting_component.as_deref() == Some("karpenter")
                && event.reason.as_deref() == Some("FailedScheduling")
                && event
                    .involved_object
                    .name
                    .as_deref()
                    .is_some_and(|name| name.starts_with("report-"))
        };
        let all = ListParams::default();
        while !events.list(&all).await?.iter().any(by_karpenter) {
            self.look().await?;
        }
        self.plugin(&["why", "deploy", "report"]).await?;
        self.screen
            .step("   Taking the second way out: the NodePool admits arm64, too.");
        let pools: Api<NodePool> = Api::all(self.cluster.client());
        let mut requirements = pools.get("default").await?.spec.template.spec.requirements;
        for requirement in requirements.iter_mut().filter(|it| it.key == labels::ARCH) {
            requirement.values.push(labels::ARCH_ARM64.to_owned());
        }
        let patch = json!({ "spec": { "template": { "spec": { "requirements": requirements } } } });
        pools
            .patch("default", &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        let runs = |p: &Progress| p.running == PODS + 1 && p.moving == 0;
        self.until(runs).await?;
        Ok(())
    }

    /// The provider of simulated nodes has no queue of interruptions: the demo does what the interruption controller does.
    async fn spot_interruption(&mut self) -> anyhow::Result<()> {
        let claims: Api<NodeClaim> = Api::all(self.cluster.client());
        let spot = ListParams::default().labels("karpenter.sh/capacity-type=spot");
        let claim = claims.list(&spot).await?.items.into_iter().next();
        let name = claim.context("no spot node was launched")?.name_any();
        self.act(&format!(
            "A spot interruption: the cloud is about to reclaim the instance of NodeClaim {name}."
        ));
        self.screen.step(
            "   As Karpenter does at a warning from EC2, the NodeClaim is deleted: its node is drained while the replacement starts.",
        );
        let started = self.cluster.clock.now();
        claims.delete(&name, &DeleteParams::default()).await?;
        let mut left = false;
        let moved = |p: &Progress| {
            left |= p.moving > 0;
            left && p.running == PODS + 1 && p.moving == 0
        };
        self.until(moved).await?;
        self.screen.step(&format!(
            "   Its pods run elsewhere after {:.1} s.",
            self.cluster.clock.since(started).as_secs_f64()
        ));
        Ok(())
    }

    async fn rehearsed_change(&mut self) -> anyhow::Result<()> {
        self.act(&format!(
            "A change, rehearsed first: web needs {SCALED_REPLICAS} replicas only."
        ));
        self.plugin(&[
            "plan",
            "--scale",
            &format!("deploy/web={SCALED_REPLICAS}"),
            "--for",
            "10m",
        ])
        .await?;
        self.screen.step(&format!(
            "$ kubectl scale deploy web --replicas {SCALED_REPLICAS}\n   \
             The consolidation that follows takes two minutes: a pass each ten seconds, and what it proposes is checked again fifteen later."
        ));
        let before = Progress::of(self.cluster).await?;
        let api: Api<Deployment> = Api::namespaced(self.cluster.client(), NAMESPACE);
        let patch = Patch::Merge(json!({"spec": {"replicas": SCALED_REPLICAS}}));
        api.patch("web", &PatchParams::default(), &patch).await?;
        let running = PODS + 1 - WEB_REPLICAS + SCALED_REPLICAS;
        let (mut last_price, mut still_since) = (before.hourly_price, None);
        loop {
            let now = self.look().await?;
            let is_still = now.running == running && now.moving == 0;
            if !is_still || now.hourly_price != last_price || last_price >= before.hourly_price {
                (last_price, still_since) = (now.hourly_price, None);
            } else {
                let since = *still_since.get_or_insert(self.cluster.clock.now());
                if self.cluster.clock.since(since) > CONSOLIDATION_TIME {
                    self.screen.step(&format!(
                        "   Consolidated from {} to {} nodes: ${:.4}/h instead of ${:.4}/h saves ${:.0} a month.",
                        before.ready_nodes,
                        now.ready_nodes,
                        now.hourly_price,
                        before.hourly_price,
                        (before.hourly_price - now.hourly_price) * HOURS_A_MONTH,
                    ));
                    return Ok(());
                }
            }
        }
    }

    async fn end(&mut self) -> anyhow::Result<()> {
        self.act("The end: all Deployments are deleted, and the nodes are empty.");
        let deployments: Api<Deployment> = Api::namespaced(self.cluster.client(), NAMESPACE);
        let (delete, all) = (DeleteParams::background(), ListParams::default());
        deployments.delete_collection(&delete, &all).await?;
        let gone = |p: &Progress| p.claims == 0 && p.running == 0 && p.types.is_empty();
        self.until(gone).await?;
        let now = self.cluster.clock.now();
        self.screen.step(&format!(
            "   {} nodes were launched, 0 are left. Spent: ${:.4} in {:.0} s.",
            self.cluster.cloud.launched(),
            self.cluster.cloud.spent(now),
            now.duration_since(self.screen.started).as_secs_f64()
        ));
        Ok(())
    }

    async fn apply(&self, manifest: &str) -> anyhow::Result<()> {
        manifests::apply(&self.cluster.client(), &manifests::parse(manifest)?).await
    }

    /// Runs a command of the kubectl plugin, as the user would.
    async fn plugin(&mut self, arguments: &[&str]) -> anyhow::Result<()> {
        self.screen
            .step(&format!("$ kubectl karpenter {}", arguments.join(" ")));
        let mut line: Vec<OsString> = vec!["kubectl-karpenter".into()];
        line.extend(arguments.iter().map(OsString::from));
        line.extend(["--kubeconfig".into(), self.kubeconfig.into()]);
        let code = tokio::task::spawn_blocking(|| kubectl_karpenter::main(line)).await?;
        if code != ExitCode::SUCCESS {
            bail!("`kubectl karpenter {}` failed", arguments.join(" "));
        }
        Ok(())
    }

    /// Waits for a moment, and returns and shows the state of the cluster.
    async fn look(&mut self) -> anyhow::Result<Progress> {
        tokio::time::sleep(POLL_INTERVAL).await;
        let progress = Progress::of(self.cluster)
            .await
            .context("cannot read the cluster state")?;
        let goal = progress.running + progress.pending;
        self.screen.show(&progress, goal, self.cluster.clock.now());
        Ok(progress)
    }

    async fn until(&mut self, mut done: impl FnMut(&Progress) -> bool) -> anyhow::Result<Progress> {
        loop {
            let progress = self.look().await?;
            if done(&progress) {
                return Ok(progress);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::DynamicObject;

    use super::*;

    #[test]
    fn the_numbers_of_pods_are_those_of_the_manifests() {
        let replicas = |manifest| -> Vec<(String, u64)> {
            let objects = manifests::parse(manifest).unwrap();
            let replicas =
                |o: &DynamicObject| Some((o.name_any(), o.data["spec"]["replicas"].as_u64()?));
            objects.iter().filter_map(replicas).collect()
        };
        let burst = replicas(BURST);
        assert_eq!(burst[0], ("web".to_owned(), WEB_REPLICAS as u64));
        assert_eq!(burst.iter().map(|(_, pods)| pods).sum::<u64>(), PODS as u64);
        assert_eq!(replicas(MANIFESTS), [("inflate".to_owned(), 0)]);
        assert_eq!(replicas(REPORT), [("report".to_owned(), 1)]);
    }
}
