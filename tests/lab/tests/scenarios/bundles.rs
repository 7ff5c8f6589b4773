//! Bundles over HTTP: what the leader captures is what it decided on.

use std::io::{Read, Write};

use karpenter_decisions::answer::Subject;
use karpenter_decisions::bundle::{self, Bundle, Comparison, Offline};
use serde_json::{Value, json};

use crate::decisions::{ask, blocking, connect, free_port, get, served, serving};
use crate::world::{World, on_demand};

/// Returns the body of a bundle. HTTP/1.0 has no chunks.
async fn captured(port: u16, query: &'static str) -> Vec<u8> {
    let answer = blocking(move || {
        let mut stream = connect(port);
        let path = format!("/apis/decisions.karpenter.sh/v1alpha1/bundle{query}");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    })
    .await;
    let end = answer
        .windows(4)
        .position(|bytes| bytes == b"\r\n\r\n")
        .unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    assert!(
        head.contains(" 200 ") && head.contains("content-type: application/zstd"),
        "{head}"
    );
    answer[end + 4..].to_vec()
}

/// Asserts that so many passes are made again with the same result.
fn is_reproduced(read: &Bundle, threads: usize, passes: usize) {
    let compared = read.replay(threads);
    assert_eq!(compared.len(), passes);
    let same = |made: &Comparison| !made.differs() && made.replayed.is_some();
    assert!(compared.iter().all(same), "{compared:#?}");
}

/// Returns a value without the times since when something holds.
fn without_times(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.retain(|field, _| field != "since" && field != "atLeast");
            for value in fields.values_mut() {
                *value = without_times(value.take());
            }
        }
        Value::Array(all) => all
            .iter_mut()
            .for_each(|value| *value = without_times(value.take())),
        _ => {}
    }
    value
}

#[tokio::test(start_paused = true)]
async fn a_bundle_answers_as_the_leader_does_and_its_decisions_are_reproduced() {
    let port = free_port();
    let world = served(port, json!({ "template": on_demand() })).await;
    world.run("web", 6).await;
    let nowhere = json!({ "nodeSelector": { "topology.kubernetes.io/zone": "z9" } });
    world.deploy_with("lost", 2, nowhere).await;
    world.pass(900).await;

    let file = captured(port, "").await;
    let read = bundle::read(file.as_slice()).unwrap();
    assert_eq!(read.provider, "kwok");
    let bound = read.snapshot.pods().filter(|pod| pod.node_name.is_some());
    assert_eq!(bound.count(), 6);
    assert_eq!(read.decisions.len(), 2);
    for threads in [1, 8] {
        is_reproduced(&read, threads, 2);
    }
    let pod = read.snapshot.pending_pods().next().unwrap().key.clone();
    let node = read.snapshot.nodes().next().unwrap().name().to_owned();
    let offline = Offline::new(read);
    let explain = |subject: &Subject| {
        let never = std::sync::Arc::new(|| false);
        offline.explain(subject, &[], never).unwrap().unwrap()
    };
    let path = format!(
        "namespaces/default/pods/{}/explanation?timeout=5s",
        pod.name
    );
    let live = get(port, &path).await;
    let answer = explain(&Subject::Pod {
        namespace: "default".to_owned(),
        name: pod.name,
    });
    // What only the leader remembers is since when a reason holds.
    let of = |answer: &Value, fields: &[&str]| -> Vec<Value> {
        let chosen = fields.iter().map(|field| answer[field].clone());
        chosen.map(without_times).collect()
    };
    let fields = ["kind", "state", "reason", "pools", "blocking"];
    assert_eq!(of(&answer, &fields), of(&live, &fields));
    let live = get(port, &format!("nodes/{node}/explanation?timeout=5s")).await;
    let answer = explain(&Subject::Node(node));
    let fields = [
        "kind",
        "metadata",
        "nodePool",
        "pricePerHour",
        "reason",
        "blockers",
    ];
    assert_eq!(of(&answer, &fields), of(&live, &fields));
}

#[tokio::test(start_paused = true)]
async fn a_bundle_with_pseudonyms_is_not_made_by_the_server() {
    let port = free_port();
    let world = World::bare(serving(port, |_| ())).await;
    // The server listens from the first moment on, but not before.
    world.pass(5).await;
    let answer = ask(port, "bundle?redact=names").await;
    assert_eq!(answer.code, 400);
    let message = answer.json()["message"].to_string();
    let how = "kubectl karpenter capture --redact";
    assert!(message.contains(how), "{message}");
}

/// Conformance: PLAN-14
#[tokio::test(start_paused = true)]
async fn every_recorded_pass_of_the_last_half_hour_is_reproduced() {
    let port = free_port();
    let settings = serving(port, |options| options.feature_gates.flight_recorder = true);
    let disruption = json!({ "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "30s", "budgets": [{ "nodes": "100%" }] });
    let world = World::with_spec(settings, json!({ "disruption": disruption })).await;
    // A pass that is older than what is asked for.
    world.run("old", 3).await;
    world.pass(1000).await;
    let began = world.cluster.clock.now();
    for (name, replicas) in [("web", 6), ("api", 9), ("jobs", 2)] {
        world.deploy(name, replicas).await;
        world.pass(150).await;
    }
    let nowhere = json!({ "nodeSelector": { "topology.kubernetes.io/zone": "z9" } });
    world.deploy_with("lost", 1, nowhere).await;
    world.pass(60).await;
    world.scale("api", 1).await;
    world.scale("old", 0).await;
    world.pass(300).await;
    let answer = get(port, "decisions?limit=5000").await;

    let read = bundle::read(captured(port, "?last=15m").await.as_slice()).unwrap();
    let recorded = |pass: &str| -> Vec<String> {
        let ids = read.recording.iter().map(|it| it.decision.id.clone());
        ids.filter(|id| id.starts_with(pass)).collect()
    };
    let since = read.at() - jiff::SignedDuration::from_mins(15);
    // Each record of such a pass begins with one.
    for pass in ["Provisioning", "Disruption"] {
        let all = answer["items"].as_array().unwrap().iter();
        let made = all.filter(|record| {
            let at: jiff::Timestamp = record["at"].as_str().unwrap().parse().unwrap();
            record["pass"] == pass && at >= began
        });
        let made = made.count();
        assert!(made > 0, "{answer}");
        assert!(recorded(pass).len() >= made, "{pass}: {made} records");
    }
    let records = answer["items"].as_array().unwrap().iter();
    let mut times = records.map(|it| it["at"].as_str().unwrap().parse::<jiff::Timestamp>());
    assert!(
        times.any(|at| at.unwrap() < since),
        "no earlier pass: {answer}"
    );
    assert!(read.recording.iter().all(|pass| pass.at() >= since));
    let counted = |what: &str| -> usize {
        let counts = read.recording.iter().map(|it| &it.decision.counts);
        counts.filter_map(|counts| counts.get(what)).sum()
    };
    assert!(counted("planned") > 1 && counted("commands") > 0 && counted("unplaced") > 0);
    for threads in [1, 8] {
        is_reproduced(&read, threads, read.recording.len() + 2);
    }
}

/// Conformance: PLAN-14
#[tokio::test(start_paused = true)]
async fn without_the_feature_gate_a_recording_is_refused_with_its_name() {
    let port = free_port();
    let world = World::bare(serving(port, |_| ())).await;
    world.pass(5).await;
    let answer = ask(port, "bundle?last=30m").await;
    assert_eq!(answer.code, 400);
    let message = answer.json()["message"].to_string();
    assert!(message.contains("feature gate FlightRecorder"), "{message}");
}
