//! What the cluster looks like, for dashboards: metrics about pods, nodes, NodePools, the model, and status conditions.
//!
//! All of it is derived from the latest view at the moment of a scrape ([`crate::metrics::Emit`]), except what counts
//! transitions ([`conditions`]). The option `--disable-cluster-state-observability` leaves it out.
//!
//! UPSTREAM: pkg/controllers/metrics, awslabs/operatorpkg status

pub mod conditions;
mod node_pools;
mod nodes;
mod pods;
mod state;

use std::sync::{Arc, Weak};

use crate::context::Context;
use crate::metrics::Emit;
use crate::provisioning::PodLedger;

pub use conditions::{Conditions, Following};

/// Adds the metrics that are derived from views.
pub fn register(cx: &Arc<Context>, ledger: &Arc<PodLedger>) {
    pods::register(cx, ledger);
    nodes::register(cx);
    node_pools::register(cx);
}

/// Adds the metrics of the model itself; they stay when the others are switched off.
pub fn register_state(cx: &Arc<Context>) {
    state::register(cx);
}

/// A collector that has the context, as long as there is one and this replica acts: the registry, which the context holds,
/// must not hold it.
fn with(
    cx: &Arc<Context>,
    collect: impl Fn(&Context, &mut Emit<'_>) + Send + Sync + 'static,
) -> impl Fn(&mut Emit<'_>) + Send + Sync + 'static {
    let weak: Weak<Context> = Arc::downgrade(cx);
    move |emit| {
        if let Some(cx) = weak.upgrade().filter(|cx| cx.acting.since().is_some()) {
            collect(&cx, emit);
        }
    }
}

/// A resource name as a label value: `ephemeral-storage` is `ephemeral_storage`.
fn resource_type(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// An amount in the unit of the metrics: cores for cpu, the resource's own unit for the rest.
fn amount(name: &str, value: i64) -> f64 {
    if name == "cpu" {
        value as f64 / 1000.0
    } else {
        value as f64
    }
}
