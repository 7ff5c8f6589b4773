//! The values of the Helm chart that set the environment variables of the controller.

use std::fs;

use crate::root;

/// Returns the value of the chart that sets an environment variable of the controller: `controller.env` for those that the
/// template does not name.
///
/// # Errors
///
/// The chart's template cannot be read.
pub fn chart_values() -> anyhow::Result<impl Fn(&str) -> Option<String>> {
    let template = fs::read_to_string(root().join("charts/karpenter/templates/deployment.yaml"))?;
    Ok(move |variable: &str| Some(value(&template, variable)))
}

fn value(template: &str, variable: &str) -> String {
    let listed = format!("(list \"{variable}\" ");
    if let Some(line) = template.lines().find(|line| line.contains(&listed)) {
        let (_, expression) = line.split_once(&listed).unwrap_or_default();
        return path(expression);
    }
    let named = format!("- name: {variable}\n");
    match template.split_once(&named) {
        Some((_, rest)) if rest.trim_start().starts_with("valueFrom") => "controller.resources",
        Some(_) => "fullnameOverride",
        None => "controller.env",
    }
    .to_owned()
}

/// Returns the first value in a template expression.
fn path(expression: &str) -> String {
    let words = expression.split(|c: char| !(c.is_alphanumeric() || ".$_".contains(c)));
    let mut paths = words.filter_map(|word| {
        let value = word.strip_prefix(".Values.");
        value.or_else(|| word.strip_prefix('$').filter(|path| path.contains('.')))
    });
    match paths.next() {
        // The helper `karpenter.settings` takes it from where earlier charts had it.
        Some("settings.legacyDefaultInstanceProfile") => "settings.aws.defaultInstanceProfile",
        Some(path) => path,
        None => "controller.env",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_the_one_that_the_template_reads() {
        let template = "            - name: CPU_REQUESTS\n              valueFrom:\n\
            (list \"METRICS_PORT\" $controller.metrics.port)\n\
            (list \"DECISIONS_PORT\" (ternary 0 .Values.decisions.port (and .Values.hostNetwork true)))\n\
            (list \"GATES\" (include \"karpenter.gates\" $settings.featureGates))\n";
        for (variable, expected) in [
            ("METRICS_PORT", "controller.metrics.port"),
            ("DECISIONS_PORT", "decisions.port"),
            ("GATES", "settings.featureGates"),
            ("CPU_REQUESTS", "controller.resources"),
            ("KUBE_CLIENT_QPS", "controller.env"),
        ] {
            assert_eq!(value(template, variable), expected, "{variable}");
        }
    }
}
