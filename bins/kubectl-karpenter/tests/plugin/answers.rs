//! What `why` and `doctor` print for answers and refusals: the process, against a small HTTP server on loopback.

use serde_json::{Value, json};

use crate::fixture::{Cluster, Printed, closed_address, plugin, run};
use crate::transport::Decisions;

/// Runs the plugin against a server, without a kubeconfig.
pub(crate) async fn ask(url: &str, args: &[&str]) -> Printed {
    let mut command = plugin();
    command.args(args).args(["--server", url]);
    run(command).await
}

pub(crate) fn status(code: u16, reason: &str, message: &str, details: Value) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason, "message": message,
        "details": details,
    })
}

const OF_DEPLOYMENT: &str = "why deploy -n shop gone --server http://127.0.0.1:1";

const QUESTIONS: [&[&str]; 3] = [
    &["why", "pod", "-n", "shop", "web"],
    &["why", "nodes"],
    &["doctor"],
];

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_any_kind_that_does_not_exist_is_one_line() {
    for (question, kind) in [
        (&["why", "pod", "-n", "shop", "gone"][..], "Pod"),
        (&["why", "node", "gone"], "Node"),
        (&["why", "nodeclaim", "gone"], "NodeClaim"),
        (&["why", "nodepool", "gone"], "NodePool"),
    ] {
        let message = format!("{kind} \"gone\" not found");
        let details = json!({ "kind": kind, "name": "gone" });
        let missing = status(404, "NotFound", &message, details);
        let server = Decisions::refusing("404 Not Found", "", missing).await;
        let printed = ask(&server.url(), question).await;
        printed.fails(&format!("error: {message}"));
        assert!(server.heads().iter().all(|head| head.starts_with("GET ")));
    }
    // The plugin itself looks for a Deployment and its pods.
    let cluster = Cluster::start(&[]).await;
    let printed = cluster.run(OF_DEPLOYMENT).await;
    printed.fails(": not found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_or_of_another_version_is_one_line() {
    let down = format!("http://{}", closed_address());
    let message = "this replica does not lead: ask pod karpenter-1";
    let details = json!({ "kind": "Pod", "name": "karpenter-1" });
    let follows = status(503, "ServiceUnavailable", message, details);
    let follower =
        Decisions::refusing("503 Service Unavailable", "Retry-After: 5\r\n", follows).await;
    let message = "the server could not find the requested resource";
    let unknown = status(404, "NotFound", message, Value::Null);
    let older = Decisions::refusing("404 Not Found", "", unknown).await;
    for question in QUESTIONS {
        let printed = ask(&down, question).await;
        printed.fails("check --server and KARPENTER_SERVER");
        let printed = ask(&follower.url(), question).await;
        printed.fails("(the leader is pod karpenter-1); try again in 5s");
        let printed = ask(&older.url(), question).await;
        printed.fails(
            "does not know this question; the plugin and Karpenter should be of one version",
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_with_escape_sequences_or_markup_are_refused_without_a_question() {
    let server = Decisions::answering("200 OK", "", "{}").await;
    for name in [
        "\u{1b}[31mred",
        "<script>alert(1)</script>",
        "../nodes/a",
        "a\nb",
        "UPPER",
        "",
    ] {
        for args in [
            vec!["why", "pod", "-n", "shop", name],
            vec!["why", "pod", "-n", name, "web"],
            vec!["why", "node", name],
            vec!["why", "nodeclaim", name],
            vec!["why", "nodepool", name],
            vec!["doctor", "-n", name],
        ] {
            let printed = ask(&server.url(), &args).await;
            printed.fails("invalid name `");
        }
    }
    assert_eq!(server.heads(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_without_rights_is_a_line_with_the_missing_rule() {
    let cluster = Cluster::start(&[]).await;
    let kubeconfig = cluster.kubeconfig_with_rules(json!([]));
    let mut command = cluster.plugin();
    command
        .env("KUBECONFIG", kubeconfig)
        .args(OF_DEPLOYMENT.split(' '));
    run(command).await.fails(
        "forbidden; it needs a Role in namespace \"shop\" with the rule {apiGroups: [\"apps\"], resources: [\"deployments\"], verbs: [\"get\"]}",
    );
}

fn report(severity: &str) -> Value {
    json!({
        "apiVersion": "decisions.karpenter.sh/v1alpha1", "kind": "BlockerReport", "observed": { "at": "2026-01-10T00:00:00Z" },
        "ran": ["PdbImpossible"], "costPerDay": 0.0, "checks": [{
            "id": "PdbImpossible", "severity": severity, "what": "PodDisruptionBudget shop/\u{1b}[31mred can never allow an eviction",
            "subjects": [{ "kind": "PodDisruptionBudget", "namespace": "shop", "name": "\u{1b}[31mred" }], "nodeCount": 0,
            "evidence": { "parameters": {}, "text": "<b>because</b>" }, "owner": "x", "fix": "y",
        }],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_says_whether_something_blocks_in_every_format() {
    for (severity, code) in [("Blocks", 2), ("Warns", 0)] {
        let server = Decisions::answering("200 OK", "", &report(severity).to_string()).await;
        assert_eq!(ask(&server.url(), &["doctor"]).await.code, Some(0));
        for format in ["json", "yaml", "wide", "name"] {
            let printed = ask(&server.url(), &["doctor", "--exit-code", "-o", format]).await;
            assert_eq!(printed.code, Some(code), "{printed:?}");
            assert!(!printed.stdout.contains('\u{1b}'), "{printed:?}");
            assert!(printed.stdout.contains("red"), "{printed:?}");
        }
        let all = server.heads().join("");
        assert!(
            all.contains("GET /apis/decisions.karpenter.sh/v1alpha1/blockers HTTP/1.1"),
            "{all}"
        );
        ask(&server.url(), &["doctor", "-n", "shop"]).await;
        let last = server.heads().pop().unwrap();
        assert!(
            last.starts_with("GET /apis/decisions.karpenter.sh/v1alpha1/blockers?namespace=shop "),
            "{last}"
        );
    }
}
