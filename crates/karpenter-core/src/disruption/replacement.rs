//! Narrowing what a replacement may be: by price, by capacity type, to a number of types.

use std::collections::BTreeSet;

use karpenter_api::{
    labels,
    v1::{NodeSelectorRequirementWithMinValues, Operator},
};

use crate::{
    instance_type::InstanceType,
    offering::Offering,
    requirements::{Requirement, Requirements, Unaliased},
    schedule::ClaimDraft,
};

/// A draft with its instance types at hand, cheapest first.
#[derive(Clone, Debug)]
pub struct Replacement<'a> {
    /// The draft; its lists are brought in line by [`Self::into_draft`].
    draft: ClaimDraft,
    types: Vec<&'a InstanceType>,
    requirements: Requirements,
}

impl<'a> Replacement<'a> {
    /// The draft with the pool's instance types.
    pub fn new(draft: &ClaimDraft, all: &'a [InstanceType]) -> Self {
        let requirements =
            Requirements::from_api(&draft.claim.spec.requirements, &Unaliased).unwrap_or_default();
        let named: BTreeSet<&str> = draft.instance_types.iter().map(String::as_str).collect();
        let types = all
            .iter()
            .filter(|t| named.contains(t.name.as_str()))
            .collect();
        let mut replacement = Self {
            draft: draft.clone(),
            types,
            requirements,
        };
        replacement.sort();
        replacement
    }

    fn sort(&mut self) {
        let requirements = &self.requirements;
        let price = |t: &InstanceType| cheapest(t, requirements).unwrap_or(f64::MAX);
        self.types.sort_by(|a, b| {
            price(a)
                .total_cmp(&price(b))
                .then_with(|| a.name.cmp(&b.name))
        });
    }

    /// How many types are left.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Names of the types that are left.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.types.iter().map(|t| t.name.as_str())
    }

    /// Whether the machine may have this capacity type.
    pub fn admits(&self, capacity_type: &str) -> bool {
        self.requirements
            .get(labels::CAPACITY_TYPE)
            .is_none_or(|r| r.has(capacity_type))
    }

    /// Leaves only this capacity type.
    pub fn pin(&mut self, capacity_type: &str) {
        self.requirements
            .replace(Requirement::equal(labels::CAPACITY_TYPE, capacity_type));
        self.types
            .retain(|t| cheapest(t, &self.requirements).is_some());
        self.sort();
    }

    /// Keeps types whose worst price is below `limit`; says which minValues that violates.
    pub fn cheaper_than(&mut self, limit: f64) -> Result<(), String> {
        self.types
            .retain(|t| worst_launch(t, &self.requirements) < limit);
        if self.types.is_empty() {
            Ok(())
        } else {
            self.check_min_values()
        }
    }

    /// Keeps the `count` cheapest types, more if minValues need them.
    pub fn truncate(&mut self, count: usize) {
        let mut keep = count.min(self.types.len());
        while keep < self.types.len() && self.min_values_of(&self.types[..keep]).is_err() {
            keep += 1;
        }
        self.types.truncate(keep);
    }

    fn check_min_values(&self) -> Result<(), String> {
        self.min_values_of(&self.types)
    }

    fn min_values_of(&self, types: &[&InstanceType]) -> Result<(), String> {
        for requirement in self.requirements.iter() {
            let Some(least) = requirement.min_values() else {
                continue;
            };
            let values: BTreeSet<&str> = types
                .iter()
                .filter_map(|t| t.requirements.get(requirement.key()))
                .flat_map(|values| values.values())
                .collect();
            if values.len() < least as usize {
                return Err(format!(
                    "minValues requirement is not met for label(s) (label(s)=[{}])",
                    requirement.key()
                ));
            }
        }
        Ok(())
    }

    /// The draft with what is left.
    pub fn into_draft(self) -> ClaimDraft {
        let mut draft = self.draft;
        draft.instance_types = self.types.iter().map(|t| t.name.clone()).collect();
        draft.hourly_price = self
            .types
            .first()
            .and_then(|first| cheapest(first, &self.requirements))
            .unwrap_or_default();
        let capacity_type = self.requirements.get(labels::CAPACITY_TYPE);
        let capacity_types: Vec<String> = capacity_type
            .into_iter()
            .flat_map(|r| r.values())
            .map(str::to_owned)
            .collect();
        for requirement in &mut draft.claim.spec.requirements {
            if requirement.key == labels::INSTANCE_TYPE && requirement.operator == Operator::In {
                requirement.values = draft.instance_types.to_vec();
            } else if requirement.key == labels::CAPACITY_TYPE && !capacity_types.is_empty() {
                set_in(requirement, &capacity_types);
            }
        }
        draft
    }
}

fn set_in(requirement: &mut NodeSelectorRequirementWithMinValues, values: &[String]) {
    requirement.operator = Operator::In;
    requirement.values = values.to_vec();
}

/// The capacity types a draft may have, joined.
pub fn capacity_type(draft: &ClaimDraft) -> String {
    let requirement = draft
        .claim
        .spec
        .requirements
        .iter()
        .find(|r| r.key == labels::CAPACITY_TYPE);
    requirement.map(|r| r.values.join("/")).unwrap_or_default()
}

fn compatible<'t>(
    t: &'t InstanceType,
    requirements: &Requirements,
) -> impl Iterator<Item = &'t Offering> {
    t.offerings.iter().filter(|offering| {
        offering.available
            && offering.price.is_finite()
            && requirements.intersects(&offering.requirements).is_ok()
    })
}

/// Dollars an hour of the cheapest offering that can be bought under the requirements.
pub fn cheapest(t: &InstanceType, requirements: &Requirements) -> Option<f64> {
    compatible(t, requirements)
        .map(|offering| offering.price)
        .min_by(f64::total_cmp)
}

/// Dollars an hour in the worst case: the dearest offering of the capacity type that will be tried first.
pub fn worst_launch(t: &InstanceType, requirements: &Requirements) -> f64 {
    let order = [
        labels::CAPACITY_TYPE_RESERVED,
        labels::CAPACITY_TYPE_SPOT,
        labels::CAPACITY_TYPE_ON_DEMAND,
    ];
    order
        .iter()
        .find_map(|capacity_type| {
            let of_type =
                compatible(t, requirements).filter(|o| o.capacity_type() == Some(capacity_type));
            of_type
                .map(|offering| offering.price)
                .max_by(f64::total_cmp)
        })
        .unwrap_or(f64::MAX)
}
