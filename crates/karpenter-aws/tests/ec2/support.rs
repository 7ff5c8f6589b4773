//! A stand-in for AWS, and connections to it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use karpenter_aws::api::EC2NodeClass;
use karpenter_aws::sdk::{Aws, Connect};
use karpenter_aws_fake::{AwsFake, Builder, Server};
use karpenter_kube::logging::JsonLines;
use karpenter_kube::metrics::Registry;
use serde_json::{Value, json};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub const REGION: &str = "us-west-2";
pub const GROUP: &str = "sg-00000000000000001";
pub const SUBNET_A: &str = "subnet-00000000000000001";
pub const SUBNET_B: &str = "subnet-00000000000000002";
const IMAGE: &str =
    "/aws/service/eks/optimized-ami/1.34/amazon-linux-2023/x86_64/standard/recommended/image_id";

/// The lines that are logged on this thread as long as it lives.
pub struct Log {
    written: Arc<Mutex<Vec<u8>>>,
    _guard: tracing::subscriber::DefaultGuard,
    _other: tracing::Dispatch,
}

#[derive(Clone)]
struct Writer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub fn here() -> Self {
        let written = Arc::default();
        let writer = Writer(Arc::clone(&written));
        let lines = JsonLines::new(move || writer.clone(), "test");
        Self {
            written,
            _guard: tracing_subscriber::registry().with(lines).set_default(),
            // While a single dispatcher exists, tracing caches the interest of the thread that reaches a callsite first.
            // That can be the thread of another test, which has no subscriber.
            _other: tracing::Dispatch::new(tracing_subscriber::registry()),
        }
    }

    pub fn lines(&self, message: &str) -> Vec<Value> {
        let text = String::from_utf8(self.written.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines
            .filter(|line: &Value| line["message"].as_str().unwrap().starts_with(message))
            .collect()
    }
}

pub struct World {
    pub fake: AwsFake,
    pub aws: Aws,
    /// Registry of the metrics of calls.
    pub registry: Registry,
    server: Server,
}

impl World {
    pub async fn new() -> Self {
        Self::with(|b| b).await
    }

    pub async fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        let fake = change(AwsFake::builder().cluster("test").unlimited()).build();
        fake.add_instance_profile("profile", Some("KarpenterNodeRole-test"));
        let server = fake.serve(0).await.unwrap();
        let registry = Registry::new();
        let aws = Aws::connect(&how(&server, registry.clone())).await.unwrap();
        Self {
            fake,
            aws,
            registry,
            server,
        }
    }

    pub fn how(&self) -> Connect {
        how(&self.server, Registry::new())
    }

    pub fn calls(&self, action: &str) -> usize {
        self.fake.call_counts().get(action).copied().unwrap_or(0)
    }

    pub fn image(&self) -> String {
        self.fake.parameter(IMAGE).unwrap()
    }

    /// Returns a node class with a status that matches the stand-in.
    pub fn class(&self, name: &str) -> EC2NodeClass {
        resolved(name, &self.image())
    }
}

/// Returns a node class with this AMI in its status.
pub fn resolved(name: &str, image: &str) -> EC2NodeClass {
    let mut class = class(name, json!({}));
    let requirement = json!({ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] });
    class.status = serde_json::from_value(json!({
        "instanceProfile": "profile",
        "amis": [{ "id": image, "requirements": [requirement] }],
        "securityGroups": [{ "id": GROUP, "name": "node" }],
        "subnets": [
            { "id": SUBNET_A, "zone": "us-west-2a" },
            { "id": SUBNET_B, "zone": "us-west-2b" },
        ],
    }))
    .unwrap();
    class
}

/// Returns the settings of a connection to a stand-in.
pub fn how(server: &Server, registry: Registry) -> Connect {
    Connect {
        region: Some(REGION.into()),
        endpoint: Some(server.url()),
        credentials: Some(("AKIATEST".into(), "secret".into())),
        pause: Duration::from_millis(1),
        registry,
        ..Connect::default()
    }
}

/// Returns a node class that selects by the tag of the cluster, changed by `spec`.
pub fn class(name: &str, spec: Value) -> EC2NodeClass {
    let discovery = json!([{ "tags": { "karpenter.sh/discovery": "test" } }]);
    let mut whole = json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass",
        "metadata": { "name": name, "uid": format!("uid-{name}"), "generation": 1 },
        "spec": {
            "role": "KarpenterNodeRole-test", "subnetSelectorTerms": discovery, "securityGroupSelectorTerms": discovery,
            "amiSelectorTerms": [{ "alias": "al2023@latest" }],
        },
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole["spec"][key] = value.clone();
    }
    serde_json::from_value(whole).unwrap()
}
