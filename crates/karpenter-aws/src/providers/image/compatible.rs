//! The AMI that an instance type boots.

use karpenter_core::requirements::{Requirement, Requirements};

use crate::api::Ami;

/// Returns the first AMI that an instance type can boot; `status.amis` lists newer ones first.
///
/// An AMI whose requirements cannot be parsed is compatible with no instance type.
// UPSTREAM: MapToInstanceTypes of pkg/providers/amifamily/ami.go
#[must_use]
pub fn first_compatible<'a>(amis: &'a [Ami], instance_type: &Requirements) -> Option<&'a Ami> {
    amis.iter().find(|ami| {
        ami.requirements.iter().all(|entry| {
            let values = entry.values.as_deref().unwrap_or_default();
            let Ok(required) = Requirement::parse(&entry.key, &entry.operator, values) else {
                return false;
            };
            match instance_type.get(&entry.key) {
                Some(offered) => required.has_intersection(offered),
                // An instance type without the label does not have the property.
                None => required.allows_absent(),
            }
        })
    })
}
