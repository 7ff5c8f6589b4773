//! Hostile objects: any object that an API server would store, and some more, is read and scheduled without a panic, and every
//! pending pod has one decision, whatever the order in which objects arrive.

mod decisions;
mod objects;

use std::collections::BTreeSet;

use karpenter_core::schedule::{Query, schedule};
use karpenter_spec::{SolveSettings, engine, pod_id};
use proptest::prelude::*;

use crate::{cases, reversed};
use objects::{World, world};

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
            prop_assert!(seen.insert(pod.clone()), "{:?} is decided twice", pod);
        }
        let pending = objects.pods.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()));
        prop_assert_eq!(seen, pending.map(pod_id).collect::<BTreeSet<_>>());
        for unplaced in &plan.unplaced {
            prop_assert!(!unplaced.why.to_string().is_empty());
        }
        let reversed = engine::snapshot(&reversed(&objects));
        for again in [snapshot, reversed] {
            prop_assert_eq!(&schedule(&again, &engine::policy(settings), &Query::default()), &plan);
        }
    }
}
