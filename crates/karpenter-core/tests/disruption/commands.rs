//! What methods and commands say of themselves.

use jiff::SignedDuration;
use karpenter_core::disruption::{Command, Method};
use serde_json::json;

use crate::fixture::now;
use crate::fleet::{Fleet, FleetNode, node, running, world};

#[test]
fn drift_alone_starts_without_a_validation() {
    let validated = |method: Method| method.is_validated();
    assert!(
        ![Method::StaticDrift, Method::Drift]
            .into_iter()
            .any(validated)
    );
    let others = [Method::Emptiness, Method::MultiNode, Method::SingleNode];
    assert!(others.into_iter().all(validated));
}

/// Returns the command that deletes or replaces a node.
fn command(node: FleetNode, pods: &[&str]) -> Command {
    let pods = pods.iter().map(|pod| running(pod, "a", "100m"));
    let world = world().run([node]).with(pods);
    world.decide_with(|_| ()).commands.remove(0)
}

#[test]
fn a_command_names_its_nodes_replacements_and_pods() {
    let command = command(node("a", "huge"), &["p", "q"]);
    assert_eq!(
        command.to_string(),
        "terminating 1 candidates a/huge/on-demand and replacing with on-demand node from types small, medium, large"
    );
    let pods: Vec<&str> = command.pods().map(|pod| pod.name.as_str()).collect();
    assert_eq!(pods, ["p", "q"]);
}

/// A node that expires soon is disrupted rather than one that does not.
#[test]
fn the_cost_of_a_disruption_grows_with_pods_and_shrinks_with_time() {
    let cost = |node: FleetNode, pods: &[&str]| command(node, pods).candidates[0].disruption_cost;
    let half = || {
        let created = now() - SignedDuration::from_hours(1);
        node("a", "huge")
            .claim("/metadata/creationTimestamp", json!(created))
            .claim("/spec/expireAfter", json!("2h"))
    };
    let never = || node("a", "huge").claim("/spec/expireAfter", json!("Never"));
    let (one, two) = (cost(never(), &["p"]), cost(never(), &["p", "q"]));
    assert!((two - 2.0 * one).abs() < 1e-9, "{two} {one}");
    let (half, whole) = (cost(half(), &["p"]), cost(never(), &["p"]));
    assert!((half - whole / 2.0).abs() < 1e-9, "{half} {whole}");
}
