//! Admission of a write: defaults, rules, and checks with other objects.

use serde_json::{Value, json};

use super::super::catalog::Served;
use super::super::value::name_of;
use super::super::{ApiServer, admission};
use crate::server::wire::error::ApiError;
use crate::server::write::context::Context;

impl ApiServer {
    pub(super) fn admit_create(
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

    /// Applies to a pod the settings of other objects.
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
            // The two system classes are never the default.
            let classes = classes.collection.all(None);
            classes
                .iter()
                .filter(|o| !o.name().starts_with("system-"))
                .map(|o| o.value())
                .find(|c| c["globalDefault"] == true)
        };
        admission::resolve_priority(pod, find, default)
            .map_err(|why| ApiError::forbidden(served, &name, &why))
    }

    pub(super) fn admit_update(
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

    pub(super) fn check_namespace_exists(
        &self,
        served: &Served,
        namespace: &str,
    ) -> Result<(), ApiError> {
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
