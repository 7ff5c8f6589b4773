//! Kubernetes quantities, exactly: `1500m`, `1.5Gi`, `2e3`.
//!
//! A quantity is a decimal number with at most nine decimals, and the suffix family it is printed in. It is stored as a whole
//! number of nano-units, so that arithmetic and order are exact. Values that cannot be represented are rounded *away from zero*:
//! a positive request never becomes zero.
// UPSTREAM: k8s.io/apimachinery/pkg/api/resource/quantity.go, suffix.go, scale_int.go

mod text;

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;

/// Nano-units in a unit.
const NANO: i128 = 1_000_000_000;
/// Nano-units in a milli-unit.
const NANO_PER_MILLI: i128 = 1_000_000;
/// The largest magnitude of a quantity written with a binary suffix: 2^63 - 1 units, as upstream.
const MAX_BINARY: i128 = i64::MAX as i128 * NANO;
/// The largest magnitude of any quantity: 10^29 units. Upstream's decimals are unbounded; no resource is that large.
const MAX_NANOS: i128 = 100_000_000_000_000_000_000_000_000_000_000_000_000;

/// The suffix family in which a quantity is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// `n`, `u`, `m`, none, `k`, `M`, `G`, `T`, `P`, `E`.
    #[default]
    DecimalSi,
    /// none, `Ki`, `Mi`, `Gi`, `Ti`, `Pi`, `Ei`.
    BinarySi,
    /// `e3`, `e-6`.
    DecimalExponent,
}

/// An exact quantity. Equality, order and hash are by value: `1Gi == 1024Mi`.
///
/// ```
/// use karpenter_core::quantity::Quantity;
///
/// let quantity = |text: &str| text.parse::<Quantity>();
/// assert_eq!(quantity("1Gi")?, quantity("1024Mi")?);
/// assert_eq!(quantity("1.5")?.millis_ceil(), 1500);
/// // Rounded up: a positive request never becomes zero.
/// assert_eq!(quantity("0.1m")?.millis_ceil(), 1);
/// assert_eq!((quantity("500m")?.saturating_add(quantity("1.5")?)).to_string(), "2");
/// assert!(quantity("1 Gi").is_err());
/// # Ok::<(), karpenter_core::quantity::InvalidQuantity>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// A string that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not a quantity: {reason}")]
pub struct InvalidQuantity {
    /// The string, cut to 64 characters.
    pub value: String,
    /// The cause.
    pub reason: &'static str,
}

impl Quantity {
    /// Zero.
    pub const ZERO: Quantity = Quantity {
        nanos: 0,
        format: Format::DecimalSi,
    };

    /// Creates a whole number of units, printed in `format`.
    pub fn from_units(units: i64, format: Format) -> Quantity {
        Quantity {
            nanos: i128::from(units) * NANO,
            format,
        }
    }

    /// Creates a number of thousandths of a unit, printed with decimal suffixes: `1500` is `1500m`.
    pub fn from_millis(millis: i64) -> Quantity {
        Quantity {
            nanos: i128::from(millis) * NANO_PER_MILLI,
            format: Format::DecimalSi,
        }
    }

    /// Returns the value in nano-units.
    pub fn nanos(&self) -> i128 {
        self.nanos
    }

    /// Returns the suffix family in which the quantity is printed.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Reports whether the value is zero.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Reports whether the value is negative.
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// Returns the value in whole units, rounded up and clamped to the range of `i64`.
    pub fn units_ceil(&self) -> i64 {
        div_ceil(self.nanos, NANO)
    }

    /// Returns the value in whole units, rounded down and clamped to the range of `i64`.
    pub fn units_floor(&self) -> i64 {
        div_floor(self.nanos, NANO)
    }

    /// Returns the value in thousandths of a unit, rounded up and clamped to the range of `i64`.
    pub fn millis_ceil(&self) -> i64 {
        div_ceil(self.nanos, NANO_PER_MILLI)
    }

    /// Returns the value in thousandths of a unit, rounded down and clamped to the range of `i64`.
    pub fn millis_floor(&self) -> i64 {
        div_floor(self.nanos, NANO_PER_MILLI)
    }

    /// Returns the value in units as a floating point number, for metrics.
    pub fn as_f64(&self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    /// Returns the sum. A zero takes on the other's suffix family, as upstream.
    #[must_use]
    pub fn saturating_add(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        Quantity {
            nanos: self
                .nanos
                .saturating_add(other.nanos)
                .clamp(-MAX_NANOS, MAX_NANOS),
            format,
        }
    }

    /// Returns the difference. A zero takes on the other's suffix family, as upstream.
    #[must_use]
    pub fn saturating_sub(self, other: Quantity) -> Quantity {
        self.saturating_add(-other)
    }
}

impl std::ops::Neg for Quantity {
    type Output = Quantity;

    fn neg(self) -> Quantity {
        // INVARIANT: |nanos| <= MAX_NANOS < i128::MAX.
        Quantity {
            nanos: -self.nanos,
            format: self.format,
        }
    }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn div_floor(value: i128, by: i128) -> i64 {
    saturate(value.div_euclid(by))
}

fn div_ceil(value: i128, by: i128) -> i64 {
    saturate(-(-value).div_euclid(by))
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl TryFrom<&WireQuantity> for Quantity {
    type Error = InvalidQuantity;

    fn try_from(wire: &WireQuantity) -> Result<Self, Self::Error> {
        wire.0.parse()
    }
}

impl From<Quantity> for WireQuantity {
    fn from(quantity: Quantity) -> Self {
        WireQuantity(quantity.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Format::{BinarySi, DecimalExponent, DecimalSi};
    use super::*;

    fn parse(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    /// Returns a mantissa times ten to an exponent, in nano-units.
    fn dec(mantissa: i128, exponent: i32) -> i128 {
        mantissa * 10i128.pow(u32::try_from(exponent + 9).unwrap())
    }

    const ACCEPTED: &[(&str, i128, i32, Format)] = &[
        ("0", 0, 0, DecimalSi),
        ("0n", 0, 0, DecimalSi),
        ("0Ki", 0, 0, BinarySi),
        ("0T", 0, 0, DecimalSi),
        ("1", 1, 0, DecimalSi),
        ("1Ki", 1024, 0, BinarySi),
        ("7Mi", 7 << 20, 0, BinarySi),
        ("6Gi", 6 << 30, 0, BinarySi),
        ("100Ti", 100 << 40, 0, BinarySi),
        ("4Pi", 4 << 50, 0, BinarySi),
        ("3Ei", 3 << 60, 0, BinarySi),
        ("5n", 5, -9, DecimalSi),
        ("4u", 4, -6, DecimalSi),
        ("3m", 3, -3, DecimalSi),
        ("50k", 5, 4, DecimalSi),
        ("7M", 7, 6, DecimalSi),
        ("6G", 6, 9, DecimalSi),
        ("300T", 3, 14, DecimalSi),
        ("2P", 2, 15, DecimalSi),
        ("1E", 1, 18, DecimalSi),
        ("12E", 12, 18, DecimalSi),
        ("1E-3", 1, -3, DecimalExponent),
        ("1e3", 1, 3, DecimalExponent),
        ("1E18", 1, 18, DecimalExponent),
        ("1e13", 1, 13, DecimalExponent),
        ("100.035k", 100_035, 0, DecimalSi),
        ("0.0005k", 5, -1, DecimalSi),
        ("0.00500", 5, -3, DecimalSi),
        ("0.5e-2", 5, -3, DecimalExponent),
        ("1.3E+6", 13, 5, DecimalExponent),
        ("1.53E12", 153, 10, DecimalExponent),
        ("9.01", 901, -2, DecimalSi),
        ("6.987654321G", 6_987_654_321, 0, DecimalSi),
        ("300.2T", 3002, 11, DecimalSi),
        ("1.01E", 101, 16, DecimalSi),
        ("3.001n", 4, -9, DecimalSi),
        ("1.1E-9", 2, -9, DecimalExponent),
        ("0.0000000001", 1, -9, DecimalSi),
        ("0.0000000005", 1, -9, DecimalSi),
        ("0.5e-9", 1, -9, DecimalExponent),
        ("0.9n", 1, -9, DecimalSi),
        ("0.00000012345", 124, -9, DecimalSi),
        ("0.00000012354", 124, -9, DecimalSi),
        ("9Ei", i64::MAX as i128, 0, BinarySi),
        ("9223372036854775807Ki", i64::MAX as i128, 0, BinarySi),
        ("9223372036854775807", i64::MAX as i128, 0, DecimalSi),
        ("100.035Ki", 10_243_584, -2, BinarySi),
        ("0.5Mi", 512 << 10, 0, BinarySi),
        ("0.05Gi", 536_870_912, -1, BinarySi),
        ("0.025Ti", 274_877_906_944, -1, BinarySi),
        ("0.000000000001Ki", 2, -9, DecimalSi),
        (".001", 1, -3, DecimalSi),
        (".0001k", 100, -3, DecimalSi),
        ("1.", 1, 0, DecimalSi),
        ("1.G", 1, 9, DecimalSi),
        (".", 0, 0, DecimalSi),
    ];

    #[test]
    fn parses_what_upstream_parses() {
        for &(text, mantissa, exponent, format) in ACCEPTED {
            let expected = dec(mantissa, exponent);
            for (sign, expected) in [("", expected), ("+", expected), ("-", -expected)] {
                let got = parse(&format!("{sign}{text}"));
                assert_eq!(
                    (got.nanos(), got.format()),
                    (expected, format),
                    "{sign}{text}"
                );
            }
        }
    }

    #[test]
    fn rejects_what_upstream_rejects() {
        for text in [
            "",
            "1.1.M",
            "1+1.0M",
            "0.1mi",
            "0.1am",
            "aoeu",
            ".5i",
            "1i",
            "-3.01i",
            "-3.01e-",
            "1e4294967297",
            " 1",
            "1 ",
            "1e2147483648",
            "1e-2147483648",
            "--1",
            "1e",
            "1e1.5",
            "½",
            "1K",
            "1ki",
            "0x10",
            "1_000",
            "NaN",
            "inf",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "`{text}`");
        }
        assert_eq!(
            "1x".parse::<Quantity>().unwrap_err().to_string(),
            "`1x` is not a quantity: the suffix is unknown"
        );
    }

    #[test]
    fn extreme_exponents_saturate() {
        assert_eq!(parse("1e2147483647").to_string(), "100e27");
        assert_eq!(parse("-1e2147483647").to_string(), "-100e27");
        assert_eq!(parse("0e2147483647").to_string(), "0");
        assert_eq!(parse("1e-2147483647"), parse("1n"));
        assert_eq!(parse(&"9".repeat(400)), parse("1e29"));
    }

    #[test]
    fn prints_canonically() {
        for (text, expected) in [
            ("1024Mi", "1Gi"),
            ("307200Ki", "300Mi"),
            ("1025024Mi", "1001Gi"),
            ("1024Gi", "1Ti"),
            ("5000m", "5"),
            ("0.5", "500m"),
            ("1000M", "1G"),
            ("0.001T", "1G"),
            ("1000u", "1m"),
            ("1.08", "1080m"),
            ("1080000000n", "1080m"),
            ("1000E", "1e21"),
            ("5000E", "5e21"),
            ("1000000E", "1e24"),
            ("1234567M", "1234567M"),
            ("1025", "1025"),
            (".001e12", "1e9"),
            ("0.001e0", "1e-3"),
            ("1000e-12", "1e-9"),
            ("80e-3", "80e-3"),
            ("300e6", "300e6"),
            ("00", "0"),
            ("00e0", "0"),
            ("80n", "80n"),
            ("1Ki", "1Ki"),
            (".001Ki", "1024m"),
            (".000001Ki", "1024u"),
            (".000000001Ki", "1024n"),
            (".000000000001Ki", "2n"),
            ("0Ki", "0"),
            ("1.5Gi", "1536Mi"),
            ("9Ei", "9223372036854775807"),
            ("0.5Ki", "512"),
        ] {
            assert_eq!(parse(text).to_string(), expected, "{text}");
        }
        assert_eq!(
            Quantity {
                nanos: (1i128 << 70) * NANO,
                format: BinarySi
            }
            .to_string(),
            "1180591620717411303424"
        );
        assert_eq!(Quantity::from_units(2000, BinarySi).to_string(), "2000");
        assert_eq!((-Quantity::from_millis(9010)).to_string(), "-9010m");
    }

    #[test]
    fn a_binary_quantity_without_a_suffix_reads_as_decimal() {
        // Output of resource.Quantity of Kubernetes 1.36: the printed text, and the text after parsing and printing it again.
        for (text, printed, again) in [
            ("10.7421875Ki", "11000", "11k"),
            ("0.95367431640625Mi", "1000000", "1M"),
            ("-11718.75Ki", "-12000000", "-12M"),
            ("0.5Ki", "512", "512"),
            ("9Ei", "9223372036854775807", "9223372036854775807"),
        ] {
            let quantity = parse(text);
            assert_eq!(quantity.format(), BinarySi, "{text}");
            assert_eq!(quantity.to_string(), printed, "{text}");
            assert_eq!(parse(printed), quantity, "{text}");
            assert_eq!(parse(printed).to_string(), again, "{text}");
        }
    }

    #[test]
    fn adding_to_zero_keeps_the_suffix() {
        for text in ["100m", "1Gi"] {
            assert_eq!(Quantity::ZERO.saturating_add(parse(text)).to_string(), text);
            assert_eq!(parse(text).saturating_add(Quantity::ZERO).to_string(), text);
            assert_eq!(
                Quantity::ZERO.saturating_sub(parse(text)).to_string(),
                format!("-{text}")
            );
        }
        assert_eq!(parse("900m").saturating_add(parse("100m")).to_string(), "1");
    }

    #[test]
    fn sums_of_the_largest_quantities_saturate() {
        let largest = parse("1e29");
        assert_eq!(largest.saturating_add(largest), largest);
        assert_eq!((-largest).saturating_sub(largest), -largest);
        assert_eq!(largest.saturating_sub(largest), Quantity::ZERO);
    }

    #[test]
    fn engine_units_round_by_direction() {
        let quantity = parse("1.0001");
        assert_eq!((quantity.units_ceil(), quantity.units_floor()), (2, 1));
        assert_eq!(
            (quantity.millis_ceil(), quantity.millis_floor()),
            (1001, 1000)
        );
        let negative = parse("-1.5");
        assert_eq!((negative.units_ceil(), negative.units_floor()), (-1, -2));
        assert_eq!(
            (parse("12E").units_ceil(), parse("-12E").millis_floor()),
            (i64::MAX, i64::MIN)
        );
        assert_eq!(parse("9223372036854775807").millis_ceil(), i64::MAX);
    }

    fn any_quantity() -> impl Strategy<Value = Quantity> {
        let nanos = prop_oneof![
            -MAX_NANOS..=MAX_NANOS,
            any::<i64>().prop_map(i128::from),
            any::<i64>().prop_map(|n| i128::from(n) * NANO),
            (0i128..4096, 0u32..60).prop_map(|(n, shift)| (n << shift) * NANO)
        ];
        let format = prop_oneof![Just(DecimalSi), Just(BinarySi), Just(DecimalExponent)];
        (nanos, format).prop_map(|(nanos, format)| Quantity {
            nanos: nanos.clamp(-MAX_NANOS, MAX_NANOS),
            format,
        })
    }

    proptest! {
        #[test]
        fn parsing_a_printed_quantity_returns_its_value(quantity in any_quantity()) {
            let printed = quantity.to_string();
            let read = parse(&printed);
            prop_assert_eq!(read, quantity);
            // A number without a suffix has no family and is parsed as decimal, as upstream.
            let bare = printed.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
            if bare && quantity.format() == BinarySi {
                let decimal = Quantity { format: DecimalSi, ..quantity };
                prop_assert_eq!(read.to_string(), decimal.to_string());
            } else {
                prop_assert_eq!(read.to_string(), printed);
            }
        }

        #[test]
        fn order_agrees_with_rational_arithmetic(
            a in (0u32..100_000, 0u32..1_000_000, 0usize..8), b in (0u32..100_000, 0u32..1_000_000, 0usize..8)
        ) {
            // A whole number and six decimals are exact in every one of these suffixes.
            const SUFFIXES: [(&str, i128); 8] =
                [("m", 1), ("", 1000), ("k", 1_000_000), ("Ki", 1_024_000), ("Mi", 1_048_576_000), ("G", 1_000_000_000_000), ("e6", 1_000_000_000), ("Ti", 1_099_511_627_776_000)];
            let rational = |(whole, micros, s): (u32, u32, usize)| (i128::from(whole) * 1_000_000 + i128::from(micros)) * SUFFIXES[s].1;
            let text = |(whole, micros, s): (u32, u32, usize)| format!("{whole}.{micros:06}{}", SUFFIXES[s].0);
            let (left, right) = (parse(&text(a)), parse(&text(b)));
            prop_assert_eq!(left.cmp(&right), rational(a).cmp(&rational(b)));
            prop_assert_eq!(left.nanos(), rational(a));
        }

        #[test]
        fn no_string_panics(text in "[-+]?[0-9.]{0,40}([eE][-+]?[0-9]{0,12}|[numkMGTPEKi]{0,3})|\\PC{0,12}") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                prop_assert_eq!(parse(&quantity.to_string()), quantity);
            }
        }
    }
}
