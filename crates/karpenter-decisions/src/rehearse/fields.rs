//! Renders the difference of two objects: the changed fields, long values shortened around the change.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

/// The number of fields that are rendered.
const FIELDS: usize = 6;
/// The number of added, and of removed, elements of a list that are rendered.
const ELEMENTS: usize = 3;
/// The number of characters of a value that are rendered.
const MAX_TEXT: usize = 60;
/// The number of characters before the first difference that are rendered.
const CONTEXT: usize = 10;
/// Fields that identify an element of a list.
const IDENTITIES: [&str; 2] = ["key", "name"];

/// Returns the fields that differ, with both values.
pub(super) fn changed_fields(old: &Value, new: &Value) -> String {
    let mut found = Vec::new();
    compare("spec", old, new, &mut found);
    let more = found.len().saturating_sub(FIELDS);
    found.truncate(FIELDS);
    if more > 0 {
        found.push(format!("and {more} more"));
    }
    match found.is_empty() {
        true => "changed".to_owned(),
        false => found.join(", "),
    }
}

fn compare(path: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let (a, b) = (a.get(key), b.get(key));
                let (a, b) = (a.unwrap_or(&Value::Null), b.unwrap_or(&Value::Null));
                compare(&format!("{path}.{key}"), a, b, found);
            }
        }
        (Value::Array(a), Value::Array(b)) => elements(path, a, b, found),
        _ => {
            let (old, new) = pair(&text(old), &text(new));
            found.push(format!("{path} {old} -> {new}"));
        }
    }
}

/// Returns the elements of `all` that are not in `other`, each as often as it is missing there.
fn missing<'a>(all: &'a [Value], other: &[Value]) -> Vec<&'a Value> {
    let mut left: Vec<&Value> = other.iter().collect();
    let mut found = Vec::new();
    for value in all {
        match left.iter().position(|it| *it == value) {
            Some(at) => drop(left.swap_remove(at)),
            None => found.push(value),
        }
    }
    found
}

/// Returns what identifies an element of a list, if it has such a field.
fn identity(value: &Value) -> Option<&str> {
    let found = IDENTITIES.iter().filter_map(|field| value.get(field));
    found.filter_map(Value::as_str).next()
}

fn elements(path: &str, old: &[Value], new: &[Value], found: &mut Vec<String>) {
    let (mut gone, mut added) = (missing(old, new), missing(new, old));
    if gone.is_empty() && added.is_empty() {
        found.push(format!("{path} in another order"));
        return;
    }
    // An element that both lists have once is rendered by its fields.
    let only = |all: &[&Value], id: &str| {
        let mut with = all
            .iter()
            .enumerate()
            .filter(|(_, it)| identity(it) == Some(id));
        let first = with.next().map(|(at, _)| at);
        first.filter(|_| with.next().is_none())
    };
    let ids: BTreeSet<&str> = gone.iter().filter_map(|it| identity(it)).collect();
    for id in ids {
        if let (Some(was), Some(is)) = (only(&gone, id), only(&added, id)) {
            let (was, is) = (gone.remove(was), added.remove(is));
            compare(&format!("{path}[{id}]"), was, is, found);
        }
    }
    let mut changes = String::new();
    for (sign, all) in [('-', gone), ('+', added)] {
        for value in all.iter().take(ELEMENTS) {
            let _ = write!(changes, " {sign}{}", cut(&text(value), 0));
        }
        let more = all.len().saturating_sub(ELEMENTS);
        if more > 0 {
            let _ = write!(changes, " {sign}{more} more");
        }
    }
    if !changes.is_empty() {
        found.push(format!("{path}{changes}"));
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "unset".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns both texts, and of long ones the part that begins shortly before the first difference.
fn pair(old: &str, new: &str) -> (String, String) {
    let is_long = |text: &str| text.chars().count() > MAX_TEXT;
    let from = match is_long(old) || is_long(new) {
        false => 0,
        true => {
            let same = old.chars().zip(new.chars());
            let same = same.take_while(|(a, b)| a == b).count();
            same.saturating_sub(CONTEXT)
        }
    };
    (cut(old, from), cut(new, from))
}

/// Returns at most [`MAX_TEXT`] characters of a text, from the given one on.
fn cut(text: &str, from: usize) -> String {
    let before = if from > 0 { "…" } else { "" };
    let shown: String = text.chars().skip(from).take(MAX_TEXT).collect();
    let after = match text.chars().count() > from + MAX_TEXT {
        true => "…",
        false => "",
    };
    format!("{before}{shown}{after}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn requirement(key: &str, values: &[&str]) -> Value {
        json!({ "key": key, "operator": "In", "values": values })
    }

    #[test]
    fn a_long_field_is_shortened_to_what_differs() {
        let types = [
            "c5.large",
            "c6i.large",
            "c7i.large",
            "m5.large",
            "m6i.large",
        ];
        let more: Vec<&str> = types.iter().copied().chain(["m7i.large"]).collect();
        let both = [
            requirement("karpenter.sh/capacity-type", &["on-demand", "spot"]),
            requirement("kubernetes.io/arch", &["amd64", "arm64"]),
            requirement("kubernetes.io/os", &["linux"]),
        ];
        let with = |more: &[Value]| {
            let all = [&both[..], more].concat();
            json!({ "requirements": all })
        };
        let old = with(&[requirement("node.kubernetes.io/instance-type", &types)]);
        for (new, rendered) in [
            (
                with(&[requirement("node.kubernetes.io/instance-type", &more)]),
                "spec.requirements[node.kubernetes.io/instance-type].values +m7i.large",
            ),
            (
                with(&[requirement("node.kubernetes.io/instance-type", &types[2..])]),
                "spec.requirements[node.kubernetes.io/instance-type].values -c5.large -c6i.large",
            ),
            (
                with(&[]),
                r#"spec.requirements -{"key":"node.kubernetes.io/instance-type","operator":"In","v…"#,
            ),
            (
                with(&[
                    requirement("node.kubernetes.io/instance-type", &types),
                    requirement("team", &["red"]),
                ]),
                r#"spec.requirements +{"key":"team","operator":"In","values":["red"]}"#,
            ),
        ] {
            assert_eq!(changed_fields(&old, &new), rendered);
        }
        let numbers = |range: std::ops::Range<u32>| json!({ "list": range.collect::<Vec<_>>() });
        assert_eq!(
            changed_fields(&numbers(0..9), &numbers(5..6)),
            "spec.list -0 -1 -2 -5 more"
        );
        assert_eq!(
            changed_fields(&json!({ "list": [1, 2] }), &json!({ "list": [2, 1] })),
            "spec.list in another order"
        );
        // The same element twice is no longer there twice.
        assert_eq!(
            changed_fields(&json!({ "list": [1, 1] }), &json!({ "list": [1] })),
            "spec.list -1"
        );
    }

    #[test]
    fn long_texts_begin_shortly_before_their_first_difference() {
        let long = "a".repeat(80);
        let (old, new) = (format!("{long}, then red"), format!("{long}, then blue"));
        assert_eq!(
            changed_fields(&json!({ "text": old }), &json!({ "text": new })),
            "spec.text …aaa, then red -> …aaa, then blue"
        );
        // One begins with the other.
        assert_eq!(
            changed_fields(
                &json!({ "text": long }),
                &json!({ "text": format!("{long}!") })
            ),
            "spec.text …aaaaaaaaaa -> …aaaaaaaaaa!"
        );
        let new = "b".repeat(200);
        let rendered = changed_fields(&json!({}), &json!({ "text": new }));
        assert_eq!(rendered, format!("spec.text unset -> {}…", "b".repeat(60)));
    }

    #[test]
    fn short_fields_have_both_values_and_many_are_counted() {
        let old = json!({ "a": 1, "b": "x", "c": { "d": true } });
        let new = json!({ "a": 2, "c": { "d": false } });
        assert_eq!(
            changed_fields(&old, &new),
            "spec.a 1 -> 2, spec.b x -> unset, spec.c.d true -> false"
        );
        let all =
            |value: u32| -> Value { (0..9).map(|it| (format!("f{it}"), json!(value))).collect() };
        let rendered = changed_fields(&all(1), &all(2));
        assert!(
            rendered.ends_with("spec.f5 1 -> 2, and 3 more"),
            "{rendered}"
        );
    }
}
