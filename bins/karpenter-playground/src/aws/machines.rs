//! What a running instance does: it reads its user data and joins the cluster; when it is gone, so is its Node.

use std::collections::{BTreeMap, HashMap};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_aws_fake::{AwsFake, Instance, InstanceState};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

/// What the machine is told, in the words of Amazon Linux 2023.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeConfig {
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    kubelet: Kubelet,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Kubelet {
    config: Config,
    flags: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    max_pods: Option<u32>,
    register_with_taints: Vec<Taint>,
}

/// The NodeConfig in user data: its last part, by which the earlier ones are overruled.
fn node_config(instance: &Instance) -> Option<NodeConfig> {
    let encoded = instance.data.get("UserData")?.as_str()?;
    let text = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
    let at = text.rfind("apiVersion: node.eks.aws")?;
    let document = text[at..].split("\n--//").next()?;
    serde_saphyr::from_str(document).ok()
}

/// Joins machines to the cluster and takes them out, until told to stop.
pub async fn run(aws: AwsFake, client: Client, stop: CancellationToken) {
    let nodes: Api<Node> = Api::all(client);
    let mut changes = aws.changes();
    let mut joined: HashMap<String, String> = HashMap::new();
    loop {
        for instance in aws.instances() {
            match instance.state {
                InstanceState::Running if !joined.contains_key(&instance.id) => {
                    if let Some(name) = join(&nodes, &instance).await {
                        joined.insert(instance.id.clone(), name);
                    }
                }
                InstanceState::Terminated => {
                    if let Some(name) = joined.remove(&instance.id) {
                        // As the cloud controller does; Karpenter may have been faster.
                        let _ = nodes.delete(&name, &DeleteParams::default()).await;
                    }
                }
                _ => {}
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

async fn join(nodes: &Api<Node>, instance: &Instance) -> Option<String> {
    let config = node_config(instance).unwrap_or_default();
    let node = node(instance, &config)?;
    let name = node.metadata.name.clone()?;
    match nodes.create(&PostParams::default(), &node).await {
        Ok(_) => Some(name),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Some(name),
        Err(error) => {
            tracing::error!(logger = "machines", error = %error, "a machine could not join");
            None
        }
    }
}

fn node(instance: &Instance, config: &NodeConfig) -> Option<Node> {
    let (region, _) = instance.zone.split_at(instance.zone.len().checked_sub(1)?);
    let address = instance.private_ip.to_string().replace('.', "-");
    let name = format!("ip-{address}.{region}.compute.internal");
    let arch = if instance.architecture == "arm64" {
        "arm64"
    } else {
        "amd64"
    };
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/arch", arch),
        (
            "kubernetes.io/os",
            if instance.windows { "windows" } else { "linux" },
        ),
        ("node.kubernetes.io/instance-type", &instance.instance_type),
        ("topology.kubernetes.io/region", region),
        ("topology.kubernetes.io/zone", &instance.zone),
        ("topology.k8s.aws/zone-id", &instance.zone_id),
    ]
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .into();
    let kubelet = &config.spec.kubelet;
    for flag in &kubelet.flags {
        let Some(list) = flag.strip_prefix("--node-labels=") else {
            continue;
        };
        let pairs = list.trim_matches('"').split(',');
        labels.extend(pairs.filter_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            Some((key.to_owned(), value.to_owned()))
        }));
    }
    let pods = kubelet.config.max_pods.unwrap_or(110);
    let memory = instance.memory_mib * 15 / 16;
    let kept = u64::from(11 * pods) + 255 + 100;
    let amounts = |cpu: u64, memory: u64| -> BTreeMap<String, Quantity> {
        [
            ("cpu", format!("{cpu}m")),
            ("memory", format!("{memory}Mi")),
            ("pods", pods.to_string()),
            ("ephemeral-storage", "20Gi".to_owned()),
        ]
        .map(|(k, v)| (k.to_owned(), Quantity(v)))
        .into()
    };
    let cpu = u64::from(instance.vcpus) * 1000;
    Some(Node {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(format!("aws:///{}/{}", instance.zone, instance.id)),
            taints: Some(kubelet.config.register_with_taints.clone()),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: Some(amounts(cpu, memory)),
            allocatable: Some(amounts(cpu - cpu / 25, memory.saturating_sub(kept))),
            phase: Some("Pending".into()),
            ..NodeStatus::default()
        }),
    })
}
