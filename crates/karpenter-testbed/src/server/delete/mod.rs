//! delete and deletecollection: preconditions, grace periods, finalizers, propagation; of definitions and namespaces, too.

mod definitions;
mod dependents;
mod namespaces;

use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::server::ApiServer;
use crate::server::catalog::Served;
use crate::server::owners::{FOREGROUND, ORPHAN};
use crate::server::value::object_of;
use crate::server::wire::error::{ApiError, details};
use crate::server::wire::reply::Reply;
use crate::server::wire::request::Call;
use crate::server::write::context::{Context, timestamp};
use crate::server::write::{Failed, ready_to_go};
use crate::store::{Object, Query};

/// The options of a delete, from body and query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Grace period in seconds.
    pub grace_period: Option<i64>,
    /// Precondition: the UID of the object.
    pub uid: Option<String>,
    /// Precondition: the resource version of the object.
    pub resource_version: Option<String>,
    /// `Orphan`, `Background` or `Foreground`.
    pub propagation: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Reads `DeleteOptions`.
    ///
    /// # Errors
    /// 422 for invalid values.
    pub fn parse(body: &Value) -> Result<Self, ApiError> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut options = Self {
            grace_period: body["gracePeriodSeconds"].as_i64(),
            uid: text(&body["preconditions"]["uid"]),
            resource_version: text(&body["preconditions"]["resourceVersion"]),
            propagation: text(&body["propagationPolicy"]),
            dry_run: body["dryRun"]
                .as_array()
                .is_some_and(|d| d.iter().any(|v| v == "All")),
        };
        if let Some(orphan) = body["orphanDependents"].as_bool() {
            options.propagation = Some(if orphan { "Orphan" } else { "Background" }.to_owned());
        }
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), ApiError> {
        if let Some(policy) = &self.propagation
            && !matches!(policy.as_str(), "Orphan" | "Background" | "Foreground")
        {
            return Err(ApiError::invalid_kind(
                "meta.k8s.io",
                "DeleteOptions",
                "",
                &[crate::server::wire::error::Cause::unsupported(
                    "propagationPolicy",
                    &policy.as_str().into(),
                    &["Foreground", "Background", "Orphan", "nil"],
                )],
            ));
        }
        Ok(())
    }

    fn of(call: &Call) -> Result<Self, ApiError> {
        let mut options = if call.body.is_empty() {
            Self::default()
        } else {
            let body = call.object()?;
            let kind = body["kind"].as_str().unwrap_or("DeleteOptions");
            if kind != "DeleteOptions" && kind != "Eviction" {
                return Err(ApiError::bad_request(format!(
                    "no kind \"{kind}\" is registered for DeleteOptions"
                )));
            }
            Self::parse(&body)?
        };
        let query = &call.options;
        options.dry_run |= query.dry_run;
        options.grace_period = options.grace_period.or(query.grace_period_seconds);
        if options.propagation.is_none() {
            options.propagation.clone_from(&query.propagation_policy);
        }
        if options.propagation.is_none()
            && let Some(orphan) = query.orphan_dependents
        {
            options.propagation = Some(if orphan { "Orphan" } else { "Background" }.to_owned());
        }
        options.check()?;
        Ok(options)
    }
}

/// The result of a delete.
#[derive(Debug)]
pub(in crate::server) enum Deleted {
    /// The object is removed; this was its last state.
    Gone(Value),
    /// It waits for its grace period or finalizers.
    Waiting(Value),
}

impl ApiServer {
    /// DELETE of one object.
    pub(in crate::server) async fn delete(
        &self,
        served: &Served,
        call: &Call,
        name: &str,
    ) -> Result<Reply, ApiError> {
        let options = DeleteOptions::of(call)?;
        let ctx = Context::new(call, self.clock.now());
        let key = served.key(call.target.namespace.as_deref(), name);
        match self.delete_key(served, &key, name, &options, &ctx).await? {
            Deleted::Waiting(value) => Ok(self.show(served, call, 200, &value)),
            Deleted::Gone(value) if returns_deleted(served) => {
                Ok(self.show(served, call, 200, &value))
            }
            Deleted::Gone(value) => {
                let mut details = details(served, name, &served.plural);
                details["uid"] = value["metadata"]["uid"].clone();
                Ok(Reply::json(
                    200,
                    &json!({
                        "kind": "Status",
                        "apiVersion": "v1",
                        "metadata": {},
                        "status": "Success",
                        "details": details,
                    }),
                ))
            }
        }
    }

    /// Deletes the object at `key`.
    pub(in crate::server) async fn delete_key(
        &self,
        served: &Served,
        key: &str,
        name: &str,
        options: &DeleteOptions,
        ctx: &Context,
    ) -> Result<Deleted, ApiError> {
        loop {
            let Some(current) = served.collection.get(key) else {
                return Err(ApiError::not_found(served, name));
            };
            if let Some(deleted) = self
                .try_delete(served, &current, name, options, ctx)
                .await?
            {
                return Ok(deleted);
            }
            // After a concurrent write the object is read again. Every retry means that another write succeeded.
        }
    }

    async fn try_delete(
        &self,
        served: &Served,
        current: &Arc<Object>,
        name: &str,
        options: &DeleteOptions,
        ctx: &Context,
    ) -> Result<Option<Deleted>, ApiError> {
        let old = self.read(served, current).await?;
        check_preconditions(served, name, &old, options)?;
        let mut new = old.clone();
        let deleting = old["metadata"]["deletionTimestamp"].is_string();
        let grace = grace_period(served, &old, options);
        let metadata = object_of(&mut new, "metadata");
        if deleting {
            let left = metadata
                .get("deletionGracePeriodSeconds")
                .and_then(Value::as_i64)
                .unwrap_or(0);
            // A later delete cannot extend the grace period.
            if grace < left {
                metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
                metadata.insert("deletionTimestamp".into(), due(ctx, grace));
            }
        } else {
            propagate(served, metadata, options);
            metadata.insert("deletionTimestamp".into(), due(ctx, grace));
            metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
            if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
                metadata.insert("generation".into(), (generation + 1).into());
            }
            if served.is("", "Namespace") {
                new["status"]["phase"] = "Terminating".into();
            }
            if served.is("apiextensions.k8s.io", "CustomResourceDefinition") {
                definitions::begin_termination(&mut new, ctx);
            }
        }
        let gone = ready_to_go(&new);
        if options.dry_run {
            return Ok(Some(if gone {
                Deleted::Gone(new)
            } else {
                Deleted::Waiting(new)
            }));
        }
        if !gone && new == old {
            return Ok(Some(Deleted::Waiting(new)));
        }
        match self.commit(served, current, &mut new).await {
            Ok(true) => Ok(Some(Deleted::Gone(new))),
            Ok(false) => Ok(Some(Deleted::Waiting(new))),
            Err(Failed::Raced) => Ok(None),
            Err(Failed::Refused(error)) => Err(error),
        }
    }

    pub(in crate::server) async fn delete_collection(
        &self,
        served: &Served,
        call: &Call,
    ) -> Result<Reply, ApiError> {
        let options = DeleteOptions::of(call)?;
        let ctx = Context::new(call, self.clock.now());
        let selectors = self.selectors(served, call)?;
        let page = served
            .collection
            .list(&Query {
                namespace: call.target.namespace.as_deref(),
                after: None,
                limit: call.options.limit,
                at: None,
                matcher: &selectors,
            })
            .map_err(|e| ApiError::expired(e.to_string()))?;
        let mut items = Vec::with_capacity(page.items.len());
        for object in &page.items {
            match self
                .delete_key(served, &object.key, object.name(), &options, &ctx)
                .await
            {
                Ok(Deleted::Gone(value) | Deleted::Waiting(value)) => items.push(value),
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let mut metadata = json!({"resourceVersion": self.store.revision().to_string()});
        if served.is_custom() {
            metadata["continue"] = "".into();
        }
        Ok(Reply::json(
            200,
            &json!({
                "kind": served.list_kind,
                "apiVersion": served.api_version(),
                "metadata": metadata,
                "items": items,
            }),
        ))
    }
}

fn due(ctx: &Context, grace: i64) -> Value {
    let at = ctx
        .now
        .checked_add(SignedDuration::from_secs(grace))
        .unwrap_or(ctx.now);
    timestamp(at)
}

/// Returns the grace period of the object. Only pods are deleted gracefully, and only once they are bound to a node.
fn grace_period(served: &Served, object: &Value, options: &DeleteOptions) -> i64 {
    if !served.is("", "Pod") {
        return 0;
    }
    let spec = &object["spec"];
    if spec["nodeName"].as_str().unwrap_or_default().is_empty()
        || matches!(
            object["status"]["phase"].as_str(),
            Some("Failed" | "Succeeded")
        )
    {
        return 0;
    }
    let grace = options
        .grace_period
        .or_else(|| spec["terminationGracePeriodSeconds"].as_i64())
        .unwrap_or(30);
    if grace < 0 { 1 } else { grace }
}

/// Adds the finalizer for the propagation policy; the garbage collector handles it.
fn propagate(
    served: &Served,
    metadata: &mut serde_json::Map<String, Value>,
    options: &DeleteOptions,
) {
    // The default propagation policy of Jobs orphans their pods.
    let default = served.is("batch", "Job").then_some("Orphan");
    let Some(policy) = options.propagation.as_deref().or(default) else {
        return;
    };
    let mut finalizers: Vec<Value> = metadata
        .get("finalizers")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    finalizers.retain(|f| f != ORPHAN && f != FOREGROUND);
    match policy {
        "Orphan" => finalizers.push(ORPHAN.into()),
        "Foreground" => finalizers.push(FOREGROUND.into()),
        _ => {}
    }
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), finalizers.into());
    }
}

fn check_preconditions(
    served: &Served,
    name: &str,
    object: &Value,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let metadata = &object["metadata"];
    let conflict = |why: String| {
        // Only here a conflict names the kind instead of the plural.
        ApiError::new(
            409,
            "Conflict",
            format!(
                "Operation cannot be fulfilled on {} \"{name}\": {why}",
                served.qualified_kind()
            ),
        )
        .with_details(details(served, name, &served.kind))
    };
    if let Some(uid) = &options.uid
        && metadata["uid"] != uid.as_str()
    {
        return Err(conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            metadata["uid"].as_str().unwrap_or_default()
        )));
    }
    if let Some(rv) = &options.resource_version
        && metadata["resourceVersion"] != rv.as_str()
    {
        return Err(conflict(format!(
            "the ResourceVersion in the precondition ({rv}) does not match the ResourceVersion in record ({}). The object might have been modified",
            metadata["resourceVersion"].as_str().unwrap_or_default()
        )));
    }
    Ok(())
}

/// Kinds whose deletion returns the object instead of a Status.
fn returns_deleted(served: &Served) -> bool {
    !served.is_custom()
        && served.group.is_empty()
        && matches!(
            served.kind.as_str(),
            "Pod"
                | "PersistentVolume"
                | "PersistentVolumeClaim"
                | "PodTemplate"
                | "ResourceQuota"
                | "Service"
                | "ServiceAccount"
        )
}
