//! Deterministic simulation: the complete controllers on the embedded control plane, in virtual time, driven by a seed.
//!
//! A simulation is a day of a cluster's life. Workloads come, grow and go; NodePools change; the API server, the cloud and
//! machines fail; the controllers are restarted and killed. Then all trouble ends, and the cluster must come to rest.
//! Everything that is left to chance follows from the seed, so that a failure can be looked at again and again.
//!
//! | module | question it answers |
//! |---|---|
//! | [`driver`] | when something happens, and what is looked at |
//! | `happenings` | what may happen |
//! | [`world`] | what stands in the cluster |
//! | [`wire`] | what the controllers do, and how they die |
//! | `replicas` | how many there are, and which of them acts |
//! | [`safety`] | what must hold at each of their writes (I8) |
//! | `rest` | what must hold once nothing happens any more (I7) |
//! | `model` | whether the controllers' model is what the objects say |
//! | [`chance`] | where choices come from |
//! | [`panics`] | what was caught and is a bug all the same (I4) |

pub mod chance;
pub mod driver;
mod happenings;
mod model;
pub mod panics;
mod replicas;
mod rest;
pub mod safety;
pub mod wire;
pub mod world;

pub use driver::{Failure, Report, Settings};

/// Runs one seed to its end, on this thread.
///
/// # Errors
/// When something that must hold does not.
pub fn run(seed: u64, settings: &Settings) -> Result<Report, Box<Failure>> {
    panics::note();
    // Back-offs of watches are jittered by this thread's generator.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(driver::simulate(seed, settings)),
        Err(error) => Err(Box::new(Failure {
            seed,
            step: 0,
            at: world::epoch(),
            problems: vec![format!("no runtime, {error}")],
            context: Vec::new(),
        })),
    }
}
