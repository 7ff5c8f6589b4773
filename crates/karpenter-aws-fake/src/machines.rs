//! What a running instance does: it boots as its image and user data tell it, and joins the cluster. When it is gone, so is its Node.
//!
//! Read are the user data of Amazon Linux 2023 and EKS' images of Windows and of Amazon Linux 2: labels, taints, the most pods. A machine
//! of another family joins without them.

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

/// Joins machines to the cluster and takes them out, until AWS is gone or this is dropped. `failed` is told of what could not join.
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
                        // As the cloud controller does; whoever ended it may have been faster.
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

/// The user data of an instance, if it is text.
#[must_use]
pub fn user_data(instance: &Instance) -> Option<String> {
    let encoded = instance.data.get("UserData")?.as_str()?;
    String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
}

/// What the controller of VPC resources does to new pods: those of Windows ask for an address each.
pub fn admit(pod: &mut Value) {
    const ADDRESS: &str = "vpc.amazonaws.com/PrivateIPv4Address";
    if pod["spec"]["nodeSelector"]["kubernetes.io/os"] == "windows" {
        for kind in ["requests", "limits"] {
            pod["spec"]["containers"][0]["resources"][kind][ADDRESS] = "1".into();
        }
    }
}

/// What the kubelet is told.
#[derive(Debug, Default, PartialEq)]
struct Told {
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
    max_pods: Option<u64>,
}

impl Told {
    fn by(user_data: &str) -> Self {
        if let Some(config) = node_config(user_data) {
            return config;
        }
        let mut told = Self::default();
        let before = ["--kubelet-extra-args '", "-KubeletExtraArgs '"];
        let found = before
            .iter()
            .find_map(|before| user_data.split_once(before));
        let Some((flags, _)) = found.and_then(|(_, rest)| rest.split_once('\'')) else {
            return told;
        };
        for flag in flags.split(" --") {
            told.flag(flag.trim_start_matches("--"));
        }
        told
    }

    /// A flag of the kubelet, such as `max-pods=110`.
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

/// The NodeConfig of Amazon Linux 2023: the last one, by which the earlier ones are overruled.
fn node_config(user_data: &str) -> Option<Told> {
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
    let mut told = Told {
        taints: kubelet.config.register_with_taints,
        max_pods: kubelet.config.max_pods,
        ..Told::default()
    };
    for flag in &kubelet.flags {
        told.flag(flag.trim_start_matches("--"));
    }
    Some(told)
}

/// `v1.28.4-eks` for an image of EKS 1.28.
fn kubelet_version(image: &str) -> Option<String> {
    let (_, rest) = image.split_once("1.")?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    (!minor.is_empty()).then(|| format!("v1.{minor}.4-eks"))
}

/// What Windows says of itself.
fn windows_build(image: &str) -> &'static str {
    match image {
        name if name.contains("-2019-") => "10.0.17763",
        name if name.contains("-2022-") => "10.0.20348",
        _ => "10.0.26100",
    }
}

fn node(aws: &AwsFake, instance: &Instance) -> Node {
    let told = Told::by(&user_data(instance).unwrap_or_default());
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
    labels.extend(told.labels);
    if instance.windows {
        labels.insert(
            "node.kubernetes.io/windows-build".to_owned(),
            windows_build(&image).to_owned(),
        );
    }
    let addresses = number("/networkInfo/ipv4AddressesPerInterface").saturating_sub(1);
    let of_interfaces = number("/networkInfo/maximumNetworkInterfaces") * addresses + 2;
    let pods = told
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
            // The controller of VPC resources gives pods of Windows addresses of the first interface.
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
    // Some of the memory is never seen by the operating system.
    let memory = instance.memory_mib * 15 / 16;
    let kept = 11 * pods + 255 + 100;
    Node {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(format!("aws:///{}/{}", instance.zone, instance.id)),
            taints: Some(told.taints),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            phase: Some("Pending".to_owned()),
            capacity: amounts(cpu, memory),
            allocatable: amounts(cpu - cpu / 50, memory.saturating_sub(kept)),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: Option<&str>) -> Taint {
        Taint {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            effect: "NoExecute".to_owned(),
            time_added: None,
        }
    }

    #[test]
    fn every_family_tells_its_kubelet_the_same() {
        let labels: BTreeMap<String, String> = [("a", "b"), ("c", "")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        let told = Told {
            labels,
            taints: vec![taint("x", None), taint("y", Some("z"))],
            max_pods: Some(58),
        };
        let flags = r#"--node-labels="a=b,c=" --register-with-taints="x:NoExecute,y=z:NoExecute" --max-pods=58"#;
        let al2 = format!(
            "/etc/eks/bootstrap.sh 'demo' --use-max-pods false --kubelet-extra-args '{flags}'"
        );
        let windows = format!(
            "<powershell>\n& $EKSBootstrapScriptFile -KubeletExtraArgs '{flags}' 3>&1\n</powershell>"
        );
        let al2023 = "--//\n\napiVersion: node.eks.aws/v1alpha1\nspec: {kubelet: {config: {maxPods: 1}}}\n--//\n\napiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  kubelet:\n    config:\n      maxPods: 58\n      registerWithTaints:\n      - {key: x, effect: NoExecute}\n      - {key: y, value: z, effect: NoExecute}\n    flags:\n    - --node-labels=\"a=b,c=\"\n--//--";
        for user_data in [&*al2, &*windows, al2023] {
            assert_eq!(Told::by(user_data), told, "{user_data}");
        }
        assert_eq!(Told::by("[settings.kubernetes]"), Told::default());
    }
}
