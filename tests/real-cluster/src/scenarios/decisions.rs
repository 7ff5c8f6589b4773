//! Decisions are explained through a real API server, to those who may see them; a shadow reads only.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use kube::config::{AuthInfo, Config};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::audit;
use crate::case::{Case, SOON};
use crate::cluster::Cluster;
use crate::controller::{Controller, PODS_OF_CHART, token};
use crate::helm::{self, KARPENTER, SHADOW};
use crate::objects::{PODS, SERVICES, list, name};
use crate::paths::controller_binary;

/// The audience of tokens for explanations.
const AUDIENCE: &str = "decisions.karpenter.sh";

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

/// Connects the API server to the pods behind the Service's port for decisions. Returns the port.
async fn route_to_decisions(cluster: &Cluster) -> Result<u16> {
    let services = SERVICES.of_namespace(&cluster.client, KARPENTER.namespace);
    let service = serde_json::to_value(services.get(KARPENTER.name).await?)?;
    let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let port = ports.find(|port| port["name"] == "https-decisions");
    let port = port.and_then(|port| port["port"].as_u64());
    let port = u16::try_from(port.context("the Service has no port https-decisions")?)?;
    let pods = PODS.of_namespace(&cluster.client, KARPENTER.namespace);
    for pod in list(&pods, PODS_OF_CHART).await? {
        let address = pod["status"]["podIP"].as_str().unwrap_or_default();
        cluster
            .plane
            .egress()
            .route(&format!("{address}:{port}"), port);
    }
    Ok(port)
}

/// Returns the status of a request to the TLS listener, with a token or without.
async fn status(port: u16, method: &str, path: &str, token: Option<String>) -> Result<u16> {
    let mut config = Config::new(format!("https://127.0.0.1:{port}").parse()?);
    // The certificate is self-signed, as the chart's default is.
    config.accept_invalid_certs = true;
    config.auth_info = AuthInfo {
        token: token.map(Into::into),
        ..AuthInfo::default()
    };
    let request = http::Request::builder()
        .method(method)
        .uri(format!("/apis/decisions.karpenter.sh/v1alpha1/{path}"))
        .header("Content-Type", "application/json")
        .body(b"{}".to_vec())?;
    match Client::try_from(config)?.request_text(request).await {
        Ok(_) => Ok(200),
        Err(Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error.into()),
    }
}

/// A pending pod is explained through the API server's service proxy. The API server reviews tokens and rights: without a token for
/// this audience a request is unauthorized, and without the right it is forbidden.
pub(super) async fn asked_over_tls(cluster: &mut Cluster, case: Case) -> Result<()> {
    case.pool(json!({})).await?;
    case.deploy("runs", 2, "1", json!({})).await?;
    case.deploy("waits", 1, "5000", json!({})).await?;
    case.until_running(2, SOON).await?;
    let port = route_to_decisions(cluster).await?;
    let pods = list(&case.pods(), "app=waits").await?;
    let pod = name(pods.first().context("the Deployment has no pods")?);

    let said = answer(cluster, &["why", "pod", pod, "-n", case.name]).await?;
    ensure!(
        said.starts_with("Pending") && said.contains("requests cpu 5"),
        "why pod: {said}"
    );
    let nodes = list(&case.nodes(), &case.selector()).await?;
    // Reasons come with the next disruption pass.
    let all = |said: &String| nodes.iter().all(|node| said.contains(name(node)));
    until(|| answer(cluster, &["why", "nodes"]), all).await?;
    // The viewer may read, and the API server says so.
    let planned = kubectl_karpenter(cluster, &["plan", "--for", "0s"]).await?;
    let error = String::from_utf8_lossy(&planned.stderr);
    ensure!(
        planned.status.code() == Some(1) && error.contains("create"),
        "a plan without the right: {error}"
    );

    let of = |account: &'static str, audiences: &'static [&'static str]| {
        token(&cluster.client, KARPENTER.namespace, account, audiences)
    };
    let viewer = of("karpenter-viewer", &[AUDIENCE]).await?;
    let of_api_server = of("karpenter-viewer", &[]).await?;
    let stranger = of("default", &[AUDIENCE]).await?;
    for (what, method, path, token, expected) in [
        ("the viewer", "GET", "decisions", Some(viewer.clone()), 200),
        (
            "the viewer, who may not create",
            "POST",
            "plans",
            Some(viewer),
            403,
        ),
        (
            "a token for the API server",
            "GET",
            "decisions",
            Some(of_api_server),
            401,
        ),
        (
            "an account without rights",
            "GET",
            "decisions",
            Some(stranger),
            403,
        ),
        (
            "an invalid token",
            "GET",
            "decisions",
            Some("abc".to_owned()),
            401,
        ),
        ("no token", "GET", "decisions", None, 401),
    ] {
        let code = status(port, method, path, token).await.context(what)?;
        ensure!(code == expected, "{what}: {code} instead of {expected}");
    }
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

    let requests = audit::requests(&cluster.plane.audit_log(), SHADOW, since)?;
    let wrong = requests.iter().filter(|r| !r.is_read() || r.is_forbidden());
    let wrong: Vec<String> = wrong.map(audit::Request::describe).take(10).collect();
    ensure!(requests.len() > 10, "only {} requests", requests.len());
    ensure!(wrong.is_empty(), "writes or forbidden requests: {wrong:#?}");
    shadow.is_running()?;
    shadow.has_logged_json()?;
    shadow.stop().await
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
