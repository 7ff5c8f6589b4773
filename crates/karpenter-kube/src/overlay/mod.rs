//! NodeOverlays (feature gate NodeOverlay): validates them, and applies them to instance types.
//!
//! 1. [`Evaluation`] validates the overlays, finds those that conflict in some NodePool, and sets their conditions. The
//!    valid ones are published.
//! 2. [`Overlaid`] is the provider as all controllers use it: instance types have the overlays applied. A NodePool that has
//!    not been evaluated yet has none, so that nothing is launched at a price that is about to change.
//!
//! UPSTREAM: pkg/controllers/nodeoverlay, pkg/cloudprovider/overlay

mod evaluation;
mod provider;

pub use evaluation::Evaluation;
pub use provider::{Accepted, Overlaid};
