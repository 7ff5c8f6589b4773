//! Hides from an answer what belongs to namespaces that the caller may not ask about.
//!
//! An answer about a pod names other workloads: those whose anti-affinity keeps it away, or that took the room before it. A
//! caller with rights in one namespace gets the answer with those names blanked; amounts and reasons stay. It works on the JSON
//! of an answer, not on its types, so that a field that is added later is blanked as well.
//!
//! A name is recognized as `namespace/name` in any text and key, and as `namespace` beside `name` in an object, whose other texts
//! are blanked with it. Names without their namespace (a PodDisruptionBudget beside the pod that it protects) are blanked in the
//! statement in which they stand. A text that names a hidden namespace in another way, as commands do (`-n shop web`), is blanked as
//! a whole.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// What stands in the place of a name.
pub const BLANK: &str = "(other namespace)";

/// Fields that say what an object is, not which.
const KEPT: [&str; 4] = ["kind", "apiVersion", "id", "reason"];

/// Fields with names without their namespace, which is that of the field `pod` beside them.
const OF_POD: [&str; 2] = ["budget", "budgets"];

/// The second part of the path of an offering, whose first one is a NodePool.
const CAPACITY_TYPES: [&str; 3] = ["spot", "on-demand", "reserved"];

/// What is before the name of a namespace in commands and sentences.
const BEFORE: [&str; 6] = [
    "-n ",
    "--namespace ",
    "--namespace=",
    "namespace ",
    "namespace \"",
    "namespace=",
];

/// Returns the namespaces of the objects that an answer names; `is_namespace` says which texts are namespaces.
///
/// A server reviews the caller's rights in these, and blanks the others.
pub fn namespaces(answer: &Value, is_namespace: &dyn Fn(&str) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect(answer, is_namespace, &mut found);
    found
}

/// Returns the namespaces of the objects that a text names as `namespace/name`.
pub fn referred(text: &str) -> impl Iterator<Item = &str> {
    references(text).map(|reference| reference.namespace)
}

fn collect(value: &Value, is_namespace: &dyn Fn(&str) -> bool, found: &mut BTreeSet<String>) {
    // Any word: whether it names an object is decided when it is blanked.
    let mut of_text = |text: &str| {
        let known = words(text).filter(|word| is_namespace(word));
        found.extend(known.map(str::to_owned));
    };
    match value {
        Value::String(text) => of_text(text),
        Value::Array(all) => all.iter().for_each(|one| collect(one, is_namespace, found)),
        Value::Object(all) => {
            all.keys().for_each(|key| of_text(key));
            found.extend(namespace_of(all).map(str::to_owned));
            all.values()
                .for_each(|one| collect(one, is_namespace, found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Blanks the names of objects in namespaces that are `hidden`.
///
/// ```
/// use karpenter_decisions::blank::blank;
/// use serde_json::json;
///
/// let mut answer = json!({
///     "metadata": { "namespace": "shop", "name": "web-1" },
///     "reason": { "id": "Competition", "parameters": { "takers": ["Deployment search/index"] },
///         "text": "the pod fits alone, but not beside pods of Deployment search/index" },
/// });
/// blank(&mut answer, &|namespace| namespace == "search");
/// assert_eq!(answer["metadata"]["name"], "web-1");
/// assert_eq!(answer["reason"]["text"], "the pod fits alone, but not beside pods of Deployment (other namespace)");
/// ```
pub fn blank(answer: &mut Value, hidden: &dyn Fn(&str) -> bool) {
    blank_value(answer, hidden);
}

/// Blanks a value, and returns the names that were blanked in it.
fn blank_value(value: &mut Value, hidden: &dyn Fn(&str) -> bool) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    match value {
        Value::String(text) => blank_text(text, hidden, &mut names),
        Value::Array(all) => all
            .iter_mut()
            .for_each(|one| names.append(&mut blank_value(one, hidden))),
        Value::Object(all) => names = blank_object(all, hidden),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    names
}

fn blank_object(
    object: &mut Map<String, Value>,
    hidden: &dyn Fn(&str) -> bool,
) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    if namespace_of(object).is_some_and(hidden) {
        for (key, value) in object.iter_mut() {
            match key.as_str() {
                "namespace" | "name" | "uid" => take(value, &mut names),
                key if KEPT.contains(&key) => {}
                _ => take(value, &mut BTreeSet::new()),
            }
        }
    }
    let mut protected = BTreeSet::new();
    if let Some(Value::String(pod)) = object.get_mut("pod") {
        blank_text(pod, hidden, &mut protected);
    }
    if !protected.is_empty() {
        for key in OF_POD {
            if let Some(value) = object.get_mut(key) {
                take(value, &mut names);
            }
        }
    }
    names.append(&mut protected);
    let keys: Vec<String> = object.keys().cloned().collect();
    for key in keys {
        let Some(mut value) = object.remove(&key) else {
            continue;
        };
        names.append(&mut blank_value(&mut value, hidden));
        let mut shown = key;
        blank_text(&mut shown, hidden, &mut names);
        // Two keys that are blanked stay two.
        while object.contains_key(&shown) {
            shown.push(' ');
        }
        object.insert(shown, value);
    }
    // A statement repeats the names of its parameters in its sentences.
    if object.contains_key("text") || object.contains_key("what") {
        let words: Vec<&String> = names.iter().collect();
        object
            .values_mut()
            .for_each(|value| blank_words(value, &words));
    }
    names
}

/// Blanks all texts of a value.
fn take(value: &mut Value, names: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            names.insert(std::mem::replace(text, BLANK.to_owned()));
        }
        Value::Array(all) => all.iter_mut().for_each(|one| take(one, names)),
        Value::Object(all) => {
            let told = all.iter_mut();
            let told = told.filter(|(key, _)| !KEPT.contains(&key.as_str()));
            told.for_each(|(_, one)| take(one, names));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn namespace_of(object: &Map<String, Value>) -> Option<&str> {
    object.get("namespace")?.as_str()
}

/// A name with its namespace in a text.
struct Reference<'a> {
    namespace: &'a str,
    name: &'a str,
    start: usize,
    end: usize,
}

/// Iterates over the texts of the form `namespace/name`. Not one of them are paths, labels with a domain, and offerings
/// (`pool/capacity type/zone`).
fn references(text: &str) -> impl Iterator<Item = Reference<'_>> {
    let slashes = text.match_indices('/').map(|(at, _)| at);
    slashes.filter_map(|slash| {
        let in_namespace =
            |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        let in_name = |byte: &u8| in_namespace(byte) || *byte == b'.';
        let bytes = text.as_bytes();
        let start = slash
            - bytes[..slash]
                .iter()
                .rev()
                .take_while(|b| in_namespace(b))
                .count();
        let length = bytes[slash + 1..].iter().take_while(|b| in_name(b)).count();
        let name = text[slash + 1..slash + 1 + length].trim_end_matches(['.', '-']);
        let end = slash + 1 + name.len();
        let begins = match text[..start].chars().next_back() {
            // `Kind/namespace/name`
            Some('/') => {
                let kind = text[..start - 1]
                    .rsplit(|c: char| !c.is_ascii_alphanumeric())
                    .next();
                kind.is_some_and(|kind| kind.starts_with(|c: char| c.is_ascii_uppercase()))
            }
            Some(before) => !before.is_ascii_alphanumeric() && !matches!(before, '.' | '_' | '~'),
            None => true,
        };
        let goes_on = bytes.get(slash + 1 + length) == Some(&b'/');
        (begins && start < slash && !name.is_empty() && !goes_on).then(|| Reference {
            namespace: &text[start..slash],
            name,
            start,
            end,
        })
    })
}

fn blank_text(text: &mut String, hidden: &dyn Fn(&str) -> bool, names: &mut BTreeSet<String>) {
    let found: Vec<(usize, usize)> = references(text)
        .filter(|reference| hidden(reference.namespace))
        .map(|reference| {
            names.insert(reference.name.to_owned());
            (reference.start, reference.end)
        })
        .collect();
    for (start, end) in found.into_iter().rev() {
        text.replace_range(start..end, BLANK);
    }
    if names_hidden(text, hidden) {
        BLANK.clone_into(text);
    }
}

/// The words of a text that may be names of namespaces.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| !word.is_empty())
}

/// Reports whether a text names a hidden namespace, alone or as a part of a path.
fn names_hidden(text: &str, hidden: &dyn Fn(&str) -> bool) -> bool {
    let follows = |before: &&str| {
        text.match_indices(before).any(|(at, _)| {
            let rest = text.get(at + before.len()..).unwrap_or_default();
            words(rest).next().is_some_and(hidden)
        })
    };
    let mut paths = text.split(|c: char| !(c.is_ascii_alphanumeric() || "-./".contains(c)));
    let is_path = |path: &str| {
        let is_offering = || {
            let second = path.split('/').nth(1);
            second.is_some_and(|second| CAPACITY_TYPES.contains(&second))
        };
        path.contains('/') && path.split('/').any(hidden) && !is_offering()
    };
    BEFORE.iter().any(follows) || paths.any(is_path)
}

fn blank_words(value: &mut Value, words: &[&String]) {
    match value {
        Value::String(text) => words.iter().for_each(|word| blank_word(text, word)),
        Value::Array(all) => all.iter_mut().for_each(|one| blank_words(one, words)),
        Value::Object(all) => all.values_mut().for_each(|one| blank_words(one, words)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Blanks a name where it stands as a whole word.
fn blank_word(text: &mut String, word: &str) {
    let in_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let is_whole = |at: &usize| {
        let after = &text[at + word.len()..];
        // A full stop ends the sentence or goes on with the name.
        let mut after = after.chars();
        let goes_on = match after.next() {
            Some('.') => after.next().is_some_and(in_word),
            next => next.is_some_and(in_word),
        };
        !goes_on
            && !text[..*at]
                .chars()
                .next_back()
                .is_some_and(|c| in_word(c) || c == '.')
    };
    let found: Vec<usize> = text
        .match_indices(word)
        .map(|(at, _)| at)
        .filter(is_whole)
        .collect();
    for at in found.into_iter().rev() {
        // The replacement has words of its own, which a name may equal.
        let inside = text[..at]
            .rfind('(')
            .is_some_and(|open| text[open..].starts_with(BLANK) && at < open + BLANK.len());
        if !inside {
            text.replace_range(at..at + word.len(), BLANK);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn blanked(mut answer: Value) -> Value {
        let others = ["bank", "default", "search"];
        blank(&mut answer, &|namespace| others.contains(&namespace));
        answer
    }

    #[test]
    fn an_object_of_a_hidden_namespace_keeps_its_kind_and_amounts() {
        let told = json!({ "blockers": [
            { "kind": "Pod", "namespace": "bank", "name": "ledger-0", "count": 2, "owner": { "kind": "ReplicaSet", "name": "ledger" } },
            { "kind": "Pod", "namespace": "shop", "name": "web-0", "owner": { "name": "web" } },
            { "parameters": { "pod": "bank/ledger-0", "budgets": ["ledger"], "more": 2 } },
            { "parameters": { "pod": "shop/web-0", "budget": "web" } },
        ] });
        let expected = json!({ "blockers": [
            { "kind": "Pod", "namespace": BLANK, "name": BLANK, "count": 2, "owner": { "kind": "ReplicaSet", "name": BLANK } },
            { "kind": "Pod", "namespace": "shop", "name": "web-0", "owner": { "name": "web" } },
            { "parameters": { "pod": BLANK, "budgets": [BLANK], "more": 2 } },
            { "parameters": { "pod": "shop/web-0", "budget": "web" } },
        ] });
        assert_eq!(blanked(told), expected);
    }

    #[test]
    fn keys_that_name_hidden_objects_are_blanked_and_values_stay() {
        let told = json!({ "bank/ledger": 1, "bank/vault": 2, "shop/web": 3, "topology.kubernetes.io/zone": 4 });
        let shown = blanked(told);
        assert_eq!(shown["shop/web"], 3);
        assert_eq!(shown["topology.kubernetes.io/zone"], 4);
        assert!(!shown.to_string().contains("bank"), "{shown}");
        let amounts: i64 = shown
            .as_object()
            .unwrap()
            .values()
            .filter_map(Value::as_i64)
            .sum();
        assert_eq!(amounts, 10, "{shown}");
    }

    #[test]
    fn a_command_or_path_with_a_hidden_namespace_is_blanked_as_a_whole() {
        for (text, expected) in [
            (
                "kubectl patch deployment -n bank ledger --type json -p '[]'",
                BLANK,
            ),
            ("pod \"a\" not found in namespace \"bank\"", BLANK),
            ("see namespace bank.", BLANK),
            ("bank/ledger-0/main restarts", BLANK),
            ("ä/bank/ö", BLANK),
            ("Deployment/bank/ledger", "Deployment/(other namespace)"),
            (
                "kubectl patch deployment -n shop web",
                "kubectl patch deployment -n shop web",
            ),
            (
                "kubectl patch nodepool default -p '[]'",
                "kubectl patch nodepool default -p '[]'",
            ),
            ("offer[default/spot/zone-a]", "offer[default/spot/zone-a]"),
            (
                "key topology.kubernetes.io/zone not in [z1]",
                "key topology.kubernetes.io/zone not in [z1]",
            ),
            ("", ""),
            ("/", "/"),
            ("-n ", "-n "),
            ("namespace", "namespace"),
        ] {
            assert_eq!(blanked(json!([text])), json!([expected]), "{text}");
        }
    }

    #[test]
    fn a_text_refers_to_the_namespaces_of_the_objects_that_it_names() {
        for (text, expected) in [
            ("without-pdb=bank/ledger", vec!["bank"]),
            (
                "drop=antiAffinity[Deployment search/index][0]",
                vec!["search"],
            ),
            ("offer=c-4x/zone-a/spot", vec![]),
            ("tolerate=example.com/team=a:NoSchedule", vec![]),
            ("budget.default=20%", vec![]),
        ] {
            assert_eq!(referred(text).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    /// Conformance: EXP-05
    #[test]
    fn anti_affinity_of_another_namespace_is_blanked_in_ids_texts_and_patches() {
        let told = json!({
            "blocking": { "atoms": [
                { "id": "antiAffinity[Deployment search/index][0]", "side": "Cluster", "text": "anti-affinity of Deployment search/index" },
                { "id": "offer[default/spot/zone-a]", "side": "Offer", "path": "/spec/template/spec", "text": "NodePool default: offerings of spot in zone-a" },
            ] },
            "relaxations": [{ "atoms": ["antiAffinity[Deployment search/index][0]"], "affects": "Deployment search/index",
                "text": "drop the anti-affinity of Deployment search/index", "patch": { "target": "Deployment/search/index" }, "deltaPerHour": 0.1 }],
        });
        let expected = json!({
            "blocking": { "atoms": [
                { "id": "antiAffinity[Deployment (other namespace)][0]", "side": "Cluster", "text": "anti-affinity of Deployment (other namespace)" },
                { "id": "offer[default/spot/zone-a]", "side": "Offer", "path": "/spec/template/spec", "text": "NodePool default: offerings of spot in zone-a" },
            ] },
            "relaxations": [{ "atoms": ["antiAffinity[Deployment (other namespace)][0]"], "affects": "Deployment (other namespace)",
                "text": "drop the anti-affinity of Deployment (other namespace)", "patch": { "target": "Deployment/(other namespace)" }, "deltaPerHour": 0.1 }],
        });
        assert_eq!(blanked(told), expected);
    }

    #[test]
    fn a_budget_named_without_its_namespace_is_blanked_in_its_statement_only() {
        let told = json!({
            "metadata": { "namespace": "shop", "name": "payments" },
            "blockers": [{ "id": "Pdb", "parameters": { "pod": "bank/payments-7c-x2x4q", "budget": "payments" },
                "text": "PodDisruptionBudget payments allows no eviction of pod bank/payments-7c-x2x4q",
                "owner": "Deployment bank/payments", "changes": ["without-pdb=bank/payments"],
                "pdb": { "namespace": "bank", "name": "payments", "minAvailable": "1" },
                "help": [{ "text": "set maxUnavailable 1 in payments." }] }],
        });
        let expected = json!({
            "metadata": { "namespace": "shop", "name": "payments" },
            "blockers": [{ "id": "Pdb", "parameters": { "pod": "(other namespace)", "budget": "(other namespace)" },
                "text": "PodDisruptionBudget (other namespace) allows no eviction of pod (other namespace)",
                "owner": "Deployment (other namespace)", "changes": ["without-pdb=(other namespace)"],
                "pdb": { "namespace": "(other namespace)", "name": "(other namespace)", "minAvailable": "(other namespace)" },
                "help": [{ "text": "set maxUnavailable 1 in (other namespace)." }] }],
        });
        assert_eq!(blanked(told), expected);
    }

    #[test]
    fn what_the_caller_may_ask_about_stays() {
        let told = json!({ "names": ["shop/web-1"], "key": "topology.kubernetes.io/zone", "text": "pod shop/web-1 of 3/4", "shop/web-1": 1 });
        let mut own = told.clone();
        blank(&mut own, &|namespace| namespace == "bank");
        assert_eq!(own, told);
    }

    #[test]
    fn the_namespaces_of_an_answer_are_those_of_objects_and_of_texts() {
        let told = json!({ "a": { "namespace": "bank", "name": "x" }, "b": "Deployment search/index", "c": "karpenter.sh/nodepool", "d": "cpu/memory" });
        let known = ["bank", "search", "shop"];
        assert_eq!(
            namespaces(&told, &|text| known.contains(&text)),
            ["bank", "search"].map(str::to_owned).into()
        );
    }

    proptest! {
        /// Whatever an answer consists of, no name of a hidden object is left in the texts that name it with its namespace.
        #[test]
        fn no_reference_to_a_hidden_namespace_is_left(
            before in "[ A-Za-z(=:,\\[]{0,12}", namespace in "[a-z][a-z0-9-]{0,8}[a-z0-9]", name in "[a-z][a-z0-9.-]{0,12}[a-z0-9]", after in "[ .,)\\]]{0,4}",
        ) {
            prop_assume!(!before.ends_with(|c: char| c.is_ascii_alphanumeric()));
            let text = format!("{before}{namespace}/{name}{after}");
            let mut answer = json!({ "text": text, "names": [text], "deep": [{ "x": text }] });
            blank(&mut answer, &|_| true);
            let left = answer.to_string();
            let reference = format!("{namespace}/{name}");
            prop_assert!(!left.contains(&reference), "{}", left);
            prop_assert_eq!(answer["names"][0].as_str().unwrap(), format!("{before}{BLANK}{after}"));
        }
    }
}
