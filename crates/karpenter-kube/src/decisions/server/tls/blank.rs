//! Blanks the names of objects in namespaces that a user may not see. Amounts, reasons and names of the user's own objects stay.
//!
//! Answers name objects in three ways: as fields `namespace` and `name`, as `namespace/name` in texts, and as `-n namespace` in
//! commands. A text that names such an object is blanked as a whole: what else it names may be of the same namespace. Where it is
//! not clear whether a word is a namespace, it is blanked.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// What is written in place of a name.
pub(super) const OTHER: &str = "(other namespace)";

/// Fields that say what an object is, not which.
const KEPT: [&str; 4] = ["kind", "apiVersion", "id", "reason"];

/// Fields with names without their namespace, which is that of the field `pod` beside them.
const OF_POD: [&str; 2] = ["budget", "budgets"];

/// What is before the name of a namespace in commands and sentences.
const BEFORE: [&str; 6] = [
    "-n ",
    "--namespace ",
    "--namespace=",
    "namespace ",
    "namespace \"",
    "namespace=",
];

/// Returns the namespaces that a value mentions: those in fields `namespace`, and `known` ones in texts.
pub(super) fn mentioned(value: &Value, known: &BTreeSet<&str>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect(value, known, &mut found);
    found
}

fn collect(value: &Value, known: &BTreeSet<&str>, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(namespace) = namespace(fields) {
                found.insert(namespace.to_owned());
            }
            for value in fields.values() {
                collect(value, known, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, known, found)),
        Value::String(text) => {
            for word in words(text) {
                if known.contains(word) {
                    found.insert(word.to_owned());
                }
            }
        }
        _ => {}
    }
}

/// Blanks what a value says about objects in these namespaces.
pub(super) fn blank(value: &mut Value, hidden: &BTreeSet<String>) {
    if hidden.is_empty() {
        return;
    }
    match value {
        Value::Object(fields) => {
            if namespace(fields).is_some_and(|namespace| hidden.contains(namespace)) {
                for (name, value) in fields.iter_mut() {
                    if !KEPT.contains(&name.as_str()) {
                        blank_all(value);
                    }
                }
                return;
            }
            let pod = fields.get("pod").and_then(Value::as_str);
            if pod.is_some_and(|pod| names_hidden(pod, hidden)) {
                for name in OF_POD {
                    if let Some(value) = fields.get_mut(name) {
                        blank_all(value);
                    }
                }
            }
            fields.values_mut().for_each(|value| blank(value, hidden));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| blank(value, hidden)),
        Value::String(text) if names_hidden(text, hidden) => OTHER.clone_into(text),
        _ => {}
    }
}

/// Blanks all texts of an object.
fn blank_all(value: &mut Value) {
    match value {
        Value::String(text) => OTHER.clone_into(text),
        Value::Array(values) => values.iter_mut().for_each(blank_all),
        Value::Object(fields) => fields.values_mut().for_each(blank_all),
        _ => {}
    }
}

fn namespace(fields: &Map<String, Value>) -> Option<&str> {
    fields.get("namespace")?.as_str()
}

/// Reports whether a character can be in the name of an object.
fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.')
}

/// The words of a text that may be names of namespaces.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !in_name(c)).filter(|word| !word.is_empty())
}

/// Reports whether a text names an object in one of these namespaces.
fn names_hidden(text: &str, hidden: &BTreeSet<String>) -> bool {
    if !words(text).any(|word| hidden.contains(word)) {
        return false;
    }
    let after = BEFORE.iter().any(|before| {
        text.match_indices(before).any(|(at, _)| {
            let rest = text.get(at + before.len()..).unwrap_or_default();
            words(rest).next().is_some_and(|word| hidden.contains(word))
        })
    });
    let mut paths = text.split(|c| !in_name(c) && c != '/');
    after
        || paths.any(|path| path.contains('/') && path.split('/').any(|part| hidden.contains(part)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn blanked(mut value: Value) -> Value {
        let known = BTreeSet::from(["shop", "pay", "default"]);
        let mut hidden = mentioned(&value, &known);
        hidden.remove("shop");
        blank(&mut value, &hidden);
        value
    }

    #[test]
    fn names_in_other_namespaces_are_blanked_in_fields_texts_and_commands() {
        let answer = json!({
            "kind": "PodExplanation",
            "metadata": { "namespace": "shop", "name": "web-1" },
            "nodePool": "default",
            "amount": 3,
            "blockers": [
                { "id": "Pdb", "text": "PodDisruptionBudget pay/ledger allows none" },
                { "parameters": { "pod": "pay/ledger-0", "budget": "ledger", "more": 2 } },
                { "parameters": { "pod": "shop/web-0", "budget": "web" } },
                { "kind": "Pod", "namespace": "pay", "name": "ledger-0", "count": 2, "owner": { "name": "ledger" } },
                { "kind": "Pod", "namespace": "kube-system", "name": "dns" },
            ],
            "owners": ["Deployment/pay/ledger", "Deployment/shop/web"],
            "commands": [
                "kubectl patch deployment -n pay ledger --type json -p '[]'",
                "kubectl patch deployment -n shop web --type json -p '[]'",
                "kubectl patch nodepool default -p '[]'",
            ],
        });
        let expected = json!({
            "kind": "PodExplanation",
            "metadata": { "namespace": "shop", "name": "web-1" },
            "nodePool": "default",
            "amount": 3,
            "blockers": [
                { "id": "Pdb", "text": OTHER },
                { "parameters": { "pod": OTHER, "budget": OTHER, "more": 2 } },
                { "parameters": { "pod": "shop/web-0", "budget": "web" } },
                { "kind": "Pod", "namespace": OTHER, "name": OTHER, "count": 2, "owner": { "name": OTHER } },
                { "kind": "Pod", "namespace": OTHER, "name": OTHER },
            ],
            "owners": [OTHER, "Deployment/shop/web"],
            "commands": [
                OTHER,
                "kubectl patch deployment -n shop web --type json -p '[]'",
                "kubectl patch nodepool default -p '[]'",
            ],
        });
        assert_eq!(blanked(answer), expected);
    }

    #[test]
    fn labels_with_a_slash_stay_and_no_text_breaks_it() {
        for text in [
            "incompatible requirements: key topology.kubernetes.io/zone not in [z1]",
            "",
            "/",
            "-n ",
            "ä/pay/ö",
            "namespace",
            "default",
        ] {
            let value = blanked(json!({ "text": text }));
            if text.contains("pay") {
                assert!(!value.to_string().contains("pay"), "{value}");
            } else {
                assert_eq!(value["text"], text);
            }
        }
    }
}
