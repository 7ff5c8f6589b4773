//! What the playground does by itself: the built-in scenario, and waiting until nothing moves.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::manifests;
use crate::progress::Progress;
use crate::stack::Stack;

/// The pool and the workload of the demo.
pub const MANIFESTS: &str = include_str!("demo.yaml");

/// How many pods come and go.
pub const REPLICAS: i32 = 500;

/// How often the cluster is looked at (real time).
const LOOK: Duration = Duration::from_millis(200);

/// How long (cluster time) pods may wait with nothing else moving before they count as waiting for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long (cluster time) nothing must move before the cluster counts as settled.
const CALM: Duration = Duration::from_secs(3);

/// A live line on a terminal, plain lines elsewhere.
#[derive(Debug)]
pub struct Screen {
    bar: Option<ProgressBar>,
    last: String,
    started: Timestamp,
}

impl Screen {
    /// A screen whose times count from `started`.
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

    /// Says what begins now.
    pub fn step(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => println!("{text}"),
        }
    }

    /// Shows how far things are.
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

    /// Leaves the terminal as it was.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Waits until nothing moves; true if every pod runs.
///
/// # Errors
/// When the API server does not answer.
pub async fn until_idle(stack: &Stack, screen: &mut Screen) -> anyhow::Result<bool> {
    let mut still_since: Option<Timestamp> = None;
    loop {
        let progress = Progress::of(stack)
            .await
            .context("looking at the cluster")?;
        let now = stack.clock.now();
        screen.show(&progress, progress.running + progress.pending, now);
        if progress.is_still() {
            let calm = stack.clock.since(*still_since.get_or_insert(now));
            if progress.is_quiet() && progress.unsettled == 0 && calm >= CALM {
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

/// The summary of a run: what is there, what it costs, how long it took.
///
/// # Errors
/// When the API server does not answer.
pub async fn summary(stack: &Stack, started: Timestamp) -> anyhow::Result<String> {
    let progress = Progress::of(stack)
        .await
        .context("looking at the cluster")?;
    let now = stack.clock.now();
    let mut lines = vec![
        format!(
            "pods:      {} running, {} pending",
            progress.running, progress.pending
        ),
        format!(
            "nodes:     {} ready, {} nodeclaims, {} launched in all",
            progress.ready_nodes,
            progress.claims,
            stack.cloud.launched()
        ),
    ];
    for (name, count) in &progress.types {
        lines.push(format!("           {count} x {name}"));
    }
    lines.push(format!(
        "cost:      ${:.4} per hour, ${:.4} so far",
        progress.hourly_price,
        stack.cloud.spent(now)
    ));
    lines.push(format!(
        "duration:  {:.1} s",
        now.duration_since(started).as_secs_f64()
    ));
    Ok(lines.join("\n"))
}

/// Applies a pool and a workload, scales it up and down, and shows what happens.
///
/// # Errors
/// When something does not come about in time.
pub async fn run(stack: &Stack) -> anyhow::Result<()> {
    let started = stack.clock.now();
    let mut screen = Screen::new(started);
    let client = stack.client();
    let goal = usize::try_from(REPLICAS).unwrap_or_default();

    screen.step("A NodePool, a KWOKNodeClass, and a deployment that nothing runs yet.");
    manifests::apply(&client, &manifests::parse(MANIFESTS)?).await?;

    screen.step(&format!("Scale up: {REPLICAS} pods ask for a CPU each."));
    scale(stack, REPLICAS).await?;
    wait(stack, &mut screen, goal, "the pods did not run", |p| {
        p.running == goal && p.moving == 0
    })
    .await?;
    let up = stack.clock.since(started);
    let peak = Progress::of(stack).await?;
    screen.step(&format!(
        "All {REPLICAS} run after {:.1} s on {} nodes at ${:.4} per hour.",
        up.as_secs_f64(),
        peak.ready_nodes,
        peak.hourly_price
    ));

    screen.step("Scale down: nobody needs the nodes any more.");
    let before = stack.clock.now();
    scale(stack, 0).await?;
    wait(stack, &mut screen, goal, "the nodes did not go", |p| {
        p.claims == 0 && p.running == 0 && p.types.is_empty()
    })
    .await?;
    screen.step(&format!(
        "Every node is gone after {:.1} s.",
        stack.clock.since(before).as_secs_f64()
    ));
    screen.finish();
    println!("{}", summary(stack, started).await?);
    Ok(())
}

async fn wait(
    stack: &Stack,
    screen: &mut Screen,
    goal: usize,
    else_: &str,
    done: impl Fn(&Progress) -> bool,
) -> anyhow::Result<()> {
    let limit = stack.clock.instant_after(Duration::from_secs(600));
    while tokio::time::Instant::now() < limit {
        let progress = Progress::of(stack)
            .await
            .context("looking at the cluster")?;
        screen.show(&progress, goal, stack.clock.now());
        if done(&progress) {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
    bail!("{else_} within ten minutes")
}

async fn scale(stack: &Stack, replicas: i32) -> anyhow::Result<()> {
    let api: Api<Deployment> = Api::namespaced(stack.client(), "default");
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
