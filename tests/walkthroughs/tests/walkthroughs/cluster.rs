//! A cluster on AWS before Karpenter is installed: control plane, add-ons, two nodes of a managed node group, and the resources
//! of a CloudFormation stack. Karpenter is installed into it with the values of a walkthrough.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use karpenter_aws_fake::{AwsFake, Instance, Server, nodes};
use karpenter_testbed::loops::Loops;
use karpenter_testbed::loops::node_agent::NodeAgentOptions;
use karpenter_testbed::server::ServedOverHttps;
use karpenter_testbed::{Testbed, loops};
use serde_json::{Value, json};
use skipped::skipped;
use tempfile::TempDir;

use crate::controller::{Controller, Line};
use crate::install::NAMESPACE;
use crate::{controller, install};

pub const REGION: &str = "us-west-2";
/// Without the client's validation: some users have a kubectl of the control plane's version, and kubectl before 1.28 requires
/// OpenAPI v2 to validate, which the embedded API server does not serve.
const APPLY: [&str; 4] = ["apply", "--validate=false", "-f", "-"];
/// Secret values that must not appear in the log.
const SECRET: &str = "wJalrXUtnFEMIWALKTHROUGH";

/// The setup of a walkthrough.
pub struct Start<'a> {
    pub title: &'a str,
    /// The name of the cluster.
    pub cluster: &'a str,
    /// The version of the control plane, and the versions with published images.
    pub kubernetes: &'a str,
    pub published: &'a [&'a str],
    /// The newest generation of instances at the time.
    pub generation: u32,
    /// The chart values that Karpenter is installed with.
    pub values: &'a str,
}

/// Deadline of a wait. The controller uses the wall clock, which may be set during the wait.
struct Deadline {
    timer: Instant,
    wall: SystemTime,
}

impl Deadline {
    fn after(wait: Duration) -> Self {
        Self {
            timer: Instant::now() + wait,
            wall: SystemTime::now() + wait,
        }
    }

    fn has_passed(&self) -> bool {
        Instant::now() > self.timer && SystemTime::now() > self.wall
    }
}

pub struct Cluster {
    pub name: String,
    pub testbed: Testbed,
    pub aws: AwsFake,
    pub controller: Controller,
    environment: BTreeMap<String, String>,
    home: TempDir,
    /// The port of the server of decisions.
    pub decisions: u16,
    started: Instant,
    instances: tokio::task::JoinHandle<()>,
    _loops: Loops,
    _served: ServedOverHttps,
    _endpoint: Server,
}

pub fn is_true(object: &Value, condition: &str) -> Option<()> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|c| c["type"] == condition)?;
    (found["status"] == "True").then_some(())
}

fn is_missing(program: &str) -> bool {
    let ran = Command::new(program).arg("--help").output();
    let missing = ran.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    if missing {
        assert!(
            std::env::var_os("WALKTHROUGH").is_none(),
            "a walkthrough needs {program}; `.ci/run` installs it"
        );
        skipped(program, "it is not in PATH");
    }
    missing
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

impl Cluster {
    /// Starts the cluster with Karpenter; returns `None` if tools are missing.
    pub async fn start(start: Start<'_>) -> Option<Self> {
        let karpenter = controller::binary();
        let karpenter = karpenter.to_string_lossy();
        if ["kubectl", "helm", &karpenter].into_iter().any(is_missing) {
            return None;
        }
        let testbed = Testbed::builder()
            .version(start.kubernetes)
            .mutate_pods(nodes::admit)
            .garbage_collection()
            .start()
            .await;
        let agent = NodeAgentOptions {
            simulates: Arc::new(|node| {
                let id = node.spec.as_ref().and_then(|s| s.provider_id.as_deref());
                id.is_some_and(|id| id.starts_with("aws:///"))
            }),
            ..NodeAgentOptions::default()
        };
        let options = loops::Options {
            node_agent: Some(agent),
            ..loops::Options::default()
        };
        let running = Loops::start(testbed.client(), testbed.clock(), options);
        let served = testbed.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        served
            .write_kubeconfig(&home.path().join("config"))
            .unwrap();
        // It has the permissions of the chart's roles.
        let token = served.service_account_token(NAMESPACE, "karpenter");
        let config = served.kubeconfig_with(&token);
        std::fs::write(home.path().join("karpenter"), config).unwrap();

        let aws = stack(&start);
        let endpoint = aws.serve(0).await.unwrap();
        let joining = nodes::run(aws.clone(), testbed.admin_client(), |instance, error| {
            println!("# {} cannot join the cluster: {error}", instance.id);
        });
        let instances = tokio::spawn(joining);

        let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
        let values = with_ports(start.values, start.cluster, &ports);
        let manifests = install::render("karpenter", &values);
        let mut environment = install::environment(&manifests);
        let aws_config: [(&str, String); 9] = [
            (
                "KUBECONFIG",
                home.path().join("karpenter").display().to_string(),
            ),
            ("AWS_ENDPOINT_URL", endpoint.url()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", "AKIAWALKTHROUGH".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
            ("HOME", home.path().display().to_string()),
            ("HOSTNAME", "karpenter-0".to_owned()),
            ("RUST_BACKTRACE", "1".to_owned()),
        ];
        environment.extend(aws_config.map(|(name, value)| (name.to_owned(), value)));

        let prepared = Prepared { home: &home };
        println!(
            "\n# {}: cluster {}, Kubernetes {}",
            start.title, start.cluster, start.kubernetes
        );
        prepared.kubectl(&APPLY, &add_ons());
        println!("# helm template karpenter-crd | kubectl apply -f -");
        let definitions = install::render("karpenter-crd", &of_definitions(&values));
        prepared.kubectl(
            &["apply", "--server-side", "--validate=false", "-f", "-"],
            &definitions,
        );
        println!("# helm template karpenter | kubectl apply -f -");
        prepared.kubectl(
            &["apply", "--server-side", "--validate=false", "-f", "-"],
            &manifests,
        );
        prepared.kubectl(&APPLY, &webhook_endpoint(ports[2]));
        println!("# karpenter, with the environment of the Deployment");
        let controller = Controller::start(&environment);
        Some(Self {
            name: start.cluster.to_owned(),
            testbed,
            aws,
            controller,
            environment,
            home,
            decisions: ports[3],
            started: Instant::now(),
            instances,
            _loops: running,
            _served: served,
            _endpoint: endpoint,
        })
    }

    /// Prints the next step.
    pub fn step(&self, what: &str) {
        println!("\n[{:5.1} s] {what}", self.started.elapsed().as_secs_f64());
    }

    /// Runs kubectl, and prints its output.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        println!("$ kubectl {}", arguments.join(" "));
        let output = self.quietly(arguments);
        print!("{output}");
        output
    }

    pub fn quietly(&self, arguments: &[&str]) -> String {
        Prepared { home: &self.home }.kubectl(arguments, "")
    }

    pub fn get(&self, arguments: &[&str]) -> Value {
        let all: Vec<&str> = ["get", "-o", "json"]
            .iter()
            .chain(arguments)
            .copied()
            .collect();
        serde_json::from_str(&self.quietly(&all)).unwrap()
    }

    /// Returns an object, or none if it does not exist (yet): for waiting until a controller creates it.
    pub fn find(&self, arguments: &[&str]) -> Option<Value> {
        let all: Vec<&str> = ["get", "-o", "json", "--ignore-not-found"]
            .iter()
            .chain(arguments)
            .copied()
            .collect();
        let output = self.quietly(&all);
        (!output.is_empty()).then(|| serde_json::from_str(&output).unwrap())
    }

    pub fn items(&self, arguments: &[&str]) -> Vec<Value> {
        self.get(arguments)["items"].as_array().unwrap().clone()
    }

    /// Applies manifests of the walkthrough, with `${CLUSTER_NAME}` filled in as `envsubst` would.
    pub fn apply(&self, seed: &str) {
        println!("$ envsubst < {seed} | kubectl apply -f -");
        let path = install::root().join("tests/seeds").join(seed);
        let text = std::fs::read_to_string(path).unwrap();
        let text = text.replace("${CLUSTER_NAME}", &self.name);
        let output = Prepared { home: &self.home }.kubectl(&APPLY, &text);
        print!("{output}");
    }

    /// Applies a manifest of the test.
    pub fn apply_text(&self, text: &str) {
        Prepared { home: &self.home }.kubectl(&APPLY, text);
    }

    /// Returns the nodes that Karpenter launched.
    pub fn nodes(&self) -> Vec<Value> {
        self.items(&["nodes", "-l", "karpenter.sh/nodepool"])
    }

    /// Returns the running instances.
    pub fn instances(&self) -> Vec<Instance> {
        let all = self.aws.instances().into_iter();
        all.filter(|instance| instance.state.is_alive()).collect()
    }

    pub fn instance_of(&self, node: &Value) -> Instance {
        let id = node["spec"]["providerID"].as_str().unwrap();
        self.aws.instance(id.rsplit('/').next().unwrap()).unwrap()
    }

    /// Waits until a condition holds.
    pub async fn until<T>(
        &mut self,
        what: &str,
        within: Duration,
        mut found: impl FnMut(&Self) -> Option<T>,
    ) -> T {
        let deadline = Deadline::after(within);
        loop {
            // kubectl blocks this thread while the API server runs on the others.
            let answer = tokio::task::block_in_place(|| found(self));
            if let Some(answer) = answer {
                self.step(&format!("{what}."));
                return answer;
            }
            if deadline.has_passed() || self.controller.has_ended() {
                let state = tokio::task::block_in_place(|| self.state());
                panic!(
                    "timed out after {within:?}: {what}\n{state}\n{}",
                    self.controller.tail(60)
                );
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until the NodePools are deleted and the instances terminated.
    pub async fn until_nothing_is_left(&mut self) {
        let within = Duration::from_secs(120);
        self.until("nothing is left", within, |cluster| {
            let pools = cluster.items(&["nodepools"]);
            (pools.is_empty() && cluster.instances().is_empty()).then_some(())
        })
        .await;
    }

    fn state(&self) -> String {
        let all = [
            &[
                "get",
                "nodepools,nodeclaims,ec2nodeclasses,nodes,pods",
                "-A",
                "-o",
                "wide",
            ][..],
            &["get", "provisioners,awsnodetemplates", "-o", "wide"],
            &["get", "events", "-A"],
            &[
                "get",
                "ec2nodeclasses,nodeclaims",
                "-o",
                "jsonpath={range .items[*]}{.kind}/{.metadata.name}: {.status.conditions}{\"\\n\"}{end}",
            ],
        ];
        all.map(|arguments| {
            let mut command = Prepared { home: &self.home }.command(arguments);
            let output = command.output().unwrap();
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        })
        .join("\n")
    }

    /// Waits for a log line after `after` with the message `message`, and prints it.
    pub async fn logs(
        &mut self,
        after: usize,
        message: &str,
        within: Duration,
        which: impl Fn(&Line) -> bool,
    ) -> Line {
        let deadline = Deadline::after(within);
        loop {
            let mut lines = self.controller.lines().into_iter();
            let found = lines.find(|l| l.at >= after && l.text("message") == message && which(l));
            if let Some(line) = found {
                println!("  log: {}", line.json);
                return line;
            }
            if deadline.has_passed() || self.controller.has_ended() {
                let state = tokio::task::block_in_place(|| self.state());
                panic!(
                    "timed out after {within:?} waiting for the log line `{message}`\n{state}\n{}",
                    self.controller.tail(60)
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the API server can convert versions. The CA bundle is written into the CRDs before the webhook listens, so
    /// `caBundle` alone does not mean that the webhook answers.
    pub async fn until_versions_are_converted(&mut self) {
        self.logs(
            0,
            "serving conversion webhook",
            Duration::from_secs(60),
            |_| true,
        )
        .await;
    }

    /// Returns the current length of the log.
    pub fn log_end(&self) -> usize {
        self.controller.lines().last().map_or(0, |line| line.at + 1)
    }

    /// Stops the controller as a rollout does, and starts a new one.
    pub fn restart(mut self) -> Self {
        self.step("Replacing the controller.");
        let next = Controller::start(&self.environment);
        let before = std::mem::replace(&mut self.controller, next);
        assert!(tokio::task::block_in_place(|| before.stop()));
        self
    }

    /// Stops all processes; the controller must exit successfully.
    pub async fn end(self) {
        self.step("Stopping Karpenter.");
        self.instances.abort();
        let tail = self.controller.tail(20);
        self.controller.has_kept_its_secrets(&[
            SECRET,
            "PRIVATE KEY",
            "bootstrap.sh",
            "<powershell>",
        ]);
        assert!(
            tokio::task::block_in_place(|| self.controller.stop()),
            "{tail}"
        );
        let refused = self.testbed.server().refusals();
        assert!(
            refused.is_empty(),
            "the chart's roles do not allow: {refused:#?}"
        );
    }
}

/// Returns kubectl for a cluster.
struct Prepared<'a> {
    home: &'a TempDir,
}

impl Prepared<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .arg("--kubeconfig")
            .arg(self.home.path().join("config"))
            .arg("--cache-dir")
            .arg(self.home.path().join("cache"))
            .args(arguments);
        if let Some(level) = std::env::var_os("WALKTHROUGH_KUBECTL") {
            command.arg("-v").arg(level);
        }
        command
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        tokio::task::block_in_place(|| {
            let mut child = self
                .command(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let input = input.to_owned();
            let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
            let output = child.wait_with_output().unwrap();
            // kubectl may close its input early.
            let _ = writer.join().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "kubectl {arguments:?}: {error}");
            String::from_utf8(output.stdout).unwrap()
        })
    }
}

/// Returns the values with free ports of this host, and the name of the cluster.
fn with_ports(values: &str, cluster: &str, ports: &[u16]) -> String {
    let values = values.replace("${CLUSTER_NAME}", cluster);
    let mut values: Value = serde_saphyr::from_str(&values).unwrap();
    values["controller"]["metrics"]["port"] = ports[0].into();
    values["controller"]["healthProbe"]["port"] = ports[1].into();
    values["webhook"]["port"] = ports[2].into();
    values["decisions"]["port"] = ports[3].into();
    values.to_string()
}

/// Returns the values of the CRD chart that belong to values of the chart: which older generations are served.
fn of_definitions(values: &str) -> String {
    let values: Value = serde_json::from_str(values).unwrap();
    let served = |generation: &str| values[generation]["enabled"] == true;
    json!({
        "legacy": { "enabled": served("legacy") },
        "webhook": { "enabled": served("webhook"), "port": values["webhook"]["port"] },
    })
    .to_string()
}

/// 6 for c6a.xlarge.
fn generation(instance_type: &str) -> u32 {
    let family = instance_type.split('.').next().unwrap();
    let digits = family.trim_start_matches(|c: char| !c.is_ascii_digit());
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// Creates the AWS resources of the walkthroughs' stacks.
fn stack(start: &Start<'_>) -> AwsFake {
    let cluster = start.cluster;
    let mut versions = vec![start.kubernetes];
    versions.extend(start.published);
    versions.dedup();
    let aws = AwsFake::builder()
        .cluster(cluster)
        .kubernetes(&versions)
        .interruption_queue(cluster)
        .settings(|s| s.pending_s = 2.0)
        .build();
    aws.keep_instance_types(|name| generation(name) <= start.generation);
    let profile = format!("KarpenterNodeInstanceProfile-{cluster}");
    aws.add_instance_profile(&profile, Some(&format!("KarpenterNodeRole-{cluster}")));
    aws
}

/// Returns the pods of every EKS cluster: two nodes of a managed node group, CNI, kube-proxy, pod identity, DNS.
fn add_ons() -> String {
    let daemon = |name: &str, requests: Value| {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": {
                "selector": { "matchLabels": { "k8s-app": name } },
                "template": {
                    "metadata": { "labels": { "k8s-app": name } },
                    "spec": {
                        "nodeSelector": { "kubernetes.io/os": "linux" },
                        "tolerations": [{ "operator": "Exists" }],
                        "containers": [{ "name": name, "image": name, "resources": { "requests": requests } }],
                    },
                },
            },
        })
    };
    let managed = |name: &str, zone: &str| {
        let amounts =
            json!({ "cpu": "2", "memory": "8Gi", "pods": "29", "ephemeral-storage": "80Gi" });
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": "m5.large", "topology.kubernetes.io/zone": zone,
                "topology.kubernetes.io/region": REGION, "eks.amazonaws.com/nodegroup": "managed",
            } },
            "spec": { "providerID": format!("aws:///{zone}/i-{name}") },
            "status": { "capacity": amounts, "allocatable": amounts },
        })
    };
    let items = [
        managed("managed-1", "us-west-2a"),
        managed("managed-2", "us-west-2b"),
        daemon("aws-node", json!({ "cpu": "50m" })),
        daemon("kube-proxy", json!({ "cpu": "100m" })),
        daemon("eks-pod-identity-agent", json!({})),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "kube-dns", "namespace": NAMESPACE },
            "spec": { "clusterIP": "10.100.0.10", "ports": [{ "name": "dns", "port": 53, "protocol": "UDP" }] },
        }),
    ];
    items.map(|item| item.to_string()).join("\n")
}

/// The cluster has no pod network from the API server to the webhook, so the endpoint is created here.
fn webhook_endpoint(port: u16) -> String {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "karpenter-here", "namespace": NAMESPACE, "labels": { "kubernetes.io/service-name": "karpenter" } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["127.0.0.1"], "conditions": { "ready": true } }],
        "ports": [{ "name": "https-webhook", "port": port, "protocol": "TCP" }],
    })
    .to_string()
}
