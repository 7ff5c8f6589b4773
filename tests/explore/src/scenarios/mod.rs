//! Scenarios of Kamera, a tester of control planes: the format of its files, and the cluster of each.
//!
//! Their origin and licence are in `tests/explore/scenarios/README.md`.

mod cluster;

use std::collections::BTreeMap;

use anyhow::anyhow;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A scenario: a cluster, what users and others do to it, and what is disturbed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    environment_state: EnvironmentState,
    #[serde(default)]
    tuning: Tuning,
    /// What happens, in this order.
    #[serde(default, alias = "externalInputs")]
    user_inputs: Vec<Input>,
}

/// The objects at the beginning.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvironmentState {
    objects: Vec<Value>,
}

/// How a scenario is explored. All orders are tried here, so that most of it is not needed.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Tuning {
    staleness_intervals: Vec<StalenessInterval>,
    /// The same in an older form: kinds by controller.
    stale_reads: BTreeMap<String, Vec<String>>,
    /// Ends of the process.
    fault_injection: Vec<FaultInjection>,
    #[serde(rename = "maxDepth")]
    _max_depth: IgnoredAny,
    #[serde(rename = "permuteControllers")]
    _permute_controllers: IgnoredAny,
    #[serde(rename = "permuteAfterEvent")]
    _permute_after_event: IgnoredAny,
    #[serde(rename = "userActionReadyDepths")]
    _user_action_ready_depths: IgnoredAny,
    #[serde(rename = "staleLookback")]
    _stale_lookback: IgnoredAny,
    #[serde(rename = "search")]
    _search: IgnoredAny,
}

/// An interrupted watch of a controller.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StalenessInterval {
    /// The kind: `group/Kind`.
    kind: String,
    #[serde(rename = "reconciler")]
    _reconciler: IgnoredAny,
    #[serde(rename = "staleAt", default)]
    _stale_at: IgnoredAny,
    #[serde(rename = "catchUpAt", default)]
    _catch_up_at: IgnoredAny,
    #[serde(rename = "lag", default)]
    _lag: IgnoredAny,
}

/// An end of the process.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FaultInjection {
    #[serde(rename = "reconciler")]
    _reconciler: IgnoredAny,
    #[serde(rename = "crashAfterEffect", default)]
    _crash_after_effect: IgnoredAny,
    #[serde(rename = "triggerOnce", default)]
    _trigger_once: IgnoredAny,
}

/// Something that happens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    /// `CREATE`, `UPDATE` or `DELETE`.
    #[serde(rename = "type", alias = "opType")]
    operation: String,
    object: Value,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    #[serde(rename = "source", default)]
    _source: IgnoredAny,
}

/// Reads the scenarios of a file.
///
/// # Errors
/// Fails if the file has a field that is not known; the error names it.
pub fn read(text: &str) -> anyhow::Result<Vec<Scenario>> {
    decode(&mut serde_json::Deserializer::from_str(text), "scenarios")
}

fn decode<'de, T: Deserialize<'de>>(
    from: impl Deserializer<'de>,
    field: &str,
) -> anyhow::Result<T> {
    let decoded = serde_path_to_error::deserialize(from);
    decoded.map_err(|error| anyhow!("{field}.{}: {}", error.path(), error.inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(more: &str) -> String {
        format!(r#"[{{"name": "n", "environmentState": {{"objects": []}}, "tuning": {{{more}}}}}]"#)
    }

    #[test]
    fn an_unknown_field_kind_or_operation_is_an_error_that_names_the_field() {
        let problem = |text: &str| {
            let read = read(text).and_then(|all| all[0].world().map(drop));
            read.unwrap_err().to_string()
        };
        let misspelt = problem(&text(r#""maxDepht": 3"#));
        assert!(misspelt.starts_with("scenarios.[0].tuning"), "{misspelt}");
        assert!(misspelt.contains("maxDepht"), "{misspelt}");
        let wrong = r#""stalenessIntervals": [{"reconciler": "r", "kind": 5}]"#;
        assert!(problem(&text(wrong)).contains("[0].tuning.stalenessIntervals[0].kind"));
        let of = |kind: &str, operation: &str| {
            let object = format!(r#"{{"kind": "{kind}", "metadata": {{"name": "x"}}}}"#);
            let input = format!(r#"{{"id": "i", "type": "{operation}", "object": {object}}}"#);
            let inputs = format!(r#""userInputs": [{input}], "tuning""#);
            text("").replace(r#""tuning""#, &inputs)
        };
        assert!(problem(&of("Gateway", "CREATE")).contains("userInputs[0].object.kind"));
        assert!(problem(&of("Pod", "PATCH")).contains("userInputs[0].type"));
        let known = read(&of("Pod", "DELETE")).unwrap();
        assert!(known[0].world().is_ok());
    }
}
