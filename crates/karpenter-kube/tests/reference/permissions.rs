//! The permissions that the doctor looks for, against the chart.

use std::path::Path;

use karpenter_kube::decisions::RULES;

/// Returns the quoted words of a line `key: ["a", "b"]`.
fn words(line: &str, key: &str) -> Option<Vec<String>> {
    let line = line.trim_start().trim_start_matches("- ");
    let list = line.strip_prefix(key)?.strip_prefix(':')?;
    Some(
        list.split('"')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect(),
    )
}

/// Conformance: DEC-013
#[test]
fn the_chart_grants_what_the_doctor_looks_for() {
    let path = "../../charts/karpenter/templates/clusterrole-core.yaml";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(path).unwrap();
    let (mut groups, mut resources) = (Vec::new(), Vec::new());
    let mut granted = Vec::new();
    for line in text.lines() {
        groups = words(line, "apiGroups").unwrap_or(groups);
        resources = words(line, "resources").unwrap_or(resources);
        for verb in words(line, "verbs").unwrap_or_default() {
            for group in &groups {
                let of = resources.iter();
                granted.extend(of.map(|it| (group.clone(), it.clone(), verb.clone())));
            }
        }
    }
    assert!(granted.len() > 60, "{granted:?}");
    for (group, resource, verbs) in RULES {
        for verb in *verbs {
            let wanted = (
                (*group).to_owned(),
                (*resource).to_owned(),
                (*verb).to_owned(),
            );
            assert!(granted.contains(&wanted), "{wanted:?}");
        }
    }
}
