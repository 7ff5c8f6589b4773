//! The share of a device that a request uses.

use std::collections::BTreeMap;

use super::model::{Capacity, Device, RequestPolicy, SubRequest, qualified};
use crate::quantity::Quantity;

/// Amounts by qualified capacity name, in nano-units.
pub type Amounts = BTreeMap<String, i128>;

/// Returns the amount of each capacity of a device that a request uses; `None` if the device cannot satisfy the request.
///
/// A device that is not shareable is used as a whole; the request then only states its minimum size. Of a shareable device the
/// requested amount is used, rounded up by its policy; of a capacity that is not requested, the default of its policy, or all.
pub fn taken(device: &Device, driver: &str, request: &SubRequest) -> Option<Amounts> {
    let asked: BTreeMap<String, Quantity> = request
        .capacity
        .iter()
        .map(|(name, value)| (qualified(name, driver), *value))
        .collect();
    if asked.keys().any(|name| !device.capacity.contains_key(name)) {
        return None;
    }
    let mut amounts = Amounts::new();
    for (name, capacity) in &device.capacity {
        let amount = rounded(capacity, asked.get(name).copied())?;
        if amount > capacity.value.nanos() {
            return None;
        }
        if device.shareable {
            amounts.insert(name.clone(), amount);
        }
    }
    Some(amounts)
}

/// Returns the amount of one capacity after its policy, in nano-units; `None` if the policy does not admit it.
fn rounded(capacity: &Capacity, asked: Option<Quantity>) -> Option<i128> {
    let no_policy = RequestPolicy::default();
    let policy = capacity.policy.as_ref().unwrap_or(&no_policy);
    let Some(asked) = asked else {
        return Some(policy.default.unwrap_or(capacity.value).nanos());
    };
    if !policy.valid_values.is_empty() {
        return policy
            .valid_values
            .iter()
            .find(|value| **value >= asked)
            .map(Quantity::nanos);
    }
    let Some((min, max, step)) = policy.valid_range else {
        return Some(asked.nanos());
    };
    let mut amount = asked.max(min).nanos();
    if let Some(step) = step.map(|step| step.nanos()).filter(|step| *step > 0) {
        let steps = amount.saturating_sub(min.nanos()).div_euclid(step);
        let floor = min.nanos() + steps * step;
        amount = if floor == amount {
            floor
        } else {
            floor.saturating_add(step)
        };
    }
    max.is_none_or(|max| amount <= max.nanos())
        .then_some(amount)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::model::{Access, Count, Counters};

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    fn policy(default: Option<&str>, values: &[&str], range: Option<[&str; 3]>) -> RequestPolicy {
        RequestPolicy {
            default: default.map(quantity),
            valid_values: values.iter().map(|value| quantity(value)).collect(),
            valid_range: range
                .map(|[min, max, step]| (quantity(min), Some(quantity(max)), Some(quantity(step)))),
        }
    }

    fn taken_of(
        shareable: bool,
        policy: Option<RequestPolicy>,
        asked: Option<&str>,
    ) -> Option<i128> {
        let capacity = Capacity {
            value: quantity("16Gi"),
            policy,
        };
        let device = Device {
            name: "a".to_owned(),
            attributes: BTreeMap::new(),
            capacity: BTreeMap::from([("d/memory".to_owned(), capacity)]),
            consumes: Counters::new(),
            shareable,
            access: Access::AllNodes,
        };
        let request = SubRequest {
            name: "r".to_owned(),
            class: "c".to_owned(),
            selectors: vec![],
            count: Count::Exactly(1),
            capacity: asked
                .map(|a| ("memory".to_owned(), quantity(a)))
                .into_iter()
                .collect(),
        };
        let amounts = taken(&device, "d", &request)?;
        Some(
            amounts
                .get("d/memory")
                .map_or(0, |nanos| nanos / (1_000_000_000 << 20)),
        )
    }

    /// Conformance: SCH-252
    #[test]
    fn without_a_policy_a_request_uses_its_amount_or_the_whole_capacity() {
        assert_eq!(taken_of(true, None, Some("4Gi")), Some(4096));
        assert_eq!(taken_of(true, None, None), Some(16384));
        assert_eq!(taken_of(true, None, Some("17Gi")), None);
    }

    /// Conformance: SCH-252
    #[test]
    fn a_request_without_an_amount_uses_the_default_of_the_policy() {
        assert_eq!(
            taken_of(true, Some(policy(Some("4Gi"), &[], None)), None),
            Some(4096)
        );
    }

    /// Conformance: SCH-252
    #[test]
    fn a_request_is_rounded_up_to_the_next_valid_value() {
        let values = || Some(policy(None, &["2Gi", "8Gi"], None));
        assert_eq!(taken_of(true, values(), Some("3Gi")), Some(8192));
        assert_eq!(taken_of(true, values(), Some("9Gi")), None);
    }

    /// Conformance: SCH-252
    #[test]
    fn a_request_is_rounded_up_to_the_steps_of_a_range() {
        let range = || Some(policy(None, &[], Some(["1Gi", "8Gi", "2Gi"])));
        assert_eq!(taken_of(true, range(), Some("512Mi")), Some(1024));
        assert_eq!(taken_of(true, range(), Some("2Gi")), Some(3072));
        assert_eq!(taken_of(true, range(), Some("3Gi")), Some(3072));
        assert_eq!(taken_of(true, range(), Some("8Gi")), None);
    }

    #[test]
    fn a_device_that_is_not_shareable_must_only_be_large_enough() {
        assert_eq!(taken_of(false, None, Some("4Gi")), Some(0));
        assert_eq!(taken_of(false, None, Some("17Gi")), None);
    }
}
