//! Pages with the fields of the custom resources, from their CRDs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use serde_json::Value;

use super::cell;
use crate::crds;

/// The page of the book that explains a kind, and the feature gate or flag that the kind needs.
const EXPLAINED: [(&str, &str); 7] = [
    ("NodePool", "[NodePools](../nodepools.md)"),
    ("NodeClaim", "[NodeClaims](../nodeclaims.md)"),
    (
        "NodeOverlay",
        "[NodeOverlays](../nodeoverlays.md); needs the feature gate `NodeOverlay`",
    ),
    (
        "CapacityBuffer",
        "[Capacity buffers](../capacity-buffers.md); needs the feature gate `CapacityBuffer`",
    ),
    ("EC2NodeClass", "[EC2NodeClasses](../nodeclasses.md)"),
    ("KWOKNodeClass", "[With kwok](../getting-started/kwok.md)"),
    (
        "ClusterAPINodeClass",
        "[With Cluster API](../getting-started/cluster-api.md)",
    ),
];

/// Returns a page for each kind, by its name.
pub(super) fn pages() -> anyhow::Result<BTreeMap<String, String>> {
    let mut pages = BTreeMap::new();
    for (_, definition) in crds::definitions() {
        let kind = text(&definition, "/spec/names/kind");
        if let Some((_, explained)) = EXPLAINED.iter().find(|(name, _)| *name == kind) {
            pages.insert(kind.to_lowercase(), page(&definition, explained)?);
        }
    }
    Ok(pages)
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn page(definition: &Value, explained: &str) -> anyhow::Result<String> {
    let versions = definition
        .pointer("/spec/versions")
        .and_then(Value::as_array);
    // Only the first version is current; the others are for conversion.
    let version = versions
        .and_then(|versions| versions.first())
        .context("a CRD has a version")?;
    let schema = &version["schema"]["openAPIV3Schema"];
    let (group, kind) = (
        text(definition, "/spec/group"),
        text(definition, "/spec/names/kind"),
    );
    let mut page = format!(
        "# Fields of {kind}\n\n`apiVersion: {group}/{}`, `kind: {kind}`. {}\n\nExplained in {explained}.\n",
        text(version, "/name"),
        cell(text(schema, "/description")),
    );
    for part in ["spec", "status"] {
        let Some(schema) = schema["properties"].get(part) else {
            continue;
        };
        let mut rows = String::new();
        let mut rules = Vec::new();
        fields(part, schema, false, &mut rows, &mut rules);
        let _ = write!(
            page,
            "\n## {part}\n\n| field | type | meaning |\n|---|---|---|\n{rows}"
        );
        if !rules.is_empty() {
            let _ = writeln!(page, "\nRules that the API server checks:\n");
            for (path, message) in rules {
                let _ = writeln!(page, "- `{path}`: {message}");
            }
        }
    }
    Ok(page)
}

/// Writes the rows of a field and of what it contains, and collects the validation rules.
fn fields(
    path: &str,
    schema: &Value,
    is_required: bool,
    rows: &mut String,
    rules: &mut Vec<(String, String)>,
) {
    let mut meaning = cell(text(schema, "/description"));
    for note in notes(schema, is_required) {
        if !meaning.is_empty() {
            meaning.push(' ');
        }
        meaning.push_str(&note);
    }
    let _ = writeln!(rows, "| `{path}` | {} | {meaning} |", type_of(schema));
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let message = match text(rule, "/message") {
            "" => format!("`{}`", text(rule, "/rule")),
            message => cell(message),
        };
        rules.push((path.to_owned(), message));
    }
    let required = |schema: &Value, name: &str| {
        let required = schema["required"].as_array();
        required.is_some_and(|names| names.iter().any(|known| known == name))
    };
    for (prefix, inner) in [("", schema), ("[]", &schema["items"])] {
        for (name, field) in inner["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}{prefix}.{name}");
            fields(&path, field, required(inner, name), rows, rules);
        }
    }
    // Rules of list elements and of map values, which have no row of their own.
    for inner in [&schema["items"], &schema["additionalProperties"]] {
        for rule in inner["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            rules.push((format!("{path}[]"), cell(text(rule, "/message"))));
        }
    }
}

fn type_of(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return "quantity or number".to_owned();
    }
    let name = match text(schema, "/type") {
        "" => "object",
        name => name,
    };
    let format = text(schema, "/format");
    match name {
        "array" => format!("list of {}", type_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map to {}", type_of(&schema["additionalProperties"]))
        }
        "string" if !format.is_empty() => format!("string ({format})"),
        name => name.to_owned(),
    }
}

/// Returns the constraints of the schema on the values of a field.
fn notes(schema: &Value, is_required: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if is_required {
        notes.push("Required.".to_owned());
    }
    if let Some(default) = schema.get("default") {
        let default = default
            .as_str()
            .map_or_else(|| default.to_string(), str::to_owned);
        notes.push(format!("Default: `{default}`."));
    }
    let (element, of_elements) = match schema.get("items") {
        Some(items) => (items, " of elements"),
        None => (schema, ""),
    };
    if let Some(values) = element["enum"].as_array() {
        let values: Vec<String> = values
            .iter()
            .map(|value| {
                format!(
                    "`{}`",
                    value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned)
                )
            })
            .collect();
        notes.push(format!("Values{of_elements}: {}.", values.join(", ")));
    }
    for (key, label) in [
        ("minimum", "Minimum"),
        ("maximum", "Maximum"),
        ("minLength", "Minimum length"),
        ("maxLength", "Maximum length"),
        ("minItems", "Minimum number of elements"),
        ("maxItems", "Maximum number of elements"),
        ("maxProperties", "Maximum number of entries"),
    ] {
        if let Some(limit) = schema.get(key) {
            notes.push(format!("{label}: {limit}."));
        }
    }
    if let Some(pattern) = element["pattern"].as_str() {
        notes.push(format!(
            "Pattern{of_elements}: `{}`.",
            pattern.replace('|', "\\|")
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_the_current_generation_has_a_page() {
        assert_eq!(pages().unwrap().len(), EXPLAINED.len());
    }
}
