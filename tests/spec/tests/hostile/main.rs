//! Hostile objects: any object that an API server would store, and some more, is read and scheduled without a panic, and every
//! pending pod has one decision.

#![expect(
    clippy::disallowed_methods,
    reason = "the environment says how many cases to try"
)]

mod decisions;
mod objects;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

use karpenter_core::schedule::{Query, schedule};
use karpenter_spec::{SolveSettings, engine};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use objects::{World, world};

/// Returns the configuration: by default `usual` clusters of seed 1, with KARPENTER_SPEC_CASES that many new ones in each run.
/// A failure prints the seed, and PROPTEST_RNG_SEED repeats it.
fn cases(usual: u32) -> ProptestConfig {
    fn number<T: FromStr>(variable: &str) -> Option<T> {
        std::env::var(variable).ok()?.parse().ok()
    }
    let wanted = number("KARPENTER_SPEC_CASES");
    let seed = number("PROPTEST_RNG_SEED").unwrap_or_else(|| match wanted {
        Some(_) => RandomState::new().hash_one(usual),
        None => 1,
    });
    // libtest shows it when the test fails.
    eprintln!("PROPTEST_RNG_SEED={seed}");
    ProptestConfig {
        cases: wanted.unwrap_or(usual),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 4096,
        ..ProptestConfig::default()
    }
}

/// Returns the settings of three bits.
fn settings_of(bits: u8) -> SolveSettings {
    SolveSettings {
        respect_preferences: bits & 1 == 0,
        strict_min_values: bits & 2 == 0,
        strict_reserved: bits & 4 == 0,
    }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn any_object_is_scheduled_or_rejected(world in world()) {
        let World { objects, settings, .. } = world;
        let settings = settings_of(settings);
        let snapshot = engine::snapshot(&objects);
        let plan = schedule(&snapshot, &engine::policy(settings), &Query::default());
        let solution = engine::solution(&plan);
        let in_claims = solution.claims.iter().flat_map(|claim| &claim.pods);
        let mut seen = BTreeSet::new();
        for pod in solution.existing.keys().chain(in_claims).chain(&solution.unplaced) {
            prop_assert!(seen.insert(pod), "{:?} is decided twice", pod);
        }
        for unplaced in &plan.unplaced {
            prop_assert!(!unplaced.why.to_string().is_empty());
        }
        prop_assert_eq!(schedule(&snapshot, &engine::policy(settings), &Query::default()), plan);
    }
}
