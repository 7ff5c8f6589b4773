//! `kubectl karpenter pause` and `resume`: stop the voluntary disruption of NodePools for a while.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use karpenter_api::labels::annotations::PAUSED;
use karpenter_api::pause::{LONGEST, Pause, reasons_of};
use karpenter_api::v1::{DisruptionReason, NodePool};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::cluster::{Access, Cluster};
use crate::completion;
use crate::flags::{Format, KubectlFlags, Timeout};
use crate::output::{self, Layout, Table};

/// The field manager of the annotation.
const FIELD_MANAGER: &str = "kubectl-karpenter";

/// How long a completion may wait for the API server.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(3);

/// The most characters of `--why`.
const MAX_WHY: usize = 256;

/// Pause the voluntary disruption of NodePools: drift, emptiness and consolidation.
///
/// A pause ends by itself. Meanwhile pending pods still get nodes, and expiration, interruption, repair and deletion by users
/// go on; disruption that has begun is finished. A pause that exists is replaced.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl karpenter pause default --for 4h --reasons Drifted,Underutilized --why \"incident 42\"
  kubectl karpenter pause --all --for 1h")]
pub struct PauseArgs {
    /// How long, at most 168h.
    #[arg(long = "for", value_name = "DURATION", default_value = "24h", value_parser = duration)]
    duration: Duration,
    /// Disruption reasons to pause, comma-separated: Drifted, Empty, Underutilized. By default all of them.
    #[arg(long, value_name = "REASON,...", value_parser = reasons)]
    reasons: Option<Reasons>,
    /// Explanation for other users, on one line.
    #[arg(long, value_name = "TEXT", value_parser = why)]
    why: Option<String>,
    #[command(flatten)]
    pools: Pools,
}

/// End the pause of NodePools.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl karpenter resume default
  kubectl karpenter resume --all")]
pub struct ResumeArgs {
    #[command(flatten)]
    pools: Pools,
}

/// The NodePools of a command.
#[derive(Debug, clap::Args)]
struct Pools {
    /// Names of NodePools.
    #[arg(
        value_name = "NODEPOOL", required_unless_present_any = ["all", "selector"],
        add = ArgValueCandidates::new(candidates)
    )]
    names: Vec<String>,
    /// All NodePools.
    #[arg(long, conflicts_with_all = ["names", "selector"])]
    all: bool,
    #[command(flatten)]
    kubectl: KubectlFlags,
}

/// The value of `--reasons`; a type of its own, as clap reads a `Vec` as a repeated option.
#[derive(Debug, Clone)]
struct Reasons(Vec<DisruptionReason>);

fn reasons(text: &str) -> Result<Reasons, String> {
    reasons_of(text)
        .map(Reasons)
        .map_err(|error| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = karpenter_api::duration::parse(text).map_err(|error| error.to_string())?;
    match Duration::try_from(parsed) {
        Ok(_) if parsed > LONGEST => Err(format!("must be at most {}h", LONGEST.as_hours())),
        // The end is written in seconds.
        Ok(duration) if parsed >= SignedDuration::from_secs(1) => Ok(duration),
        _ => Err("must be at least 1s".to_owned()),
    }
}

fn why(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.contains(char::is_control) {
        return Err("must be one line without control characters".to_owned());
    }
    if text.chars().count() > MAX_WHY {
        return Err(format!("must have at most {MAX_WHY} characters"));
    }
    Ok(text.to_owned())
}

impl PauseArgs {
    /// Writes the annotation; returns the exit code.
    pub(crate) async fn run(&self) -> anyhow::Result<ExitCode> {
        let cluster = self.pools.kubectl.connect().await?;
        let pools = self.pools.select(&cluster).await?;
        let end = Timestamp::now() + self.duration;
        let pause = Pause {
            until: Timestamp::from_second(end.as_second()).context("cannot compute the end")?,
            reasons: self
                .reasons
                .clone()
                .map(|reasons| reasons.0)
                .unwrap_or_default(),
            by: user(&cluster).await,
            why: self.why.clone().filter(|why| !why.is_empty()),
        };
        let value = pause.to_string();
        let (mut paused, mut names) = (Vec::new(), Vec::new());
        for pool in pools {
            let written = annotate(&cluster, &pool, Some(&value)).await;
            paused.push(written.map_err(|error| after(&names, "paused", error))?);
            names.push(name_of(&pool).to_owned());
        }
        let done = |_: &DynamicObject| format!("paused {}", pause.describe());
        self.pools.print(&paused, done)
    }
}

impl ResumeArgs {
    /// Removes the annotation; returns the exit code.
    pub(crate) async fn run(&self) -> anyhow::Result<ExitCode> {
        let cluster = self.pools.kubectl.connect().await?;
        let (mut resumed, mut were_paused) = (Vec::new(), Vec::new());
        for pool in self.pools.select(&cluster).await? {
            if annotation(&pool).is_none() {
                resumed.push(pool);
                continue;
            }
            let written = annotate(&cluster, &pool, None).await;
            resumed.push(written.map_err(|error| after(&were_paused, "resumed", error))?);
            were_paused.push(name_of(&pool).to_owned());
        }
        let done = |pool: &DynamicObject| match were_paused.iter().any(|name| name == name_of(pool))
        {
            true => "resumed".to_owned(),
            false => "was not paused".to_owned(),
        };
        self.pools.print(&resumed, done)
    }
}

/// Adds to an error the names of the NodePools that have been written before it.
fn after(written: &[String], verb: &str, error: anyhow::Error) -> anyhow::Error {
    if written.is_empty() {
        return error;
    }
    anyhow!("{error:#} (already {verb}: {})", written.join(", "))
}

fn annotation(pool: &DynamicObject) -> Option<&str> {
    pool.annotations().get(PAUSED).map(String::as_str)
}

/// Returns the user's name as the API server knows it, or else as the kubeconfig does.
async fn user(cluster: &Cluster) -> Option<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(cluster.client.clone());
    let (params, review) = (PostParams::default(), SelfSubjectReview::default());
    let review = reviews.create(&params, &review).await;
    let known = review
        .ok()
        .and_then(|review| review.status?.user_info?.username);
    known.or_else(|| cluster.user.clone())
}

async fn annotate(
    cluster: &Cluster,
    pool: &DynamicObject,
    value: Option<&str>,
) -> anyhow::Result<DynamicObject> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { PAUSED: value } } }));
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let written = api(cluster).patch(name_of(pool), &params, &patch).await;
    written.map_err(|error| access("patch", Some(name_of(pool))).failed(cluster, error))
}

fn api(cluster: &Cluster) -> Api<DynamicObject> {
    // Objects as they are: a field of another version of Karpenter prevents no pause, and is printed.
    Api::all_with(cluster.client.clone(), &ApiResource::erase::<NodePool>(&()))
}

fn name_of(pool: &DynamicObject) -> &str {
    pool.metadata.name.as_deref().unwrap_or_default()
}

fn access<'a>(verb: &'a str, name: Option<&'a str>) -> Access<'a> {
    Access {
        verb,
        group: karpenter_api::labels::GROUP,
        resource: "nodepools",
        namespace: None,
        name,
    }
}

/// Returns the names of the cluster's NodePools; none if it does not answer soon.
fn candidates() -> Vec<CompletionCandidate> {
    let flags = KubectlFlags {
        request_timeout: Timeout(Some(COMPLETION_TIMEOUT)),
        ..completion::typed()
    };
    let listed = crate::block_on(async {
        let names = tokio::time::timeout(COMPLETION_TIMEOUT, async {
            let cluster = flags.connect().await?;
            list(&cluster, &ListParams::default()).await
        });
        names.await.ok().and_then(Result::ok)
    });
    let pools = listed.ok().flatten().flatten().unwrap_or_default();
    pools
        .iter()
        .map(|pool| CompletionCandidate::new(name_of(pool)))
        .collect()
}

async fn list(cluster: &Cluster, params: &ListParams) -> anyhow::Result<Vec<DynamicObject>> {
    let all = api(cluster).list(params).await;
    let all = all.map_err(|error| access("list", None).failed(cluster, error))?;
    Ok(all.items)
}

impl Pools {
    /// Reads the NodePools of the command, so that nothing is written if one of them does not exist.
    async fn select(&self, cluster: &Cluster) -> anyhow::Result<Vec<DynamicObject>> {
        if self.names.is_empty() {
            let params = ListParams {
                label_selector: self.kubectl.selector.clone(),
                ..ListParams::default()
            };
            let found = list(cluster, &params).await?;
            if found.is_empty() {
                bail!("no NodePools found");
            }
            return Ok(found);
        }
        let mut found: Vec<DynamicObject> = Vec::new();
        for name in &self.names {
            // As for kubectl, the resource may stand before the name.
            let name = match name.split_once('/') {
                None => name.as_str(),
                Some(("nodepool" | "nodepools", name)) => name,
                Some(("nodepool.karpenter.sh" | "nodepools.karpenter.sh", name)) => name,
                Some((resource, _)) => bail!("unknown resource `{resource}`: must be a NodePool"),
            };
            if found.iter().any(|pool| name_of(pool) == name) {
                continue;
            }
            let pool = api(cluster).get(name).await;
            found.push(pool.map_err(|error| access("get", Some(name)).failed(cluster, error))?);
        }
        Ok(found)
    }

    /// Prints the NodePools in the format of `-o`; by default a line each, with what was `done`.
    fn print(
        &self,
        pools: &[DynamicObject],
        done: impl Fn(&DynamicObject) -> String,
    ) -> anyhow::Result<ExitCode> {
        let resource = |pool: &DynamicObject| {
            format!(
                "nodepool.{}/{}",
                karpenter_api::labels::GROUP,
                name_of(pool)
            )
        };
        let lines = |line: &dyn Fn(&DynamicObject) -> String| -> String {
            let lines = pools
                .iter()
                .map(|pool| format!("{}\n", output::escaped(&line(pool))));
            lines.collect()
        };
        let text = match self.kubectl.output {
            None => lines(&|pool| format!("{} {}", resource(pool), done(pool))),
            Some(Format::Name) => lines(&resource),
            Some(Format::Wide) => table(pools).render(Layout::of_stdout(!self.kubectl.no_headers)),
            Some(format) => match (pools, format) {
                ([pool], Format::Json) => output::json(pool)?,
                ([pool], _) => output::yaml(pool)?,
                (pools, Format::Json) => output::json(&as_list(pools))?,
                (pools, _) => output::yaml(&as_list(pools))?,
            },
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the NodePools as kubectl prints several objects.
fn as_list(pools: &[DynamicObject]) -> serde_json::Value {
    json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": pools })
}

fn table(pools: &[DynamicObject]) -> Table {
    let mut table = Table::new(&["NAME", "UNTIL", "REASONS", "BY", "WHY"]);
    for pool in pools {
        let pause: Option<Pause> = annotation(pool).and_then(|value| value.parse().ok());
        let mut cells = vec![name_of(pool).to_owned()];
        if let Some(pause) = pause {
            let reasons = pause.reasons.iter().map(DisruptionReason::as_str);
            let reasons: Vec<&str> = reasons.collect();
            let reasons = match reasons.is_empty() {
                true => "all".to_owned(),
                false => reasons.join(","),
            };
            cells.push(pause.until.to_string());
            cells.push(reasons);
            cells.extend([pause.by.unwrap_or_default(), pause.why.unwrap_or_default()]);
        } else {
            cells.extend(std::iter::repeat_n(String::new(), 4));
        }
        table.row(cells.into_iter().map(Into::into));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_lasts_a_second_at_least_and_a_week_at_most() {
        for (text, expected) in [
            ("4h", Ok(Duration::from_secs(4 * 3600))),
            ("168h", Ok(Duration::from_secs(7 * 24 * 3600))),
            ("168h1s", Err("must be at most 168h".to_owned())),
            ("0", Err("must be at least 1s".to_owned())),
            ("-1h", Err("must be at least 1s".to_owned())),
            ("1d", Err("invalid duration `1d`".to_owned())),
        ] {
            assert_eq!(duration(text), expected, "{text}");
        }
    }

    #[test]
    fn an_explanation_is_one_short_line() {
        assert_eq!(
            why(" incident 42; see #ops "),
            Ok("incident 42; see #ops".to_owned())
        );
        assert!(why("a\nb").is_err() && why("\u{1b}[31m").is_err());
        assert!(why(&"x".repeat(MAX_WHY)).is_ok() && why(&"x".repeat(MAX_WHY + 1)).is_err());
    }
}
