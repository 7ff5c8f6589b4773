//! Admission by an API server with these CustomResourceDefinitions: recordings of a real one, and tests of each rule.

#![expect(
    clippy::disallowed_methods,
    reason = "recordings and examples are files"
)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failing test panics"
)]

mod definitions;
mod examples;
mod node_claim;
mod node_pool;
mod others;
mod recordings;

use karpenter_api::crd;
use serde_json::{Value, json};

/// The admission of one kind: structure by jsonschema, rules and defaults by kube-cel.
struct Admission {
    schema: Value,
    structure: jsonschema::Validator,
}

impl Admission {
    fn new(definition: &Value) -> Self {
        let schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        let options = jsonschema::options().with_draft(jsonschema::Draft::Draft7);
        let structure = options
            .build(&schema)
            .expect("a definition holds a JSON schema");
        Self { schema, structure }
    }

    fn node_pool() -> Self {
        Self::new(&crd::node_pool(&[]))
    }

    fn node_claim() -> Self {
        Self::new(&crd::node_claim(&[]))
    }

    fn node_overlay() -> Self {
        Self::new(&crd::node_overlay(&[]))
    }

    fn capacity_buffer() -> Self {
        Self::new(&crd::capacity_buffer())
    }

    /// Returns the object with the defaults of the schema, applied twice for defaults inside of defaulted objects.
    fn defaulted(&self, object: &Value) -> Value {
        kube_cel::apply_defaults(
            &self.schema,
            &kube_cel::apply_defaults(&self.schema, object),
        )
    }

    /// Returns why the object is rejected, or nothing if it is admitted. Rules are skipped if the structure is invalid.
    fn refusals(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let object = self.defaulted(object);
        let structure = self.structure.iter_errors(&object);
        let structure = structure.map(|error| format!("{}: {error}", error.instance_path()));
        let structure: Vec<_> = structure.collect();
        if !structure.is_empty() {
            return structure;
        }
        let old = old.map(|old| self.defaulted(old));
        let refused = kube_cel::Validator::new().validate(&self.schema, &object, old.as_ref());
        let errors = refused.err().map(|errors| errors.into_vec());
        let messages = errors.into_iter().flatten().map(|error| error.message);
        messages.collect()
    }

    #[track_caller]
    fn accepts(&self, object: &Value) {
        assert_eq!(self.refusals(object, None), [""; 0], "{object}");
    }

    #[track_caller]
    fn refuses(&self, object: &Value) {
        assert_ne!(self.refusals(object, None), [""; 0], "{object}");
    }

    #[track_caller]
    fn takes(&self, object: &Value, accepted: bool) {
        match accepted {
            true => self.accepts(object),
            false => self.refuses(object),
        }
    }

    #[track_caller]
    fn refuses_with(&self, object: &Value, message: &str) {
        let refusals = self.refusals(object, None);
        assert!(
            refusals.iter().any(|refusal| refusal.contains(message)),
            "{refusals:?} for {object}"
        );
    }
}

/// Returns `object` with the value at a path like `spec.template.spec` replaced, or removed for `null`.
fn with(mut object: Value, path: &str, value: Value) -> Value {
    let (parents, field) = path.rsplit_once('.').expect("a path of several fields");
    let parent = parents
        .split('.')
        .fold(&mut object, |object, field| &mut object[field]);
    if value.is_null() {
        parent.as_object_mut().expect("an object").remove(field);
    } else {
        parent[field] = value;
    }
    object
}

fn reference() -> Value {
    json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" })
}

fn pool() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
        "spec": { "template": { "spec": { "nodeClassRef": reference(), "requirements": [] } } },
    })
}

fn claim() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": "default-abcde" },
        "spec": { "nodeClassRef": reference(), "requirements": [] },
    })
}
