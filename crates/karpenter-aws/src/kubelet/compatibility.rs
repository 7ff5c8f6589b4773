//! The kubelet's settings of v1beta1, which stood in the NodePool: they still count where a NodePool or NodeClaim carries them.
//!
//! UPSTREAM: pkg/utils/utils.go of v1.0, GetKubeletConfigurationWithNodePool, GetKubeletConfigurationWithNodeClaim

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::api::EC2NodeClass;

/// The class as it is for a NodePool or NodeClaim with this annotation
/// (`compatibility.karpenter.sh/v1beta1-kubelet-conversion`): with its kubelet's settings in place of the class'.
///
/// # Errors
/// When the annotation is no JSON object.
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
    // To whoever remembers by uid it is another class.
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
    fn settings_of_v1beta1_take_the_place_of_the_class_s() {
        let class = class();
        assert_eq!(*with_v1beta1(&class, None).unwrap(), class);
        let seen = with_v1beta1(&class, Some(r#"{"podsPerCore":2}"#)).unwrap();
        assert_eq!(json!(seen.spec.kubelet), json!({ "podsPerCore": 2 }));
        assert_ne!(seen.metadata.uid, class.metadata.uid);
        let none = with_v1beta1(&class, Some("{}")).unwrap();
        assert_eq!(json!(none.spec.kubelet), json!({}), "none are none");
        let same = with_v1beta1(&class, Some(r#"{"maxPods":100}"#)).unwrap();
        assert_eq!(same.metadata.uid.as_deref(), Some("u"));
    }

    #[test]
    fn settings_that_cannot_be_read_are_not_guessed() {
        for bad in ["", "broken", "[]", "3"] {
            assert!(with_v1beta1(&class(), Some(bad)).is_err(), "{bad}");
        }
    }
}
