//! Commands that read and write bundles: the process, without a cluster, or against a small server on loopback.

use std::path::Path;

use karpenter_core::cluster::Cluster as Model;
use karpenter_core::disruption::{self, DisruptionRequest};
use karpenter_core::fake;
use karpenter_core::pod::Pod;
use karpenter_core::resources::Resources;
use karpenter_decisions::bundle::catalogue::Catalogue;
use karpenter_decisions::bundle::recording::Recorder;
use karpenter_decisions::bundle::{self, Bundle, Settings};
use karpenter_fixtures::node_pool;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::{Cluster, Printed, plugin, run};
use crate::transport::Decisions;

/// A pending pod that a NodePool has room for, and one that is too large.
pub fn captured() -> Bundle {
    let mut model = Model::new(fake::cluster_config());
    model.apply_node_pool(&node_pool("default").build());
    model.set_instance_types("default", Ok(fake::instance_types(5)));
    let now: jiff::Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
    for (name, cores) in [("small", 1), ("large", 4000)] {
        let mut pod = Pod::pending("shop", name, Resources::new().with("cpu", cores * 1000));
        pod.created_at = Some(now.into());
        model.insert_pod(pod);
    }
    Bundle::new("fake", "0.1.0", model.snapshot(), Settings::at(now)).decided(None)
}

pub fn write(bundle: &Bundle, path: &Path) {
    bundle::write(bundle, std::fs::File::create(path).unwrap()).unwrap();
}

fn read(path: &Path) -> Bundle {
    bundle::read(std::fs::read(path).unwrap().as_slice()).unwrap()
}

/// Runs the plugin without a kubeconfig, in a directory of its own.
async fn offline(home: &TempDir, line: &str) -> Printed {
    let mut command = plugin();
    command.args(line.split(' ')).current_dir(home.path());
    run(command).await
}

pub fn home() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    write(&captured(), &home.path().join("a.karpenter.zst"));
    home
}

pub fn files(home: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(home.path()).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn why_and_doctor_answer_from_a_bundle_without_a_cluster() {
    let home = home();
    let args = "why pod -n shop large --bundle a.karpenter.zst -o json";
    let printed = offline(&home, args).await;
    let answer: Value = serde_json::from_str(printed.succeeds()).unwrap();
    assert_eq!(answer["state"], "Pending", "{answer}");
    assert_eq!(answer["pools"][0]["reason"]["id"], "TooLarge", "{answer}");
    let pods = offline(&home, "why pods --bundle a.karpenter.zst").await;
    pods.shows("TooLarge");
    let report = offline(&home, "doctor --bundle a.karpenter.zst -o json").await;
    report.shows("BlockerReport");
    let gone = offline(&home, "why node gone --bundle a.karpenter.zst").await;
    gone.fails("error: Node \"gone\" not found in a.karpenter.zst\n");
}

#[tokio::test]
async fn two_versions_are_rehearsed_in_the_cluster_of_a_bundle() {
    let home = home();
    let plan = async |more: &str| {
        let args = format!("plan --bundle a.karpenter.zst {more}");
        offline(&home, &args).await
    };
    let compared = plan("--from karpenter-1.13 --to karpenter-1.14 --for 10m").await;
    compared.shows("karpenter-1.13   karpenter-1.14");
    let printed = plan("--to karpenter-0.9").await;
    printed.fails("unknown version `karpenter-0.9`: karpenter-1.0, karpenter-1.6, ");
}

#[tokio::test]
async fn replay_tells_how_many_decisions_are_identical() {
    let home = home();
    let printed = offline(&home, "replay a.karpenter.zst --exit-code").await;
    assert_eq!(
        printed.succeeds(),
        "replayed 2 decisions: 2 identical, 0 different\n"
    );
    let printed = offline(&home, "replay a.karpenter.zst --decision Lunch").await;
    printed.fails("Provisioning, Disruption");
}

#[tokio::test]
async fn replay_of_a_different_decision_exits_with_2_and_bisect_keeps_it_alone() {
    let home = home();
    let mut other = captured();
    other.decisions[1].digest = "0".repeat(64);
    write(&other, &home.path().join("b.karpenter.zst"));
    let args = "replay b.karpenter.zst --exit-code --bisect c.karpenter.zst";
    let printed = offline(&home, args).await;
    assert_eq!(printed.code, Some(2), "{printed:?}");
    assert!(
        printed.stdout.contains("1 identical, 1 different")
            && printed.stdout.contains("Disruption differs"),
        "{printed:?}"
    );
    let alone = read(&home.path().join("c.karpenter.zst"));
    let ids = alone.decisions.iter().map(|decision| &decision.id);
    assert!(ids.eq(["Disruption"]));
    // Without --exit-code it is an answer.
    offline(&home, "replay b.karpenter.zst").await.succeeds();
}

#[tokio::test]
async fn a_file_that_is_no_bundle_is_named() {
    let home = home();
    std::fs::write(home.path().join("x"), "text").unwrap();
    for (file, words) in [
        ("x", "cannot read x: invalid bundle: "),
        ("missing", "cannot read missing: "),
    ] {
        for command in ["replay", "why nodes --bundle", "doctor --bundle"] {
            let printed = offline(&home, &format!("{command} {file}")).await;
            printed.fails(words);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_that_fails_leaves_no_file_and_keeps_the_old_one() {
    let home = home();
    let before = std::fs::read(home.path().join("a.karpenter.zst")).unwrap();
    let half = Decisions::answering("200 OK", "", "half a bundle").await;
    let status = json!({ "kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "another bundle is being sent" });
    let busy = Decisions::refusing("429 Too Many Requests", "", status).await;
    for (server, words) in [
        (half.url(), "cannot keep a.karpenter.zst: "),
        (busy.url(), "another bundle is being sent"),
    ] {
        let args = format!("capture -o a.karpenter.zst --server {server}");
        offline(&home, &args).await.fails(words);
        assert_eq!(files(&home), ["a.karpenter.zst"]);
    }
    let after = std::fs::read(home.path().join("a.karpenter.zst")).unwrap();
    assert_eq!(after, before);
    let args = format!("capture -o missing/a --server {}", half.url());
    offline(&home, &args).await.fails("cannot write missing/a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_of_the_time_before_asks_for_it_and_tells_its_passes() {
    let home = home();
    let status = json!({ "kind": "Status", "code": 400, "reason": "BadRequest", "message": "cannot look back: the feature gate FlightRecorder is off" });
    let off = Decisions::refusing("400 Bad Request", "", status).await;
    let asked = format!("capture --last 30m -o b --server {}", off.url());
    let printed = offline(&home, &asked).await;
    printed.fails("FlightRecorder");
    let head = off.heads().remove(0);
    assert!(head.contains("/bundle?last=30m "), "{head}");
    let printed = offline(&home, "capture --last 30m --redact names").await;
    printed.fails("cannot be used with");

    // A recorded pass is replayed, and written alone with the state that it decided on.
    let mut bundle = captured();
    let mut recorder = Recorder::default();
    let request = DisruptionRequest::at(bundle.at());
    let plan = disruption::plan(&bundle.snapshot, &request);
    recorder.disrupted(&bundle.snapshot, &request, true, &plan);
    bundle.recording = recorder.since(bundle.at());
    bundle.recording[0].decision.digest = "0".repeat(64);
    write(&bundle, &home.path().join("b"));
    let printed = offline(&home, "replay b --exit-code --bisect c").await;
    assert_eq!(printed.code, Some(2), "{printed:?}");
    let words =
        "replayed 3 decisions: 2 identical, 1 different\nDisruption@2026-01-10T00:00:00Z differs:";
    assert!(printed.stdout.starts_with(words), "{printed:?}");
    let alone = read(&home.path().join("c"));
    assert_eq!((alone.recording.len(), alone.decisions.len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_controller_the_objects_are_listed() {
    use std::os::unix::fs::PermissionsExt as _;
    let cluster = Cluster::start(&["default"]).await;
    cluster.testbed.load([
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-a" } }),
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "namespace": "default" },
            "spec": { "nodeName": "node-a", "containers": [{ "name": "c", "image": "SECRET" }] },
        }),
    ]);
    let types = fake::instance_types(3).to_vec();
    let types = Catalogue::new([("default".to_owned(), types)]);
    let [catalogue, file, key] =
        ["catalogue.json", "a.karpenter.zst", "a.key"].map(|name| cluster.home.path().join(name));
    std::fs::write(&catalogue, types.to_json()).unwrap();
    let (path, catalogue, key_path) = (file.display(), catalogue.display(), key.display());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let args = format!("capture --without-controller --catalogue {catalogue} -o {path}");
    let printed = cluster.run(&args).await;
    printed.shows("captured 1 nodes, 1 pods (0 pending), 1 NodePools");
    let found = read(&file).snapshot;
    let types = found.instance_types("default").unwrap().as_ref();
    assert_eq!(types.unwrap().len(), 3);
    assert_eq!(found.pods_on("node-a").len(), 1);
    assert_eq!(mode(&file), 0o600);
    // With pseudonyms, and their key in a file of its own.
    let args = format!("capture --without-controller --redact all --key {key_path} -o {path}");
    let printed = cluster.run(&args).await;
    printed.succeeds();
    assert!(
        printed.stderr.contains("without --catalogue"),
        "{printed:?}"
    );
    let found = read(&file).snapshot;
    assert!(found.node("node-a").is_none());
    let names: Value = serde_json::from_slice(&std::fs::read(&key).unwrap()).unwrap();
    let pseudonym = names["names"]["node-a"].as_str().unwrap();
    assert_eq!(found.pods_on(pseudonym).len(), 1);
    assert_eq!(mode(&key), 0o600);
    let printed = cluster
        .run(&format!("capture --key {key_path} -o {path}"))
        .await;
    assert_eq!(printed.code, Some(1), "a key needs pseudonyms: {printed:?}");
}
