//! Parses and compares Kubernetes quantities, for the API server and the controllers.
//!
//! Implemented separately from the engine's quantity type, so that the two can disagree (architecture invariant I5).

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

/// The largest power of ten of a quantity. The real API server computes the power when it compares a request with zero, and has no
/// answer in time for a larger one.
const MAX_EXPONENT: u32 = 1_000_000;

/// The sign, the digits before and behind the point, the power of ten and the power of two of a quantity's text.
struct Text<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    exponent: i32,
    shift: u32,
}

impl<'a> Text<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (exponent, shift) = match suffix {
            "n" => (-9, 0),
            "u" => (-6, 0),
            "m" => (-3, 0),
            "" => (0, 0),
            "k" => (3, 0),
            "M" => (6, 0),
            "G" => (9, 0),
            "T" => (12, 0),
            "P" => (15, 0),
            "E" => (18, 0),
            "Ki" => (0, 10),
            "Mi" => (0, 20),
            "Gi" => (0, 30),
            "Ti" => (0, 40),
            "Pi" => (0, 50),
            "Ei" => (0, 60),
            other => (other.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?, 0),
        };
        if exponent.unsigned_abs() > MAX_EXPONENT {
            return None;
        }
        Some(Self {
            negative: text.starts_with('-'),
            whole,
            fraction,
            exponent,
            shift,
        })
    }

    /// Returns the mantissa and the power of ten; `None` if they are too large to compute with.
    fn number(&self) -> Option<(i128, i32)> {
        let digits = self.whole.bytes().chain(self.fraction.bytes());
        let mantissa = digits.into_iter().try_fold(0_i128, |all, digit| {
            all.checked_mul(10)?.checked_add(i128::from(digit - b'0'))
        })?;
        let mantissa = mantissa.checked_mul(1 << self.shift)?;
        let mantissa = if self.negative { -mantissa } else { mantissa };
        let places = i32::try_from(self.fraction.len()).ok()?;
        Some((mantissa, self.exponent.checked_sub(places)?))
    }
}

/// Returns `mantissa` × 10^`power`, rounded up.
fn scaled(mantissa: i128, power: i32) -> Option<i128> {
    if mantissa == 0 {
        return Some(0);
    }
    let factor = 10_i128.checked_pow(power.unsigned_abs())?;
    if power >= 0 {
        return mantissa.checked_mul(factor);
    }
    Some(mantissa.div_euclid(factor) + i128::from(mantissa.rem_euclid(factor) != 0))
}

fn parse(value: &Value) -> Option<(i128, i32)> {
    Text::parse(&text(value))?.number()
}

/// Returns whether `text` is a quantity such as `100m`, `1.5Gi`, `1e3`.
pub(crate) fn is_quantity(text: &str) -> bool {
    Text::parse(text).is_some()
}

/// Returns the text of a quantity, which may also be a number in JSON.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

/// Returns whether a quantity is below zero.
pub(crate) fn is_negative(value: &Value) -> bool {
    parse(value).is_some_and(|(mantissa, _)| mantissa < 0)
}

/// Returns whether a quantity is zero (or invalid).
pub(crate) fn is_zero(value: &Value) -> bool {
    parse(value).is_none_or(|(mantissa, _)| mantissa == 0)
}

/// Compares two quantities exactly; invalid or very large ones compare equal.
pub(crate) fn compare(a: &Value, b: &Value) -> Ordering {
    let exact = || {
        let (a, a_power) = parse(a)?;
        let (b, b_power) = parse(b)?;
        let lowest = a_power.min(b_power);
        let a = scaled(a, a_power.checked_sub(lowest)?)?;
        let b = scaled(b, b_power.checked_sub(lowest)?)?;
        Some(a.cmp(&b))
    };
    exact().unwrap_or(Ordering::Equal)
}

/// Returns the amount in units of 10^-`places`, rounded up and clamped to `i64`. An invalid or very large quantity counts as zero, as
/// `Quantity.Value` and `MilliValue` have it: kube-scheduler binds a pod that requests `1e99` cores to any node.
fn units(quantity: &Quantity, places: i32) -> i64 {
    let amount = Text::parse(&quantity.0)
        .and_then(|text| text.number())
        .and_then(|(mantissa, power)| scaled(mantissa, power.checked_add(places)?))
        .unwrap_or(0);
    i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX })
}

/// Returns the amount in whole units, rounded up.
pub(crate) fn whole(quantity: &Quantity) -> i64 {
    units(quantity, 0)
}

/// Returns the amount in the scheduler's units: thousandths for `cpu`, whole units for all other resources.
pub(crate) fn amount(resource: &str, quantity: &Quantity) -> i64 {
    units(quantity, if resource == "cpu" { 3 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(text: &str) -> Quantity {
        Quantity(text.to_owned())
    }

    #[test]
    fn quantities_are_recognized() {
        for good in [
            "1", "100m", "1.5Gi", "-1", "+2k", "1e3", "1E-3", ".5", "5.", "1e99",
        ] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in [
            "",
            "-",
            ".",
            "m",
            "abc",
            "mem2",
            "1.2.3",
            "1x",
            "1Qi",
            "1 Gi",
            "1e",
            "--1",
            "1e999999999",
            "1e-999999999",
        ] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }

    #[test]
    fn amounts_scale_by_their_suffix_and_round_up() {
        assert_eq!(amount("cpu", &q("1500m")), 1500);
        assert_eq!(amount("cpu", &q("1.5")), 1500);
        assert_eq!(amount("cpu", &q("100u")), 1);
        assert_eq!(amount("memory", &q("1.5Gi")), 1_610_612_736);
        assert_eq!(amount("memory", &q("12e6")), 12_000_000);
        assert_eq!(amount("memory", &q("1E")), 1_000_000_000_000_000_000);
        assert_eq!(amount("memory", &q("100m")), 1);
        assert_eq!(whole(&q("1100m")), 2);
        assert_eq!(whole(&q("-1100m")), -1);
    }

    #[test]
    fn amounts_beyond_an_i64_are_clamped_and_nonsense_is_zero() {
        assert_eq!(whole(&q("10E")), i64::MAX);
        assert_eq!(whole(&q("-10E")), i64::MIN);
        for text in ["abc", "1e99", "1e2147483647", "1.0e-2147483648"] {
            assert_eq!(whole(&q(text)), 0, "{text}");
        }
    }

    #[test]
    fn quantities_compare_across_suffixes() {
        for (a, b, order) in [
            ("1", "1000m", Ordering::Equal),
            ("1.5", "1500m", Ordering::Equal),
            ("1Gi", "1G", Ordering::Greater),
            ("999m", "1", Ordering::Less),
            ("1e3", "1k", Ordering::Equal),
            ("-1", "0", Ordering::Less),
        ] {
            assert_eq!(compare(&a.into(), &b.into()), order, "{a} {b}");
        }
        let (huge, tiny) = ("1e2147483647".into(), "1e-2147483647".into());
        assert_eq!(compare(&huge, &tiny), Ordering::Equal);
        assert!(is_negative(&"-100m".into()) && !is_negative(&"100m".into()));
        assert!(is_zero(&"0".into()) && is_zero(&"0Gi".into()) && !is_zero(&"1m".into()));
    }
}
