//! Amounts of resources in the engine's units: cpu in thousandths of a core, all others in whole units.
//!
//! Quantities are converted once, when objects are parsed: requests round up, capacity rounds down. Sums saturate at the limits
//! of `i64`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;

use crate::quantity::{Format, InvalidQuantity, Quantity};

/// CPU time, in thousandths of a core.
pub const CPU: &str = "cpu";
/// Memory, in bytes.
pub const MEMORY: &str = "memory";
/// Local disk, in bytes.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// The number of pods.
pub const PODS: &str = "pods";
/// The resources that nodes are compared by, whether or not a pod requests them.
pub(crate) const ALWAYS_COMPARED: [&str; 3] = [CPU, MEMORY, PODS];
/// The number of nodes: a pseudo-resource that exists only in NodePool limits and usage.
pub const NODES: &str = "nodes";
/// The prefix of the names of huge page resources.
pub const HUGE_PAGES_PREFIX: &str = "hugepages-";

/// A resource with an invalid amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("resource `{name}`: {source}")]
pub struct InvalidResource {
    /// The name of the resource.
    pub name: String,
    /// The error of the amount.
    #[source]
    pub source: InvalidQuantity,
}

/// Amounts by resource name, in the engine's units, ordered by name. An absent resource counts as zero, but an explicit zero is
/// kept: a limit of zero nodes is not the absence of a limit. Copies share the amounts until one changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    amounts: Arc<BTreeMap<Arc<str>, i64>>,
}

impl Resources {
    /// Creates an empty set of resources.
    pub fn new() -> Resources {
        Resources::default()
    }

    /// Converts requests: amounts round up.
    pub fn requests_from(
        quantities: &BTreeMap<String, WireQuantity>,
    ) -> Result<Resources, InvalidResource> {
        Resources::convert(quantities, Quantity::millis_ceil, Quantity::units_ceil)
    }

    /// Converts capacity, allocatable or limits: amounts round down.
    pub fn allocatable_from(
        quantities: &BTreeMap<String, WireQuantity>,
    ) -> Result<Resources, InvalidResource> {
        Resources::convert(quantities, Quantity::millis_floor, Quantity::units_floor)
    }

    fn convert(
        quantities: &BTreeMap<String, WireQuantity>,
        millis: impl Fn(&Quantity) -> i64,
        units: impl Fn(&Quantity) -> i64,
    ) -> Result<Resources, InvalidResource> {
        quantities
            .iter()
            .map(|(name, wire)| {
                let quantity = Quantity::try_from(wire).map_err(|source| InvalidResource {
                    name: name.clone(),
                    source,
                })?;
                Ok((
                    name.as_str(),
                    if name == CPU {
                        millis(&quantity)
                    } else {
                        units(&quantity)
                    },
                ))
            })
            .collect()
    }

    /// Returns the amounts as Kubernetes quantities, in canonical form.
    pub fn to_quantities(&self) -> BTreeMap<String, WireQuantity> {
        self.iter()
            .map(|(name, amount)| (name.to_owned(), quantity(name, amount).into()))
            .collect()
    }

    /// Returns the amount of a resource; zero if it is absent.
    pub fn get(&self, name: &str) -> i64 {
        self.amounts.get(name).copied().unwrap_or(0)
    }

    /// Reports whether the resource is present, even if it is zero.
    pub fn contains(&self, name: &str) -> bool {
        self.amounts.contains_key(name)
    }

    /// Sets the amount of a resource.
    pub fn set(&mut self, name: &str, amount: i64) {
        let amounts = Arc::make_mut(&mut self.amounts);
        match amounts.get_mut(name) {
            Some(present) => *present = amount,
            None => {
                amounts.insert(name.into(), amount);
            }
        }
    }

    /// Returns these resources with one amount set.
    #[must_use]
    pub fn with(mut self, name: &str, amount: i64) -> Resources {
        self.set(name, amount);
        self
    }

    /// Removes a resource and returns its amount.
    pub fn remove(&mut self, name: &str) -> Option<i64> {
        Arc::make_mut(&mut self.amounts).remove(name)
    }

    /// Keeps the resources for which the predicate returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, i64) -> bool) {
        Arc::make_mut(&mut self.amounts).retain(|name, amount| keep(name, *amount));
    }

    /// Iterates over names and amounts, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.amounts.iter().map(|(name, amount)| (&**name, *amount))
    }

    /// Reports whether no resource is present.
    pub fn is_empty(&self) -> bool {
        self.amounts.is_empty()
    }

    /// Reports whether every amount is zero.
    pub fn is_zero(&self) -> bool {
        self.amounts.values().all(|&amount| amount == 0)
    }

    /// Adds the other amounts, saturating at the limits of `i64`.
    pub fn add_assign(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_add);
    }

    /// Subtracts the other amounts, saturating at the limits of `i64`. Absent resources become negative.
    pub fn sub_assign(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_sub);
    }

    /// Returns the difference, saturating at the limits of `i64`: negative where the other has more.
    #[must_use]
    pub fn saturating_sub(&self, other: &Resources) -> Resources {
        let mut difference = self.clone();
        difference.sub_assign(other);
        difference
    }

    /// Raises each amount to the other's, where that is larger; adds absent resources.
    pub fn max_assign(&mut self, other: &Resources) {
        let amounts = Arc::make_mut(&mut self.amounts);
        for (name, &amount) in &*other.amounts {
            amounts
                .entry(Arc::clone(name))
                .and_modify(|present| *present = amount.max(*present))
                .or_insert(amount);
        }
    }

    /// Sets the amounts of the resources in `other`.
    pub fn replace(&mut self, other: &Resources) {
        let amounts = Arc::make_mut(&mut self.amounts);
        for (name, &amount) in &*other.amounts {
            amounts.insert(Arc::clone(name), amount);
        }
    }

    fn combine(&mut self, other: &Resources, operation: impl Fn(i64, i64) -> i64) {
        let amounts = Arc::make_mut(&mut self.amounts);
        for (name, &amount) in &*other.amounts {
            let present = amounts.entry(Arc::clone(name)).or_insert(0);
            *present = operation(*present, amount);
        }
    }

    /// Reports whether the requests fit into the available resources.
    ///
    /// If any available amount is negative, even one that is not requested, nothing fits, not even empty requests. An absent resource
    /// is zero, and a request of zero of it fits.
    // UPSTREAM: pkg/utils/resources/resources.go (Fits)
    pub fn fits(requests: &Resources, available: &Resources) -> bool {
        available.amounts.values().all(|&amount| amount >= 0)
            && requests
                .iter()
                .all(|(name, amount)| amount <= available.get(name))
    }
}

impl<'a> FromIterator<(&'a str, i64)> for Resources {
    fn from_iter<I: IntoIterator<Item = (&'a str, i64)>>(amounts: I) -> Resources {
        let amounts: BTreeMap<Arc<str>, i64> = amounts
            .into_iter()
            .map(|(name, amount)| (name.into(), amount))
            .collect();
        Resources {
            amounts: Arc::new(amounts),
        }
    }
}

/// Converts an amount in the engine's units to a quantity, with the usual suffix family of the resource.
pub fn quantity(name: &str, amount: i64) -> Quantity {
    match name {
        CPU => Quantity::from_millis(amount),
        MEMORY | EPHEMERAL_STORAGE => Quantity::from_units(amount, Format::BinarySi),
        _ if name.starts_with(HUGE_PAGES_PREFIX) => Quantity::from_units(amount, Format::BinarySi),
        _ => Quantity::from_units(amount, Format::DecimalSi),
    }
}

/// Returns an amount in the engine's units as a quantity that people read: `15.9` rather than `15900m`, `5000` rather than `5k`.
///
/// ```
/// use karpenter_core::resources::plain;
///
/// assert_eq!(plain("cpu", 15_900), "15.9");
/// assert_eq!(plain("memory", 8182 << 20), "8182Mi");
/// assert_eq!(plain("nvidia.com/gpu", 5_000), "5000");
/// ```
pub fn plain(name: &str, amount: i64) -> String {
    let quantity = quantity(name, amount);
    match quantity.format() {
        Format::BinarySi if amount % 1024 == 0 => quantity.to_string(),
        _ if name == CPU => decimal(amount, 1000, 3),
        _ => amount.to_string(),
    }
}

/// Returns an amount for a sentence: as [`plain`] does, with thousands separated, and bytes in Gi or Mi, rounded down to hundredths.
///
/// ```
/// use karpenter_core::resources::in_words;
///
/// assert_eq!(in_words("cpu", 5_000_000), "5,000");
/// assert_eq!(in_words("memory", 8182 << 20), "7.99Gi");
/// ```
pub fn in_words(name: &str, amount: i64) -> String {
    let is_bytes = quantity(name, amount).format() == Format::BinarySi;
    let text = match amount.unsigned_abs() {
        size if is_bytes && size >= 1 << 30 => decimal(amount, 1 << 30, 2) + "Gi",
        size if is_bytes && size >= 1 << 20 => decimal(amount, 1 << 20, 2) + "Mi",
        _ => plain(name, amount),
    };
    let digits = |c: char| c.is_ascii_digit();
    let start = text.find(digits).unwrap_or_default();
    let whole = text[start..].find(|c| !digits(c));
    let end = whole.map_or(text.len(), |length| start + length);
    let mut separated = text[..start].to_owned();
    for (place, digit) in text[start..end].char_indices() {
        if place > 0 && (end - start - place) % 3 == 0 {
            separated.push(',');
        }
        separated.push(digit);
    }
    separated + &text[end..]
}

/// Writes a number of parts, `per` of which are one, with `places` decimals at most, rounded toward zero.
fn decimal(parts: i64, per: u64, places: usize) -> String {
    let sign = if parts < 0 { "-" } else { "" };
    let parts = parts.unsigned_abs();
    let scale = (0..places).fold(1, |scale, _| scale * 10);
    let fraction = u128::from(parts % per) * scale / u128::from(per);
    let decimals = format!(".{fraction:0places$}");
    let decimals = decimals.trim_end_matches('0').trim_end_matches('.');
    format!("{sign}{}{decimals}", parts / per)
}

impl fmt::Display for Resources {
    /// Writes upstream's text form: `{"cpu":"1500m","memory":"1Gi"}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (index, (name, amount)) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}\"{name}\":\"{}\"", quantity(name, amount))?;
        }
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wire(quantities: &[(&str, &str)]) -> BTreeMap<String, WireQuantity> {
        quantities
            .iter()
            .map(|(name, text)| ((*name).to_owned(), WireQuantity((*text).to_owned())))
            .collect()
    }

    #[test]
    fn requests_round_up_and_allocatable_rounds_down() {
        for (name, text, requested, allocatable) in [
            (CPU, "1.0001", 1001, 1000),
            (MEMORY, "1500m", 2, 1),
            (PODS, "3", 3, 3),
            ("example.com/gpu", "0.5", 1, 0),
        ] {
            let quantities = wire(&[(name, text)]);
            let requests = Resources::requests_from(&quantities).unwrap();
            assert_eq!(requests, Resources::new().with(name, requested));
            let rounded = Resources::allocatable_from(&quantities).unwrap();
            assert_eq!(rounded, Resources::new().with(name, allocatable));
        }
    }

    #[test]
    fn an_invalid_amount_is_reported_with_its_name() {
        let error = Resources::requests_from(&wire(&[("memory", "1 GB")])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "resource `memory`: `1 GB` is not a quantity: the suffix is unknown"
        );
    }

    /// Conformance: SCH-211
    #[test]
    fn nothing_fits_if_any_available_amount_is_negative() {
        let available = Resources::new().with(CPU, 1000).with("example.com/gpu", -1);
        assert!(!Resources::fits(&Resources::new(), &available));
        assert!(!Resources::fits(&Resources::new().with(CPU, 1), &available));
    }

    /// Conformance: SCH-211
    #[test]
    fn absent_is_zero_and_zero_fits_anywhere() {
        let available = Resources::new().with(CPU, 1000);
        let fits = |memory, cpu| {
            let requests = Resources::new().with(MEMORY, memory).with(CPU, cpu);
            Resources::fits(&requests, &available)
        };
        assert!(fits(0, 1000));
        assert!(!fits(1, 0) && !fits(0, 1001));
    }

    #[test]
    fn an_explicit_zero_is_not_an_absence() {
        let limits = Resources::new().with(NODES, 0);
        assert!(limits.contains(NODES) && !limits.contains(CPU));
        assert!(limits.is_zero() && !limits.is_empty());
    }

    #[test]
    fn sums_saturate_at_the_limits() {
        let mut amounts = Resources::new()
            .with(CPU, i64::MAX - 1)
            .with(MEMORY, i64::MIN + 1);
        amounts.add_assign(&Resources::new().with(CPU, 5).with(MEMORY, -5));
        assert_eq!(
            (amounts.get(CPU), amounts.get(MEMORY)),
            (i64::MAX, i64::MIN)
        );
        let difference = Resources::new()
            .with(PODS, i64::MIN)
            .saturating_sub(&Resources::new().with(PODS, 1).with(CPU, 2));
        assert_eq!((difference.get(PODS), difference.get(CPU)), (i64::MIN, -2));
    }

    #[test]
    fn prints_as_upstream() {
        let amounts = Resources::new()
            .with(MEMORY, 3 << 29)
            .with(CPU, 1500)
            .with(PODS, 1)
            .with("hugepages-2Mi", 1 << 21);
        assert_eq!(
            amounts.to_string(),
            r#"{"cpu":"1500m","hugepages-2Mi":"2Mi","memory":"1536Mi","pods":"1"}"#
        );
        assert_eq!(amounts.to_quantities()["memory"].0, "1536Mi");
    }

    #[test]
    fn amounts_read_as_people_write_them() {
        for (name, amount, exactly, words) in [
            (CPU, 15_900, "15.9", "15.9"),
            (CPU, 5_000_000, "5000", "5,000"),
            (CPU, 1, "0.001", "0.001"),
            (CPU, -2_100, "-2.1", "-2.1"),
            (
                CPU,
                i64::MIN,
                "-9223372036854775.808",
                "-9,223,372,036,854,775.808",
            ),
            (MEMORY, 8182 << 20, "8182Mi", "7.99Gi"),
            (MEMORY, 100 << 30, "100Gi", "100Gi"),
            (MEMORY, 100 << 40, "100Ti", "102,400Gi"),
            (MEMORY, 512 << 20, "512Mi", "512Mi"),
            (MEMORY, 1_000, "1000", "1,000"),
            ("hugepages-2Mi", 3 << 29, "1536Mi", "1.5Gi"),
            ("nvidia.com/gpu", 5_000, "5000", "5,000"),
            (PODS, 110, "110", "110"),
        ] {
            assert_eq!(plain(name, amount), exactly);
            assert_eq!(in_words(name, amount), words);
        }
    }

    proptest! {
        #[test]
        fn a_plain_amount_is_an_exact_quantity(cpu in any::<i64>(), memory in any::<i64>(), other in any::<i64>()) {
            let amounts = [(CPU, cpu), (MEMORY, memory), ("example.com/x", other)];
            for (name, amount) in amounts {
                prop_assert_eq!(plain(name, amount).parse::<Quantity>().unwrap(), quantity(name, amount));
            }
        }

        #[test]
        fn quantities_and_back_is_identity(cpu in any::<i64>(), memory in any::<i64>(), other in any::<i64>()) {
            let amounts = Resources::new().with(CPU, cpu).with(MEMORY, memory).with("example.com/x", other);
            let quantities = amounts.to_quantities();
            prop_assert_eq!(&Resources::requests_from(&quantities).unwrap(), &amounts);
            prop_assert_eq!(&Resources::allocatable_from(&quantities).unwrap(), &amounts);
        }
    }
}
