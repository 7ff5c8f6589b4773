//! The comparison of a shadow with the Karpenter that runs a cluster.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::HasConditions;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::disruption::{DisruptionRequest, plan};
use karpenter_core::fake::{cluster_config, instance_type, offering};
use karpenter_core::pod::Pod;
use karpenter_core::resources::Resources;
use karpenter_core::schedule::{Plan, PodSet, Policy, Query, schedule};
use karpenter_decisions::shadow::report::{Decisions, Explanation};
use karpenter_decisions::shadow::{Comparison, ShadowReport};
use karpenter_fixtures::{
    INSTANCE_TYPE, Node, Object, Z1, claim_of, node, node_claim, node_pool, pod,
};
use serde_json::json;

fn at(second: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    start + SignedDuration::from_secs(second)
}

/// A cluster that another Karpenter runs, with the NodePool `default`, and a shadow beside it.
struct Beside {
    cluster: Cluster,
    comparison: Comparison,
}

impl Beside {
    fn new() -> Self {
        let mut cluster = Cluster::new(cluster_config());
        let pool = node_pool("default").without_requirements();
        let pool = pool.consolidate_after("0s").budgets(&["100%"]);
        cluster.apply_node_pool(&pool.build());
        let types = [4_i64, 8, 16].map(|cpu| {
            instance_type(&format!("m-{cpu}"))
                .cpu(cpu)
                .gib(2 * cpu)
                .pods(50)
                .offerings(vec![offering("on-demand", Z1, cpu as f64 / 10.0)])
                .build()
        });
        cluster.set_instance_types("default", Ok(types.into()));
        Self {
            cluster,
            comparison: Comparison::new(at(0)),
        }
    }

    fn snapshot(&self) -> Snapshot {
        self.cluster.snapshot()
    }

    /// Adds a pod that is pending since a second.
    fn waits(&mut self, name: &str, cores: i64, second: i64) {
        let pod = Pod::pending("shop", name, Resources::new().with("cpu", cores * 1000));
        self.comparison.pod_waits(&pod.key, at(second));
        self.cluster.insert_pod(pod);
    }

    /// Decides about the pods as a pass of the shadow does.
    fn decide(&mut self, second: i64) -> Plan {
        let question = self.comparison.question(&self.snapshot(), at(second));
        let (policy, query) = (Policy::at(at(second)), Query::new(PodSet::Waiting));
        let plan = schedule(&question.snapshot, &policy, &query);
        self.comparison.provisioned(&question, &plan, at(second));
        plan
    }

    /// The other Karpenter writes a NodeClaim.
    fn writes(&mut self, claim: NodeClaim, second: i64) {
        let before = self.snapshot().node_claim(claim.name()).cloned();
        self.cluster.apply_node_claim(&claim);
        let (name, snapshot) = (claim.name(), self.snapshot());
        let before = before.as_deref();
        self.comparison
            .claim_changed(name, before, Some(&claim), &snapshot, at(second));
    }

    fn deletes(&mut self, name: &str, second: i64) {
        let before = self.snapshot().node_claim(name).cloned();
        self.cluster.remove_node_claim(name);
        let snapshot = self.snapshot();
        let before = before.as_deref();
        self.comparison
            .claim_changed(name, before, None, &snapshot, at(second));
    }

    /// An initialized node of the other Karpenter, older than the comparison.
    fn node(&mut self, name: &str, cpu: i64) {
        let conditions = ["Launched", "Registered", "Initialized", "Consolidatable"];
        self.cluster
            .apply_node_claim(&launched(name, cpu, &conditions));
        self.cluster.apply_node(&node_object(name, cpu).build());
    }

    /// A NodeClaim of the other Karpenter gets its node.
    fn node_of(&mut self, name: &str, cpu: i64, second: i64) {
        let conditions = ["Launched", "Registered", "Initialized"];
        self.writes(launched(name, cpu, &conditions), second);
        self.cluster.apply_node(&node_object(name, cpu).build());
    }

    fn runs(&mut self, name: &str, cores: i64, node: &str) {
        let pod = pod(name)
            .namespace("shop")
            .controlled_by("ReplicaSet", "web");
        let pod = pod.cpu(&cores.to_string()).on(node);
        self.cluster.apply_pod(&pod.build());
    }

    /// The other Karpenter begins to disrupt a node.
    fn disrupts(&mut self, name: &str, reason: &str, second: i64) {
        let claim = self.snapshot().node_claim(name).cloned().unwrap();
        let mut claim = NodeClaim::clone(&claim);
        claim.set_true_with_reason("DisruptionReason", reason, reason, at(second));
        self.writes(claim, second);
    }

    fn report(&mut self, second: i64) -> ShadowReport {
        self.comparison.advance(at(second));
        self.comparison.report(None, at(second))
    }
}

/// A NodeClaim that is not launched.
fn created(name: &str, second: i64) -> NodeClaim {
    node_claim(name)
        .pool("default")
        .created(&at(second).to_string())
        .request("cpu", "1")
        .build()
}

fn node_object(name: &str, cpu: i64) -> Object<Node> {
    node(name)
        .label(INSTANCE_TYPE, &format!("m-{cpu}"))
        .cpu(&cpu.to_string())
        .memory(&format!("{}Gi", 2 * cpu))
        .pods("50")
        .ready()
}

/// Returns a launched NodeClaim with these conditions.
fn launched(name: &str, cpu: i64, conditions: &[&str]) -> NodeClaim {
    let claim = claim_of(&node_object(name, cpu))
        .set("/metadata/name", name)
        .set("/metadata/uid", name)
        .created(&at(-3600).to_string())
        .set("/status/conditions", json!([]));
    conditions.iter().fold(claim, |it, of| it.is(of)).build()
}

fn shown(report: &ShadowReport) -> String {
    serde_json::to_string_pretty(report).unwrap()
}

#[test]
fn a_nodeclaim_created_before_our_decision_is_hidden_from_it() {
    let mut beside = Beside::new();
    beside.waits("a", 3, 10);
    beside.writes(created("theirs", 11), 11);
    let plan = beside.decide(12);
    assert_eq!(plan.new_node_claims.len(), 1, "the NodeClaim is hidden");
    let waiting = beside.report(90).provisioning.waiting;
    assert_eq!(waiting, 1, "not launched yet");
    beside.writes(launched("theirs", 4, &["Launched"]), 91);
    let report = beside.report(92);
    let provisioning = &report.provisioning;
    assert_eq!((provisioning.nodes.ours, provisioning.nodes.theirs), (1, 1));
    assert_eq!((provisioning.pods, provisioning.covered.ours), (1, 1));
    assert_eq!(provisioning.agreement, 1.0);
    assert_eq!(provisioning.latency_seconds.ours.unwrap().mean, 2.0);
    assert_eq!(provisioning.latency_seconds.theirs.unwrap().mean, 1.0);
    assert!(report.differences.is_empty(), "{}", shown(&report));
}

#[test]
fn within_a_window_our_planned_nodes_stand_in_for_those_of_the_other() {
    let mut beside = Beside::new();
    beside.waits("a", 2, 10);
    beside.decide(12);
    beside.writes(created("theirs", 13), 13);
    beside.waits("b", 1, 20);
    let plan = beside.decide(22);
    let new = plan.new_node_claims.len();
    assert_eq!(new, 0, "four cores are enough for both");
    assert_eq!(plan.existing.len(), 1, "the first pod keeps its place");
    beside.waits("c", 1, 30);
    let plan = beside.decide(32);
    assert_eq!(plan.new_node_claims.len(), 1, "they are not for three");
}

#[test]
fn a_nodeclaim_like_our_planned_node_stays_with_its_pods() {
    let mut beside = Beside::new();
    beside.waits("a", 2, 10);
    beside.decide(12);
    beside.writes(created("theirs", 13), 13);
    beside.node_of("theirs", 4, 14);
    beside.runs("other", 2, "theirs");
    beside.waits("b", 1, 20);
    let plan = beside.decide(22);
    let new = plan.new_node_claims.len();
    assert_eq!(new, 1, "kube-scheduler bound a pod there");
}

#[test]
fn after_the_window_the_state_is_that_of_the_other() {
    let mut beside = Beside::new();
    beside.waits("a", 3, 10);
    beside.decide(12);
    beside.writes(created("theirs", 13), 13);
    beside.writes(launched("theirs", 16, &["Launched", "Registered"]), 14);
    beside.waits("b", 8, 100);
    let plan = beside.decide(102);
    let new = plan.new_node_claims.len();
    assert_eq!(new, 0, "it fits on the node of the other");
    let report = beside.report(200);
    assert_eq!(report.provisioning.nodes.ours, 1);
    let difference = &report.differences[0];
    assert_eq!(difference.explanation, Explanation::Size {});
    assert!((difference.savings_per_hour - 1.2).abs() < 1e-9);
    assert_eq!(report.provisioning.agreement, 0.0);
    // The node of the other lives on.
    assert!((beside.report(13 + 3600).dollars - 1.2).abs() < 1e-9);
    beside.deletes("theirs", 13 + 7200);
    assert!((beside.report(13 + 36_000).dollars - 2.4).abs() < 1e-9);
}

#[test]
fn pods_that_the_other_launches_nothing_for_are_a_difference_once() {
    let mut beside = Beside::new();
    beside.waits("a", 3, 10);
    beside.decide(12);
    for second in [100, 200, 300] {
        beside.decide(second);
    }
    let report = beside.report(400);
    assert_eq!(report.provisioning.nodes.ours, 1, "{}", shown(&report));
    let explanation = &report.differences[0].explanation;
    assert_eq!(*explanation, Explanation::OnlyOursLaunches { bound: 0 });
    assert!(report.dollars < 0.0, "the node costs something");
}

#[test]
fn a_failed_launch_is_not_counted_and_its_pods_are_decided_again() {
    let mut beside = Beside::new();
    beside.waits("a", 3, 10);
    beside.decide(12);
    beside.writes(created("theirs", 13), 13);
    beside.report(100);
    beside.deletes("theirs", 120);
    assert_eq!(beside.decide(121).new_node_claims.len(), 1);
    beside.writes(created("again", 122), 122);
    beside.writes(launched("again", 4, &["Launched"]), 125);
    let report = beside.report(300);
    assert_eq!(report.provisioning.nodes.theirs, 1);
    assert_eq!(report.provisioning.nodes.ours, 2, "one for each time");
}

#[test]
fn a_pod_without_a_place_is_decided_about_again_while_the_window_is_open() {
    let mut beside = Beside::new();
    let types = beside.snapshot().instance_types("default").cloned();
    let unknown = Err("not known yet".to_owned());
    beside.cluster.set_instance_types("default", unknown);
    beside.waits("a", 3, 10);
    assert_eq!(beside.decide(12).unplaced.len(), 1);
    beside.cluster.set_instance_types("default", types.unwrap());
    assert_eq!(beside.decide(22).new_node_claims.len(), 1);
    let report = beside.report(200);
    let provisioning = &report.provisioning;
    assert_eq!((provisioning.nodes.ours, provisioning.covered.ours), (1, 1));
}

#[test]
fn a_nodeclaim_that_was_there_before_the_comparison_is_not_a_launch() {
    let mut beside = Beside::new();
    beside.writes(created("old", -60), 0);
    assert_eq!(beside.report(300).provisioning.windows, 0);
}

/// Two nodes, the first of which is not needed; the shadow has decided so at a second.
fn idle(decided: Option<i64>) -> Beside {
    let mut beside = Beside::new();
    beside.node("one", 4);
    beside.node("two", 8);
    beside.runs("a", 1, "one");
    beside.runs("b", 5, "two");
    if let Some(second) = decided {
        let found = plan(&beside.snapshot(), &DisruptionRequest::at(at(second)));
        assert_eq!(found.commands.len(), 1);
        beside.comparison.disrupted(&found.commands[0], at(second));
    }
    beside
}

#[test]
fn a_node_that_both_disrupt_within_ten_minutes_agrees() {
    let mut beside = idle(Some(0));
    assert_eq!(beside.report(10).disruption.waiting, 1);
    beside.disrupts("one", "Underutilized", 580);
    let report = beside.report(590);
    let disruption = &report.disruption;
    let counts = (disruption.both, disruption.waiting);
    assert_eq!(counts, (1, 0), "{}", shown(&report));
    assert_eq!(disruption.agreement, 1.0);
    let (evictions, savings) = (&disruption.evictions, &disruption.savings_per_hour);
    assert_eq!((evictions.ours, evictions.theirs), (1, 1));
    assert!((savings.ours - 0.4).abs() < 1e-9);
    assert_eq!(savings.ours, savings.theirs);
    assert!(report.differences.is_empty(), "{}", shown(&report));
}

#[test]
fn a_node_that_the_other_keeps_counts_for_ten_minutes() {
    let mut beside = idle(Some(0));
    assert!(beside.report(599).differences.is_empty());
    let report = beside.report(600);
    assert_eq!(report.disruption.nodes.ours, 1);
    assert_eq!(report.disruption.agreement, 0.0);
    let difference = &report.differences[0];
    assert_eq!(difference.explanation, Explanation::OnlyOursDisrupts {});
    assert!((difference.savings_per_hour - 0.4).abs() < 1e-9);
    let sixth = 0.4 / 6.0;
    assert!((beside.report(86_400).dollars - sixth).abs() < 1e-9);
    let Decisions::Disruption { node, disrupts } = &difference.decisions else {
        panic!("{}", shown(&report));
    };
    assert_eq!(node, "one");
    assert!(disrupts.theirs.is_none() && disrupts.ours.as_ref().unwrap().evictions == 1);
}

#[test]
fn another_reason_is_not_agreement() {
    let mut beside = idle(Some(0));
    beside.disrupts("one", "Drifted", 20);
    let report = beside.report(30);
    let disruption = &report.disruption;
    assert_eq!((disruption.both, disruption.agreement), (0, 0.0));
    let explanation = &report.differences[0].explanation;
    assert_eq!(*explanation, Explanation::OtherReason {});
}

#[test]
fn the_replacement_of_a_node_is_no_launch_and_its_price_is_deducted() {
    let mut beside = idle(None);
    beside.disrupts("two", "Underutilized", 20);
    beside.writes(created("replacement", 22), 22);
    beside.writes(launched("replacement", 4, &["Launched"]), 24);
    let report = beside.report(700);
    assert_eq!(report.provisioning.nodes.theirs, 0, "{}", shown(&report));
    assert!((report.disruption.savings_per_hour.theirs - 0.4).abs() < 1e-9);
    // A second NodeClaim is one for pods: a node has one replacement.
    beside.writes(created("other", 702), 702);
    beside.writes(launched("other", 4, &["Launched"]), 704);
    assert_eq!(beside.report(900).provisioning.nodes.theirs, 1);
}

#[test]
fn a_nodeclaim_does_not_replace_a_node_deleted_before_its_initialization() {
    let mut beside = idle(None);
    beside.waits("c", 3, 19);
    beside.disrupts("one", "Underutilized", 20);
    beside.writes(created("other", 20), 20);
    beside.writes(launched("other", 4, &["Launched"]), 21);
    let mut leaving = NodeClaim::clone(beside.snapshot().node_claim("one").unwrap());
    leaving.metadata.deletion_timestamp = serde_json::from_value(json!(at(21))).unwrap();
    beside.writes(leaving, 21);
    beside.decide(22);
    let report = beside.report(700);
    assert_eq!(report.provisioning.nodes.theirs, 1, "{}", shown(&report));
    assert!((report.disruption.savings_per_hour.theirs - 0.4).abs() < 1e-9);
}

#[test]
fn a_node_that_only_the_other_disrupts_has_the_reason_why_we_keep_it() {
    let mut beside = idle(None);
    let mut request = DisruptionRequest::at(at(0));
    let surroundings = &mut request.surroundings;
    surroundings.recent_replacements.insert("one".to_owned());
    let kept = plan(&beside.snapshot(), &request);
    beside.disrupts("one", "Underutilized", 20);
    beside.comparison.keeps(&kept);
    let report = beside.report(700);
    let Explanation::OnlyTheirsDisrupts { kept: Some(why) } = &report.differences[0].explanation
    else {
        panic!("{}", shown(&report));
    };
    assert!(!why.id.is_empty() && report.differences[0].text.contains(&why.text));
    assert!(report.differences[0].savings_per_hour < 0.0);
}

#[test]
fn a_report_since_a_time_leaves_out_older_decisions() {
    let mut beside = idle(Some(0));
    beside.waits("c", 3, 1000);
    beside.decide(1002);
    let report = beside.comparison.report(Some(at(900)), at(1200));
    assert_eq!((report.since, report.disruption.nodes.ours), (at(900), 0));
    let whole = beside.report(1200);
    assert_eq!(whole.disruption.nodes.ours, 1);
    let windows = |report: &ShadowReport| report.provisioning.windows + report.provisioning.waiting;
    assert_eq!((windows(&report), windows(&whole)), (1, 1));
}

#[test]
fn the_ten_largest_differences_are_reported() {
    let mut beside = Beside::new();
    for index in 0..12 {
        let second = 100 + index * 200;
        let cores = if index == 7 { 12 } else { 3 };
        beside.waits(&format!("pod-{index}"), cores, second);
        beside.decide(second + 2);
        beside.comparison.pod_left(&format!("shop/pod-{index}"));
        beside.cluster.remove_pod("shop", &format!("pod-{index}"));
    }
    let report = beside.report(10_000);
    assert_eq!(report.differences.len(), 10);
    assert!((report.differences[0].savings_per_hour + 1.6).abs() < 1e-9);
    assert_eq!(report.provisioning.windows, 12);
    assert_eq!(report.provisioning.covered.theirs, 12);
}
