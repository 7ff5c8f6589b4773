//! `cargo xtask crds`: the CustomResourceDefinitions as files, for charts and for `kubectl apply -f crds/`.

use std::{fs, path::Path};

use anyhow::{Context as _, bail};
use serde_json::Value;

const HEADER: &str = "# Generated from the Rust types by `cargo xtask crds`. Do not edit.\n---\n";
/// Where definitions of older generations are kept, to be applied by those who need them.
const LEGACY: &str = "legacy/";

pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let mut stale = Vec::new();
    for (name, definition) in definitions() {
        let text = render(definition)?;
        let mut files = vec![(format!("crds/{name}"), text.clone())];
        // A chart renders all of its templates, and those of older generations replace others.
        if !name.starts_with(LEGACY) {
            let path = format!("charts/karpenter-crd/templates/{name}");
            files.push((path, template(&text)));
        }
        for (path, text) in files {
            let file = root.join(&path);
            if check {
                if fs::read_to_string(&file).unwrap_or_default() != text {
                    stale.push(path);
                }
                continue;
            }
            if let Some(directory) = file.parent() {
                fs::create_dir_all(directory)?;
            }
            fs::write(&file, text).with_context(|| format!("cannot write {path}"))?;
        }
    }
    if !stale.is_empty() {
        bail!("out of date: {}; run `cargo xtask crds`", stale.join(", "));
    }
    Ok(())
}

/// Every definition, with the file name it is kept under. Karpenter's own ones reserve the label domain of AWS.
fn definitions() -> Vec<(&'static str, Value)> {
    use karpenter_aws::api;
    let mut all = karpenter_api::crd::all(&[api::restricted_domain()], &[api::overlay_domain()]);
    all.push(("karpenter.k8s.aws_ec2nodeclasses.yaml", api::crd()));
    all.extend(karpenter_legacy::crd::all(&[api::restricted_domain()]));
    all
}

/// A definition as YAML, with sorted keys and one line a string.
fn render(mut definition: Value) -> anyhow::Result<String> {
    definition.sort_all_objects();
    let options =
        serde_saphyr::ser_options! { prefer_block_scalars: false, compact_list_indent: false };
    Ok(format!(
        "{HEADER}{}",
        serde_saphyr::to_string_with_options(&definition, options)?
    ))
}

/// The definition as the template of a chart, which adds the annotations of its values.
fn template(text: &str) -> String {
    const ANNOTATIONS: &str = "
metadata:
  {{- with .Values.additionalAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
";
    text.replace("{{", "{{ \"{{\" }}")
        .replacen("\nmetadata:\n", ANNOTATIONS, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_yaml_reads_back_as_the_definition() {
        for (name, definition) in definitions() {
            let read: Value = serde_saphyr::from_str(&render(definition.clone()).unwrap()).unwrap();
            assert_eq!(read, definition, "{name}");
        }
    }
}
