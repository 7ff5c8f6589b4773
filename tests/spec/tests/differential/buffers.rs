//! Clusters in which some of the pending pods belong to capacity buffers: they exist only in memory, and come last.

use std::sync::Arc;

use karpenter_core::pod::Pod;
use karpenter_core::schedule::{Plan, Query, schedule};
use karpenter_spec::{PodId, Solution, SolveSettings, World, check, engine, pod_id};
use proptest::prelude::*;

use super::generate::{Features, world};
use super::policy;
use crate::cases;

/// Takes pending pods out of a cluster as pods of buffers: those whose bit is set.
fn take_buffers(world: &World, bits: u32) -> (World, Vec<Arc<Pod>>) {
    let (mut rest, mut buffers) = (world.clone(), Vec::new());
    let mut index = 0;
    rest.pods.retain(|pod| {
        let parsed = Pod::parse(pod);
        if !parsed.is_provisionable() {
            return true;
        }
        index = (index + 1) % 32;
        let buffer = bits >> index & 1 == 1;
        if buffer {
            buffers.push(Arc::new(parsed));
        }
        !buffer
    });
    (rest, buffers)
}

/// Reads a plan as a solution, with the pods of buffers as pods like others.
fn solution(plan: &Plan) -> Solution {
    let mut solution = engine::solution(plan);
    for (claim, draft) in solution.claims.iter_mut().zip(&plan.new_node_claims) {
        claim.pods.extend(draft.buffer_pods.iter().map(|pod| PodId {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
        }));
    }
    solution
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn pods_of_buffers_keep_all_rules_and_take_no_place_of_a_pod(world in world(Features::COMMON), bits in any::<u32>()) {
        let (rest, buffers) = take_buffers(&world, bits);
        let settings = SolveSettings::default();
        let snapshot = engine::snapshot(&rest);
        let without = engine::solution(&schedule(&snapshot, &policy(settings), &Query::default()));
        let query = Query::default().with_buffer_pods(buffers);
        let with = solution(&schedule(&snapshot, &policy(settings), &query));
        prop_assert_eq!(check(&world, settings, &with), vec![], "{:#?}", with);
        let pods: Vec<PodId> = rest.pods.iter().map(pod_id).collect();
        let unplaced = pods.iter().filter(|pod| with.unplaced.contains(pod)).count();
        prop_assert!(unplaced <= without.unplaced.len(), "with buffers {:#?} without {:#?}", with, without);
    }
}
