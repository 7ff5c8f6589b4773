use jiff::Timestamp;
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_fixtures::{Object, bare_node, node_claim};
use serde_json::json;

use super::*;
use crate::cluster::{Cluster, ClusterConfig};
use crate::provider::{LAUNCH_TIMEOUT, ProviderProfile};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A NodeClaim with startup taint `s`, whose instance `i` is launched.
fn launched() -> NodeClaim {
    let claim = node_claim("c").startup_taint("s", "NoSchedule");
    let mut claim = claim.set("/status/providerID", "i").build();
    claim.set_true(types::LAUNCHED, at(1));
    claim
}

/// A Node of instance `i` with the unregistered taint.
fn node() -> Object<Node> {
    let node = bare_node("n").set("/spec/providerID", "i").ready();
    node.push("/spec/taints", json!(taints::unregistered()))
}

fn joined() -> Arc<Node> {
    Arc::new(node().build())
}

fn on(joining: &mut Joining, event: Event, nodes: &[Arc<Node>], second: i64) -> Vec<Effect> {
    let cluster = Cluster::new(ClusterConfig::default());
    let snapshot = &cluster.snapshot();
    joining.on(event, Surroundings { snapshot, nodes }, at(second))
}

fn reason<'a>(joining: &'a Joining, condition: &str) -> &'a str {
    &joining.claim().condition(condition).unwrap().reason
}

fn retryable() -> LaunchFailure {
    LaunchFailure::Retryable {
        reason: "LaunchFailed".to_owned(),
        message: "no".to_owned(),
    }
}

#[test]
fn a_launch_that_fails_is_retried_and_the_other_conditions_wait() {
    let mut joining = Joining::new(NodeClaim::new("c", Default::default()), at(0));
    assert_eq!(on(&mut joining, Event::Due, &[], 0), [Effect::Launch]);
    let effects = on(&mut joining, Event::NotLaunched(retryable()), &[], 10);
    let next = Some(LAUNCH_TIMEOUT - Duration::from_secs(10));
    assert_eq!(effects, [Effect::Write { next }]);
    assert_eq!(reason(&joining, types::LAUNCHED), "LaunchFailed");
    assert_eq!(
        reason(&joining, types::REGISTERED),
        "AwaitingReconciliation"
    );
}

#[test]
fn a_claim_that_cannot_be_launched_is_deleted_without_being_written() {
    let mut joining = Joining::new(NodeClaim::new("c", Default::default()), at(0));
    let error = CloudProviderError::InsufficientCapacity("none".to_owned());
    let event = Event::NotLaunched(LaunchFailure::from(&error));
    let expected = Effect::Delete {
        reason: "insufficient_capacity",
        failure: None,
    };
    assert_eq!(on(&mut joining, event, &[], 0), [expected]);
}

/// Conformance: DIS-030
#[test]
fn time_runs_from_the_conditions_last_transition_not_from_the_creation() {
    let mut claim = NodeClaim::new("a", Default::default());
    claim.metadata.creation_timestamp = Some(Time(at(0)));
    claim.initialize_conditions(at(0));
    for condition in claim.conditions_mut() {
        condition.last_transition_time = Time(at(5000));
    }
    let mut joining = Joining::new(claim, at(5000));
    let failed = || Event::NotLaunched(retryable());
    let next = Some(Duration::from_secs(1));
    let waits = [Effect::Write { next }];
    assert_eq!(on(&mut joining, failed(), &[], 5299), waits);
    let expected = Effect::Delete {
        reason: "launch_timeout",
        failure: Some(("LaunchFailed".to_owned(), "no".to_owned())),
    };
    assert_eq!(on(&mut joining, failed(), &[], 5300), [expected]);
}

#[test]
fn a_provider_that_needs_longer_for_a_launch_has_longer() {
    let profile = ProviderProfile::new("racks", []).with_launch_timeout(Duration::from_secs(3600));
    let cluster = Cluster::new(ClusterConfig::of(&profile));
    let snapshot = &cluster.snapshot();
    let around = Surroundings {
        snapshot,
        nodes: &[],
    };
    let mut joining = Joining::new(NodeClaim::new("c", Default::default()), at(0));
    let mut failed = |second| joining.on(Event::NotLaunched(retryable()), around, at(second));
    let next = Some(Duration::from_secs(1));
    assert_eq!(failed(3599), [Effect::Write { next }]);
    assert!(matches!(failed(3600)[..], [Effect::Delete { .. }]));
}

#[test]
fn the_time_to_register_begins_with_the_launch() {
    let mut joining = Joining::new(NodeClaim::new("c", Default::default()), at(0));
    on(
        &mut joining,
        Event::Launched(Box::new(launched())),
        &[],
        2000,
    );
    let left = Some(Duration::from_secs(1));
    let waits = [Effect::Write { next: left }];
    assert_eq!(on(&mut joining, Event::Due, &[], 2000 + 899), waits);
    let effects = on(&mut joining, Event::Due, &[], 2000 + 900);
    assert!(matches!(effects[..], [Effect::Delete { .. }]));
}

/// Conformance: DIS-031, DIS-143
#[test]
fn a_launched_claim_has_fifteen_minutes_to_register() {
    let mut joining = Joining::new(launched(), at(100));
    let next = Some(Duration::from_secs(1));
    let waits = [Effect::Write { next }];
    assert_eq!(on(&mut joining, Event::Due, &[], 1 + 899), waits);
    assert_eq!(reason(&joining, types::REGISTERED), reasons::NODE_NOT_FOUND);
    let failure = (
        "RegistrationFailed".into(),
        "Failed to register node".into(),
    );
    let expected = Effect::Delete {
        reason: "registration_timeout",
        failure: Some(failure),
    };
    assert_eq!(on(&mut joining, Event::Due, &[], 1 + 900), [expected]);
    joining.claim.set_true(types::REGISTERED, at(1000));
    let waits = [Effect::Write { next: None }];
    assert_eq!(on(&mut joining, Event::Due, &[], 100_000), waits);
}

/// Conformance: DIS-036
#[test]
fn a_node_becomes_initialized_in_one_reconciliation_if_it_is_ready() {
    let mut joining = Joining::new(launched(), at(0));
    let nodes = [joined()];
    assert_eq!(on(&mut joining, Event::Due, &nodes, 1), [Effect::RunHooks]);
    let effects = on(
        &mut joining,
        Event::HooksRan(HookAnswers::default()),
        &nodes,
        1,
    );
    let [Effect::Register(_, node)] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert!(has_label(node, labels::REGISTERED, "true"));
    assert!(!has_taint(node, &taints::unregistered()));
    let mut node = Node::clone(node);
    let written = [Arc::new(node.clone())];
    on(&mut joining, Event::Registered(true), &written, 2);
    assert_eq!(reason(&joining, types::INITIALIZED), "StartupTaintsExist");
    assert_eq!(joining.claim().status.node_name.as_deref(), Some("n"));
    node.spec.get_or_insert_default().taints = None;
    let ready = [Arc::new(node)];
    let effects = on(&mut joining, Event::Due, &ready, 3);
    assert!(
        matches!(&effects[..], [Effect::Initialize(..)]),
        "{effects:?}"
    );
    let ended = on(&mut joining, Event::Initialized(true), &ready, 3);
    assert_eq!(ended, [Effect::Write { next: None }]);
    assert!(joining.claim().is_true(types::READY));
}

/// Conformance: DIS-039
#[test]
fn a_hook_that_waits_keeps_the_unregistered_taint_and_its_labels_are_kept() {
    let mut joining = Joining::new(launched(), at(0));
    let nodes = [joined()];
    let answers = HookAnswers {
        pending: vec!["network".to_owned()],
        next: Some(Duration::from_secs(7)),
        labels: [("x".to_owned(), "y".to_owned())].into(),
    };
    let effects = on(&mut joining, Event::HooksRan(answers), &nodes, 1);
    let [Effect::Register(_, node)] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert!(has_taint(node, &taints::unregistered()) && has_label(node, "x", "y"));
    assert_eq!(joining.claim().label("x"), Some("y"));
    let next = Some(Duration::from_secs(7));
    let ended = on(&mut joining, Event::Registered(true), &nodes, 1);
    assert_eq!(ended, [Effect::Write { next }]);
    let message = &joining
        .claim()
        .condition(types::REGISTERED)
        .unwrap()
        .message;
    assert_eq!(message, "waiting for registration hooks: network");
}

#[test]
fn a_node_that_could_not_be_written_is_not_registered() {
    let mut joining = Joining::new(launched(), at(0));
    on(&mut joining, Event::Registered(false), &[joined()], 1);
    assert!(!joining.claim().is_true(types::REGISTERED));
    joining.claim.set_true(types::REGISTERED, at(1));
    on(&mut joining, Event::Initialized(false), &[joined()], 1);
    assert!(!joining.claim().is_true(types::INITIALIZED));
}

/// Conformance: DIS-142
#[test]
fn two_nodes_of_one_instance_fail_the_registration() {
    let mut joining = Joining::new(launched(), at(0));
    on(&mut joining, Event::Due, &[joined(), joined()], 1);
    assert!(joining.claim().is_false(types::REGISTERED));
    assert_eq!(
        reason(&joining, types::REGISTERED),
        reasons::MULTIPLE_NODES_FOUND
    );
    on(&mut joining, Event::Due, &[joined()], 2);
    assert!(joining.claim().is_false(types::REGISTERED), "for good");
    let effects = on(&mut joining, Event::Due, &[joined()], 1 + 900);
    assert!(matches!(&effects[..], [Effect::Delete { .. }]));
}

/// Conformance: DIS-037, CAPI-42
#[test]
fn a_node_without_the_unregistered_taint_is_warned_about() {
    let warned = |label: &str| {
        let untainted = node().remove("/spec/taints").label(label, "true").build();
        let mut joining = Joining::new(launched(), at(0));
        let effects = on(&mut joining, Event::Due, &[Arc::new(untainted)], 1);
        assert_eq!(effects.last(), Some(&Effect::RunHooks), "it is registered");
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::WarnOfMissingTaint(_)))
    };
    assert!(warned("other"));
    assert!(!warned(labels::REGISTERED));
}

/// Conformance: DIS-043
#[test]
fn a_later_generation_leaves_a_ready_claim_ready() {
    let mut claim = NodeClaim::new("a", Default::default());
    claim.metadata.generation = Some(1);
    for dependent in NodeClaim::TYPES.dependents {
        claim.set_true(dependent, at(10));
    }
    assert!(claim.is_true(types::READY));
    claim.metadata.generation = Some(2);
    restamp(&mut claim);
    for condition in claim.conditions() {
        assert_eq!(condition.observed_generation, Some(2), "{condition:?}");
        assert_eq!(condition.last_transition_time.0, at(10), "{condition:?}");
    }
    assert!(claim.is_true(types::READY));
}

#[test]
fn an_unknown_condition_keeps_its_observed_generation() {
    let mut claim = NodeClaim::new("a", Default::default());
    claim.metadata.generation = Some(1);
    claim.set_unknown_with_reason(types::LAUNCHED, "LaunchFailed", "no", at(10));
    let before = claim.clone();
    claim.metadata.generation = Some(2);
    restamp(&mut claim);
    assert_eq!(claim.status, before.status);
}

#[test]
fn a_failed_claim_keeps_its_generation_while_a_condition_is_unknown() {
    let mut claim = NodeClaim::new("a", Default::default());
    claim.metadata.generation = Some(1);
    claim.set_true(types::LAUNCHED, at(10));
    claim.set_unknown(types::INITIALIZED, at(10));
    claim.set_false(types::REGISTERED, "No", "", at(10));
    assert!(claim.is_false(types::READY));
    claim.metadata.generation = Some(2);
    restamp(&mut claim);
    let observed = |type_| claim.condition(type_).unwrap().observed_generation;
    assert_eq!(observed(types::LAUNCHED), Some(2));
    assert_eq!(observed(types::REGISTERED), Some(2));
    assert_eq!(observed(types::INITIALIZED), Some(1));
    assert_eq!(observed(types::READY), Some(1));
}

/// Conformance: API-077
#[test]
fn the_claims_labels_win_over_the_providers_and_its_annotations_lose() {
    let own = node_claim("a").label("x", "claim").annotation("x", "claim");
    let answer = own.clone().label("x", "provider").label("y", "provider");
    let answer = answer.annotation("x", "provider").launched("kwok://a");
    let mut claim = own.build();
    record_launch(&mut claim, &answer.build());
    assert_eq!(claim.label("x"), Some("claim"));
    assert_eq!(claim.label("y"), Some("provider"));
    assert_eq!(claim.annotation("x"), Some("provider"));
    assert_eq!(claim.status.provider_id.as_deref(), Some("kwok://a"));
}

/// Conformance: API-200
#[test]
fn long_errors_are_cut_at_300_bytes() {
    assert_eq!(shorten("short"), "short");
    let long = "é".repeat(200);
    assert_eq!(shorten(&long), format!("{}...", "é".repeat(150)));
}
