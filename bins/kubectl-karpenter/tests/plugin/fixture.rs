//! An API server with NodePools, and the plugin's process.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output};

use karpenter_api::crd;
use karpenter_api::v1::NodePool;
use karpenter_testbed::Testbed;
use karpenter_testbed::server::ServedOverHttps;
use kube::Api;
use serde_json::{Value, json};
use tempfile::TempDir;

pub const PAUSED: &str = "operations.karpenter.sh/paused";

/// An API server on loopback, with its kubeconfig in a directory of its own.
pub struct Cluster {
    pub testbed: Testbed,
    pub home: TempDir,
    served: ServedOverHttps,
}

/// What a process has printed.
#[derive(Debug)]
pub struct Printed {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Printed {
    /// Asserts that nothing but an error is printed: one line, or the usage after a wrong command line.
    pub fn fails(&self, words: &str) {
        assert_eq!((self.code, &*self.stdout), (Some(1), ""), "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        assert!(self.stderr.contains(words), "{words}: {self:?}");
        let is_usage = self
            .stderr
            .ends_with("\n\nFor more information, try '--help'.\n");
        assert!(is_usage || self.stderr.lines().count() == 1, "{self:?}");
        assert!(!self.stderr.contains('\u{1b}'), "{self:?}");
    }

    /// Asserts that it succeeds and prints these words.
    pub fn shows(&self, words: &str) {
        assert!(self.succeeds().contains(words), "{words}: {self:?}");
    }

    /// Asserts that it succeeds; returns what is printed.
    pub fn succeeds(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.stdout
    }
}

impl From<Output> for Printed {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// Returns the plugin's command line without a kubeconfig.
pub fn plugin() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-karpenter"));
    command
        .env("KUBECONFIG", "/nonexistent")
        .env("HOME", "/nonexistent")
        .env_remove("KARPENTER_SERVER");
    command
}

/// Returns an address at which nothing listens any more.
pub fn closed_address() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap()
}

impl Cluster {
    /// Starts an API server with these NodePools.
    pub async fn start(pools: &[&str]) -> Self {
        let testbed = Testbed::builder().seed(1).start().await;
        let definitions = crd::all(&[], &[]).into_iter().map(|(_, crd)| crd);
        testbed.apply_crds(definitions).await.unwrap();
        testbed.load(pools.iter().map(|name| node_pool(name)));
        let served = testbed.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        let cluster = Self {
            testbed,
            home,
            served,
        };
        cluster
            .served
            .write_kubeconfig(&cluster.kubeconfig())
            .unwrap();
        cluster
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.home.path().join("config")
    }

    /// Writes a kubeconfig of a service account, which has the rules of the ClusterRole `robot`.
    pub fn kubeconfig_with_rules(&self, rules: Value) -> PathBuf {
        const RBAC: &str = "rbac.authorization.k8s.io/v1";
        let name = json!({ "name": "robot" });
        self.testbed.load([
            json!({ "apiVersion": RBAC, "kind": "ClusterRole", "metadata": name, "rules": rules }),
            json!({
                "apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": name,
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "robot" },
                "subjects": [{ "kind": "ServiceAccount", "name": "robot", "namespace": "robots" }],
            }),
        ]);
        let token = self.served.service_account_token("robots", "robot");
        let path = self.home.path().join("robot");
        std::fs::write(&path, self.served.kubeconfig_with(&token)).unwrap();
        path
    }

    /// Returns the plugin's command line with the administrator's kubeconfig.
    pub fn plugin(&self) -> Command {
        let mut command = plugin();
        command
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", self.home.path());
        command
    }

    /// Runs the plugin with the words of a line.
    pub async fn run(&self, line: &str) -> Printed {
        let mut command = self.plugin();
        command.args(line.split(' '));
        run(command).await
    }

    pub async fn pool(&self, name: &str) -> NodePool {
        let pools: Api<NodePool> = Api::all(self.testbed.client());
        pools.get(name).await.unwrap()
    }

    /// Returns the annotation of a pause.
    pub async fn paused(&self, name: &str) -> Option<String> {
        let pool = self.pool(name).await;
        pool.metadata.annotations?.get(PAUSED).cloned()
    }
}

/// Runs a process, while the API server goes on.
pub async fn run(mut command: Command) -> Printed {
    let run = move || Printed::from(command.output().unwrap());
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn node_pool(name: &str) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name, "labels": { "name": name } },
        "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default" },
            "requirements": [],
        } } },
    })
}
