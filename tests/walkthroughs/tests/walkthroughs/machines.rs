//! What an instance does once it runs: it boots as its image and user data tell it, and joins the cluster. When it is gone, so is its
//! Node.

use std::collections::{BTreeMap, HashMap};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Node;
use karpenter_aws_fake::{AwsFake, Instance, InstanceState};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Joins machines to the cluster and takes them out, for ever.
pub async fn run(aws: AwsFake, client: Client) {
    let nodes: Api<Node> = Api::all(client);
    let mut changes = aws.changes();
    let mut joined: HashMap<String, String> = HashMap::new();
    loop {
        for instance in aws.instances() {
            match instance.state {
                InstanceState::Running if !joined.contains_key(&instance.id) => {
                    let node = node(&aws, &instance);
                    let name = node.metadata.name.clone().unwrap();
                    nodes.create(&PostParams::default(), &node).await.unwrap();
                    joined.insert(instance.id.clone(), name);
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
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// What the kubelet is told.
#[derive(Debug, Default)]
struct Told {
    labels: BTreeMap<String, String>,
    taints: Vec<Value>,
    max_pods: Option<u64>,
}

pub fn user_data(instance: &Instance) -> String {
    let encoded = instance.data["UserData"].as_str().unwrap();
    String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap()
}

/// The arguments of the kubelet in a call of `bootstrap.sh` or `Start-EKSBootstrap.ps1`.
fn told(user_data: &str) -> Told {
    let before = ["--kubelet-extra-args '", "-KubeletExtraArgs '"];
    let found = before
        .iter()
        .find_map(|before| user_data.split_once(before));
    let (_, rest) = found.unwrap_or_else(|| panic!("no arguments of the kubelet: {user_data}"));
    let (flags, _) = rest.split_once('\'').unwrap();
    let mut told = Told::default();
    for flag in flags.split(" --") {
        let (name, value) = flag.trim_start_matches("--").split_once('=').unwrap();
        let values = value.trim_matches('"').split(',');
        match name {
            "node-labels" => told.labels.extend(values.map(|pair| {
                let (key, value) = pair.split_once('=').unwrap();
                (key.to_owned(), value.to_owned())
            })),
            "register-with-taints" => told.taints.extend(values.map(|taint| {
                let (rest, effect) = taint.rsplit_once(':').unwrap();
                let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
                json!({ "key": key, "value": value, "effect": effect })
            })),
            "max-pods" => told.max_pods = Some(value.parse().unwrap()),
            _ => {}
        }
    }
    told
}

/// `v1.28.4` for an image of EKS 1.28.
fn kubelet_version(image: &str) -> String {
    let at = image.find("1.").unwrap();
    let minor: String = image[at + 2..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    format!("v1.{minor}.4-eks")
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
    let told = told(&user_data(instance));
    let image = aws.image(&instance.image).unwrap().name;
    let record = aws.instance_type(&instance.instance_type).unwrap();
    let (region, _) = instance.zone.split_at(instance.zone.len() - 1);
    let address = instance.private_ip.to_string().replace('.', "-");
    let name = format!("ip-{address}.{region}.compute.internal");
    let (arch, os) = (
        if instance.architecture == "arm64" {
            "arm64"
        } else {
            "amd64"
        },
        if instance.windows { "windows" } else { "linux" },
    );
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
    // Some of the memory is never seen by the operating system.
    let mib = record["memoryInfo"]["sizeInMiB"].as_u64().unwrap() * 15 / 16;
    let addresses = record["networkInfo"]["ipv4AddressesPerInterface"]
        .as_u64()
        .unwrap();
    let interfaces = record["networkInfo"]["maximumNetworkInterfaces"]
        .as_u64()
        .unwrap();
    let of_interfaces = interfaces * (addresses - 1) + 2;
    let pods = told
        .max_pods
        .unwrap_or(if instance.windows { 110 } else { of_interfaces });
    let cpu = u64::from(instance.vcpus) * 1000;
    let amounts = |cpu: u64, mib: u64| {
        let mut amounts = json!({
            "cpu": format!("{cpu}m"), "memory": format!("{mib}Mi"), "pods": pods.to_string(), "ephemeral-storage": "18Gi",
        });
        if instance.windows {
            add_windows_addresses(&mut amounts, addresses - 1);
        }
        amounts
    };
    if instance.windows {
        labels.insert(
            "node.kubernetes.io/windows-build".to_owned(),
            windows_build(&image).to_owned(),
        );
    }
    let kept = 11 * pods + 255 + 100;
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": labels },
        "spec": { "providerID": format!("aws:///{}/{}", instance.zone, instance.id), "taints": told.taints },
        "status": {
            "phase": "Pending",
            "capacity": amounts(cpu, mib),
            "allocatable": amounts(cpu - cpu / 50, mib.saturating_sub(kept)),
            "nodeInfo": {
                "architecture": arch, "operatingSystem": os, "kubeletVersion": kubelet_version(&image), "osImage": image,
                "kubeProxyVersion": "", "containerRuntimeVersion": "containerd://1", "kernelVersion": "",
                "machineID": instance.id, "systemUUID": instance.id, "bootID": instance.id,
            },
        },
    }))
    .unwrap()
}

/// The controller of VPC resources gives pods of Windows addresses of the first interface.
fn add_windows_addresses(amounts: &mut Value, addresses: u64) {
    amounts["vpc.amazonaws.com/PrivateIPv4Address"] = addresses.to_string().into();
}
