//! Carries the fields that translation alone would lose in an annotation: a list of paths, each with the value that translation
//! gives (`from`) and that of the other version (`to`). An absent value is `null`, which objects of the API server do not have.
//!
//! A list is one value. Only spec, labels and annotations are compared: the API server uses the other metadata of the stored
//! object, and the status has the same schema in both versions.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One path at which translation alone gives another value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    path: Vec<String>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    from: Value,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    to: Value,
}

const PARTS: [&[&str]; 3] = [
    &["spec"],
    &["metadata", "labels"],
    &["metadata", "annotations"],
];

/// Parses an annotation; returns `None` if it is malformed.
pub(super) fn read(annotation: &str) -> Option<Vec<Entry>> {
    serde_json::from_str(annotation).ok()
}

/// Returns the difference of `from` and `to` as the text of the annotation, or `None` if they are equal.
pub(super) fn difference(from: &Value, to: &Value) -> Option<String> {
    let mut entries = Vec::new();
    for part in PARTS {
        let mut path: Vec<String> = part.iter().map(|key| (*key).to_owned()).collect();
        compare(get(from, &path), get(to, &path), &mut path, &mut entries);
    }
    if entries.is_empty() {
        return None;
    }
    serde_json::to_string(&entries).ok()
}

fn compare(from: &Value, to: &Value, path: &mut Vec<String>, entries: &mut Vec<Entry>) {
    if from == to {
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        entries.push(Entry {
            path: path.clone(),
            from: from.clone(),
            to: to.clone(),
        });
        return;
    };
    let added = new.keys().filter(|key| !old.contains_key(*key));
    let mut keys: Vec<&String> = old.keys().chain(added).collect();
    keys.sort();
    for key in keys {
        path.push(key.clone());
        let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
        compare(&of(old), &of(new), path, entries);
        path.pop();
    }
}

fn get<'a>(value: &'a Value, path: &[String]) -> &'a Value {
    path.iter()
        .fold(value, |value, key| value.get(key).unwrap_or(&Value::Null))
}

/// Applies the entries where the object still has the values that translation gave.
pub(super) fn apply(entries: &[Entry], object: &mut Value) {
    for entry in entries {
        let allowed = PARTS.iter().any(|part| {
            entry.path.len() >= part.len() && part.iter().zip(&entry.path).all(|(a, b)| a == b)
        });
        if !allowed || *get(object, &entry.path) != entry.from {
            continue;
        }
        let Some((last, parents)) = entry.path.split_last() else {
            continue;
        };
        let parent = parents
            .iter()
            .try_fold(&mut *object, |value, key| value.get_mut(key))
            .and_then(Value::as_object_mut);
        let Some(parent) = parent else { continue };
        match &entry.to {
            Value::Null => {
                parent.remove(last);
            }
            value => {
                parent.insert(last.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn applying_the_difference_results_in_the_other_object() {
        let from = json!({ "spec": { "a": 1, "b": { "c": [1], "d": 2 }, "gone": true, "e": {} } });
        let to = json!({
            "spec": { "a": 1, "b": { "c": [1, 2], "d": 2 }, "new": { "x": {} }, "e": {} },
            "metadata": { "annotations": { "k/v": "1" } },
        });
        let text = difference(&from, &to).unwrap();
        let mut object = from.clone();
        object["metadata"] = json!({});
        apply(&read(&text).unwrap(), &mut object);
        assert_eq!(object, to);
        assert_eq!(difference(&from, &from), None);
    }

    #[test]
    fn an_edit_overrides_a_carried_value() {
        let entries = read(r#"[{"path":["spec","a"],"from":1,"to":2}]"#).unwrap();
        let mut edited = json!({ "spec": { "a": 3 } });
        apply(&entries, &mut edited);
        assert_eq!(edited["spec"]["a"], 3);
    }

    #[test]
    fn entries_change_no_other_part_of_the_object() {
        let entries =
            read(r#"[{"path":["metadata","name"],"from":"a","to":"b"},{"path":["status"],"to":1},{"path":[],"to":1}]"#)
                .unwrap();
        let mut object = json!({ "metadata": { "name": "a" } });
        apply(&entries, &mut object);
        assert_eq!(object, json!({ "metadata": { "name": "a" } }));
        assert_eq!(read("not ours"), None);
    }
}
