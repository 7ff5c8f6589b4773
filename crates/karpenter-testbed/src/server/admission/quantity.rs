//! Quantities, as far as admission compares them: exact, by cross-multiplying decimal parts.

use std::cmp::Ordering;

use serde_json::Value;

/// A quantity as `mantissa × factor / 10^scale`.
#[derive(Debug, Clone, Copy)]
struct Parts {
    mantissa: i128,
    /// A power of ten, may be negative.
    exponent: i32,
    /// A power of two.
    shift: u32,
}

fn parts(text: &str) -> Option<Parts> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    let mantissa: i128 = digits.parse().ok()?;
    let (power, shift) = match suffix {
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
        other => (other.strip_prefix(['e', 'E'])?.parse().ok()?, 0),
    };
    let fraction = i32::try_from(fraction.len()).ok()?;
    Some(Parts {
        mantissa: sign * mantissa,
        exponent: power - fraction,
        shift,
    })
}

/// Returns the text of a quantity, which may also be a number in JSON.
#[must_use]
pub fn text(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

/// Whether a quantity is below zero.
#[must_use]
pub fn is_negative(value: &Value) -> bool {
    parts(&text(value)).is_some_and(|p| p.mantissa < 0)
}

/// Whether a quantity is zero (or invalid).
#[must_use]
pub fn is_zero(value: &Value) -> bool {
    parts(&text(value)).is_none_or(|p| p.mantissa == 0)
}

/// Compares two quantities; invalid or very large ones compare equal.
#[must_use]
pub fn compare(a: &Value, b: &Value) -> Ordering {
    let scaled = |p: Parts, lowest: i32| {
        let up = u32::try_from(p.exponent - lowest).ok()?;
        p.mantissa
            .checked_mul(10i128.checked_pow(up)?)?
            .checked_mul(1i128.checked_shl(p.shift)?)
    };
    let (Some(a), Some(b)) = (parts(&text(a)), parts(&text(b))) else {
        return Ordering::Equal;
    };
    let lowest = a.exponent.min(b.exponent);
    match (scaled(a, lowest), scaled(b, lowest)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(is_negative(&"-100m".into()) && !is_negative(&"100m".into()));
        assert!(is_zero(&"0".into()) && is_zero(&"0Gi".into()) && !is_zero(&"1m".into()));
    }
}
