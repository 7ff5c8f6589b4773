use karpenter_api::k8s_openapi::api::core::v1::Taint;
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::cluster::{Cluster, ClusterConfig};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn node(ready: &str) -> Node {
    let node = json!({
        "metadata": {"name": "n"}, "spec": {"providerID": "i"},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    });
    serde_json::from_value(node).unwrap()
}

/// A registered NodeClaim that was deleted at the epoch, with a grace period of 100 seconds.
fn claim() -> NodeClaim {
    let mut claim = NodeClaim::new("c", Default::default());
    claim.metadata.deletion_timestamp = Some(Time(at(0)));
    claim.spec.termination_grace_period = Some("100s".parse().unwrap());
    claim.status.provider_id = Some("i".to_owned());
    claim.set_true(types::REGISTERED, at(0));
    let annotations = claim.metadata.annotations.get_or_insert_default();
    let deadline = (annotations::TERMINATION_TIMESTAMP.to_owned(), at(100));
    annotations.insert(deadline.0, deadline.1.to_string());
    claim
}

/// What is done about a ready Node, which has a pod or an attached volume if so asked, without its deadline and taint.
fn on(
    event: NodeEvent,
    claim: Option<&NodeClaim>,
    on_node: (bool, bool),
    second: i64,
) -> Vec<NodeEffect> {
    let mut cluster = Cluster::new(ClusterConfig::default());
    let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "p"}, "spec": {"nodeName": "n", "containers": []}});
    let attachment = json!({"metadata": {"name": "a"}, "spec": {
        "nodeName": "n", "attacher": "csi", "source": {"persistentVolumeName": "v"}}, "status": {"attached": true}});
    if on_node.0 {
        cluster.insert_pod(Pod::parse(&serde_json::from_value(pod).unwrap()));
    }
    if on_node.1 {
        cluster.apply_volume_attachment(&serde_json::from_value(attachment).unwrap());
    }
    let terminating = TerminatingNode {
        snapshot: &cluster.snapshot(),
        node: &node("True"),
        claim,
    };
    let mut effects = super::on_node(event, terminating, at(second));
    effects.retain(|it| !matches!(it, NodeEffect::ReportDeadline(_) | NodeEffect::Taint));
    effects
}

/// Conformance: DIS-152
#[test]
fn pods_are_evicted_until_none_is_left_and_the_drain_lasts_five_seconds() {
    let mut claim = claim();
    let effects = on(NodeEvent::Due, Some(&claim), (true, false), 0);
    let [NodeEffect::Evict(pods), rest @ ..] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(pods.len(), 1);
    let draining = NodeEffect::Mark(Progress::Draining);
    let expected = [
        NodeEffect::ReportWaiting(1),
        draining.clone(),
        NodeEffect::Poll(DRAIN_POLL),
    ];
    assert_eq!(rest, expected);
    let begins = [draining, NodeEffect::Wait(MIN_DRAIN)];
    assert_eq!(on(NodeEvent::Due, Some(&claim), (false, false), 0), begins);
    Progress::Draining.mark(&mut claim, at(0));
    let due = |second| on(NodeEvent::Due, Some(&claim), (false, false), second);
    assert_eq!(due(3), [NodeEffect::Wait(Duration::from_secs(2))]);
    assert_eq!(due(5), [NodeEffect::FindPods]);
}

#[test]
fn a_pod_that_the_model_lacks_keeps_the_instance() {
    let found = |found| {
        on(
            NodeEvent::PodsFound(found),
            Some(&claim()),
            (false, false),
            9,
        )
    };
    assert_eq!(found(true), [NodeEffect::Poll(DRAIN_POLL)]);
    let drained = NodeEffect::Mark(Progress::Drained { detached: true });
    assert_eq!(found(false), [drained, NodeEffect::Terminate]);
}

/// Conformance: DIS-207
#[test]
fn volumes_are_waited_for_until_the_deadline() {
    let mut claim = claim();
    Progress::Drained { detached: false }.mark(&mut claim, at(5));
    let due = |volume, second| on(NodeEvent::Due, Some(&claim), (false, volume), second);
    let mark = NodeEffect::Mark;
    let waits = [
        NodeEffect::ReportAttached(vec!["a".to_owned()]),
        mark(Progress::Detaching),
        NodeEffect::Poll(DRAIN_POLL),
    ];
    assert_eq!(due(true, 100), waits);
    let gives_up = [mark(Progress::DeadlinePassed), NodeEffect::Terminate];
    assert_eq!(due(true, 101), gives_up);
    let detached = [mark(Progress::Detached), NodeEffect::Terminate];
    assert_eq!(due(false, 10), detached);
    Progress::Detached.mark(&mut claim, at(10));
    let late = on(NodeEvent::Due, Some(&claim), (false, true), 11);
    assert_eq!(late, [NodeEffect::Terminate], "a volume came after all");
}

#[test]
fn an_instance_that_is_gone_is_not_drained() {
    let cluster = Cluster::new(ClusterConfig::default());
    let due = |ready: &str, event| {
        let (snapshot, claim, node) = (&cluster.snapshot(), claim(), node(ready));
        let claim = Some(&claim);
        let terminating = TerminatingNode {
            snapshot,
            node: &node,
            claim,
        };
        on_node(event, terminating, at(0))
    };
    assert_eq!(due("False", NodeEvent::Due), [NodeEffect::FindInstance]);
    let gone = due("False", NodeEvent::InstanceFound(false));
    assert_eq!(gone, [NodeEffect::Release]);
    assert!(due("False", NodeEvent::InstanceFound(true)).contains(&NodeEffect::Taint));
    assert!(due("True", NodeEvent::Due).contains(&NodeEffect::Taint));
}

#[test]
fn a_node_without_a_claim_is_drained_and_its_instance_is_left() {
    let found = |volume| on(NodeEvent::PodsFound(false), None, (false, volume), 9);
    assert_eq!(found(false), [NodeEffect::Release]);
    assert_eq!(found(true).last(), Some(&NodeEffect::Poll(DRAIN_POLL)));
}

#[test]
fn the_termination_is_asked_for_again_until_the_instance_is_gone() {
    let terminated = |gone| {
        on(
            NodeEvent::Terminated(gone),
            Some(&claim()),
            (false, false),
            9,
        )
    };
    let marks = NodeEffect::Mark(Progress::Terminating);
    assert_eq!(terminated(false), [marks, NodeEffect::Poll(INSTANCE_POLL)]);
    assert_eq!(terminated(true), [NodeEffect::Release]);
}

/// Conformance: DIS-046, DIS-048
#[test]
fn a_deleted_claim_deletes_its_node_before_its_instance() {
    let mut claim = claim();
    let due = |claim: &NodeClaim, nodes: &[Arc<Node>]| on_node_claim(ClaimEvent::Due, claim, nodes);
    let nodes = ["one", "two", "three"].map(|_| Arc::new(node("True")));
    for left in 1..=nodes.len() {
        assert_eq!(due(&claim, &nodes[..left]), [ClaimEffect::DeleteNodes]);
    }
    assert_eq!(
        due(&claim, &[]),
        [ClaimEffect::FindNode],
        "the model may lack it"
    );
    let found = |found| on_node_claim(ClaimEvent::NodeFound(found), &claim, &[]);
    assert_eq!(found(true), [ClaimEffect::Poll(INSTANCE_POLL)]);
    assert_eq!(found(false), [ClaimEffect::Terminate]);
    claim.set_true(types::INSTANCE_TERMINATING, at(1));
    assert_eq!(due(&claim, &[]), [ClaimEffect::Terminate]);
    claim.set_unknown(types::REGISTERED, at(1));
    assert_eq!(due(&claim, &nodes), [ClaimEffect::Terminate]);
}

/// Conformance: DIS-047
#[test]
fn the_provider_is_asked_about_a_claim_without_a_provider_id() {
    let mut claim = claim();
    claim.set_unknown(types::REGISTERED, at(1));
    claim.status.provider_id = None;
    let on = |event| on_node_claim(event, &claim, &[]);
    assert_eq!(on(ClaimEvent::Due), [ClaimEffect::Terminate]);
    assert_eq!(on(ClaimEvent::Terminated(true)), [ClaimEffect::Release]);
}

#[test]
fn a_registered_node_is_drained_even_if_its_claim_does_not_say_so_yet() {
    let mut claim = claim();
    claim.set_unknown(types::REGISTERED, at(1));
    let mut registered = node("True");
    let labels = registered.metadata.labels.get_or_insert_default();
    labels.insert(REGISTERED.to_owned(), "true".to_owned());
    let effects = on_node_claim(ClaimEvent::Due, &claim, &[Arc::new(registered)]);
    assert_eq!(effects, [ClaimEffect::DeleteNodes]);
}

#[test]
fn the_deadline_is_announced_once() {
    let mut claim = claim();
    claim.metadata.annotations = None;
    let effects = on_node_claim(ClaimEvent::Due, &claim, &[]);
    let announces = [ClaimEffect::Announce(at(100)), ClaimEffect::FindNode];
    assert_eq!(effects, announces);
    claim.spec.termination_grace_period = None;
    let effects = on_node_claim(ClaimEvent::Due, &claim, &[]);
    assert_eq!(effects, [ClaimEffect::FindNode]);
}

/// Conformance: DIS-151
#[test]
fn the_disrupted_taint_replaces_others_of_its_key() {
    let mut node = Node::default();
    let of = |key: &str, effect: &str| Taint {
        key: key.into(),
        effect: effect.into(),
        ..Taint::default()
    };
    let (old, other) = (of(taints::DISRUPTED, "NoExecute"), of("a", "NoSchedule"));
    node.spec.get_or_insert_default().taints = Some(vec![old, other.clone()]);
    taint(&mut node);
    let present = node.spec.clone().unwrap().taints;
    assert_eq!(present, Some(vec![other, taints::disrupted()]));
    let labels = node.metadata.labels.as_ref().unwrap();
    assert_eq!(labels[EXCLUDE_FROM_EXTERNAL_LOAD_BALANCERS], "karpenter");
    let before = node.clone();
    taint(&mut node);
    assert_eq!(node, before);
}
