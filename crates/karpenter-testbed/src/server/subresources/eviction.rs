//! Eviction: deletes a pod if its PodDisruptionBudgets allow it.
//!
//! UPSTREAM: pkg/registry/core/pod/storage/eviction.go

use serde_json::{Value, json};

use crate::selector::Selector;
use crate::server::ApiServer;
use crate::server::catalog::Served;
use crate::server::delete::DeleteOptions;
use crate::server::value::{map_of, name_of};
use crate::server::wire::error::ApiError;
use crate::server::wire::reply::Reply;
use crate::server::wire::request::Call;
use crate::server::write::context::{Context, timestamp};
use crate::store::Object;

/// With more unconfirmed evictions than this a budget rejects further ones, as upstream does to bound its status.
const MAX_DISRUPTED: usize = 2000;

impl ApiServer {
    /// POST of `pods/NAME/eviction`.
    pub(in crate::server) async fn evict(
        &self,
        served: &Served,
        call: &Call,
        name: &str,
    ) -> Result<Reply, ApiError> {
        let body = call.object()?;
        if name_of(&body) != name {
            return Err(ApiError::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        let mut options = DeleteOptions::parse(&body["deleteOptions"])?;
        options.dry_run |= call.options.dry_run;
        let ctx = Context::new(call, self.clock.now());
        let namespace = call.target.namespace.as_deref().unwrap_or_default();
        let key = served.key(Some(namespace), name);
        let Some(object) = served.collection.get(&key) else {
            return Err(ApiError::not_found(served, name));
        };
        let pod = object.value();
        if !ignores_budgets(&pod) {
            self.spend_budget(namespace, name, &pod, &object, &options)
                .await?;
        }
        self.delete_key(served, &key, name, &options, &ctx).await?;
        Ok(Reply::json(
            201,
            &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        ))
    }

    async fn spend_budget(
        &self,
        namespace: &str,
        name: &str,
        pod: &Value,
        object: &Object,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let Some(budgets) = self.catalog.find("policy", "v1", "poddisruptionbudgets") else {
            return Ok(());
        };
        let concerned: Vec<(Value, u64)> = budgets
            .collection
            .all(Some(namespace))
            .iter()
            .map(|budget| (budget.value(), budget.revision))
            .filter(|(budget, _)| {
                let selector = budget["spec"].get("selector");
                selector.is_some_and(|s| Selector::of_json(s).matches_with(|key| object.label(key)))
            })
            .collect();
        let budget = match concerned.as_slice() {
            [] => return Ok(()),
            [(budget, _)] => name_of(budget).to_owned(),
            _ => {
                return Err(ApiError::new(
                    500,
                    "InternalError",
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        };
        let policy = concerned[0].0["spec"]["unhealthyPodEvictionPolicy"].clone();
        let healthy = is_ready(pod);
        let ctx = Context {
            dry_run: options.dry_run,
            ..Context::internal("kube-apiserver", Some("status"), self.clock.now())
        };
        if !healthy {
            let status = &concerned[0].0["status"];
            let count = |key: &str| status[key].as_i64().unwrap_or(0);
            let spare = policy == "AlwaysAllow"
                || (count("currentHealthy") >= count("desiredHealthy")
                    && count("desiredHealthy") > 0);
            if spare {
                return Ok(());
            }
        }
        let now = timestamp(ctx.now);
        let key = budgets.key(Some(namespace), &budget);
        self.modify(&budgets, &key, &budget, &ctx, |budget| {
            spend(budget, name, &now)
        })
        .await
        .map(|_| ())
        .or_else(|error| {
            if error.code == 404 {
                Ok(())
            } else {
                Err(error)
            }
        })
    }
}

/// Takes one disruption from a budget's status, or returns why it has none.
fn spend(budget: &mut Value, pod: &str, now: &Value) -> Result<(), ApiError> {
    let name = name_of(budget).to_owned();
    let generation = budget["metadata"]["generation"].as_i64().unwrap_or(0);
    let status = map_of(&mut budget["status"]);
    let count = |status: &serde_json::Map<String, Value>, key: &str| {
        status.get(key).and_then(Value::as_i64).unwrap_or(0)
    };
    if count(status, "observedGeneration") < generation {
        return Err(too_many(format!(
            "The disruption budget {name} is still being processed by the server."
        )));
    }
    let allowed = count(status, "disruptionsAllowed");
    let disrupted = status
        .get("disruptedPods")
        .and_then(Value::as_object)
        .map_or(0, serde_json::Map::len);
    if allowed < 0 {
        return Err(ApiError::new(
            403,
            "Forbidden",
            format!("pdb disruptions allowed is negative: {allowed}"),
        ));
    }
    if disrupted > MAX_DISRUPTED {
        return Err(ApiError::new(
            403,
            "Forbidden",
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        return Err(too_many(format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            count(status, "desiredHealthy"),
            count(status, "currentHealthy"),
        )));
    }
    status.insert("disruptionsAllowed".into(), (allowed - 1).into());
    map_of(status.entry("disruptedPods").or_insert_with(|| json!({})))
        .insert(pod.to_owned(), now.clone());
    Ok(())
}

fn too_many(cause: String) -> ApiError {
    ApiError::new(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
    )
    .with_details(json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]}))
}

/// Pods that have ended, have not started or are being deleted are outside of any budget.
fn ignores_budgets(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed" | "Pending")
    ) || pod["metadata"]["deletionTimestamp"].is_string()
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|c| c["type"] == "Ready" && c["status"] == "True")
}
