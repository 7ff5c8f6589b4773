//! Tests of the embedded server over HTTPS with the real kubectl.
//!
//! Without a recent kubectl (`KUBECTL`, or `kubectl` in the `PATH`) the tests are skipped.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

pub mod usable;

use std::path::PathBuf;
use std::process::Stdio;

use karpenter_testbed::Testbed;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

struct Kubectl {
    program: PathBuf,
    home: TempDir,
    _served: karpenter_testbed::server::ServedOverHttps,
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
            _served: served,
        })
    }

    async fn output(&self, arguments: &str) -> (bool, String) {
        let home = self.home.path().display();
        let output = Command::new(&self.program)
            .arg(format!("--kubeconfig={home}/config"))
            .arg(format!("--cache-dir={home}/cache"))
            .args(arguments.split_whitespace())
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        (output.status.success(), text)
    }

    async fn run(&self, arguments: &str) -> String {
        let (ok, text) = self.output(arguments).await;
        assert!(ok, "kubectl {arguments}\n{text}");
        text
    }

    async fn refused(&self, arguments: &str) -> String {
        let (ok, text) = self.output(arguments).await;
        assert!(!ok, "kubectl {arguments} was not rejected\n{text}");
        text
    }

    /// Runs commands whose output must contain the text beside them.
    async fn show(&self, commands: &[(&str, &str)]) {
        for (arguments, wanted) in commands {
            let text = self.run(arguments).await;
            assert!(
                text.contains(wanted),
                "kubectl {arguments} does not show `{wanted}`:\n{text}"
            );
        }
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
        .show(&[
            (
                "apply -f pool.json",
                "nodepool.karpenter.sh/default created",
            ),
            ("apply -f pool.json", "unchanged"),
        ])
        .await;
    kubectl.file("pool.json", &node_pool(6));
    let diff = kubectl.refused("diff -f pool.json").await;
    assert!(diff.contains("weight: 6"), "{diff}");
    let json_patch = "patch nodepool default --type=json -p [{\"op\":\"replace\",\"path\":\"/spec/weight\",\"value\":8}]";
    let status =
        "patch nodepool default --subresource=status --type=merge -p {\"status\":{\"nodes\":3}}";
    let finalizers = |names: &str| {
        format!(
            "patch nodepool default --type=merge -p {{\"metadata\":{{\"finalizers\":{names}}}}}"
        )
    };
    kubectl
        .show(&[
            ("apply -f pool.json", "configured"),
            (
                "apply --server-side --force-conflicts -f pool.json",
                "serverside-applied",
            ),
            ("get nodepools", "NODECLASS"),
            ("get nodepool default -o wide", "WEIGHT"),
            ("get nodepool default -o yaml", "weight: 6"),
            ("describe nodepool default", "Consolidate After"),
            ("explain nodepool.spec", "disruption"),
            ("label nodepool default a=b", "labeled"),
            ("annotate nodepool default a=b", "annotated"),
            (json_patch, "patched"),
            (status, "patched"),
            (
                "get nodepool default -o jsonpath={.spec.weight}/{.status.nodes}",
                "8/3",
            ),
            (
                "wait nodepool default --for=jsonpath={.spec.weight}=8",
                "condition met",
            ),
            (
                "wait crd --all --for=condition=Established",
                "condition met",
            ),
            ("api-resources", "nodepools"),
            (&finalizers("[\"a.b/c\"]"), "patched"),
            ("delete nodepool default --wait=false", "deleted"),
            (
                "get nodepool default -o jsonpath={.metadata.deletionTimestamp}",
                "20",
            ),
            (&finalizers("null"), "patched"),
        ])
        .await;
    kubectl.refused("get nodepool default").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_nodes_and_pods_are_handled() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    kubectl.file("web.json", &deployment("i:1"));
    kubectl.run("apply -f web.json").await;
    kubectl.file("web.json", &deployment("i:2"));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    kubectl.file("node.json", &node);
    let status = "patch deployment web --subresource=status --type=merge -p {\"status\":{\"observedGeneration\":99}}";
    kubectl
        .show(&[
            ("apply -f web.json", "configured"),
            ("get deployments", "UP-TO-DATE"),
            ("scale deployment web --replicas=0", "scaled"),
            ("rollout restart deployment web", "restarted"),
            (status, "patched"),
            (
                "rollout status deployment web --timeout=10s",
                "successfully rolled out",
            ),
            ("describe deployment web", "RollingUpdate"),
            ("create -f node.json", "created"),
            ("taint node n1 a=b:NoSchedule", "tainted"),
            ("label node n1 zone=a", "labeled"),
            ("get nodes -l zone=a", "n1"),
            ("get nodes -o wide", "KERNEL-VERSION"),
            ("cordon n1", "cordoned"),
            ("describe node n1", "Unschedulable"),
            ("run p --image=i:1", "created"),
            ("get pods -A", "Pending"),
            ("describe pod p", "BestEffort"),
            ("delete pod p --timeout=20s", "deleted"),
            (
                "delete deployment web --cascade=orphan --wait=false",
                "deleted",
            ),
            ("get all", "deployment.apps/web"),
            // These use protobuf bodies.
            ("create deployment other --image=i:1", "created"),
            ("create namespace other", "created"),
            ("auth can-i create pods", "yes"),
            ("delete namespace other --timeout=20s", "deleted"),
        ])
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
        .show(&[
            ("drain n1 --force --timeout=20s", "drained"),
            ("get pdb b -o jsonpath={.status.disruptionsAllowed}", "0"),
            ("uncordon n1", "uncordoned"),
        ])
        .await;
    kubectl.refused("get pod p").await;
}
