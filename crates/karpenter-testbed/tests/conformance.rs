//! Behavior that kube-rs clients rely on, tested with the embedded server, and with a real kube-apiserver if `KUBEBUILDER_ASSETS`
//! (envtest's convention) names a directory with `etcd` and `kube-apiserver`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_testbed::Testbed;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::watcher;
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use skipped::skipped;
use tokio::process::{Child, Command};

const NS: &str = "conformance";

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

fn map(name: &str) -> ConfigMap {
    from(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}}),
    )
}

fn pod(name: &str, node: Option<&str>) -> Pod {
    let pod = karpenter_fixtures::pod(name)
        .remove("/metadata/namespace")
        .label("app", name)
        .set("/spec/nodeName", node)
        .set("/spec/automountServiceAccountToken", false);
    pod.as_written().build()
}

/// Runs all checks, one after the other: `client` must not retry by itself.
async fn suite(client: Client) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(
            &PostParams::default(),
            &from(json!({"metadata": {"name": NS}})),
        )
        .await
        .unwrap();
    optimistic_concurrency(&client).await;
    apply_and_conflicts(&client).await;
    dry_runs(&client).await;
    deletion(&client).await;
    entries(&client).await;
    finalizers(&client).await;
    controllers(&client).await;
    pages(&client).await;
    pods_and_budgets(&client).await;
    nodes(&client).await;
}

async fn optimistic_concurrency(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NS);
    let first = maps
        .create(&PostParams::default(), &map("lock"))
        .await
        .unwrap();
    let mut second = first.clone();
    second
        .data
        .get_or_insert_default()
        .insert("k".into(), "w".into());
    let second = maps
        .replace("lock", &PostParams::default(), &second)
        .await
        .unwrap();
    let error = maps
        .replace("lock", &PostParams::default(), &first)
        .await
        .unwrap_err();
    assert_eq!(code(&error), 409);
    let same = maps
        .replace("lock", &PostParams::default(), &second)
        .await
        .unwrap();
    assert_eq!(same.resource_version(), second.resource_version());
    let stale =
        json!({"metadata": {"resourceVersion": first.resource_version()}, "data": {"k": "x"}});
    let error = maps
        .patch("lock", &PatchParams::default(), &Patch::Merge(&stale))
        .await
        .unwrap_err();
    assert_eq!(code(&error), 409);
}

async fn apply_and_conflicts(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NS);
    let apply = |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ssa"}, "data": {"a": value}});
    let one = PatchParams::apply("one");
    maps.patch("ssa", &one, &Patch::Apply(apply("1")))
        .await
        .unwrap();
    let error = maps
        .patch("ssa", &PatchParams::apply("two"), &Patch::Apply(apply("2")))
        .await
        .unwrap_err();
    assert_eq!(code(&error), 409);
    let forced = maps
        .patch(
            "ssa",
            &PatchParams::apply("two").force(),
            &Patch::Apply(apply("2")),
        )
        .await
        .unwrap();
    assert_eq!(forced.data.unwrap()["a"], "2");
    let dropped = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ssa"}});
    let left = maps
        .patch("ssa", &PatchParams::apply("two"), &Patch::Apply(dropped))
        .await
        .unwrap();
    assert!(left.data.unwrap_or_default().is_empty());
}

async fn dry_runs(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NS);
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    assert!(
        maps.create(&params, &map("dry"))
            .await
            .unwrap()
            .uid()
            .is_some()
    );
    assert!(maps.get_opt("dry").await.unwrap().is_none());
}

async fn deletion(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NS);
    maps.create(&PostParams::default(), &map("gone"))
        .await
        .unwrap();
    let wrong = Preconditions {
        uid: Some("nope".into()),
        resource_version: None,
    };
    let error = maps
        .delete("gone", &DeleteParams::default().preconditions(wrong))
        .await
        .unwrap_err();
    assert_eq!(code(&error), 409);
    assert!(
        maps.delete("gone", &DeleteParams::default())
            .await
            .unwrap()
            .is_right()
    );
    assert_eq!(
        code(
            &maps
                .delete("gone", &DeleteParams::default())
                .await
                .unwrap_err()
        ),
        404
    );
}

async fn entries(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NS);
    for value in ["1", "2"] {
        maps.entry("entry")
            .await
            .unwrap()
            .and_modify(|m| {
                m.data
                    .get_or_insert_default()
                    .insert("k".into(), value.into());
            })
            .or_insert(|| map("entry"))
            .commit(&PostParams::default())
            .await
            .unwrap();
    }
    assert_eq!(maps.get("entry").await.unwrap().data.unwrap()["k"], "2");
}

#[derive(Debug, thiserror::Error)]
#[error("never")]
struct Never;

async fn finalizers(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NS);
    maps.create(&PostParams::default(), &map("final"))
        .await
        .unwrap();
    let step = async || {
        let current = Arc::new(maps.get("final").await.unwrap());
        let seen = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&seen);
        finalizer(&maps, "x.io/f", current, async move |event| {
            counter.store(
                if matches!(event, Event::Apply(_)) {
                    1
                } else {
                    2
                },
                Ordering::SeqCst,
            );
            Ok::<_, Never>(Action::await_change())
        })
        .await
        .unwrap();
        seen.load(Ordering::SeqCst)
    };
    assert_eq!(step().await, 0, "the finalizer is added first");
    assert_eq!(step().await, 1);
    assert!(
        maps.delete("final", &DeleteParams::default())
            .await
            .unwrap()
            .is_left()
    );
    assert_eq!(step().await, 2);
    assert!(maps.get_opt("final").await.unwrap().is_none());
}

async fn controllers(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NS);
    let configs = [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ];
    for (i, config) in configs.into_iter().enumerate() {
        let config = config.labels("controlled=yes");
        let (send, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let controller = Controller::new(maps.clone(), config).run(
            move |map: Arc<ConfigMap>, _: Arc<()>| {
                let sent = send.send(map.name_any());
                async move { sent.map(|()| Action::await_change()).map_err(|_| Never) }
            },
            |_, _: &Never, _| Action::await_change(),
            Arc::new(()),
        );
        let running = tokio::spawn(controller.for_each(|_| async {}));
        let name = format!("controlled-{i}");
        let mut new = map(&name);
        new.metadata.labels = Some([("controlled".to_owned(), "yes".to_owned())].into());
        maps.create(&PostParams::default(), &new).await.unwrap();
        let found = async {
            while let Some(reconciled) = seen.recv().await {
                if reconciled == name {
                    return true;
                }
            }
            false
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(20), found)
                .await
                .unwrap()
        );
        running.abort();
    }
}

async fn pages(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NS);
    let mut params = ListParams::default().limit(1);
    let (mut names, mut revisions) = (Vec::new(), Vec::new());
    loop {
        let page = maps.list(&params).await.unwrap();
        names.extend(page.items.iter().map(ResourceExt::name_any));
        revisions.push(page.metadata.resource_version);
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => {
                params = ListParams::default().limit(1).continue_token(&token)
            }
            _ => break,
        }
    }
    let all: Vec<_> = maps
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(names, all);
    revisions.dedup();
    assert_eq!(revisions.len(), 1, "all pages are of one snapshot");
}

async fn pods_and_budgets(client: &Client) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NS);
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), NS);
    pods.create(&PostParams::default(), &pod("p", Some("n1")))
        .await
        .unwrap();
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    pods.patch_status("p", &PatchParams::default(), &Patch::Merge(&running))
        .await
        .unwrap();
    let moved = json!({"spec": {"nodeName": "n2"}});
    let error = pods
        .patch("p", &PatchParams::default(), &Patch::Merge(&moved))
        .await
        .unwrap_err();
    assert_eq!(code(&error), 422);
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}}});
    budgets
        .create(&PostParams::default(), &from(budget))
        .await
        .unwrap();
    let evict = async || {
        let body =
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
        pods.create_subresource::<Value, Value>("eviction", "p", &PostParams::default(), &body)
            .await
    };
    assert_eq!(code(&evict().await.unwrap_err()), 429);
    let allow = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 1,
        "desiredHealthy": 0, "expectedPods": 1}});
    budgets
        .patch_status("b", &PatchParams::default(), &Patch::Merge(&allow))
        .await
        .unwrap();
    evict().await.unwrap();
    let status = budgets.get("b").await.unwrap().status.unwrap();
    assert_eq!(status.disruptions_allowed, Some(0));
    assert!(status.disrupted_pods.unwrap().contains_key("p"));
    let going = pods.get("p").await.unwrap();
    assert_eq!(going.metadata.deletion_grace_period_seconds, Some(30));
    pods.delete("p", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert!(pods.get_opt("p").await.unwrap().is_none());
}

async fn nodes(client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({"metadata": {"name": "conformance"}, "spec": {"providerID": "x://1"}});
    let created = nodes
        .create(&PostParams::default(), &from(node))
        .await
        .unwrap();
    assert_eq!(
        created.spec.unwrap().taints.unwrap()[0].key,
        "node.kubernetes.io/not-ready"
    );
    let status =
        json!({"metadata": {"labels": {"via": "status"}}, "status": {"capacity": {"cpu": "1"}}});
    let patched = nodes
        .patch_status(
            "conformance",
            &PatchParams::default(),
            &Patch::Merge(&status),
        )
        .await
        .unwrap();
    assert_eq!(patched.labels()["via"], "status");
    let changed = json!({"spec": {"providerID": "x://2"}});
    let error = nodes
        .patch(
            "conformance",
            &PatchParams::default(),
            &Patch::Merge(&changed),
        )
        .await
        .unwrap_err();
    assert_eq!(code(&error), 422);
    nodes.cordon("conformance").await.unwrap();
    assert_eq!(
        nodes
            .get("conformance")
            .await
            .unwrap()
            .spec
            .unwrap()
            .unschedulable,
        Some(true)
    );
    nodes
        .delete("conformance", &DeleteParams::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn the_embedded_server_conforms() {
    let testbed = Testbed::builder().start().await;
    suite(testbed.client()).await;
}

#[tokio::test]
async fn the_embedded_server_conforms_over_https() {
    let testbed = Testbed::builder().start().await;
    let served = testbed.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&served.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .unwrap();
    config.default_retry = false;
    suite(Client::try_from(config).unwrap()).await;
}

#[tokio::test]
async fn a_real_server_conforms() {
    let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from) else {
        skipped("kube-apiserver", "KUBEBUILDER_ASSETS is not set");
        return;
    };
    if !assets.join("kube-apiserver").exists() || !assets.join("etcd").exists() {
        let assets = assets.display();
        skipped(
            "kube-apiserver",
            format!("`{assets}` holds no etcd and kube-apiserver"),
        );
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (etcd_port, peer_port, port) = (free_port(), free_port(), free_port());
    let log = directory.path().join("log");
    let _etcd = spawn(
        &log,
        Command::new(assets.join("etcd"))
            .arg(format!(
                "--data-dir={}",
                directory.path().join("etcd").display()
            ))
            .arg(format!("--listen-client-urls=http://127.0.0.1:{etcd_port}"))
            .arg(format!(
                "--advertise-client-urls=http://127.0.0.1:{etcd_port}"
            ))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"))
            .arg(format!(
                "--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}"
            ))
            .arg(format!(
                "--initial-cluster=default=http://127.0.0.1:{peer_port}"
            ))
            .arg("--unsafe-no-fsync=true"),
    );
    let key = rcgen::KeyPair::generate().unwrap();
    let key_file = directory.path().join("sa.key");
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    let public_key_file = directory.path().join("sa.pub");
    std::fs::write(&public_key_file, key.public_key_pem()).unwrap();
    let tokens = directory.path().join("tokens.csv");
    std::fs::write(&tokens, "token,admin,admin,system:masters\n").unwrap();
    let _server = spawn(
        &log,
        Command::new(assets.join("kube-apiserver"))
            .arg(format!("--etcd-servers=http://127.0.0.1:{etcd_port}"))
            .arg(format!(
                "--cert-dir={}",
                directory.path().join("certs").display()
            ))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--secure-port={port}"))
            .arg("--service-account-issuer=https://localhost")
            .arg(format!(
                "--service-account-key-file={}",
                public_key_file.display()
            ))
            .arg(format!(
                "--service-account-signing-key-file={}",
                key_file.display()
            ))
            .arg(format!("--token-auth-file={}", tokens.display()))
            .arg("--disable-admission-plugins=ServiceAccount")
            .arg("--authorization-mode=RBAC"),
    );
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "token"}}],
    });
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&kubeconfig.to_string()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .unwrap();
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let ready = async {
        while namespaces.get("default").await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let ready = tokio::time::timeout(Duration::from_secs(60), ready).await;
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(
        ready.is_ok(),
        "the API server is not ready after a minute:\n{said}"
    );
    suite(client).await;
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Starts a program whose output is appended to `log`.
fn spawn(log: &Path, command: &mut Command) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(log);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
