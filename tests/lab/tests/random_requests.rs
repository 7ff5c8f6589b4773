//! Ten thousand random requests to the server of decisions, well-formed and not: refused as the reference says, with flat memory and
//! without a write at the API server.
//!
//! A process of its own: the memory of other tests would count.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::v1::NodePool;
use karpenter_fixtures::{deployment, node_pool};
use karpenter_kwok::KWOKNodeClass;
use karpenter_lab::local_cluster::{LocalCluster, LocalClusterSettings};
use kube::Api;
use kube::api::{ListParams, PostParams};
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};

const REQUESTS: usize = 10_000;
/// Requests until memory counts: caches and buffers are filled by then.
const FIRST: usize = 2_000;
/// What memory may grow by during the other requests, in KiB.
const GROWTH: usize = 8 << 10;
/// The longest body that the server reads.
const MAX_BODY: usize = 4 << 20;

/// What a request may be answered with; no status is a connection that is closed.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Status(u16),
    /// An answer, or a refusal that names what is wrong with the question.
    Answer,
    /// Refused for its method, its path or its parameters.
    Refused,
    /// Refused as malformed, or closed.
    Malformed,
}

impl Expected {
    fn allows(self, status: Option<u16>) -> bool {
        match self {
            Self::Status(wanted) => status == Some(wanted),
            Self::Answer => matches!(status, Some(200 | 304 | 400 | 404 | 409 | 410 | 422)),
            Self::Refused => matches!(status, Some(400 | 404 | 405)),
            Self::Malformed => matches!(status, None | Some(400 | 413 | 414 | 431)),
        }
    }
}

struct Request {
    bytes: Vec<u8>,
    expected: Expected,
}

fn pick<'a, T: ?Sized>(chance: &mut StdRng, all: &[&'a T]) -> &'a T {
    all[chance.random_range(0..all.len())]
}

fn path(chance: &mut StdRng) -> String {
    const PARTS: [&str; 18] = [
        "decisions",
        "nodes",
        "pods",
        "nodepools",
        "nodeclaims",
        "namespaces",
        "default",
        "explanation",
        "explanations",
        "overview",
        "blockers",
        "shadow",
        "bundle",
        "%2e%2e",
        "a",
        "",
        "%ff",
        "..",
    ];
    const WHOLE: [&str; 8] = [
        "decisions",
        "explanations?of=pods",
        "explanations?of=nodes",
        "nodepools/default/explanation",
        "overview",
        "namespaces/default/pods/a/explanation",
        "blockers",
        "nodes/a/explanation?if=tolerate%3Da",
    ];
    const QUERIES: [&str; 8] = [
        "watch=tru",
        "limit=%zz",
        "limit=-1",
        "of=pods",
        "since=2026",
        "continue=x",
        "timeout=1h",
        "a=b&a=b&&",
    ];
    if chance.random_ratio(1, 20) {
        return pick(
            chance,
            &[
                "/",
                "/assets/style.css",
                "/../etc/passwd",
                "*",
                "//",
                "/apis",
            ],
        )
        .to_owned();
    }
    let mut path = if chance.random_ratio(1, 2) {
        pick(chance, &WHOLE).to_owned()
    } else {
        let parts = 1 + chance.random_range(0..6);
        let parts: Vec<&str> = (0..parts).map(|_| pick(chance, &PARTS)).collect();
        parts.join("/")
    };
    if chance.random_ratio(1, 4) {
        path.push_str(if path.contains('?') { "&" } else { "?" });
        path.push_str(pick(chance, &QUERIES));
    }
    format!("/apis/decisions.karpenter.sh/v1alpha1/{path}")
}

fn body(chance: &mut StdRng) -> Vec<u8> {
    let mut noise = vec![0; chance.random_range(0..200)];
    chance.fill_bytes(&mut noise);
    let texts = [
        "",
        "{}",
        "null",
        "[[[[",
        "{\"changes\":[]}",
        "{\"changes\":[{\"manifest\":\"a: [\"}]}",
    ];
    match chance.random_range(0..4) {
        0 => noise,
        1 => vec![b'['; 20_000],
        _ => pick(chance, &texts).as_bytes().to_vec(),
    }
}

/// A request that HTTP allows, with what the reference says about it.
fn well_formed(chance: &mut StdRng) -> Request {
    const PLANS: &str = "/apis/decisions.karpenter.sh/v1alpha1/plans";
    let methods = [
        "GET", "GET", "GET", "HEAD", "POST", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
        "X",
    ];
    let method = pick(chance, &methods);
    let of_plans = chance.random_ratio(1, 6);
    let path = if of_plans {
        PLANS.to_owned()
    } else {
        path(chance)
    };
    let is_local = !chance.random_ratio(1, 8);
    let host = match is_local {
        true => pick(chance, &["localhost", "127.0.0.1:8082", "[::1]:1"]),
        false => pick(
            chance,
            &[
                "evil.example",
                "localhost.evil.example",
                "",
                "localhost:evil",
                "10.0.0.1",
            ],
        ),
    };
    let is_json = chance.random_ratio(2, 3);
    let media = match is_json {
        true => pick(
            chance,
            &["application/json", "Application/JSON; charset=utf-8"],
        ),
        false => pick(
            chance,
            &[
                "text/plain",
                "application/x-www-form-urlencoded",
                "multipart/form-data",
                "",
            ],
        ),
    };
    let has_body = method != "GET" && method != "HEAD";
    let is_too_long = has_body && chance.random_ratio(1, 20);
    let body = if has_body { body(chance) } else { Vec::new() };
    let length = if is_too_long {
        MAX_BODY + 1
    } else {
        body.len()
    };
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nConnection: close\r\nHost: {host}\r\nContent-Type: {media}\r\n"
    );
    if has_body {
        bytes.push_str(&format!("Content-Length: {length}\r\n"));
    }
    for _ in 0..chance.random_range(0..4) {
        let length = chance.random_range(0..300);
        bytes.push_str(&format!("X-{length}: {}\r\n", "v".repeat(length)));
    }
    bytes.push_str("\r\n");
    let mut bytes = bytes.into_bytes();
    bytes.extend(body);
    let expected = match method {
        _ if !is_local => Expected::Status(403),
        "GET" | "HEAD" if of_plans => Expected::Status(405),
        "GET" | "HEAD" => Expected::Answer,
        "POST" if !is_json => Expected::Status(415),
        "POST" if is_too_long => Expected::Status(413),
        "POST" if of_plans => Expected::Answer,
        // Also 404 for a path, or 400 for a parameter, that does not exist.
        "POST" => Expected::Refused,
        _ => Expected::Status(405),
    };
    Request { bytes, expected }
}

/// A request that is cut off, or that HTTP does not allow.
fn malformed(chance: &mut StdRng) -> Request {
    let whole = well_formed(chance).bytes;
    let bytes = match chance.random_range(0..5) {
        0 => {
            let head = whole.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
            whole[..chance.random_range(0..head)].to_vec()
        }
        1 => {
            let mut noise = vec![0; chance.random_range(1..400)];
            chance.fill_bytes(&mut noise);
            noise
        }
        2 => format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
            "v".repeat(1 << 20)
        )
        .into_bytes(),
        3 => {
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"
                .to_vec()
        }
        _ => format!(
            "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "a".repeat(1 << 17)
        )
        .into_bytes(),
    };
    Request {
        bytes,
        expected: Expected::Malformed,
    }
}

/// Sends a request, and returns the status of its answer.
fn send(port: u16, bytes: &[u8], is_cut_off: bool) -> Option<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).unwrap();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(bytes);
    // Of a request that is complete the server would drop the answer.
    if is_cut_off {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    line.strip_prefix("HTTP/1.1 ")?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

/// Returns the memory of this process in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

/// Returns the number of the last write at the API server, to objects of any kind.
async fn last_write(cluster: &LocalCluster) -> String {
    let pods: Api<Pod> = Api::all(cluster.client());
    let list = pods.list(&ListParams::default()).await.unwrap();
    list.metadata.resource_version.unwrap()
}

/// Conformance: DASH-10
#[tokio::test(start_paused = true)]
async fn random_requests_are_refused_with_flat_memory_and_without_a_write() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut settings = LocalClusterSettings::default();
    settings.options.decisions_port = port;
    let cluster = LocalCluster::start(settings).await.unwrap();
    let to = PostParams::default();
    let classes: Api<KWOKNodeClass> = Api::all(cluster.client());
    classes
        .create(&to, &KWOKNodeClass::new("default", Default::default()))
        .await
        .unwrap();
    let pools: Api<NodePool> = Api::all(cluster.client());
    pools
        .create(&to, &node_pool("default").build())
        .await
        .unwrap();
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), "default");
    deployments
        .create(&to, &deployment("app").replicas(3).cpu("1").build())
        .await
        .unwrap();
    cluster.clock.sleep(Duration::from_secs(400)).await;

    // No time passes from here on, so that nothing else is written.
    let before = last_write(&cluster).await;
    let mut chance = StdRng::seed_from_u64(24);
    let mut at_first = 0;
    let mut answered = 0;
    for number in 0..REQUESTS {
        if number == FIRST {
            at_first = resident();
        }
        let request = match chance.random_ratio(1, 5) {
            true => malformed(&mut chance),
            false => well_formed(&mut chance),
        };
        let expected = request.expected;
        let asking = tokio::task::spawn_blocking(move || {
            let is_cut_off = matches!(expected, Expected::Malformed);
            let status = send(port, &request.bytes, is_cut_off);
            (status, request.bytes)
        });
        let (status, bytes) = asking.await.unwrap();
        answered += usize::from(status == Some(200));
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(500)]);
        assert!(
            expected.allows(status),
            "{number}: {status:?} is not {expected:?}: {shown}"
        );
    }
    assert_eq!(last_write(&cluster).await, before);
    assert!(answered > 500, "{answered}");
    let grown = resident().saturating_sub(at_first);
    assert!(grown < GROWTH, "memory grew by {grown} KiB");
    eprintln!("{answered} of {REQUESTS} answered, memory grew by {grown} KiB from {at_first}");
    cluster.shutdown().await;
}
