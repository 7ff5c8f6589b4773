//! The webhook over TLS: an API server that reaches it through a Service, trusts the CA bundle of the definitions, and stores v1.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karpenter_kube::context::Context;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_legacy::crd;
use karpenter_legacy::crd::Service;
use karpenter_legacy::options::LegacyOptions;
use karpenter_legacy::serving::Place;
use karpenter_legacy::serving::material::Material;
use karpenter_testbed::Testbed;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cloud::Cloud;

const DEFINITIONS: [&str; 3] = [
    "nodepools.karpenter.sh",
    "nodeclaims.karpenter.sh",
    "ec2nodeclasses.karpenter.k8s.aws",
];

struct Cluster {
    client: Client,
    place: Place,
    cx: Arc<Context>,
    testbed: Testbed,
    _stop: DropGuard,
}

impl Cluster {
    /// Creates a cluster whose definitions use the webhook, and whose Service routes to this process.
    async fn new(definitions: Vec<Value>, held: Option<&Material>, more: LegacyOptions) -> Self {
        let port = {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap().port()
        };
        let place = Place::new("", port);
        let testbed = Testbed::builder().start().await;
        let own = karpenter_api::crd::all(&[], &[])
            .into_iter()
            .map(|(_, definition)| definition);
        let all = own.chain([karpenter_aws::api::crd()]).chain(definitions);
        testbed.apply_crds(all).await.unwrap();
        let client = testbed.admin_client();

        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), &place.namespace);
        let slice = json!({
            "metadata": { "name": "karpenter-1", "labels": { "kubernetes.io/service-name": place.service } },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": ["127.0.0.1"], "conditions": { "ready": true } }],
            "ports": [{ "name": "https-webhook", "port": port }],
        });
        let slice = serde_json::from_value(slice).unwrap();
        slices.create(&PostParams::default(), &slice).await.unwrap();
        // The chart creates it empty.
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &place.namespace);
        let mut secret = Secret::default();
        secret.metadata.name = Some(place.secret());
        secret.data = held.map(Material::to_secret);
        secrets
            .create(&PostParams::default(), &secret)
            .await
            .unwrap();

        let legacy = LegacyOptions {
            webhook_port: port,
            disable_legacy_resources: true,
            ..more
        };
        let provider = Arc::new(Cloud::new(testbed.client()));
        let operator = Operator::builder(provider, testbed.client(), Options::for_tests())
            .with(move |controllers| legacy.add(controllers))
            .build();
        let cx = Arc::clone(operator.context());
        let stop = CancellationToken::new();
        tokio::spawn(operator.run(stop.clone()));
        Self {
            client,
            place,
            cx,
            testbed,
            _stop: stop.drop_guard(),
        }
    }

    /// Creates a cluster whose definitions serve v1beta1 with a service of another name and namespace.
    async fn asking(held: Option<&Material>) -> Self {
        Self::new(asking(), held, LegacyOptions::default()).await
    }

    fn api(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap();
        let kind = GroupVersionKind::gvk(group, version, kind);
        Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind))
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.place.namespace)
    }

    async fn material(&self) -> Option<Material> {
        let secret = self.secrets().get(&self.place.secret()).await.unwrap();
        Material::from_secret(&secret.data?)
    }

    /// Returns the CA bundle of each definition.
    async fn trusted(&self) -> Vec<String> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let mut trusted = Vec::new();
        for name in DEFINITIONS {
            let definition = api.get(name).await.unwrap();
            let bundle = (|| {
                let client = definition.spec.conversion?.webhook?.client_config?;
                String::from_utf8(client.ca_bundle?.0).ok()
            })();
            trusted.push(bundle.unwrap_or_default());
        }
        trusted
    }

    async fn until<T>(&self, what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(found) = found().await {
                return found;
            }
            assert!(Instant::now() < deadline, "timed out waiting until {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the definitions trust the served certificate.
    async fn synced(&self) -> Material {
        self.until("the definitions trust the certificate", async || {
            let material = self.material().await?;
            let trusted = self.trusted().await;
            let same = trusted.iter().all(|bundle| *bundle == material.authorities);
            same.then_some(material)
        })
        .await
    }

    /// Waits until the API server serves v1beta1.
    async fn reads_v1beta1(&self) -> DynamicObject {
        self.until("v1beta1 is served", async || {
            let api = self.api("karpenter.sh/v1beta1", "NodePool");
            api.get("default").await.ok()
        })
        .await
    }
}

fn asking() -> Vec<Value> {
    let webhook = Service {
        namespace: "elsewhere".to_owned(),
        name: "other".to_owned(),
        port: 443,
    };
    let domains = [karpenter_aws::api::restricted_domain()];
    vec![
        crd::node_pool(&domains, &webhook),
        crd::node_claim(&domains, &webhook),
        crd::ec2_node_class(&webhook),
    ]
}

async fn create_pool(cluster: &Cluster) {
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
        "spec": { "template": { "spec": {
            "requirements": [], "expireAfter": "24h",
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
        } } },
    });
    let pool = serde_json::from_value(pool).unwrap();
    let api = cluster.api("karpenter.sh/v1", "NodePool");
    api.create(&PostParams::default(), &pool).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_are_pointed_at_the_webhook_and_v1beta1_is_served() {
    let cluster = Cluster::asking(None).await;
    let material = cluster.synced().await;
    assert!(material.is_good(&cluster.place.host(), Timestamp::now()));
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let definition = definitions.get(DEFINITIONS[0]).await.unwrap();
    let conversion = definition.spec.conversion.unwrap();
    let service = conversion
        .webhook
        .unwrap()
        .client_config
        .unwrap()
        .service
        .unwrap();
    assert_eq!(
        (
            service.name.as_str(),
            service.namespace.as_str(),
            service.port
        ),
        ("karpenter", "default", Some(i32::from(cluster.place.port))),
        "whatever service they used before"
    );
    create_pool(&cluster).await;
    let read = cluster.reads_v1beta1().await;
    assert_eq!(read.data["spec"]["disruption"]["expireAfter"], "24h");

    // A NodeClaim of v1beta1 gets its expiry from the pool, which the listener of every replica watches.
    let claim = json!({
        "apiVersion": "karpenter.sh/v1beta1", "kind": "NodeClaim",
        "metadata": { "name": "default", "labels": { "karpenter.sh/nodepool": "default" } },
        "spec": { "requirements": [], "nodeClassRef": { "name": "default" } },
    });
    let claim: DynamicObject = serde_json::from_value(claim).unwrap();
    let api = cluster.api("karpenter.sh/v1beta1", "NodeClaim");
    cluster
        .until("the pool is listed", async || {
            api.create(&PostParams::default(), &claim).await.ok()
        })
        .await;
    let stored = cluster.api("karpenter.sh/v1", "NodeClaim");
    let stored = stored.get("default").await.unwrap();
    assert_eq!(stored.data["spec"]["expireAfter"], "24h");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_expires_soon_is_replaced_and_its_authority_stays() {
    let place = Place::new("", 1);
    let ten_months_ago = Timestamp::now() - SignedDuration::from_hours(24 * 300);
    let old = Material::new(&[place.host()], ten_months_ago, None).unwrap();
    assert!(old.is_good(&place.host(), Timestamp::now()));
    let cluster = Cluster::asking(Some(&old)).await;
    let new = cluster
        .until("another certificate", async || {
            cluster.material().await.filter(|held| *held != old)
        })
        .await;
    assert!(new.authorities.ends_with(&old.authorities));
    let later = Timestamp::now() + SignedDuration::from_hours(24 * 300);
    assert!(new.is_good(&place.host(), later));
    assert_eq!(cluster.synced().await, new);
    create_pool(&cluster).await;
    cluster.reads_v1beta1().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_other_clients_to_the_certificate_are_repaired() {
    let cluster = Cluster::asking(None).await;
    let first = cluster.synced().await;
    create_pool(&cluster).await;
    cluster.reads_v1beta1().await;

    // Another valid certificate is used as it is.
    let other = Material::new(&[cluster.place.host()], Timestamp::now(), None).unwrap();
    let put = async |data: Value| {
        let patch = Patch::Merge(json!({ "data": data }));
        let name = cluster.place.secret();
        let secrets = cluster.secrets();
        secrets
            .patch(&name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    put(json!(other.to_secret())).await;
    assert_eq!(cluster.synced().await, other);
    assert_ne!(first, other);
    cluster.reads_v1beta1().await;

    // One without a key is replaced.
    put(json!({ "server-key.pem": null })).await;
    let third = cluster
        .until("a whole certificate", async || cluster.material().await)
        .await;
    assert_ne!(third, other);
    cluster.synced().await;

    // A bundle that another client overwrote is restored.
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let wrong = STANDARD.encode(&first.authorities);
    let patch = json!({ "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": wrong } } } } });
    api.patch(
        DEFINITIONS[0],
        &PatchParams::default(),
        &Patch::Merge(patch),
    )
    .await
    .unwrap();
    cluster.synced().await;
    cluster.reads_v1beta1().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_definitions_no_certificate_is_created_and_no_port_opened() {
    let disabled = LegacyOptions {
        disable_webhook: true,
        ..LegacyOptions::default()
    };
    let without = Cluster::new(vec![], None, LegacyOptions::default()).await;
    let without_webhook = Cluster::new(asking(), None, disabled).await;
    for cluster in [&without, &without_webhook] {
        cluster
            .until("everything runs", async || {
                cluster.cx.view().is_synced().then_some(())
            })
            .await;
        assert_eq!(cluster.material().await, None);
        let port = cluster.place.port;
        let refused = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        assert!(refused.is_err());
    }
    // The webhook needs no setting.
    without.testbed.apply_crds(asking()).await.unwrap();
    without.synced().await;
}

/// Returns a connection over TLS that has agreed on HTTP/2 and says nothing.
async fn silent(port: u16, material: &Material) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(material.authorities.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from("karpenter").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v1beta1_is_served_beside_more_silent_connections_than_allowed() {
    let cluster = Cluster::asking(None).await;
    let material = cluster.synced().await;
    create_pool(&cluster).await;
    cluster.reads_v1beta1().await;
    let mut held = Vec::new();
    for _ in 0..200 {
        let connecting = silent(cluster.place.port, &material);
        let connected = tokio::time::timeout(Duration::from_secs(10), connecting).await;
        held.push(connected.unwrap());
    }
    cluster.reads_v1beta1().await;
    drop(held);
}
