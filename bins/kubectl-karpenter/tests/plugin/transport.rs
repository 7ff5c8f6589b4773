//! The ways to the server of decisions, against a small HTTP server on loopback and a kubectl of the test.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use kubectl_karpenter::flags::KubectlFlags;
use kubectl_karpenter::transport::{Server, ServerFlags, Unreachable};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::fixture::{Cluster, closed_address};

/// A server that gives every question the same answer.
pub struct Decisions {
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
    /// Answers with a code, further headers, and a body.
    pub async fn answering(code: &str, headers: &str, body: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
        );
        let seen = Arc::clone(&heads);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        // A connection that only tests whether the port is open.
                        Err(_) => break,
                    }
                }
                if head.is_empty() {
                    continue;
                }
                seen.lock().unwrap().push(String::from_utf8(head).unwrap());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Self { port, heads, task }
    }

    async fn new() -> Self {
        Self::answering("200 OK", "", r#"{"kind":"DecisionRecordList"}"#).await
    }

    pub async fn refusing(code: &str, headers: &str, status: Value) -> Self {
        Self::answering(code, headers, &status.to_string()).await
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn to(url: &str) -> ServerFlags {
    ServerFlags {
        server: Some(url.parse().unwrap()),
        ..ServerFlags::default()
    }
}

/// Asks for the decisions.
async fn ask(server: &mut Server) -> Result<(), String> {
    let answer: anyhow::Result<Value> = server.get("/decisions?limit=5").await;
    let answer = answer.map_err(|error| format!("{error:#}"))?;
    assert_eq!(answer["kind"], "DecisionRecordList");
    Ok(())
}

fn flags(cluster: &Cluster) -> KubectlFlags {
    KubectlFlags {
        kubeconfig: Some(cluster.kubeconfig()),
        ..KubectlFlags::default()
    }
}

async fn failures(kubectl: &KubectlFlags, flags: &ServerFlags) -> Vec<String> {
    let error = Server::connect(kubectl, flags).await.err().unwrap();
    let ways: Unreachable = error.downcast().unwrap();
    ways.lines().map(str::to_owned).collect()
}

/// Asserts how a line about a way that failed begins and ends.
fn assert_way(way: &str, begin: &str, end: &str) {
    assert!(way.starts_with(begin) && way.ends_with(end), "{way}");
}

/// Creates the lease of Karpenter's leader.
pub fn lease(cluster: &Cluster, namespace: &str, pod: &str) {
    cluster.testbed.load([json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "karpenter-leader-election", "namespace": namespace },
        "spec": {
            "holderIdentity": format!("{pod}_0123"), "leaseDurationSeconds": 15,
            "renewTime": format!("{:.6}", Timestamp::now()),
        },
    })]);
}

/// Adds the extension to the context of the kubeconfig.
fn extend(cluster: &Cluster, server: &str) {
    let text = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let extension = format!(
        "    namespace: default\n    extensions:\n    - name: decisions.karpenter.sh\n      extension: {{server: \"{server}\"}}\n"
    );
    let extended = text.replace("    namespace: default\n", &extension);
    assert_ne!(extended, text);
    std::fs::write(cluster.kubeconfig(), extended).unwrap();
}

/// A kubectl that pretends to forward a port: to `first`, or for the pod karpenter-1 to `second`.
struct FakeKubectl {
    program: PathBuf,
    calls: PathBuf,
}

impl FakeKubectl {
    fn new(cluster: &Cluster, first: u16, second: u16) -> Self {
        Self::with(
            cluster,
            &format!(
                "case \"$*\" in *pod/karpenter-1*) port={second} ;; *) port={first} ;; esac\n\
                 echo \"Forwarding from 127.0.0.1:$port -> 8082\"\nexec tail -f /dev/null\n"
            ),
        )
    }

    fn with(cluster: &Cluster, script: &str) -> Self {
        let (program, calls) = (
            cluster.home.path().join("fake-kubectl"),
            cluster.home.path().join("calls"),
        );
        let text = format!("#!/bin/sh\necho \"$$ $*\" >> {}\n{script}", calls.display());
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { program, calls }
    }

    fn flags(&self) -> ServerFlags {
        ServerFlags {
            kubectl: self.program.clone().into(),
            ..ServerFlags::default()
        }
    }

    /// Returns process ID and arguments of each call.
    fn calls(&self) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(&self.calls).unwrap();
        let split = |line: &str| {
            let (pid, args) = line.split_once(' ').unwrap();
            (pid.to_owned(), args.to_owned())
        };
        text.lines().map(split).collect()
    }
}

fn runs(pid: &str) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_server_is_asked_below_its_group_without_credentials() {
    let decisions = Decisions::new().await;
    let kubectl = KubectlFlags::default();
    let mut server = Server::connect(&kubectl, &to(&decisions.url()))
        .await
        .unwrap();
    ask(&mut server).await.unwrap();
    let plan = json!({ "for": "1h" });
    let _: Value = server.post("/plans", &plan).await.unwrap();
    let heads = decisions.heads();
    const GROUP: &str = "/apis/decisions.karpenter.sh/v1alpha1";
    assert!(heads[0].starts_with(&format!("GET {GROUP}/decisions?limit=5 HTTP/1.1\r\n")));
    assert!(heads[1].starts_with(&format!("POST {GROUP}/plans HTTP/1.1\r\n")));
    let head = heads[1].to_lowercase();
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(!head.contains("authorization"), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_server_that_does_not_answer_is_the_only_way_tried() {
    let url = format!("http://{}/", closed_address());
    let ways = failures(&KubectlFlags::default(), &to(&url)).await;
    assert_eq!(ways.len(), 1);
    assert_way(
        &ways[0],
        &format!("cannot reach the server {url}: "),
        "; check --server and KARPENTER_SERVER",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubeconfig_s_context_may_name_the_server() {
    let (cluster, decisions) = (Cluster::start(&[]).await, Decisions::new().await);
    extend(&cluster, &decisions.url());
    let connected = Server::connect(&flags(&cluster), &ServerFlags::default()).await;
    let mut server = connected.unwrap();
    ask(&mut server).await.unwrap();
    let head = decisions.heads().remove(0).to_lowercase();
    assert!(
        !head.contains("authorization"),
        "the kubeconfig's token is not sent: {head}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_is_forwarded_to_the_leader_as_the_same_user_until_the_end() {
    let (cluster, decisions) = (Cluster::start(&[]).await, Decisions::new().await);
    lease(&cluster, "karpenter", "karpenter-0");
    let fake = FakeKubectl::new(&cluster, decisions.port, 1);
    let kubectl = KubectlFlags {
        context: Some("testbed".to_owned()),
        ..flags(&cluster)
    };
    let mut server = Server::connect(&kubectl, &fake.flags()).await.unwrap();
    ask(&mut server).await.unwrap();
    let (pid, args) = fake.calls().remove(0);
    let expected = format!(
        "--kubeconfig {} --context testbed port-forward --address 127.0.0.1 --namespace karpenter pod/karpenter-0 :8082",
        cluster.kubeconfig().display()
    );
    assert_eq!(args, expected);
    assert!(runs(&pid));
    drop(server);
    assert!(!runs(&pid), "the child process ends with the connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_s_answer_leads_to_the_new_leader() {
    let (cluster, leader) = (Cluster::start(&[]).await, Decisions::new().await);
    lease(&cluster, "kube-system", "karpenter-0");
    let status = json!({
        "kind": "Status", "status": "Failure", "code": 503, "reason": "ServiceUnavailable", "message": "this replica does not lead",
        "details": { "kind": "pods", "name": "karpenter-1" },
    });
    let follower =
        Decisions::refusing("503 Service Unavailable", "Retry-After: 5\r\n", status).await;
    let fake = FakeKubectl::new(&cluster, follower.port, leader.port);
    let mut server = Server::connect(&flags(&cluster), &fake.flags())
        .await
        .unwrap();
    ask(&mut server).await.unwrap();
    let calls = fake.calls();
    assert_eq!(calls.len(), 2);
    assert!(!runs(&calls[0].0), "the old connection has ended");
    assert!(calls[1].1.ends_with("pod/karpenter-1 :8082"));
}

/// Conformance: DASH-15
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_in_which_no_server_answers_is_explained_with_the_gate() {
    let cluster = Cluster::start(&[]).await;
    lease(&cluster, "kube-system", "karpenter-0");
    // kubectl accepts the connection, and ends it because the pod does not.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let closing = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let fake = FakeKubectl::new(&cluster, port, 1);
    let connected = Server::connect(&flags(&cluster), &fake.flags()).await;
    let error = ask(&mut connected.unwrap()).await.unwrap_err();
    assert!(
        error.ends_with("; is Karpenter running, and is its gate DecisionRecords on?"),
        "{error}"
    );
    closing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_one_line_with_what_to_do() {
    let status = |code: u16, message: &str| {
        crate::answers::status(code, "", message, Value::Null).to_string()
    };
    for (code, headers, body, words) in [
        (
            "503 Service Unavailable",
            "Retry-After: 5\r\n",
            status(503, "the model is not in sync"),
            "Karpenter is not ready to answer: the model is not in sync; try again in 5s",
        ),
        (
            "429 Too Many Requests",
            "Retry-After: 2\r\n",
            status(429, "two questions wait"),
            "two questions wait; try again in 2s",
        ),
        (
            "400 Bad Request",
            "",
            status(400, "unknown parameter `sinse`"),
            "unknown parameter `sinse`",
        ),
        (
            "404 Not Found",
            "",
            "404 page not found".to_owned(),
            "answers 404 Not Found, and not as decisions.karpenter.sh/v1alpha1 does: is it Karpenter's server, and of the plugin's version?",
        ),
        (
            "200 OK",
            "",
            "<html>".to_owned(),
            "the plugin and Karpenter should be of one version",
        ),
    ] {
        let decisions = Decisions::answering(code, headers, &body).await;
        let connected = Server::connect(&KubectlFlags::default(), &to(&decisions.url())).await;
        let error = ask(&mut connected.unwrap()).await.unwrap_err();
        assert!(error.ends_with(words), "{code}: {error}");
        assert_eq!(decisions.heads().len(), 1, "it is not asked again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_that_fails_is_a_line_with_its_remedy() {
    let cluster = Cluster::start(&[]).await;
    extend(&cluster, &format!("http://{}", closed_address()));
    let ways = failures(&flags(&cluster), &ServerFlags::default()).await;
    assert_eq!(ways.len(), 2);
    assert_way(&ways[0], "", "; is the playground running?");
    assert_eq!(
        ways[1],
        "no lease \"karpenter-leader-election\" in namespace kube-system or karpenter: is Karpenter installed? If in another namespace, pass --karpenter-namespace"
    );

    lease(&cluster, "autoscaling", "karpenter-0");
    let missing = ServerFlags {
        kubectl: "/nonexistent/kubectl".into(),
        ..ServerFlags::default()
    };
    let ways = failures(&flags(&cluster), &missing).await;
    assert_way(
        &ways[1],
        "cannot run `/nonexistent/kubectl`: ",
        "; install kubectl, or pass --server URL",
    );

    let fake = FakeKubectl::with(
        &cluster,
        "echo 'error: unable to forward port because pod is not running. Current status=Pending' >&2\nexit 1\n",
    );
    let ways = failures(&flags(&cluster), &fake.flags()).await;
    assert_eq!(
        ways[1],
        "`kubectl port-forward` to pod karpenter-0 in namespace autoscaling failed: unable to forward port because pod is not running. Current status=Pending; pass --server URL"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_to_read_the_lease_is_named() {
    let cluster = Cluster::start(&[]).await;
    let kubectl = KubectlFlags {
        kubeconfig: Some(cluster.kubeconfig_with_rules(json!([]))),
        ..KubectlFlags::default()
    };
    let flags = ServerFlags {
        karpenter_namespace: Some("karpenter".to_owned()),
        ..ServerFlags::default()
    };
    assert_eq!(
        failures(&kubectl, &flags).await,
        [
            "cannot get leases.coordination.k8s.io \"karpenter-leader-election\" in namespace \"karpenter\": forbidden; it needs a Role in namespace \"karpenter\" with the rule {apiGroups: [\"coordination.k8s.io\"], resources: [\"leases\"], verbs: [\"get\"]}"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_the_api_server_are_made_as_the_impersonated_user() {
    let (cluster, api_server) = (Cluster::start(&[]).await, Decisions::new().await);
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"{}\"}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n",
        api_server.url()
    );
    std::fs::write(cluster.kubeconfig(), kubeconfig).unwrap();
    let kubectl = KubectlFlags {
        as_user: Some("jane".to_owned()),
        as_groups: vec!["ops".to_owned(), "dev".to_owned()],
        ..flags(&cluster)
    };
    let connected = kubectl.connect().await.unwrap();
    let _ = connected.client.apiserver_version().await;
    let head = api_server.heads().remove(0).to_lowercase();
    for header in [
        "impersonate-user: jane",
        "impersonate-group: ops",
        "impersonate-group: dev",
    ] {
        assert!(head.contains(header), "{head}");
    }
    assert_eq!(connected.user.as_deref(), Some("jane"));
}
