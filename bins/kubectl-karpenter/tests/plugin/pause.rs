//! `kubectl karpenter pause` and `resume`.

use jiff::{SignedDuration, Timestamp};
use karpenter_api::pause::Pause;
use karpenter_api::v1::DisruptionReason;
use serde_json::{Value, json};

use crate::fixture::{Cluster, PAUSED, closed_address, run};

/// Returns the pause of a NodePool, and how long it still lasts.
async fn pause(cluster: &Cluster, name: &str) -> (Pause, SignedDuration) {
    let pause: Pause = cluster.paused(name).await.unwrap().parse().unwrap();
    let left = pause.until.duration_since(Timestamp::now());
    (pause, left)
}

/// Reports whether a duration is this long, or up to a minute less.
fn about(left: SignedDuration, hours: i64) -> bool {
    let whole = SignedDuration::from_hours(hours);
    left <= whole && left > whole - SignedDuration::from_mins(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_has_an_end_reasons_its_user_and_an_explanation() {
    let cluster = Cluster::start(&["default", "batch"]).await;
    let mut command = cluster.plugin();
    let line = "pause default --for 4h --reasons Drifted,Underutilized --why";
    command.args(line.split(' ')).arg("incident 42; see #ops");
    let printed = run(command).await;
    assert_eq!(printed.stderr, "");
    let (pause, left) = pause(&cluster, "default").await;
    assert!(about(left, 4), "{left:?}");
    assert_eq!(
        pause.reasons,
        [DisruptionReason::Drifted, DisruptionReason::Underutilized]
    );
    assert_eq!(pause.why.as_deref(), Some("incident 42; see #ops"));
    let by = pause.by.clone().unwrap();
    assert!(!by.is_empty(), "the API server knows who the user is");
    let paused = pause.describe();
    assert_eq!(
        printed.succeeds(),
        format!("nodepool.karpenter.sh/default paused {paused}\n")
    );
    assert_eq!(cluster.paused("batch").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodepools_are_paused_for_a_day_and_resumed() {
    let cluster = Cluster::start(&["default", "batch"]).await;
    cluster.run("pause --all").await.succeeds();
    for name in ["default", "batch"] {
        let (pause, left) = pause(&cluster, name).await;
        assert!(about(left, 24) && pause.reasons.is_empty());
    }
    let printed = cluster.run("resume nodepool/default -v").await;
    let text = printed.stderr.as_str();
    assert!(text.starts_with("using the API server https://"), "{text}");
    assert_eq!(printed.stdout, "nodepool.karpenter.sh/default resumed\n");
    assert_eq!(cluster.paused("default").await, None);
    assert_eq!(
        cluster.run("resume --all").await.succeeds(),
        "nodepool.karpenter.sh/batch resumed\nnodepool.karpenter.sh/default was not paused\n"
    );
    assert_eq!(cluster.paused("batch").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_in_kubectl_s_formats() {
    let cluster = Cluster::start(&["default", "batch"]).await;
    let by_label = "pause -l name=batch --why x -o json";
    let object: Value = serde_json::from_str(&cluster.run(by_label).await.stdout).unwrap();
    assert_eq!(object["metadata"]["name"], "batch");
    assert!(object["metadata"]["annotations"][PAUSED].is_string());
    for _ in ["paused", "not paused"] {
        let list = cluster.run("resume --all -o json").await.stdout;
        let list: Value = serde_json::from_str(&list).unwrap();
        let kinds = (&list["kind"], &list["items"][1]["kind"]);
        assert_eq!(kinds, (&json!("List"), &json!("NodePool")));
    }
    let list = cluster.run("pause --all -o yaml").await.stdout;
    assert!(
        list.starts_with("apiVersion: v1\n") && list.contains("kind: List\n"),
        "{list}"
    );
    assert_eq!(
        cluster.run("pause --all -o name").await.stdout,
        "nodepool.karpenter.sh/batch\nnodepool.karpenter.sh/default\n"
    );
    let args = "pause default --reasons Empty --why w -o wide --no-headers";
    let row = cluster.run(args).await.stdout;
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        (cells[0], cells[2], *cells.last().unwrap()),
        ("default", "Empty", "w")
    );
    let header = cluster.run("resume default -o wide").await.stdout;
    assert!(
        header.starts_with("NAME      UNTIL   REASONS   BY   WHY\n"),
        "{header}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_with_its_rule_and_with_what_was_written() {
    let cluster = Cluster::start(&["default", "batch"]).await;
    let of_nodepools = |verb: &str| json!({ "apiGroups": ["karpenter.sh"], "resources": ["nodepools"], "verbs": [verb] });
    let mut patch_batch = of_nodepools("patch");
    patch_batch["resourceNames"] = json!(["batch"]);
    let kubeconfig = cluster.kubeconfig_with_rules(json!([of_nodepools("get"), patch_batch]));
    for (args, words) in [
        (
            "pause default",
            "error: cannot patch nodepools.karpenter.sh \"default\": forbidden; it needs a ClusterRole with the rule {apiGroups: [\"karpenter.sh\"], resources: [\"nodepools\"], verbs: [\"patch\"]}\n",
        ),
        (
            "pause --all",
            "error: cannot list nodepools.karpenter.sh: forbidden; it needs a ClusterRole with the rule {apiGroups: [\"karpenter.sh\"], resources: [\"nodepools\"], verbs: [\"list\"]}\n",
        ),
        ("pause batch default", " (already paused: batch)\n"),
    ] {
        assert_eq!(cluster.paused("batch").await, None);
        let args = format!("{args} --kubeconfig {}", kubeconfig.display());
        cluster.run(&args).await.fails(words);
    }
    assert!(cluster.paused("batch").await.is_some());
    assert_eq!(cluster.paused("default").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_an_error_and_writes_nothing() {
    let cluster = Cluster::start(&["default"]).await;
    for (args, words) in [
        ("pause", "<NODEPOOL>"),
        (
            "pause default missing",
            "cannot get nodepools.karpenter.sh \"missing\": not found\n",
        ),
        ("resume x", "not found"),
        ("pause -l name=other", "error: no NodePools found\n"),
        ("pause default --all", "cannot be used with"),
        ("pause default --for 8d", "invalid duration `8d`"),
        ("pause default --for 169h", "must be at most 168h"),
        ("pause nodeclaim/default", "unknown resource `nodeclaim`"),
        (
            "pause default --reasons Expired",
            "unknown reason `Expired`",
        ),
        ("pause default --why a\u{1b}[2J", "control characters"),
        ("pause --all --context other", "unknown context `other`"),
        (
            "resume --all --kubeconfig /nonexistent",
            "cannot read the kubeconfig `/nonexistent`",
        ),
    ] {
        cluster.run(args).await.fails(words);
    }
    assert_eq!(cluster.paused("default").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_does_not_answer_is_named_in_one_line() {
    let cluster = Cluster::start(&["default"]).await;
    let text = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let address = closed_address();
    let server = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: "));
    let text = text.replace(server.unwrap(), &format!("https://{address}"));
    std::fs::write(cluster.kubeconfig(), text).unwrap();
    let printed = cluster.run("pause default --request-timeout 5s").await;
    printed.fails(&format!(
        "error: cannot reach the API server https://{address}/: "
    ));
}
