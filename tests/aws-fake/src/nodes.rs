//! Nodes of running instances: an instance joins the cluster as its AMI and user data configure the kubelet. Its node
//! is deleted after the instance is terminated.
//!
//! The user data of Amazon Linux 2023, and of EKS's AMIs of Windows and Amazon Linux 2, is parsed: labels, taints,
//! maximum number of pods. Instances of other families join without them.

use std::collections::{BTreeMap, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, NodeSystemInfo, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::Value;

use crate::{AwsFake, Instance, InstanceState};

/// Creates and deletes the nodes of instances, until the stand-in is gone or this is dropped. `failed` is called for
/// instances whose node cannot be created.
pub async fn run(aws: AwsFake, client: Client, failed: impl Fn(&Instance, kube::Error) + Send) {
    let nodes: Api<Node> = Api::all(client);
    let mut changes = aws.changes();
    let mut joined: HashMap<String, String> = HashMap::new();
    loop {
        for instance in aws.instances() {
            match instance.state {
                InstanceState::Running if !joined.contains_key(&instance.id) => {
                    let node = node(&aws, &instance);
                    let name = node.metadata.name.clone().unwrap_or_default();
                    match nodes.create(&PostParams::default(), &node).await {
                        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                        Err(error) => {
                            failed(&instance, error);
                            continue;
                        }
                        Ok(_) => {}
                    }
                    joined.insert(instance.id.clone(), name);
                }
                InstanceState::Terminated => {
                    if let Some(name) = joined.remove(&instance.id) {
                        // As the cloud controller does; the controller under test may have deleted the node already.
                        let _ = nodes.delete(&name, &DeleteParams::default()).await;
                    }
                }
                _ => {}
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the user data of an instance, if it is text.
#[must_use]
pub fn user_data(instance: &Instance) -> Option<String> {
    let encoded = instance.data.get("UserData")?.as_str()?;
    String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
}

/// Mutates new pods as the VPC resource controller does: Windows pods request an IP address each.
pub fn admit(pod: &mut Value) {
    const ADDRESS: &str = "vpc.amazonaws.com/PrivateIPv4Address";
    if pod["spec"]["nodeSelector"]["kubernetes.io/os"] == "windows" {
        for kind in ["requests", "limits"] {
            pod["spec"]["containers"][0]["resources"][kind][ADDRESS] = "1".into();
        }
    }
}

/// Settings of the kubelet in user data.
#[derive(Debug, Default, PartialEq)]
struct KubeletSettings {
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
    max_pods: Option<u64>,
}

impl KubeletSettings {
    fn parse(user_data: &str) -> Self {
        if let Some(config) = node_config(user_data) {
            return config;
        }
        let mut settings = Self::default();
        let before = ["--kubelet-extra-args '", "-KubeletExtraArgs '"];
        let found = before
            .iter()
            .find_map(|before| user_data.split_once(before));
        let Some((flags, _)) = found.and_then(|(_, rest)| rest.split_once('\'')) else {
            return settings;
        };
        for flag in flags.split(" --") {
            settings.flag(flag.trim_start_matches("--"));
        }
        settings
    }

    /// Parses a flag of the kubelet, such as `max-pods=110`.
    fn flag(&mut self, flag: &str) {
        let Some((name, value)) = flag.split_once('=') else {
            return;
        };
        let values = value.trim_matches('"').split(',');
        match name {
            "node-labels" => self.labels.extend(values.filter_map(|pair| {
                let (key, value) = pair.split_once('=')?;
                Some((key.to_owned(), value.to_owned()))
            })),
            "register-with-taints" => self.taints.extend(values.filter_map(|taint| {
                let (rest, effect) = taint.rsplit_once(':')?;
                let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
                Some(Taint {
                    key: key.to_owned(),
                    value: (!value.is_empty()).then(|| value.to_owned()),
                    effect: effect.to_owned(),
                    time_added: None,
                })
            })),
            "max-pods" => self.max_pods = value.parse().ok(),
            _ => {}
        }
    }
}

/// Parses the last NodeConfig of Amazon Linux 2023, which takes precedence over the earlier ones.
fn node_config(user_data: &str) -> Option<KubeletSettings> {
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
        max_pods: Option<u64>,
        register_with_taints: Vec<Taint>,
    }
    let at = user_data.rfind("apiVersion: node.eks.aws")?;
    let document = user_data[at..].split("\n--//").next()?;
    let config: NodeConfig = serde_saphyr::from_str(document).ok()?;
    let kubelet = config.spec.kubelet;
    let mut settings = KubeletSettings {
        taints: kubelet.config.register_with_taints,
        max_pods: kubelet.config.max_pods,
        ..KubeletSettings::default()
    };
    for flag in &kubelet.flags {
        settings.flag(flag.trim_start_matches("--"));
    }
    Some(settings)
}

/// Returns `v1.28.4-eks` for an AMI of EKS 1.28.
fn kubelet_version(image: &str) -> Option<String> {
    let (_, rest) = image.split_once("1.")?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    (!minor.is_empty()).then(|| format!("v1.{minor}.4-eks"))
}

/// Returns the build number that Windows reports.
fn windows_build(image: &str) -> &'static str {
    match image {
        name if name.contains("-2019-") => "10.0.17763",
        name if name.contains("-2022-") => "10.0.20348",
        _ => "10.0.26100",
    }
}

fn node(aws: &AwsFake, instance: &Instance) -> Node {
    let settings = KubeletSettings::parse(&user_data(instance).unwrap_or_default());
    let image = aws.image(&instance.image).map(|image| image.name);
    let image = image.unwrap_or_default();
    let record = aws.instance_type(&instance.instance_type);
    let number = |path: &str| {
        let value = record.as_ref().and_then(|record| record.pointer(path));
        value.and_then(Value::as_u64).unwrap_or_default()
    };
    let region = instance
        .zone
        .trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let address = instance.private_ip.to_string().replace('.', "-");
    let name = format!("ip-{address}.{region}.compute.internal");
    let arch = match instance.architecture.as_str() {
        "arm64" => "arm64",
        _ => "amd64",
    };
    let os = if instance.windows { "windows" } else { "linux" };
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/arch", arch),
        ("kubernetes.io/os", os),
        ("node.kubernetes.io/instance-type", &instance.instance_type),
        ("topology.kubernetes.io/region", region),
        ("topology.kubernetes.io/zone", &instance.zone),
        ("topology.k8s.aws/zone-id", &instance.zone_id),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    labels.extend(settings.labels);
    if instance.windows {
        labels.insert(
            "node.kubernetes.io/windows-build".to_owned(),
            windows_build(&image).to_owned(),
        );
    }
    let addresses = number("/networkInfo/ipv4AddressesPerInterface").saturating_sub(1);
    let of_interfaces = number("/networkInfo/maximumNetworkInterfaces") * addresses + 2;
    let pods = settings
        .max_pods
        .unwrap_or(if instance.windows { 110 } else { of_interfaces });
    let amounts = |cpu: u64, mib: u64| {
        let mut amounts = vec![
            ("cpu", format!("{cpu}m")),
            ("memory", format!("{mib}Mi")),
            ("pods", pods.to_string()),
            ("ephemeral-storage", "18Gi".to_owned()),
        ];
        if instance.windows {
            // The VPC resource controller gives Windows pods addresses of the first interface.
            amounts.push((
                "vpc.amazonaws.com/PrivateIPv4Address",
                addresses.to_string(),
            ));
        }
        let amounts = amounts.into_iter();
        Some(
            amounts
                .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
                .collect(),
        )
    };
    let cpu = u64::from(instance.vcpus) * 1000;
    // The operating system does not see all of the memory.
    let memory = instance.memory_mib * 15 / 16;
    let reserved = 11 * pods + 255 + 100;
    Node {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(format!("aws:///{}/{}", instance.zone, instance.id)),
            taints: Some(settings.taints),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            phase: Some("Pending".to_owned()),
            capacity: amounts(cpu, memory),
            allocatable: amounts(cpu - cpu / 50, memory.saturating_sub(reserved)),
            node_info: Some(NodeSystemInfo {
                architecture: arch.to_owned(),
                operating_system: os.to_owned(),
                kubelet_version: kubelet_version(&image).unwrap_or_default(),
                os_image: image,
                container_runtime_version: "containerd://1".to_owned(),
                machine_id: instance.id.clone(),
                system_uuid: instance.id.clone(),
                boot_id: instance.id.clone(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }),
    }
}
