//! Validation of metadata.

use serde_json::Value;

use super::super::names;
use crate::server::wire::error::Cause;

/// Maximum total size of an object's annotations in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Checks labels, annotations, finalizers and owner references.
pub fn validate(object: &Value, causes: &mut Vec<Cause>) {
    let metadata = &object["metadata"];
    labels(&metadata["labels"], "metadata.labels", causes);
    let mut size = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        if let Some(why) = names::qualified_name(&key.to_ascii_lowercase()) {
            causes.push(Cause::invalid(
                "metadata.annotations",
                &key.as_str().into(),
                &why,
            ));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > MAX_ANNOTATIONS {
        causes.push(Cause {
            reason: "FieldValueTooLong",
            message: format!("Too long: may not be more than {MAX_ANNOTATIONS} bytes"),
            field: "metadata.annotations".to_owned(),
        });
    }
    for finalizer in metadata["finalizers"].as_array().into_iter().flatten() {
        let text = finalizer.as_str().unwrap_or_default();
        if let Some(why) = names::qualified_name(text) {
            causes.push(Cause::invalid("metadata.finalizers", finalizer, &why));
        }
    }
    owners(&metadata["ownerReferences"], causes);
}

/// Checks a map of labels.
pub fn labels(labels: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        if let Some(why) = names::qualified_name(key) {
            causes.push(Cause::invalid(path, &key.as_str().into(), &why));
        }
        if let Some(why) = names::label_value(value.as_str().unwrap_or_default()) {
            causes.push(Cause::invalid(path, value, &why));
        }
    }
}

fn owners(owners: &Value, causes: &mut Vec<Cause>) {
    let path = "metadata.ownerReferences";
    let mut controllers = 0;
    for (i, owner) in owners.as_array().into_iter().flatten().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                causes.push(Cause::invalid(
                    format!("{path}[{i}].{field}"),
                    &"".into(),
                    "must not be empty",
                ));
            }
        }
        controllers += usize::from(owner["controller"] == true);
    }
    if controllers > 1 {
        causes.push(Cause::invalid(
            path,
            owners,
            "Only one reference can have Controller set to true",
        ));
    }
}

/// Finalizers cannot be added to an object that is being deleted.
pub fn validate_change(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    if !old["metadata"]["deletionTimestamp"].is_string() {
        return;
    }
    let had = old["metadata"]["finalizers"].as_array();
    let added: Vec<String> = new["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|f| had.is_none_or(|had| !had.contains(f)))
        .map(Value::to_string)
        .collect();
    if !added.is_empty() {
        causes.push(Cause::forbidden(
            "metadata.finalizers",
            &format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            ),
        ));
    }
}
