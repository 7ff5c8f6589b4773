//! Quantities as text: parsing, and printing in the suffix family of the quantity.

use std::fmt;
use std::str::FromStr;

use super::{Format, InvalidQuantity, MAX_BINARY, MAX_NANOS, NANO, Quantity};

/// The factor of a suffix.
enum Scale {
    /// A power of ten.
    Ten(i32),
    /// A power of two.
    Two(u32),
}

fn suffix(text: &str) -> Option<(Scale, Format)> {
    use Format::{BinarySi, DecimalExponent, DecimalSi};
    Some(match text {
        "n" => (Scale::Ten(-9), DecimalSi),
        "u" => (Scale::Ten(-6), DecimalSi),
        "m" => (Scale::Ten(-3), DecimalSi),
        "" => (Scale::Ten(0), DecimalSi),
        "k" => (Scale::Ten(3), DecimalSi),
        "M" => (Scale::Ten(6), DecimalSi),
        "G" => (Scale::Ten(9), DecimalSi),
        "T" => (Scale::Ten(12), DecimalSi),
        "P" => (Scale::Ten(15), DecimalSi),
        "E" => (Scale::Ten(18), DecimalSi),
        "Ki" => (Scale::Two(10), BinarySi),
        "Mi" => (Scale::Two(20), BinarySi),
        "Gi" => (Scale::Two(30), BinarySi),
        "Ti" => (Scale::Two(40), BinarySi),
        "Pi" => (Scale::Two(50), BinarySi),
        "Ei" => (Scale::Two(60), BinarySi),
        _ => {
            let exponent: i32 = text.strip_prefix(['e', 'E'])?.parse().ok()?;
            // Upstream negates the exponent, so the one value without a negative is out of range.
            (
                Scale::Ten((exponent != i32::MIN).then_some(exponent)?),
                DecimalExponent,
            )
        }
    })
}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |reason| InvalidQuantity {
            value: text.chars().take(64).collect(),
            reason,
        };
        if text.is_empty() {
            return Err(invalid("it is empty"));
        }
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = rest.split_at(digits(rest));
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        // A number without digits is zero, as upstream: "." is accepted there.
        let (scale, mut format) = suffix(rest).ok_or_else(|| invalid("the suffix is unknown"))?;
        let magnitude = match scale {
            Scale::Ten(exponent) => decimal_nanos(whole, fraction, exponent),
            Scale::Two(shift) => {
                let nanos = binary_nanos(whole, fraction, shift);
                if (1..NANO).contains(&nanos) {
                    format = Format::DecimalSi;
                }
                nanos
            }
        };
        Ok(Quantity {
            nanos: if negative { -magnitude } else { magnitude },
            format,
        })
    }
}

/// Returns `whole.fraction * 10^exponent` in nano-units, rounded up, at most [`MAX_NANOS`].
fn decimal_nanos(whole: &str, fraction: &str, exponent: i32) -> i128 {
    let significant = || {
        whole
            .bytes()
            .chain(fraction.bytes())
            .skip_while(|&digit| digit == b'0')
            .peekable()
    };
    let leading_zeros = (whole.len() + fraction.len() - significant().count()) as i64;
    if significant().peek().is_none() {
        return 0;
    }
    // The number of significant digits that lie at or above a nano-unit.
    let places = whole.len() as i64 - leading_zeros + i64::from(exponent) + 9;
    if places > 38 {
        return MAX_NANOS;
    }
    let mut nanos: i128 = 0;
    let mut digits = significant();
    for _ in 0..places.max(0) {
        nanos = nanos * 10 + digits.next().map_or(0, |digit| i128::from(digit - b'0'));
    }
    // A digit below the nano place rounds up.
    nanos + i128::from(digits.any(|digit| digit != b'0'))
}

/// Returns `whole.fraction * 2^shift` in nano-units, rounded up, at most [`MAX_BINARY`].
fn binary_nanos(whole: &str, fraction: &str, shift: u32) -> i128 {
    let whole = whole.trim_start_matches('0');
    if whole.len() > 19 {
        return MAX_BINARY;
    }
    let units = whole
        .bytes()
        .fold(0i128, |sum, digit| sum * 10 + i128::from(digit - b'0'));
    let unit_nanos = (1i128 << shift) * NANO;
    if units > MAX_BINARY / unit_nanos {
        return MAX_BINARY;
    }
    // Horner's rule from the last digit: floors of floors are floors, and any remainder rounds up at the end.
    let (part, inexact) = fraction
        .bytes()
        .rev()
        .fold((0i128, false), |(sum, inexact), digit| {
            let sum = sum + i128::from(digit - b'0') * unit_nanos;
            (sum / 10, inexact || sum % 10 != 0)
        });
    (units * unit_nanos + part + i128::from(inexact)).min(MAX_BINARY)
}

impl fmt::Display for Quantity {
    /// Writes the canonical form: the largest suffix of the family with which the number stays whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        let nanos = self.nanos.abs();
        match self.format {
            // A fraction of a byte, or a small number, is clearer in decimals.
            Format::BinarySi if nanos % NANO == 0 && nanos >= 1024 * NANO => {
                binary(nanos / NANO, f)
            }
            Format::DecimalExponent => decimal(nanos, Format::DecimalExponent, f),
            Format::BinarySi | Format::DecimalSi => decimal(nanos, Format::DecimalSi, f),
        }
    }
}

fn decimal(mut mantissa: i128, format: Format, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut exponent = -9;
    while mantissa % 1000 == 0 {
        mantissa /= 1000;
        exponent += 3;
    }
    let suffix = match (format, exponent) {
        (_, 0) => "",
        (Format::DecimalSi, -9) => "n",
        (Format::DecimalSi, -6) => "u",
        (Format::DecimalSi, -3) => "m",
        (Format::DecimalSi, 3) => "k",
        (Format::DecimalSi, 6) => "M",
        (Format::DecimalSi, 9) => "G",
        (Format::DecimalSi, 12) => "T",
        (Format::DecimalSi, 15) => "P",
        (Format::DecimalSi, 18) => "E",
        // No suffix beyond E exists: the exponent keeps the magnitude.
        _ => return write!(f, "{mantissa}e{exponent}"),
    };
    write!(f, "{mantissa}{suffix}")
}

fn binary(units: i128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut mantissa, mut step) = (units, 0);
    while mantissa % 1024 == 0 {
        mantissa /= 1024;
        step += 1;
    }
    match SUFFIXES.get(step) {
        Some(suffix) if units <= MAX_BINARY / NANO => write!(f, "{mantissa}{suffix}"),
        // With a suffix, parsing would cap it.
        _ => decimal(units * NANO, Format::DecimalExponent, f),
    }
}
