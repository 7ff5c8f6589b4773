//! Admission of manifests: structure and rules of the CustomResourceDefinitions, as by an API server.

use std::sync::LazyLock;

use karpenter_api::crd;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::InvalidPlan;

/// The checks of one kind.
struct Admission {
    schema: Value,
    structure: Option<jsonschema::Validator>,
}

impl Admission {
    fn new(definition: &Value) -> Self {
        let schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        let options = jsonschema::options().with_draft(jsonschema::Draft::Draft7);
        Self {
            structure: options.build(&schema).ok(),
            schema,
        }
    }

    /// Returns the object with its defaults, applied twice for defaults inside of defaulted objects.
    fn defaulted(&self, object: &Value) -> Value {
        let once = kube_cel::apply_defaults(&self.schema, object);
        kube_cel::apply_defaults(&self.schema, &once)
    }

    /// Returns the object with its defaults; `old` is the one that it replaces.
    fn admit(&self, of: &str, object: &Value, old: Option<&Value>) -> Result<Value, InvalidPlan> {
        if let Some(field) = unknown_field(&self.schema, object, "") {
            return Err(InvalidPlan::field(of, &field, "unknown field"));
        }
        let object = self.defaulted(object);
        let structure = self.structure.as_ref();
        if let Some(error) = structure.and_then(|checks| checks.iter_errors(&object).next()) {
            let field = dotted(error.instance_path().as_str());
            return Err(InvalidPlan::field(of, &field, error.to_string()));
        }
        let old = old.map(|old| self.defaulted(old));
        let checked = kube_cel::Validator::new().validate(&self.schema, &object, old.as_ref());
        match checked.map_err(|errors| errors.into_vec().into_iter().next()) {
            Err(Some(error)) => Err(InvalidPlan::field(of, &error.field_path, error.message)),
            _ => Ok(object),
        }
    }
}

/// Returns a JSON pointer as the API server writes a field: `/spec/limits/cpu` as `spec.limits.cpu`.
fn dotted(pointer: &str) -> String {
    let mut field = String::new();
    for part in pointer.split('/').filter(|part| !part.is_empty()) {
        let part = part.replace("~1", "/").replace("~0", "~");
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            field.push_str(&format!("[{part}]"));
        } else {
            if !field.is_empty() {
                field.push('.');
            }
            field.push_str(&part);
        }
    }
    field
}

/// Returns the first field that a schema does not have. `kubectl apply` refuses it, too.
fn unknown_field(schema: &Value, value: &Value, path: &str) -> Option<String> {
    let below = |name: &str| match path {
        "" => name.to_owned(),
        _ => format!("{path}.{name}"),
    };
    match value {
        Value::Object(map) => {
            let properties = schema["properties"].as_object();
            let others = &schema["additionalProperties"];
            let open = properties.is_none()
                || schema["x-kubernetes-preserve-unknown-fields"] == true
                || !others.is_null();
            map.iter().find_map(|(name, child)| {
                match properties.and_then(|known| known.get(name)) {
                    // An API server writes it.
                    Some(_) if path.is_empty() && (name == "metadata" || name == "status") => None,
                    Some(known) => unknown_field(known, child, &below(name)),
                    None if open => None,
                    None => Some(below(name)),
                }
            })
        }
        Value::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            unknown_field(&schema["items"], item, &format!("{path}[{index}]"))
        }),
        _ => None,
    }
}

fn admitted<T: DeserializeOwned>(
    admission: &Admission,
    of: &str,
    object: &Value,
    old: Option<&Value>,
) -> Result<T, InvalidPlan> {
    read(of, &admission.admit(of, object, old)?)
}

/// Reads an object of a built-in kind, whose structure is its type.
pub(super) fn read<T: DeserializeOwned>(of: &str, object: &Value) -> Result<T, InvalidPlan> {
    let read: Result<T, _> = serde_path_to_error::deserialize(object);
    read.map_err(|error| {
        let field = error.path().to_string();
        let field = if field == "." { "" } else { &field };
        InvalidPlan::field(of, field, error.inner().to_string())
    })
}

pub(super) fn node_pool<T: DeserializeOwned>(
    of: &str,
    object: &Value,
    old: Option<&Value>,
) -> Result<T, InvalidPlan> {
    static ADMISSION: LazyLock<Admission> = LazyLock::new(|| Admission::new(&crd::node_pool(&[])));
    admitted(&ADMISSION, of, object, old)
}

pub(super) fn node_overlay<T: DeserializeOwned>(
    of: &str,
    object: &Value,
    old: Option<&Value>,
) -> Result<T, InvalidPlan> {
    static ADMISSION: LazyLock<Admission> =
        LazyLock::new(|| Admission::new(&crd::node_overlay(&[])));
    admitted(&ADMISSION, of, object, old)
}

pub(super) fn capacity_buffer<T: DeserializeOwned>(
    of: &str,
    object: &Value,
) -> Result<T, InvalidPlan> {
    static ADMISSION: LazyLock<Admission> =
        LazyLock::new(|| Admission::new(&crd::capacity_buffer()));
    admitted(&ADMISSION, of, object, None)
}

#[cfg(test)]
mod tests {
    use karpenter_api::v1::NodePool;
    use serde_json::json;

    use super::*;

    fn pool(change: impl FnOnce(&mut Value)) -> Value {
        let mut pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default", "uid": "1" },
            "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "g", "kind": "K", "name": "n" },
                "requirements": [{ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] }],
            } } },
        });
        change(&mut pool);
        pool
    }

    fn refused(change: impl FnOnce(&mut Value)) -> (String, String) {
        let error = node_pool::<NodePool>("NodePool default", &pool(change), None).unwrap_err();
        (
            error.field_path().unwrap_or_default().to_owned(),
            error.to_string(),
        )
    }

    #[test]
    fn a_valid_node_pool_is_admitted_with_its_defaults() {
        let pool: NodePool = node_pool("NodePool default", &pool(|_| {}), None).unwrap();
        assert_eq!(pool.spec.disruption.budgets[0].nodes, "10%");
    }

    #[test]
    fn what_structure_or_rules_forbid_is_refused_with_its_field() {
        let (field, _) = refused(|pool| pool["spec"]["weight"] = json!(101));
        assert_eq!(field, "spec.weight");
        let (field, _) =
            refused(|pool| pool["spec"]["disruption"]["budgets"] = json!([{ "nodes": "lots" }]));
        assert_eq!(field, "spec.disruption.budgets[0].nodes");
        let (field, error) = refused(|pool| {
            pool["spec"]["disruption"]["budgets"] = json!([{ "nodes": "1", "schedule": "@daily" }]);
        });
        assert_eq!(field, "spec.disruption.budgets");
        assert!(
            error.contains("'schedule' must be set with 'duration'"),
            "{error}"
        );
        let (field, error) = refused(|pool| pool["spec"]["limit"] = json!({ "cpu": "1" }));
        assert_eq!(
            (field.as_str(), error.as_str()),
            (
                "spec.limit",
                "invalid NodePool default: spec.limit: unknown field"
            )
        );
        let (field, _) =
            refused(|pool| pool["spec"]["template"]["spec"]["requirements"][0]["vals"] = json!([]));
        assert_eq!(field, "spec.template.spec.requirements[0].vals");
    }

    #[test]
    fn a_rule_about_the_replaced_object_is_checked() {
        let old = pool(|pool| pool["spec"]["replicas"] = json!(2));
        let error =
            node_pool::<NodePool>("NodePool default", &pool(|_| {}), Some(&old)).unwrap_err();
        assert_eq!(error.field_path(), Some("spec"));
        assert!(
            error.to_string().contains("Cannot transition NodePool"),
            "{error}"
        );
    }
}
