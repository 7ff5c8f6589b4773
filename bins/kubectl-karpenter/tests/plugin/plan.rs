//! What `plan` prints for answers and refusals: the process, against a small HTTP server on loopback.

use serde_json::{Value, json};

use crate::answers::{ask, status};
use crate::transport::Decisions;

fn totals(nodes: usize, price: f64, pending: usize) -> Value {
    json!({ "nodes": nodes, "pricePerHour": price, "pods": 12, "pending": pending })
}

/// A plan that deletes one of two nodes, whose name tries to change the terminal.
fn plan(differs: bool) -> Value {
    let step = json!({
        "after": 15, "action": "Delete", "reason": "Underutilized", "nodes": ["n-\u{1b}[31m1"], "pods": 3,
        "savingsPerHour": 0.2, "pricePerHour": 0.4,
    });
    let steps = if differs { json!([step]) } else { json!([]) };
    let after = if differs {
        totals(1, 0.2, 0)
    } else {
        totals(2, 0.4, 0)
    };
    let change = if differs { -1 } else { 0 };
    let curve = json!([{ "after": 0, "nodes": 2, "pricePerHour": 0.4, "pending": 0 }]);
    json!({
        "apiVersion": "decisions.karpenter.sh/v1alpha1", "kind": "Plan",
        "observed": { "at": "2026-01-01T00:00:00Z", "epoch": 7, "engine": "0.1.0", "truncated": false },
        "start": "2026-01-01T00:00:00Z", "seconds": 3600, "changes": ["NodePool default: changed"],
        "before": totals(2, 0.4, 0), "after": after, "peak": { "after": 0, "nodes": 2, "pricePerHour": 0.4 },
        "launched": { "pricePerHour": 0.86, "lowestPricePerHour": 0.8 },
        "steps": steps, "evictions": { "total": 3, "p95": 3, "byWorkload": [{ "workload": "Deployment shop/web", "evictions": 3, "pods": 12 }] },
        "blocked": [], "budgets": [], "curve": curve,
        "unchanged": { "after": totals(2, 0.4, 0), "peak": { "after": 0, "nodes": 2, "pricePerHour": 0.4 }, "steps": 0, "evictions": 0, "curve": curve },
        "difference": {
            "differs": differs, "nodes": change, "pricePerHour": 0.2 * f64::from(change), "pending": 0, "evictions": 3,
            "onlyChanged": steps, "onlyUnchanged": [],
        },
        "approximate": ["Nodes start at once."], "digest": "0123456789abcdef0123",
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_printed_in_every_format_without_control_characters() {
    let server = Decisions::answering("200 OK", "", &plan(true).to_string()).await;
    let args = ["plan", "--set", "policy.default=WhenEmpty"];
    let text = ask(&server.url(), &args).await;
    assert_eq!(text.stderr, "");
    let expected = "\
Change          NodePool default: changed
Now                 2 nodes       $0.400/h         12 pods   0 pending
Without it          2 nodes       $0.400/h         12 pods   0 pending
After 1h             1 node       $0.200/h         12 pods   0 pending   peak 2 nodes, $0.400/h at +0s
The change      -1 nodes, -$0.200/h (-50.0%), +3 evictions against the unchanged cluster after 1h.
Launched        $0.860/h with --node-overhead-price, at most 7.5% above the cheapest possible
Evictions       3 (p95 per workload 3; most: Deployment shop/web 3 of 12)
      +15s  delete   n-\\u{1b}[31m1   Underutilized, 3 pods, saves $0.200/h
Approximate: Nodes start at once.
Digest 0123456789abcdef
";
    assert_eq!(text.succeeds(), expected);
    for format in ["wide", "json", "yaml"] {
        let printed = ask(&server.url(), &["plan", "-o", format]).await;
        printed.shows("NodePool default: changed");
        assert!(!printed.stdout.contains('\u{1b}'), "{format}: {printed:?}");
    }
    let heads = server.heads().join("");
    assert!(
        heads.contains("POST /apis/decisions.karpenter.sh/v1alpha1/plans?timeout=60s HTTP/1.1"),
        "{heads}"
    );
    assert!(heads.contains("content-type: application/json"), "{heads}");
}

/// Conformance: PLAN-02
#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_says_whether_the_change_makes_a_difference() {
    for (differs, code) in [(true, 2), (false, 0)] {
        let server = Decisions::answering("200 OK", "", &plan(differs).to_string()).await;
        let printed = ask(&server.url(), &["plan", "--exit-code"]).await;
        assert_eq!(printed.code, Some(code), "{printed:?}");
        assert_eq!(
            printed.stdout.contains("No difference within 1h."),
            !differs,
            "{printed:?}"
        );
        assert_eq!(ask(&server.url(), &["plan"]).await.code, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_ended_early_says_what_would_help() {
    let after = |work: &str| {
        format!(", after {work}, the most that one may take; a shorter --for may help")
    };
    for (ended_by, why) in [
        (json!("timeout"), "; a longer --timeout may help".to_owned()),
        (json!("runs"), after("40,000 runs of the engine")),
        (json!("events"), after("1,000,000 events")),
        (
            json!("staticNodes"),
            ": a static NodePool lacks more than 10,000 nodes".to_owned(),
        ),
        (Value::Null, String::new()),
    ] {
        let mut plan = plan(true);
        plan["observed"]["truncated"] = json!(true);
        plan["endedBy"] = ended_by;
        let server = Decisions::answering("200 OK", "", &plan.to_string()).await;
        let printed = ask(&server.url(), &["plan"]).await;
        printed.shows(&format!("Truncated: the rehearsal ended early{why}.\n"));
    }
}

/// Conformance: PLAN-10
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_manifest_and_invalid_options_are_a_line() {
    let message = "invalid NodePool default: spec.weight: 0 is less than the minimum of 1";
    let refused = status(
        422,
        "Invalid",
        message,
        json!({ "causes": [{ "field": "spec.weight", "message": message }] }),
    );
    let server = Decisions::refusing("422 Unprocessable Entity", "", refused).await;
    ask(&server.url(), &["plan"]).await.fails(message);
    let asked = server.heads().len();
    for (args, words) in [
        (["plan", "-f", "/nonexistent"], "cannot read `/nonexistent`"),
        (["plan", "--for", "25h"], "invalid request: for"),
        (["plan", "--scale", "web=2"], "invalid object `web`"),
        (["plan", "--timeout", "soon"], "invalid --timeout"),
        (["plan", "--each-rule", "--diff"], "needs another version"),
    ] {
        ask(&server.url(), &args).await.fails(words);
    }
    assert_eq!(server.heads().len(), asked, "nothing more was asked");
}

/// Returns a plan of two versions, whose first difference is made by one rule.
fn of_versions() -> Value {
    let run = |nodes: f64, reclaimed: usize| {
        json!({
            "nodes": nodes, "pricePerHour": 0.2 * nodes, "launches": 1, "reclaimed": reclaimed, "evictions": 3,
            "pendingSeconds": 1200,
        })
    };
    let mut plan = plan(true);
    plan["versions"] = json!({
        "leftOut": ["karpenter-1.13 does not know X."], "from": "karpenter-1.13", "to": "karpenter-1.14",
        "before": run(1.5, 4), "after": run(2.0, 1),
        "firstDifference": { "from": plan["steps"][0], "rules": ["consolidate-after-applies-to-destinations"] },
        "rules": [
            { "rule": "consolidate-after-applies-to-destinations", "from": "no", "to": "yes", "run": run(2.0, 1) },
            { "rule": "candidates-by-savings", "from": "no", "to": "yes" },
        ],
    });
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn two_versions_are_printed_with_the_rule_that_makes_the_difference() {
    let server = Decisions::answering("200 OK", "", &of_versions().to_string()).await;
    let args = ["plan", "--to", "karpenter-1.14", "--churn", "40%/1h"];
    let text = ask(&server.url(), &args).await;
    let expected = "\
Change          NodePool default: changed
Left out        karpenter-1.13 does not know X.
Within 1h                karpenter-1.13   karpenter-1.14
Nodes, mean                         1.5              2.0    +33.3%
Price, mean                    $0.300/h         $0.400/h    +33.3%
Launches                              1                1     +0.0%
Reclaimed nodes                       4                1    -75.0%
Evictions                             3                3     +0.0%
Pending pod seconds               1,200            1,200     +0.0%
First difference consolidate-after-applies-to-destinations
  karpenter-1.13   +15s delete n-\\u{1b}[31m1   Underutilized, 3 pods, saves $0.200/h
  karpenter-1.14   nothing more
karpenter-1.13 with one rule of karpenter-1.14 alone:
  consolidate-after-applies-to-destinations           no -> yes             2.0 nodes    $0.400/h  1 reclaimed, 1 launched, 3 evictions
  candidates-by-savings                               no -> yes
Approximate: Nodes start at once.
Digest 0123456789abcdef
";
    assert_eq!(text.succeeds(), expected);
    let mut by_default = of_versions();
    by_default["versions"]["rules"][0]["run"].take();
    let not_alone = Decisions::answering("200 OK", "", &by_default.to_string()).await;
    let differences = "
Rules in which they differ (--each-rule rehearses each alone):
  consolidate-after-applies-to-destinations           no -> yes
  candidates-by-savings                               no -> yes
";
    ask(&not_alone.url(), &args).await.shows(differences);
    let json = ask(&server.url(), &["plan", "--from", "head", "-o", "json"]).await;
    json.shows(r#""firstDifference""#);
}
