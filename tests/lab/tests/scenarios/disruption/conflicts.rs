//! What a command does when the writes that mark its nodes fail.

use karpenter_testbed::faults::{Fault, Rule};

use super::{oversized, tainted};
use crate::world::World;

const REFUSED: Fault = Fault::Error(403);

/// The requests that mark a node: its taint, and the condition of its NodeClaim.
const MARKS: [&str; 2] = ["nodes", "nodeclaims/status"];

/// Proposes to replace a node, and returns the world once the command is due. The first requests of this kind have this fault.
async fn due(verb: &str, resource: &str, fault: Fault, times: u64) -> World {
    let (world, _) = oversized().await;
    world.pass(60).await;
    world.scale("app", 2).await;
    world.until_event("ConsolidationCandidate", 60).await;
    let rule = Rule::new(fault).verb(verb).resource(resource);
    world.cluster.testbed.faults().add(rule.times(times));
    world.pass(18).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_conflicts_with_other_writers_is_tried_four_times() {
    for resource in MARKS {
        for conflicts in [1, 3] {
            let world = due("patch", resource, Fault::Conflict, conflicts).await;
            let launched = world.cluster.cloud.launched();
            assert_eq!(launched, 2, "{resource}, {conflicts} conflicts");
        }
        let world = due("patch", resource, Fault::Conflict, 4).await;
        assert_eq!(world.cluster.cloud.launched(), 1, "{resource}");
        assert_eq!(tainted(&world).await, 0, "{resource}: rolled back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_is_refused_is_not_tried_again_by_the_same_command() {
    for resource in MARKS {
        let world = due("patch", resource, REFUSED, 1).await;
        assert_eq!(world.cluster.cloud.launched(), 1, "{resource}");
    }
}
