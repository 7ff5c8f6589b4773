//! Recordings: the state of each pass, and the bounds of the recorder.

use jiff::{SignedDuration, Timestamp};
use karpenter_core::cluster::Cluster;
use karpenter_core::disruption::{self, DisruptionRequest};
use karpenter_core::fake;
use karpenter_core::pod::Pod;
use karpenter_core::resources::Resources;
use karpenter_core::schedule::{Packing, PodSet, Policy, Query, schedule};
use karpenter_decisions::bundle::recording::Recorder;
use karpenter_decisions::bundle::{self, Bundle, RecordedPass, Settings};
use serde_json::json;

use crate::bundle::{cluster, file, lines, now, read};

/// Returns all of a pass but its decision and its epoch, as lines: equal lines are equal states.
fn state_of(pass: &RecordedPass) -> Vec<String> {
    let (snapshot, settings) = (pass.snapshot.clone(), pass.settings.clone());
    let mut all = lines(&file(&Bundle::new("fake", "0.1.0", snapshot, settings)));
    all.pop();
    all.split_off(1)
}

fn disrupted(recorder: &mut Recorder, cluster: &Cluster, at: Timestamp) {
    let (snapshot, request) = (cluster.snapshot(), DisruptionRequest::at(at));
    let plan = disruption::plan(&snapshot, &request);
    recorder.disrupted(&snapshot, &request, true, &plan);
}

/// Every kind of object is changed, removed and added again between the passes.
#[test]
fn a_recording_has_the_state_of_each_pass_and_of_the_bundle() {
    let mut recorder = Recorder::default();
    let mut changing = cluster();
    let minute = |minutes: i64| now() + SignedDuration::from_mins(minutes);
    disrupted(&mut recorder, &changing, minute(0));
    // The objects are replaced, some of them with other content.
    let mut again = cluster().snapshot();
    for round in 1..=2 {
        for pod in again.pods() {
            let mut pod = Pod::clone(pod);
            pod.unschedulable = round == 1;
            changing.insert_pod(pod);
        }
        let node = again.node_object("node-a").unwrap();
        let mut node = k8s_openapi::api::core::v1::Node::clone(node);
        node.metadata
            .labels
            .get_or_insert_default()
            .insert("round".into(), round.to_string());
        changing.apply_node(&node);
        changing.set_instance_types("default", Ok(fake::instance_types(5 + round)));
        changing.apply_namespace(&read(
            json!({ "metadata": { "name": "shop", "labels": { "round": round.to_string() } } }),
        ));
        changing.apply_volume_attachment(&read(json!({ "metadata": { "name": "att" }, "spec": { "attacher": "d", "nodeName": "node-a", "source": { "persistentVolumeName": "vol" } }, "status": { "attached": round == 1 } })));
        changing.nominate("node-a", minute(round));
        disrupted(&mut recorder, &changing, minute(round));
    }
    changing.remove_pod("shop", "web-1");
    changing.remove_pod("shop", "web-2");
    changing.remove_node("node-a");
    changing.remove_node_claim("claim-a");
    changing.remove_node_pool("default");
    changing.forget_instance_types("broken");
    changing.remove_daemon_set("kube-system", "agent");
    changing.remove_pdb("shop", "web");
    changing.remove_service("shop", "web");
    changing.remove_replica_set("shop", "web");
    changing.remove_namespace("shop");
    changing.remove_volume_claim("shop", "data");
    changing.remove_volume("vol");
    changing.remove_storage_class("fast");
    changing.remove_csi_node("node-a");
    changing.remove_volume_attachment("att");
    changing.remove_device_class("gpu");
    disrupted(&mut recorder, &changing, minute(3));
    // All of it is back, as new objects of a cluster that begins as this one ended.
    again = cluster().snapshot();
    let mut bundle = Bundle::new("fake", "0.1.0", again, Settings::at(minute(4))).decided(None);
    bundle.recording = recorder.since(minute(0));
    assert_eq!(bundle.recording.len(), 4);

    let written = file(&bundle);
    let found = bundle::read(written.as_slice()).unwrap();
    assert_eq!(found.recording.len(), 4);
    for (was, is) in bundle.recording.iter().zip(&found.recording) {
        assert_eq!(is.decision, was.decision);
        assert!(state_of(is) == state_of(was), "{}", was.decision.id);
    }
    let alone = |bundle: &Bundle| {
        let mut alone = bundle.clone();
        alone.recording.clear();
        file(&alone)
    };
    assert!(alone(&found) == alone(&bundle), "the last state");
    assert!(file(&found) == written, "written again");
    let compared = found.replay(2);
    assert_eq!(compared.len(), 6);
    assert!(compared.iter().all(|made| !made.differs()), "{compared:#?}");
    // A pass alone is a bundle of its own.
    let one = file(&found.recording[1].alone(&found));
    let one = bundle::read(one.as_slice()).unwrap();
    assert_eq!(
        one.decision_ids().collect::<Vec<_>>(),
        ["Disruption@2026-01-10T00:01:00Z"]
    );
    assert!(state_of(&one.recording[0]) == state_of(&bundle.recording[1]));
}

/// Pods that have lost their places are planned onto as few nodes as possible.
#[test]
fn a_pass_is_replayed_with_the_packing_of_its_query() {
    let of = |name: &str, cpu, price| {
        let offering = fake::offering("on-demand", "test-zone-1", price);
        let kind = fake::instance_type(name).cpu(cpu).gib(64).pods(50);
        kind.offerings(vec![offering]).build()
    };
    let types = [of("small", 4, 0.1), of("large", 64, 9.0)];
    let mut changing = Cluster::new(fake::cluster_config());
    changing.apply_node_pool(&karpenter_fixtures::node_pool("default").build());
    changing.set_instance_types("default", Ok(types.into_iter().collect()));
    for name in ["a", "b"] {
        let requests = Resources::new().with("cpu", 3000);
        changing.insert_pod(Pod::pending("shop", name, requests));
    }
    let (snapshot, policy) = (changing.snapshot(), Policy::at(now()));
    let mut recorder = Recorder::default();
    for (packing, nodes) in [(None, 2), (Some(Packing::FewestNodes), 1)] {
        let mut query = Query::new(PodSet::Waiting);
        query.packing = packing;
        let plan = schedule(&snapshot, &policy, &query);
        assert_eq!(plan.new_node_claims.len(), nodes, "{packing:?}");
        recorder.provisioned(&snapshot, &policy, &query, 0, &plan);
    }
    let mut bundle = Bundle::new("fake", "0.1.0", snapshot, Settings::at(now()));
    bundle.recording = recorder.since(now());
    let read = bundle::read(file(&bundle).as_slice()).unwrap();
    assert_eq!(read.recording.len(), 2);
    let replayed = read.recording.iter().map(|pass| pass.replay(1));
    let differing: Vec<_> = replayed.filter(|made| made.differs()).collect();
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn passes_are_kept_for_half_an_hour_and_within_their_memory() {
    let mut recorder = Recorder::default();
    let mut changing = cluster();
    let minute = |minutes: i64| now() + SignedDuration::from_mins(minutes);
    let kept = |recorder: &Recorder| recorder.since(Timestamp::MIN).len();
    for at in [0, 10, 30] {
        disrupted(&mut recorder, &changing, minute(at));
    }
    assert_eq!((kept(&recorder), recorder.since(minute(10)).len()), (3, 2));
    disrupted(&mut recorder, &changing, minute(31));
    assert_eq!(kept(&recorder), 3, "the first is older than half an hour");
    // Two passes with 5,000 changes each do not fit in 32 MiB.
    for at in [32, 33] {
        for index in 0..5000 {
            let requests = Resources::new().with("cpu", at);
            changing.insert_pod(Pod::pending("shop", &format!("p-{index}"), requests));
        }
        let (snapshot, request) = (changing.snapshot(), DisruptionRequest::at(minute(at)));
        let plan = disruption::plan(&cluster().snapshot(), &request);
        recorder.disrupted(&snapshot, &request, true, &plan);
    }
    assert_eq!(kept(&recorder), 1);
}
