//! Objects as JSON, and the API resources they are written to.

use anyhow::{Context as _, Result, bail};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
}

const fn kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> Kind {
    Kind {
        group,
        version,
        kind,
        plural,
    }
}

pub(crate) const NODES: Kind = kind("", "v1", "Node", "nodes");
pub(crate) const PODS: Kind = kind("", "v1", "Pod", "pods");
pub(crate) const EVENTS: Kind = kind("", "v1", "Event", "events");
pub(crate) const NAMESPACES: Kind = kind("", "v1", "Namespace", "namespaces");
pub(crate) const SERVICES: Kind = kind("", "v1", "Service", "services");
pub(crate) const DEPLOYMENTS: Kind = kind("apps", "v1", "Deployment", "deployments");
pub(crate) const LEASES: Kind = kind("coordination.k8s.io", "v1", "Lease", "leases");
pub(crate) const DEFINITIONS: Kind = kind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
);
pub(crate) const NODE_POOLS: Kind = kind("karpenter.sh", "v1", "NodePool", "nodepools");
pub(crate) const EC2_NODE_CLASSES: Kind =
    kind("karpenter.k8s.aws", "v1", "EC2NodeClass", "ec2nodeclasses");
pub(crate) const NODE_CLAIMS: Kind = kind("karpenter.sh", "v1", "NodeClaim", "nodeclaims");
pub(crate) const BUFFERS: Kind = kind(
    "autoscaling.x-k8s.io",
    "v1beta1",
    "CapacityBuffer",
    "capacitybuffers",
);
pub(crate) const MACHINES: Kind = kind("cluster.x-k8s.io", "v1beta2", "Machine", "machines");
pub(crate) const MACHINE_DEPLOYMENTS: Kind = kind(
    "cluster.x-k8s.io",
    "v1beta2",
    "MachineDeployment",
    "machinedeployments",
);
pub(crate) const CLUSTERS: Kind = kind("cluster.x-k8s.io", "v1beta2", "Cluster", "clusters");
pub(crate) const DEV_MACHINES: Kind = kind(
    "infrastructure.cluster.x-k8s.io",
    "v1beta2",
    "DevMachine",
    "devmachines",
);
pub(crate) const CONTROL_PLANES: Kind = kind(
    "controlplane.cluster.x-k8s.io",
    "v1",
    "LabControlPlane",
    "labcontrolplanes",
);
/// Kinds of manifests that no scenario reads.
const OTHERS: [Kind; 25] = [
    kind("", "v1", "PodTemplate", "podtemplates"),
    kind("", "v1", "ConfigMap", "configmaps"),
    kind("", "v1", "Secret", "secrets"),
    kind(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    ),
    kind(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    ),
    kind(
        "cluster.x-k8s.io",
        "v1beta2",
        "MachineHealthCheck",
        "machinehealthchecks",
    ),
    kind(
        "infrastructure.cluster.x-k8s.io",
        "v1beta2",
        "DevCluster",
        "devclusters",
    ),
    kind(
        "infrastructure.cluster.x-k8s.io",
        "v1beta2",
        "DevMachineTemplate",
        "devmachinetemplates",
    ),
    kind(
        "karpenter.cluster.x-k8s.io",
        "v1alpha1",
        "ClusterAPINodeClass",
        "clusterapinodeclasses",
    ),
    kind("", "v1", "ServiceAccount", "serviceaccounts"),
    kind("apps", "v1", "DaemonSet", "daemonsets"),
    kind("apps", "v1", "StatefulSet", "statefulsets"),
    kind("batch", "v1", "Job", "jobs"),
    kind(
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
    ),
    kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices"),
    kind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses"),
    kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims"),
    kind(
        "resource.k8s.io",
        "v1",
        "ResourceClaimTemplate",
        "resourceclaimtemplates",
    ),
    kind("karpenter.sh", "v1alpha1", "NodeOverlay", "nodeoverlays"),
    kind(
        "karpenter.kwok.sh",
        "v1alpha1",
        "KWOKNodeClass",
        "kwoknodeclasses",
    ),
    kind("karpenter.k8s.aws", "v1", "EC2NodeClass", "ec2nodeclasses"),
    kind(
        "karpenter.k8s.aws",
        "v1alpha1",
        "AWSNodeTemplate",
        "awsnodetemplates",
    ),
    kind("karpenter.sh", "v1alpha5", "Provisioner", "provisioners"),
    kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
    kind(
        "autoscaling.x-k8s.io",
        "v1alpha1",
        "CapacityBuffer",
        "capacitybuffers",
    ),
];
const NAMED: [Kind; 16] = [
    NODES,
    PODS,
    EVENTS,
    NAMESPACES,
    SERVICES,
    DEPLOYMENTS,
    LEASES,
    DEFINITIONS,
    NODE_POOLS,
    NODE_CLAIMS,
    BUFFERS,
    MACHINES,
    MACHINE_DEPLOYMENTS,
    CLUSTERS,
    DEV_MACHINES,
    CONTROL_PLANES,
];

impl Kind {
    /// Returns the kind of an object, in the object's version.
    pub(crate) fn of(object: &Value) -> Result<ApiResource> {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        let mut known = NAMED.iter().chain(&OTHERS);
        let found = known.find(|known| known.group == group && known.kind == kind);
        let plural = found.with_context(|| format!("unknown kind {group}/{kind}"))?;
        let gvk = GroupVersionKind::gvk(group, version, &kind);
        Ok(ApiResource::from_gvk_with_plural(&gvk, plural.plural))
    }

    /// Returns the kind as an API resource.
    pub(crate) fn resource(self) -> ApiResource {
        let gvk = GroupVersionKind::gvk(self.group, self.version, self.kind);
        ApiResource::from_gvk_with_plural(&gvk, self.plural)
    }

    /// Returns the API of all namespaces, or of cluster-scoped objects.
    pub(crate) fn all(self, client: &Client) -> Api<DynamicObject> {
        Api::all_with(client.clone(), &self.resource())
    }

    /// Returns the API of a namespace.
    pub(crate) fn of_namespace(self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &self.resource())
    }
}

pub(crate) fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = serde_saphyr::from_multiple::<Value>(text)?;
    Ok(documents.into_iter().filter(Value::is_object).collect())
}

/// Returns the API of an object's kind, in the object's namespace if it has one.
pub(crate) fn api_of(client: &Client, object: &Value) -> Result<Api<DynamicObject>> {
    let resource = Kind::of(object)?;
    Ok(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// The name of an object.
pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Applies an object as `kubectl apply --server-side --force-conflicts` does.
pub(crate) async fn apply(client: &Client, object: &Value) -> Result<()> {
    let params = PatchParams::apply("real-cluster").force();
    api_of(client, object)?
        .patch(name(object), &params, &Patch::Apply(object))
        .await
        .with_context(|| format!("applying {} {}", object["kind"], name(object)))?;
    Ok(())
}

/// Applies a merge patch to an object.
pub(crate) async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<()> {
    let params = PatchParams::default();
    api.patch(name, &params, &Patch::Merge(patch))
        .await
        .with_context(|| format!("patching {name}"))?;
    Ok(())
}

/// Applies a merge patch to an object's status.
pub(crate) async fn merge_status(api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<()> {
    let params = PatchParams::default();
    api.patch_status(name, &params, &Patch::Merge(patch))
        .await
        .with_context(|| format!("cannot patch the status of {name}"))?;
    Ok(())
}

pub(crate) async fn delete(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    let params = DeleteParams::background();
    api.delete(name, &params)
        .await
        .with_context(|| format!("deleting {name}"))?;
    Ok(())
}

/// Lists all objects of a selector, as JSON.
pub(crate) async fn list(api: &Api<DynamicObject>, labels: &str) -> Result<Vec<Value>> {
    let list = api.list(&ListParams::default().labels(labels)).await?;
    let values = list.items.into_iter().map(serde_json::to_value);
    Ok(values.collect::<Result<_, _>>()?)
}

/// Sends an object to the API server as a dry run; returns the object as it would be stored, or the rejection.
pub(crate) async fn dry_run(client: &Client, object: &Value) -> Result<Result<Value, String>> {
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let created: DynamicObject = serde_json::from_value(object.clone())?;
    match api_of(client, object)?.create(&params, &created).await {
        Ok(stored) => Ok(Ok(serde_json::to_value(stored)?)),
        Err(kube::Error::Api(status)) if status.code < 500 => Ok(Err(status.message.clone())),
        Err(error) => bail!("{}: {error}", name(object)),
    }
}

/// Returns the status of a condition: `True`, `False`, `Unknown`, or empty.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    of_condition(object, kind, "status")
}

/// Returns the reason of a condition, or empty.
pub(crate) fn condition_reason<'a>(object: &'a Value, kind: &str) -> &'a str {
    of_condition(object, kind, "reason")
}

fn of_condition<'a>(object: &'a Value, kind: &str, field: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|c| c["type"] == kind));
    found.and_then(|c| c[field].as_str()).unwrap_or_default()
}
