//! Parses Kubernetes quantities.
//!
//! Implemented separately from the engine's quantity type, so that the two can disagree (architecture invariant I5).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const NANO: i128 = 1_000_000_000;

/// Returns the amount in nano-units, or `None` if the text is not a quantity.
pub(crate) fn nano(text: &str) -> Option<i128> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let mut digits: i128 = 0;
    let mut scale: i32 = 0;
    for c in whole.bytes().chain(fraction.bytes()).take(36) {
        digits = digits.checked_mul(10)?.checked_add(i128::from(c - b'0'))?;
    }
    scale -= i32::try_from(fraction.len().min(36)).ok()?;
    let (binary, decimal) = match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        other => {
            let exponent = other.strip_prefix(['e', 'E'])?;
            (0, exponent.parse::<i32>().ok().filter(|e| e.abs() < 30)?)
        }
    };
    let mut value = digits.checked_mul(1i128 << binary)?;
    let power = 9 + decimal + scale;
    let factor = 10i128.checked_pow(power.unsigned_abs())?;
    value = if power >= 0 {
        value.checked_mul(factor)?
    } else {
        value / factor + i128::from(value % factor != 0)
    };
    Some(if negative { -value } else { value })
}

/// Returns the amount in units of 1/`per_unit`, rounded up and clamped to `i64`, as `Quantity.Value`/`MilliValue` do.
fn scaled(quantity: &Quantity, per_unit: i128) -> i64 {
    let Some(value) = nano(&quantity.0) else {
        return 0;
    };
    let step = NANO / per_unit;
    let rounded = value.div_euclid(step) + i128::from(value.rem_euclid(step) != 0);
    i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
}

/// Returns the amount in the scheduler's units: thousandths for `cpu`, whole units for all other resources.
pub(crate) fn amount(resource: &str, quantity: &Quantity) -> i64 {
    scaled(quantity, if resource == "cpu" { 1000 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(text: &str) -> Quantity {
        Quantity(text.to_owned())
    }

    #[test]
    fn suffixes_scale() {
        assert_eq!(amount("cpu", &q("1500m")), 1500);
        assert_eq!(amount("cpu", &q("1.5")), 1500);
        assert_eq!(amount("cpu", &q("100u")), 1);
        assert_eq!(amount("memory", &q("1.5Gi")), 1_610_612_736);
        assert_eq!(amount("memory", &q("12e6")), 12_000_000);
        assert_eq!(amount("memory", &q("1E")), 1_000_000_000_000_000_000);
        assert_eq!(amount("memory", &q("100m")), 1);
    }

    #[test]
    fn nonsense_is_nothing() {
        for text in ["", "-", "abc", "1.2.3", "1Qi", "1e99", "."] {
            assert_eq!(nano(text), None, "{text}");
        }
    }
}
