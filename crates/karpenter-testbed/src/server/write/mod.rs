//! create, update and patch: one pipeline from a body to a stored object.
//!
//! 1. Decode: body → value of the served version; unknown fields are rejected, reported or dropped.
//! 2. Prepare: the fields that the server sets (uid, times, generation, the part of the object that the path may not write).
//! 3. Default and validate: per kind, or by the custom resource's schema.
//! 4. Track: managed fields.
//! 5. Commit on the revision that was read; after a conflict start over unless the client named a revision.

//!
//! | module | contents |
//! |---|---|
//! | `body` | validation of a body against the path of the request |
//! | `patch_kind` | application of patches |
//! | `carry` | fields that are kept as stored |
//! | `context` | user and time of a write |
//! | `admit` | defaults, rules and checks with other objects |

mod admit;
mod body;
mod carry;
pub(in crate::server) mod context;
mod patch_kind;

use std::sync::Arc;

use serde_json::{Value, json};

use super::ApiServer;
use super::catalog::Served;
use super::value::{name_of, object_of};
use crate::fields;
use crate::server::wire::error::{ApiError, Cause};
use crate::server::wire::reply::Reply;
use crate::server::wire::request::Call;
use crate::server::write::context::Context;
use crate::store::{Object, Rejected};
use body::{
    check_identity, check_kind, check_namespace, check_preconditions, has_revision, normalize,
};
use carry::{bump_generation, carry_halves, carry_metadata};
use patch_kind::{PatchKind, refused_apply};

pub(super) use carry::ready_to_go;

/// The result of a write.
#[derive(Debug)]
pub(super) struct Written {
    /// The object in the served version.
    pub value: Value,
    /// 200, or 201 for a new object.
    pub code: u16,
    /// Texts for warning headers.
    pub warnings: Vec<String>,
}

/// Number of retries after a conflict.
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

    /// Decodes a body as an object of the served kind.
    pub(super) fn decode(&self, served: &Served, call: &Call) -> Result<Value, ApiError> {
        let mut value = call.object()?;
        check_kind(served, &mut value)?;
        Ok(value)
    }

    pub(super) async fn create_value(
        &self,
        served: &Served,
        namespace: Option<&str>,
        mut value: Value,
        ctx: &Context,
    ) -> Result<Written, ApiError> {
        let mut warnings = Vec::new();
        normalize(served, &mut value, ctx, &mut warnings)?;
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
        normalize(served, &mut value, &ctx, &mut warnings)?;
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
        let creates = creates_on_update(served) && call.target.subresource.is_none();
        if creates && !named_revision && served.collection.get(&key).is_none() {
            let written = self
                .create_value(served, call.target.namespace.as_deref(), value, &ctx)
                .await?;
            return Ok(self.show(served, call, 201, &written.value));
        }
        let change = |object: &mut Value| {
            object.clone_from(&value);
            Ok(())
        };
        let value = self.modify(served, &key, name, &ctx, change).await?;
        Ok(self.show(served, call, 200, &value).with_warnings(warnings))
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
        let is_apply = kind == PatchKind::Apply && call.target.subresource.is_none();
        if is_apply && served.collection.get(&key).is_none() {
            return self.apply_new(served, call, name, patch, &ctx).await;
        }
        let mut warnings = Vec::new();
        let change = |object: &mut Value| {
            warnings.clear();
            let mut new = if kind == PatchKind::Apply {
                let mut config = patch.clone();
                check_kind(served, &mut config)?;
                check_identity(&config, object)?;
                normalize(served, &mut config, &ctx, &mut warnings)?;
                ctx.as_writer(served, |w| {
                    fields::apply(
                        Some(&*object),
                        &config,
                        &served.schema,
                        w,
                        call.options.force,
                    )
                })
                .map_err(refused_apply)?
            } else {
                kind.apply(served, object, &patch)?
            };
            if !new.is_object() {
                return Err(ApiError::bad_request("the patched object is not an object"));
            }
            check_kind(served, &mut new)?;
            check_identity(&new, object)?;
            normalize(served, &mut new, &ctx, &mut warnings)?;
            *object = new;
            Ok(())
        };
        let value = self.modify(served, &key, name, &ctx, change).await?;
        Ok(self.show(served, call, 200, &value).with_warnings(warnings))
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
        normalize(served, &mut value, ctx, &mut warnings)?;
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

    /// Passes a desired state through the rest of the pipeline; returns the object that is stored (or would be).
    pub(super) async fn finish_update(
        &self,
        served: &Served,
        current: &Arc<Object>,
        old: &Value,
        mut new: Value,
        ctx: &Context,
    ) -> Result<Value, Failed> {
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
        if !ready_to_go(&new) && fields::unchanged(old, &new) {
            return Ok(old.clone());
        }
        if !ctx.dry_run {
            self.commit(served, current, &mut new).await?;
        }
        Ok(new)
    }

    /// Stores the next state of an object, which gets its resource version, or removes the object if it is ready to go; returns
    /// whether it is gone.
    pub(super) async fn commit(
        &self,
        served: &Served,
        current: &Object,
        new: &mut Value,
    ) -> Result<bool, Failed> {
        let gone = ready_to_go(new);
        let mut stored = self.to_storage(served, new.clone()).await?;
        let (collection, revision) = (&served.collection, current.revision);
        let written = if gone {
            collection.remove(&current.key, revision, &mut stored)
        } else {
            collection.replace(&current.key, revision, served.edition, &mut stored)
        };
        match written {
            Ok(_) => {}
            Err(Rejected::Missing) => {
                return Err(ApiError::not_found(served, name_of(new)).into());
            }
            Err(_) => return Err(Failed::Raced),
        }
        new["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
        if gone {
            self.after_delete(served, &stored);
        } else {
            self.after_write(served, &stored);
        }
        Ok(gone)
    }

    /// Returns the object in its storage version.
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
}

/// The reason why a write failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// A concurrent write: retry.
    Raced,
    Refused(ApiError),
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

fn creates_on_update(served: &Served) -> bool {
    matches!(
        (served.group.as_str(), served.kind.as_str()),
        ("coordination.k8s.io", "Lease") | ("", "Event") | ("", "Endpoints")
    )
}
