//! Narrowing the instance types of a replacement: by price, by capacity type, to a maximum number.

use std::collections::BTreeSet;

use karpenter_api::labels;

use crate::disruption::consolidation::prices::{Admitted, PriceList};
use crate::requirements::{Requirement, Requirements};
use crate::schedule::PlannedNodeClaim;

/// Fewer different values are left for a replacement than minValues requires. [`Display`](std::fmt::Display) gives upstream's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("minValues requirement is not met for label(s) (label(s)=[{key}])")]
#[non_exhaustive]
pub struct MinValuesUnmet {
    /// The label.
    pub key: String,
    /// The minimum.
    pub min_values: u32,
    /// The number of values left.
    pub found: u32,
}

/// A replacement's draft with its instance types and their prices.
#[derive(Debug)]
pub struct Replacement<'a> {
    draft: &'a PlannedNodeClaim,
    list: &'a PriceList,
    /// Indices in the price list.
    types: Vec<usize>,
    requirements: Requirements,
    admitted: Admitted,
}

impl<'a> Replacement<'a> {
    /// Creates the replacement from a draft and the price list of its NodePool.
    pub fn new(draft: &'a PlannedNodeClaim, list: &'a PriceList) -> Self {
        let requirements = draft.requirements();
        let types = draft
            .instance_types
            .iter()
            .filter_map(|name| list.place(name))
            .collect();
        Self {
            draft,
            list,
            types,
            admitted: list.admitted(&requirements),
            requirements,
        }
    }

    /// Sorts the instance types by price, ties by name.
    fn sort(&mut self) {
        let (list, admitted) = (self.list, &self.admitted);
        self.types.sort_by_cached_key(|place| {
            let price = list.cheapest(*place, admitted).unwrap_or(f64::MAX);
            (Price(price), &list.instance_type(*place).name)
        });
    }

    /// Returns the number of instance types left.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Returns the names of the instance types left.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.types
            .iter()
            .map(|place| self.list.instance_type(*place).name.as_str())
    }

    /// Reports whether the replacement may have this capacity type.
    pub fn admits(&self, capacity_type: &str) -> bool {
        self.requirements
            .get(labels::CAPACITY_TYPE)
            .is_none_or(|r| r.has(capacity_type))
    }

    /// Restricts the replacement to this capacity type.
    pub fn pin(&mut self, capacity_type: &str) {
        self.requirements
            .replace(Requirement::equal(labels::CAPACITY_TYPE, capacity_type));
        self.admitted = self.list.admitted(&self.requirements);
        let (list, admitted) = (self.list, &self.admitted);
        self.types
            .retain(|place| list.cheapest(*place, admitted).is_some());
    }

    /// Keeps instance types whose worst-case price is below `limit`; the error names unmet minValues.
    pub fn cheaper_than(&mut self, limit: f64) -> Result<(), MinValuesUnmet> {
        let (list, admitted) = (self.list, &self.admitted);
        self.types
            .retain(|place| list.worst_launch(*place, admitted) < limit);
        if self.types.is_empty() {
            Ok(())
        } else {
            self.min_values_of(&self.types)
        }
    }

    /// Keeps the `count` cheapest instance types, more if minValues require them.
    pub fn truncate(&mut self, count: usize) {
        self.sort();
        let mut keep = count.min(self.types.len());
        while keep < self.types.len() && self.min_values_of(&self.types[..keep]).is_err() {
            keep += 1;
        }
        self.types.truncate(keep);
    }

    fn min_values_of(&self, types: &[usize]) -> Result<(), MinValuesUnmet> {
        for requirement in self.requirements.iter() {
            let Some(least) = requirement.min_values() else {
                continue;
            };
            let values: BTreeSet<&str> = types
                .iter()
                .filter_map(|place| {
                    let instance_type = self.list.instance_type(*place);
                    instance_type.requirements.get(requirement.key())
                })
                .flat_map(|values| values.values())
                .collect();
            if values.len() < least as usize {
                return Err(MinValuesUnmet {
                    key: requirement.key().to_owned(),
                    min_values: least,
                    found: values.len() as u32,
                });
            }
        }
        Ok(())
    }

    /// Returns the draft with the instance types left.
    pub fn into_draft(mut self) -> PlannedNodeClaim {
        self.sort();
        let mut draft = self.draft.clone();
        let instance_types = self.names().map(str::to_owned).collect();
        let hourly_price = self
            .types
            .first()
            .and_then(|first| self.list.cheapest(*first, &self.admitted))
            .unwrap_or_default();
        let capacity_type = self.requirements.get(labels::CAPACITY_TYPE);
        let capacity_types: Vec<String> = capacity_type
            .into_iter()
            .flat_map(|r| r.values())
            .map(str::to_owned)
            .collect();
        draft.narrow(instance_types, hourly_price, capacity_types);
        draft
    }
}

/// A price to sort by.
#[derive(PartialEq)]
struct Price(f64);

impl Eq for Price {}

impl PartialOrd for Price {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Price {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Returns the capacity types that a draft admits, joined by `/`.
pub fn capacity_type(draft: &PlannedNodeClaim) -> String {
    draft.capacity_types().join("/")
}
