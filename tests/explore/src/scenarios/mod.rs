//! Scenarios of Kamera, a tester of control planes: the format of its files, and the cluster of each.
//!
//! Their origin and licence are in `tests/explore/scenarios/README.md`.

mod cluster;

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

/// A scenario: a cluster, what users and others do to it, and what is disturbed.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The cluster.
    pub environment_state: EnvironmentState,
    /// How far and how it is explored.
    #[serde(default)]
    pub tuning: Tuning,
    /// What happens, in this order.
    #[serde(default, alias = "externalInputs")]
    pub user_inputs: Vec<Input>,
}

/// The objects at the beginning.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvironmentState {
    /// The objects.
    pub objects: Vec<Value>,
}

/// How a scenario is explored. All orders are tried here, so that most of it is not needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tuning {
    /// The longest path.
    pub max_depth: Option<usize>,
    /// The controllers whose order varies.
    pub permute_controllers: Option<Vec<String>>,
    /// The event after which it does.
    pub permute_after_event: Option<Value>,
    /// After how many steps an input may happen.
    pub user_action_ready_depths: Option<Value>,
    /// Watches that are interrupted.
    #[serde(default)]
    pub staleness_intervals: Vec<StalenessInterval>,
    /// The same in an older form: kinds by controller.
    pub stale_reads: Option<std::collections::BTreeMap<String, Vec<String>>>,
    /// By how many versions.
    pub stale_lookback: Option<Value>,
    /// Ends of the process.
    #[serde(default)]
    pub fault_injection: Vec<FaultInjection>,
    /// The strategy of the search.
    pub search: Option<Value>,
}

/// An interrupted watch.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StalenessInterval {
    /// The controller.
    pub reconciler: String,
    /// The kind: `group/Kind`.
    pub kind: String,
    /// The version from which it is interrupted.
    pub stale_at: Option<i64>,
    /// The version with which it is connected again.
    pub catch_up_at: Option<i64>,
    /// By how many versions it lags.
    pub lag: Option<i64>,
}

/// An end of the process.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultInjection {
    /// The controller.
    pub reconciler: String,
    /// After how many writes.
    pub crash_after_effect: Option<u32>,
    /// Whether it happens once only.
    pub trigger_once: Option<bool>,
}

/// Something that happens.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Its name.
    pub id: String,
    /// `CREATE`, `UPDATE` or `DELETE`.
    #[serde(rename = "type", alias = "opType")]
    pub operation: String,
    /// The object.
    pub object: Value,
    /// Who does it.
    pub source: Option<String>,
}

/// Why a file of scenarios is not understood: it names the file and the field.
#[derive(Debug)]
pub struct Invalid {
    file: String,
    field: String,
    problem: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            field,
            problem,
        } = self;
        write!(f, "invalid scenario file {file}: {field}: {problem}")
    }
}

impl std::error::Error for Invalid {}

impl Invalid {
    fn new(file: &str, field: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self {
            file: file.to_owned(),
            field: field.into(),
            problem: problem.to_string(),
        }
    }
}

/// Reads the scenarios of a file.
///
/// # Errors
/// Fails if the file has a field, a kind or an operation that is not known.
pub fn read(file: &str, text: &str) -> Result<Vec<Scenario>, Invalid> {
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json)
        .map_err(|error| Invalid::new(file, error.path().to_string(), error.inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(more: &str) -> String {
        format!(r#"[{{"name": "n", "environmentState": {{"objects": []}}, "tuning": {{{more}}}}}]"#)
    }

    #[test]
    fn an_unknown_field_is_an_error_that_names_file_and_field() {
        let problem = read("a.json", &text(r#""maxDepht": 3"#))
            .unwrap_err()
            .to_string();
        assert!(
            problem.starts_with("invalid scenario file a.json: [0].tuning"),
            "{problem}"
        );
        assert!(problem.contains("maxDepht"), "{problem}");
        let wrong = r#""stalenessIntervals": [{"reconciler": "r", "kind": 5}]"#;
        let problem = read("a.json", &text(wrong)).unwrap_err().to_string();
        assert!(
            problem.contains("[0].tuning.stalenessIntervals[0].kind"),
            "{problem}"
        );
    }

    #[test]
    fn an_unknown_kind_or_operation_is_an_error_that_names_it() {
        let of = |kind: &str, operation: &str| {
            let object = format!(r#"{{"kind": "{kind}", "metadata": {{"name": "x"}}}}"#);
            let input = format!(r#"{{"id": "i", "type": "{operation}", "object": {object}}}"#);
            let text = format!(
                r#"[{{"name": "n", "environmentState": {{"objects": []}}, "userInputs": [{input}]}}]"#
            );
            let scenario = read("a.json", &text).unwrap().remove(0);
            scenario
                .world("a.json")
                .map(drop)
                .map_err(|problem| problem.to_string())
        };
        assert!(
            of("Gateway", "CREATE")
                .unwrap_err()
                .contains("userInputs[0].object.kind")
        );
        assert!(
            of("Pod", "PATCH")
                .unwrap_err()
                .contains("userInputs[0].type")
        );
        assert_eq!(of("Pod", "DELETE"), Ok(()));
    }
}
