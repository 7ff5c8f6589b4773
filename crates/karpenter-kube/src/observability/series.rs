//! Series that are derived from the view at each scrape.

use std::sync::{Arc, Weak};

use crate::context::Context;
use crate::metrics::Emit;

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
pub(super) fn resource_type(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// Returns an amount in the unit of the metrics: cores for cpu, the resource's own unit for the rest.
pub(super) fn amount(name: &str, value: i64) -> f64 {
    if name == "cpu" {
        value as f64 / 1000.0
    } else {
        value as f64
    }
}
