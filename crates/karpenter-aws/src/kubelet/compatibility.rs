//! Kubelet settings of v1beta1, which were part of the NodePool. They still apply where a NodePool or NodeClaim carries
//! them in an annotation.
//!
//! UPSTREAM: pkg/utils/utils.go of v1.0, GetKubeletConfigurationWithNodePool, GetKubeletConfigurationWithNodeClaim

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::api::EC2NodeClass;

/// Returns the class with the kubelet settings of a NodePool's or NodeClaim's annotation
/// (`compatibility.karpenter.sh/v1beta1-kubelet-conversion`) in place of its own.
///
/// # Errors
/// If the annotation is not a JSON object.
pub fn with_v1beta1<'a>(
    class: &'a EC2NodeClass,
    annotation: Option<&str>,
) -> Result<Cow<'a, EC2NodeClass>, serde_json::Error> {
    let Some(text) = annotation else {
        return Ok(Cow::Borrowed(class));
    };
    let kubelet: Map<String, Value> = serde_json::from_str(text)?;
    if class.spec.kubelet.as_ref() == Some(&kubelet) {
        return Ok(Cow::Borrowed(class));
    }
    let mut class = class.clone();
    // Caches are keyed by uid; a class with other settings needs its own entries.
    let uid = class.metadata.uid.get_or_insert_default();
    uid.push('/');
    uid.push_str(text);
    class.spec.kubelet = Some(kubelet);
    Ok(Cow::Owned(class))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class() -> EC2NodeClass {
        serde_json::from_value(json!({
            "metadata": { "name": "default", "uid": "u" },
            "spec": { "kubelet": { "maxPods": 100 }, "amiSelectorTerms": [], "subnetSelectorTerms": [], "securityGroupSelectorTerms": [] },
        }))
        .unwrap()
    }

    #[test]
    fn settings_of_v1beta1_replace_those_of_the_class() {
        let class = class();
        assert_eq!(*with_v1beta1(&class, None).unwrap(), class);
        let seen = with_v1beta1(&class, Some(r#"{"podsPerCore":2}"#)).unwrap();
        assert_eq!(json!(seen.spec.kubelet), json!({ "podsPerCore": 2 }));
        assert_ne!(seen.metadata.uid, class.metadata.uid);
        let none = with_v1beta1(&class, Some("{}")).unwrap();
        assert_eq!(
            json!(none.spec.kubelet),
            json!({}),
            "empty settings replace, too"
        );
        let same = with_v1beta1(&class, Some(r#"{"maxPods":100}"#)).unwrap();
        assert_eq!(same.metadata.uid.as_deref(), Some("u"));
    }

    #[test]
    fn settings_that_cannot_be_parsed_are_an_error() {
        for bad in ["", "broken", "[]", "3"] {
            assert!(with_v1beta1(&class(), Some(bad)).is_err(), "{bad}");
        }
    }
}
