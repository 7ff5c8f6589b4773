//! Applies YAML manifests, as `kubectl apply --server-side` does.

use std::path::Path;

use anyhow::{Context, bail};
use kube::api::{Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::{Discovery, Scope};
use kube::{Api, Client};
use serde_json::Value;

/// Parses the objects of one or more YAML documents.
///
/// # Errors
/// If a document is not YAML, or not an object with `apiVersion`, `kind` and a name.
pub fn parse(text: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    for (at, document) in documents(text).into_iter().enumerate() {
        let value: Value = serde_saphyr::from_str(&document)
            .with_context(|| format!("document {} is not YAML", at + 1))?;
        if value.is_null() {
            continue;
        }
        let object: DynamicObject = serde_json::from_value(value)
            .with_context(|| format!("document {} is not a Kubernetes object", at + 1))?;
        if object.types.is_none() || object.metadata.name.is_none() {
            bail!("document {} has no apiVersion, kind or name", at + 1);
        }
        objects.push(object);
    }
    Ok(objects)
}

fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            documents.push(String::new());
        } else if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    let blank = |d: &String| {
        d.lines()
            .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    };
    documents.retain(|document| !blank(document));
    documents
}

/// Applies objects in order; namespaced objects without a namespace are created in `default`.
///
/// # Errors
/// If a kind is not served or the server rejects an object.
pub async fn apply(client: &Client, objects: &[DynamicObject]) -> anyhow::Result<()> {
    let discovery = Discovery::new(client.clone())
        .run()
        .await
        .context("cannot discover the API resources")?;
    for object in objects {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let types = object.types.clone().unwrap_or_default();
        let kind = GroupVersionKind::try_from(&types)
            .with_context(|| format!("cannot read the kind of `{name}`"))?;
        let Some((resource, capabilities)) = discovery.resolve_gvk(&kind) else {
            bail!("unknown kind `{}` of `{}`", types.kind, types.api_version);
        };
        let api: Api<DynamicObject> =
            match (capabilities.scope, object.metadata.namespace.as_deref()) {
                (Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
                (Scope::Namespaced, namespace) => {
                    Api::namespaced_with(client.clone(), namespace.unwrap_or("default"), &resource)
                }
            };
        let params = PatchParams::apply("karpenter-playground").force();
        api.patch(name, &params, &Patch::Apply(object))
            .await
            .with_context(|| format!("applying {} `{name}`", types.kind))?;
    }
    Ok(())
}

/// Applies the objects of files.
///
/// # Errors
/// If a file cannot be read, or its objects cannot be applied.
pub async fn apply_files<P: AsRef<Path>>(client: &Client, files: &[P]) -> anyhow::Result<()> {
    for file in files {
        let path = file.as_ref();
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let objects = parse(&text).with_context(|| format!("reading {}", path.display()))?;
        apply(client, &objects)
            .await
            .with_context(|| format!("applying {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_separated_and_comments_alone_are_none() {
        let text = "# a comment\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: b\n";
        let names: Vec<_> = parse(text)
            .unwrap()
            .into_iter()
            .filter_map(|o| o.metadata.name)
            .collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn a_document_that_is_no_object_is_refused() {
        assert!(parse("just text").is_err());
        assert!(parse("apiVersion: v1\nkind: Namespace\n").is_err());
    }
}
