//! Cluster API on a control plane: its core controllers, its in-memory infrastructure provider, and a kubelet for each of its Machines.
//!
//! The control plane is the management cluster and the workload cluster. The provider's own Nodes are in an API server of its own, in
//! its memory; those here are created as kubelets create them.

use std::fs;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::{StreamExt as _, pin_mut};
use k8s_openapi::ByteString;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{ControlPlane, PATIENCE, free_ports};
use crate::binaries::Manager;
use crate::objects::{
    CLUSTERS, CONTROL_PLANES, DEFINITIONS, DEV_MACHINES, NODES, apply, condition, documents, name,
};
use crate::process::Process;
use crate::wait::until;

/// The namespace of the Cluster.
pub(crate) const NAMESPACE: &str = "fleet";
const CLUSTER: &str = "c1";
const CORE: &str = "cluster.x-k8s.io/v1beta2";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// Cluster API's running managers; killed on drop.
#[derive(Debug)]
pub(crate) struct ClusterApi {
    managers: Vec<Process>,
    joining: JoinHandle<()>,
}

impl Drop for ClusterApi {
    fn drop(&mut self) {
        self.joining.abort();
    }
}

impl ClusterApi {
    /// Starts the managers, and creates the Cluster `fleet/c1`.
    pub(crate) async fn start(plane: &ControlPlane, managers: &[Manager]) -> Result<Self> {
        let client = plane.client().await?;
        let authority = fs::read(plane.pki.file("ca.crt"))?;
        let authority = serde_json::to_value(ByteString(authority))?;
        let mut hooks = Vec::new();
        let mut starting = Vec::new();
        for manager in managers {
            let ports: [u16; 3] = free_ports()?;
            let url = format!("https://127.0.0.1:{}", ports[0]);
            for definition in definitions(manager, &url, &authority)? {
                apply(&client, &definition).await?;
            }
            hooks.extend(webhooks(manager, &url, &authority)?);
            starting.push((manager, ports));
        }
        apply(&client, &control_plane_definition()).await?;
        let established = |seen: &crate::wait::Seen| {
            let served = |d: &Value| condition(d, "Established") == "True";
            Ok(seen.values().all(served).then_some(()))
        };
        let what = "all CRDs are established";
        until(what, &DEFINITIONS.all(&client), "", PATIENCE, established).await?;
        let mut running = Vec::new();
        for (manager, ports) in &starting {
            running.push(start(plane, manager, *ports)?);
        }
        for (process, (_, ports)) in running.iter_mut().zip(&starting) {
            until_ready(process, ports[2]).await?;
        }
        for hook in hooks {
            apply(&client, &hook).await?;
        }
        create_cluster(plane, &client).await?;
        let joining = tokio::spawn(join(client));
        Ok(Self {
            managers: running,
            joining,
        })
    }

    /// Fails with the end of its log if a manager has exited.
    pub(crate) fn is_running(&mut self) -> Result<()> {
        self.managers.iter_mut().try_for_each(Process::is_running)
    }
}

fn start(plane: &ControlPlane, manager: &Manager, ports: [u16; 3]) -> Result<Process> {
    let [webhook, diagnostics, health] = ports;
    let name = manager.program.file_name().unwrap_or_default();
    let mut command = plane.command(&manager.program);
    command
        .arg("--kubeconfig")
        .arg(plane.kubeconfig())
        .arg("--webhook-cert-dir")
        .arg(plane.folder.join("pki"))
        // It is one for 127.0.0.1.
        .args(["--webhook-cert-name", "apiserver.crt"])
        .args(["--webhook-key-name", "apiserver.key"])
        .args(["--webhook-port", &webhook.to_string()])
        .arg(format!("--diagnostics-address=127.0.0.1:{diagnostics}"))
        .arg(format!("--health-addr=127.0.0.1:{health}"))
        .arg("--insecure-diagnostics")
        .arg("--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields")
        .env("POD_IP", "127.0.0.1");
    plane.run(&name.to_string_lossy(), &mut command)
}

/// Returns the CRDs of a manager, converted by it, with the labels of the contracts that their versions fulfil.
fn definitions(manager: &Manager, url: &str, authority: &Value) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(manager.config.join("crd/bases"))? {
        all.extend(documents(&fs::read_to_string(entry?.path())?)?);
    }
    for definition in &mut all {
        for version in ["v1beta1", "v1beta2"] {
            definition["metadata"]["labels"][format!("cluster.x-k8s.io/{version}")] =
                version.into();
        }
        let client = json!({ "url": format!("{url}/convert"), "caBundle": authority });
        definition["spec"]["conversion"] = json!({
            "strategy": "Webhook", "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": client } });
    }
    Ok(all)
}

/// Returns the webhook configurations of a manager.
fn webhooks(manager: &Manager, url: &str, authority: &Value) -> Result<Vec<Value>> {
    let text = fs::read_to_string(manager.config.join("webhook/manifests.yaml"))?;
    let mut all = documents(&text)?;
    let owner = manager.program.file_name().unwrap_or_default();
    for configuration in &mut all {
        let plain = name(configuration).to_owned();
        configuration["metadata"]["name"] = json!(format!("{}-{plain}", owner.to_string_lossy()));
        for hook in configuration["webhooks"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            let path = hook["clientConfig"]["service"]["path"].as_str();
            let url = format!("{url}{}", path.unwrap_or_default());
            hook["clientConfig"] = json!({ "url": url, "caBundle": authority });
        }
    }
    Ok(all)
}

/// Returns the CRD of an external control plane, without which Cluster API deletes no Nodes.
fn control_plane_definition() -> Value {
    let kind = CONTROL_PLANES.resource();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{}", kind.plural, kind.group), "labels": { "cluster.x-k8s.io/v1beta2": kind.version },
        },
        "spec": {
            "group": kind.group, "scope": "Namespaced",
            "names": { "kind": kind.kind, "plural": kind.plural, "singular": "labcontrolplane", "listKind": "LabControlPlaneList" },
            "versions": [{
                "name": kind.version, "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
}

async fn until_ready(manager: &mut Process, port: u16) -> Result<()> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        manager.is_running()?;
        let answer = async {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            Ok::<_, std::io::Error>(text)
        };
        if answer.await.is_ok_and(|text| text.contains(" 200 ")) {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            bail!("a manager is not ready: {}", manager.tail(20));
        }
        // Readiness of a server that does not answer can only be polled.
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Creates the Cluster, and waits until Machines can be created in it.
async fn create_cluster(plane: &ControlPlane, client: &Client) -> Result<()> {
    // Without an annotation the infrastructure provider panics.
    let metadata = |name: &str| {
        json!({
            "name": name, "namespace": NAMESPACE, "annotations": { "real-cluster": "" },
            "labels": { "cluster.x-k8s.io/cluster-name": CLUSTER },
        })
    };
    let secret = |name: &str, value: &str| {
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata(name),
            "type": "cluster.x-k8s.io/secret", "stringData": { "value": value } })
    };
    let kubeconfig = fs::read_to_string(plane.kubeconfig())?;
    let endpoint = json!({ "host": "127.0.0.1", "port": plane.ports.api });
    let control_plane = CONTROL_PLANES.resource();
    for object in [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        secret(&format!("{CLUSTER}-kubeconfig"), &kubeconfig),
        secret("boot", "none"),
        json!({ "apiVersion": control_plane.api_version, "kind": control_plane.kind, "metadata": metadata(CLUSTER),
            "spec": { "version": "v1.36.3", "controlPlaneEndpoint": endpoint } }),
        json!({ "apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "DevCluster", "metadata": metadata(CLUSTER),
            "spec": { "controlPlaneEndpoint": endpoint, "backend": { "inMemory": {} } } }),
        json!({ "apiVersion": CORE, "kind": "Cluster", "metadata": metadata(CLUSTER), "spec": {
            "controlPlaneEndpoint": endpoint,
            "controlPlaneRef": { "apiGroup": control_plane.group, "kind": control_plane.kind, "name": CLUSTER },
            "infrastructureRef": { "apiGroup": INFRASTRUCTURE, "kind": "DevCluster", "name": CLUSTER } } }),
    ] {
        apply(client, &object).await?;
    }
    let status = json!({ "status": {
        "externalManagedControlPlane": true, "version": "v1.36.3", "initialization": { "controlPlaneInitialized": true } } });
    let control_planes = CONTROL_PLANES.of_namespace(client, NAMESPACE);
    control_planes
        .patch_status(CLUSTER, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let clusters = CLUSTERS.of_namespace(client, NAMESPACE);
    until(
        "the Cluster is provisioned",
        &clusters,
        "",
        PATIENCE,
        |seen| {
            let mut states = seen.values().map(|c| &c["status"]["initialization"]);
            let is_ready = |s: &Value| {
                s["infrastructureProvisioned"] == true && s["controlPlaneInitialized"] == true
            };
            Ok(states.any(is_ready).then_some(()))
        },
    )
    .await
}

/// Creates a MachineDeployment that offers this many CPUs in a zone, `most` times, with its template.
pub(crate) async fn offer(client: &Client, cores: u32, zone: &str, most: u32) -> Result<()> {
    let template = format!("{cores}-cores");
    let provisioning =
        |seconds: u32| json!({ "provisioning": { "startupDuration": format!("{seconds}s") } });
    let backend = json!({ "inMemory": { "vm": provisioning(3), "node": provisioning(1) } });
    apply(
        client,
        &json!({
            "apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "DevMachineTemplate",
            "metadata": { "name": template, "namespace": NAMESPACE },
            "spec": { "template": { "spec": { "backend": backend } } },
        }),
    )
    .await?;
    let capacity = "capacity.cluster-autoscaler.kubernetes.io";
    apply(client, &json!({
        "apiVersion": CORE, "kind": "MachineDeployment",
        "metadata": {
            "name": format!("{cores}-{zone}"), "namespace": NAMESPACE,
            "labels": { "node.cluster.x-k8s.io/karpenter-member": "" },
            "annotations": {
                (format!("{capacity}/cpu")): cores.to_string(), (format!("{capacity}/memory")): format!("{}Gi", cores * 4),
                (format!("{capacity}/maxPods")): (cores * 8).to_string(),
                (format!("{capacity}/labels")): format!("node.kubernetes.io/instance-type={template}"),
                "karpenter.cluster.x-k8s.io/max-size": most.to_string(),
            },
        },
        "spec": {
            "clusterName": CLUSTER, "replicas": 0,
            "selector": { "matchLabels": { "of": format!("{cores}-{zone}") } },
            "template": {
                "metadata": { "labels": { "of": format!("{cores}-{zone}") } },
                "spec": {
                    "clusterName": CLUSTER, "version": "v1.36.3", "failureDomain": zone, "bootstrap": { "dataSecretName": "boot" },
                    "infrastructureRef": { "apiGroup": INFRASTRUCTURE, "kind": "DevMachineTemplate", "name": template },
                },
            },
        },
    }))
    .await
}

/// Creates a Node for each provisioned DevMachine, as its kubelet does.
async fn join(client: Client) {
    let machines = DEV_MACHINES.of_namespace(&client, NAMESPACE);
    let objects = watcher::watcher(machines, watcher::Config::default())
        .default_backoff()
        .applied_objects();
    pin_mut!(objects);
    let nodes = NODES.all(&client);
    while let Some(machine) = objects.next().await {
        let node = machine.ok().and_then(|machine| {
            let machine = serde_json::to_value(machine).ok()?;
            serde_json::from_value(node(&machine)?).ok()
        });
        if let Some(node) = node {
            // It may exist. If the API server does not answer, the watch breaks, too, and begins with all objects.
            let _ = nodes.create(&PostParams::default(), &node).await;
        }
    }
}

/// Returns the Node of a DevMachine, once it is provisioned.
fn node(machine: &Value) -> Option<Value> {
    let is_deleting = !machine["metadata"]["deletionTimestamp"].is_null();
    let provider_id = machine["spec"]["providerID"].as_str()?;
    if is_deleting || machine["status"]["initialization"]["provisioned"] != true {
        return None;
    }
    let template = &machine["metadata"]["annotations"]["cluster.x-k8s.io/cloned-from-name"];
    let cores: u32 = template.as_str()?.split('-').next()?.parse().ok()?;
    let (memory, pods) = (format!("{}Gi", cores * 4), cores * 8);
    let capacity = json!({ "cpu": cores.to_string(), "memory": memory, "pods": pods.to_string() });
    Some(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name(machine), "labels": {
            "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name(machine),
        } },
        "spec": { "providerID": provider_id, "taints": [
            { "key": "karpenter.sh/unregistered", "effect": "NoExecute" },
            { "key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule" },
        ] },
        "status": { "capacity": capacity, "allocatable": capacity },
    }))
}
