//! The switch from upstream and back, as docs/getting-started/from-go.md describes it: its blocks run as they stand, with Helm 3 and
//! Helm 4, from upstream's default installation, whose CRDs come from the chart's folder `crds`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::aws::{CLUSTER, FakeAws, add_ons};
use super::marked;
use crate::binaries::UPSTREAM;
use crate::case::SOON;
use crate::cluster::Cluster;
use crate::helm::KARPENTER;
use crate::objects::{
    DEFINITIONS, DEPLOYMENTS, EC2_NODE_CLASSES, NODE_POOLS, apply, condition, documents, list,
    merge, name,
};
use crate::paths::{controller_binary, root};
use crate::wait::until;

const PAGE: &str = "docs/getting-started/from-go.md";
/// Upstream's release is installed with the first, and switched with the second.
const HELMS: [(&str, &str); 3] = [("helm", "helm"), ("helm", "helm4"), ("helm4", "helm4")];
/// The image that the page calls `${IMAGE_REPOSITORY}:${IMAGE_TAG}`.
const IMAGE: [&str; 2] = ["registry.example/karpenter", "v0"];

/// Whether kubectl, which the page uses, is not in `PATH`.
pub(crate) fn kubectl_is_missing() -> bool {
    let version = Command::new("kubectl")
        .args(["version", "--client"])
        .output();
    !version.is_ok_and(|version| version.status.success())
}

/// Runs every marked block of the page; `quick`: only with the Helm that needs no further build.
pub(crate) async fn forth_and_back(cluster: &mut Cluster, quick: bool) -> Result<()> {
    for object in add_ons() {
        apply(&cluster.client, &object).await?;
    }
    let helms = HELMS.iter().take(if quick { 1 } else { HELMS.len() });
    for (installed, switched) in helms {
        let which = format!("{installed}, then {switched}");
        let round = Round::new(cluster, installed, switched)?;
        round.run(cluster).await.context(which)?;
    }
    Ok(())
}

/// A shell in which `helm` is one of two versions.
struct Shell {
    folder: PathBuf,
    path: String,
    kubeconfig: PathBuf,
}

impl Shell {
    /// Its directory has the charts, as the root of the repository has.
    fn new(cluster: &Cluster, helm: &str) -> Result<Self> {
        let folder = cluster.plane.folder().join("switch").join(helm);
        if !folder.exists() {
            std::fs::create_dir_all(folder.join("bin"))?;
            let program = cluster.plane.binaries().path(helm)?;
            symlink(std::path::absolute(program)?, folder.join("bin/helm"))?;
            symlink(root().join("charts"), folder.join("charts"))?;
        }
        let path = std::env::var("PATH").unwrap_or_default();
        Ok(Self {
            path: format!("{}:{path}", folder.join("bin").display()),
            folder,
            kubeconfig: cluster.plane.kubeconfig(),
        })
    }

    /// Runs a script, and returns what it prints. It ends by itself, because its commands have timeouts.
    async fn run(&self, script: &str) -> Result<String> {
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(&self.folder)
            .env("PATH", &self.path)
            .env("HOME", &self.folder)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KARPENTER_NAMESPACE", KARPENTER.namespace)
            .env("IMAGE_REPOSITORY", IMAGE[0])
            .env("IMAGE_TAG", IMAGE[1])
            .stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let error = String::from_utf8_lossy(&output.stderr);
        let said = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "{script}\n{said}{error}");
        Ok(said)
    }

    /// Runs the marked blocks of a section of the page; returns what they print.
    async fn follow(&self, section: &str) -> Result<String> {
        let page = std::fs::read_to_string(root().join(PAGE))?;
        let (_, rest) = page
            .split_once(&format!("\n## {section}\n"))
            .with_context(|| format!("{PAGE} has no section {section}"))?;
        let text = rest.split("\n## ").next().unwrap_or(rest);
        let blocks = marked::marked(PAGE, text, "real-cluster");
        ensure!(!blocks.is_empty(), "{section} has no marked block");
        let mut printed = String::new();
        for block in blocks {
            ensure!(block.language == "bash", "{} is not a script", block.place);
            let said = self.run(&block.text).await;
            printed += &said.with_context(|| format!("{section}: {}", block.place))?;
        }
        Ok(printed)
    }
}

/// An installation of upstream that is switched, and switched back.
struct Round {
    upstream: PathBuf,
    installs: Shell,
    switches: Shell,
}

impl Round {
    fn new(cluster: &Cluster, installed: &str, switched: &str) -> Result<Self> {
        let chart = cluster.plane.binaries().path(UPSTREAM.0)?;
        let chart = chart.parent().unwrap_or(Path::new("."));
        Ok(Self {
            upstream: std::path::absolute(chart)?,
            installs: Shell::new(cluster, installed)?,
            switches: Shell::new(cluster, switched)?,
        })
    }

    async fn run(&self, cluster: &mut Cluster) -> Result<()> {
        // The commands of upstream's guide, with its chart as a directory.
        let install = format!(
            "helm upgrade --install karpenter {} --namespace \"${{KARPENTER_NAMESPACE}}\" --create-namespace \
             --set settings.clusterName={CLUSTER} --set settings.interruptionQueue={CLUSTER} --set settings.eksControlPlane=true \
             --set controller.resources.requests.cpu=1 --set controller.resources.requests.memory=1Gi --wait --timeout 2m",
            self.upstream.display()
        );
        self.installs.run(&install).await?;
        cluster.until_definitions_are_established().await?;
        for object in objects() {
            apply(&cluster.client, &object).await?;
        }
        let before = uids(cluster).await?;
        let theirs = image_of(cluster).await?;
        ensure!(theirs.contains("public.ecr.aws"), "the image is {theirs}");

        self.switches.follow("Before").await?;
        let values = std::fs::read_to_string(self.switches.folder.join("values.yaml"))?;
        let values = documents(&values)?;
        let keys: Vec<&String> = values
            .iter()
            .filter_map(Value::as_object)
            .flat_map(|v| v.keys())
            .collect();
        ensure!(
            keys == ["controller", "settings"],
            "the values are {keys:?}"
        );
        self.switches.follow("Switch").await?;
        let ours = image_of(cluster).await?;
        ensure!(ours == IMAGE.join(":"), "the image is {ours}");
        ensure!(uids(cluster).await? == before, "objects were replaced");
        owned(cluster).await?;
        self.check(cluster).await?;

        self.switches.follow("Back").await?;
        let again = image_of(cluster).await?;
        ensure!(again == theirs, "the image is {again}");
        ensure!(uids(cluster).await? == before, "objects were replaced");
        self.remove(cluster).await
    }

    /// Our controller finds all objects ready, and the section `Check` says so.
    async fn check(&self, cluster: &mut Cluster) -> Result<()> {
        let fake = FakeAws::start(&cluster.client).await?;
        let binary = controller_binary("karpenter")?;
        // Upstream's controller has never run here: the first start fills the statuses that it would have left.
        cluster.run(&binary, fake.environment()).await?;
        until_ready(cluster).await?;
        let first = cluster.controller.take().context("no controller")?;
        let earlier = first.lines().len();
        first.stop().await?;
        cluster.run(&binary, fake.environment()).await?;
        until_ready(cluster).await?;
        let controller = cluster.controller.take().context("no controller")?;
        let lines = controller.lines().into_iter().skip(earlier);
        let lines: String = lines
            .map(|line| format!("2026-01-01T00:00:00Z stdout F {line}\n"))
            .collect();
        std::fs::write(cluster.plane.container_log(), lines)?;
        let said = self.switches.follow("Check").await?;
        controller.stop().await?;
        let log = std::fs::read_to_string(self.switches.folder.join("karpenter.log"))?;
        ensure!(
            said.contains("karpenter-leader-election") && log.contains("\"level\":\"INFO\""),
            "the check prints {said}, and the log is {log}"
        );
        Ok(())
    }

    /// Removes everything, for the next round.
    async fn remove(&self, cluster: &Cluster) -> Result<()> {
        for kind in [NODE_POOLS, EC2_NODE_CLASSES] {
            let api = kind.all(&cluster.client);
            // No controller is running that removes them.
            merge(
                &api,
                "default",
                json!({ "metadata": { "finalizers": null } }),
            )
            .await?;
        }
        let uninstall = "helm uninstall karpenter karpenter-crd --namespace \"${KARPENTER_NAMESPACE}\" --wait --timeout 2m";
        self.switches.run(uninstall).await?;
        let definitions = DEFINITIONS.all(&cluster.client);
        until(
            "the CRDs are gone",
            &definitions,
            "",
            Duration::from_secs(60),
            |seen| Ok(seen.values().all(|d| !is_karpenters(d)).then_some(())),
        )
        .await
    }
}

/// Waits until the NodePool and so its EC2NodeClass are ready.
async fn until_ready(cluster: &Cluster) -> Result<()> {
    let pools = NODE_POOLS.all(&cluster.client);
    until("the NodePool is ready", &pools, "", SOON, |seen| {
        let ready = |o: &Value| condition(o, "Ready") == "True";
        Ok(seen.values().any(ready).then_some(()))
    })
    .await
}

fn is_karpenters(definition: &Value) -> bool {
    let group = definition["spec"]["group"].as_str().unwrap_or_default();
    group.starts_with("karpenter") || group.starts_with("autoscaling.x-k8s.io")
}

/// A NodePool and an EC2NodeClass.
fn objects() -> [Value; 2] {
    let tags = json!([{ "tags": { "karpenter.sh/discovery": CLUSTER } }]);
    let class = json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "default" },
        "spec": {
            "role": format!("KarpenterNodeRole-{CLUSTER}"), "amiSelectorTerms": [{ "alias": "al2023@latest" }],
            "subnetSelectorTerms": tags, "securityGroupSelectorTerms": tags,
        },
    });
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
        "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            "requirements": [{ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] }],
        } } },
    });
    [class, pool]
}

/// Returns the identities of the objects that must outlive the switch, the CRDs included.
async fn uids(cluster: &Cluster) -> Result<Vec<(String, Value)>> {
    let mut all = Vec::new();
    for kind in [DEFINITIONS, EC2_NODE_CLASSES, NODE_POOLS] {
        for object in list(&kind.all(&cluster.client), "").await? {
            all.push((name(&object).to_owned(), object["metadata"]["uid"].clone()));
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

/// Returns the image of the Deployment.
async fn image_of(cluster: &Cluster) -> Result<String> {
    let deployments = DEPLOYMENTS.of_namespace(&cluster.client, KARPENTER.namespace);
    let deployment = serde_json::to_value(deployments.get(KARPENTER.name).await?)?;
    let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
    Ok(image.as_str().unwrap_or_default().to_owned())
}

/// The CRDs are those of the release `karpenter-crd`, which upgrades them from now on.
async fn owned(cluster: &Cluster) -> Result<()> {
    let definitions = list(&DEFINITIONS.all(&cluster.client), "").await?;
    for definition in definitions.iter().filter(|d| is_karpenters(d)) {
        let owner = &definition["metadata"]["annotations"]["meta.helm.sh/release-name"];
        ensure!(
            owner == "karpenter-crd",
            "{} is {owner}'s",
            name(definition)
        );
    }
    Ok(())
}
