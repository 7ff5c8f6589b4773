//! Objects that the testbed itself writes: loaded unchanged, and CRDs.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::ApiServer;
use super::catalog::Served;
use super::value::{name_of, object_of};
use crate::server::wire::error::ApiError;
use crate::server::write::context::{Context, timestamp};

impl ApiServer {
    /// Stores objects unchanged; see [`crate::Testbed::load`].
    pub(crate) fn load(&self, objects: impl IntoIterator<Item = Value>) -> usize {
        let kinds: HashMap<(String, String), Arc<Served>> = self
            .catalog
            .stored()
            .into_iter()
            .map(|served| ((served.api_version(), served.kind.clone()), served))
            .collect();
        let stored = objects.into_iter().filter_map(|mut object| {
            let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
            let served = kinds.get(&(text("apiVersion"), text("kind")))?;
            let namespace = object["metadata"]["namespace"].as_str();
            let key = served.key(namespace, name_of(&object));
            let metadata = object_of(&mut object, "metadata");
            metadata
                .entry("uid")
                .or_insert_with(|| self.identity.uid().into());
            metadata
                .entry("creationTimestamp")
                .or_insert_with(|| timestamp(self.clock.now()));
            metadata.entry("generation").or_insert_with(|| json!(1));
            let stored = served.collection.insert(&key, served.edition, &mut object);
            if let Some(owners) = self.owners.as_ref().filter(|_| stored.is_ok()) {
                owners.lock().written(served, &object);
            }
            stored.ok()
        });
        stored.count()
    }

    /// Creates or replaces a CRD.
    ///
    /// # Errors
    /// The error response to a client.
    pub async fn apply_crd(&self, mut crd: Value) -> kube::Result<()> {
        let refused = |error: ApiError| {
            let status = serde_json::from_value(error.status()).unwrap_or_default();
            kube::Error::Api(Box::new(status))
        };
        let Some(served) =
            self.catalog
                .find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        else {
            return Ok(());
        };
        let ctx = Context::internal("testbed", None, self.clock.now());
        let name = name_of(&crd).to_owned();
        if served.collection.get(&name).is_none() {
            return self
                .create_value(&served, None, crd, &ctx)
                .await
                .map(|_| ())
                .map_err(refused);
        }
        let spec = crd["spec"].take();
        self.modify(&served, &name, &name, &ctx, |old| {
            old["spec"] = spec.clone();
            Ok(())
        })
        .await
        .map(|_| ())
        .map_err(refused)
    }
}
