//! NodeOverlays: changes of prices and capacities by users.
//!
//! Overlays are applied by weight descending, then name descending; the first one decides the price of an offering and a
//! resource of an instance type. An overlay applies to an instance type if its requirements are strictly met by NodePool name,
//! template labels and the requirements of the instance type, and by at least one offering; a price applies to those
//! offerings, capacity to the instance type.
//!
//! UPSTREAM: pkg/controllers/nodeoverlay, pkg/cloudprovider/overlay
//! DIFFERS: devices, overrides of offerings, and overlays with equal changes are kept.

use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::v1::NodePool;
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_api::validation::WellKnown;

use crate::cluster::Snapshot;
use crate::instance_type::InstanceType;
use crate::requirements::{AllowUndefined, Requirement, Requirements};
use crate::resources::Resources;

/// An overlay that conflicts with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Name of the overlay.
    pub overlay: String,
    /// Name of the overlay of equal weight that it conflicts with.
    pub conflicts_with: String,
}

/// A NodePool with its instance types, before overlays.
pub type Offered<'a> = (&'a NodePool, &'a Arc<[InstanceType]>);

/// Splits `overlays` into those that can be used, in the order of application, and those that conflict with one of equal weight
/// in any NodePool, which are rejected as a whole.
pub fn accept(
    overlays: &[Arc<NodeOverlay>],
    pools: &[Offered<'_>],
    names: &WellKnown,
) -> (Vec<Arc<NodeOverlay>>, Vec<Rejected>) {
    let mut sorted: Vec<&Arc<NodeOverlay>> = overlays.iter().collect();
    sorted.sort_by(|a, b| NodeOverlay::application_order(a, b));
    let mut marks: Vec<Marks> = pools.iter().map(|(_, types)| Marks::new(types)).collect();
    let (mut accepted, mut rejected) = (Vec::new(), Vec::new());
    for overlay in sorted {
        let Some(change) = Change::read(overlay, names) else {
            continue;
        };
        let matches: Vec<_> = pools
            .iter()
            .map(|(pool, types)| matching(&change, pool, types, names))
            .collect();
        let conflict = marks
            .iter()
            .zip(&matches)
            .find_map(|(marks, matches)| marks.conflict(&change, matches));
        if let Some(conflicts_with) = conflict {
            rejected.push(Rejected {
                overlay: change.name,
                conflicts_with,
            });
            continue;
        }
        for (marks, matches) in marks.iter_mut().zip(&matches) {
            for (index, offerings) in matches {
                marks.mark(&change, *index, offerings);
            }
        }
        accepted.push(overlay.clone());
    }
    (accepted, rejected)
}

/// Returns the instance types of a NodePool after `overlays`.
pub fn apply(
    overlays: &[Arc<NodeOverlay>],
    pool: &NodePool,
    types: &Arc<[InstanceType]>,
    names: &WellKnown,
) -> Arc<[InstanceType]> {
    evaluate(overlays, pool, types, names).0
}

/// Returns the instance types of a NodePool after the overlays of a snapshot; `None` if they are not known.
pub fn offered(snapshot: &Snapshot, pool: &NodePool) -> Option<Arc<[InstanceType]>> {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let types = snapshot.instance_types(name)?.as_ref().ok()?;
    let config = snapshot.config();
    let overlays: Vec<Arc<NodeOverlay>> = if config.node_overlays {
        snapshot.node_overlays().cloned().collect()
    } else {
        Vec::new()
    };
    Some(if overlays.is_empty() {
        types.clone()
    } else {
        apply(&overlays, pool, types, &config.well_known)
    })
}

/// Does the same as [`apply`], and returns the overlays that are rejected for a conflict with one of equal weight.
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

/// A change of a price.
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

/// Returns the instance types that an overlay applies to, each with its matching offerings.
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

/// The changes so far, each with the latest overlay that made it.
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

    /// Records the changes of an instance type. Overlays come by falling weight, so the latest one is the one that others of equal
    /// weight must agree with.
    fn mark(&mut self, change: &Change, index: usize, offerings: &[usize]) {
        if let Some(price) = change.price {
            for offering in offerings {
                self.prices[index][*offering] = Some((change.weight, change.name.clone(), price));
            }
        }
        for (resource, value) in change.capacity.iter() {
            let mark = (
                resource.to_owned(),
                change.weight,
                change.name.clone(),
                value,
            );
            let marks = &mut self.capacities[index];
            match marks.iter_mut().find(|(marked, ..)| marked == resource) {
                Some(present) => *present = mark,
                None => marks.push(mark),
            }
        }
    }

    /// Applies `change` to values that no other overlay changed before.
    fn apply(
        &mut self,
        change: &Change,
        index: usize,
        offerings: &[usize],
        instance_type: &mut InstanceType,
    ) {
        if let Some(price) = change.price {
            for offering in offerings {
                if self.prices[index][*offering].is_none() {
                    let offering = &mut instance_type.offerings[*offering];
                    offering.price = price.of(offering.price);
                    offering.price_overlay = true;
                }
            }
        }
        for (resource, value) in change.capacity.iter() {
            let marks = &self.capacities[index];
            if marks.iter().all(|(marked, ..)| marked != resource) {
                instance_type.capacity.set(resource, value);
                instance_type.capacity_overlay = true;
            }
        }
        self.mark(change, index, offerings);
    }
}

#[cfg(test)]
mod tests {
    use karpenter_fixtures::node_pool;
    use serde_json::{Value, json};

    use super::*;
    use crate::fake;

    /// Returns an overlay of all instance types, unless the specification has requirements.
    fn overlay(name: &str, mut spec: Value) -> Arc<NodeOverlay> {
        if spec["requirements"].is_null() {
            spec["requirements"] = json!([]);
        }
        let value = json!({ "metadata": { "name": name }, "spec": spec });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn types() -> Arc<[InstanceType]> {
        let priced = |name, price| fake::instance_type(name).price(price).build();
        Arc::new([priced("a", 2.0), priced("b", 4.0)])
    }

    fn on(key: &str, value: &str) -> Value {
        json!([{ "key": key, "operator": "In", "values": [value] }])
    }

    /// Returns the spot and on-demand price of each type in the first zone.
    fn prices(types: &[InstanceType]) -> Vec<(f64, f64)> {
        let of = |t: &InstanceType, kind: &str| {
            let here = |o: &&crate::offering::Offering| {
                o.capacity_type() == Some(kind) && o.zone() == Some("test-zone-1")
            };
            t.offerings.iter().find(here).unwrap().price
        };
        types
            .iter()
            .map(|t| (of(t, "spot"), of(t, "on-demand")))
            .collect()
    }

    fn applied(overlays: &[Arc<NodeOverlay>]) -> Arc<[InstanceType]> {
        let names = fake::well_known();
        apply(overlays, &node_pool("p").build(), &types(), &names)
    }

    fn rejected(overlays: &[Arc<NodeOverlay>], pools: &[&NodePool]) -> Vec<(String, String)> {
        let types = types();
        let offered: Vec<Offered<'_>> = pools.iter().map(|pool| (*pool, &types)).collect();
        let (_, rejected) = accept(overlays, &offered, &fake::well_known());
        rejected
            .into_iter()
            .map(|r| (r.overlay, r.conflicts_with))
            .collect()
    }

    fn pair(a: &str, b: &str) -> [(String, String); 1] {
        [(a.to_owned(), b.to_owned())]
    }

    /// Conformance: API-088
    #[test]
    fn the_heaviest_overlay_wins_each_price_and_each_resource() {
        let spot = on("karpenter.sh/capacity-type", "spot");
        let overlays = [
            overlay(
                "light",
                json!({ "price": "9", "capacity": { "x.y/a": "1", "x.y/b": "1" } }),
            ),
            overlay(
                "heavy",
                json!({ "requirements": spot, "price": "1", "capacity": { "x.y/a": "2" }, "weight": 5 }),
            ),
        ];
        let changed = applied(&overlays);
        assert_eq!(prices(&changed), [(1.0, 9.0), (1.0, 9.0)]);
        let capacity = &changed[0].capacity;
        assert_eq!((capacity.get("x.y/a"), capacity.get("x.y/b")), (2, 1));
        assert!(changed[0].capacity_overlay);
        assert!(changed[0].offerings.iter().all(|o| o.price_overlay));
        let elsewhere = on("karpenter.sh/nodepool", "q");
        let none = applied(&[overlay(
            "o",
            json!({ "requirements": elsewhere, "price": "1" }),
        )]);
        assert_eq!(prices(&none), [(2.0, 2.0), (4.0, 4.0)]);
        assert!(!none[0].capacity_overlay);
    }

    /// Conformance: API-207
    #[test]
    fn prices_are_set_moved_or_scaled_and_never_below_zero() {
        let with = |field: &str, value: &str| {
            let mut spec = json!({ "requirements": on("node.kubernetes.io/instance-type", "a") });
            spec[field] = value.into();
            prices(&applied(&[overlay("o", spec)]))[0].0
        };
        assert_eq!(with("price", "0.5"), 0.5);
        assert_eq!(with("priceAdjustment", "+1.5"), 3.5);
        assert_eq!(with("priceAdjustment", "-0.5"), 1.5);
        assert_eq!(with("priceAdjustment", "-5"), 0.0);
        assert_eq!(with("priceAdjustment", "+50%"), 3.0);
        assert_eq!(with("priceAdjustment", "-100%"), 0.0);
    }

    /// Conformance: SCH-246
    #[test]
    fn an_overlay_matches_template_labels_and_keeps_offering_overrides() {
        let mut rich = fake::instance_type("a").build();
        rich.offerings[0].capacity_override = Some(Resources::new().with("memory", 1));
        let types: Arc<[InstanceType]> = Arc::new([rich]);
        let overlays = [overlay(
            "o",
            json!({ "requirements": on("team", "a"), "price": "1" }),
        )];
        let names = fake::well_known();
        let mine = apply(
            &overlays,
            &node_pool("p").node_label("team", "a").build(),
            &types,
            &names,
        );
        let (before, after) = (&types[0].offerings[0], &mine[0].offerings[0]);
        assert_eq!(
            (after.price, &after.capacity_override),
            (1.0, &before.capacity_override)
        );
        let other = apply(&overlays, &node_pool("p").build(), &types, &names);
        assert!(
            Arc::ptr_eq(&other, &types),
            "unchanged instance types are not copied"
        );
    }

    /// Conformance: API-089
    #[test]
    fn of_two_conflicting_overlays_of_equal_weight_the_later_is_rejected() {
        let p = node_pool("p").node_label("team", "a").build();
        let q = node_pool("q").build();
        let a = overlay(
            "a",
            json!({ "requirements": on("team", "a"), "price": "1" }),
        );
        let b = overlay("b", json!({ "price": "2" }));
        let both = [a, b.clone()];
        assert_eq!(rejected(&both, &[&p, &q]), pair("a", "b"));
        assert!(rejected(&both, &[&q]).is_empty(), "they do not meet there");
        let heavy = overlay("a", json!({ "price": "1", "weight": 2 }));
        assert!(rejected(&[heavy.clone(), b.clone()], &[&p]).is_empty());
        let c = overlay("c", json!({ "price": "3" }));
        let below = [heavy, b.clone(), c];
        assert_eq!(
            rejected(&below, &[&p]),
            pair("b", "c"),
            "below a heavier one, too"
        );
        let capacity = |name, amount| overlay(name, json!({ "capacity": { "x.y/a": amount } }));
        let two = [capacity("a", "1"), capacity("b", "2")];
        assert_eq!(rejected(&two, &[&p]), pair("a", "b"));
        assert!(rejected(&[capacity("a", "1"), b], &[&p]).is_empty());
    }

    #[test]
    fn overlays_with_equal_changes_do_not_conflict() {
        let same = |name| overlay(name, json!({ "price": "1", "capacity": { "x.y/a": "1" } }));
        assert!(rejected(&[same("a"), same("b")], &[&node_pool("p").build()]).is_empty());
    }
}
