//! Decisions over TLS: who may see what, and how a replica that does not lead answers.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ServiceAccount;
use karpenter_kube::lease::{ADDRESS, CERTIFICATE};
use karpenter_kube::options::Options;
use karpenter_kwok::KwokNodeClass;
use karpenter_lab::local_cluster::{LocalCluster, Replica};
use kube::Api;
use kube::api::PostParams;
use kube::client::Body;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::decisions::{blocking, free_port, request, serving};
use crate::world::{World, pool};

pub(crate) const AUDIENCE: &str = "decisions.karpenter.sh";
pub(crate) const PREFIX: &str = "/apis/decisions.karpenter.sh/v1alpha1";
const RBAC: &str = "rbac.authorization.k8s.io";

/// A certificate in a folder, and a client that trusts it alone.
pub(crate) struct Trust {
    folder: TempDir,
    pub(crate) client: Arc<ClientConfig>,
}

impl Trust {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["karpenter".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: String| std::fs::write(folder.path().join(name), text);
        put("tls.crt", made.cert.pem()).unwrap();
        put("tls.key", made.signing_key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            folder,
            client: Arc::new(client),
        }
    }

    /// Sets the options of a replica that serves on a port.
    pub(crate) fn serve(&self, options: &mut Options, port: u16) {
        options.decisions_tls_port = port;
        options.decisions_cert_dir = Some(self.folder.path().to_owned());
        options.pod_ip = Some([127, 0, 0, 1].into());
    }

    /// Sends a request, and returns the code, the head and the body of the response.
    pub(crate) async fn send(&self, port: u16, method: &str, path: &str, headers: &str) -> Answer {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: karpenter\r\nConnection: close\r\n{headers}\r\n"
        );
        let config = Arc::clone(&self.client);
        blocking(move || {
            let name = "karpenter".try_into().unwrap();
            let connection = ClientConnection::new(config, name).unwrap();
            let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            stream.write_all(head.as_bytes()).unwrap();
            let mut bytes = Vec::new();
            // A server may close without a farewell.
            let _ = stream.read_to_end(&mut bytes);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            Answer {
                code: head.split(' ').nth(1).unwrap().parse().unwrap(),
                head: head.to_ascii_lowercase(),
                body: body.to_owned(),
            }
        })
        .await
    }

    pub(crate) async fn get(&self, port: u16, token: &str, path: &str) -> Answer {
        let header = format!("Authorization: Bearer {token}\r\n");
        self.send(port, "GET", &format!("{PREFIX}/{path}"), &header)
            .await
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub(crate) fn message(&self) -> String {
        self.json()["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

/// A cluster that serves over TLS.
pub(crate) async fn world(trust: &Trust, port: u16) -> World {
    let world = World::bare(serving(free_port(), |options| trust.serve(options, port))).await;
    world.create(&KwokNodeClass::new("default")).await;
    world.create(&pool("default", json!({}))).await;
    world
}

/// Creates a service account with rules in all namespaces, or in one.
pub(crate) fn account(world: &World, name: &str, namespace: Option<&str>, rules: &Value) {
    let meta = json!({ "name": name });
    let kind = match namespace {
        Some(_) => "RoleBinding",
        None => "ClusterRoleBinding",
    };
    let mut bound = meta.clone();
    bound["name"] = format!("{name}-{}", namespace.unwrap_or("all")).into();
    if let Some(namespace) = namespace {
        bound["namespace"] = namespace.into();
    }
    let role = bound["name"].clone();
    world.cluster.testbed.load([
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": "default" } }),
        json!({ "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": { "name": role }, "rules": rules }),
        json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": bound,
            "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": "default" }],
        }),
    ]);
}

pub(crate) fn rules(resources: &[&str]) -> Value {
    json!([{ "apiGroups": [AUDIENCE], "resources": resources, "verbs": ["get", "list", "watch"] }])
}

pub(crate) async fn token(world: &World, name: &str, audience: Option<&str>) -> String {
    let api: Api<ServiceAccount> = Api::namespaced(world.client.clone(), "default");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: audience.map(|audience| vec![audience.to_owned()]),
            expiration_seconds: Some(600),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let how = PostParams::default();
    let made = api.create_token_request(name, &how, &request);
    made.await.unwrap().status.unwrap().token.unwrap()
}

/// Creates a Deployment in a namespace, and a PodDisruptionBudget that allows no eviction.
pub(crate) fn guarded(world: &World, namespace: &str, name: &str, replicas: u32, affinity: &Value) {
    world.cluster.testbed.load([
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": namespace },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": {
                        "affinity": affinity,
                        "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "1" } } }],
                    },
                },
            },
        }),
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": format!("{name}-guard"), "namespace": namespace },
            "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": name } } },
        }),
    ]);
}

pub(crate) async fn first_pod(world: &World, namespace: &str) -> String {
    let pods = world.pods().await.into_iter();
    let mut names = pods
        .filter(|pod| pod.metadata.namespace.as_deref() == Some(namespace))
        .filter_map(|pod| pod.metadata.name);
    names.next().unwrap()
}

/// Conformance: DASH-09
#[tokio::test(start_paused = true)]
async fn a_client_needs_a_token_for_karpenter_and_the_right_to_what_it_asks() {
    let (trust, port) = (Trust::new(), free_port());
    let world = world(&trust, port).await;
    world.pass(5).await;
    account(&world, "viewer", None, &rules(&["*"]));
    account(&world, "records", None, &rules(&["decisions"]));
    let viewer = token(&world, "viewer", Some(AUDIENCE)).await;
    let records = token(&world, "records", Some(AUDIENCE)).await;
    let overview = format!("{PREFIX}/overview");

    let strangers = trust.send(port, "GET", &overview, "").await;
    assert_eq!(strangers.code, 401);
    assert!(
        strangers.head.contains("www-authenticate: bearer"),
        "{strangers:?}"
    );
    assert_eq!(strangers.json()["reason"], "Unauthorized");
    assert_eq!(trust.send(port, "GET", "/", "").await.code, 401);
    assert_eq!(trust.get(port, "guessed", "overview").await.code, 401);
    let foreign = token(&world, "viewer", None).await;
    assert_eq!(trust.get(port, &foreign, "overview").await.code, 401);
    let foreign = token(&world, "viewer", Some("vault")).await;
    assert_eq!(trust.get(port, &foreign, "overview").await.code, 401);

    let refused = trust.get(port, &records, "overview").await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message(),
        "overviews.decisions.karpenter.sh is forbidden: User \"system:serviceaccount:default:records\" cannot get resource \"overviews\" in API group \"decisions.karpenter.sh\" at the cluster scope"
    );
    assert_eq!(trust.get(port, &records, "decisions").await.code, 200);

    let seen = trust.get(port, &viewer, "overview").await;
    assert_eq!(seen.code, 200);
    assert_eq!(seen.json()["kind"], "Overview");
    let header = format!("X-Karpenter-Token: {viewer}\r\n");
    assert_eq!(trust.send(port, "GET", &overview, &header).await.code, 200);
    let page = trust.send(port, "GET", "/", &header).await;
    assert!(
        page.code == 200 && page.head.contains("text/html"),
        "{page:?}"
    );
    assert_eq!(trust.get(port, &viewer, "secrets").await.code, 404);
    let deleted = trust.send(port, "DELETE", &overview, &header).await;
    assert_eq!(deleted.code, 405);

    // What was reviewed is believed for ten seconds, and no longer than the token is valid.
    world.pass(615).await;
    assert_eq!(trust.get(port, &viewer, "overview").await.code, 401);
    world.cluster.shutdown().await;
}

/// Conformance: DASH-09
#[tokio::test(start_paused = true)]
async fn the_service_proxy_removes_one_token_and_passes_the_other() {
    let (trust, port) = (Trust::new(), free_port());
    let world = world(&trust, port).await;
    world.pass(5).await;
    account(&world, "viewer", None, &rules(&["*"]));
    let viewer = token(&world, "viewer", Some(AUDIENCE)).await;
    world.cluster.testbed.load([
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "karpenter", "namespace": "default" },
            "spec": { "ports": [{ "name": "https-decisions", "port": 8444 }] },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": "karpenter-1", "namespace": "default", "labels": { "kubernetes.io/service-name": "karpenter" },
            },
            "ports": [{ "name": "https-decisions", "port": port }],
            "endpoints": [{ "addresses": ["127.0.0.1"], "conditions": { "ready": true } }],
        }),
    ]);
    let ask = async |service: &str, header: &str, path: &str| {
        let uri = format!("/api/v1/namespaces/default/services/{service}/proxy{PREFIX}/{path}");
        let request = Request::get(uri).header(header, viewer.as_str());
        let request = request.body(Body::empty()).unwrap();
        let response = world.client.send(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        (head.status.as_u16(), body)
    };
    let service = "https:karpenter:https-decisions";
    let (code, seen) = ask(service, "X-Karpenter-Token", "overview").await;
    assert_eq!((code, &seen["kind"]), (200, &json!("Overview")));
    let (code, _) = ask(service, "Authorization", "overview").await;
    assert_eq!(code, 401, "the API server has removed the header");
    let (code, list) = ask(service, "X-Karpenter-Token", "decisions?limit=1").await;
    assert_eq!((code, &list["kind"]), (200, &json!("DecisionRecordList")));
    let (code, refused) = ask(
        "https:other:https-decisions",
        "X-Karpenter-Token",
        "overview",
    )
    .await;
    assert_eq!((code, &refused["reason"]), (404, &json!("NotFound")));
    world.cluster.shutdown().await;
}

/// Conformance: EXP-14
#[tokio::test(start_paused = true)]
async fn a_team_sees_its_own_pods_and_no_names_of_others() {
    let (trust, port) = (Trust::new(), free_port());
    let world = world(&trust, port).await;
    guarded(&world, "shop", "web", 1, &Value::Null);
    let beside = json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
        "labelSelector": { "matchLabels": { "app": "web" } }, "namespaces": ["shop"], "topologyKey": "kubernetes.io/hostname",
    }] } });
    guarded(&world, "pay", "ledger", 2, &beside);
    world.until_running(3, 120).await;
    world.pass(400).await;
    let nodes = world.nodes().await;
    let node = nodes[0].metadata.name.clone().unwrap();
    assert_eq!(nodes.len(), 1, "both workloads share the node");
    account(&world, "team", Some("shop"), &rules(&["pods/explanation"]));
    account(&world, "nodes", None, &rules(&["nodes/explanation"]));
    account(&world, "nodes", Some("shop"), &rules(&["pods/explanation"]));
    account(&world, "admin", None, &rules(&["*"]));
    let team = token(&world, "team", Some(AUDIENCE)).await;
    let operator = token(&world, "nodes", Some(AUDIENCE)).await;
    let admin = token(&world, "admin", Some(AUDIENCE)).await;
    let (own, other) = (
        first_pod(&world, "shop").await,
        first_pod(&world, "pay").await,
    );
    let own = format!("namespaces/shop/pods/{own}/explanation");
    let other = format!("namespaces/pay/pods/{other}/explanation");
    let of_node = format!("nodes/{node}/explanation");

    assert_eq!(trust.get(port, &team, &own).await.code, 200);
    let refused = trust.get(port, &team, &other).await;
    assert_eq!(refused.code, 403);
    assert!(
        refused.message().ends_with("cannot get resource \"pods/explanation\" in API group \"decisions.karpenter.sh\" in the namespace \"pay\""),
        "{refused:?}"
    );
    for path in [
        of_node.as_str(),
        "decisions",
        "overview",
        "explanations?of=pods",
        "blockers",
    ] {
        assert_eq!(trust.get(port, &team, path).await.code, 403, "{path}");
    }
    // No pod of that name: whether one exists is not told.
    let missing = "namespaces/pay/pods/none/explanation";
    assert_eq!(trust.get(port, &team, missing).await.code, 403);

    let all = trust.get(port, &admin, &of_node).await;
    assert!(
        all.body.contains("pay/ledger") && all.body.contains("shop/web"),
        "{all:?}"
    );
    let some = trust.get(port, &operator, &of_node).await;
    assert_eq!(some.code, 200);
    assert!(some.body.contains("shop/web-guard"), "{some:?}");
    assert!(some.body.contains("(other namespace)"), "{some:?}");
    assert!(!some.body.contains("ledger"), "{some:?}");
    let amount = |answer: &Answer, field: &str| answer.json()[field].clone();
    for field in ["pricePerHour", "wastePerHour", "usage", "kind"] {
        assert_eq!(amount(&some, field), amount(&all, field), "{field}");
    }
    // A stream would name pods of all namespaces.
    account(&world, "stream", None, &rules(&["decisions"]));
    let stream = token(&world, "stream", Some(AUDIENCE)).await;
    let refused = trust.get(port, &stream, "decisions?watch=true").await;
    assert_eq!(refused.code, 403);

    // Names as long as they can be, and ones that no object has.
    let longest = format!("{}-{}", "a".repeat(200), "b".repeat(52));
    world.cluster.testbed.load([json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": longest, "namespace": "shop" },
        "spec": {
            "schedulerName": "default-scheduler",
            "nodeSelector": { "example.com/zone": "nowhere" },
            "containers": [{ "name": "c", "image": "i" }],
        },
    })]);
    world.pass(30).await;
    let path = format!("namespaces/shop/pods/{longest}/explanation");
    let told = trust.get(port, &team, &path).await;
    assert_eq!(
        (told.code, &told.json()["metadata"]["name"]),
        (200, &json!(longest))
    );
    for hostile in [
        "%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "%1b%5b31mred",
        &"c".repeat(254),
    ] {
        let path = format!("namespaces/shop/pods/{hostile}/explanation");
        let answer = trust.get(port, &team, &path).await;
        assert_eq!(answer.code, 404, "{hostile}");
        assert!(
            !answer.body.contains("script") && !answer.body.contains('\u{1b}'),
            "{answer:?}"
        );
    }
    world.cluster.shutdown().await;
}

/// Starts a replica that serves over TLS on one port, and on the loopback addresses on another.
fn replica(world: &World, trust: &Trust, name: &str, tls: u16, plain: u16) -> Replica {
    let client = world.cluster.testbed.client();
    world.cluster.replica_with(client, name, |options| {
        options.decisions_port = plain;
        trust.serve(options, tls);
    })
}

/// A cluster with leader election and without controllers.
async fn without_controllers() -> World {
    let settings = serving(0, |options| {
        options.disable_leader_election = false;
        options.leader_election_namespace = "default".into();
    });
    let cluster = LocalCluster::without_controllers(settings).await.unwrap();
    let client = cluster.client();
    World { cluster, client }
}

async fn annotations(world: &World) -> BTreeMap<String, String> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "default");
    let lease = leases.get("karpenter-leader-election").await.unwrap();
    lease.metadata.annotations.unwrap_or_default()
}

/// Conformance: DASH-16
#[tokio::test(start_paused = true)]
async fn a_follower_passes_a_request_on_to_the_leader_once() {
    let (trust, first, second) = (Trust::new(), free_port(), free_port());
    let (plain, other) = (free_port(), free_port());
    let world = without_controllers().await;
    let leader = replica(&world, &trust, "karpenter-a_1", first, plain);
    world.pass(20).await;
    let follower = replica(&world, &trust, "karpenter-b_2", second, other);
    world.pass(20).await;
    account(&world, "viewer", None, &rules(&["*"]));
    let viewer = token(&world, "viewer", Some(AUDIENCE)).await;
    let announced = annotations(&world).await;
    assert_eq!(announced[ADDRESS], format!("127.0.0.1:{first}"));
    assert_eq!(announced[CERTIFICATE].len(), 64);

    for port in [first, second] {
        let seen = trust.get(port, &viewer, "overview").await;
        assert_eq!((seen.code, &seen.json()["kind"]), (200, &json!("Overview")));
        assert_eq!(trust.get(port, "guessed", "overview").await.code, 401);
    }
    let names_leader = |answer: &Value| {
        let details = json!({ "kind": "Pod", "name": "karpenter-a" });
        assert_eq!(answer["details"], details, "{answer}");
    };
    let passed_on = format!("X-Karpenter-Token: {viewer}\r\nX-Karpenter-Forwarded: 1\r\n");
    let overview = format!("{PREFIX}/overview");
    let again = trust.send(second, "GET", &overview, &passed_on).await;
    assert_eq!(again.code, 503, "it is not passed on twice");
    names_leader(&again.json());
    let plain = request(other, "GET", "overview", "Host: localhost\r\n").await;
    assert_eq!(plain.code, 503);
    names_leader(&plain.json());

    // The next leader announces itself in place of the last one.
    leader.stop().await;
    world.pass(20).await;
    assert_eq!(
        annotations(&world).await[ADDRESS],
        format!("127.0.0.1:{second}")
    );
    assert_eq!(trust.get(second, &viewer, "overview").await.code, 200);
    follower.stop().await;
    assert_eq!(
        annotations(&world).await,
        BTreeMap::new(),
        "no replica leads"
    );
    world.cluster.shutdown().await;
}

/// Conformance: DASH-16
#[tokio::test(start_paused = true)]
async fn followers_pass_no_request_in_circles_and_trust_the_lease_alone() {
    let (trust, first, second) = (Trust::new(), free_port(), free_port());
    let world = without_controllers().await;
    let lease = |address: u16, certificate: &str| {
        let lease = json!({
            "metadata": {
                "name": "karpenter-leader-election", "namespace": "default",
                "annotations": { ADDRESS: format!("127.0.0.1:{address}"), CERTIFICATE: certificate },
            },
            "spec": { "holderIdentity": "karpenter-c_3", "leaseDurationSeconds": 36000 },
        });
        serde_json::from_value::<Lease>(lease).unwrap()
    };
    let certificate = std::fs::read(trust.folder.path().join("tls.crt")).unwrap();
    let fingerprint = fingerprint(&certificate);
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "default");
    let how = PostParams::default();
    leases
        .create(&how, &lease(second, &fingerprint))
        .await
        .unwrap();
    // Neither leads, and the lease names the second as the leader.
    let one = replica(&world, &trust, "karpenter-a_1", first, 0);
    let two = replica(&world, &trust, "karpenter-b_2", second, 0);
    world.pass(20).await;
    for port in [first, second] {
        let answer = trust.get(port, "any", "overview").await;
        assert_eq!(answer.code, 503, "{answer:?}");
        assert!(
            answer.message().contains("ask pod karpenter-c"),
            "{answer:?}"
        );
    }
    let replaced = {
        let mut lease = lease(second, &"0".repeat(64));
        let current = leases.get("karpenter-leader-election").await.unwrap();
        lease.metadata.resource_version = current.metadata.resource_version;
        lease
    };
    leases
        .replace("karpenter-leader-election", &how, &replaced)
        .await
        .unwrap();
    world.pass(20).await;
    let answer = trust.get(first, "any", "overview").await;
    assert_eq!(
        (answer.code, answer.message().as_str()),
        (503, "the leader cannot be reached")
    );
    one.stop().await;
    two.stop().await;
    world.cluster.shutdown().await;
}

/// Returns SHA-256 of a certificate in PEM, as the lease has it.
fn fingerprint(pem: &[u8]) -> String {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    use sha2::Digest as _;
    let der = CertificateDer::from_pem_slice(pem).unwrap();
    let digest = sha2::Sha256::digest(&der);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
