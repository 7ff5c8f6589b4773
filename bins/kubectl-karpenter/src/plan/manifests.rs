//! Manifests of files and of standard input.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use karpenter_decisions::rehearse::request::Intent;
use serde_json::Value;

use crate::stream;

/// The longest manifests: a request has at most 4 MiB.
const MAX_LENGTH: u64 = 4 << 20;

/// Reads the documents of files. Objects without a namespace get `namespace`.
pub(super) fn read(paths: &[PathBuf], namespace: Option<&str>) -> anyhow::Result<Vec<Intent>> {
    let mut changes = Vec::new();
    for path in paths {
        let text = content(path)?;
        for (index, document) in stream::documents(&text).iter().enumerate() {
            let read = stream::read(document.text);
            let value = read.with_context(|| {
                format!("invalid document {} of `{}`", index + 1, path.display())
            })?;
            let Some(mut value) = value else { continue };
            set_namespace(&mut value, namespace);
            changes.push(Intent::Apply(value));
        }
    }
    Ok(changes)
}

fn content(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let shown = path.display();
    let read = if path.as_os_str() == "-" {
        std::io::stdin()
            .take(MAX_LENGTH + 1)
            .read_to_string(&mut text)
    } else {
        let file = std::fs::File::open(path).with_context(|| format!("cannot read `{shown}`"))?;
        file.take(MAX_LENGTH + 1).read_to_string(&mut text)
    };
    read.with_context(|| format!("cannot read `{shown}`"))?;
    anyhow::ensure!(
        text.len() as u64 <= MAX_LENGTH,
        "invalid manifests in `{shown}`: they are longer than 4 MiB"
    );
    Ok(text)
}

fn set_namespace(object: &mut Value, namespace: Option<&str>) {
    if object["kind"] == "List" {
        let items = object["items"].as_array_mut();
        let items = items.into_iter().flatten();
        items.for_each(|item| set_namespace(item, namespace));
        return;
    }
    if let (Some(namespace), Some(metadata)) = (namespace, object["metadata"].as_object_mut()) {
        let given = metadata.entry("namespace");
        given.or_insert_with(|| Value::from(namespace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_all_files_are_applied_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::write(
            &one,
            "# comment\n---\nkind: A\nmetadata:\n  name: a\n---\nkind: B\n",
        )
        .unwrap();
        std::fs::write(&two, r#"{"kind": "C", "metadata": {"namespace": "other"}}"#).unwrap();
        let changes = read(&[one, two], Some("shop")).unwrap();
        let rendered: Vec<String> = changes
            .iter()
            .map(|change| match change {
                Intent::Apply(object) => {
                    format!("{}/{}", object["metadata"]["namespace"], object["kind"])
                }
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(rendered, [r#""shop"/"A""#, r#"null/"B""#, r#""other"/"C""#]);
    }

    #[test]
    fn a_broken_document_is_named_by_its_file_and_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool.yaml");
        std::fs::write(&path, "kind: A\n---\n{").unwrap();
        let error = read(std::slice::from_ref(&path), None)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("invalid document 2 of `"), "{error}");
        assert!(read(&[folder.path().join("none")], None).is_err());
    }
}
