//! Subresources, and the binding of pods.

mod eviction;
mod scale;

use http::Method;
use serde_json::{Value, json};

use crate::server::ApiServer;
use crate::server::catalog::Served;
use crate::server::value::map_of;
use crate::server::wire::error::ApiError;
use crate::server::wire::reply::Reply;
use crate::server::wire::request::Call;
use crate::server::write::Failed;
use crate::server::write::context::Context;

/// Number of retries after a conflict.
const RETRIES: usize = 16;

impl ApiServer {
    /// A request on a subresource.
    pub(in crate::server) async fn subresource(
        &self,
        served: &Served,
        call: &Call,
        name: &str,
        subresource: &str,
    ) -> Result<Reply, ApiError> {
        if served.subresource(subresource).is_none() {
            return Err(ApiError::no_such_path());
        }
        match (subresource, &call.method) {
            ("status", &Method::GET) => self.get(served, call, name).await,
            ("status", &Method::PUT) => self.update(served, call, name).await,
            ("status", &Method::PATCH) => self.patch(served, call, name).await,
            ("scale", _) => self.scale(served, call, name).await,
            ("finalize", &Method::PUT) => self.update(served, call, name).await,
            ("binding", &Method::POST) => self.bind(served, call, name).await,
            ("eviction", &Method::POST) => self.evict(served, call, name).await,
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    /// Changes an object with a function of its current state, through the normal pipeline.
    pub(in crate::server) async fn modify(
        &self,
        served: &Served,
        key: &str,
        name: &str,
        ctx: &Context,
        mut change: impl FnMut(&mut Value) -> Result<(), ApiError>,
    ) -> Result<Value, ApiError> {
        for _ in 0..RETRIES {
            let Some(current) = served.collection.get(key) else {
                return Err(ApiError::not_found(served, name));
            };
            let old = self.read(served, &current).await?;
            let mut new = old.clone();
            change(&mut new)?;
            match self.finish_update(served, &current, &old, new, ctx).await {
                Ok(value) => return Ok(value),
                Err(Failed::Raced) => {}
                Err(Failed::Refused(error)) => return Err(error),
            }
        }
        Err(ApiError::modified(served, name))
    }

    /// POST of `pods/NAME/binding`.
    async fn bind(&self, served: &Served, call: &Call, name: &str) -> Result<Reply, ApiError> {
        let body = call.object()?;
        let node = body["target"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let mut ctx = Context::new(call, self.clock.now());
        ctx.subresource = Some("binding".into());
        let key = served.key(call.target.namespace.as_deref(), name);
        let uid = body["metadata"]["uid"].clone();
        let now = ctx.timestamp();
        self.modify(served, &key, name, &ctx, |pod| {
            let refuse = |why: String| {
                let mut error = ApiError::conflict(served, name, &why);
                error.message = format!("Operation cannot be fulfilled on pods/binding \"{name}\": {why}");
                error.with_details(json!({"name": name, "kind": "pods/binding"}))
            };
            if let Some(uid) = uid.as_str().filter(|u| !u.is_empty())
                && pod["metadata"]["uid"] != uid
            {
                return Err(refuse(format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    pod["metadata"]["uid"].as_str().unwrap_or_default()
                )));
            }
            if pod["metadata"]["deletionTimestamp"].is_string() {
                return Err(refuse(format!("pod {name} is being deleted, cannot be assigned to a host")));
            }
            if let Some(bound) = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
                return Err(refuse(format!("pod {name} is already assigned to node \"{bound}\"")));
            }
            pod["spec"]["nodeName"] = node.as_str().into();
            if let Some(annotations) = body["metadata"]["annotations"].as_object() {
                let kept = map_of(&mut pod["metadata"]["annotations"]);
                for (key, value) in annotations {
                    kept.insert(key.clone(), value.clone());
                }
            }
            set_condition(
                &mut pod["status"],
                json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now}),
            );
            Ok(())
        })
        .await?;
        Ok(Reply::json(
            201,
            &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        ))
    }
}

/// Replaces the condition of the same type, or adds it.
fn set_condition(status: &mut Value, condition: Value) {
    let conditions = map_of(status)
        .entry("conditions")
        .or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    if let Some(list) = conditions.as_array_mut() {
        match list.iter_mut().find(|c| c["type"] == condition["type"]) {
            Some(known) if known["status"] == condition["status"] => {}
            Some(known) => *known = condition,
            None => list.push(condition),
        }
    }
}
