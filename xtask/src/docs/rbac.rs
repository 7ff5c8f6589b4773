//! Page with the permissions in the cluster, from the roles in the chart.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

/// The templates with roles, each with what its roles are for.
const TEMPLATES: [(&str, &str); 5] = [
    (
        "clusterrole-core.yaml",
        "For every provider, in the whole cluster",
    ),
    ("clusterrole.yaml", "For one provider, in the whole cluster"),
    (
        "role.yaml",
        "In the namespace of the release, and of `kube-dns` in `kube-system`",
    ),
    (
        "role-management.yaml",
        "In the management cluster of Cluster API, in the namespace of the Cluster",
    ),
    (
        "aggregate-clusterrole.yaml",
        "Added to the ClusterRoles of users: `admin` may write, `edit` and `view` may read",
    ),
];
/// The conditions of the templates, as values of the chart; the second is for the `else` branch.
const CONDITIONS: [(&str, &str, &str); 10] = [
    (r#"if eq .Values.provider "kwok""#, "`provider: kwok`", ""),
    (
        r#"if eq .Values.provider "cluster-api""#,
        "`provider: cluster-api`",
        "",
    ),
    // With `clusterAPI.kubeconfigSecret`, they are applied to the other cluster.
    (
        r#"if and (eq .Values.provider "cluster-api") (not .Values.clusterAPI.kubeconfigSecret)"#,
        "`provider: cluster-api`",
        "",
    ),
    (r#"if eq .Values.provider "aws""#, "`provider: aws`", ""),
    (r#"if ne .Values.provider "custom""#, "", ""),
    ("if .Values.legacy.enabled", "`legacy.enabled`", ""),
    (
        r#"if include "karpenter.webhook" ."#,
        "`webhook.enabled`",
        "",
    ),
    (
        "if .Values.settings.featureGates.podNomination",
        "`settings.featureGates.podNomination`",
        "",
    ),
    // Written once, at the top of the page.
    ("if not .Values.shadow.enabled", "", "`shadow.enabled`"),
    (
        r#"if and (eq .Values.provider "aws") (not .Values.shadow.enabled)"#,
        "`provider: aws`",
        "",
    ),
];

/// A rule of a role.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rule {
    groups: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    verbs: Vec<String>,
    /// The values of the chart without which the rule is absent.
    only_with: Vec<&'static str>,
}

pub(super) fn page(root: &Path) -> anyhow::Result<String> {
    let mut page = "# Permissions in the cluster\n\nThe rules of the roles in `charts/karpenter`. \
        [Permissions](../permissions.md) has those in AWS, and what they are for. \
        A [shadow](../shadow.md) has only those to get, list and watch.\n"
        .to_owned();
    for (name, purpose) in TEMPLATES {
        let path = format!("charts/karpenter/templates/{name}");
        let template =
            fs::read_to_string(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
        let rules = rules(&template).with_context(|| format!("cannot use {path}"))?;
        let _ = write!(
            page,
            "\n## {purpose}\n\n| API group | resources | names | verbs | only with |\n|---|---|---|---|---|\n"
        );
        for rule in rules {
            let list = |items: &[String]| {
                let items: Vec<String> = items.iter().map(|item| format!("`{item}`")).collect();
                items.join(", ")
            };
            let group = match rule.groups.iter().all(String::is_empty) {
                true => "core".to_owned(),
                false => list(&rule.groups),
            };
            let _ = writeln!(
                page,
                "| {group} | {} | {} | {} | {} |",
                list(&rule.resources),
                list(&rule.names),
                list(&rule.verbs),
                rule.only_with.join(", ")
            );
        }
    }
    Ok(page)
}

/// Returns the rules in a template, under whichever conditions they are.
fn rules(template: &str) -> anyhow::Result<Vec<Rule>> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut conditions: Vec<(&'static str, &'static str)> = Vec::new();
    for line in template.lines().map(str::trim) {
        let action = line
            .strip_prefix("{{-")
            .and_then(|line| line.strip_suffix("}}"));
        if let Some(action) = action.map(|action| action.trim_end_matches('-').trim()) {
            match action.split_whitespace().next() {
                Some("if" | "with") => conditions.push(condition(action)?),
                Some("else") => {
                    let last = conditions.last_mut().context("an else without its if")?;
                    *last = (last.1, "");
                }
                Some("end") => {
                    conditions.pop().context("an end without its if")?;
                }
                _ => {}
            }
            continue;
        }
        let (is_first, entry) = match line.strip_prefix("- ") {
            Some(entry) => (true, entry),
            None => (false, line),
        };
        let Some((key, list)) = entry.split_once(": [") else {
            continue;
        };
        if is_first {
            let only_with = conditions.iter().map(|(values, _)| *values);
            rules.push(Rule {
                only_with: only_with.filter(|values| !values.is_empty()).collect(),
                ..Rule::default()
            });
        }
        let rule = rules.last_mut().context("a list outside of a rule")?;
        let list = list
            .strip_suffix(']')
            .context("a list that does not end on its line")?;
        let items = list
            .split(", ")
            .map(|item| name(item.trim_matches('"')))
            .collect();
        match key {
            "apiGroups" => rule.groups = items,
            "resources" => rule.resources = items,
            "resourceNames" => rule.names = items,
            "verbs" => rule.verbs = items,
            key => bail!("a rule with `{key}`"),
        }
    }
    Ok(rules)
}

/// Returns a name with the chart's default instead of template actions.
fn name(item: &str) -> String {
    item.replace(r#"{{ include "karpenter.fullname" . }}"#, "karpenter")
}

fn condition(action: &str) -> anyhow::Result<(&'static str, &'static str)> {
    // Annotations and rules that a user adds.
    if action.starts_with("with .Values.additional") {
        return Ok(("", ""));
    }
    let known = CONDITIONS.iter().find(|(text, _, _)| *text == action);
    let (_, then, otherwise) = known.with_context(|| format!("unknown condition `{action}`"))?;
    Ok((then, otherwise))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_condition_is_an_error() {
        let error = rules("{{- if .Values.more }}\n").unwrap_err();
        assert_eq!(error.to_string(), "unknown condition `if .Values.more`");
    }
}
