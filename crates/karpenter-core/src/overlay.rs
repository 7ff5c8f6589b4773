//! NodeOverlays: users' corrections of prices and capacities.
//!
//! Overlays are applied by weight descending, then name descending; the first one wins a price of an offering and a resource
//! of an instance type. An overlay applies to an instance type if its requirements are strictly met by NodePool name, template
//! labels and the type's requirements, and at least one offering meets them too; a price applies to those offerings, capacity
//! to the type.
//!
//! UPSTREAM: pkg/controllers/nodeoverlay, pkg/cloudprovider/overlay
//! DIFFERS: devices, overrides of offerings and overlays that say the same are kept.

use std::sync::Arc;

use karpenter_api::{labels, v1::NodePool, v1alpha1::NodeOverlay, validation::WellKnown};

use crate::{
    instance_type::InstanceType,
    requirements::{AllowUndefined, Requirement, Requirements},
    resources::Resources,
};

/// An overlay that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Name of the overlay.
    pub overlay: String,
    /// The overlay of equal weight it contradicts.
    pub conflicts_with: String,
}

/// The instance types of a NodePool as `overlays` change them.
pub fn apply(
    overlays: &[Arc<NodeOverlay>],
    pool: &NodePool,
    types: &Arc<[InstanceType]>,
    names: &WellKnown,
) -> Arc<[InstanceType]> {
    evaluate(overlays, pool, types, names).0
}

/// Like [`apply`], with the overlays that are rejected for contradicting another one of equal weight.
pub fn evaluate(
    overlays: &[Arc<NodeOverlay>],
    pool: &NodePool,
    types: &Arc<[InstanceType]>,
    names: &WellKnown,
) -> (Arc<[InstanceType]>, Vec<Rejected>) {
    let mut sorted: Vec<&Arc<NodeOverlay>> = overlays.iter().collect();
    sorted.sort_by(|a, b| NodeOverlay::application_order(a, b));
    let mut rejected = Vec::new();
    let mut marks = Marks::new(types);
    let mut changed: Vec<InstanceType> = types.to_vec();
    let mut any = false;
    for overlay in sorted {
        let Some(change) = Change::read(overlay, names) else {
            continue;
        };
        let matches = matching(&change, pool, types, names);
        if matches.is_empty() {
            continue;
        }
        if let Some(other) = marks.conflict(&change, &matches) {
            rejected.push(Rejected {
                overlay: change.name.clone(),
                conflicts_with: other,
            });
            continue;
        }
        any = true;
        for (index, offerings) in &matches {
            marks.apply(&change, *index, offerings, &mut changed[*index]);
        }
    }
    (if any { changed.into() } else { types.clone() }, rejected)
}

/// How a price changes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Price {
    To(f64),
    By(f64),
    ByPercent(f64),
}

impl Price {
    fn read(overlay: &NodeOverlay) -> Option<Self> {
        if let Some(price) = &overlay.spec.price {
            return price.parse().ok().map(Self::To);
        }
        let text = overlay
            .spec
            .price_adjustment
            .as_deref()
            .filter(|text| !text.is_empty())?;
        match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().map(Self::ByPercent),
            None if text.starts_with(['+', '-']) => text.parse().ok().map(Self::By),
            None => text.parse().ok().map(Self::To),
        }
    }

    fn of(self, price: f64) -> f64 {
        let changed = match self {
            Self::To(price) => price,
            Self::By(difference) => price + difference,
            Self::ByPercent(percent) => price * (1.0 + percent / 100.0),
        };
        changed.max(0.0)
    }
}

struct Change {
    name: String,
    weight: i32,
    requirements: Requirements,
    price: Option<Price>,
    capacity: Resources,
}

impl Change {
    fn read(overlay: &NodeOverlay, names: &WellKnown) -> Option<Self> {
        let parsed = overlay.spec.requirements.iter().map(|requirement| {
            Requirement::parse(
                &requirement.key,
                requirement.operator.as_str(),
                &requirement.values,
            )
            .map(|parsed| parsed.canonical(names))
        });
        Some(Self {
            name: overlay.metadata.name.clone().unwrap_or_default(),
            weight: overlay.weight(),
            requirements: parsed.collect::<Result<Requirements, _>>().ok()?,
            price: Price::read(overlay),
            capacity: Resources::allocatable_from(&overlay.spec.capacity).ok()?,
        })
    }
}

/// Types that an overlay applies to, each with the offerings that meet it.
fn matching(
    change: &Change,
    pool: &NodePool,
    types: &[InstanceType],
    names: &WellKnown,
) -> Vec<(usize, Vec<usize>)> {
    let template = &pool.spec.template;
    let mut base = Requirements::from_labels(template.metadata.labels.iter().flatten(), names);
    base.add(Requirement::equal(
        labels::NODE_POOL,
        pool.metadata.name.as_deref().unwrap_or_default(),
    ));
    let class = &template.spec.node_class_ref;
    base.add(Requirement::equal(
        &labels::node_class(&class.group, &class.kind),
        &class.name,
    ));
    let matches = types
        .iter()
        .enumerate()
        .filter_map(|(index, instance_type)| {
            let mut all = base.clone();
            all.add_all(&instance_type.requirements);
            if !all.is_compatible(&change.requirements, AllowUndefined::Nothing) {
                return None;
            }
            let meets = |offering: &crate::offering::Offering| {
                offering
                    .requirements
                    .intersects(&change.requirements)
                    .is_ok()
            };
            let offerings: Vec<usize> = instance_type
                .offerings
                .iter()
                .enumerate()
                .filter(|(_, offering)| meets(offering))
                .map(|(index, _)| index)
                .collect();
            (!offerings.is_empty()).then_some((index, offerings))
        });
    matches.collect()
}

/// What was changed already: by which overlay, with which weight and to what.
struct Marks {
    prices: Vec<Vec<Option<(i32, String, Price)>>>,
    capacities: Vec<Vec<(String, i32, String, i64)>>,
}

impl Marks {
    fn new(types: &[InstanceType]) -> Self {
        Self {
            prices: types
                .iter()
                .map(|instance_type| vec![None; instance_type.offerings.len()])
                .collect(),
            capacities: vec![Vec::new(); types.len()],
        }
    }

    fn conflict(&self, change: &Change, matches: &[(usize, Vec<usize>)]) -> Option<String> {
        for (index, offerings) in matches {
            if let Some(price) = change.price {
                let marked = offerings
                    .iter()
                    .filter_map(|offering| self.prices[*index][*offering].as_ref());
                if let Some((_, other, _)) = marked
                    .into_iter()
                    .find(|(weight, _, other)| *weight == change.weight && *other != price)
                {
                    return Some(other.clone());
                }
            }
            for (resource, weight, other, value) in &self.capacities[*index] {
                if *weight == change.weight
                    && change.capacity.contains(resource)
                    && change.capacity.get(resource) != *value
                {
                    return Some(other.clone());
                }
            }
        }
        None
    }

    fn apply(
        &mut self,
        change: &Change,
        index: usize,
        offerings: &[usize],
        instance_type: &mut InstanceType,
    ) {
        if let Some(price) = change.price {
            for offering in offerings {
                let mark = &mut self.prices[index][*offering];
                if mark.is_none() {
                    *mark = Some((change.weight, change.name.clone(), price));
                    let offering = &mut instance_type.offerings[*offering];
                    offering.price = price.of(offering.price);
                    offering.price_overlay = true;
                }
            }
        }
        for (resource, value) in change.capacity.iter() {
            if self.capacities[index]
                .iter()
                .all(|(marked, ..)| marked != resource)
            {
                self.capacities[index].push((
                    resource.to_owned(),
                    change.weight,
                    change.name.clone(),
                    value,
                ));
                instance_type.capacity.set(resource, value);
                instance_type.capacity_overlay = true;
            }
        }
    }
}
