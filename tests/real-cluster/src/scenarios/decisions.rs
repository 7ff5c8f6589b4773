//! Decisions are explained on a real control plane; a shadow reads only.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::audit;
use crate::case::{Case, SOON};
use crate::cluster::Cluster;
use crate::controller::Controller;
use crate::helm::{self, SHADOW};
use crate::objects::{list, name};
use crate::paths::{controller_binary, root};
use crate::scenarios::marked;

const BEFORE: &str = "docs/before-you-switch.md";

/// Runs `kubectl karpenter` as a user with all rights does.
async fn kubectl_karpenter(cluster: &Cluster, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(controller_binary("kubectl-karpenter")?);
    command
        .args(arguments)
        .env("KUBECONFIG", cluster.plane.kubeconfig())
        .env("HOME", cluster.plane.folder())
        .stdin(Stdio::null());
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

/// Like `kubectl_karpenter`; fails unless it succeeds, and returns what it prints.
async fn answer(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let output = kubectl_karpenter(cluster, arguments).await?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {error}");
    Ok(String::from_utf8(output.stdout)?)
}

/// A pending pod and the nodes are explained by the leader.
pub(super) async fn asked(cluster: &mut Cluster, case: Case) -> Result<()> {
    case.pool(json!({})).await?;
    case.deploy("runs", 2, "1", json!({})).await?;
    case.deploy("waits", 1, "5000", json!({})).await?;
    case.until_running(2, SOON).await?;
    let controller = cluster.controller.as_ref();
    let controller = controller.context("the controller is not started")?;
    let server = format!("http://127.0.0.1:{}", controller.decisions_port());
    let pods = list(&case.pods(), "app=waits").await?;
    let pod = name(pods.first().context("the Deployment has no pods")?);

    let why_pod = ["why", "pod", pod, "-n", case.name, "--server", &server];
    let said = answer(cluster, &why_pod).await?;
    ensure!(
        said.starts_with("Pending") && said.contains("requests cpu 5"),
        "why pod: {said}"
    );
    let nodes = list(&case.nodes(), &case.selector()).await?;
    // Reasons come with the next disruption pass.
    let all = |said: &String| nodes.iter().all(|node| said.contains(name(node)));
    let why_nodes = ["why", "nodes", "--server", &server];
    until(|| answer(cluster, &why_nodes), all).await?;
    Ok(())
}

/// A shadow with the chart's permissions reports on the Karpenter beside it, and none of its requests is a write or forbidden.
pub(super) async fn shadow(cluster: &mut Cluster, case: Case) -> Result<()> {
    let values = json!({ "provider": "kwok", "shadow": { "enabled": true } });
    helm::upgrade(&cluster.plane, SHADOW, &values).await?;
    let since = jiff::Timestamp::now();
    let binary: PathBuf = controller_binary("karpenter-kwok")?;
    let (plane, client) = (&cluster.plane, &cluster.client);
    let mut shadow = Controller::start(plane, client, SHADOW, &binary, &Default::default()).await?;
    let server = format!("http://127.0.0.1:{}", shadow.decisions_port());
    let arguments = ["shadow", "report", "--server", &server, "-o", "json"];
    let ask = || async {
        let said = answer(cluster, &arguments).await?;
        Ok(serde_json::from_str::<Value>(&said)?)
    };
    until(ask, |_| true).await?;

    case.pool(json!({})).await?;
    case.deploy("work", 20, "1", json!({})).await?;
    case.until_running(20, SOON).await?;
    let launched = |report: &Value| {
        let nodes = |whose: &str| report["provisioning"]["nodes"][whose].as_f64();
        nodes("ours") > Some(0.0) && nodes("theirs") > Some(0.0)
    };
    let report = until(ask, launched).await?;
    ensure!(
        report["refused"] == 0,
        "the shadow tried to write: {report}"
    );
    read_before_the_switch(cluster, &server).await?;

    let requests = audit::requests(&cluster.plane.audit_log(), SHADOW, since)?;
    let wrong = requests.iter().filter(|r| !r.is_read() || r.is_forbidden());
    let wrong: Vec<String> = wrong.map(audit::Request::describe).take(10).collect();
    ensure!(requests.len() > 10, "only {} requests", requests.len());
    ensure!(wrong.is_empty(), "writes or forbidden requests: {wrong:#?}");
    shadow.is_running()?;
    shadow.has_logged_json()?;
    shadow.stop().await
}

/// Runs the blocks of the page for those who have not switched yet, as they stand, and looks for what the README shows of a report.
async fn read_before_the_switch(cluster: &Cluster, server: &str) -> Result<()> {
    let page = std::fs::read_to_string(root().join(BEFORE))?;
    let plugins = controller_binary("kubectl-karpenter")?;
    let plugins = std::path::absolute(plugins)?;
    let plugins = plugins.parent().context("the plugin is in no folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut said = String::new();
    for block in marked::marked(BEFORE, &page, "shadow") {
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", &block.text])
            .env("PATH", format!("{}:{path}", plugins.display()))
            .env("KUBECONFIG", cluster.plane.kubeconfig())
            .env("HOME", cluster.plane.folder())
            .env("KARPENTER_SERVER", server)
            .stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {error}", block.place);
        said += &String::from_utf8(output.stdout)?;
    }
    let said: Vec<_> = said.lines().map(words).collect();
    let readme = std::fs::read_to_string(root().join("README.md"))?;
    let (_, shown) = readme
        .split_once("$ kubectl karpenter shadow report\n")
        .context("the README shows no report")?;
    for line in shown.lines().take_while(|line| *line != "```") {
        let is_said = said.contains(&words(line));
        ensure!(
            is_said,
            "the README shows `{line}`, the commands say {said:#?}"
        );
    }
    Ok(())
}

/// The words of a line without its figures, which differ from run to run.
fn words(line: &str) -> Vec<&str> {
    let has_digit = |word: &&str| word.contains(|c: char| c.is_ascii_digit());
    line.split_whitespace()
        .filter(|word| !has_digit(word))
        .collect()
}

/// Asks until the answer is as expected.
async fn until<T: std::fmt::Debug, F: Future<Output = Result<T>>>(
    mut ask: impl FnMut() -> F,
    is: impl Fn(&T) -> bool,
) -> Result<T> {
    let deadline = Instant::now() + SOON;
    loop {
        match ask().await {
            Ok(answer) if is(&answer) => return Ok(answer),
            last if Instant::now() > deadline => {
                bail!("timed out waiting for another answer than {last:?}")
            }
            _ => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}
