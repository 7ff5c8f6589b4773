//! The way through the API server's service proxy, to a TLS server on loopback.

use std::sync::{Arc, Mutex};

use kubectl_karpenter::flags::KubectlFlags;
use kubectl_karpenter::transport::{Server, ServerFlags, Unreachable, Viewer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::fixture::Cluster;

/// A TLS server that gives every request the same answer, and keeps the heads of requests.
struct Decisions {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Decisions {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Decisions {
    async fn answering(code: &str, body: &Value) -> Self {
        let made = rcgen::generate_simple_self_signed(["karpenter".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, body) = (Arc::clone(&heads), body.to_string());
        let answer = format!(
            "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                seen.lock().unwrap().push(String::from_utf8(head).unwrap());
                stream.write_all(answer.as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
            }
        });
        Self { port, heads, task }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// Creates Karpenter's Service, with an endpoint on loopback if there is a port, and the ServiceAccount of viewers.
fn install(cluster: &Cluster, port: Option<u16>) {
    let namespace = "karpenter";
    let mut objects = vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "karpenter", "namespace": namespace },
            "spec": { "ports": [{ "name": "http-metrics", "port": 8080 }, { "name": "https-decisions", "port": 8444 }] },
        }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "karpenter-viewer", "namespace": namespace } }),
    ];
    objects.extend(port.map(|port| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "karpenter-1", "namespace": namespace, "labels": { "kubernetes.io/service-name": "karpenter" } },
            "ports": [{ "name": "https-decisions", "port": port }],
            "endpoints": [{ "addresses": ["127.0.0.1"], "conditions": { "ready": true } }],
        })
    }));
    cluster.testbed.load(objects);
}

fn flags(cluster: &Cluster) -> KubectlFlags {
    KubectlFlags {
        kubeconfig: Some(cluster.kubeconfig()),
        ..KubectlFlags::default()
    }
}

/// No port is forwarded: the program is missing.
fn without_kubectl() -> ServerFlags {
    ServerFlags {
        kubectl: "/nonexistent/kubectl".into(),
        ..ServerFlags::default()
    }
}

async fn failures(kubectl: &KubectlFlags, flags: &ServerFlags) -> Vec<String> {
    let error = Server::connect(kubectl, flags).await.err().unwrap();
    let ways: Unreachable = error.downcast().unwrap();
    ways.lines().map(str::to_owned).collect()
}

/// Conformance: DASH-09
#[tokio::test(flavor = "multi_thread")]
async fn a_question_goes_through_the_service_proxy_with_a_fresh_token() {
    let cluster = Cluster::start(&[]).await;
    let decisions = Decisions::answering("200 OK", &json!({ "kind": "Overview" })).await;
    install(&cluster, Some(decisions.port));
    let connected = Server::connect(&flags(&cluster), &without_kubectl()).await;
    let mut server = connected.unwrap();
    let answer: Value = server.get("/overview").await.unwrap();
    assert_eq!(answer["kind"], "Overview");
    assert!(
        server.url().to_string().ends_with(
            "/api/v1/namespaces/karpenter/services/https:karpenter:https-decisions/proxy"
        ),
        "{}",
        server.url()
    );
    let heads = decisions.heads();
    let lines: Vec<&str> = heads
        .iter()
        .map(|head| head.lines().next().unwrap())
        .collect();
    assert_eq!(
        lines,
        [
            "GET /apis/decisions.karpenter.sh/v1alpha1 HTTP/1.1",
            "GET /apis/decisions.karpenter.sh/v1alpha1/overview HTTP/1.1",
        ]
    );
    for head in &heads {
        let head = head.to_lowercase();
        assert!(head.contains("x-karpenter-token: "), "{head}");
        assert!(!head.contains("authorization"), "{head}");
    }
    // The page goes the same way.
    let request = http::Request::get("/").body(kube::client::Body::empty());
    let sent = server.sender().send(request.unwrap()).await.unwrap();
    assert_eq!(sent.status(), 200);
    let head = decisions.heads().pop().unwrap().to_lowercase();
    assert!(
        head.starts_with("get / http/1.1") && head.contains("x-karpenter-token: "),
        "{head}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_obstacle_of_the_service_proxy_is_a_line_with_its_remedy() {
    let cluster = Cluster::start(&[]).await;
    install(&cluster, None);
    let ways = failures(&flags(&cluster), &without_kubectl()).await;
    assert_eq!(
        ways[0],
        "Service https:karpenter:https-decisions in namespace karpenter answers 503 Service Unavailable: no endpoints available for service \"https:karpenter:https-decisions\"; check `kubectl get pods,endpointslices -n karpenter`"
    );
    assert_eq!(ways.len(), 2, "{ways:?}");

    let mut missing = without_kubectl();
    missing.viewer = Viewer {
        namespace: None,
        name: "team".to_owned(),
    };
    let ways = failures(&flags(&cluster), &missing).await;
    assert_eq!(
        ways[0],
        "cannot create serviceaccounts/token \"team\" in namespace \"karpenter\": not found; set decisions.viewers.create in the chart, or pass --viewer [NAMESPACE/]NAME"
    );

    let refusing = json!({ "kind": "Status", "status": "Failure", "code": 401, "reason": "Unauthorized", "message": "Unauthorized" });
    let decisions = Decisions::answering("401 Unauthorized", &refusing).await;
    install(&cluster, Some(decisions.port));
    let ways = failures(&flags(&cluster), &without_kubectl()).await;
    assert!(
        ways[0].ends_with("does not accept the token of ServiceAccount karpenter/karpenter-viewer: check its log for failed TokenReviews"),
        "{ways:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_missing_right_to_each_step_is_named() {
    let decisions = Decisions::answering("200 OK", &json!({ "kind": "Overview" })).await;
    let connect = async |rules: &[Value]| {
        let cluster = Cluster::start(&[]).await;
        install(&cluster, Some(decisions.port));
        let kubectl = KubectlFlags {
            kubeconfig: Some(cluster.kubeconfig_with_rules(json!(rules))),
            ..KubectlFlags::default()
        };
        let server = ServerFlags {
            karpenter_namespace: Some("karpenter".to_owned()),
            ..without_kubectl()
        };
        let connected = Server::connect(&kubectl, &server).await;
        connected.map(drop).map_err(|error| {
            let ways: Unreachable = error.downcast().unwrap();
            ways.lines().next().unwrap().to_owned()
        })
    };
    let mut rules = Vec::new();
    for (resource, verb) in [
        ("services", "list"),
        ("serviceaccounts/token", "create"),
        ("services/proxy", "get"),
    ] {
        let way = connect(&rules).await.unwrap_err();
        let expected = format!(
            "with the rule {{apiGroups: [\"\"], resources: [\"{resource}\"], verbs: [\"{verb}\"]}}"
        );
        assert!(way.ends_with(&expected), "{way}");
        rules.push(json!({ "apiGroups": [""], "resources": [resource], "verbs": [verb] }));
    }
    assert_eq!(connect(&rules).await, Ok(()));
}
