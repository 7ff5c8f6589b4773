//! Metrics about the cluster: pods, nodes, NodePools, the model, and status conditions.
//!
//! All are derived from the latest view at each scrape ([`crate::metrics::Emit`]), except counters of transitions
//! ([`conditions`]). The option `--disable-cluster-state-observability` disables them.
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

/// Registers the metrics that are derived from views.
pub fn register(cx: &Arc<Context>, ledger: &Arc<PodLedger>) {
    pods::register(cx, ledger);
    nodes::register(cx);
    node_pools::register(cx);
}

/// Registers the metrics of the model itself; they remain when the others are disabled.
pub fn register_state(cx: &Arc<Context>) {
    state::register(cx);
}

/// Returns a collector that has the context while it exists and this replica acts: the context holds the registry, so the
/// registry must not hold the context.
pub(crate) fn with(
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

/// Returns a resource name as a label value: `ephemeral-storage` is `ephemeral_storage`.
fn resource_type(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// Returns an amount in the unit of the metrics: cores for cpu, the resource's own unit for the rest.
fn amount(name: &str, value: i64) -> f64 {
    if name == "cpu" {
        value as f64 / 1000.0
    } else {
        value as f64
    }
}
