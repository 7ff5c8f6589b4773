//! An object of a list or a watch, or the reason why it cannot be parsed.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Like `kube::core::DeserializeGuard`, but it names the invalid field, and does not copy the object for that.
#[derive(Debug, Clone)]
pub(crate) struct Guarded<K>(pub Result<K, Unreadable>);

/// An object that cannot be parsed.
#[derive(Debug, Clone)]
pub(crate) struct Unreadable {
    pub metadata: ObjectMeta,
    /// The error, with the path of its field.
    pub error: String,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        if let Ok(read) = K::deserialize(&object) {
            return Ok(Self(Ok(read)));
        }
        // Tracking the path is expensive, so only objects that cannot be parsed pay for it.
        Ok(Self(match serde_path_to_error::deserialize(&object) {
            Ok(read) => Ok(read),
            Err(wrong) => Err(Unreadable {
                metadata: ObjectMeta::deserialize(&object["metadata"]).map_err(Error::custom)?,
                error: wrong.to_string(),
            }),
        }))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unreadable) => &mut unreadable.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use karpenter_api::v1::NodePool;
    use serde_json::json;

    use super::*;

    fn read(object: Value) -> Guarded<NodePool> {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn an_object_that_cannot_be_parsed_names_its_field_and_keeps_its_metadata() {
        let pool = |requirement: Value| {
            json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "general" },
                "spec": { "template": { "spec": {
                    "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                    "requirements": [{ "key": "a", "operator": "Exists" }, requirement],
                } } },
            })
        };
        let bad = read(pool(json!({ "key": "b", "operator": "In", "values": "c" })));
        assert_eq!(bad.meta().name.as_deref(), Some("general"));
        assert_eq!(
            bad.0.unwrap_err().error,
            r#"spec.template.spec.requirements[1].values: invalid type: string "c", expected a sequence"#
        );
        let good = read(pool(
            json!({ "key": "b", "operator": "In", "values": ["c"] }),
        ));
        assert_eq!(good.0.unwrap().spec.template.spec.requirements.len(), 2);
    }

    #[test]
    fn an_object_whose_name_cannot_be_read_is_an_error_of_the_list() {
        let nameless = json!({ "metadata": { "name": 3 }, "spec": 1 });
        assert!(serde_json::from_value::<Guarded<NodePool>>(nameless).is_err());
    }
}
