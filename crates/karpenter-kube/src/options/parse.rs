//! Parsers of the values of flags.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use karpenter_core::schedule::{MinValuesPolicy, PreferencePolicy};
#[cfg(feature = "decisions")]
use karpenter_decisions::change::Change;

use super::LogLevel;

pub(super) fn preference_policy() -> impl TypedValueParser<Value = PreferencePolicy> {
    let names = PossibleValuesParser::new([
        PossibleValue::new("Respect").help("Preferences are required first and dropped one by one"),
        PossibleValue::new("Ignore").help("Preferences are ignored"),
    ]);
    names.map(|name| match name.as_str() {
        "Ignore" => PreferencePolicy::Ignore,
        _ => PreferencePolicy::Respect,
    })
}

pub(super) fn min_values_policy() -> impl TypedValueParser<Value = MinValuesPolicy> {
    let names = PossibleValuesParser::new([
        PossibleValue::new("Strict").help("The pool is incompatible"),
        PossibleValue::new("BestEffort").help("The number is lowered to the available one"),
    ]);
    names.map(|name| match name.as_str() {
        "BestEffort" => MinValuesPolicy::BestEffort,
        _ => MinValuesPolicy::Strict,
    })
}

pub(super) fn price(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(price) if price >= 0.0 && price.is_finite() => Ok(price),
        _ => Err(format!(
            "`{text}` is not a price in dollars per hour such as `0.03`"
        )),
    }
}

pub(super) fn log_level(text: &str) -> Result<LogLevel, String> {
    match text {
        "" | "info" => Ok(LogLevel::Info),
        "debug" => Ok(LogLevel::Debug),
        "error" => Ok(LogLevel::Error),
        other => Err(format!(
            "unknown log level `{other}`: must be debug, info or error"
        )),
    }
}

/// Parses Go's truth values: `true`, `T`, `1` and their opposites.
///
/// # Errors
/// Any other text.
pub fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!(
            "`{other}` is not a valid boolean: must be true or false"
        )),
    }
}

/// Parses Go's duration texts: `1h30m`, `1.5s`, `300ms`.
///
/// # Errors
/// A text that is not a sequence of decimal numbers with the units h, m, s, ms, us, µs or ns, or is negative.
pub fn go_duration(text: &str) -> Result<Duration, String> {
    let duration = karpenter_api::duration::parse(text).ok();
    duration
        .and_then(|duration| duration.try_into().ok())
        .ok_or_else(|| format!("`{text}` is not a valid duration such as `1m30s`"))
}

#[cfg(feature = "decisions")]
/// Parses a change of a shadow's copy of the cluster (`--shadow-if`): one that applies to NodePools, nodes or offerings, at any time.
pub(super) fn change_of_copy(text: &str) -> Result<Change, String> {
    let change: Change = text.trim().parse().map_err(|error| format!("{error}"))?;
    match change {
        Change::Tolerate(_) | Change::Drop(_) | Change::Now(_) => Err(format!(
            "invalid change `{change}`: a shadow decides on all pods, now"
        )),
        change => Ok(change),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "decisions")]
    use crate::options::Options;

    #[test]
    fn durations_are_parsed_as_in_go() {
        assert_eq!(go_duration("1h30m").unwrap(), Duration::from_secs(5400));
        assert_eq!(go_duration("1.5s").unwrap(), Duration::from_millis(1500));
        for bad in ["", "1", "s", "-1s", "1x"] {
            assert!(go_duration(bad).is_err(), "{bad}");
        }
    }

    #[cfg(feature = "decisions")]
    #[test]
    fn changes_are_separated_by_semicolons_and_not_of_single_pods_or_times() {
        let changes = "--shadow-if=policy.default=Balanced;budget.default=10%";
        let options = Options::read(["karpenter", "--shadow", changes]).unwrap();
        let read: Vec<String> = options.shadow_if.iter().map(ToString::to_string).collect();
        assert!(options.shadow);
        assert_eq!(read, ["policy.default=Balanced", "budget.default=10%"]);
        for bad in [
            "--shadow-if=policy.default=Often",
            "--shadow-if=now=2026-01-01T00:00:00Z",
            "--shadow-if=tolerate=a:NoSchedule",
        ] {
            assert!(Options::read(["karpenter", bad]).is_err(), "{bad}");
        }
    }
}
