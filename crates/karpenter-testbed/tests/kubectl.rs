//! Tests of the embedded server over HTTPS with the real kubectl.
//!
//! Without a recent kubectl (`KUBECTL`, or `kubectl` in the `PATH`) the tests are skipped.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "kubectl/usable.rs"]
mod usable;

use std::path::PathBuf;
use std::process::Stdio;

use karpenter_testbed::Testbed;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

struct Kubectl {
    program: PathBuf,
    home: TempDir,
    testbed: Testbed,
    _served: karpenter_testbed::server::ServedOverHttps,
}

struct Output {
    ok: bool,
    text: String,
}

impl Kubectl {
    /// Returns a served testbed with its kubectl, or `None` without kubectl.
    async fn start() -> Option<Self> {
        let program =
            std::env::var_os("KUBECTL").map_or_else(|| PathBuf::from("kubectl"), PathBuf::from);
        if usable::kubectl_is_missing(&program) {
            return None;
        }
        let testbed = Testbed::builder().seed(3).start().await;
        let crds = std::fs::read_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crds"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .map(|path| std::fs::read_to_string(path).unwrap())
            .map(|text| serde_saphyr::from_str(&text).unwrap());
        testbed.apply_crds(crds.collect::<Vec<_>>()).await.unwrap();
        let served = testbed.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        served
            .write_kubeconfig(&home.path().join("config"))
            .unwrap();
        Some(Self {
            program,
            home,
            testbed,
            _served: served,
        })
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(format!(
                "--kubeconfig={}",
                self.home.path().join("config").display()
            ))
            .arg(format!(
                "--cache-dir={}",
                self.home.path().join("cache").display()
            ))
            .args(arguments.split_whitespace())
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn try_run(&self, arguments: &str) -> Output {
        let output = self.command(arguments).output().await.unwrap();
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Output {
            ok: output.status.success(),
            text,
        }
    }

    async fn run(&self, arguments: &str) -> String {
        let output = self.try_run(arguments).await;
        assert!(output.ok, "kubectl {arguments}\n{}", output.text);
        output.text
    }

    async fn refused(&self, arguments: &str) -> String {
        let output = self.try_run(arguments).await;
        assert!(
            !output.ok,
            "kubectl {arguments} was not rejected\n{}",
            output.text
        );
        output.text
    }

    /// Runs a command whose output must contain `wanted`.
    async fn shows(&self, arguments: &str, wanted: &str) {
        let text = self.run(arguments).await;
        assert!(
            text.contains(wanted),
            "kubectl {arguments} does not show `{wanted}`:\n{text}"
        );
    }

    fn file(&self, name: &str, value: &serde_json::Value) {
        std::fs::write(self.home.path().join(name), value.to_string()).unwrap();
    }
}

#[test]
fn a_kubectl_that_validates_with_openapi_v2_is_detected_by_its_version() {
    let printed = |version: &str| {
        format!(
            "{{\n  \"clientVersion\": {{\n    \"minor\": \"99+\",\n    \"gitVersion\": \"{version}\"\n  }}\n}}"
        )
    };
    let is_old = |version: &str| usable::version(&printed(version)).unwrap() < usable::OLDEST;
    for old in ["v1.20.2", "v1.27.16-eks-ae9a62a"] {
        assert!(is_old(old), "{old}");
    }
    for new in ["v1.28.0", "v1.32.4-dispatcher", "v2.0.0"] {
        assert!(!is_old(new), "{new}");
    }
    assert_eq!(usable::version("no JSON at all"), None);
}

fn node_pool(weight: i64) -> serde_json::Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {"weight": weight, "template": {"spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}],
        }}},
    })
}

fn deployment(image: &str) -> serde_json::Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": image}]},
        }},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_are_applied_shown_changed_and_deleted() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    kubectl.file("pool.json", &node_pool(5));
    kubectl
        .shows(
            "apply -f pool.json",
            "nodepool.karpenter.sh/default created",
        )
        .await;
    kubectl.shows("apply -f pool.json", "unchanged").await;
    kubectl.file("pool.json", &node_pool(6));
    let diff = kubectl.refused("diff -f pool.json").await;
    assert!(diff.contains("weight: 6"), "{diff}");
    kubectl.shows("apply -f pool.json", "configured").await;
    kubectl
        .shows(
            "apply --server-side --force-conflicts -f pool.json",
            "serverside-applied",
        )
        .await;
    kubectl.shows("get nodepools", "NODECLASS").await;
    kubectl
        .shows("get nodepool default -o wide", "WEIGHT")
        .await;
    kubectl
        .shows("get nodepool default -o yaml", "weight: 6")
        .await;
    kubectl
        .shows("describe nodepool default", "Consolidate After")
        .await;
    kubectl.shows("explain nodepool.spec", "disruption").await;
    kubectl.shows("label nodepool default a=b", "labeled").await;
    kubectl
        .shows("annotate nodepool default a=b", "annotated")
        .await;
    kubectl
        .shows(
            "patch nodepool default --type=merge -p {\"spec\":{\"weight\":7}}",
            "patched",
        )
        .await;
    let patch = "patch nodepool default --type=json -p [{\"op\":\"replace\",\"path\":\"/spec/weight\",\"value\":8}]";
    kubectl.shows(patch, "patched").await;
    let status =
        "patch nodepool default --subresource=status --type=merge -p {\"status\":{\"nodes\":3}}";
    kubectl.shows(status, "patched").await;
    kubectl
        .shows(
            "get nodepool default -o jsonpath={.spec.weight}/{.status.nodes}",
            "8/3",
        )
        .await;
    kubectl
        .shows(
            "wait nodepool default --for=jsonpath={.spec.weight}=8 --timeout=10s",
            "condition met",
        )
        .await;
    kubectl
        .shows(
            "wait crd --all --for=condition=Established --timeout=10s",
            "condition met",
        )
        .await;
    let strategic = kubectl
        .refused("patch nodepool default --type=strategic -p {}")
        .await;
    assert!(
        strategic.contains("unsupported")
            || strategic.contains("unknown format")
            || strategic.contains("application/strategic"),
        "{strategic}"
    );
    kubectl.shows("api-resources", "nodepools").await;
    kubectl
        .shows(
            "patch nodepool default --type=merge -p {\"metadata\":{\"finalizers\":[\"a.b/c\"]}}",
            "patched",
        )
        .await;
    kubectl
        .shows("delete nodepool default --wait=false", "deleted")
        .await;
    kubectl
        .shows(
            "get nodepool default -o jsonpath={.metadata.deletionTimestamp}",
            "20",
        )
        .await;
    kubectl
        .shows(
            "patch nodepool default --type=merge -p {\"metadata\":{\"finalizers\":null}}",
            "patched",
        )
        .await;
    kubectl.refused("get nodepool default").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_in_manifests_are_reported_and_the_server_keeps_running() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let refused = async |value: serde_json::Value, wanted: &str| {
        kubectl.file("bad.json", &value);
        let text = kubectl.refused("apply -f bad.json").await;
        assert!(text.contains(wanted), "{wanted}: {text}");
    };
    let mut pool = node_pool(1);
    pool["spec"]["weight"] = "heavy".into();
    refused(pool, "spec.weight").await;
    let mut pool = node_pool(1);
    pool["spec"]["bogus"] = 1.into();
    refused(pool, "unknown field \"spec.bogus\"").await;
    let mut pool = node_pool(1);
    pool["spec"]["template"]["spec"]["requirements"][0]["values"] = json!([]);
    refused(
        pool,
        "requirements with operator 'In' must have a value defined",
    )
    .await;
    let mut pool = node_pool(1);
    pool["metadata"]["annotations"] = json!({"big": "x".repeat(1024 * 1024)});
    refused(pool, "metadata.annotations: Too long").await;
    let mut web = deployment("i");
    web["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "-1"}});
    refused(web, "must be greater than or equal to 0").await;
    let mut web = deployment("i");
    web["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "one"}});
    refused(web, "quantities must match the regular expression").await;
    kubectl.shows("get namespaces", "default").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_nodes_and_pods_are_handled() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    kubectl.file("web.json", &deployment("i:1"));
    kubectl.shows("apply -f web.json", "created").await;
    kubectl.file("web.json", &deployment("i:2"));
    kubectl.shows("apply -f web.json", "configured").await;
    kubectl
        .shows(
            "apply --server-side --force-conflicts -f web.json",
            "serverside-applied",
        )
        .await;
    kubectl.shows("get deployments", "UP-TO-DATE").await;
    kubectl
        .shows("scale deployment web --replicas=0", "scaled")
        .await;
    kubectl
        .shows("rollout restart deployment web", "restarted")
        .await;
    let status = "patch deployment web --subresource=status --type=merge -p {\"status\":{\"observedGeneration\":99}}";
    kubectl.shows(status, "patched").await;
    kubectl
        .shows(
            "rollout status deployment web --timeout=10s",
            "successfully rolled out",
        )
        .await;
    kubectl
        .shows("describe deployment web", "RollingUpdate")
        .await;
    kubectl.file(
        "node.json",
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}),
    );
    kubectl.shows("create -f node.json", "created").await;
    kubectl
        .shows("taint node n1 a=b:NoSchedule", "tainted")
        .await;
    kubectl.shows("label node n1 zone=a", "labeled").await;
    kubectl.shows("get nodes -l zone=a", "n1").await;
    kubectl.shows("get nodes -o wide", "KERNEL-VERSION").await;
    kubectl.shows("cordon n1", "cordoned").await;
    kubectl.shows("describe node n1", "Unschedulable").await;
    kubectl.shows("uncordon n1", "uncordoned").await;
    kubectl.shows("run p --image=i:1", "created").await;
    kubectl.shows("get pods -A", "Pending").await;
    kubectl.shows("describe pod p", "BestEffort").await;
    kubectl.shows("delete pod p --timeout=20s", "deleted").await;
    kubectl
        .shows(
            "delete deployment web --cascade=orphan --wait=false",
            "deleted",
        )
        .await;
    kubectl.run("get all").await;
    // These use protobuf bodies.
    kubectl
        .shows("create deployment other --image=i:1", "created")
        .await;
    kubectl.shows("create namespace other", "created").await;
    kubectl.shows("auth can-i create pods", "yes").await;
    kubectl
        .shows("delete namespace other --timeout=20s", "deleted")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_the_disruption_budget() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    kubectl.file(
        "node.json",
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}),
    );
    kubectl.run("create -f node.json").await;
    kubectl.file(
        "pod.json",
        &json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "a"}},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]},
        }),
    );
    kubectl.run("create -f pod.json").await;
    let running = "patch pod p --subresource=status --type=merge -p {\"status\":{\"phase\":\"Running\",\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}";
    kubectl.run(running).await;
    kubectl.file(
        "pdb.json",
        &json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
        }),
    );
    kubectl.run("apply -f pdb.json").await;
    let observed = |allowed: i64| {
        format!(
            "patch pdb b --subresource=status --type=merge -p {{\"status\":{{\"observedGeneration\":1,\"disruptionsAllowed\":{allowed},\"currentHealthy\":1,\"desiredHealthy\":1,\"expectedPods\":1}}}}"
        )
    };
    kubectl.run(&observed(0)).await;
    let text = kubectl.refused("drain n1 --force --timeout=1s").await;
    assert!(
        text.contains("Cannot evict pod as it would violate the pod's disruption budget"),
        "{text}"
    );
    kubectl.run(&observed(1)).await;
    kubectl
        .shows("drain n1 --force --timeout=20s", "drained")
        .await;
    kubectl
        .shows("get pdb b -o jsonpath={.status.disruptionsAllowed}", "0")
        .await;
    assert!(!kubectl.try_run("get pod p").await.ok);
    kubectl.run("uncordon n1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_prints_what_happens() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let mut watch = kubectl
        .command("get configmaps -w -o name")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let client = kubectl.testbed.admin_client();
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(client, "default");
    let map = serde_json::from_value(json!({"metadata": {"name": "m"}})).unwrap();
    maps.create(&kube::api::PostParams::default(), &map)
        .await
        .unwrap();
    match lines.next_line().await.unwrap() {
        Some(line) => assert_eq!(line, "configmap/m"),
        None => panic!("the watch ended"),
    }
    watch.kill().await.unwrap();
}
