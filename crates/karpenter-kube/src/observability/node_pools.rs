//! Metrics about NodePools.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::{ResourceList, labels};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::quantity::Quantity;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use super::series::{resource_type, with};
use crate::context::Context;
use crate::metrics::Emit;
use crate::model::View;

/// Returns the amounts of a NodePool by resource.
type Amounts = fn(&NodePool) -> &ResourceList;

pub(super) fn register(cx: &Arc<Context>) {
    let registry = &cx.metrics.registry;
    let by_resource = ["resource_type", "nodepool"];
    let of: [(&str, &str, Amounts); 2] = [
        ("limit", "Limits of NodePools.", |pool| &pool.spec.limits),
        ("usage", "Resources of the nodes of NodePools.", |pool| {
            &pool.status.resources
        }),
    ];
    for (name, help, list) in of {
        let collect = move |cx: &Context, emit: &mut Emit<'_>| {
            for pool in cx.view().snapshot.node_pools() {
                for (resource, quantity) in list(pool) {
                    if let Ok(quantity) = Quantity::try_from(quantity) {
                        emit.set(&[&resource_type(resource), pool.name()], quantity.as_f64());
                    }
                }
            }
        };
        registry.live(
            &format!("karpenter_nodepools_{name}"),
            help,
            &by_resource,
            with(cx, collect),
        );
    }
    registry.live(
        "karpenter_nodepools_cost_total",
        "Cost of the nodes of NodePools in dollars per hour.",
        &["nodepool"],
        with(cx, cost),
    );
    let unpriced: Mutex<BTreeMap<String, Unpriced>> = Mutex::default();
    let errors = move |cx: &Context, emit: &mut Emit<'_>| {
        let mut unpriced = unpriced.lock();
        let view = cx.view();
        unpriced.retain(|pool, _| view.node_pool(pool).is_some());
        for pool in view.snapshot.node_pools() {
            let of_pool = unpriced.entry(pool.name().to_owned()).or_default();
            of_pool.record(&view, pool.name());
            emit.set(&[pool.name()], of_pool.total as f64);
        }
    };
    registry.live_counter(
        "karpenter_nodepools_cost_tracker_errors_total",
        "Nodes of NodePools whose offering has no known price.",
        &["nodepool"],
        with(cx, errors),
    );
}

/// NodeClaims of a NodePool that had no price at a scrape.
#[derive(Debug, Default)]
struct Unpriced {
    /// Their uids: each counts once, however often it is seen.
    known: FxHashSet<String>,
    total: u64,
}

impl Unpriced {
    fn record(&mut self, view: &View, pool: &str) {
        let Some(types) = types_of(view, pool) else {
            return;
        };
        let claims = view.node_claims_of_pool(pool);
        let mut now = FxHashSet::default();
        for claim in claims.iter().filter(|c| c.is_true(types::LAUNCHED)) {
            if price(claim, &types).is_none() {
                self.total += u64::from(!self.known.contains(claim.uid()));
                now.insert(claim.uid().to_owned());
            }
        }
        self.known = now;
    }
}

fn cost(cx: &Context, emit: &mut Emit<'_>) {
    let view = cx.view();
    for pool in view.snapshot.node_pools() {
        if let Some(cost) = cost_of(&view, pool.name()) {
            emit.set(&[pool.name()], cost);
        }
    }
}

/// Returns the cost of the nodes of a NodePool; `None` before its instance types are known.
fn cost_of(view: &View, pool: &str) -> Option<f64> {
    let types = types_of(view, pool)?;
    let claims = view.node_claims_of_pool(pool);
    Some(claims.iter().filter_map(|claim| price(claim, &types)).sum())
}

/// Returns the instance types of a NodePool, by name.
fn types_of<'a>(view: &'a View, pool: &str) -> Option<BTreeMap<&'a str, &'a InstanceType>> {
    let types = view.snapshot.instance_types(pool)?.as_ref().ok()?;
    Some(types.iter().map(|t| (t.name.as_str(), t)).collect())
}

/// Returns the price of a NodeClaim by its labels; `None` for unknown offerings.
fn price(claim: &NodeClaim, types: &BTreeMap<&str, &InstanceType>) -> Option<f64> {
    let instance_type = types.get(claim.label(labels::INSTANCE_TYPE)?)?;
    let (zone, capacity_type) = (
        claim.label(labels::ZONE)?,
        claim.label(labels::CAPACITY_TYPE)?,
    );
    let mut offerings = instance_type.offerings.iter();
    let offering =
        offerings.find(|o| o.zone() == Some(zone) && o.capacity_type() == Some(capacity_type))?;
    Some(offering.price).filter(|price| price.is_finite())
}

#[cfg(test)]
mod tests {
    use karpenter_core::cluster::ClusterConfig;
    use karpenter_core::fake;

    use super::*;
    use crate::model::State;

    fn claim(name: &str, zone: &str) -> NodeClaim {
        let mut claim = NodeClaim::new(name, Default::default());
        let labels = [
            (labels::NODE_POOL, "default"),
            (labels::INSTANCE_TYPE, "a"),
            (labels::ZONE, zone),
            (labels::CAPACITY_TYPE, "spot"),
        ];
        claim.metadata.uid = Some(name.to_owned());
        claim.metadata.labels = Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        claim
    }

    fn offer(state: &mut State, price: f64) {
        let types = [fake::instance_type("a").price(price).build()];
        state
            .cluster
            .set_instance_types("default", Ok(types.into()));
    }

    /// Conformance: DIS-141
    #[test]
    fn the_price_of_a_claim_is_the_current_price_of_its_offering() {
        let build = |price| fake::instance_type("a").price(price).build();
        let (before, after) = (build(2.0), build(3.0));
        let of = |t: &InstanceType, zone: &str| price(&claim("c", zone), &[("a", t)].into());
        assert_eq!(of(&before, "test-zone-1"), Some(2.0));
        assert_eq!(
            of(&after, "test-zone-1"),
            Some(3.0),
            "a new price is used at once"
        );
        assert_eq!(of(&before, "test-zone-3"), None, "no such offering");
        assert_eq!(
            price(
                &NodeClaim::new("c", Default::default()),
                &[("a", &before)].into()
            ),
            None
        );
    }

    /// Conformance: API-181
    #[test]
    fn a_node_without_a_price_counts_once_however_often_it_is_seen() {
        let mut state = State::new(ClusterConfig::default(), &[]);
        let launched = |name: &str, zone: &str| {
            let mut claim = claim(name, zone);
            claim.set_true(types::LAUNCHED, jiff::Timestamp::UNIX_EPOCH);
            claim
        };
        let mut unpriced = Unpriced::default();
        let mut record = |state: &State| {
            unpriced.record(&state.view(), "default");
            unpriced.total
        };
        state.apply_node_claim(launched("x", "nowhere"));
        assert_eq!(record(&state), 0, "the instance types are not known yet");
        offer(&mut state, 1.0);
        state.apply_node_claim(claim("launching", "nowhere"));
        state.apply_node_claim(launched("priced", "test-zone-1"));
        assert_eq!(record(&state), 1);
        assert_eq!(record(&state), 1, "counted once");
        state.apply_node_claim(launched("y", "nowhere"));
        assert_eq!(record(&state), 2);
        state.remove_node_claim("x");
        assert_eq!(record(&state), 2, "the counter only grows");
    }

    /// Conformance: DIS-022, DIS-023
    #[test]
    fn the_cost_of_a_pool_is_that_of_its_nodes_at_current_prices() {
        let mut state = State::new(ClusterConfig::default(), &[]);
        let cost = |state: &State| cost_of(&state.view(), "default");
        assert_eq!(cost(&state), None, "the instance types are not known yet");
        offer(&mut state, 2.0);
        state.apply_node_claim(claim("x", "test-zone-1"));
        state.apply_node_claim(claim("y", "test-zone-1"));
        state.apply_node_claim(claim("y", "test-zone-1"));
        assert_eq!(cost(&state), Some(4.0), "each node once");
        offer(&mut state, 3.0);
        assert_eq!(
            cost(&state),
            Some(6.0),
            "a new price, or the price of an overlay"
        );
        state.remove_node_claim("x");
        state.remove_node_claim("x");
        assert_eq!(cost(&state), Some(3.0));
        state.remove_node_claim("y");
        assert_eq!(cost(&state), Some(0.0));
        state.apply_node_claim(claim("x", "test-zone-1"));
        assert_eq!(cost(&state), Some(3.0), "the previous state does not count");
    }
}
