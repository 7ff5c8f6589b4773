//! The scale subresource, of workloads and of custom resources.

use http::Method;
use serde_json::{Map, Value, json};

use crate::patch;
use crate::server::ApiServer;
use crate::server::catalog::Served;
use crate::server::value::{map_of, name_of};
use crate::server::wire::error::{ApiError, Cause};
use crate::server::wire::reply::Reply;
use crate::server::wire::request::Call;
use crate::server::write::context::Context;

/// The fields of a kind that a Scale shows.
struct Paths {
    spec: Vec<String>,
    status: Vec<String>,
    selector: Option<Vec<String>>,
    spec_text: String,
}

fn segments(path: &str) -> Vec<String> {
    path.trim_start_matches('.')
        .split('.')
        .map(str::to_owned)
        .collect()
}

fn paths(served: &Served) -> Option<Paths> {
    let Some(custom) = &served.custom else {
        return Some(Paths {
            spec: segments(".spec.replicas"),
            status: segments(".status.replicas"),
            selector: None,
            spec_text: ".spec.replicas".to_owned(),
        });
    };
    let scale = custom.scale.as_ref()?;
    Some(Paths {
        spec: segments(&scale.spec_replicas_path),
        status: segments(&scale.status_replicas_path),
        selector: scale.label_selector_path.as_deref().map(segments),
        spec_text: scale.spec_replicas_path.clone(),
    })
}

fn at<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(object, |value, key| &value[key.as_str()])
}

fn put(object: &mut Value, path: &[String], value: Value) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let mut place = object;
    for key in parents {
        place = map_of(place)
            .entry(key.as_str())
            .or_insert_with(|| Value::Object(Map::new()));
    }
    map_of(place).insert(last.clone(), value);
}

/// Formats a workload's selector as a query parameter.
fn selector_text(selector: &Value) -> String {
    let mut terms: Vec<String> = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
        .collect();
    for expression in selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let key = expression["key"].as_str().unwrap_or_default();
        let values: Vec<&str> = expression["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let values = values.join(",");
        terms.push(match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    terms.join(",")
}

fn scale_of(served: &Served, object: &Value, paths: &Paths) -> Value {
    let metadata: Map<String, Value> = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ]
    .into_iter()
    .filter_map(|key| {
        let value = object["metadata"].get(key)?;
        Some((key.to_owned(), value.clone()))
    })
    .collect();
    let mut status = json!({"replicas": at(object, &paths.status).as_i64().unwrap_or(0)});
    let selector = if served.is_custom() {
        paths
            .selector
            .as_ref()
            .and_then(|p| at(object, p).as_str())
            .unwrap_or_default()
            .to_owned()
    } else {
        selector_text(&object["spec"]["selector"])
    };
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    let mut scale = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {},
        "status": status,
    });
    if let Some(replicas) = at(object, &paths.spec).as_i64() {
        scale["spec"]["replicas"] = replicas.into();
    }
    scale
}

impl ApiServer {
    /// GET, PUT or PATCH of `…/scale`.
    pub(in crate::server) async fn scale(
        &self,
        served: &Served,
        call: &Call,
        name: &str,
    ) -> Result<Reply, ApiError> {
        let paths = paths(served).ok_or_else(ApiError::no_such_path)?;
        let key = served.key(call.target.namespace.as_deref(), name);
        let object = self.find(served, call, name)?;
        let current = self.read(served, &object).await?;
        let wanted = match call.method {
            Method::GET => {
                if at(&current, &paths.spec).is_null() {
                    return Err(ApiError::internal(format!(
                        "the spec replicas field \"{}\" does not exist",
                        paths.spec_text
                    )));
                }
                return Ok(Reply::json(200, &scale_of(served, &current, &paths)));
            }
            Method::PUT => call.object()?,
            Method::PATCH => {
                let scale = scale_of(served, &current, &paths);
                let body = call.patch_body()?;
                let patched = match call.content_type.as_str() {
                    "application/json-patch+json" => patch::json(&scale, &body),
                    _ => patch::merge(&scale, &body),
                };
                patched.map_err(|e| ApiError::new(e.code(), e.reason(), e.to_string()))?
            }
            _ => return Err(ApiError::method_not_allowed()),
        };
        let given = name_of(&wanted);
        if !given.is_empty() && given != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        let rv = wanted["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        if !rv.is_empty() && current["metadata"]["resourceVersion"] != rv {
            return Err(ApiError::modified(served, name));
        }
        let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            return Err(ApiError::invalid_kind(
                "autoscaling",
                "Scale",
                name,
                &[Cause::invalid(
                    "spec.replicas",
                    &replicas.into(),
                    "must be greater than or equal to 0",
                )],
            ));
        }
        let ctx = Context::new(call, self.clock.now());
        let value = self
            .modify(served, &key, name, &ctx, |object| {
                put(object, &paths.spec, replicas.into());
                Ok(())
            })
            .await?;
        Ok(Reply::json(200, &scale_of(served, &value, &paths)))
    }
}
