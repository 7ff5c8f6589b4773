//! `cargo xtask crds`: writes the CustomResourceDefinitions as files, for charts and for `kubectl apply -f crds/`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::files;

/// The CRD that only the AWS provider uses.
const EC2_NODE_CLASSES: &str = "karpenter.k8s.aws_ec2nodeclasses.yaml";
const HEADER: &str = "# Generated from the Rust types by `cargo xtask crds`. Do not edit.\n---\n";
/// Directory of the CRDs of older generations, which are optional.
const LEGACY: &str = "legacy/";
/// Directories of the CRDs of providers that clusters run instead of the AWS provider, with their condition in the chart.
const OF_PROVIDERS: [(&str, &str); 2] = [
    ("kwok/", r#"if eq .Values.provider "kwok""#),
    ("cluster-api/", r#"if eq .Values.provider "cluster-api""#),
];
/// The condition in the chart for CRDs of the AWS provider.
const IS_AWS: &str = r#"if eq .Values.provider "aws""#;
/// The condition under which the chart serves v1beta1.
const SERVES_V1BETA1: &str = r#"if and .Values.webhook.enabled (eq .Values.provider "aws")"#;
/// The condition under which the chart installs the resources before v1beta1.
const HAS_ALPHA: &str = r#"if and .Values.legacy.enabled (eq .Values.provider "aws")"#;

pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    files::generate(root, check, "crds", files()?)
}

/// Returns every file with its contents: the CRDs themselves, and as templates of the chart.
fn files() -> anyhow::Result<BTreeMap<String, String>> {
    let mut rendered = BTreeMap::new();
    for (name, definition) in definitions() {
        rendered.insert(name, render(definition)?);
    }
    let mut files = BTreeMap::new();
    for (name, text) in &rendered {
        files.insert(format!("crds/{name}"), text.clone());
        let mut of_providers = OF_PROVIDERS.iter();
        let of_provider = of_providers
            .find_map(|(folder, condition)| Some((name.strip_prefix(folder)?, condition)));
        if let Some((plain, condition)) = of_provider {
            let path = format!("charts/karpenter-crd/templates/{plain}");
            files.insert(path, guarded(condition, &template(text)));
            continue;
        }
        let plain = name.strip_prefix(LEGACY).unwrap_or(name);
        let older = rendered.get(format!("{LEGACY}{plain}").as_str());
        let template = match (rendered.get(plain), older) {
            (Some(plain), Some(older)) => switched(plain, older)
                .with_context(|| format!("cannot merge {name} with its v1beta1 version"))?,
            (Some(plain), None) => template(plain),
            // Only in older generations.
            (None, _) => guarded(HAS_ALPHA, &template(text)),
        };
        let template = match plain {
            EC2_NODE_CLASSES => guarded(IS_AWS, &template),
            _ => template,
        };
        files.insert(format!("charts/karpenter-crd/templates/{plain}"), template);
    }
    Ok(files)
}

/// Returns every CRD, with its file name. Karpenter's own CRDs reserve the label domain of AWS.
pub(crate) fn definitions() -> Vec<(&'static str, Value)> {
    use karpenter_aws::api;
    let mut all = karpenter_api::crd::all(&[api::restricted_domain()], &[api::overlay_domain()]);
    all.push((EC2_NODE_CLASSES, api::crd()));
    all.push((
        "kwok/karpenter.kwok.sh_kwoknodeclasses.yaml",
        karpenter_kwok::node_class::crd(),
    ));
    all.push((
        "cluster-api/karpenter.cluster.x-k8s.io_clusterapinodeclasses.yaml",
        karpenter_cluster_api::node_class::crd(),
    ));
    all.extend(karpenter_legacy::crd::all(&[api::restricted_domain()]));
    all
}

/// Serializes a CRD as YAML, with sorted keys and one line per string.
fn render(mut definition: Value) -> anyhow::Result<String> {
    definition.sort_all_objects();
    let options =
        serde_saphyr::ser_options! { prefer_block_scalars: false, compact_list_indent: false };
    Ok(format!(
        "{HEADER}{}",
        serde_saphyr::to_string_with_options(&definition, options)?
    ))
}

/// Returns the CRD as a template of the chart, which adds the annotations of its values.
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

/// Wraps text in a template condition.
fn guarded(condition: &str, text: &str) -> String {
    format!("{{{{- {condition} }}}}\n{text}{{{{- end }}}}\n")
}

/// Returns the template of a CRD that serves v1beta1 on a condition: the difference between `older` and `plain` is conditional.
fn switched(plain: &str, older: &str) -> anyhow::Result<String> {
    let older = template(older);
    let (head, rest) = older
        .split_once("\n  conversion:\n")
        .context("cannot find the conversion")?;
    let (conversion, rest) = rest
        .split_once("\n  group:")
        .context("cannot find the end of the conversion")?;
    let versions = rest
        .match_indices("\n    - ")
        .map(|(at, _)| at)
        .filter(|at| !rest[*at..].starts_with("\n    - - "))
        .collect::<Vec<_>>();
    let added = *versions.last().context("cannot find the versions")?;
    let (rest, added) = rest.split_at(added);
    if template(plain) != format!("{head}\n  group:{rest}\n") {
        bail!("the CRDs differ in more than a version and its conversion");
    }
    let mut conversion = format!("  conversion:\n{conversion}\n");
    for (key, value, setting) in [
        ("name", "karpenter", "{{ .Values.webhook.serviceName }}"),
        (
            "namespace",
            "kube-system",
            "{{ default .Release.Namespace .Values.webhook.serviceNamespace }}",
        ),
        ("port", "8443", "{{ .Values.webhook.port }}"),
    ] {
        let line = format!("          {key}: {value}\n");
        if !conversion.contains(&line) {
            bail!("cannot find {key} in the conversion");
        }
        conversion = conversion.replace(&line, &format!("          {key}: {setting}\n"));
    }
    Ok(format!(
        "{head}\n{}  group:{rest}\n{}",
        guarded(SERVES_V1BETA1, &conversion),
        guarded(SERVES_V1BETA1, added.trim_start_matches('\n'))
    ))
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

    /// Renders a template with a false condition.
    fn without(template: &str, condition: &str) -> String {
        let (mut inside, mut rendered) = (false, String::new());
        for line in template.lines() {
            if line == format!("{{{{- {condition} }}}}") {
                inside = true;
            } else if inside && line == "{{- end }}" {
                inside = false;
            } else if !inside {
                rendered.push_str(line);
                rendered.push('\n');
            }
        }
        rendered
    }

    #[test]
    fn without_older_generations_the_chart_has_the_plain_definitions() {
        let files = files().unwrap();
        for name in ["nodepools", "nodeclaims"] {
            let template_of =
                &files[&format!("charts/karpenter-crd/templates/karpenter.sh_{name}.yaml")];
            assert!(template_of.contains("name: v1beta1"));
            let plain = &files[&format!("crds/karpenter.sh_{name}.yaml")];
            assert_eq!(
                without(template_of, SERVES_V1BETA1),
                template(plain),
                "{name}"
            );
        }
        let alpha = &files["charts/karpenter-crd/templates/karpenter.sh_provisioners.yaml"];
        assert_eq!(without(alpha, HAS_ALPHA), "");
    }

    #[test]
    fn the_chart_has_the_node_class_of_its_provider_alone() {
        let files = files().unwrap();
        for (name, condition) in [
            (EC2_NODE_CLASSES, IS_AWS),
            ("karpenter.kwok.sh_kwoknodeclasses.yaml", OF_PROVIDERS[0].1),
            (
                "karpenter.cluster.x-k8s.io_clusterapinodeclasses.yaml",
                OF_PROVIDERS[1].1,
            ),
        ] {
            let template = &files[&format!("charts/karpenter-crd/templates/{name}")];
            let first = template.lines().next().unwrap();
            assert_eq!(first, format!("{{{{- {condition} }}}}"), "{name}");
            assert!(template.ends_with("\n{{- end }}\n"), "{name}");
        }
    }
}
