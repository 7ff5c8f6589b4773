//! NodeOverlays (feature gate NodeOverlay): validates them, and applies them to instance types.
//!
//! 1. [`Evaluation`] validates the overlays, finds those that conflict in some NodePool, and sets their conditions. The
//!    valid ones are published.
//! 2. [`Provider`](crate::provider::Provider), as all controllers use it, applies those of [`Accepted`] to instance types. A
//!    NodePool that has not been evaluated yet has none, so that nothing is launched at a price that is about to change.
//!
//! UPSTREAM: pkg/controllers/nodeoverlay, pkg/cloudprovider/overlay

mod accepted;
mod evaluation;

pub use accepted::Accepted;
pub use evaluation::Evaluation;
