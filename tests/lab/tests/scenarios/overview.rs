//! The overview and its stream, and the files of the dashboard, over HTTP as a client sees them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::decisions::{Answer, blocking, connect, free_port, get, send, served};
use crate::world::World;

async fn world(port: u16) -> World {
    served(port, json!({ "limits": { "cpu": "1000" } })).await
}

/// The nodes of an overview by id, each as an object.
type Nodes = BTreeMap<String, Map<String, Value>>;

/// Reads columns: with as few rows as here, each is an array.
fn rows(columns: &Value, nodes: &mut Nodes) {
    let columns = columns.as_object().unwrap();
    for (at, id) in columns["id"].as_array().unwrap().iter().enumerate() {
        let node = nodes.entry(id.as_str().unwrap().to_owned()).or_default();
        for (name, column) in columns {
            node.insert(name.clone(), column[at].clone());
        }
    }
}

/// What a client of the stream knows.
#[derive(Default)]
struct Client {
    nodes: Nodes,
    pending: Value,
    budgets: Value,
    limits: Value,
    totals: Value,
    seen: Vec<String>,
}

impl Client {
    fn take(&mut self, text: &str) {
        for event in text.split("\n\n").filter(|event| event.contains("data: ")) {
            let field = |name| event.split_once(name).and_then(|it| it.1.lines().next());
            let name = field("event: ").unwrap();
            let data: Value = serde_json::from_str(field("data: ").unwrap()).unwrap();
            self.seen.push(name.to_owned());
            if name == "reset" {
                self.nodes.clear();
                rows(&data["nodes"], &mut self.nodes);
            }
            for id in data["remove"].as_array().into_iter().flatten() {
                assert!(
                    self.nodes.remove(id.as_str().unwrap()).is_some(),
                    "{id} is not known"
                );
            }
            if let Some(add) = data.get("add") {
                let before = self.nodes.len();
                rows(add, &mut self.nodes);
                assert_eq!(
                    self.nodes.len(),
                    before + add["id"].as_array().unwrap().len()
                );
            }
            if let Some(change) = data.get("change") {
                let before = self.nodes.len();
                rows(change, &mut self.nodes);
                assert_eq!(self.nodes.len(), before, "a change adds no node");
            }
            for (part, value) in [
                ("pending", &mut self.pending),
                ("budgets", &mut self.budgets),
                ("limits", &mut self.limits),
                ("totals", &mut self.totals),
            ] {
                if let Some(new) = data.get(part) {
                    *value = new.clone();
                }
            }
        }
    }
}

async fn watch(port: u16) -> TcpStream {
    blocking(move || {
        let mut stream = connect(port);
        let path = "/apis/decisions.karpenter.sh/v1alpha1/overview?watch=true";
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    })
    .await
}

/// Returns what has arrived: chunk sizes are lines of their own, which no event contains.
async fn arrived(stream: &TcpStream) -> String {
    let mut stream = stream.try_clone().unwrap();
    blocking(move || {
        stream
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let (mut bytes, mut part) = (Vec::new(), [0; 65_536]);
        loop {
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(length) => bytes.extend(&part[..length]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    break;
                }
                failed => assert_eq!(failed.unwrap(), 0),
            }
        }
        String::from_utf8(bytes).unwrap()
    })
    .await
}

/// Conformance: DEC-011
#[tokio::test(start_paused = true)]
async fn who_applies_the_changes_of_the_stream_knows_what_a_new_overview_says() {
    let port = free_port();
    let world = world(port).await;
    world.pass(5).await;
    let stream = watch(port).await;
    let mut client = Client::default();
    client.take(&arrived(&stream).await);
    assert_eq!(client.seen, ["reset"]);
    assert!(client.nodes.is_empty());

    world.deploy("app", 30).await;
    let nowhere = json!({"nodeSelector": {"topology.kubernetes.io/zone": "z9"}});
    world.deploy_with("lost", 3, nowhere).await;
    world.until_running(30, 60).await;
    world.pass(5).await;
    client.take(&arrived(&stream).await);
    let overview = get(port, "overview").await;
    assert_eq!(overview["kind"], "Overview");
    let mut nodes = Nodes::new();
    rows(&overview["nodes"], &mut nodes);
    assert!(!nodes.is_empty());
    assert_eq!(client.nodes, nodes);
    for (part, known) in [
        ("totals", &client.totals),
        ("pending", &client.pending),
        ("budgets", &client.budgets),
        ("limits", &client.limits),
    ] {
        assert_eq!(*known, overview[part], "{part}");
    }
    let cpu = &overview["limits"][0];
    let explained = &get(port, "nodepools/default/explanation").await["limits"][0];
    let [share, used] = [&cpu["share"], &cpu["used"]];
    let limit = json!({ "nodePool": "default", "resource": "cpu", "limit": "1000", "used": used, "share": share });
    assert_eq!(*cpu, limit);
    assert_eq!([share, used], [&explained["share"], &explained["used"]]);
    assert!(share.as_f64() > Some(0.0), "{share}");
    assert_eq!(overview["totals"]["pending"], 3);
    assert_eq!(overview["pending"][0]["reason"], "NoMatchingType");
    assert_eq!(overview["pending"][0]["count"], 3);
    let sum = |name: &str| -> i64 {
        let all = nodes.values();
        all.map(|node| node[name].as_i64().unwrap()).sum()
    };
    for name in "price pods cpu cpuAllocatable memory memoryAllocatable".split(' ') {
        assert_eq!(overview["totals"][name], sum(name), "{name}");
        // The pods request CPU only.
        assert!(sum(name) > 0 || name == "memory", "{name}");
    }
    let node = nodes.values().next().unwrap();
    let name = node["node"].as_str().unwrap();
    let explanation = get(port, &format!("nodes/{name}/explanation")).await;
    let fields = "nodePool zone instanceType capacityType state pods";
    for field in fields.split(' ') {
        assert_eq!(node[field], explanation[field], "{field}");
    }
    assert_eq!(node["reason"], explanation["reason"]["id"]);
    assert_eq!(node["text"], explanation["reason"]["text"]);

    world.delete_deployments(&["app", "lost"]).await;
    world.until_empty(600).await;
    world.pass(5).await;
    client.take(&arrived(&stream).await);
    assert!(client.nodes.is_empty(), "{:?}", client.nodes.keys());
    assert_eq!(client.totals["price"], 0);
    let resets = client.seen.iter().filter(|name| *name == "reset");
    assert_eq!(resets.count(), 1);
    let curve = &get(port, "overview").await["curve"];
    let prices = curve["price"].as_array().unwrap();
    assert_eq!(prices.len(), curve["at"].as_array().unwrap().len());
    let was_paid = prices.iter().any(|price| price.as_i64() > Some(0));
    assert!(was_paid, "{curve}");
}

/// Conformance: DEC-012
#[tokio::test(start_paused = true)]
async fn a_stream_has_at_most_two_events_a_second_and_none_when_nothing_changes() {
    let port = free_port();
    let world = world(port).await;
    world.pass(5).await;
    let stream = watch(port).await;
    let mut client = Client::default();
    client.take(&arrived(&stream).await);
    world.deploy("app", 5).await;
    for replicas in [10, 15, 20] {
        world.pass(5).await;
        world.scale("app", replicas).await;
    }
    world.pass(5).await;
    client.take(&arrived(&stream).await);
    let changes = client.seen.len() - 1;
    assert!((4..=41).contains(&changes), "{changes} events in 20 s");

    world.until_running(20, 60).await;
    world.pass(600).await;
    client.take(&arrived(&stream).await);
    let before = client.seen.len();
    world.pass(60).await;
    client.take(&arrived(&stream).await);
    assert_eq!(client.seen.len(), before, "{:?}", &client.seen[before..]);
}

async fn file(port: u16, method: &str, path: &str, headers: &str) -> Answer {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    );
    send(port, head).await
}

/// Conformance: DEC-013
#[tokio::test(start_paused = true)]
async fn the_page_is_served_with_a_strict_policy_and_sent_once() {
    let port = free_port();
    let world = world(port).await;
    world.pass(5).await;
    for path in [
        "/",
        "/assets/js/app.js",
        "/assets/style.css",
        "/assets/vendor/preact.js",
    ] {
        let whole = file(port, "GET", path, "").await;
        assert_eq!(whole.code, 200, "{path}");
        assert!(!whole.head.contains("content-encoding"), "{path}");
        for header in [
            "content-security-policy: default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-cache",
        ] {
            let head = &whole.head;
            assert!(head.contains(header), "{path}: {header}: {head}");
        }
        let mut lines = whole.head.lines();
        let tag = lines.find_map(|line| line.strip_prefix("etag: ")).unwrap();
        let again = file(port, "GET", path, &format!("If-None-Match: {tag}\r\n")).await;
        assert_eq!((again.code, again.body.as_str()), (304, ""), "{path}");
        let other = file(port, "GET", path, "If-None-Match: \"x\"\r\n").await;
        assert_eq!(other.code, 200, "{path}");
        let head = file(port, "HEAD", path, "Accept-Encoding: br, gzip\r\n").await;
        assert_eq!((head.code, head.body.as_str()), (200, ""), "{path}");
        assert!(head.head.contains("content-encoding: gzip"), "{path}");
        assert_eq!(file(port, "POST", path, "").await.code, 415, "{path}");
        assert_eq!(file(port, "PUT", path, "").await.code, 405, "{path}");
    }
    for path in ["/assets/../Cargo.toml", "/assets/vendor/VENDOR.toml"] {
        assert_eq!(file(port, "GET", path, "").await.code, 404, "{path}");
    }
    let foreign = "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(send(port, foreign.to_owned()).await.code, 403);
}
