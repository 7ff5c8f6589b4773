//! What `why` prints for typical mistakes in the users' manifests of `tests/seeds`: one golden file for each mistake and each of the
//! three walkthroughs that it can be made in.
//!
//! The manifests are converted by the plugin, one mistake is made, the engine decides, and the plugin prints the explanation. Read
//! the golden files as an operator would: each must say what is wrong and what to do.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster as Model, Snapshot};
use karpenter_core::disruption::{DisruptionRequest, plan};
use karpenter_core::fake::{cluster_config, instance_type};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::requirements::Requirement;
use karpenter_core::schedule::{PodSet, Policy, Query, schedule};
use karpenter_decisions::blocking::blocking;
use karpenter_decisions::explain::{Question, explain_node, explain_pod};
use karpenter_decisions::history::{History, Input};
use karpenter_decisions::what_if::WhatIf;
use karpenter_fixtures::{ARCH, INSTANCE_TYPE, ZONE, claim_of, node, read};
use serde_json::{Value, json};

use crate::answers::ask;
use crate::transport::Decisions;

const CATEGORY: &str = "karpenter.k8s.aws/instance-category";
const GENERATION: &str = "karpenter.k8s.aws/instance-generation";
const SIZE: &str = "karpenter.k8s.aws/instance-size";
const BUILD: &str = "node.kubernetes.io/windows-build";

fn now() -> Timestamp {
    "2026-01-10T00:00:00Z".parse().unwrap()
}

/// The manifests of a walkthrough: its NodePools in v1, and a Deployment.
struct Seed {
    pools: Vec<Value>,
    deployment: Value,
}

fn documents(text: &str) -> Vec<Value> {
    let documents = text.split("\n---");
    let documents = documents.filter(|document| document.contains("kind:"));
    documents
        .map(|document| serde_saphyr::from_str(document.trim_start_matches("---")).unwrap())
        .collect()
}

impl Seed {
    fn new(folder: &str, pools: &str, deployment: &str) -> Self {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/seeds");
        let seeds = seeds.join(folder);
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_kubectl-karpenter"))
            .args(["convert", "--default-instance-profile", "nodes", "-f"])
            .arg(seeds.join(pools))
            .output()
            .unwrap();
        let all = documents(&String::from_utf8(output.stdout).unwrap());
        let pools = all
            .into_iter()
            .filter(|object| object["kind"] == "NodePool");
        let text = std::fs::read_to_string(seeds.join(deployment)).unwrap();
        Self {
            pools: pools.collect(),
            deployment: documents(&text).remove(0),
        }
    }

    /// Version 0.16: a Provisioner that offers nodes with the label `intent: apps`.
    fn just_in_time() -> Self {
        Self::new("1-just-in-time-v0.16", "provisioner.yaml", "inflate.yaml")
    }

    /// Version 0.29: a Provisioner for each build of Windows.
    fn windows() -> Self {
        Self::new(
            "2-windows-v0.29",
            "provisioners.yaml",
            "deployment-2022.yaml",
        )
    }

    /// Version 0.33: pods that narrow a NodePool.
    fn layered() -> Self {
        let folder = "3-layered-constraints-and-upgrade-v0.33";
        Self::new(folder, "nodepool.yaml", "inflate.yaml")
    }

    /// Changes the pod template.
    fn pods(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.deployment["spec"]["template"]);
        self
    }

    fn pools(mut self, change: impl Fn(&mut Value)) -> Self {
        self.pools
            .iter_mut()
            .for_each(|pool| change(&mut pool["spec"]));
        self
    }

    /// A pod of the Deployment.
    fn pod(&self, name: &str, node: Option<&str>) -> Value {
        let mut pod = self.deployment["spec"]["template"].clone();
        let owner = &self.deployment["metadata"]["name"];
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["namespace"] = json!("shop");
        pod["metadata"]["uid"] = json!(name);
        pod["metadata"]["labels"]["pod-template-hash"] = json!("7c9");
        pod["metadata"]["creationTimestamp"] = json!("2026-01-09T23:46:00Z");
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{}-7c9", owner.as_str().unwrap()), "uid": "rs", "controller": true,
        }]);
        pod["spec"]["nodeName"] = json!(node);
        let (phase, condition) = match node {
            None => (
                "Pending",
                json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }),
            ),
            Some(_) => ("Running", json!({ "type": "Ready", "status": "True" })),
        };
        pod["status"] = json!({ "phase": phase, "conditions": [condition] });
        pod
    }

    fn model(&self, nodes: &[(&str, &str)]) -> Model {
        let mut config = cluster_config();
        for label in [CATEGORY, GENERATION, SIZE, BUILD] {
            config.well_known = config.well_known.with_label(label);
        }
        let mut model = Model::new(config);
        for pool in &self.pools {
            let mut pool = pool.clone();
            pool["metadata"]["uid"] = pool["metadata"]["name"].clone();
            pool["status"] = json!({ "conditions": [{
                "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }] });
            let name = pool["metadata"]["name"].as_str().unwrap().to_owned();
            model.apply_node_pool(&read(pool));
            model.set_instance_types(&name, Ok(types().into()));
        }
        for (name, zone) in nodes {
            self.add_node(&mut model, name, zone);
        }
        model
    }

    /// Adds an r6gd.xlarge of the first NodePool.
    fn add_node(&self, model: &mut Model, name: &str, zone: &str) {
        let pool = self.pools[0]["metadata"]["name"].as_str().unwrap();
        let node = node(name).pool(pool).zone(zone);
        let node = node
            .label(INSTANCE_TYPE, "r6gd.xlarge")
            .label(ARCH, "arm64");
        let node = node.cpu("4").memory("32Gi").pods("58").ready();
        let claim = claim_of(&node).is("Consolidatable");
        let claim = claim.created("2026-01-09T00:00:00Z");
        model.apply_node_claim(&claim.build());
        model.apply_node(&node.build());
    }

    /// Prints why a new pod of the Deployment is pending.
    async fn why_pod(&self, mut model: Model) -> String {
        model.apply_pod(&read(self.pod("inflate-1", None)));
        let (snapshot, policy) = (model.snapshot(), Policy::at(now()));
        let mut history = History::new(now());
        let decided: Timestamp = "2026-01-09T23:50:00Z".parse().unwrap();
        let plan = schedule(&snapshot, &policy, &Query::new(PodSet::Waiting));
        let input = Input {
            snapshot: &snapshot,
            policy: &policy,
            took: Duration::ZERO,
            now: decided,
        };
        history.provisioned(input, &plan, &[]);
        let question = question(&snapshot, &history);
        let answer = explain_pod(&question, "shop", "inflate-1").unwrap();
        assert!(answer.is_unschedulable(), "{answer:?}");
        let pod: &Arc<_> = snapshot.pod("shop", "inflate-1").unwrap();
        let answer = answer.with_blocking(blocking(&snapshot, &policy, None, pod));
        print(
            &json!(answer),
            &["why", "pod", "-n", "shop", "inflate-1", "-o", "wide"],
        )
        .await
    }

    /// Prints why a node is kept.
    async fn why_node(&self, model: Model, name: &str) -> String {
        let (snapshot, request) = (model.snapshot(), DisruptionRequest::at(now()));
        let mut history = History::new(now());
        let input = Input {
            snapshot: &snapshot,
            policy: &request.policy,
            took: Duration::ZERO,
            now: "2026-01-09T23:50:00Z".parse().unwrap(),
        };
        history.disrupted(input, &plan(&snapshot, &request));
        let answer = explain_node(&question(&snapshot, &history), name).unwrap();
        let what_if = WhatIf::new(&snapshot, request).node(name).unwrap();
        let answer = answer.with_what_if(what_if, &[]);
        print(&json!(answer), &["why", "node", name]).await
    }
}

fn question<'a>(snapshot: &'a Snapshot, history: &'a History) -> Question<'a> {
    Question {
        snapshot,
        history,
        messages: &|_| None,
        now: now(),
        engine: "test",
    }
}

/// Runs the plugin, which gets this answer.
async fn print(answer: &Value, args: &[&str]) -> String {
    let server = Decisions::answering("200 OK", "", &answer.to_string()).await;
    let printed = ask(&server.url(), args).await;
    assert_eq!(printed.stderr, "");
    printed.succeeds().to_owned()
}

/// Instance types of EC2, in two zones.
fn types() -> Vec<InstanceType> {
    let zones = ["us-west-2a", "us-west-2b"];
    let of = |name: &str, arch: &str, os: &[&str], cpu: i64, gib: i64, price: f64| {
        let (family, size) = name.split_once('.').unwrap();
        instance_type(name)
            .cpu(cpu)
            .gib(gib)
            .pods(58)
            .arch(arch)
            .os(os)
            .zones(&zones)
            .price(price)
            .requires(Requirement::equal(SIZE, size))
            .requires(Requirement::equal(CATEGORY, &family[..1]))
            .requires(Requirement::equal(GENERATION, &family[1..2]))
            .build()
    };
    let windows = |name: &str, build: &str| {
        let mut it = of(name, "amd64", &["windows"], 4, 8, 0.337);
        let build = Requirement::equal(BUILD, build);
        it.requirements.add(build);
        it
    };
    vec![
        of("m5.large", "amd64", &["linux"], 2, 8, 0.096),
        of("c6a.xlarge", "amd64", &["linux"], 4, 8, 0.153),
        of("r6gd.xlarge", "arm64", &["linux"], 4, 32, 0.2304),
        of("m6i.4xlarge", "amd64", &["linux"], 16, 64, 0.768),
        windows("c5.xlarge", "10.0.20348"),
    ]
}

/// The name of a walkthrough, and what makes it.
type Walkthrough = (&'static str, fn() -> Seed);

const SEEDS: [Walkthrough; 3] = [
    ("just-in-time", Seed::just_in_time),
    ("windows", Seed::windows),
    ("layered", Seed::layered),
];

macro_rules! golden {
    ($name:expr, $text:expr) => {
        let text = $text;
        insta::with_settings!({ snapshot_path => "../golden", prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!($name, text);
        });
    };
}

/// Makes a mistake in each walkthrough, and compares what is printed about a pending pod.
async fn each(mistake: &str, make: impl Fn(&str, Seed) -> Seed) {
    for (name, seed) in SEEDS {
        let seed = make(name, seed());
        let answer = seed.why_pod(seed.model(&[])).await;
        golden!(format!("{mistake}-{name}"), answer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_misspelt_label() {
    let misspell = |name: &str, pods: &mut Value| {
        let selector = &mut pods["spec"]["nodeSelector"];
        let (from, to) = match name {
            "just-in-time" => ("intent", "intend"),
            "windows" => ("kubernetes.io/os", "kubernetes.io/so"),
            _ => (ZONE, "topology.kubernetes.io/zones"),
        };
        let value = selector[from].take();
        selector.as_object_mut().unwrap().remove(from);
        selector[to] = value;
    };
    each("a_misspelt_label", |name, seed| {
        seed.pods(|pods| misspell(name, pods))
    })
    .await;
}

/// Only one of the walkthroughs has Windows.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_of_windows_that_no_node_pool_has() {
    let seed = Seed::windows().pods(|pods| {
        pods["spec"]["nodeSelector"]["node.kubernetes.io/windows-build"] = json!("10.0.14393");
    });
    let answer = seed.why_pod(seed.model(&[])).await;
    golden!("a_build_of_windows_that_no_node_pool_has-windows", answer);
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_in_a_pod_or_a_node_pool() {
    each("the_wrong_architecture", |name, seed| {
        let arch = if name == "layered" { "amd64" } else { "arm64" };
        seed.pods(|pods| pods["spec"]["nodeSelector"]["kubernetes.io/arch"] = json!(arch))
    })
    .await;
    each("a_taint_that_is_not_tolerated", |_, seed| {
        let taint = json!([{ "key": "team", "value": "search", "effect": "NoSchedule" }]);
        seed.pools(|pool| pool["template"]["spec"]["taints"] = taint.clone())
    })
    .await;
    each("a_request_that_is_too_large", |_, seed| {
        let requests = json!({ "cpu": "1", "memory": "100Gi" });
        seed.pods(|pods| pods["spec"]["containers"][0]["resources"]["requests"] = requests)
    })
    .await;
    each("min_values_that_are_not_met", |_, seed| {
        let flexible = json!({ "key": "node.kubernetes.io/instance-type", "operator": "Exists", "minValues": 6 });
        seed.pools(|pool| {
            let requirements = &mut pool["template"]["spec"]["requirements"];
            requirements.as_array_mut().unwrap().push(flexible.clone());
        })
    })
    .await;
    each("a_spread_over_a_label_that_no_node_has", |_, seed| {
        seed.pods(|pods| {
            let labels = pods["metadata"]["labels"].clone();
            pods["spec"]["topologySpreadConstraints"] = json!([{
                "topologyKey": "topology.kubernetes.io/zones", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": { "matchLabels": labels },
            }]);
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_zone_of_a_volume_that_no_node_pool_has() {
    for (name, seed) in SEEDS {
        let seed = seed().pods(|pods| {
            pods["spec"]["volumes"] =
                json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
        });
        let mut model = seed.model(&[]);
        model.apply_volume_claim(&read(json!({
            "metadata": { "name": "data", "namespace": "shop", "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
            "spec": { "volumeName": "pv-7" }, "status": { "phase": "Bound" },
        })));
        model.apply_volume(&read(json!({
            "metadata": { "name": "pv-7" },
            "spec": { "csi": { "driver": "ebs.csi.aws.com", "volumeHandle": "vol-7" }, "nodeAffinity": { "required": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": ZONE, "operator": "In", "values": ["us-west-2c"] }] },
            ] } } },
        })));
        golden!(
            format!("the_zone_of_a_volume_that_no_node_pool_has-{name}"),
            seed.why_pod(model).await
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_reached() {
    for (name, seed) in SEEDS {
        let seed = seed()
            .pools(|pool| pool["limits"] = json!({ "cpu": "6" }))
            .pods(|pods| {
                pods["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("3");
            });
        let mut model = seed.model(&[("ip-10-0-3-7", "us-west-2a")]);
        // Each NodePool has its own limit.
        for pool in &seed.pools[1..] {
            let of_other = Seed {
                pools: vec![pool.clone()],
                deployment: seed.deployment.clone(),
            };
            of_other.add_node(&mut model, "ip-10-0-9-1", "us-west-2b");
        }
        model.apply_pod(&read(seed.pod("inflate-0", Some("ip-10-0-3-7"))));
        golden!(
            format!("a_limit_that_is_reached-{name}"),
            seed.why_pod(model).await
        );
    }
}

/// A node with three pods of the Deployment.
fn running(seed: &Seed) -> Model {
    let mut model = seed.model(&[("ip-10-0-3-7", "us-west-2a")]);
    for name in ["inflate-0", "inflate-1", "inflate-2"] {
        model.apply_pod(&read(seed.pod(name, Some("ip-10-0-3-7"))));
    }
    model
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_disruption_budget_that_can_never_allow_an_eviction() {
    for (name, seed) in SEEDS {
        let seed = seed();
        let labels = seed.deployment["spec"]["selector"].clone();
        let mut model = running(&seed);
        model.apply_pdb(&read(json!({
            "metadata": { "name": "inflate-pdb", "namespace": "shop" },
            "spec": { "minAvailable": 3, "selector": labels },
            "status": { "expectedPods": 3, "currentHealthy": 3, "desiredHealthy": 3, "disruptionsAllowed": 0 },
        })));
        golden!(
            format!("a_pod_disruption_budget_that_can_never_allow_an_eviction-{name}"),
            seed.why_node(model, "ip-10-0-3-7").await
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disruption_budget_that_is_closed() {
    for (name, seed) in SEEDS {
        let closed = json!([{ "nodes": "0" }]);
        let seed = seed().pools(|pool| pool["disruption"]["budgets"] = closed.clone());
        golden!(
            format!("a_disruption_budget_that_is_closed-{name}"),
            seed.why_node(running(&seed), "ip-10-0-3-7").await
        );
    }
}
