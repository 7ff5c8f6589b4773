//! The controller as a process: the size of its binary, its startup time, its memory when idle.
//!
//! `KARPENTER` names the binary; the default is that of the profile `dist`, which images are built from:
//! `cargo image-binary`.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use karpenter_aws_fake::AwsFake;
use karpenter_bench::{Run, Suite};
use karpenter_testbed::Testbed;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

const CLUSTER: &str = "demo";
const STARTS: usize = 5;
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// After this time without work the memory for startup has been released.
const IDLE_TIME: Duration = Duration::from_secs(30);
const BYTES_PER_MIB: f64 = 1024.0 * 1024.0;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn binary() -> Outcome<PathBuf> {
    let named = std::env::var_os("KARPENTER").map(PathBuf::from);
    let path = named.unwrap_or_else(|| root().join("target/dist/karpenter"));
    if !path.is_file() {
        let missing = format!("cannot find {}: build it, or set KARPENTER", path.display());
        return Err(missing.into());
    }
    Ok(path)
}

fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The control plane and the AWS fake.
struct Environment {
    testbed: Testbed,
    endpoint: String,
    home: tempfile::TempDir,
    _parts: Box<dyn std::any::Any>,
}

impl Environment {
    async fn start() -> Outcome<Self> {
        let testbed = Testbed::builder().start().await;
        let files = std::fs::read_dir(root().join("crds"))?;
        let files = files.filter_map(Result::ok).map(|entry| entry.path());
        let definitions = files
            .filter(|path| path.is_file())
            .map(|path| Ok(serde_saphyr::from_str(&std::fs::read_to_string(path)?)?))
            .collect::<Outcome<Vec<Value>>>()?;
        testbed.apply_crds(definitions).await?;
        let served = testbed.serve("127.0.0.1:0".parse()?).await?;
        let home = tempfile::tempdir()?;
        served.write_kubeconfig(&home.path().join("kubeconfig"))?;
        let fake = AwsFake::builder()
            .cluster(CLUSTER)
            .kubernetes(&["1.36"])
            .interruption_queue(CLUSTER)
            .build();
        let server = fake.serve(0).await?;
        Ok(Self {
            testbed,
            endpoint: server.url(),
            home,
            _parts: Box::new((served, server, fake)),
        })
    }

    /// Creates a NodePool that could launch nodes, so that instance types are discovered.
    async fn add_pool(&self) -> Outcome<()> {
        let class = json!({
            "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "default" },
            "spec": {
                "role": format!("KarpenterNodeRole-{CLUSTER}"),
                "amiSelectorTerms": [{ "alias": "al2023@latest" }],
                "subnetSelectorTerms": [{ "tags": { "karpenter.sh/discovery": CLUSTER } }],
                "securityGroupSelectorTerms": [{ "tags": { "karpenter.sh/discovery": CLUSTER } }],
            },
        });
        let pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
            "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "requirements": [],
            } } },
        });
        let kinds = [
            ("karpenter.k8s.aws", "EC2NodeClass", class),
            ("karpenter.sh", "NodePool", pool),
        ];
        for (group, kind, object) in kinds {
            let object = serde_json::from_value(object)?;
            self.api(group, kind)
                .create(&PostParams::default(), &object)
                .await?;
        }
        let pools = self.api("karpenter.sh", "NodePool");
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            let pool = pools.get("default").await?;
            let conditions = pool.data["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            if conditions.any(|c| c["type"] == "Ready" && c["status"] == "True") {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err("the NodePool does not become ready".into())
    }

    fn api(&self, group: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        Api::all_with(self.testbed.client(), &resource)
    }

    /// Starts the binary, and returns the time until it is ready.
    fn controller(&self, binary: &Path) -> Outcome<(Controller, Duration)> {
        let probes = free_port()?;
        let home = self.home.path();
        let started = Instant::now();
        let child = Command::new(binary)
            .env_clear()
            .env("HOME", home)
            .env("KUBECONFIG", home.join("kubeconfig"))
            .env("CLUSTER_NAME", CLUSTER)
            .env("INTERRUPTION_QUEUE", CLUSTER)
            .env("SYSTEM_NAMESPACE", "kube-system")
            .env("DISABLE_WEBHOOK", "true")
            .env("METRICS_PORT", free_port()?.to_string())
            .env("HEALTH_PROBE_PORT", probes.to_string())
            .env("AWS_REGION", "us-west-2")
            .env("AWS_ENDPOINT_URL", &self.endpoint)
            .env("AWS_ACCESS_KEY_ID", "AKIABENCH")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(home.join("log"))?)
            .spawn()?;
        let controller = Controller(child);
        while !is_ready(probes) {
            if started.elapsed() > START_TIMEOUT {
                let log = std::fs::read_to_string(home.join("log"))?;
                return Err(format!("not ready within {START_TIMEOUT:?}\n{log}").into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok((controller, started.elapsed()))
    }
}

fn is_ready(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: karpenter\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// The process; it is killed on drop.
struct Controller(Child);

impl Controller {
    fn resident_mib(&self) -> Outcome<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib.ok_or("no VmRSS")?.parse::<f64>()? / 1024.0)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // A process that has exited cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn starts(run: &mut Run) -> Outcome<()> {
    let (environment, binary) = (Environment::start().await?, binary()?);
    run.record(
        "binary_mib",
        std::fs::metadata(&binary)?.len() as f64 / BYTES_PER_MIB,
    );
    for _ in 0..STARTS {
        let (_controller, took) = tokio::task::block_in_place(|| environment.controller(&binary))?;
        run.sample(1, took);
    }
    Ok(())
}

async fn idles(run: &mut Run) -> Outcome<()> {
    let (environment, binary) = (Environment::start().await?, binary()?);
    let (controller, took) = tokio::task::block_in_place(|| environment.controller(&binary))?;
    run.sample(1, took);
    tokio::time::sleep(IDLE_TIME).await;
    run.record("without_node_pools_mib", controller.resident_mib()?);
    environment.add_pool().await?;
    tokio::time::sleep(IDLE_TIME).await;
    run.record("with_a_node_pool_mib", controller.resident_mib()?);
    Ok(())
}

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut failed = Vec::new();
    let mut suite = Suite::from_args("binary");
    suite.case("start", |run| {
        failed.extend(runtime.block_on(starts(run)).err())
    });
    suite.case("idle", |run| {
        failed.extend(runtime.block_on(idles(run)).err())
    });
    failed.into_iter().next().map_or(Ok(()), Err)
}
