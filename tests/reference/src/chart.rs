//! The values of the Helm chart that set the environment variables of the controller.

use std::fs;

use crate::root;

/// Returns the value of the chart that sets an environment variable of the controller: `controller.env` for those that the
/// template does not name; `None` if it is a field of the pod.
///
/// # Errors
///
/// The chart's template cannot be read.
pub fn chart_values() -> anyhow::Result<impl Fn(&str) -> Option<String>> {
    let template = fs::read_to_string(root().join("charts/karpenter/templates/deployment.yaml"))?;
    Ok(move |variable: &str| value(&template, variable))
}

fn value(template: &str, variable: &str) -> Option<String> {
    let listed = format!("(list \"{variable}\" ");
    if let Some(line) = template.lines().find(|line| line.contains(&listed)) {
        let (_, expression) = line.split_once(&listed).unwrap_or_default();
        return Some(path(expression));
    }
    let named = format!("- name: {variable}\n");
    let found = match template.split_once(&named) {
        Some((_, rest)) => {
            let source: String = rest.split_whitespace().take(2).collect();
            match source.as_str() {
                "valueFrom:fieldRef:" => return None,
                "valueFrom:resourceFieldRef:" => "controller.resources",
                _ => "fullnameOverride",
            }
        }
        None => "controller.env",
    };
    Some(found.to_owned())
}

/// Returns the first value in a template expression, of those that may be empty if there are some.
fn path(expression: &str) -> String {
    let expression = match expression.split_once("(empty ") {
        Some((_, empty)) => empty,
        None => expression,
    };
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
        let template = "            - name: CPU_REQUESTS\n              valueFrom:\n                resourceFieldRef:\n\
            - name: POD_IP\n              valueFrom:\n                fieldRef:\n\
            - name: KARPENTER_SERVICE\n              value: {{ x }}\n\
            (list \"METRICS_CERT_DIR\" (ternary \"/etc\" nil (not (empty $controller.metrics.tlsSecret))))\n\
            (list \"METRICS_PORT\" $controller.metrics.port)\n\
            (list \"DECISIONS_PORT\" (ternary 0 .Values.decisions.port (and .Values.hostNetwork true)))\n\
            (list \"GATES\" (include \"karpenter.gates\" $settings.featureGates))\n";
        for (variable, expected) in [
            ("METRICS_PORT", Some("controller.metrics.port")),
            ("METRICS_CERT_DIR", Some("controller.metrics.tlsSecret")),
            ("DECISIONS_PORT", Some("decisions.port")),
            ("GATES", Some("settings.featureGates")),
            ("CPU_REQUESTS", Some("controller.resources")),
            ("POD_IP", None),
            ("KARPENTER_SERVICE", Some("fullnameOverride")),
            ("KUBE_CLIENT_QPS", Some("controller.env")),
        ] {
            let found = value(template, variable);
            assert_eq!(found.as_deref(), expected, "{variable}");
        }
    }
}
