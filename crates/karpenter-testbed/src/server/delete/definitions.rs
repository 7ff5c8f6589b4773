//! Deletion of CustomResourceDefinitions: their objects are deleted first, each with its finalizers, and watches report their
//! deletion.
//!
//! UPSTREAM: apiextensions-apiserver pkg/controller/finalizer/crd_finalizer.go, pkg/registry/customresourcedefinition/etcd.go

use std::sync::Arc;

use serde_json::{Value, json};

use crate::server::ApiServer;
use crate::server::catalog::Served;
use crate::server::delete::DeleteOptions;
use crate::server::value::{map_of, object_of};
use crate::server::wire::error::ApiError;
use crate::server::write::context::{Context, timestamp};

const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Adds the finalizer of a CRD that is being deleted, so that its objects are deleted first.
pub(in crate::server) fn begin_termination(definition: &mut Value, ctx: &Context) {
    let finalizers = object_of(definition, "metadata")
        .entry("finalizers")
        .or_insert_with(|| json!([]));
    if let Some(finalizers) = finalizers.as_array_mut()
        && !finalizers.iter().any(|finalizer| finalizer == FINALIZER)
    {
        finalizers.push(FINALIZER.into());
    }
    let condition = json!({
        "type": "Terminating",
        "status": "True",
        "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will be initiated as soon as possible",
        "lastTransitionTime": timestamp(ctx.now),
    });
    let conditions = object_of(definition, "status")
        .entry("conditions")
        .or_insert_with(|| json!([]));
    if let Some(conditions) = conditions.as_array_mut() {
        conditions.retain(|condition| condition["type"] != "Terminating");
        conditions.push(condition);
    }
}

impl ApiServer {
    /// Rejects new objects of a CRD that is being deleted.
    ///
    /// # Errors
    /// 405, as the real server.
    pub(in crate::server) fn check_definition_stays(
        &self,
        served: &Served,
    ) -> Result<(), ApiError> {
        match &served.custom {
            Some(custom) if self.terminating_definition(&custom.crd).is_some() => {
                Err(ApiError::create_not_allowed(
                    "create not allowed while custom resource definition is terminating",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Continues the deletion of a CRD, in the background, if it is being deleted.
    pub(in crate::server) fn clean_up_if_terminating(&self, definition: &str) {
        if self.terminating_definition(definition).is_some() {
            let server = self.clone();
            let definition = definition.to_owned();
            tokio::spawn(async move { server.clean_up(&definition).await });
        }
    }

    fn terminating_definition(&self, name: &str) -> Option<Arc<Served>> {
        let definitions =
            self.catalog
                .find("apiextensions.k8s.io", "v1", "customresourcedefinitions")?;
        definitions
            .collection
            .get(name)
            .is_some_and(|definition| definition.is_terminating())
            .then_some(definitions)
    }

    /// Deletes a CRD's objects, and removes its finalizer once none is left.
    async fn clean_up(&self, definition: &str) {
        let ctx = Context::internal("crd-finalizer", None, self.clock.now());
        let served = self
            .catalog
            .stored()
            .into_iter()
            .find(|s| s.custom.as_ref().is_some_and(|c| c.crd == definition));
        if let Some(served) = served {
            for object in served.collection.all(None) {
                if !object.is_terminating() {
                    // After an error an object is left.
                    let _ = self
                        .delete_key(
                            &served,
                            &object.key,
                            object.name(),
                            &DeleteOptions::default(),
                            &ctx,
                        )
                        .await;
                }
            }
            if !served.collection.all(None).is_empty() {
                return;
            }
        }
        let Some(definitions) = self.terminating_definition(definition) else {
            return;
        };
        // An object may already be deleted.
        let _ = self
            .modify(&definitions, definition, definition, &ctx, |object| {
                if let Some(finalizers) = map_of(&mut object["metadata"])
                    .get_mut("finalizers")
                    .and_then(Value::as_array_mut)
                {
                    finalizers.retain(|finalizer| finalizer != FINALIZER);
                }
                Ok(())
            })
            .await;
    }
}
