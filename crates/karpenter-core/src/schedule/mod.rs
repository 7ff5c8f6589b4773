//! Where pods go: on machines that exist, else on new ones.
//!
//! [`schedule`] is one call; [`Solver`] is the same in two steps, for asking several questions about one snapshot.

mod algebra;
mod bits;
mod catalogue;
mod census;
mod choices;
mod claim;
mod claims;
mod class;
mod company;
mod defaults;
mod devices;
mod draft;
mod explain;
mod fit;
mod intake;
mod machines;
mod masks;
mod packing;
mod place;
mod plan;
mod polish;
mod prepare;
mod repack;
mod request;
mod room;
mod run;
mod template;
mod topology;
mod vectors;
mod volumes;
mod zones;

pub use plan::{
    Asked, ClaimDraft, DraftClaim, NoInstanceType, Placement, Plan, PoolOutcome, PoolReason,
    PoolReport, Reason, Unplaced, WhyNot,
};
pub use prepare::Solver;
pub use request::{
    Cancel, DefaultSpread, MinValuesPolicy, Packing, PodSet, PreferencePolicy, Progress,
    ReservedMode, ScheduleRequest,
};
pub use zones::EffectiveZone;

use crate::cluster::Snapshot;

/// Places the pods of `request` on the machines of `snapshot` and on new ones.
///
/// Pure: the plan is a function of both arguments, whatever the order objects were applied in. A run is the work of one thread:
/// where a pod goes depends on where those before it went. Many runs over one [`Solver`] go side by side.
pub fn schedule(snapshot: &Snapshot, request: &ScheduleRequest) -> Plan {
    Solver::prepare(snapshot, request).solve(request)
}
