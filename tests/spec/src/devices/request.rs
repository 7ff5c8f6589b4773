//! Requests of resource claims, and what satisfies them.

use k8s_openapi::api::resource::v1 as wire;

use super::Device;

pub(super) struct Request<'c> {
    pub(super) claim: usize,
    pub(super) constraints: &'c [wire::DeviceConstraint],
    pub(super) request: &'c wire::DeviceRequest,
}

/// One way to satisfy a request.
pub(super) struct Alternative<'c> {
    pub(super) name: String,
    pub(super) class: &'c str,
    pub(super) selectors: &'c [wire::DeviceSelector],
    /// The number of devices; None for the allocation mode `All`.
    pub(super) count: Option<usize>,
    pub(super) capacity: Option<&'c wire::CapacityRequirements>,
}

impl<'c> Request<'c> {
    pub(super) fn alternatives(&self) -> Vec<Alternative<'c>> {
        let number = |mode: &Option<String>, count: Option<i64>| {
            let one = count
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(1);
            (mode.as_deref() != Some("All")).then_some(one)
        };
        if let Some(exactly) = &self.request.exactly {
            return vec![Alternative {
                name: self.request.name.clone(),
                class: &exactly.device_class_name,
                selectors: exactly.selectors.as_deref().unwrap_or_default(),
                count: number(&exactly.allocation_mode, exactly.count),
                capacity: exactly.capacity.as_ref(),
            }];
        }
        let alternatives = self.request.first_available.iter().flatten();
        alternatives
            .map(|sub| Alternative {
                name: format!("{}/{}", self.request.name, sub.name),
                class: &sub.device_class_name,
                selectors: sub.selectors.as_deref().unwrap_or_default(),
                count: number(&sub.allocation_mode, sub.count),
                capacity: sub.capacity.as_ref(),
            })
            .collect()
    }
}

/// Returns whether an expression selects a device; supports the CEL that the generated clusters use.
pub(super) fn selects(expression: &str, device: &Device) -> bool {
    let Some((left, right)) = expression.split_once(" == ") else {
        return false;
    };
    let value = right.trim_matches('\'');
    if left == "device.driver" {
        return device.driver == value;
    }
    let attribute = left
        .strip_prefix("device.attributes['")
        .and_then(|rest| rest.split_once("']."));
    attribute.is_some_and(|(domain, name)| {
        device
            .attributes
            .get(&format!("{domain}/{name}"))
            .is_some_and(|own| own == value)
    })
}
