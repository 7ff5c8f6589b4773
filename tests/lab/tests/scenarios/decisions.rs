//! Records and explanations of decisions, over HTTP as a client sees them.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use karpenter_core::schedule::Policy;
use karpenter_fixtures::{ZONE, pdb};
use karpenter_kube::listener::{Decided, Made};
use karpenter_kube::options::{DecisionLog, Options};
use karpenter_lab::local_cluster::{LocalCluster, LocalClusterSettings};
use serde_json::{Value, json};

use crate::world::{World, deployment, node_pool, settings};

/// Returns a port that no server listens on.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

pub(crate) fn serving(port: u16, change: impl FnOnce(&mut Options)) -> LocalClusterSettings {
    let mut settings = settings();
    settings.options.decisions_port = port;
    change(&mut settings.options);
    settings
}

/// A cluster whose controllers serve on a port, with the NodePool `default`.
async fn world(port: u16) -> World {
    World::with_settings(serving(port, |_| ()), node_pool("default")).await
}

/// A cluster that serves on a port, with the NodePool `default`, whose spec `spec` changes.
pub(crate) async fn served(port: u16, spec: Value) -> World {
    World::with_spec(serving(port, |_| ()), spec).await
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self {
            code,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Runs blocking work: virtual time does not pass meanwhile, but the server answers.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

pub(crate) fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // A plan of a day takes a minute and more beside other builds.
    let limit = Some(Duration::from_secs(240));
    stream.set_read_timeout(limit).unwrap();
    stream
}

/// Sends a request as it is.
pub(crate) async fn send(port: u16, request: String) -> Answer {
    blocking(move || {
        let mut stream = connect(port);
        stream.write_all(request.as_bytes()).unwrap();
        Answer::read(stream)
    })
    .await
}

pub(crate) async fn request(port: u16, method: &str, path: &str, headers: &str) -> Answer {
    let path = format!("/apis/decisions.karpenter.sh/v1alpha1/{path}");
    let request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    send(port, request).await
}

/// Asks for a path as a client on this host does.
pub(crate) async fn ask(port: u16, path: &str) -> Answer {
    request(port, "GET", path, "Host: localhost\r\n").await
}

pub(crate) async fn get(port: u16, path: &str) -> Value {
    let answer = ask(port, path).await;
    assert_eq!(answer.code, 200, "{path}: {answer:?}");
    for header in ["cache-control: no-store", "content-type: application/json"] {
        assert!(answer.head.contains(header), "{answer:?}");
    }
    answer.json()
}

/// Explains the first pod whose name begins so.
pub(crate) async fn explain_pod(world: &World, port: u16, start: &str) -> Value {
    let name = world.pod_name(start).await;
    let path = format!("namespaces/default/pods/{name}/explanation?timeout=5s");
    get(port, &path).await
}

pub(crate) async fn explain_claim(port: u16, name: &str) -> Value {
    get(port, &format!("nodeclaims/{name}/explanation")).await
}

/// Conformance: DEC-005
#[tokio::test(start_paused = true)]
async fn a_pending_pod_has_its_reason_its_age_and_the_record_that_says_so() {
    let port = free_port();
    let world = world(port).await;
    world.add(deployment("lost", 3).select(ZONE, "z9")).await;
    world.pass(60).await;

    let explanation = explain_pod(&world, port, "lost").await;
    assert_eq!(explanation["kind"], "PodExplanation");
    assert_eq!(explanation["state"], "Pending");
    let id = &explanation["reason"]["id"];
    assert_eq!(id, "NoMatchingType", "{explanation}");
    assert_eq!(explanation["alike"]["pods"], 3);
    assert_eq!(explanation["pools"][0]["name"], "default");
    let since = explanation["reason"]["since"].as_str().unwrap();
    assert!(since < explanation["observed"]["at"].as_str().unwrap());

    // The passes since then found the same: one record, which lasts until the last of them.
    let list = get(port, "decisions?kind=Provisioning&reason=NoMatchingType").await;
    let records = list["items"].as_array().unwrap();
    assert_eq!(records.len(), 1, "{list}");
    assert_eq!(explanation["records"], json!([records[0]["id"]]));
    assert!(records[0]["until"].as_str() > records[0]["at"].as_str());
    assert_eq!(records[0]["items"][0]["count"], 3);

    let groups = get(port, "explanations?of=pods&by=reason").await;
    assert_eq!(groups["items"][0]["reason"], "NoMatchingType");
    assert_eq!(groups["items"][0]["count"], 3);
    let series = "karpenter_decisions_pods_pending{reason=\"NoMatchingType\"}";
    assert_eq!(world.metric(series), Some(3.0));
    let pool = get(port, "nodepools/default/explanation").await;
    assert_eq!(pool["reason"]["id"], "Used", "{pool}");
}

/// Conformance: DEC-006
#[tokio::test(start_paused = true)]
async fn a_kept_node_has_its_blockers_and_price_and_its_claim_its_pods() {
    let port = free_port();
    let world = world(port).await;
    world.run("app", 2).await;
    let guard = pdb("guard").max_unavailable(0).of(("app", "app"));
    world.add(guard).await;
    let node = world.node_name().await;
    let patch = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    world.patch::<Node>(&node, patch).await;
    world.pass(400).await;

    let explanation = get(port, &format!("nodes/{node}/explanation")).await;
    assert_eq!(explanation["state"], "Ready", "{explanation}");
    let id = &explanation["reason"]["id"];
    assert_eq!(id, "NodeDoNotDisrupt", "{explanation}");
    let ids = [0, 1, 2, 3].map(|at| &explanation["blockers"][at]["id"]);
    assert_eq!(json!(ids), json!(["NodeDoNotDisrupt", "Pdb", "Pdb", null]));
    assert!(explanation["pricePerHour"].as_f64().unwrap() > 0.0);
    assert!(explanation["wastePerHour"].as_f64() < explanation["pricePerHour"].as_f64());
    assert!(explanation["usage"]["cpu"]["share"].as_f64().unwrap() > 0.0);

    let claim = explanation["nodeClaim"].as_str().unwrap();
    let explanation = explain_claim(port, claim).await;
    assert_eq!(explanation["launch"]["planned"]["pods"], 2, "{explanation}");
    let groups = get(port, "explanations?of=nodes").await;
    assert_eq!(groups["items"][0]["reason"], "NodeDoNotDisrupt");
    let series = "{nodepool=\"default\",reason=\"NodeDoNotDisrupt\"}";
    let cost = world.metric(&format!("karpenter_decisions_nodes_kept_cost{series}"));
    assert_eq!(groups["items"][0]["pricePerHour"].as_f64(), cost);
    let kept = world.metric(&format!("karpenter_decisions_nodes_kept{series}"));
    assert_eq!(kept, Some(1.0));
}

/// Conformance: DASH-08
#[tokio::test(start_paused = true)]
async fn requests_for_a_foreign_host_and_forms_of_foreign_sites_are_refused() {
    let port = free_port();
    let world = world(port).await;
    world.pass(5).await;
    for (host, code) in [
        ("Host: localhost\r\n", 200),
        ("Host: localhost:8082\r\n", 200),
        ("Host: 127.0.0.1:1\r\n", 200),
        ("Host: [::1]\r\n", 200),
        ("Host: [::1]:8082\r\n", 200),
        ("Host: evil.example\r\n", 403),
        ("Host: evil.example:8082\r\n", 403),
        ("Host: localhost.evil.example\r\n", 403),
        ("Host: localhost:evil\r\n", 403),
        ("Host: \r\n", 403),
        ("", 403),
    ] {
        let answer = request(port, "GET", "decisions", host).await;
        assert_eq!(answer.code, code, "{host:?}");
    }
    for media in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
    ] {
        let headers = format!("Host: localhost\r\nContent-Length: 0\r\n{media}");
        let answer = request(port, "POST", "decisions", &headers).await;
        assert_eq!(answer.code, 415, "{media:?}");
        assert_eq!(answer.json()["kind"], "Status");
    }
    let json = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 9999999\r\n";
    assert_eq!(request(port, "POST", "decisions", json).await.code, 413);
}

/// Conformance: DASH-10
#[tokio::test(start_paused = true)]
async fn only_get_and_head_are_served_and_no_request_writes() {
    let port = free_port();
    let world = world(port).await;
    world.run("app", 1).await;
    world.pass(400).await;
    let version = async || {
        let all = world.claims().await;
        let nodes = world.nodes().await;
        (json!(all), json!(nodes), world.events().await.len())
    };
    let before = version().await;
    let json = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 0\r\n";
    let methods = "POST PUT PATCH DELETE OPTIONS TRACE PROPFIND";
    for method in methods.split(' ') {
        for path in [
            "decisions",
            "explanations?of=pods",
            "nodepools/default/explanation",
        ] {
            let answer = request(port, method, path, json).await;
            assert_eq!(answer.code, 405, "{method} {path}");
            assert!(answer.head.contains("allow: get, head"), "{answer:?}");
        }
    }
    let head = request(port, "HEAD", "decisions", "Host: localhost\r\n").await;
    assert_eq!((head.code, head.body.as_str()), (200, ""));
    assert_eq!(version().await, before);
}

/// Conformance: DEC-007
#[tokio::test(start_paused = true)]
async fn hostile_names_get_a_status_that_does_not_repeat_them() {
    let port = free_port();
    let world = world(port).await;
    world.pass(5).await;
    let long = "a".repeat(300);
    for name in [
        "%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "%1b%5b2J",
        "..%2f..%2fetc",
        "%00",
        "%",
        &long,
    ] {
        for path in [
            format!("nodes/{name}/explanation"),
            format!("namespaces/default/pods/{name}/explanation"),
            format!("namespaces/{name}/pods/a/explanation"),
        ] {
            let answer = ask(port, &path).await;
            assert_eq!(answer.code, 404, "{path}");
            assert!(answer.head.contains("x-content-type-options: nosniff"));
            let status = answer.json();
            assert_eq!(status["kind"], "Status");
            assert_eq!(status["reason"], "NotFound");
            let shown = &status["message"];
            assert_eq!(shown, "the server could not find the requested resource");
        }
    }
    let missing = ask(port, "nodes/no-such-node/explanation").await;
    assert_eq!(missing.code, 404);
    assert_eq!(
        missing.json()["details"],
        json!({"kind": "Node", "name": "no-such-node"})
    );
}

/// Opens a stream of events and returns it once its headers have arrived, with what followed them.
fn watch(port: u16) -> (TcpStream, String) {
    let mut stream = connect(port);
    let path = "/apis/decisions.karpenter.sh/v1alpha1/decisions?watch=true";
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    (stream, String::from_utf8(head).unwrap())
}

/// Records a decision of about twelve kibibytes.
fn decide(world: &World, number: usize) {
    let cx = world.cluster.context().unwrap();
    let view = cx.view();
    let made = Made {
        view: &view,
        policy: &Policy::at(cx.clock.now()),
        took: Duration::ZERO,
    };
    let pool = format!("{number}-{}", "x".repeat(12_000));
    let decided = Decided::Grew {
        planned: &[],
        claims: &[],
        at_limit: Some(&pool),
    };
    cx.listener.as_ref().unwrap().decided(made, decided);
}

/// Conformance: DASH-11
#[tokio::test(start_paused = true)]
async fn a_reader_256_records_behind_is_closed_and_a_ninth_stream_refused() {
    let port = free_port();
    let world = world(port).await;
    world.pass(5).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        let (stream, head) = blocking(move || watch(port)).await;
        assert!(head.contains("text/event-stream"), "{head}");
        streams.push(stream);
    }
    let ninth = ask(port, "decisions?watch=true").await;
    assert_eq!(ninth.code, 429);
    assert!(ninth.head.contains("retry-after"), "{ninth:?}");
    // Far more than the buffers of a socket hold, and nothing is read.
    for number in 0..2000 {
        decide(&world, number);
        tokio::task::yield_now().await;
    }
    let slow = streams.remove(0);
    let text = blocking(move || std::io::read_to_string(slow).unwrap()).await;
    let closed = ": closed, the reader is 256 records behind";
    assert!(text.contains(closed), "{}", text.len());
    let events = text.matches("event: DecisionRecord").count();
    assert!((1..2000).contains(&events), "{events}");
    // Its place is free again.
    let (_, head) = blocking(move || watch(port)).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    drop(streams);
}

/// Conformance: DEC-008
#[tokio::test(start_paused = true)]
async fn a_list_continues_where_it_ended_and_a_dropped_record_is_gone() {
    let port = free_port();
    let world = world(port).await;
    world.pass(5).await;
    for number in 0..5 {
        decide(&world, number);
    }
    let first = get(port, "decisions?kind=StaticCapacity&limit=2").await;
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let next = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let path = format!("decisions?kind=StaticCapacity&continue={next}");
    let rest = get(port, &path).await;
    assert_eq!(rest["items"].as_array().unwrap().len(), 3);
    assert_eq!(rest["metadata"], json!({}));
    for number in 5..2000 {
        decide(&world, number);
    }
    let gone = ask(port, &path).await;
    assert_eq!(gone.code, 410);
    assert_eq!(gone.json()["reason"], "Expired");
}

/// Conformance: DASH-15
#[tokio::test(start_paused = true)]
async fn without_the_feature_gate_there_is_no_port_and_no_metric() {
    let port = free_port();
    let settings = serving(port, |options| {
        options.feature_gates.decision_records = false;
    });
    let world = World::with_settings(settings, node_pool("default")).await;
    world.add(deployment("lost", 1).select(ZONE, "z9")).await;
    world.pass(60).await;
    let refused = blocking(move || TcpStream::connect(("127.0.0.1", port)).is_err()).await;
    assert!(refused);
    let metrics = world.cluster.registry.render();
    assert!(!metrics.contains("karpenter_decisions_"));
}

/// Conformance: DEC-010
#[tokio::test(start_paused = true)]
async fn a_taken_port_does_not_stop_the_controllers() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let world = world(port).await;
    world.run("app", 1).await;
}

/// Conformance: DEC-004
#[tokio::test(start_paused = true)]
async fn the_decision_log_has_each_record_as_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions");
    let log = DecisionLog::File(path.clone());
    let settings = serving(0, |options| options.decision_log = log);
    let world = World::with_settings(settings, node_pool("default")).await;
    world.run("app", 1).await;
    world.cluster.shutdown().await;
    // The thread of the log ends with the controllers.
    let read = move || {
        loop {
            let text = std::fs::read_to_string(&path).unwrap();
            if text.contains("\"Launched\"") && text.ends_with('\n') {
                return text;
            }
            std::thread::yield_now();
        }
    };
    for line in blocking(read).await.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["logger"], "decisions");
        assert!(line["record"]["id"].is_string(), "{line}");
    }
}

/// Conformance: DEC-009
#[tokio::test(start_paused = true)]
async fn a_follower_names_the_pod_of_the_leader() {
    let port = free_port();
    let settings = serving(port, |options| {
        options.disable_leader_election = false;
        options.leader_election_namespace = "default".into();
    });
    let cluster = LocalCluster::without_controllers(settings).await.unwrap();
    let client = cluster.client();
    let mut world = World { cluster, client };
    let lease = json!({
        "metadata": {"name": "karpenter-leader-election", "namespace": "default"},
        "spec": {"holderIdentity": "karpenter-7d9f_0123456789abcdef", "leaseDurationSeconds": 3600},
    });
    world.create_json::<Lease>(lease).await;
    world.cluster.start_controllers();
    world.pass(20).await;
    let answer = ask(port, "decisions").await;
    assert_eq!(answer.code, 503);
    assert!(answer.head.contains("retry-after"), "{answer:?}");
    let details = json!({"kind": "Pod", "name": "karpenter-7d9f"});
    assert_eq!(answer.json()["details"], details);
}
