//! One of our controllers as a local process: with the environment of its Deployment, as its ServiceAccount, with the name of one
//! of its pods.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::Value;

use crate::helm::Release;
use crate::objects::{DEPLOYMENTS, LEASES, PODS, list, name};
use crate::plane::{ControlPlane, free_ports};
use crate::process::Process;
use crate::wait;

/// The labels of the chart's pods.
const PODS_OF_CHART: &str = "app.kubernetes.io/name=karpenter";

/// A running controller, killed on drop.
#[derive(Debug)]
pub(crate) struct Controller {
    binary: PathBuf,
    environment: BTreeMap<String, String>,
    log: PathBuf,
    release: Release,
    pod: String,
    process: Process,
}

impl Controller {
    /// Returns the metrics, as they are scraped.
    pub(crate) fn metrics(&self) -> Result<String> {
        let address = format!("127.0.0.1:{}", self.environment["METRICS_PORT"]);
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Starts a controller that a release of the chart installed, with additional environment variables.
    pub(crate) async fn start(
        plane: &ControlPlane,
        client: &Client,
        release: Release,
        binary: &Path,
        more: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let deployments = DEPLOYMENTS.of_namespace(client, release.namespace);
        let deployment = serde_json::to_value(deployments.get(release.name).await?)?;
        let mut environment = environment_of(&deployment, release.namespace)?;
        let ports: [u16; 3] = free_ports()?;
        let names = ["METRICS_PORT", "HEALTH_PROBE_PORT", "DECISIONS_PORT"];
        for (name, port) in names.into_iter().zip(ports) {
            environment.insert(name.to_owned(), port.to_string());
        }
        let pods = PODS.of_namespace(client, release.namespace);
        let pod = list(&pods, PODS_OF_CHART).await?;
        let mut staying = pod
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let pod = staying.next().context("the Deployment has no pods")?;
        let pod = name(pod).to_owned();
        let token = token(client, release.namespace, release.name).await?;
        let kubeconfig = plane.kubeconfig_with_token(release.name, &token)?;
        let own = [
            ("KUBECONFIG", kubeconfig.display().to_string()),
            ("HOSTNAME", pod.clone()),
            ("HOME", plane.folder().display().to_string()),
            ("RUST_BACKTRACE", "1".to_owned()),
        ];
        environment.extend(own.map(|(name, value)| (name.to_owned(), value)));
        environment.extend(more.clone());
        let log = plane.folder().join(format!("{}.log", release.name));
        let process = spawn(binary, &environment, &log)?;
        Ok(Self {
            binary: binary.to_owned(),
            environment,
            log,
            release,
            pod,
            process,
        })
    }

    /// Waits until this process holds the lease.
    pub(crate) async fn until_leading(&mut self, client: &Client) -> Result<()> {
        let leases = LEASES.of_namespace(client, self.release.namespace);
        let pod = self.pod.clone();
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let held = |seen: &wait::Seen| {
            let mut leases = seen.values();
            let holder = leases.find(|l| name(l) == "karpenter-leader-election");
            let holder = holder.and_then(|l| l["spec"]["holderIdentity"].as_str());
            // Upstream's controller uses the name of the host, not that of the pod.
            let is_own = |h: &&str| h.starts_with(&pod) || h.starts_with(&*host);
            Ok(holder.filter(is_own).map(|_| ()))
        };
        let waiting = wait::until("the lease", &leases, "", Duration::from_secs(60), held);
        let result = waiting.await;
        self.process.is_running()?;
        result
    }

    /// Returns the id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the port on loopback on which it explains its decisions.
    pub(crate) fn decisions_port(&self) -> &str {
        &self.environment["DECISIONS_PORT"]
    }

    /// Kills it as the OOM killer does.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again after it has exited, as a kubelet does.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.process = spawn(&self.binary, &self.environment, &self.log)?;
        Ok(())
    }

    /// Whether it has exited by itself.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.process.ended()?.is_some())
    }

    /// Sends SIGTERM, as a kubelet does, and waits until it has exited successfully.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.process.signal(Signal::TERM);
        let status = self.process.end(Duration::from_secs(30)).await?;
        ensure!(
            status.success(),
            "the controller exited with {status}: {}",
            self.process.tail(5)
        );
        Ok(())
    }

    /// Detaches it from this process, and returns its id.
    pub(crate) fn leave(mut self) -> u32 {
        self.process.detach();
        self.process.id()
    }

    /// Fails if it has exited.
    pub(crate) fn is_running(&mut self) -> Result<()> {
        self.process.is_running()
    }

    /// Returns every line of its log.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Fails if a line of its log is not JSON.
    pub(crate) fn has_logged_json(&self) -> Result<()> {
        for line in self.lines() {
            if serde_json::from_str::<Value>(&line).is_err() {
                bail!("a line of the log is not JSON: {line}");
            }
        }
        Ok(())
    }
}

fn spawn(binary: &Path, environment: &BTreeMap<String, String>, log: &Path) -> Result<Process> {
    let mut command = Command::new(binary);
    command.env_clear().envs(environment);
    command.current_dir(log.parent().unwrap_or(Path::new("/")));
    Process::start("karpenter", &mut command, log)
}

/// Returns a token of a ServiceAccount.
async fn token(client: &Client, namespace: &str, account: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(Vec::new()),
            expiration_seconds: Some(24 * 3600),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await?;
    let token = answer.status.and_then(|status| status.token);
    token.context("cannot get a token")
}

/// Returns the environment that a kubelet sets in the container of a Deployment.
fn environment_of(deployment: &Value, namespace: &str) -> Result<BTreeMap<String, String>> {
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let variables = container["env"].as_array();
    let mut environment = BTreeMap::new();
    for variable in variables.context("the container has no environment")? {
        let key = variable["name"].as_str().unwrap_or_default().to_owned();
        let from = &variable["valueFrom"];
        let value = match variable["value"].as_str() {
            Some(value) => value.to_owned(),
            None if from["fieldRef"]["fieldPath"] == "metadata.namespace" => namespace.to_owned(),
            None if from["fieldRef"]["fieldPath"] == "status.podIP" => "127.0.0.1".to_owned(),
            // The value of a kubelet for a container without requests or limits.
            None if from["resourceFieldRef"]["resource"] == "requests.cpu" => "0".to_owned(),
            None if from["resourceFieldRef"]["resource"] == "limits.memory" => {
                "8000000000".to_owned()
            }
            None => bail!("unknown source of {key}: {from}"),
        };
        environment.insert(key, value);
    }
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_environment_is_that_of_a_kubelet() {
        let deployment = json!({ "spec": { "template": { "spec": { "containers": [{ "env": [
            { "name": "A", "value": "b" },
            { "name": "SYSTEM_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
            { "name": "CPU_REQUESTS", "valueFrom": { "resourceFieldRef": { "resource": "requests.cpu" } } },
        ] }] } } } });
        let environment = environment_of(&deployment, "kube-system").unwrap();
        assert_eq!(environment["A"], "b");
        assert_eq!(environment["SYSTEM_NAMESPACE"], "kube-system");
        assert_eq!(environment["CPU_REQUESTS"], "0");
        let unknown = json!({ "spec": { "template": { "spec": { "containers": [{ "env": [
            { "name": "A", "valueFrom": { "secretKeyRef": { "name": "s" } } },
        ] }] } } } });
        assert!(environment_of(&unknown, "kube-system").is_err());
    }
}
