//! The engine on generated and hostile clusters, judged by what this crate implements again.

#![expect(
    clippy::disallowed_methods,
    reason = "the environment says how many cases to try"
)]

mod bundles;
mod devices;
mod differential;
mod hostile;
mod kube_scheduler;

use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

use karpenter_spec::World;
use proptest::test_runner::{Config, RngSeed};

/// Returns the number in an environment variable.
fn number<T: FromStr>(variable: &str) -> Option<T> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Returns the configuration of a property: by default `usual` clusters of seed 1, with KARPENTER_SPEC_CASES that many new ones
/// in each run. A failure prints the seed, and PROPTEST_RNG_SEED repeats it.
fn cases(usual: u32) -> Config {
    let wanted = number("KARPENTER_SPEC_CASES");
    let seed = number("PROPTEST_RNG_SEED").unwrap_or_else(|| match wanted {
        Some(_) => RandomState::new().hash_one(usual),
        None => 1,
    });
    // libtest shows it when the test fails.
    eprintln!("PROPTEST_RNG_SEED={seed}");
    Config {
        cases: wanted.unwrap_or(usual),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 4096,
        ..Config::default()
    }
}

/// Returns the world with all objects in reverse order.
fn reversed(world: &World) -> World {
    let mut reversed = world.clone();
    reversed.pods.reverse();
    reversed.nodes.reverse();
    reversed.node_claims.reverse();
    reversed.node_pools.reverse();
    reversed.daemon_sets.reverse();
    reversed.resource_claims.reverse();
    reversed.resource_slices.reverse();
    reversed
        .instance_types
        .values_mut()
        .for_each(|types| types.reverse());
    reversed
}
