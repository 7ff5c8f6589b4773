//! Two versions of upstream's controller beside each other under the same churn, and what the rehearsal says of them.

mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Add;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use jiff::Timestamp;
use karpenter_kwok::catalogue;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::churn::Churn;
use super::contender::Contender;
use super::report;
use crate::binaries;
use crate::case::{Case, is_leaving};
use crate::cluster::{Cluster, SYSTEM_NODES};
use crate::objects::{NODE_CLAIMS, condition_reason, name};
use crate::paths::{controller_binary, root};
use crate::plane::Profile;
use crate::wait::{FOREVER, Seen, until};
use crate::{audit, helm};
use workload::Workload;

/// How long a cluster takes to start with all its pods, on a busy computer.
const START: Duration = Duration::from_secs(600);

/// Options of the comparison: a cluster as in core issue 3225, smaller and in less time, and made-up ones.
#[derive(Debug, Args)]
pub(crate) struct Versions {
    /// Version of `sigs.k8s.io/karpenter`, built with Go.
    #[arg(long, default_value = "1.13.0")]
    from: String,
    /// The other version.
    #[arg(long, default_value = "1.14.1")]
    to: String,
    /// Number of nodes of 16 cores at the start of the issue's cluster.
    #[arg(long, default_value_t = 30)]
    nodes: u32,
    /// Number of made-up clusters of 8 to 24 nodes that are compared after it, one after the other.
    #[arg(long, default_value_t = 0)]
    generated: u64,
    /// Minutes of a period of the churn.
    #[arg(long, default_value_t = 15)]
    period: u32,
    /// Minutes that are measured.
    #[arg(long, default_value_t = 15)]
    minutes: u32,
    /// How long a node takes in the rehearsal: those of the start, which are in the bundle, take longer than later ones.
    #[arg(long, default_value = "3s")]
    assume_boot: String,
    /// Measure again what is in target/realcluster/versions from before.
    #[arg(long)]
    afresh: bool,
}

/// What a version did, by its binary or by the rehearsal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    /// The mean number of nodes.
    nodes: f64,
    /// Their mean price in dollars.
    price_per_hour: f64,
    launches: usize,
    /// The number of nodes that emptiness and consolidation deleted or replaced.
    reclaimed: usize,
    evictions: usize,
}

impl Add for Figures {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            nodes: self.nodes + other.nodes,
            price_per_hour: self.price_per_hour + other.price_per_hour,
            launches: self.launches + other.launches,
            reclaimed: self.reclaimed + other.reclaimed,
            evictions: self.evictions + other.evictions,
        }
    }
}

/// Both versions in a cluster.
#[derive(Clone, Copy, Debug)]
struct Compared {
    binaries: [Figures; 2],
    rehearsed: [Figures; 2],
}

/// A row of the table: its name, its digits, and its figure.
type Row = (&'static str, usize, fn(&Figures) -> f64);

/// The nodes over time.
#[derive(Debug)]
struct Tally {
    started: Instant,
    last: Instant,
    /// The nodes and their price since the last change.
    now: (usize, f64),
    known: BTreeSet<String>,
    leaving: BTreeSet<String>,
    figures: Figures,
    /// What happened, by seconds since the start.
    log: Vec<String>,
}

impl Tally {
    fn new(started: Instant) -> Self {
        Self {
            started,
            last: started,
            now: (0, 0.0),
            known: BTreeSet::new(),
            leaving: BTreeSet::new(),
            figures: Figures::default(),
            log: Vec::new(),
        }
    }

    /// Takes the NodeClaims after a change.
    fn see(&mut self, seen: &Seen, at: Instant) {
        self.pass(at);
        let seconds = at.duration_since(self.started).as_secs();
        let is_first = self.known.is_empty();
        for claim in seen.values() {
            let claim_name = name(claim).to_owned();
            if self.known.insert(claim_name.clone()) && !is_first {
                self.figures.launches += 1;
                self.log.push(format!("{seconds} launch {claim_name}"));
            }
            if is_leaving(claim) && self.leaving.insert(claim_name.clone()) && !is_first {
                self.figures.reclaimed += 1;
                let why = condition_reason(claim, "DisruptionReason");
                self.log
                    .push(format!("{seconds} delete {claim_name} {why}"));
            }
        }
        let launched = |claim: &&Value| {
            claim["metadata"]["labels"]["node.kubernetes.io/instance-type"].is_string()
        };
        let nodes: Vec<Value> = seen.values().filter(launched).cloned().collect();
        self.now = (nodes.len(), report::price(&nodes));
    }

    fn pass(&mut self, at: Instant) {
        let seconds = at.duration_since(self.last).as_secs_f64();
        self.figures.nodes += self.now.0 as f64 * seconds;
        self.figures.price_per_hour += self.now.1 * seconds;
        self.last = at;
    }

    /// Ends the measurement.
    fn finish(mut self, at: Instant) -> (Figures, Vec<String>) {
        self.pass(at);
        let seconds = at.duration_since(self.started).as_secs_f64();
        self.figures.nodes /= seconds;
        self.figures.price_per_hour /= seconds;
        (self.figures, self.log)
    }
}

impl Versions {
    pub(super) async fn run(self) -> Result<()> {
        let mut all = Vec::new();
        let mut failed = Vec::new();
        let made_up = (1..=self.generated).map(Workload::generated);
        for workload in std::iter::once(Workload::of_the_issue(self.nodes)).chain(made_up) {
            match self.compare(&workload).await {
                Ok(compared) => {
                    println!("{}\n\n{}", workload.name, self.table(&compared));
                    all.push(compared);
                }
                Err(error) => {
                    eprintln!("{}: {error:#}", workload.name);
                    failed.push(workload.name);
                }
            }
        }
        if all.len() > 1 {
            println!("{}", self.summary(&all));
        }
        match failed.is_empty() {
            true => Ok(()),
            false => bail!("cannot compare {}", failed.join(", ")),
        }
    }

    /// Measures both versions in a cluster, unless that was done before, and rehearses them.
    async fn compare(&self, workload: &Workload) -> Result<Compared> {
        let folder = root().join("target/realcluster/versions");
        let folder = folder.join(&workload.name);
        fs::create_dir_all(&folder)?;
        let versions = [&self.from, &self.to];
        let figures = |version: &String| file(&folder, version, "json");
        if self.afresh || !versions.iter().all(|version| figures(version).exists()) {
            let [from, to] = versions.map(|version| self.measure(version, workload, &folder));
            // At the same time: the load of the computer is the same for both.
            let (from, to) = tokio::try_join!(from, to)?;
            for (version, measured) in versions.into_iter().zip([from, to]) {
                fs::write(figures(version), serde_json::to_vec(&measured)?)?;
            }
        }
        let read = |version| -> Result<Figures> {
            Ok(serde_json::from_slice(&fs::read(figures(version))?)?)
        };
        let binaries = [read(&self.from)?, read(&self.to)?];
        // Both clusters began alike; each version is rehearsed in that of its binary.
        let [from, to] = versions.map(|version| self.rehearse(&folder, version, workload.share));
        Ok(Compared {
            binaries,
            rehearsed: [from?.0, to?.1],
        })
    }

    /// Starts a cluster with a version, and measures it.
    async fn measure(&self, version: &str, workload: &Workload, folder: &Path) -> Result<Figures> {
        let programs = binaries::find(true);
        let programs =
            programs.map_err(|missing| anyhow::anyhow!("cannot find {}", missing.join(", ")))?;
        let contender = Contender::upstream(version)?;
        let mut cluster = Cluster::start_with(&programs, Profile::Default).await?;
        contender.install(&cluster, json!({})).await?;
        let case = Case::new(&cluster.client, "measured").await?;
        // Nodes of 16 cores that stay, for all pods at once; then smaller and larger ones that are consolidated.
        self.pool(&case, &["16"], "Never").await?;
        for it in &workload.deployments {
            let resources = json!({ "requests": it.requests() });
            let container = json!([{ "name": "pause", "image": "pause", "resources": resources }]);
            let changes = json!({ "template": { "spec": { "containers": container } } });
            case.deploy(&it.name, it.replicas, "0", changes).await?;
        }
        let (program, environment) = (contender.program(), contender.environment());
        cluster.run(program, &environment).await?;
        let pods = workload.pods();
        case.until_running(pods, START).await?;
        case.until_nodes("all nodes are initialized", START, |seen| {
            let label =
                |node: &Value| node["metadata"]["labels"]["karpenter.sh/initialized"].clone();
            Ok(seen
                .values()
                .all(|node| label(node) == "true")
                .then_some(()))
        })
        .await?;
        let after = format!("{}s", workload.consolidate_after);
        self.pool(&case, &["4", "8", "16", "32"], &after).await?;

        eprintln!(
            "{}, {version}: {pods} pods run; {} minutes are measured",
            workload.name, self.minutes
        );
        let (since, started) = (Timestamp::now(), Instant::now());
        let length = self.length();
        let mut tally = Tally::new(started);
        let claims = NODE_CLAIMS.all(&cluster.client);
        let selector = case.selector();
        let watched = until::<()>("", &claims, &selector, FOREVER, |seen| {
            tally.see(seen, Instant::now());
            Ok(None)
        });
        let churn = Churn {
            share: workload.share,
            period: Duration::from_secs(60 * u64::from(self.period)),
        };
        tokio::select! {
            ended = watched => ended?,
            all = async {
                // The bundle is that of the start.
                tokio::try_join!(
                    capture(&cluster, file(folder, version, "karpenter.zst")),
                    churn.run(&case, started, length),
                )
            } => { all?; }
        }
        let (mut figures, log) = tally.finish(Instant::now());
        let requests = audit::requests(&cluster.plane.audit_log(), helm::KARPENTER, since)?;
        let evicted = requests
            .iter()
            .filter(|it| it.what() == "create pods/eviction");
        figures.evictions = evicted.filter(|it| it.code() == 201).count();
        fs::write(file(folder, version, "log"), log.join("\n"))?;
        let controller_log = cluster.controller()?.lines().join("\n");
        fs::write(file(folder, version, "controller.log"), controller_log)?;
        cluster.controller()?.is_running()?;
        Ok(figures)
    }

    fn length(&self) -> Duration {
        Duration::from_secs(60 * u64::from(self.minutes))
    }

    async fn pool(&self, case: &Case, cores: &[&str], consolidate_after: &str) -> Result<()> {
        let is =
            |key: &str, values: &[&str]| json!({ "key": key, "operator": "In", "values": values });
        let requirements = [
            is("kubernetes.io/arch", &["amd64"]),
            is("kubernetes.io/os", &["linux"]),
            is("karpenter.sh/capacity-type", &["on-demand"]),
            is("topology.kubernetes.io/zone", &["test-zone-a"]),
            is("karpenter.kwok.sh/instance-family", &["s"]),
            is("karpenter.kwok.sh/instance-cpu", cores),
        ];
        case.pool(json!({
            "template": { "spec": { "requirements": requirements } },
            "disruption": {
                "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": consolidate_after,
                "budgets": [{ "nodes": "10%" }],
            },
        }))
        .await
    }

    /// Rehearses both versions in the cluster that a version began with.
    fn rehearse(&self, folder: &Path, version: &str, share: u32) -> Result<(Figures, Figures)> {
        let bundle = file(folder, version, "karpenter.zst");
        let churn = format!("{share}%/{}m", self.period);
        let output = kubectl_karpenter()?
            .args(["plan", "--bundle"])
            .arg(&bundle)
            .args(["--from", &rules_of(&self.from), "--to", &rules_of(&self.to)])
            .args(["--churn", &churn, "--for", &format!("{}m", self.minutes)])
            .args(["--assume-boot", &self.assume_boot])
            .args(["--timeout", "30m", "-o", "json"])
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot rehearse: {error}");
        fs::write(file(folder, version, "plan.json"), &output.stdout)?;
        let plan: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(
            plan["observed"]["truncated"] != true,
            "the rehearsal was cut short"
        );
        let run = |which: &str| -> Result<Figures> {
            let run = plan["versions"][which].clone();
            let run = serde_json::from_value(run);
            let mut run: Figures = run.context("the rehearsal has no versions")?;
            run.nodes -= SYSTEM_NODES.len() as f64;
            Ok(run)
        };
        Ok((run("before")?, run("after")?))
    }

    /// Returns a Markdown table of both versions by their binaries, beside the rehearsal.
    fn table(&self, compared: &Compared) -> String {
        let (from, to) = (&self.from, &self.to);
        let mut text = format!(
            "| | {from} | {to} | ratio | {from} rehearsed | {to} rehearsed | ratio |\n|---|---|---|---|---|---|---|\n"
        );
        let rows: [Row; 5] = [
            ("nodes, mean", 1, |it| it.nodes),
            ("$/h, mean", 2, |it| it.price_per_hour),
            ("launches", 0, |it| it.launches as f64),
            ("reclaimed nodes", 0, |it| it.reclaimed as f64),
            ("evictions", 0, |it| it.evictions as f64),
        ];
        for (row, digits, figure) in rows {
            let cells = [compared.binaries, compared.rehearsed].map(|both| {
                let [from, to] = both.each_ref().map(figure);
                let ratio = match from > 0.0 {
                    true => format!("{:.0} %", to / from * 100.0),
                    false => "-".to_owned(),
                };
                format!("{from:.digits$} | {to:.digits$} | {ratio}")
            });
            text += &format!("| {row} | {} |\n", cells.join(" | "));
        }
        text
    }

    /// Returns the sums over all clusters, and how well the rehearsal of each agrees with its binary.
    fn summary(&self, all: &[Compared]) -> String {
        let sum = |of: fn(&Compared) -> [Figures; 2]| {
            let sums = all.iter().map(of).reduce(|a, b| [a[0] + b[0], a[1] + b[1]]);
            sums.unwrap_or_default()
        };
        let total = Compared {
            binaries: sum(|it| it.binaries),
            rehearsed: sum(|it| it.rehearsed),
        };
        let pairs = || {
            all.iter()
                .flat_map(|it| it.binaries.into_iter().zip(it.rehearsed))
        };
        let actions = pairs().map(|(binary, rehearsed)| {
            let both = [binary, rehearsed].map(|it| (it.launches + it.reclaimed).max(1) as f64);
            both[0].min(both[1]) / both[0].max(both[1]) * 100.0
        });
        let prices = pairs().map(|(binary, rehearsed)| {
            (rehearsed.price_per_hour / binary.price_per_hour - 1.0).abs() * 100.0
        });
        let (actions, prices): (Vec<f64>, Vec<f64>) = (actions.collect(), prices.collect());
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        format!(
            "sums of {} clusters\n\n{}\nlaunches and reclaimed nodes agree in {:.0} % (mean; least {:.0} %), $/h differs by {:.1} % (mean; most {:.1} %)\n",
            all.len(),
            self.table(&total),
            mean(&actions),
            actions.iter().copied().fold(f64::INFINITY, f64::min),
            mean(&prices),
            prices.iter().copied().fold(0.0, f64::max),
        )
    }
}

/// Returns the file of a version.
fn file(folder: &Path, version: &str, suffix: &str) -> PathBuf {
    folder.join(format!("{version}.{suffix}"))
}

/// Returns the name of a release's rules: `karpenter-1.13` for 1.13.0.
fn rules_of(version: &str) -> String {
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    format!("karpenter-{minor}")
}

fn kubectl_karpenter() -> Result<Command> {
    let mut command = Command::new(controller_binary("kubectl-karpenter")?);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Writes a bundle of the cluster, without our controller.
async fn capture(cluster: &Cluster, bundle: PathBuf) -> Result<()> {
    let types = catalogue::generate();
    let types: Result<Vec<_>, _> = types.iter().map(|it| it.instance_type()).collect();
    let document = json!({
        "apiVersion": "decisions.karpenter.sh/v1alpha1", "kind": "Catalogue", "nodePools": BTreeMap::from([("measured", types?)]),
    });
    let path = cluster.plane.folder().join("catalogue.json");
    fs::write(&path, document.to_string())?;
    let mut command = kubectl_karpenter()?;
    command
        .args(["capture", "--without-controller", "--catalogue"])
        .arg(&path)
        .arg("-o")
        .arg(&bundle)
        .env("KUBECONFIG", cluster.plane.kubeconfig())
        .env("HOME", cluster.plane.folder());
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot capture: {error}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn claim(name: &str, changes: Value) -> ((String, String), Value) {
        let labels = json!({
            "node.kubernetes.io/instance-type": "c-1x-amd64-linux", "karpenter.sh/capacity-type": "on-demand",
        });
        let mut claim = json!({ "metadata": { "name": name, "labels": labels } });
        json_patch::merge(&mut claim, &changes);
        ((String::new(), name.to_owned()), claim)
    }

    #[test]
    fn nodes_are_counted_by_how_long_they_exist() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let deleting = json!({ "metadata": { "deletionTimestamp": "2026-08-11T09:00:00Z" } });
        let mut tally = Tally::new(start);
        tally.see(&Seen::from([claim("a", json!({}))]), start);
        tally.see(
            &Seen::from([claim("a", json!({})), claim("b", json!({}))]),
            at(10),
        );
        tally.see(
            &Seen::from([claim("a", deleting), claim("b", json!({}))]),
            at(20),
        );
        tally.see(&Seen::from([claim("b", json!({}))]), at(30));
        let (figures, log) = tally.finish(at(40));
        assert_eq!((figures.launches, figures.reclaimed), (1, 1));
        assert_eq!(figures.nodes, 1.5, "one, two, two and one node");
        assert!((figures.price_per_hour - 1.5 * 0.027147483648).abs() < 1e-9);
        assert_eq!(log, ["10 launch b", "20 delete a "]);
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        versions: Versions,
    }

    #[test]
    fn the_tables_have_both_ratios_and_the_agreement() {
        let of = |reclaimed, nodes| Figures {
            reclaimed,
            nodes,
            launches: 10,
            price_per_hour: nodes / 10.0,
            evictions: 4,
        };
        let versions = Command::parse_from(["versions"]).versions;
        let compared = Compared {
            binaries: [of(100, 20.0), of(50, 30.0)],
            rehearsed: [of(80, 20.0), of(44, 25.0)],
        };
        let text = versions.table(&compared);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[2],
            "| nodes, mean | 20.0 | 30.0 | 150 % | 20.0 | 25.0 | 125 % |"
        );
        assert_eq!(
            lines[5],
            "| reclaimed nodes | 100 | 50 | 50 % | 80 | 44 | 55 % |"
        );
        let exact = Compared {
            rehearsed: compared.binaries,
            ..compared
        };
        let text = versions.summary(&[compared, exact]);
        assert!(
            text.contains("| reclaimed nodes | 200 | 100 | 50 % | 180 | 94 | 52 % |"),
            "{text}"
        );
        // 90 of 110 and 54 of 60 actions, and 2.5 $/h for 3.0, in one of two clusters.
        let agreement =
            "agree in 93 % (mean; least 82 %), $/h differs by 4.2 % (mean; most 16.7 %)";
        assert!(text.contains(agreement), "{text}");
    }

    #[test]
    fn a_release_has_the_rules_of_its_minor_version() {
        assert_eq!(rules_of("1.13.0"), "karpenter-1.13");
    }
}
