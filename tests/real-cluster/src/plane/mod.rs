//! A control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok.

mod cluster_api;
mod egress;
mod pki;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::binaries::Binaries;
use crate::process::Process;
pub(crate) use cluster_api::{ClusterApi, NAMESPACE as FLEET, offer};
pub(crate) use egress::Egress;
use pki::Pki;

const STAGES: &str = include_str!("stages.yaml");
const AUDIT_POLICY: &str = include_str!("audit-policy.yaml");
/// Startup timeout of a program, on a busy computer.
const PATIENCE: Duration = Duration::from_secs(120);

/// How kube-scheduler scores nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// As it does by default: nodes with the most free resources first.
    Default,
    /// Nodes with the least free resources first.
    MostAllocated,
}

/// The state of a control plane that keeps running after the process that started it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Left {
    pub(crate) processes: BTreeMap<String, u32>,
}

/// A running control plane; all its programs are killed on drop.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    folder: PathBuf,
    binaries: Binaries,
    pki: Pki,
    server: String,
    ports: Ports,
    // Dropped in this order: clients first.
    kwok: Option<Process>,
    scheduler: Option<Process>,
    controllers: Option<Process>,
    api_server: Option<Process>,
    etcd: Option<Process>,
    egress: Egress,
}

#[derive(Debug)]
struct Ports {
    etcd: u16,
    etcd_peers: u16,
    api: u16,
    controllers: u16,
    scheduler: u16,
    kwok: u16,
}

/// Returns ports that are free now. All are bound until all are chosen, so that each is different.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

impl ControlPlane {
    /// Starts a control plane whose files are in `folder`.
    pub(crate) async fn start(
        binaries: &Binaries,
        folder: &Path,
        profile: Profile,
    ) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let [etcd, etcd_peers, api, controllers, scheduler, kwok] = free_ports()?;
        let pki = Pki::create(&folder.join("pki"))?;
        let mut plane = Self {
            folder: folder.to_owned(),
            binaries: binaries.clone(),
            pki,
            server: format!("https://127.0.0.1:{api}"),
            ports: Ports {
                etcd,
                etcd_peers,
                api,
                controllers,
                scheduler,
                kwok,
            },
            kwok: None,
            scheduler: None,
            controllers: None,
            api_server: None,
            etcd: None,
            egress: Egress::start(folder)?,
        };
        for (name, user, group) in [
            ("admin", "admin", Some("system:masters")),
            ("controllers", "system:kube-controller-manager", None),
            ("scheduler", "system:kube-scheduler", None),
            ("kwok", "kwok", Some("system:masters")),
        ] {
            plane.pki.kubeconfig(&plane.server, name, user, group)?;
        }
        plane.start_etcd()?;
        plane.start_api_server().await?;
        plane.start_controllers()?;
        plane.start_scheduler(profile)?;
        plane.start_kwok()?;
        Ok(plane)
    }

    /// Returns the kubeconfig of an administrator.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.pki.file("admin.kubeconfig")
    }

    /// Writes the kubeconfig of a user with a token.
    pub(crate) fn kubeconfig_with_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        self.pki.token_kubeconfig(&self.server, name, token)
    }

    /// Returns the directory of the files of this cluster.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the programs it was started with.
    pub(crate) fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// Returns the path of the audit log.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.jsonl")
    }

    /// Returns the path of the log that `kubectl logs` prints for every container, in the format of container runtimes.
    pub(crate) fn container_log(&self) -> PathBuf {
        self.folder.join("container.log")
    }

    /// Returns the proxy between the API server and Services.
    pub(crate) fn egress(&self) -> &Egress {
        &self.egress
    }

    /// Returns the process id of the API server.
    pub(crate) fn api_server_id(&self) -> Result<u32> {
        let process = self.api_server.as_ref();
        Ok(process.context("the API server is not running")?.id())
    }

    fn program(&self, name: &str) -> Result<Command> {
        Ok(self.command(self.binaries.path(name)?))
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nice");
        command.args(["-n", "5"]);
        command.arg(program);
        command.current_dir(&self.folder);
        // Requests to loopback must not use a proxy.
        command.env("NO_PROXY", "*").env("HOME", &self.folder);
        command
    }

    fn run(&self, name: &str, command: &mut Command) -> Result<Process> {
        Process::start(name, command, &self.folder.join(format!("{name}.log")))
    }

    fn start_etcd(&mut self) -> Result<()> {
        let clients = format!("http://127.0.0.1:{}", self.ports.etcd);
        let peers = format!("http://127.0.0.1:{}", self.ports.etcd_peers);
        let mut command = self.program("etcd")?;
        command
            .arg("--data-dir")
            .arg(self.folder.join("etcd"))
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .args(["--unsafe-no-fsync", "--log-level", "warn"])
            .args(["--quota-backend-bytes", "4294967296"]);
        self.etcd = Some(self.run("etcd", &mut command)?);
        Ok(())
    }

    /// Starts the API server, initially or after [`Self::kill_api_server`].
    pub(crate) async fn start_api_server(&mut self) -> Result<()> {
        let policy = self.folder.join("audit-policy.yaml");
        fs::write(&policy, AUDIT_POLICY)?;
        let egress = self.folder.join("egress.yaml");
        fs::write(&egress, self.egress.configuration())?;
        let file = |name: &str| self.pki.file(name).display().to_string();
        let mut command = self.program("kube-apiserver")?;
        command
            .args(["--bind-address", "127.0.0.1"])
            .args(["--secure-port", &self.ports.api.to_string()])
            .arg(format!(
                "--etcd-servers=http://127.0.0.1:{}",
                self.ports.etcd
            ))
            .args(["--tls-cert-file", &file("apiserver.crt")])
            .args(["--tls-private-key-file", &file("apiserver.key")])
            .args(["--client-ca-file", &file("ca.crt")])
            .args(["--service-account-key-file", &file("sa.pub")])
            .args(["--service-account-signing-key-file", &file("sa.key")])
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg("--authorization-mode=Node,RBAC")
            .arg("--service-cluster-ip-range=10.96.0.0/16")
            .arg("--endpoint-reconciler-type=none")
            .arg("--kubelet-preferred-address-types=InternalIP")
            // As in clusters with this admission plugin: setting an owner needs permission to update its finalizers.
            .arg("--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
            .arg("--audit-policy-file")
            .arg(&policy)
            .arg("--audit-log-path")
            .arg(self.audit_log())
            .arg("--audit-log-maxsize=4000")
            .arg("--egress-selector-config-file")
            .arg(&egress);
        self.api_server = Some(self.run("kube-apiserver", &mut command)?);
        self.until_ready().await
    }

    /// Waits until the API server is ready.
    async fn until_ready(&mut self) -> Result<()> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let client = self.client().await?;
        loop {
            for process in [&mut self.etcd, &mut self.api_server].into_iter().flatten() {
                process.is_running()?;
            }
            let request = http::Request::get("/readyz").body(Vec::new())?;
            if client.request_text(request).await.is_ok() {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                let log = self.api_server.as_ref().map(|p| p.tail(20));
                bail!("the API server is not ready: {}", log.unwrap_or_default());
            }
            // Readiness of a server that does not answer can only be polled.
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// Kills the API server; its objects stay in etcd.
    pub(crate) fn kill_api_server(&mut self) {
        self.api_server = None;
    }

    fn start_controllers(&mut self) -> Result<()> {
        let mut command = self.program("kube-controller-manager")?;
        command
            .arg("--kubeconfig")
            .arg(self.pki.file("controllers.kubeconfig"))
            .arg("--service-account-private-key-file")
            .arg(self.pki.file("sa.key"))
            .arg("--root-ca-file")
            .arg(self.pki.file("ca.crt"))
            .args(["--bind-address", "127.0.0.1"])
            .args(["--secure-port", &self.ports.controllers.to_string()])
            .args(["--use-service-account-credentials", "--leader-elect=false"])
            .args(["--kube-api-qps=200", "--kube-api-burst=400"]);
        self.controllers = Some(self.run("kube-controller-manager", &mut command)?);
        Ok(())
    }

    fn start_scheduler(&mut self, profile: Profile) -> Result<()> {
        let strategy = match profile {
            Profile::Default => "LeastAllocated",
            Profile::MostAllocated => "MostAllocated",
        };
        let resources = json!([{ "name": "cpu", "weight": 1 }, { "name": "memory", "weight": 1 }]);
        let fit = json!({ "scoringStrategy": { "type": strategy, "resources": resources } });
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": self.pki.file("scheduler.kubeconfig"), "qps": 500, "burst": 1000,
            },
            "leaderElection": { "leaderElect": false },
            "profiles": [{
                "schedulerName": "default-scheduler",
                "pluginConfig": [{ "name": "NodeResourcesFit", "args": fit }],
            }],
        });
        let path = self.folder.join("kube-scheduler.json");
        fs::write(&path, config.to_string())?;
        let mut command = self.program("kube-scheduler")?;
        command
            .arg("--config")
            .arg(&path)
            .args(["--bind-address", "127.0.0.1"])
            .args(["--secure-port", &self.ports.scheduler.to_string()]);
        self.scheduler = Some(self.run("kube-scheduler", &mut command)?);
        Ok(())
    }

    fn start_kwok(&mut self) -> Result<()> {
        let config = format!(
            "apiVersion: config.kwok.x-k8s.io/v1alpha1\nkind: KwokConfiguration\noptions:\n  manageAllNodes: true\n  cidr: 10.0.0.0/8\n  nodeIP: 10.0.0.1\n  nodePort: {port}\n  serverAddress: 127.0.0.1:{port}\n  enablePodsOnNodeSyncStreamWatch: true\n  nodeLeaseDurationSeconds: 40\n  nodeLeaseParallelism: 4\n  podPlayStageParallelism: 8\n  nodePlayStageParallelism: 8\n  enableDebuggingHandlers: true\n  tlsCertFile: {certificate}\n  tlsPrivateKeyFile: {key}\n---\napiVersion: kwok.x-k8s.io/v1alpha1\nkind: ClusterLogs\nmetadata: {{ name: all }}\nspec:\n  logs: [{{ logsFile: {logs} }}]\n---\n{STAGES}",
            port = self.ports.kwok,
            certificate = self.pki.file("kwok.crt").display(),
            key = self.pki.file("kwok.key").display(),
            logs = self.container_log().display(),
        );
        // The port of kubelets: kwok answers for those of all nodes.
        self.egress.route("10.0.0.1:10250", self.ports.kwok);
        let path = self.folder.join("kwok.yaml");
        fs::write(&path, config)?;
        let mut command = self.program("kwok")?;
        command
            .arg("--kubeconfig")
            .arg(self.pki.file("kwok.kubeconfig"))
            .arg("--config")
            .arg(&path);
        self.kwok = Some(self.run("kwok", &mut command)?);
        Ok(())
    }

    /// Fails with the end of its log if a program has exited.
    pub(crate) fn is_running(&mut self) -> Result<()> {
        let all = [
            &mut self.etcd,
            &mut self.api_server,
            &mut self.controllers,
            &mut self.scheduler,
            &mut self.kwok,
        ];
        all.into_iter().flatten().try_for_each(Process::is_running)
    }

    /// Returns the client of an administrator.
    pub(crate) async fn client(&self) -> Result<Client> {
        client(&self.kubeconfig()).await
    }

    /// Lets all programs run after this process, and returns their state.
    pub(crate) fn leave(mut self) -> Left {
        let all = [
            ("kwok", &mut self.kwok),
            ("kube-scheduler", &mut self.scheduler),
            ("kube-controller-manager", &mut self.controllers),
            ("kube-apiserver", &mut self.api_server),
            ("etcd", &mut self.etcd),
        ];
        let mut processes = BTreeMap::new();
        for (name, process) in all {
            if let Some(process) = process {
                process.detach();
                processes.insert(name.to_owned(), process.id());
            }
        }
        Left { processes }
    }
}

/// Returns a client for a kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
