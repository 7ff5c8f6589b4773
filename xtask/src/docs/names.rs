//! Pages with the labels, annotations, taints, finalizers and tags, and with the reasons of events, from the documented constants
//! in the source.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use syn::{Attribute, Expr, Item, Lit, Visibility};

use super::cell;

/// The files with labels, and whose they are.
const LABELS: [(&str, &str); 3] = [
    ("crates/karpenter-api/src/labels.rs", "Karpenter"),
    ("crates/karpenter-aws/src/api/labels.rs", "The AWS provider"),
    (
        "crates/karpenter-kwok/src/catalogue.rs",
        "The kwok provider",
    ),
];
const EVENTS: [(&str, &str); 2] = [
    ("crates/karpenter-api/src/events.rs", "Karpenter"),
    ("crates/karpenter-aws/src/api/events.rs", "The AWS provider"),
];
/// The sections of a file's constants: module, heading, name of the column.
const SECTIONS: [(&str, &str, &str); 6] = [
    ("", "labels", "label"),
    ("annotations", "annotations", "annotation"),
    ("taints", "taints", "taint"),
    ("finalizers", "finalizers", "finalizer"),
    ("tags", "tags of AWS resources", "tag"),
    ("resources", "extended resources", "resource"),
];

#[derive(Debug, PartialEq, Eq)]
struct Constant {
    /// The module inside of the file; empty for the file itself.
    module: String,
    name: String,
    value: String,
    meaning: String,
}

pub(super) fn labels(root: &Path) -> anyhow::Result<String> {
    let mut page = "# Labels, annotations, taints\n\nEvery name that Karpenter reads or writes. \
        [Labels, annotations, taints, events](../names.md) says who sets which of them on what.\n"
        .to_owned();
    for (path, owner) in LABELS {
        let constants = read(root, path)?;
        for (module, heading, column) in SECTIONS {
            let mut of_section = constants
                .iter()
                .filter(|constant| constant.module == module)
                .peekable();
            if of_section.peek().is_none() {
                continue;
            }
            let _ = write!(
                page,
                "\n## {owner}: {heading}\n\n| {column} | meaning |\n|---|---|\n"
            );
            for constant in of_section.filter(|constant| is_key(module, &constant.value)) {
                let meaning = spelled_out(&constant.meaning, &constants);
                let _ = writeln!(page, "| `{}` | {} |", constant.value, cell(&meaning));
            }
        }
    }
    Ok(page)
}

/// Returns whether a constant is a key: labels and the like have a domain, and their values have none.
fn is_key(module: &str, value: &str) -> bool {
    module == "tags" || value.contains('/') && !value.ends_with('/')
}

pub(super) fn events(root: &Path) -> anyhow::Result<String> {
    let mut page = "# Events\n\nReasons of the events that Karpenter publishes. Each change of a condition also is an event, whose \
        reason is the name of the condition. [Labels, annotations, taints, events](../names.md#events) says what to do about them.\n"
        .to_owned();
    for (path, owner) in EVENTS {
        let _ = write!(
            page,
            "\n## {owner}\n\n| reason | on | meaning |\n|---|---|---|\n"
        );
        let mut constants = read(root, path)?;
        constants.sort_by(|a, b| a.value.cmp(&b.value));
        for constant in &constants {
            let (on, meaning) = constant
                .meaning
                .strip_prefix("On ")
                .and_then(|rest| rest.split_once(": "))
                .with_context(|| {
                    format!(
                        "{path}: the documentation of {} is not `On a …: …`",
                        constant.name
                    )
                })?;
            let on = on.trim_start_matches("a ").trim_start_matches("an ");
            let _ = writeln!(
                page,
                "| `{}` | {} | {} |",
                constant.value,
                cell(on),
                cell(meaning.trim_end_matches('.'))
            );
        }
    }
    Ok(page)
}

fn read(root: &Path, path: &str) -> anyhow::Result<Vec<Constant>> {
    let source =
        fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
    constants(&source).with_context(|| format!("cannot use {path}"))
}

/// Returns the public constants of a source file whose value is a string.
fn constants(source: &str) -> anyhow::Result<Vec<Constant>> {
    let file = syn::parse_file(source)?;
    let mut found = Vec::new();
    collect("", &file.items, &mut found)?;
    Ok(found)
}

fn collect(module: &str, items: &[Item], found: &mut Vec<Constant>) -> anyhow::Result<()> {
    for item in items {
        match item {
            Item::Mod(inner) if matches!(inner.vis, Visibility::Public(_)) => {
                let items = inner.content.as_ref().map(|(_, items)| items.as_slice());
                collect(&inner.ident.to_string(), items.unwrap_or_default(), found)?;
            }
            Item::Const(constant) if matches!(constant.vis, Visibility::Public(_)) => {
                let Some(value) = string(&constant.expr) else {
                    continue;
                };
                let name = constant.ident.to_string();
                let meaning = documentation(&constant.attrs);
                if meaning.is_empty() {
                    bail!("{name} has no documentation");
                }
                found.push(Constant {
                    module: module.to_owned(),
                    name,
                    value,
                    meaning,
                });
            }
            _ => {}
        }
    }
    Ok(())
}

fn string(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

fn documentation(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let pair = attribute.meta.require_name_value().ok()?;
        pair.path.is_ident("doc").then(|| string(&pair.value))?
    });
    let lines: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
    lines.join(" ")
}

/// Replaces links to other constants by their values.
fn spelled_out(meaning: &str, constants: &[Constant]) -> String {
    let mut text = meaning.to_owned();
    for constant in constants {
        text = text.replace(
            &format!("[`{}`]", constant.name),
            &format!("`{}`", constant.value),
        );
    }
    // What else is linked has no value: its name stays.
    text.replace("[`", "`").replace("`]", "`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_documentation_is_an_error() {
        let error = constants("pub const ZONE: &str = \"t/zone\";").unwrap_err();
        assert_eq!(error.to_string(), "ZONE has no documentation");
    }
}
