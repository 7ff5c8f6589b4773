//! Deterministic simulation: the complete controllers on the embedded control plane, in virtual time, driven by a seed.
//!
//! A simulation is a day of a cluster. Workloads are created, scaled and deleted; NodePools change; the API server, the
//! cloud and instances fail; the controllers are restarted and killed. Then all disturbances end, and the cluster must
//! converge. All random choices follow from the seed, so that a failure can be repeated.
//!
//! | module | question it answers |
//! |---|---|
//! | `driver` | when do disturbances happen, and when are invariants checked? |
//! | `disturbances` | which disturbances are there? |
//! | `world` | which objects are in the cluster? |
//! | `wire` | what do the controllers write, and how are they killed? |
//! | `replicas` | how many replicas are there, and which of them leads? |
//! | `safety` | what must hold at each of their writes? |
//! | `convergence` | what must hold once disturbances have ended (I7)? |
//! | `model` | does the controllers' model match the objects? |
//! | `chance` | where do random choices come from? |
//! | `panics` | which panics were caught and are bugs all the same (I4)? |

mod chance;
mod convergence;
mod disturbances;
mod driver;
mod model;
mod panics;
mod place;
mod replicas;
mod safety;
mod wire;
mod world;

pub use chance::Chance;
pub use driver::{Failure, Report, SimulationSettings};
pub use world::epoch;

/// Runs one seed to its end, on this thread.
///
/// # Errors
/// When an invariant is violated.
pub fn run(seed: u64, settings: &SimulationSettings) -> Result<Report, Box<Failure>> {
    panics::note();
    // Back-offs of watches are jittered by this thread's generator.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let failed = |error| Failure::before(seed, format!("cannot create a runtime: {error}"));
    let runtime = runtime.map_err(failed)?;
    runtime.block_on(driver::simulate(seed, settings))
}
