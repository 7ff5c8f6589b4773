//! Objects as JSON, and the API resources they are written to.

use anyhow::{Context as _, Result, bail};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::{Api, Client};
use serde_json::Value;

/// A kind of objects: group, version and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(&'static str, &'static str, &'static str);

pub(crate) const NODES: Kind = Kind("", "v1", "Node");
pub(crate) const PODS: Kind = Kind("", "v1", "Pod");
pub(crate) const EVENTS: Kind = Kind("", "v1", "Event");
pub(crate) const NAMESPACES: Kind = Kind("", "v1", "Namespace");
pub(crate) const SERVICES: Kind = Kind("", "v1", "Service");
pub(crate) const DEPLOYMENTS: Kind = Kind("apps", "v1", "Deployment");
pub(crate) const LEASES: Kind = Kind("coordination.k8s.io", "v1", "Lease");
pub(crate) const DEFINITIONS: Kind = Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
pub(crate) const NODE_POOLS: Kind = Kind("karpenter.sh", "v1", "NodePool");
pub(crate) const EC2_NODE_CLASSES: Kind = Kind("karpenter.k8s.aws", "v1", "EC2NodeClass");
pub(crate) const NODE_CLAIMS: Kind = Kind("karpenter.sh", "v1", "NodeClaim");
pub(crate) const BUFFERS: Kind = Kind("autoscaling.x-k8s.io", "v1beta1", "CapacityBuffer");
pub(crate) const MACHINES: Kind = Kind("cluster.x-k8s.io", "v1beta2", "Machine");
pub(crate) const MACHINE_DEPLOYMENTS: Kind =
    Kind("cluster.x-k8s.io", "v1beta2", "MachineDeployment");
pub(crate) const CLUSTERS: Kind = Kind("cluster.x-k8s.io", "v1beta2", "Cluster");
pub(crate) const DEV_MACHINES: Kind =
    Kind("infrastructure.cluster.x-k8s.io", "v1beta2", "DevMachine");
pub(crate) const CONTROL_PLANES: Kind =
    Kind("controlplane.cluster.x-k8s.io", "v1", "LabControlPlane");

impl Kind {
    /// Returns the kind as an API resource.
    pub(crate) fn resource(self) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk(self.0, self.1, self.2))
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
    let types: TypeMeta = serde_json::from_value(object.clone())?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
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
