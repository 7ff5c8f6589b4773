//! `kubectl karpenter plan`: what a change would do to nodes, dollars and evictions, before it is made.

mod format;
mod manifests;
mod text;
mod versions;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueHint;
use karpenter_decisions::rehearse::plan::Plan;
use karpenter_decisions::rehearse::request::{
    Assume, Compare, Intent, LaunchChoice, ObjectReference, PlanRequest, Scale, VersionPair,
};
use karpenter_decisions::rehearse::{Settings, rehearse};

use crate::offline::{BundleFile, BundleFlag};
use crate::output::{self, Layout};
use crate::transport::{Server, ServerFlags};
use format::{PlanFlags, PlanFormat};

/// Rehearse a change: what it would do to nodes, dollars and evictions.
///
/// Karpenter's leader makes the changes on a copy of its model of the cluster and runs its own decisions on it in virtual time,
/// beside the unchanged cluster. Nothing is changed. NodePools, NodeOverlays, PodDisruptionBudgets, Deployments, StatefulSets,
/// DaemonSets and CapacityBuffers can be applied; other kinds are refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl karpenter plan -f nodepool.yaml
  kubectl karpenter plan --scale deploy/web=200 --for 10m -n shop
  kubectl karpenter plan --set limits.default.cpu=400 --at 2026-11-27T02:00:00Z --diff
  kubectl karpenter plan -f nodepool.yaml --bundle tuesday.karpenter.zst
  kubectl karpenter plan -f nodepool.yaml -o json --exit-code
  kubectl karpenter plan --from karpenter-1.13 --to this --churn 40%/1h --for 6h")]
pub struct Args {
    /// A file with manifests to apply, or `-` for standard input. May be repeated.
    #[arg(short, long = "filename", value_name = "FILE", value_hint = ValueHint::FilePath)]
    filename: Vec<PathBuf>,
    /// A change of one setting, as limits.default.cpu=400, budget.default=20% or policy.default=WhenEmpty: see `why --if`. May be
    /// repeated.
    #[arg(long = "set", visible_alias = "if", value_name = "CHANGE")]
    sets: Vec<String>,
    /// Set the replicas of a workload, as deploy/web=200 or statefulset/shop/db=3. May be repeated.
    #[arg(long = "scale", value_name = "KIND/NAME=REPLICAS")]
    scales: Vec<String>,
    /// Delete an object, as nodepool/old or poddisruptionbudget/shop/web. May be repeated.
    #[arg(long = "delete", value_name = "KIND/NAME")]
    deletes: Vec<String>,
    /// Delete a node. May be repeated.
    #[arg(long = "remove-node", value_name = "NAME")]
    remove_nodes: Vec<String>,
    /// Rehearse two versions of Karpenter beside each other, --from and --to: karpenter-1.0, karpenter-1.6, karpenter-1.13,
    /// karpenter-1.14, head or this. The changes are made with both.
    #[arg(long, value_name = "VERSION", default_value = THIS)]
    from: String,
    /// The second version; alone, it is compared with this one.
    #[arg(long, value_name = "VERSION", default_value = THIS)]
    to: String,
    /// Also rehearse --from with one rule of --to, for each rule in which they differ. Each takes as long as a version.
    #[arg(long)]
    each_rule: bool,
    /// Assume that this share of the replicas of all Deployments goes and comes back in each period, as 40%/1h.
    #[arg(long, value_name = "SHARE/PERIOD")]
    churn: Option<String>,
    /// When the change is made, by RFC 3339; now by default.
    #[arg(long, value_name = "TIME")]
    at: Option<jiff::Timestamp>,
    /// How long is rehearsed, at most 24h; 0s is one pass.
    #[arg(long = "for", value_name = "DURATION", default_value = "1h")]
    length: String,
    /// How long a node takes until it is initialized; by default as long as the nodes of its NodePool took.
    #[arg(long, value_name = "DURATION")]
    assume_boot: Option<String>,
    /// How long an evicted pod takes to end; by default its termination grace period.
    #[arg(long, value_name = "DURATION")]
    assume_drain: Option<String>,
    /// Let each NodeClaim get its most expensive instance type, instead of the cheapest.
    #[arg(long)]
    assume_worst: bool,
    /// Print only the steps that the change adds or takes away.
    #[arg(long)]
    diff: bool,
    /// Exit with 2 if the change makes a difference.
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    bundle: BundleFlag,
    /// How long Karpenter may compute, at most 5m; a plan that was cut short says so.
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    timeout: String,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    flags: PlanFlags,
}

/// The name of this version.
const THIS: &str = "this";

impl Args {
    /// Asks and prints; returns the exit code.
    pub(crate) async fn run(&self) -> anyhow::Result<ExitCode> {
        let request = self.request()?;
        let plan = self.ask(&request).await?;
        let layout = Layout::of_stdout(!self.flags.kubectl.no_headers);
        let text = match self.flags.format {
            Some(PlanFormat::Json) => output::json(&plan)?,
            Some(PlanFormat::Yaml) => output::yaml(&plan)?,
            Some(PlanFormat::Wide) => text::render(&plan, self.diff, true, layout),
            Some(PlanFormat::Text) | None => text::render(&plan, self.diff, false, layout),
        };
        output::print(&text)?;
        Ok(output::exit_code(self.exit_code, plan.differs()))
    }

    /// Returns the versions to compare, if another one than this is asked for.
    fn versions(&self) -> Option<VersionPair> {
        let is_this = self.from == THIS && self.to == THIS;
        (!is_this).then(|| VersionPair {
            from: self.from.clone(),
            to: self.to.clone(),
            each_rule: self.each_rule,
        })
    }

    async fn ask(&self, request: &PlanRequest) -> anyhow::Result<Plan> {
        let timeout = karpenter_api::duration::parse(&self.timeout)
            .map_err(|_| anyhow::anyhow!("invalid --timeout: must be a duration, as 60s"))?;
        if let Some(file) = self.bundle.file() {
            return offline(file, request, timeout.unsigned_abs());
        }
        let mut server = Server::connect(&self.flags.kubectl, &self.server).await?;
        let path = format!("/plans?timeout={}s", timeout.as_secs());
        server.post(&path, request).await
    }

    /// Returns the request of the options.
    fn request(&self) -> anyhow::Result<PlanRequest> {
        let namespace = self.flags.kubectl.namespace.as_deref();
        let mut changes = manifests::read(&self.filename, namespace)?;
        for text in &self.sets {
            changes.push(Intent::If(text.clone()));
        }
        for text in &self.scales {
            changes.push(Intent::Scale(scale(text, namespace)?));
        }
        for text in &self.deletes {
            changes.push(Intent::Delete(reference(text, namespace)?));
        }
        let nodes = self.remove_nodes.iter().cloned();
        changes.extend(nodes.map(Intent::RemoveNode));
        let versions = self.versions();
        anyhow::ensure!(
            versions.is_some() || !self.each_rule,
            "--each-rule needs another version: --from or --to"
        );
        let request = PlanRequest {
            at: self.at,
            length: Some(self.length.clone()),
            changes,
            versions,
            churn: self.churn.clone(),
            assume: Assume {
                boot: self.assume_boot.clone(),
                drain: self.assume_drain.clone(),
                launch: match self.assume_worst {
                    true => LaunchChoice::Worst,
                    false => LaunchChoice::Cheapest,
                },
            },
            compare_with: Compare::Unchanged,
            ..PlanRequest::default()
        };
        request.check()?;
        Ok(request)
    }
}

/// Rehearses on the cluster of a bundle, in this process.
fn offline(file: BundleFile<'_>, request: &PlanRequest, timeout: Duration) -> anyhow::Result<Plan> {
    let bundle = file.open()?;
    let mut settings = Settings::of_bundle(&bundle);
    let began = Instant::now();
    settings.cancel = Some(Arc::new(move || began.elapsed() > timeout));
    Ok(rehearse(&bundle.snapshot, &settings, request)?)
}

/// Returns a kind as the API writes it, from one of kubectl's names for it.
fn kind(text: &str) -> Option<&'static str> {
    let lower = text.to_lowercase();
    let (resource, _) = lower.split_once('.').unwrap_or((&lower, ""));
    Some(match resource {
        "deploy" | "deployment" | "deployments" => "Deployment",
        "sts" | "statefulset" | "statefulsets" => "StatefulSet",
        "rs" | "replicaset" | "replicasets" => "ReplicaSet",
        "ds" | "daemonset" | "daemonsets" => "DaemonSet",
        "nodepool" | "nodepools" => "NodePool",
        "nodeoverlay" | "nodeoverlays" | "overlays" => "NodeOverlay",
        "cb" | "capacitybuffer" | "capacitybuffers" => "CapacityBuffer",
        "pdb" | "poddisruptionbudget" | "poddisruptionbudgets" => "PodDisruptionBudget",
        _ => return None,
    })
}

/// Parses `kind/name` or `kind/namespace/name`.
fn reference(text: &str, namespace: Option<&str>) -> anyhow::Result<ObjectReference> {
    let parts: Vec<&str> = text.split('/').collect();
    let (kind_name, namespace, name) = match parts.as_slice() {
        [kind, name] => (*kind, namespace, *name),
        [kind, namespace, name] => (*kind, Some(*namespace), *name),
        _ => anyhow::bail!("invalid object `{text}`: must be as deploy/web or deploy/shop/web"),
    };
    let kind = kind(kind_name);
    let kind = kind.ok_or_else(|| anyhow::anyhow!("unknown kind `{kind_name}` in `{text}`"))?;
    anyhow::ensure!(!name.is_empty(), "invalid object `{text}`: it has no name");
    Ok(ObjectReference {
        kind: kind.to_owned(),
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
    })
}

/// Parses `kind/name=replicas`.
fn scale(text: &str, namespace: Option<&str>) -> anyhow::Result<Scale> {
    let (object, replicas) = text
        .rsplit_once('=')
        .ok_or_else(|| anyhow::anyhow!("invalid --scale `{text}`: must be as deploy/web=200"))?;
    let replicas = replicas.parse().map_err(|_| {
        anyhow::anyhow!("invalid --scale `{text}`: `{replicas}` is not a number of replicas")
    })?;
    let ObjectReference {
        kind,
        namespace,
        name,
    } = reference(object, namespace)?;
    Ok(Scale {
        kind,
        namespace,
        name,
        replicas,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn another_version_is_compared_with_this_one_unless_both_are_named() {
        let versions = |line: &str| {
            let line = Line::try_parse_from(line.split(' ')).unwrap();
            let versions = line.args.request().unwrap().versions;
            versions.map(|it| format!("{} {}", it.from, it.to))
        };
        let pair = |text: &str| Some(text.to_owned());
        assert_eq!(versions("plan --for 1h"), None);
        assert_eq!(versions("plan --to head"), pair("this head"));
        assert_eq!(versions("plan --from head"), pair("head this"));
        assert_eq!(versions("plan --from a --to b"), pair("a b"));
        assert_eq!(versions("plan --from this --to this"), None);
    }

    #[test]
    fn workloads_are_named_as_for_kubectl() {
        let web = scale("deploy/web=200", Some("shop")).unwrap();
        assert_eq!(
            (web.kind.as_str(), web.namespace.as_deref(), web.replicas),
            ("Deployment", Some("shop"), 200)
        );
        let db = scale("StatefulSet.apps/data/db=3", Some("shop")).unwrap();
        assert_eq!(
            (db.kind.as_str(), db.namespace.as_deref(), db.name.as_str()),
            ("StatefulSet", Some("data"), "db")
        );
        for text in [
            "web=2",
            "deploy/web",
            "deploy/web=-1",
            "deploy/web=many",
            "cronjob/web=2",
            "deploy/a/b/c=1",
            "deploy/=1",
        ] {
            let error = scale(text, None).unwrap_err().to_string();
            assert!(
                error.starts_with("invalid ") || error.starts_with("unknown "),
                "{error}"
            );
        }
    }
}
