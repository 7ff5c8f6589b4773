//! Measurements of the controller: the cost of a burst, the time until its pods are bound, and the requests to the API server.

mod churn;
mod compare;
mod contender;
mod limit;
mod options;
mod report;
mod versions;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use futures::{StreamExt as _, pin_mut};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;
use tokio::time::Instant;

use crate::binaries;
use crate::case::Case;
use crate::cluster::Cluster;
use crate::objects::{NODES, list};
use crate::plane::{ClusterApi, Profile};
use compare::Compare;
use contender::Contender;
use limit::Limit;
use options::MeasureOptions;
use report::{Report, round};
use versions::Versions;

/// Measures the controller on a new cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum Measure {
    /// Many pending pods at once: nodes, dollars per hour, seconds until the last pod is bound, requests.
    Burst {
        /// Number of pods, over all Deployments.
        #[arg(long, default_value_t = 5000)]
        pods: u32,
        /// Number of Deployments, each with other requests.
        #[arg(long, default_value_t = 40)]
        deployments: u32,
        /// Start the controller after all pods are pending, so that it makes one scheduling decision for all of them.
        #[arg(long)]
        at_once: bool,
        /// Wait until no node was created or deleted for two minutes, and report the nodes again after consolidation.
        #[arg(long)]
        until_quiet: bool,
        #[command(flatten)]
        options: MeasureOptions,
    },
    /// Scale out to 1,000 pods, then in to 700: nodes and dollars per hour once nothing changes any more.
    Scale {
        /// Number of pods after scaling out.
        #[arg(long, default_value_t = 1000)]
        pods: u32,
        /// Number of pods after scaling in.
        #[arg(long, default_value_t = 700)]
        down_to: u32,
        #[command(flatten)]
        options: MeasureOptions,
    },
    /// Requests per minute of an idle controller.
    Idle {
        /// Duration in minutes.
        #[arg(long, default_value_t = 3)]
        minutes: u32,
        #[command(flatten)]
        options: MeasureOptions,
    },
    /// Bursts with our controller and with upstream's by turns, each on a new cluster: the median of several runs, and the spread.
    Compare(Compare),
    /// Two versions of upstream's controller side by side under the same churn, beside what `kubectl karpenter plan` says of them.
    Versions(Versions),
}

/// A cluster for a measurement, with default settings.
struct Bench {
    contender: Contender,
    cluster: Cluster,
    case: Case,
    report: Report,
    _cluster_api: Option<ClusterApi>,
    _limit: Option<Limit>,
}

impl Bench {
    async fn start(options: &MeasureOptions) -> Result<Self> {
        let binaries = match binaries::find(true) {
            Ok(binaries) => binaries,
            Err(missing) => bail!("cannot find {}", missing.join(", ")),
        };
        let contender = Contender::new(options)?;
        let profile = match options.most_allocated {
            true => Profile::MostAllocated,
            false => Profile::Default,
        };
        let cluster = Cluster::start_with(&binaries, profile).await?;
        let cluster_api = contender.install(&cluster, options.values.clone()).await?;
        let case = Case::new(&cluster.client, "measured").await?;
        let all = json!([
            { "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] },
            { "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] },
            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
        ]);
        let mut pool = json!({
            "template": { "spec": { "requirements": all, "expireAfter": "720h" } },
            "disruption": { "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s" },
        });
        if let Some(class) = contender.node_class() {
            pool["template"]["spec"]["nodeClassRef"] = class;
        }
        case.pool(pool).await?;
        let limit = match options.api_server_cores {
            Some(cores) => Some(Limit::start(&cluster.plane, cores)?),
            None => None,
        };
        Ok(Self {
            contender,
            cluster,
            case,
            report: Report::default(),
            _cluster_api: cluster_api,
            _limit: limit,
        })
    }

    async fn run_controller(&mut self, options: &MeasureOptions) -> Result<()> {
        let mut environment = self.contender.environment();
        environment.extend(options.environment.iter().cloned());
        let program = self.contender.program();
        self.cluster.run(program, &environment).await
    }

    /// Creates Deployments with different requests.
    async fn deploy(&self, deployments: u32, pods: u32) -> Result<()> {
        for at in 0..deployments {
            let (cpu, memory) = requests(at);
            let replicas = pods / deployments + u32::from(at < pods % deployments);
            let resources = json!({ "requests": { "cpu": cpu, "memory": memory } });
            let container = json!([{ "name": "pause", "image": "pause", "resources": resources }]);
            let changes = json!({ "template": { "spec": { "containers": container } } });
            self.case
                .deploy(&format!("work-{at}"), replicas, cpu, changes)
                .await?;
        }
        Ok(())
    }

    async fn until_bound(&self, pods: u32) -> Result<()> {
        let within = Duration::from_secs(1800);
        let bound = until_pods(&self.case, usize::try_from(pods)?, is_bound);
        let bound = tokio::time::timeout(within, bound).await;
        bound.context("timed out after 30 minutes waiting for all pods to be bound")?
    }

    /// Adds the nodes before consolidation.
    async fn nodes_at_first(&mut self) -> Result<()> {
        let nodes = list(&NODES.all(&self.cluster.client), &self.case.selector()).await?;
        self.report.add("nodes at first", nodes.len().into());
        let price = json!(round(report::price(&nodes)));
        self.report.add("dollars per hour at first", price);
        Ok(())
    }

    /// Waits until no node changes any more, and adds how long that took.
    async fn consolidated(&mut self) -> Result<()> {
        let started = Instant::now();
        let last = until_quiet(&self.case).await?;
        let seconds = json!(round(last.duration_since(started).as_secs_f64()));
        self.report
            .add("seconds until the last node changed", seconds);
        Ok(())
    }

    /// Adds the figures of every measurement, and returns all.
    async fn finish(mut self, since: Timestamp) -> Result<Report> {
        let nodes = list(&NODES.all(&self.cluster.client), &self.case.selector()).await?;
        self.report.nodes(&nodes);
        let log = self.cluster.plane.audit_log();
        let lost = self.cluster.controller()?.has_ended()?;
        self.report.requests(&log, since)?;
        let controller = self
            .cluster
            .controller
            .as_ref()
            .context("the controller is not started")?;
        self.report.process(controller);
        self.report.decisions(&controller.metrics()?);
        self.report.add("lease lost", u8::from(lost).into());
        Ok(self.report)
    }
}

/// Returns the requests of a Deployment's pods.
fn requests(at: u32) -> (&'static str, &'static str) {
    const CPU: [&str; 5] = ["100m", "250m", "500m", "1", "2"];
    const MEMORY: [&str; 4] = ["128Mi", "512Mi", "1Gi", "4Gi"];
    let (cpu, memory) = (at as usize % CPU.len(), at as usize / CPU.len());
    (CPU[cpu], MEMORY[memory % MEMORY.len()])
}

fn is_bound(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|spec| spec.node_name.is_some())
}

fn is_unschedulable(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| {
        let mut all = all.iter();
        all.any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("Unschedulable"))
    })
}

/// Waits until this many pods are as expected, without evaluating all of them at each change.
async fn until_pods(case: &Case, wanted: usize, is: fn(&Pod) -> bool) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(case.client.clone(), case.name);
    let events = watcher::watcher(pods, watcher::Config::default()).default_backoff();
    pin_mut!(events);
    let mut good = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => good.clear(),
            Ok(Event::InitApply(pod) | Event::Apply(pod)) => {
                let uid = pod.metadata.uid.clone();
                match is(&pod) {
                    true => good.insert(uid),
                    false => good.remove(&uid),
                };
            }
            Ok(Event::Delete(pod)) => {
                good.remove(&pod.metadata.uid);
            }
            Ok(Event::InitDone) => {}
            Err(_) => continue,
        }
        if good.len() == wanted {
            return Ok(());
        }
    }
    bail!("the watch has ended")
}

impl Measure {
    /// Runs the measurement, and prints it.
    pub(crate) async fn run(self) -> Result<()> {
        let (report, as_json) = match self {
            Self::Burst {
                pods,
                deployments,
                at_once,
                until_quiet,
                options,
            } => {
                let report = burst(pods, deployments.max(1), at_once, until_quiet, &options).await;
                (report?, options.json)
            }
            Self::Scale {
                pods,
                down_to,
                options,
            } => (scale(pods, down_to, &options).await?, options.json),
            Self::Idle { minutes, options } => (idle(minutes, &options).await?, options.json),
            Self::Compare(compare) => return compare.run().await,
            Self::Versions(versions) => return versions.run().await,
        };
        report.print(as_json);
        Ok(())
    }
}

async fn burst(
    pods: u32,
    deployments: u32,
    at_once: bool,
    quiet: bool,
    options: &MeasureOptions,
) -> Result<Report> {
    let mut bench = Bench::start(options).await?;
    if at_once {
        bench.deploy(deployments, pods).await?;
        until_pods(&bench.case, usize::try_from(pods)?, is_unschedulable).await?;
    } else {
        bench.run_controller(options).await?;
    }
    let (since, started) = (Timestamp::now(), Instant::now());
    if at_once {
        bench.run_controller(options).await?;
    } else {
        bench.deploy(deployments, pods).await?;
    }
    bench.until_bound(pods).await?;
    let seconds = started.elapsed().as_secs_f64();
    bench.report.add(report::SECONDS, json!(round(seconds)));
    if quiet {
        bench.nodes_at_first().await?;
        bench.consolidated().await?;
    }
    bench.finish(since).await
}

async fn scale(pods: u32, down_to: u32, options: &MeasureOptions) -> Result<Report> {
    const DEPLOYMENTS: u32 = 10;
    let mut bench = Bench::start(options).await?;
    bench.run_controller(options).await?;
    let (since, started) = (Timestamp::now(), Instant::now());
    bench.deploy(DEPLOYMENTS, pods).await?;
    bench.until_bound(pods).await?;
    let seconds = started.elapsed().as_secs_f64();
    bench.report.add(report::SECONDS, json!(round(seconds)));
    bench.nodes_at_first().await?;
    bench.deploy(DEPLOYMENTS, down_to).await?;
    bench.consolidated().await?;
    bench.finish(since).await
}

/// Waits until no node was created or deleted for two minutes, a quarter of an hour at most; returns the time of the last change.
async fn until_quiet(case: &Case) -> Result<Instant> {
    const QUIET: Duration = Duration::from_secs(120);
    let limit = Instant::now() + Duration::from_secs(900);
    let (mut last, mut known) = (Instant::now(), BTreeSet::new());
    let config = watcher::Config::default().labels(&case.selector());
    let events = watcher::watcher(case.nodes(), config).default_backoff();
    pin_mut!(events);
    while let Ok(event) = tokio::time::timeout_at((last + QUIET).min(limit), events.next()).await {
        match event.context("the watch has ended")? {
            Ok(Event::InitApply(node)) => {
                known.insert(node.metadata.uid);
            }
            Ok(Event::Apply(node)) if known.insert(node.metadata.uid.clone()) => {
                last = Instant::now();
            }
            Ok(Event::Delete(_)) => last = Instant::now(),
            _ => {}
        }
    }
    Ok(last)
}

async fn idle(minutes: u32, options: &MeasureOptions) -> Result<Report> {
    let mut bench = Bench::start(options).await?;
    bench.run_controller(options).await?;
    bench.deploy(4, 100).await?;
    bench.until_bound(100).await?;
    // Cool-downs and nominations from the pods have expired by then.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let since = Timestamp::now();
    tokio::time::sleep(Duration::from_secs(u64::from(minutes) * 60)).await;
    let log = bench.cluster.plane.audit_log();
    let requests = crate::audit::requests(&log, crate::helm::KARPENTER, since)?.len();
    let a_minute = requests as f64 / f64::from(minutes.max(1));
    bench
        .report
        .add("requests a minute", json!(round(a_minute)));
    bench.finish(since).await
}
