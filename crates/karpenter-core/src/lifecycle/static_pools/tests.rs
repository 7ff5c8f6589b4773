use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_fixtures::{Object, node_claim, node_pool};

use super::*;
use crate::cluster::{Cluster, ClusterConfig};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn claim(name: &str) -> NodeClaim {
    node_claim(name).pool("p").build()
}

/// The process with the feature gate, and a cluster with NodePool `p`.
struct Stage {
    cluster: Cluster,
    process: StaticPools,
}

impl Stage {
    fn new(pool: Object<NodePool>) -> Self {
        let mut cluster = Cluster::new(ClusterConfig::default());
        cluster.apply_node_pool(&pool.build());
        let process = StaticPools::new(Settings::of(|gate| gate == "StaticCapacity"));
        Self { cluster, process }
    }

    /// Returns how many nodes are launched, and when the NodePool is checked again.
    fn grow(&mut self, second: i64) -> (u32, Option<i64>) {
        let snapshot = self.cluster.snapshot();
        let effect = self.process.on(Event::Grow("p"), &snapshot, at(second));
        let count = match effect {
            Some(Effect::Launch { count, .. }) => count,
            _ => 0,
        };
        (count, self.next())
    }

    fn next(&self) -> Option<i64> {
        self.process.next_of("p").map(Timestamp::as_second)
    }

    fn launched(&mut self, count: u32, failed: bool, second: i64) {
        let pool = "p";
        let launched = Event::Launched {
            pool,
            count,
            failed,
        };
        let snapshot = self.cluster.snapshot();
        assert_eq!(self.process.on(launched, &snapshot, at(second)), None);
    }

    fn apply(&mut self, claim: &NodeClaim, second: i64) {
        let delta = self.cluster.apply_node_claim(claim);
        let (before, after) = (delta.before.as_deref(), delta.after.as_deref());
        let changed = Event::NodeClaim { before, after };
        self.process
            .on(changed, &self.cluster.snapshot(), at(second));
    }

    fn delete(&mut self, mut claim: NodeClaim, second: i64) {
        claim.metadata.deletion_timestamp = Some(Time(at(second)));
        self.apply(&claim, second);
    }
}

/// Conformance: DIS-083
#[test]
fn missing_nodes_are_launched_as_far_as_the_limit_allows() {
    let mut stage = Stage::new(node_pool("p").replicas(3).limit("nodes", "2"));
    assert_eq!(stage.grow(0), (2, Some(30)));
    assert_eq!(stage.grow(1), (0, Some(31)), "nodes that are created count");
    stage.apply(&claim("a"), 2);
    stage.apply(&claim("b"), 2);
    stage.launched(2, false, 2);
    assert_eq!(stage.grow(31), (0, Some(61)), "at the limit");
    let more = node_pool("p").replicas(3).limit("nodes", "5").build();
    let delta = stage.cluster.apply_node_pool(&more);
    let (before, after) = (delta.before.as_deref(), delta.after.as_deref());
    let changed = Event::NodePool { before, after };
    stage.process.on(changed, &stage.cluster.snapshot(), at(40));
    assert_eq!(stage.process.next(), Some((at(40), "p")));
    assert_eq!(stage.grow(40), (1, Some(100)));
}

#[test]
fn a_nodepool_of_the_right_size_is_checked_when_a_node_is_deleted() {
    let mut stage = Stage::new(node_pool("p").replicas(1));
    let mut a = claim("a");
    a.set_true(types::LAUNCHED, at(0));
    stage.apply(&a, 0);
    assert_eq!(stage.grow(0), (0, Some(60)));
    stage.delete(a, 7);
    assert_eq!(stage.next(), Some(7));
    assert_eq!(stage.grow(7), (1, Some(67)));
}

#[test]
fn a_nodepool_whose_nodes_are_not_launched_waits_longer_each_time() {
    let mut stage = Stage::new(node_pool("p").replicas(2));
    let (mut now, mut waits) = (0, Vec::new());
    for round in 0..8 {
        assert_eq!(stage.grow(now).0, 2, "round {round}");
        if round % 2 == 0 {
            stage.launched(2, true, now);
        } else {
            stage.launched(2, false, now);
            // Those that fail together count once.
            for name in ["a", "b"] {
                stage.apply(&claim(name), now);
                stage.delete(claim(name), now);
            }
            assert_eq!(stage.grow(now).0, 0);
        }
        let next = stage.next().unwrap();
        waits.push(next - now);
        now = next + 1;
    }
    let grow = waits.windows(2).take(5).all(|it| it[0] <= it[1]);
    assert!(grow && waits[0] <= 2 && waits[5] > 15, "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= 60), "{waits:?}");

    stage.apply(&claim("c"), now);
    let mut launched = claim("c");
    launched.set_true(types::LAUNCHED, at(now));
    stage.apply(&launched, now);
    stage.delete(launched, now);
    assert_eq!(stage.grow(now).0, 2, "nodes are launched again");
    stage.launched(2, true, now);
    assert!(stage.next().unwrap() - now <= 2, "the first failure");
}

/// Conformance: DIS-161
#[test]
fn surplus_nodes_are_deleted() {
    let mut stage = Stage::new(node_pool("p").replicas(1));
    let claims = ["a", "b", "c"].map(claim);
    claims.iter().for_each(|claim| stage.apply(claim, 0));
    let all: Vec<&NodeClaim> = claims.iter().collect();
    let mut shrink = |enabled: bool| {
        stage.process.settings.enabled = enabled;
        let snapshot = stage.cluster.snapshot();
        let shrink = Event::Shrink("p", &all);
        stage.process.on(shrink, &snapshot, at(0))
    };
    assert_eq!(shrink(true), Some(Effect::Delete(all[..2].to_vec())));
    assert_eq!(shrink(false), None);
}

#[test]
fn without_the_feature_gate_nothing_is_launched_and_nothing_is_due() {
    let mut stage = Stage::new(node_pool("p").replicas(2));
    stage.process = StaticPools::new(Settings::of(|_| false));
    stage.apply(&claim("a"), 0);
    stage.delete(claim("a"), 0);
    assert_eq!(stage.grow(0), (0, None));
}

#[test]
fn headroom_is_reserved_for_all_replacements_of_a_command_or_for_none() {
    let mut stage = Stage::new(node_pool("p").replicas(1).limit("nodes", "2"));
    let full = node_pool("q").replicas(1).limit("nodes", "0").build();
    stage.cluster.apply_node_pool(&full);
    let snapshot = stage.cluster.snapshot();
    let mut reserve = |nodes: &[(&str, u32)]| {
        let nodes = nodes
            .iter()
            .map(|(pool, count)| ((*pool).to_owned(), *count));
        let nodes = nodes.collect();
        let reserved = stage.process.reserve(&nodes, &snapshot);
        (reserved, nodes)
    };
    assert!(!reserve(&[("p", 1), ("q", 1)]).0);
    assert!(!reserve(&[("p", 1), ("gone", 1)]).0);
    let (reserved, nodes) = reserve(&[("p", 2)]);
    assert!(reserved && !reserve(&[("p", 1)]).0);
    stage.process.release(&nodes);
    assert_eq!(stage.process.drift_headroom(&snapshot)["p"], 2);
}
