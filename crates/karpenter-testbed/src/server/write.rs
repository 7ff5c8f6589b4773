//! create, update and patch: one pipeline from a body to a stored object.
//!
//! 1. Decode: body → value of the served version; unknown fields are refused, reported or dropped.
//! 2. Prepare: what the server decides (uid, times, generation, the half of the object the path may not write).
//! 3. Default and validate: per kind, or by the custom resource's schema.
//! 4. Own: managed fields.
//! 5. Commit on the revision that was read; on a lost race start over unless the client named a revision.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::ApiServer;
use super::admission;
use super::catalog::Served;
use super::context::Context;
use super::error::{ApiError, Cause};
use super::reply::Reply;
use super::request::{Call, FieldValidation};
use super::selector::Selectors;
use crate::fields::{self, ApplyError};
use crate::patch;
use crate::registry::decode;
use crate::store::{Object, Query, Rejected};

/// What a write came to.
#[derive(Debug)]
pub(super) struct Written {
    /// The object in the served version.
    pub value: Value,
    /// 200, or 201 for a new object.
    pub code: u16,
    /// Texts for warning headers.
    pub warnings: Vec<String>,
}

/// How often a lost race is tried again.
const RETRIES: usize = 16;

impl ApiServer {
    /// POST on a collection.
    pub(super) async fn create(&self, served: &Served, call: &Call) -> Result<Reply, ApiError> {
        let ctx = Context::new(call, self.clock.now());
        let value = self.decode(served, call)?;
        let written = self
            .create_value(served, call.target.namespace.as_deref(), value, &ctx)
            .await?;
        Ok(self
            .show(served, call, written.code, &written.value)
            .with_warnings(written.warnings))
    }

    /// A body as an object of the served kind.
    pub(super) fn decode(&self, served: &Served, call: &Call) -> Result<Value, ApiError> {
        let mut value = call.object()?;
        check_kind(served, &mut value)?;
        Ok(value)
    }

    /// Creates an object.
    pub(super) async fn create_value(
        &self,
        served: &Served,
        namespace: Option<&str>,
        mut value: Value,
        ctx: &Context,
    ) -> Result<Written, ApiError> {
        let mut warnings = Vec::new();
        normalise(served, &mut value, ctx, &mut warnings)?;
        let namespace = if served.namespaced { namespace } else { None };
        check_namespace(&mut value, namespace)?;
        if let Some(namespace) = namespace {
            self.check_namespace_exists(served, namespace)?;
        }
        self.check_definition_stays(served)?;
        let metadata = object_of(&mut value, "metadata");
        if metadata
            .get("resourceVersion")
            .and_then(Value::as_str)
            .is_some_and(|rv| !rv.is_empty())
        {
            return Err(ApiError::internal(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let generated = name_of(&value).is_empty()
            && value["metadata"]["generateName"]
                .as_str()
                .is_some_and(|p| !p.is_empty());
        let template = generated.then(|| value.clone());
        for _ in 0..RETRIES {
            let mut object = template.clone().unwrap_or_else(|| value.clone());
            if generated {
                let prefix = object["metadata"]["generateName"]
                    .as_str()
                    .unwrap_or_default();
                let prefix: String = prefix.chars().take(58).collect();
                object["metadata"]["name"] = format!("{prefix}{}", self.identity.suffix()).into();
            }
            let metadata = object_of(&mut object, "metadata");
            for key in [
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "selfLink",
                "generation",
                "resourceVersion",
            ] {
                metadata.remove(key);
            }
            metadata.insert("uid".into(), self.identity.uid().into());
            metadata.insert("creationTimestamp".into(), ctx.timestamp());
            self.admit_create(served, &mut object, ctx)?;
            let name = name_of(&object).to_owned();
            let key = served.key(namespace, &name);
            if ctx.dry_run {
                if served.collection.get(&key).is_some() {
                    return Err(ApiError::already_exists(served, &name));
                }
                return Ok(Written {
                    value: object,
                    code: 201,
                    warnings,
                });
            }
            let mut stored = self.to_storage(served, object.clone()).await?;
            match served.collection.insert(&key, served.edition, &mut stored) {
                Ok(_) => {
                    object["metadata"]["resourceVersion"] =
                        stored["metadata"]["resourceVersion"].clone();
                    self.after_write(served, &stored);
                    return Ok(Written {
                        value: object,
                        code: 201,
                        warnings,
                    });
                }
                Err(_) if generated => {}
                Err(_) => return Err(ApiError::already_exists(served, &name)),
            }
        }
        Err(ApiError::already_exists(served, name_of(&value)))
    }

    /// PUT on an object or its status.
    pub(super) async fn update(
        &self,
        served: &Served,
        call: &Call,
        name: &str,
    ) -> Result<Reply, ApiError> {
        let ctx = Context::new(call, self.clock.now());
        let mut warnings = Vec::new();
        let mut value = self.decode(served, call)?;
        normalise(served, &mut value, &ctx, &mut warnings)?;
        check_namespace(
            &mut value,
            call.target
                .namespace
                .as_deref()
                .filter(|_| served.namespaced),
        )?;
        let given = name_of(&value);
        if given.is_empty() {
            return Err(ApiError::bad_request(format!(
                "name must be provided{}",
                ""
            )));
        }
        if given != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        let key = served.key(call.target.namespace.as_deref(), name);
        let named_revision = has_revision(&value);
        if !named_revision && served.is_custom() {
            return Err(ApiError::invalid(
                served,
                name,
                &[Cause::invalid(
                    "metadata.resourceVersion",
                    &json!(0),
                    "must be specified for an update",
                )],
            ));
        }
        for _ in 0..RETRIES {
            let Some(current) = served.collection.get(&key) else {
                if creates_on_update(served) && call.target.subresource.is_none() && !named_revision
                {
                    let written = self
                        .create_value(served, call.target.namespace.as_deref(), value, &ctx)
                        .await?;
                    return Ok(self.show(served, call, 201, &written.value));
                }
                return Err(ApiError::not_found(served, name));
            };
            let old = self.read(served, &current).await?;
            match self
                .finish_update(served, &current, &old, value.clone(), &ctx)
                .await
            {
                Err(Failed::Raced) if !named_revision => {}
                Err(Failed::Raced) => return Err(ApiError::modified(served, name)),
                Err(Failed::Refused(error)) => return Err(error),
                Ok(value) => {
                    return Ok(self.show(served, call, 200, &value).with_warnings(warnings));
                }
            }
        }
        Err(ApiError::modified(served, name))
    }

    /// PATCH on an object or its status.
    pub(super) async fn patch(
        &self,
        served: &Served,
        call: &Call,
        name: &str,
    ) -> Result<Reply, ApiError> {
        let mut ctx = Context::new(call, self.clock.now());
        let kind = PatchKind::of(served, call)?;
        let patch = call.patch_body()?;
        if kind == PatchKind::Apply {
            if call.options.field_manager.is_empty() {
                return Err(ApiError::invalid_kind(
                    "meta.k8s.io",
                    "PatchOptions",
                    "",
                    &[Cause::required(
                        "fieldManager",
                        "is required for apply patch",
                    )],
                ));
            }
            ctx.manager.clone_from(&call.options.field_manager);
            ctx.applied = true;
        } else if call.options.force {
            return Err(ApiError::invalid_kind(
                "meta.k8s.io",
                "PatchOptions",
                "",
                &[Cause::forbidden(
                    "force",
                    "may not be specified for non-apply patch",
                )],
            ));
        }
        let key = served.key(call.target.namespace.as_deref(), name);
        let named_revision = has_revision(&patch);
        for _ in 0..RETRIES {
            let Some(current) = served.collection.get(&key) else {
                if kind == PatchKind::Apply && call.target.subresource.is_none() {
                    return self.apply_new(served, call, name, patch, &ctx).await;
                }
                return Err(ApiError::not_found(served, name));
            };
            let old = self.read(served, &current).await?;
            let mut warnings = Vec::new();
            let new = self.patched(served, call, kind, &old, &patch, &ctx, &mut warnings)?;
            match self.finish_update(served, &current, &old, new, &ctx).await {
                Err(Failed::Raced) if !named_revision => {}
                Err(Failed::Raced) => return Err(ApiError::modified(served, name)),
                Err(Failed::Refused(error)) => return Err(error),
                Ok(value) => {
                    return Ok(self.show(served, call, 200, &value).with_warnings(warnings));
                }
            }
        }
        Err(ApiError::modified(served, name))
    }

    async fn apply_new(
        &self,
        served: &Served,
        call: &Call,
        name: &str,
        mut value: Value,
        ctx: &Context,
    ) -> Result<Reply, ApiError> {
        check_kind(served, &mut value)?;
        let given = name_of(&value);
        if !given.is_empty() && given != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        object_of(&mut value, "metadata").insert("name".into(), name.into());
        let mut warnings = Vec::new();
        normalise(served, &mut value, ctx, &mut warnings)?;
        let value = ctx
            .as_writer(served, |w| {
                fields::apply(None, &value, &served.schema, w, call.options.force)
            })
            .map_err(refused_apply)?;
        let mut written = self
            .create_value(served, call.target.namespace.as_deref(), value, ctx)
            .await?;
        written.warnings.extend(warnings);
        Ok(self
            .show(served, call, 201, &written.value)
            .with_warnings(written.warnings))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one step of `patch`, split for reading"
    )]
    fn patched(
        &self,
        served: &Served,
        call: &Call,
        kind: PatchKind,
        old: &Value,
        patch: &Value,
        ctx: &Context,
        warnings: &mut Vec<String>,
    ) -> Result<Value, ApiError> {
        let mut new = if kind == PatchKind::Apply {
            let mut config = patch.clone();
            check_kind(served, &mut config)?;
            check_identity(&config, old)?;
            normalise(served, &mut config, ctx, warnings)?;
            ctx.as_writer(served, |w| {
                fields::apply(Some(old), &config, &served.schema, w, call.options.force)
            })
            .map_err(refused_apply)?
        } else {
            kind.apply(served, old, patch)?
        };
        if !new.is_object() {
            return Err(ApiError::bad_request("the patched object is not an object"));
        }
        check_kind(served, &mut new)?;
        check_identity(&new, old)?;
        normalise(served, &mut new, ctx, warnings)?;
        Ok(new)
    }

    /// Takes a wanted state through the rest of the pipeline; answers what is stored (or would be).
    pub(super) async fn finish_update(
        &self,
        served: &Served,
        current: &Arc<Object>,
        old: &Value,
        mut new: Value,
        ctx: &Context,
    ) -> Result<Value, Failed> {
        let name = name_of(old).to_owned();
        check_preconditions(served, old, &new)?;
        carry_metadata(old, &mut new);
        carry_halves(served, old, &mut new, ctx.subresource.as_deref());
        self.admit_update(served, old, &mut new, ctx)?;
        bump_generation(served, old, &mut new);
        let metadata = object_of(&mut new, "metadata");
        metadata.insert(
            "resourceVersion".into(),
            old["metadata"]["resourceVersion"].clone(),
        );
        if ready_to_go(&new) {
            if ctx.dry_run {
                return Ok(new);
            }
            let mut last = self.to_storage(served, new.clone()).await?;
            return match served
                .collection
                .remove(&current.key, current.revision, &mut last)
            {
                Ok(_) => {
                    self.after_delete(served, &last);
                    new["metadata"]["resourceVersion"] =
                        last["metadata"]["resourceVersion"].clone();
                    Ok(new)
                }
                Err(Rejected::Missing) => Err(ApiError::not_found(served, &name).into()),
                Err(_) => Err(Failed::Raced),
            };
        }
        if fields::unchanged(old, &new) {
            return Ok(old.clone());
        }
        if ctx.dry_run {
            return Ok(new);
        }
        let mut stored = self.to_storage(served, new.clone()).await?;
        match served
            .collection
            .replace(&current.key, current.revision, served.edition, &mut stored)
        {
            Ok(_) => {
                self.after_write(served, &stored);
                new["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
                Ok(new)
            }
            Err(Rejected::Missing) => Err(ApiError::not_found(served, &name).into()),
            Err(_) => Err(Failed::Raced),
        }
    }

    fn admit_create(
        &self,
        served: &Served,
        object: &mut Value,
        ctx: &Context,
    ) -> Result<(), ApiError> {
        if let Some(mutation) = &self.pod_mutation
            && served.is("", "Pod")
        {
            (mutation.0)(object);
        }
        admission::prepare_create(served, object);
        admission::default(served, object, &ctx.timestamp());
        if served.is("", "Pod") {
            self.admit_pod(served, object)?;
        }
        ctx.track(served, None, object);
        let causes = admission::validate_create(served, object);
        if causes.is_empty() {
            return Ok(());
        }
        Err(ApiError::invalid(served, name_of(object), &causes))
    }

    /// What a pod gets from other objects.
    fn admit_pod(&self, served: &Served, pod: &mut Value) -> Result<(), ApiError> {
        let Some(classes) = self
            .catalog
            .find("scheduling.k8s.io", "v1", "priorityclasses")
        else {
            return Ok(());
        };
        let name = name_of(pod).to_owned();
        let find = |class: &str| classes.collection.get(class).map(|o| o.value());
        let default = || {
            let all = Query {
                namespace: None,
                after: None,
                limit: 0,
                at: None,
                matcher: &Selectors::default(),
            };
            let page = classes.collection.list(&all).ok()?;
            // The two system classes are never the default.
            page.items
                .iter()
                .filter(|o| !o.name().starts_with("system-"))
                .map(|o| o.value())
                .find(|c| c["globalDefault"] == true)
        };
        admission::resolve_priority(pod, find, default)
            .map_err(|why| ApiError::forbidden(served, &name, &why))
    }

    fn admit_update(
        &self,
        served: &Served,
        old: &Value,
        new: &mut Value,
        ctx: &Context,
    ) -> Result<(), ApiError> {
        admission::default(served, new, &ctx.timestamp());
        ctx.track(served, Some(old), new);
        let causes = admission::validate_update(served, old, new, ctx.subresource.as_deref());
        if causes.is_empty() {
            return Ok(());
        }
        Err(ApiError::invalid(served, name_of(new), &causes))
    }

    /// The object in the version it is stored in.
    pub(super) async fn to_storage(
        &self,
        served: &Served,
        value: Value,
    ) -> Result<Value, ApiError> {
        if served.converts() {
            return self.convert(served, value, &served.storage_version).await;
        }
        Ok(value)
    }

    fn check_namespace_exists(&self, served: &Served, namespace: &str) -> Result<(), ApiError> {
        let Some(namespaces) = self.catalog.find("", "v1", "namespaces") else {
            return Ok(());
        };
        let Some(object) = namespaces.collection.get(namespace) else {
            return Err(ApiError::not_found(&namespaces, namespace));
        };
        if object.is_terminating() {
            let mut error = ApiError::forbidden(
                served,
                "",
                &format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                ),
            );
            if let Some(details) = &mut error.details {
                details["causes"] = json!([{
                    "reason": "NamespaceTerminating",
                    "message": format!("namespace {namespace} is being terminated"),
                    "field": "metadata.namespace",
                }]);
            }
            return Err(error);
        }
        Ok(())
    }
}

/// Why a write was not done.
#[derive(Debug)]
pub(super) enum Failed {
    /// Someone else wrote in between.
    Raced,
    /// For good.
    Refused(ApiError),
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

/// The kinds of patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    fn of(served: &Served, call: &Call) -> Result<Self, ApiError> {
        match call.content_type.as_str() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            "application/strategic-merge-patch+json" if !served.is_custom() => Ok(Self::Strategic),
            _ => {
                let accepted = if served.is_custom() {
                    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
                } else {
                    "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml"
                };
                Err(ApiError::new(
                    415,
                    "UnsupportedMediaType",
                    format!(
                        "the body of the request was in an unknown format - accepted media types include: {accepted}"
                    ),
                ))
            }
        }
    }

    fn apply(self, served: &Served, old: &Value, patch: &Value) -> Result<Value, ApiError> {
        match self {
            Self::Json => patch::json(old, patch),
            Self::Merge | Self::Apply => patch::merge(old, patch),
            Self::Strategic => patch::strategic(old, patch, &served.schema),
        }
        .map_err(|error| {
            let refused = ApiError::new(error.code(), error.reason(), error.to_string());
            if error.code() == 422 {
                refused.with_details(json!({}))
            } else {
                refused
            }
        })
    }
}

/// The object's name, empty when absent.
pub(super) fn name_of(value: &Value) -> &str {
    value["metadata"]["name"].as_str().unwrap_or_default()
}

/// The map at `key`, created when it is not one.
pub(super) fn object_of<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    map_of(map_of(value).entry(key).or_insert_with(|| json!({})))
}

/// The value as a map, made one when it is something else.
pub(super) fn map_of(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made a map above"),
    }
}

fn refused_apply(error: ApplyError) -> ApiError {
    let message = error.to_string();
    match error {
        ApplyError::Conflicts(conflicts) => {
            let causes: Vec<Value> = conflicts
                .iter()
                .map(|c| {
                    json!({
                        "reason": "FieldManagerConflict",
                        "message": format!("conflict with {}", c.owner),
                        "field": c.field,
                    })
                })
                .collect();
            ApiError::new(409, "Conflict", message).with_details(json!({"causes": causes}))
        }
        ApplyError::ManagedFields => ApiError::bad_request(message),
        _ => ApiError::internal(message),
    }
}

/// A patch cannot rename or move.
fn check_identity(new: &Value, old: &Value) -> Result<(), ApiError> {
    for key in ["name", "namespace"] {
        let (is, was) = (&new["metadata"][key], &old["metadata"][key]);
        // An applied configuration may leave them out.
        if !is.is_null() && is != was {
            return Err(ApiError::bad_request(format!(
                "the {key} of the object ({}) does not match the {key} on the URL ({})",
                is.as_str().unwrap_or_default(),
                was.as_str().unwrap_or_default()
            )));
        }
    }
    Ok(())
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_revision(value: &Value) -> bool {
    value
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .is_some_and(|rv| !rv.is_empty() && rv != "0")
}

/// Refuses another kind or version than the path's; fills them in when absent on a built-in kind.
fn check_kind(served: &Served, value: &mut Value) -> Result<(), ApiError> {
    if !value.is_object() {
        return Err(ApiError::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: json: cannot unmarshal {} into Go value",
            served.kind,
            served.version,
            served.kind,
            json_type(value)
        )));
    }
    let wanted = served.api_version();
    let kind = value["kind"].as_str().unwrap_or_default();
    let version = value["apiVersion"].as_str().unwrap_or_default();
    if served.is_custom() && (kind.is_empty() || version.is_empty()) {
        let missing = if kind.is_empty() {
            "Kind"
        } else {
            "apiVersion"
        };
        return Err(ApiError::bad_request(format!(
            "Object '{missing}' is missing in the request body"
        )));
    }
    if !version.is_empty() && version != wanted {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({wanted})"
        )));
    }
    if !kind.is_empty() && kind != served.kind {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {}: no kind \"{kind}\" is registered for the resource `{}`",
            served.version,
            served.kind,
            served.qualified_name(),
        )));
    }
    value["kind"] = served.kind.as_str().into();
    value["apiVersion"] = wanted.into();
    Ok(())
}

/// Unknown fields and values of the wrong type, as the field validation mode wants them.
fn normalise(
    served: &Served,
    value: &mut Value,
    ctx: &Context,
    warnings: &mut Vec<String>,
) -> Result<(), ApiError> {
    if !served.is_custom() {
        decode::drop_nulls(value);
        if let Some(message) =
            decode::type_error(&served.kind, &served.version, value, &served.schema)
        {
            return Err(ApiError::bad_request(message));
        }
    }
    let unknown = decode::prune(value, &served.schema);
    if unknown.is_empty() {
        return Ok(());
    }
    match ctx.validation {
        FieldValidation::Strict => Err(ApiError::bad_request(decode::strict_message(
            &served.kind,
            &served.version,
            &unknown,
        ))),
        FieldValidation::Warn => {
            warnings.extend(unknown.iter().map(|path| decode::unknown_field(path)));
            Ok(())
        }
        FieldValidation::Ignore => Ok(()),
    }
}

fn check_namespace(value: &mut Value, namespace: Option<&str>) -> Result<(), ApiError> {
    let metadata = object_of(value, "metadata");
    let given = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match namespace {
        Some(ns) if given.is_empty() => {
            metadata.insert("namespace".into(), ns.into());
            Ok(())
        }
        Some(ns) if given == ns => Ok(()),
        Some(_) => Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
        None => {
            metadata.remove("namespace");
            Ok(())
        }
    }
}

fn creates_on_update(served: &Served) -> bool {
    matches!(
        (served.group.as_str(), served.kind.as_str()),
        ("coordination.k8s.io", "Lease") | ("" | "events.k8s.io", "Event") | ("", "Endpoints")
    )
}

fn check_preconditions(served: &Served, old: &Value, new: &Value) -> Result<(), ApiError> {
    let name = name_of(old);
    let (was, is) = (&old["metadata"], &new["metadata"]);
    if let Some(uid) = is["uid"].as_str().filter(|u| !u.is_empty())
        && is["uid"] != was["uid"]
    {
        return Err(ApiError::conflict(
            served,
            name,
            &format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                was["uid"].as_str().unwrap_or_default()
            ),
        ));
    }
    if has_revision(new) && is["resourceVersion"] != was["resourceVersion"] {
        return Err(ApiError::modified(served, name));
    }
    Ok(())
}

/// What clients cannot change about an object's metadata.
fn carry_metadata(old: &Value, new: &mut Value) {
    let metadata = object_of(new, "metadata");
    for key in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ] {
        match old["metadata"].get(key) {
            Some(kept) => {
                metadata.insert(key.into(), kept.clone());
            }
            None => {
                metadata.remove(key);
            }
        }
    }
}

/// Keeps the half of the object that the path does not write.
fn carry_halves(served: &Served, old: &Value, new: &mut Value, subresource: Option<&str>) {
    let put = |new: &mut Value, key: &str| match old.get(key) {
        Some(kept) => new[key] = kept.clone(),
        None => {
            if let Some(map) = new.as_object_mut() {
                map.remove(key);
            }
        }
    };
    match subresource {
        None if served.subresource("status").is_some() => put(new, "status"),
        Some("status") if served.is_custom() => {
            let mut kept = old.clone();
            match new.get("status") {
                Some(status) => kept["status"] = status.clone(),
                None => {
                    if let Some(map) = kept.as_object_mut() {
                        map.remove("status");
                    }
                }
            }
            if let Some(fields) = new["metadata"].get("managedFields") {
                kept["metadata"]["managedFields"] = fields.clone();
            }
            *new = kept;
        }
        Some("status") => {
            let mut keys: Vec<String> = Vec::new();
            for map in [old.as_object(), new.as_object()].into_iter().flatten() {
                keys.extend(map.keys().cloned());
            }
            for key in keys {
                if key != "metadata" && key != "status" {
                    put(new, &key);
                }
            }
        }
        Some("finalize") => put(new, "status"),
        _ => {}
    }
}

fn bump_generation(served: &Served, old: &Value, new: &mut Value) {
    let Some(generation) = old["metadata"]["generation"].as_i64() else {
        return;
    };
    let changed = if served.is_custom() {
        let has_status = served.subresource("status").is_some();
        let outside = |value: &Value| -> Vec<(String, Value)> {
            value
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(k, _)| *k != "metadata" && !(has_status && *k == "status"))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect()
        };
        outside(old) != outside(new)
    } else {
        old["spec"] != new["spec"]
    };
    if changed {
        new["metadata"]["generation"] = (generation + 1).into();
    }
}

/// Whether an object that is being deleted has nothing left to wait for.
pub(super) fn ready_to_go(value: &Value) -> bool {
    let metadata = &value["metadata"];
    metadata["deletionTimestamp"].is_string()
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && metadata["finalizers"].as_array().is_none_or(Vec::is_empty)
        && value["spec"]["finalizers"]
            .as_array()
            .is_none_or(Vec::is_empty)
}
