//! `kubectl karpenter why`: why a pod is pending, a node is kept, a NodeClaim was launched, a NodePool is not used.

mod kept;
mod launched;
pub(crate) mod text;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Subcommand;
use k8s_openapi::api::core::v1::Pod;
use karpenter_decisions::answer;
use karpenter_decisions::change::Change;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::cluster::Access;
use crate::flags::{Format, KubectlFlags};
use crate::offline::{self, BundleFile, BundleFlag};
use crate::output::{self, Layout};
use crate::transport::{Server, ServerFlags};

/// Explain why pods are pending, nodes are kept, NodeClaims were launched, NodePools are not used.
///
/// Karpenter's leader answers from its last decisions. For a pod that it could not schedule it also tells which constraints block it
/// together, and which changes would help, cheapest first; both were run through the scheduling engine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl karpenter why pod -n shop checkout-6f7d-x2x4q
  kubectl karpenter why deploy -n shop checkout -o wide
  kubectl karpenter why node ip-10-0-3-7
  kubectl karpenter why node ip-10-0-3-7 --if without-pdb=shop/payments --if budget.default=20%
  kubectl karpenter why pods
  kubectl karpenter why nodes
  kubectl karpenter why nodes --bundle tuesday.karpenter.zst")]
pub struct Args {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Debug, Subcommand)]
enum Subject {
    /// Why a pod is pending.
    #[command(visible_alias = "po")]
    Pod(Searched),
    /// Why the pods of a Deployment are pending; one of them is explained.
    #[command(visible_alias = "deployment")]
    Deploy(Searched),
    /// Why a node is kept, what it would save, and what would help.
    #[command(visible_alias = "no")]
    Node(Searched),
    /// What a NodeClaim was launched for, and why it has its instance type.
    #[command(name = "nodeclaim")]
    NodeClaim(Named),
    /// Whether a NodePool is used, and what its limits and budgets allow.
    #[command(name = "nodepool")]
    NodePool(Named),
    /// Pending pods by reason.
    Pods(Listed),
    /// Nodes by the reason why they are kept, with their price.
    Nodes(Listed),
}

/// One object.
#[derive(Debug, clap::Args)]
struct Named {
    /// Name of the object.
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    common: Common,
}

/// One object whose explanation includes a search.
#[derive(Debug, clap::Args)]
struct Searched {
    /// How long Karpenter searches for what blocks it, at most 5s.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = timeout)]
    timeout: String,
    /// Ask what would be if something were different; may be repeated.
    #[arg(long = "if", value_name = "CHANGE", long_help = IF_HELP)]
    changes: Vec<String>,
    #[command(flatten)]
    named: Named,
}

/// All objects of a kind.
#[derive(Debug, clap::Args)]
struct Listed {
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Exit with 2 if the answer is that something blocks.
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    bundle: BundleFlag,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    kubectl: KubectlFlags,
}

const IF_HELP: &str = "\
Ask what would be if something were different; may be repeated:
  budget.POOL=20%|N                  the NodePool's disruption budget
  policy.POOL=POLICY                 the NodePool's consolidationPolicy
  consolidate-after.POOL=30s|Never   the NodePool's consolidateAfter
  limits.POOL.RESOURCE=QUANTITY      a limit of the NodePool
  pool=FILE                          a NodePool (YAML or JSON) added or replaced
  offer=TYPE/ZONE/CAPACITY-TYPE      the offering is available
  without-pdb=NAMESPACE/NAME         no such PodDisruptionBudget
  without-annotation=NAMESPACE/POD   a pod without karpenter.sh/do-not-disrupt
  without-annotation=NODE            a node without it
  without-pause=POOL                 no pause of the NodePool
  without-nomination=NODE            no pending pod is nominated to the node
  consolidatable=NODE                consolidateAfter has passed
  spot-to-spot=true                  spot nodes may replace spot nodes
  tolerate=KEY[=VALUE]:EFFECT        the pod tolerates the taint
  drop=ID                            the pod without a constraint, by its id in -o json
  now=TIME                           the time at which budgets and pauses are read (RFC 3339)";

impl Args {
    /// Asks and prints; returns the exit code.
    pub(crate) async fn run(&self) -> anyhow::Result<ExitCode> {
        let (common, answer) = self.subject.ask().await?;
        let text = match common.kubectl.output {
            Some(Format::Json) => output::json(&answer)?,
            Some(Format::Yaml) => output::yaml(&answer)?,
            Some(Format::Name) => names(&answer),
            wide => {
                let layout = Layout::of_stdout(!common.kubectl.no_headers);
                text::render(&answer, wide == Some(Format::Wide), layout)
            }
        };
        output::print(&text)?;
        Ok(output::exit_code(common.exit_code, blocks(&answer)))
    }
}

impl Subject {
    async fn ask(&self) -> anyhow::Result<(&Common, Value)> {
        let common = self.common();
        let bundle = common.bundle.file();
        let (subject, searched) = match self {
            Self::Pod(searched) => {
                let (namespace, name) = (common.namespace()?, searched.named.name.clone());
                (answer::Subject::Pod { namespace, name }, Some(searched))
            }
            Self::Deploy(searched) => {
                let (namespace, deployment) = (common.namespace()?, &searched.named.name);
                let name = match bundle {
                    Some(bundle) => offline::pod_of_deployment(bundle, &namespace, deployment)?,
                    None => searched.named.pending_pod(&namespace).await?,
                };
                (answer::Subject::Pod { namespace, name }, Some(searched))
            }
            Self::Node(searched) => {
                let name = searched.named.name.clone();
                (answer::Subject::Node(name), Some(searched))
            }
            Self::NodeClaim(named) => (answer::Subject::NodeClaim(named.name.clone()), None),
            Self::NodePool(named) => (answer::Subject::NodePool(named.name.clone()), None),
            Self::Pods(_) => {
                let answer = match bundle {
                    Some(bundle) => offline::pods(bundle)?,
                    None => common.get("/explanations?of=pods&by=reason").await?,
                };
                return Ok((common, answer));
            }
            Self::Nodes(_) => {
                let answer = match bundle {
                    Some(bundle) => offline::nodes(bundle)?,
                    None => common.get("/explanations?of=nodes&by=reason").await?,
                };
                return Ok((common, answer));
            }
        };
        let answer = match (bundle, searched) {
            (Some(bundle), Some(searched)) => searched.ask_bundle(bundle, &subject)?,
            (Some(bundle), None) => offline::explain(bundle, &subject, &[], Duration::ZERO)?,
            (None, Some(searched)) => common.get(&searched.path(&path(&subject)?)?).await?,
            (None, None) => common.get(&path(&subject)?).await?,
        };
        Ok((common, answer))
    }

    fn common(&self) -> &Common {
        match self {
            Self::Pod(searched) | Self::Deploy(searched) | Self::Node(searched) => {
                &searched.named.common
            }
            Self::NodeClaim(named) | Self::NodePool(named) => &named.common,
            Self::Pods(listed) | Self::Nodes(listed) => &listed.common,
        }
    }
}

/// Returns the path of an explanation.
fn path(subject: &answer::Subject) -> anyhow::Result<String> {
    let object = match subject {
        answer::Subject::Pod { namespace, name } => {
            format!("namespaces/{namespace}/pods/{}", segment(name)?)
        }
        answer::Subject::Node(name) => format!("nodes/{}", segment(name)?),
        answer::Subject::NodeClaim(name) => format!("nodeclaims/{}", segment(name)?),
        answer::Subject::NodePool(name) => format!("nodepools/{}", segment(name)?),
    };
    Ok(format!("/{object}/explanation"))
}

impl Common {
    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut server = Server::connect(&self.kubectl, &self.server).await?;
        server.get(path).await
    }

    /// Returns the namespace of the options, else of the kubeconfig's context.
    fn namespace(&self) -> anyhow::Result<String> {
        if let Some(namespace) = &self.kubectl.namespace {
            return segment(namespace);
        }
        let config = crate::cluster::kubeconfig(&self.kubectl)?;
        let context = config
            .as_ref()
            .and_then(|config| self.kubectl.selected_context(config));
        let namespace = context.and_then(|named| named.context.as_ref()?.namespace.clone());
        segment(
            namespace
                .as_deref()
                .filter(|name| !name.is_empty())
                .unwrap_or("default"),
        )
    }
}

impl Named {
    /// Returns the name of a pending pod of the Deployment, or of any of its pods.
    async fn pending_pod(&self, namespace: &str) -> anyhow::Result<String> {
        let cluster = self.common.kubectl.connect().await?;
        let access = |verb, group, resource, name| Access {
            verb,
            group,
            resource,
            namespace: Some(namespace),
            name,
        };
        let kind = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(
            "apps",
            "v1",
            "Deployment",
        ));
        let deployments: Api<DynamicObject> =
            Api::namespaced_with(cluster.client.clone(), namespace, &kind);
        let deployment = deployments.get(&self.name).await;
        let deployment = deployment.map_err(|error| {
            access("get", "apps", "deployments", Some(self.name.as_str())).failed(&cluster, error)
        })?;
        let selector: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector =
            serde_json::from_value(deployment.data["spec"]["selector"].clone()).map_err(
                |error| {
                    anyhow!(
                        "cannot read the selector of Deployment {}: {error}",
                        self.name
                    )
                },
            )?;
        let selector = kube::core::Selector::try_from(selector)
            .map_err(|error| anyhow!("invalid selector of Deployment {}: {error}", self.name))?;
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
        let selected = ListParams::default().labels_from(&selector);
        let listed = pods.list(&selected).await;
        let listed =
            listed.map_err(|error| access("list", "", "pods", None).failed(&cluster, error))?;
        let mut all = listed.items.iter();
        let pending = all.find(|pod| (pod.spec.as_ref()).is_some_and(|it| it.node_name.is_none()));
        let pod = pending.or(listed.items.first());
        let Some(name) = pod.and_then(|pod| pod.metadata.name.clone()) else {
            bail!("Deployment {namespace}/{} has no pods", self.name);
        };
        Ok(name)
    }
}

impl Searched {
    fn ask_bundle(
        &self,
        bundle: BundleFile<'_>,
        subject: &answer::Subject,
    ) -> anyhow::Result<Value> {
        let changes = self.changes.iter().map(|text| {
            let change: Change = change(text)?.parse()?;
            Ok(change)
        });
        let changes: Vec<Change> = changes.collect::<anyhow::Result<_>>()?;
        let timeout = karpenter_api::duration::parse(&self.timeout).ok();
        let timeout = timeout.and_then(|timeout| Duration::try_from(timeout).ok());
        offline::explain(bundle, subject, &changes, timeout.unwrap_or_default())
    }

    /// Returns the path with its query.
    fn path(&self, path: &str) -> anyhow::Result<String> {
        let mut path = format!("{path}?timeout={}", self.timeout);
        for text in &self.changes {
            let change = change(text)?;
            let encoded = utf8_percent_encode(&change, NON_ALPHANUMERIC);
            path.push_str(&format!("&if={encoded}"));
        }
        Ok(path)
    }
}

/// Returns a change as the server reads it: `pool=FILE` with the NodePool instead of the name of its file.
fn change(text: &str) -> anyhow::Result<String> {
    let Some(file) = text.strip_prefix("pool=") else {
        return Ok(text.to_owned());
    };
    let content =
        std::fs::read_to_string(file).with_context(|| format!("cannot read NodePool {file}"))?;
    let pool: Value = serde_saphyr::from_str(&content)
        .map_err(|error| anyhow!("cannot read NodePool {file}: {error}"))?;
    if pool["kind"] != "NodePool" {
        bail!("{file} is not a NodePool");
    }
    Ok(format!("pool={pool}"))
}

/// Checks a duration; the server reads the same text.
fn timeout(text: &str) -> Result<String, String> {
    let parsed = karpenter_api::duration::parse(text).map_err(|error| error.to_string())?;
    if parsed.as_secs() > 5 {
        return Err("must be at most 5s".to_owned());
    }
    Ok(text.to_owned())
}

/// Returns a name as a segment of a path. Only what can be the name of an object is asked for: the server knows no other path, so
/// that an unknown path means another version.
pub(crate) fn segment(name: &str) -> anyhow::Result<String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_plain = |byte: u8| inner(byte) || matches!(byte, b'-' | b'.');
    let bytes = name.as_bytes();
    let is_name = bytes.len() <= 253
        && bytes.iter().all(|byte| is_plain(*byte))
        && bytes.first().is_some_and(|byte| inner(*byte))
        && bytes.last().is_some_and(|byte| inner(*byte));
    if !is_name {
        let shown: String = name.chars().take(64).collect();
        bail!("invalid name `{shown}`: must be a DNS subdomain name, such as web-7c9");
    }
    Ok(name.to_owned())
}

/// Returns an explanation as text.
pub(crate) fn explanation(answer: &Value, layout: Layout) -> String {
    text::render(answer, false, layout)
}

/// Reports whether something blocks the pod or node of an answer.
fn blocks(answer: &Value) -> bool {
    let has = |list: &str| text::list(&answer[list]).next().is_some();
    match answer["kind"].as_str() {
        Some("PodExplanation") => answer["state"] == "Pending" && has("pools"),
        Some("NodeExplanation" | "NodeClaimExplanation") => has("blockers"),
        Some("ReasonGroupList") => has("items"),
        _ => false,
    }
}

/// Returns the objects of an answer, one a line.
fn names(answer: &Value) -> String {
    let kind = match answer["kind"].as_str().unwrap_or_default() {
        "PodExplanation" => "pod",
        "NodeExplanation" => "node",
        "NodeClaimExplanation" => "nodeclaim.karpenter.sh",
        "NodePoolExplanation" => "nodepool.karpenter.sh",
        _ => "",
    };
    let samples = text::list(&answer["items"]).flat_map(|group| text::list(&group["samples"]));
    let of = match answer["of"] == "pods" {
        true => "pod",
        false => "node",
    };
    let named = samples.map(|sample| (of, &sample["name"]));
    let own = (!kind.is_empty()).then_some((kind, &answer["metadata"]["name"]));
    let lines = named.chain(own);
    lines
        .map(|(kind, name)| format!("{kind}/{}\n", text::text(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_that_is_more_than_a_segment_of_a_path_is_refused() {
        for name in [
            "",
            "../nodes",
            "a/b",
            "a?b=c",
            "a b",
            "Web",
            "web_1",
            "-web",
            "web.",
            "<script>",
            "\u{1b}[31m",
            &"x".repeat(254),
        ] {
            let error = segment(name).unwrap_err().to_string();
            assert!(error.starts_with("invalid name"), "{error}");
        }
        assert_eq!(segment("web-7c9.shop").unwrap(), "web-7c9.shop");
    }

    #[test]
    fn only_a_pending_pod_without_a_place_is_blocked() {
        let pod = |state: &str, pools: Value| json!({ "kind": "PodExplanation", "state": state, "pools": pools });
        assert!(blocks(&pod("Pending", json!([{ "name": "default" }]))));
        assert!(!blocks(&pod("Pending", json!([]))));
        assert!(!blocks(&pod("Bound", json!([{ "name": "default" }]))));
    }
}
