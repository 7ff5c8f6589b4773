//! Rehearsals over HTTP, and what the controllers then do for real.

use std::io::Write as _;

use karpenter_decisions::rehearse::plan::Plan;
use serde_json::{Value, json};

use crate::decisions::{Answer, blocking, connect, free_port, request, send, served};
use crate::world::pool;

/// Asks for a rehearsal.
pub(crate) async fn post(port: u16, body: &str) -> Answer {
    let length = body.len();
    let head = "POST /apis/decisions.karpenter.sh/v1alpha1/plans?timeout=5m HTTP/1.1\r\nConnection: close\r\nHost: localhost";
    send(
        port,
        format!(
            "{head}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    )
    .await
}

pub(crate) async fn plan(port: u16, asked: Value) -> Plan {
    let answer = post(port, &asked.to_string()).await;
    assert_eq!(answer.code, 200, "{answer:?}");
    let plan: Plan = serde_json::from_str(&answer.body).unwrap();
    assert!(!plan.observed.truncated, "{}", answer.body);
    plan
}

fn apply(object: &impl serde::Serialize) -> Value {
    json!({ "changes": [{ "apply": object }] })
}

fn quiet() -> Value {
    json!({ "disruption": { "consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s" } })
}

/// Conformance: PLAN-10
#[tokio::test(start_paused = true)]
async fn what_cannot_be_rehearsed_is_refused_with_its_field() {
    let port = free_port();
    let world = served(port, quiet()).await;
    world.run("app", 2).await;

    let mut invalid = serde_json::to_value(pool("default", quiet())).unwrap();
    invalid["spec"]["disruption"]["budgets"] = json!([{ "nodes": "10%", "schedule": "@daily" }]);
    let answer = post(port, &apply(&invalid).to_string()).await;
    assert_eq!(answer.code, 422, "{answer:?}");
    let status = answer.json();
    assert_eq!(
        (&status["kind"], &status["reason"]),
        (&json!("Status"), &json!("Invalid"))
    );
    let cause = &status["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.disruption.budgets");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("'schedule' must be set with 'duration'"),
        "{status}"
    );

    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" } });
    let answer = post(port, &apply(&secret).to_string()).await;
    assert_eq!(answer.code, 422);
    assert!(
        answer.json()["message"]
            .as_str()
            .unwrap()
            .starts_with("unknown kind `v1, Secret`"),
        "{answer:?}"
    );

    for (body, code) in [
        ("{", 400),
        (r#"{"changs": []}"#, 400),
        (r#"{"for": "25h"}"#, 422),
        (r#"{"at": "tomorrow"}"#, 400),
    ] {
        assert_eq!(post(port, body).await.code, code, "{body}");
    }
    let host = "Host: localhost\r\n";
    let get = request(port, "GET", "plans", host).await;
    assert_eq!(get.code, 405);
    assert!(get.head.contains("allow: post"), "{get:?}");
    let form = request(
        port,
        "POST",
        "plans",
        &format!("{host}Content-Length: 0\r\n"),
    )
    .await;
    assert_eq!(form.code, 415);
    let json = "Content-Type: application/json\r\n";
    let long = request(
        port,
        "POST",
        "plans",
        &format!("{host}{json}Content-Length: 4194305\r\n"),
    )
    .await;
    assert_eq!(long.code, 413);
}

#[tokio::test(start_paused = true)]
async fn bodies_that_stall_keep_no_rehearsal_waiting_and_end() {
    let port = free_port();
    let world = served(port, quiet()).await;
    world.pass(5).await;
    let head = "POST /apis/decisions.karpenter.sh/v1alpha1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{";
    let mut stalled = Vec::new();
    for _ in 0..5 {
        let begun = blocking(move || {
            let mut stream = connect(port);
            stream.write_all(head.as_bytes()).unwrap();
            stream
        });
        stalled.push(begun.await);
    }
    assert_eq!(post(port, "{}").await.code, 200);
    world.pass(11).await;
    for stream in stalled {
        let answer = blocking(move || Answer::read(stream)).await;
        assert_eq!(answer.code, 408, "{answer:?}");
        assert_eq!(
            answer.json()["message"],
            "the body did not arrive within 10s"
        );
    }
}
