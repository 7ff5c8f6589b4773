//! `kubectl karpenter pause` and `resume`.

use jiff::{SignedDuration, Timestamp};
use karpenter_api::pause::Pause;
use karpenter_api::v1::DisruptionReason;
use serde_json::{Value, json};

use crate::fixture::{Cluster, PAUSED, run};

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
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    let (pause, left) = pause(&cluster, "default").await;
    assert!(about(left, 4), "{left:?}");
    assert_eq!(
        pause.reasons,
        [DisruptionReason::Drifted, DisruptionReason::Underutilized]
    );
    assert_eq!(pause.why.as_deref(), Some("incident 42; see #ops"));
    let by = pause.by.clone().unwrap();
    assert!(!by.is_empty(), "the API server knows who the user is");
    assert_eq!(
        printed.stdout,
        format!(
            "nodepool.karpenter.sh/default paused {}\n",
            pause.describe()
        )
    );
    assert_eq!(cluster.paused("batch").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodepools_are_paused_for_a_day_and_resumed() {
    let cluster = Cluster::start(&["default", "batch"]).await;
    assert_eq!(cluster.run("pause --all").await.code, Some(0));
    for name in ["default", "batch"] {
        let (pause, left) = pause(&cluster, name).await;
        assert!(about(left, 24) && pause.reasons.is_empty());
    }
    let printed = cluster.run("resume nodepool/default -v").await;
    let text = printed.stderr.as_str();
    assert!(text.starts_with("using the API server https://"), "{text}");
    assert_eq!(printed.stdout, "nodepool.karpenter.sh/default resumed\n");
    assert_eq!(cluster.paused("default").await, None);
    let printed = cluster.run("resume --all").await;
    assert_eq!(printed.code, Some(0), "it is idempotent");
    assert_eq!(
        printed.stdout,
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
async fn nothing_is_written_if_a_nodepool_does_not_exist() {
    let cluster = Cluster::start(&["default"]).await;
    let printed = cluster.run("pause default missing").await;
    assert_eq!((printed.code, printed.stdout.as_str()), (Some(1), ""));
    assert_eq!(
        printed.stderr,
        "error: cannot get nodepools.karpenter.sh \"missing\": not found\n"
    );
    assert_eq!(cluster.paused("default").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_with_its_rule_and_nothing_is_written() {
    let cluster = Cluster::start(&["default"]).await;
    let read =
        json!([{ "apiGroups": ["karpenter.sh"], "resources": ["nodepools"], "verbs": ["get"] }]);
    let kubeconfig = cluster.kubeconfig_with_rules(read);
    let run_as_robot = async |args: &[&str]| {
        let mut command = cluster.plugin();
        command.args(args).arg("--kubeconfig").arg(&kubeconfig);
        let printed = run(command).await;
        assert_eq!((printed.code, printed.stdout.as_str()), (Some(1), ""));
        printed.stderr
    };
    assert_eq!(
        run_as_robot(&["pause", "default"]).await,
        "error: cannot patch nodepools.karpenter.sh \"default\": forbidden; it needs a ClusterRole with the rule {apiGroups: [\"karpenter.sh\"], resources: [\"nodepools\"], verbs: [\"patch\"]}\n"
    );
    assert_eq!(
        run_as_robot(&["pause", "--all"]).await,
        "error: cannot list nodepools.karpenter.sh: forbidden; it needs a ClusterRole with the rule {apiGroups: [\"karpenter.sh\"], resources: [\"nodepools\"], verbs: [\"list\"]}\n"
    );
    assert_eq!(cluster.paused("default").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_the_first_nodepool_names_what_was_written() {
    let cluster = Cluster::start(&["default", "batch"]).await;
    let only_batch = json!([
        { "apiGroups": ["karpenter.sh"], "resources": ["nodepools"], "verbs": ["get"] },
        { "apiGroups": ["karpenter.sh"], "resources": ["nodepools"], "verbs": ["patch"], "resourceNames": ["batch"] },
    ]);
    let kubeconfig = cluster.kubeconfig_with_rules(only_batch);
    let mut command = cluster.plugin();
    command
        .args(["pause", "batch", "default", "--kubeconfig"])
        .arg(kubeconfig);
    let printed = run(command).await;
    assert_eq!((printed.code, printed.stdout.as_str()), (Some(1), ""));
    assert!(
        printed.stderr.ends_with(" (already paused: batch)\n"),
        "{}",
        printed.stderr
    );
    assert!(cluster.paused("batch").await.is_some());
    assert_eq!(cluster.paused("default").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_an_error_and_writes_nothing() {
    let cluster = Cluster::start(&["default"]).await;
    for (args, words) in [
        ("pause", "<NODEPOOL>"),
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
        let printed = cluster.run(args).await;
        printed.fails(words);
        assert!(
            !printed.stderr.contains('\u{1b}'),
            "{args:?}: {:?}",
            printed.stderr
        );
    }
    assert_eq!(cluster.paused("default").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_does_not_answer_is_named_in_one_line() {
    let cluster = Cluster::start(&["default"]).await;
    let text = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    // The port of a listener that is gone.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let server = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: "));
    let text = text.replace(server.unwrap(), &format!("https://{address}"));
    std::fs::write(cluster.kubeconfig(), text).unwrap();
    let printed = cluster.run("pause default --request-timeout 5s").await;
    assert_eq!(printed.code, Some(1));
    let expected = format!("error: cannot reach the API server https://{address}/: ");
    assert!(printed.stderr.starts_with(&expected), "{}", printed.stderr);
    assert_eq!(printed.stderr.lines().count(), 1, "{}", printed.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_karpenter_is_an_error() {
    let cluster = Cluster::start(&[]).await;
    let printed = cluster.run("pause --all").await;
    assert_eq!(printed.stderr, "error: no NodePools found\n");
    let printed = cluster.run("resume x").await;
    assert!(printed.stderr.contains("not found"), "{}", printed.stderr);
}
