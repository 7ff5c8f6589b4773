//! Executes what the graph decides: deletes objects, removes owners and finalizers, and finalizes namespaces.

use std::sync::Arc;

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::MetaApi;
use super::graph::{Action, FOREGROUND, Item, Kind, ORPHAN, Owner, Uid};
use crate::loops::outcome::{ignore_not_found, is_not_found};

fn api_for(client: Client, kind: &Kind, namespace: &str) -> MetaApi {
    if kind.namespaced {
        Api::namespaced_with(client, namespace, &kind.resource)
    } else {
        Api::all_with(client, &kind.resource)
    }
}

/// Whether the owner no longer exists. `None` if this cannot be determined.
async fn is_gone(
    client: &Client,
    namespace: &str,
    owner: &Owner,
    kind: Option<&Kind>,
) -> Result<Option<bool>, kube::Error> {
    let Some(kind) = kind else {
        return Ok(None);
    };
    let found = api_for(client.clone(), kind, namespace)
        .get_opt(&owner.name)
        .await?;
    Ok(Some(found.is_none_or(|o| {
        o.metadata.uid.as_deref() != Some(&*owner.uid)
    })))
}

/// Executes an action. `false`: not possible now.
pub(super) async fn carry_out(
    client: Client,
    uid: &Uid,
    item: &Item,
    action: Action,
    unknown: Vec<(Owner, Option<Arc<Kind>>)>,
    dependents: Vec<Item>,
) -> Result<bool, kube::Error> {
    for (owner, kind) in &unknown {
        if is_gone(&client, &item.namespace, owner, kind.as_deref()).await? != Some(true) {
            return Ok(false);
        }
    }
    match action {
        Action::Keep => Ok(true),
        Action::Delete { foreground, .. } => {
            let policy = if foreground || item.finalizers.iter().any(|f| f == FOREGROUND) {
                PropagationPolicy::Foreground
            } else if item.finalizers.iter().any(|f| f == ORPHAN) {
                PropagationPolicy::Orphan
            } else {
                PropagationPolicy::Background
            };
            let params = DeleteParams {
                propagation_policy: Some(policy),
                preconditions: Some(Preconditions {
                    uid: Some(uid.to_string()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            let api = api_for(client, &item.kind, &item.namespace);
            ignore_not_found(api.delete(&item.name, &params).await)?;
            Ok(true)
        }
        Action::Disown { uids, .. } => disown(client, item, &uids).await.map(|()| true),
        Action::Release { finalizer } => release(client, uid, item, finalizer).await.map(|()| true),
        Action::Orphan { .. } => {
            for dependent in &dependents {
                disown(client.clone(), dependent, std::slice::from_ref(uid)).await?;
            }
            release(client, uid, item, ORPHAN).await.map(|()| true)
        }
    }
}

async fn disown(client: Client, item: &Item, owners: &[Uid]) -> Result<(), kube::Error> {
    let api = api_for(client, &item.kind, &item.namespace);
    let Some(object) = api.get_opt(&item.name).await? else {
        return Ok(());
    };
    let mut left = object.metadata.owner_references.unwrap_or_default();
    left.retain(|o| !owners.iter().any(|uid| **uid == o.uid));
    let patch = json!({"metadata": {
        "uid": object.metadata.uid,
        "resourceVersion": object.metadata.resource_version,
        "ownerReferences": left,
    }});
    ignore_not_found(
        api.patch(&item.name, &PatchParams::default(), &Patch::Merge(patch))
            .await,
    )
}

async fn release(
    client: Client,
    uid: &Uid,
    item: &Item,
    finalizer: &str,
) -> Result<(), kube::Error> {
    let api = api_for(client, &item.kind, &item.namespace);
    let Some(object) = api.get_opt(&item.name).await? else {
        return Ok(());
    };
    let mut left = object.metadata.finalizers.unwrap_or_default();
    if object.metadata.uid.as_deref() != Some(&**uid) || !left.iter().any(|f| f == finalizer) {
        return Ok(());
    }
    left.retain(|f| f != finalizer);
    let patch = json!({"metadata": {
        "resourceVersion": object.metadata.resource_version,
        "finalizers": left,
    }});
    ignore_not_found(
        api.patch(&item.name, &PatchParams::default(), &Patch::Merge(patch))
            .await,
    )
}

/// Deletes the events of a namespace and removes its finalizer `kubernetes`.
pub(super) async fn finalize(client: Client, name: &str) -> Result<(), kube::Error> {
    use http::Request;
    let path = format!("/api/v1/namespaces/{name}");
    let request = |method: &str, path: &str, body: Vec<u8>| {
        Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(body)
            .map_err(kube::Error::HttpError)
    };
    let events = request("DELETE", &format!("{path}/events"), Vec::new())?;
    client.request::<Value>(events).await?;
    let mut namespace: Value = match client.request(request("GET", &path, Vec::new())?).await {
        Ok(found) => found,
        Err(error) if is_not_found(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    if let Some(finalizers) = namespace["spec"]["finalizers"].as_array_mut() {
        finalizers.retain(|f| f != "kubernetes");
    }
    let body = serde_json::to_vec(&namespace).map_err(kube::Error::SerdeError)?;
    let done: Result<Value, _> = client
        .request(request("PUT", &format!("{path}/finalize"), body)?)
        .await;
    ignore_not_found(done)
}
