//! Durations that keep the text of the user.
//!
//! The text of a user is kept and serialized verbatim (`720h`, never `720h0m0s`), because GitOps tools compare it.
//! The text is parsed as by Go's `time.ParseDuration`. A value beyond 64-bit nanoseconds (292 years) saturates: the CRD
//! patterns admit it. DIFFERS: upstream fails to decode such an object, and with it every list it is part of.
//!
//! UPSTREAM: pkg/apis/v1/duration.go

use std::fmt;
use std::str::FromStr;
use std::time::Duration as StdDuration;

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The error of parsing an invalid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration `{text}`")]
pub struct InvalidDuration {
    text: String,
}

/// Parses what Go's `time.ParseDuration` accepts: an optional sign, then `0` or decimal numbers with the units `ns`, `us`
/// (`µs`), `ms`, `s`, `m` and `h`, which add up. Saturates at the bounds of 64-bit nanoseconds; fractions of a nanosecond are dropped.
///
/// ```
/// use jiff::SignedDuration;
/// assert_eq!(karpenter_api::duration::parse("1h30m"), Ok(SignedDuration::from_mins(90)));
/// assert_eq!(karpenter_api::duration::parse("-1.5s"), Ok(SignedDuration::from_millis(-1500)));
/// assert!(karpenter_api::duration::parse("5").is_err());
/// ```
pub fn parse(text: &str) -> Result<SignedDuration, InvalidDuration> {
    let invalid = || InvalidDuration {
        text: text.to_owned(),
    };
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let (whole, after) = rest.split_at(
            rest.find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len()),
        );
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(
                after
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(after.len()),
            ),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let (unit, after) = after.split_at(
            after
                .find(|c: char| c == '.' || c.is_ascii_digit())
                .unwrap_or(after.len()),
        );
        let nanos: i128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(invalid()),
        };
        let units: i128 = if whole.is_empty() {
            0
        } else {
            whole.parse().unwrap_or(i128::MAX)
        };
        total = total
            .saturating_add(units.saturating_mul(nanos))
            .saturating_add(fraction_of(fraction, nanos));
        rest = after;
    }
    let total = if negative { -total } else { total };
    let clamped = i64::try_from(total).unwrap_or(if negative { i64::MIN } else { i64::MAX });
    Ok(SignedDuration::from_nanos(clamped))
}

/// Returns the nanoseconds of `0.<digits>` of a unit of `unit` nanoseconds.
fn fraction_of(digits: &str, unit: i128) -> i128 {
    // INVARIANT: 18 digits times the longest unit stay far below i128::MAX, and later digits are below a nanosecond.
    let digits = &digits[..digits.len().min(18)];
    let scale = 10_i128.pow(u32::try_from(digits.len()).unwrap_or(0));
    digits.parse::<i128>().unwrap_or(0) * unit / scale
}

/// Formats a duration as Go's `Duration.String` does: `1h0m0s`, `1.5s`, `250ms`, `0s`.
pub fn format(duration: SignedDuration) -> String {
    let nanos = duration.as_nanos();
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{sign}{nanos}ns"),
        1_000..1_000_000 => format!("{sign}{}µs", decimal(nanos, 1_000)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", decimal(nanos, 1_000_000)),
        _ => {
            let (minutes, seconds) = (
                nanos / 60_000_000_000,
                decimal(nanos % 60_000_000_000, 1_000_000_000),
            );
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

/// Formats `value / unit` with as many decimals as needed.
fn decimal(value: u128, unit: u128) -> String {
    let (whole, rest) = (value / unit, value % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    format!(
        "{whole}.{}",
        format!("{rest:0width$}").trim_end_matches('0')
    )
}

/// A duration with its text. Equality is that of the value: `90m` equals `1h30m`.
#[derive(Clone, Debug)]
pub struct Duration {
    raw: String,
    value: SignedDuration,
}

impl Duration {
    /// Creates a duration with the text in Go's format.
    pub fn new(value: SignedDuration) -> Self {
        // INVARIANT: the value fits 64-bit nanoseconds, as one that was read does.
        let value = value.clamp(
            SignedDuration::from_nanos(i64::MIN),
            SignedDuration::from_nanos(i64::MAX),
        );
        Self {
            raw: format(value),
            value,
        }
    }

    /// Returns the parsed value.
    pub fn value(&self) -> SignedDuration {
        self.value
    }

    /// Returns the parsed value for APIs without negative durations: those are zero.
    pub fn unsigned(&self) -> StdDuration {
        self.value.try_into().unwrap_or(StdDuration::ZERO)
    }

    /// Returns the text of the user.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// Returns the value in nanoseconds.
    pub fn nanos(&self) -> i64 {
        i64::try_from(self.value.as_nanos()).unwrap_or(i64::MAX)
    }
}

impl PartialEq for Duration {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Eq for Duration {}

impl FromStr for Duration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        Ok(Self {
            value: parse(text)?,
            raw: text.to_owned(),
        })
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.raw)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.raw)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^([0-9]+(s|m|h))+$" })
    }
}

/// A duration or `Never`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NillableDuration {
    /// `Never`.
    Never,
    /// A duration.
    After(Duration),
}

impl NillableDuration {
    /// Creates a duration with the text in Go's format.
    pub fn after(value: SignedDuration) -> Self {
        Self::After(Duration::new(value))
    }

    /// Returns the duration, or `None` for `Never`.
    pub fn value(&self) -> Option<SignedDuration> {
        match self {
            Self::Never => None,
            Self::After(duration) => Some(duration.value()),
        }
    }
}

impl FromStr for NillableDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        if text == "Never" {
            Ok(Self::Never)
        } else {
            text.parse().map(Self::After)
        }
    }
}

impl fmt::Display for NillableDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("Never"),
            Self::After(duration) => duration.fmt(f),
        }
    }
}

impl Serialize for NillableDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NillableDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl JsonSchema for NillableDuration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NillableDuration".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^(([0-9]+(s|m|h))+|Never)$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-003
    #[test]
    fn the_text_a_user_wrote_is_written_back() {
        for text in ["720h", "1h30m", "90m", "0s", "1s1s", "Never"] {
            let parsed: NillableDuration = serde_json::from_value(text.into()).unwrap();
            assert_eq!(
                serde_json::to_value(&parsed).unwrap(),
                serde_json::Value::from(text)
            );
        }
    }

    /// Conformance: API-002
    #[test]
    fn units_repeat_freely_and_add_up() {
        assert_eq!(parse("1h1m1s1h"), Ok(SignedDuration::from_secs(7261)));
        assert_eq!(parse("1m1m"), parse("120s"));
    }

    #[test]
    fn durations_are_equal_if_their_values_are() {
        let read = |text: &str| text.parse::<Duration>().unwrap();
        assert_eq!(read("90m"), read("1h30m"));
        assert_ne!(read("90m"), read("1h"));
    }

    #[test]
    fn go_s_grammar_is_parsed() {
        for (text, nanos) in [
            ("0", 0),
            ("1ns", 1),
            ("1.5us", 1_500),
            ("2µs", 2_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("+5s", 5_000_000_000),
            ("-1m30s", -90_000_000_000),
            ("0.3333333333333333333h", 1_199_999_999_999),
        ] {
            assert_eq!(parse(text), Ok(SignedDuration::from_nanos(nanos)), "{text}");
        }
        for text in [
            "", "-", "5", "s", ".s", "1x", "1h 2m", "1h-2m", "Never", "1..5s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    /// Conformance: API-004
    #[test]
    fn a_value_past_292_years_saturates() {
        let longest = SignedDuration::from_nanos(i64::MAX);
        assert_eq!(parse("9999999999h"), Ok(longest));
        assert_eq!(parse(&format!("{}h", "9".repeat(60))), Ok(longest));
        assert_eq!(
            parse("-9999999999h"),
            Ok(SignedDuration::from_nanos(i64::MIN))
        );
    }

    #[test]
    fn durations_are_formatted_like_go_s() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (250_000_000, "250ms"),
            (1_500_000_000, "1.5s"),
            (60_000_000_000, "1m0s"),
            (2_592_000_000_000_000, "720h0m0s"),
            (-90_000_000_000, "-1m30s"),
        ] {
            assert_eq!(format(SignedDuration::from_nanos(nanos)), text);
        }
    }

    proptest::proptest! {
        #[test]
        fn a_printed_duration_is_parsed_back(nanos: i64) {
            let duration = SignedDuration::from_nanos(nanos);
            proptest::prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }
    }
}
