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
mod series;
mod state;

use std::sync::Arc;

use crate::context::Context;
use crate::provisioning::PodLedger;

pub use conditions::{Conditions, Following};
#[cfg(feature = "decisions")]
pub(crate) use series::with;

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
