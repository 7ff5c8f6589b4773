//! The AWS provider on a real cluster, with the AWS fake, whose instances join the cluster.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use karpenter_aws_fake::{AwsFake, Server, nodes};
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::case::{SOON, is_leaving, running};
use crate::cluster::{Cluster, claims_and_nodes_belong_together};
use crate::helm::{self, CRDS, KARPENTER};
use crate::objects::{
    DEFINITIONS, DEPLOYMENTS, EC2_NODE_CLASSES, NODE_CLAIMS, NODE_POOLS, NODES, PODS, SERVICES,
    api_of, apply, condition, delete, documents, list, merge, name,
};
use crate::paths::{controller_binary, root};
use crate::scenarios::verdicts;
use crate::wait::{FOREVER, Seen, until};

/// The name of the cluster in AWS.
pub(super) const CLUSTER: &str = "karpenter-blueprints";
const REGION: &str = "us-west-2";
/// The version of EKS before and after the upgrade. The control plane itself does not change: the controller reads the version
/// from EKS. The manifests use Amazon Linux 2, which has no images for later versions.
const VERSIONS: [&str; 2] = ["1.31", "1.32"];
/// The instance profile of AWSNodeTemplates without one.
const PROFILE: &str = "KarpenterNodeInstanceProfile";
const GENERATIONS: &str = "1-just-in-time-v0.16/provisioner.yaml";
const WINDOWS: &str = "2-windows-v0.29/provisioners.yaml";
const LAYERED: &str = "3-layered-constraints-and-upgrade-v0.33";

/// The values of the CRD chart, with every older generation.
pub(crate) fn definitions(webhook: u16) -> Value {
    json!({ "legacy": { "enabled": true }, "webhook": { "enabled": true, "port": webhook } })
}

/// The values of the chart.
pub(crate) fn values(webhook: u16) -> Value {
    json!({
        "legacy": { "enabled": true },
        "webhook": { "enabled": true, "port": webhook },
        "settings": {
            "clusterName": CLUSTER, "interruptionQueue": CLUSTER, "eksControlPlane": true,
            "aws": { "defaultInstanceProfile": PROFILE },
        },
    })
}

/// The AWS fake with instances that join the cluster; stopped on drop.
pub(super) struct FakeAws {
    aws: AwsFake,
    environment: BTreeMap<String, String>,
    joining: JoinHandle<()>,
    _endpoint: Server,
}

impl Drop for FakeAws {
    fn drop(&mut self) {
        self.joining.abort();
    }
}

/// 6 for c6a.xlarge.
fn generation(instance_type: &str) -> u32 {
    let family = instance_type.split('.').next().unwrap_or_default();
    let digits = family.trim_start_matches(|c: char| !c.is_ascii_digit());
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

impl FakeAws {
    pub(super) async fn start(client: &Client) -> Result<Self> {
        let aws = AwsFake::builder()
            .cluster(CLUSTER)
            .kubernetes(&VERSIONS)
            .interruption_queue(CLUSTER)
            .settings(|s| s.pending_s = 2.0)
            .build();
        // The instance types at the time of the walkthroughs.
        aws.keep_instance_types(|name| generation(name) <= 7);
        aws.add_instance_profile(PROFILE, Some(&format!("KarpenterNodeRole-{CLUSTER}")));
        let endpoint = aws.serve(0).await?;
        let joining = nodes::run(aws.clone(), client.clone(), |instance, error| {
            println!("# {} cannot join the cluster: {error}", instance.id);
        });
        let environment = [
            ("AWS_ENDPOINT_URL", endpoint.url()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", "AKIAREALCLUSTER".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ];
        Ok(Self {
            aws: aws.clone(),
            environment: environment
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            joining: tokio::spawn(joining),
            _endpoint: endpoint,
        })
    }

    /// Returns the environment of a controller that uses it.
    pub(super) fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// Waits until no instance is running.
    async fn until_nothing_is_left(&self) -> Result<()> {
        let mut changes = self.aws.changes();
        let gone = async {
            while self.aws.instances().iter().any(|i| i.state.is_alive()) {
                changes.changed().await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let within = tokio::time::timeout(SOON, gone).await;
        within.context("instances are still running")?
    }
}

/// Returns the objects of a manifest of the walkthroughs.
fn seed(path: &str) -> Result<Vec<Value>> {
    let path = root().join("tests/seeds").join(path);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut objects = documents(&text.replace("${CLUSTER_NAME}", CLUSTER))?;
    for object in &mut objects {
        if ["Deployment", "PodDisruptionBudget"]
            .iter()
            .any(|kind| object["kind"] == *kind)
        {
            object["metadata"]["namespace"] = "default".into();
        }
    }
    Ok(objects)
}

/// Runs the scenarios one after another, because they share AWS.
pub(crate) async fn run(cluster: &mut Cluster, mut report: impl FnMut(&str, Instant, Result<()>)) {
    let started = Instant::now();
    let fake = async {
        let fake = FakeAws::start(&cluster.client).await?;
        route_to_the_webhook(cluster).await?;
        for object in add_ons() {
            apply(&cluster.client, &object).await?;
        }
        let binary = controller_binary("karpenter")?;
        cluster.run(&binary, &fake.environment).await?;
        Ok::<_, anyhow::Error>(fake)
    };
    let fake = match fake.await {
        Ok(fake) => fake,
        Err(problem) => return report("aws-start", started, Err(problem)),
    };
    let started = Instant::now();
    report("aws-generations", started, generations(cluster).await);
    let started = Instant::now();
    report("aws-verdicts", started, verdicts::aws(cluster).await);
    let started = Instant::now();
    report(
        "aws-walkthrough-3",
        started,
        walkthrough_3(cluster, &fake).await,
    );
}

/// Connects the API server to the webhook through its Service.
async fn route_to_the_webhook(cluster: &Cluster) -> Result<()> {
    let services = SERVICES.of_namespace(&cluster.client, KARPENTER.namespace);
    let service = serde_json::to_value(services.get("karpenter").await?)?;
    let address = service["spec"]["clusterIP"]
        .as_str()
        .context("the Service has no address")?;
    let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let port = ports.find(|port| port["name"] == "https-webhook");
    let port = port
        .and_then(|p| p["port"].as_u64())
        .context("the Service has no port")?;
    let here = u16::try_from(port)?;
    cluster
        .plane
        .egress()
        .route(&format!("{address}:{port}"), here);
    Ok(())
}

/// Provisioners, and NodePools of v1beta1, are converted to NodePools of v1 and served in their own versions.
async fn generations(cluster: &Cluster) -> Result<()> {
    let client = &cluster.client;
    let definitions = DEFINITIONS.all(client);
    until("v1beta1 is converted", &definitions, "", SOON, |seen| {
        let bundle = |d: &Value| {
            let webhook = &d["spec"]["conversion"]["webhook"];
            name(d) == "nodepools.karpenter.sh" && webhook["clientConfig"]["caBundle"].is_string()
        };
        Ok(seen.values().any(bundle).then_some(()))
    })
    .await?;
    let mut old = seed(GENERATIONS)?;
    old.extend(seed(WINDOWS)?);
    for object in &old {
        apply(client, object).await?;
    }
    for object in &old {
        let (api, wanted) = (api_of(client, object)?, name(object).to_owned());
        let what = format!("{} {wanted} is ready", object["kind"]);
        until(&what, &api, "", SOON, |seen| {
            let ready = |o: &Value| name(o) == wanted && condition(o, "Ready") == "True";
            Ok(seen.values().any(ready).then_some(()))
        })
        .await?;
    }
    let pools = NODE_POOLS.all(client);
    let pool = serde_json::to_value(pools.get("default").await?)?;
    ensure!(
        pool["spec"]["disruption"]["consolidateAfter"] == "30s",
        "{pool}"
    );
    // The same NodePool in the previous version, converted by the webhook.
    let mut before = json!({ "apiVersion": "karpenter.sh/v1beta1", "kind": "NodePool", "metadata": { "name": "default" } });
    let api = api_of(client, &before)?;
    before = serde_json::to_value(api.get("default").await?)?;
    ensure!(
        before["spec"]["disruption"]["expireAfter"] == "2592000s",
        "v1beta1 is {before}"
    );
    // The charts' defaults are for v1 alone: Helm would delete the CRDs of these objects, and the objects with them.
    let default = json!({ "legacy": { "enabled": false } });
    let refused = helm::upgrade(&cluster.plane, CRDS, &default).await;
    let refused = refused.err().map(|error| format!("{error:#}"));
    let refused = refused.context("an upgrade has deleted Provisioners")?;
    ensure!(refused.contains("this would delete the CRD"), "{refused}");
    for object in old.iter().filter(|o| o["kind"] == "Provisioner") {
        delete(&api_of(client, object)?, name(object)).await?;
    }
    until(
        "the NodePools of Provisioners are deleted",
        &pools,
        "",
        SOON,
        |seen| Ok(seen.is_empty().then_some(())),
    )
    .await?;
    for object in old.iter().filter(|o| o["kind"] == "AWSNodeTemplate") {
        delete(&api_of(client, object)?, name(object)).await?;
    }
    // The next scenarios create EC2NodeClasses of the same names.
    until(
        "the EC2NodeClasses of AWSNodeTemplates are deleted",
        &EC2_NODE_CLASSES.all(client),
        "",
        SOON,
        |seen| Ok(seen.is_empty().then_some(())),
    )
    .await
}

/// Layered constraints and an upgrade, as described in docs/walkthroughs.md.
async fn walkthrough_3(cluster: &mut Cluster, fake: &FakeAws) -> Result<()> {
    let client = cluster.client.clone();
    for object in seed(&format!("{LAYERED}/nodepool.yaml"))? {
        apply(&client, &object).await?;
    }
    let pools = NODE_POOLS.all(&client);
    until("the NodePool is ready", &pools, "", SOON, |seen| {
        let ready = |o: &Value| condition(o, "Ready") == "True";
        Ok(seen.values().any(ready).then_some(()))
    })
    .await?;
    for object in seed(&format!("{LAYERED}/inflate.yaml"))? {
        apply(&client, &object).await?;
    }
    let deployments = DEPLOYMENTS.of_namespace(&client, "default");
    merge(
        &deployments,
        "inflate",
        json!({ "spec": { "replicas": 3 } }),
    )
    .await?;
    let pods = PODS.of_namespace(&client, "default");
    until("three replicas run", &pods, "app=inflate", SOON, |seen| {
        Ok((running(seen) == 3).then_some(()))
    })
    .await?;
    let labels = "karpenter.sh/nodepool=default";
    let nodes = list(&NODES.all(&client), labels).await?;
    ensure!(nodes.len() == 1, "{} nodes", nodes.len());
    for (key, value) in [
        ("node.kubernetes.io/instance-type", "r6gd.xlarge"),
        ("topology.kubernetes.io/zone", "us-west-2a"),
        ("karpenter.sh/capacity-type", "on-demand"),
        ("kubernetes.io/arch", "arm64"),
    ] {
        let found = &nodes[0]["metadata"]["labels"][key];
        ensure!(found == value, "{key} is {found}");
    }
    let claim = json!({ "apiVersion": "karpenter.sh/v1beta1", "kind": "NodeClaim" });
    let claims = list(&api_of(&client, &claim)?, labels).await?;
    let requests = &claims[0]["spec"]["resources"]["requests"];
    ensure!(
        requests["cpu"] == "3150m" && requests["pods"] == "6",
        "DaemonSet pods are counted: {requests}"
    );

    for object in seed(&format!("{LAYERED}/pdb.yaml"))? {
        apply(&client, &object).await?;
    }
    let upgraded = karpenter_aws_fake::Cluster::new(CLUSTER, VERSIONS[1]);
    fake.aws.add_cluster(upgraded);
    // The version is read every five minutes, and at startup.
    let before = cluster
        .controller
        .take()
        .context("the controller is not started")?;
    before.stop().await?;
    let binary = controller_binary("karpenter")?;
    cluster.run(&binary, &fake.environment).await?;
    let old: BTreeSet<String> = nodes.iter().map(|n| name(n).to_owned()).collect();
    let never = until::<()>("", &pods, "app=inflate", FOREVER, |seen| {
        let running = running(seen);
        ensure!(running >= 2, "{running} of 3 replicas run");
        Ok(None)
    });
    let all_nodes = NODES.all(&client);
    let replaced = until(
        "the node is replaced",
        &all_nodes,
        labels,
        3 * SOON,
        |seen: &Seen| {
            let new = seen
                .values()
                .all(|n| !old.contains(name(n)) && !is_leaving(n));
            Ok((new && seen.len() == 1).then(|| seen.values().cloned().collect::<Vec<_>>()))
        },
    );
    let replaced = tokio::select! {
        budget = never => budget.map(|()| Vec::new()),
        replaced = replaced => replaced,
    }?;
    let kubelet = &replaced[0]["status"]["nodeInfo"]["kubeletVersion"];
    let wanted = format!("v{}", VERSIONS[1]);
    ensure!(
        kubelet.as_str().is_some_and(|v| v.starts_with(&wanted)),
        "the kubelet is {kubelet}"
    );
    until(
        "three replicas run again",
        &pods,
        "app=inflate",
        SOON,
        |seen| Ok((running(seen) == 3).then_some(())),
    )
    .await?;
    let claims = NODE_CLAIMS.all(&client);
    until("one NodeClaim is left", &claims, labels, SOON, |seen| {
        Ok((seen.len() == 1).then_some(()))
    })
    .await?;
    claims_and_nodes_belong_together(&client, labels).await?;

    delete(&deployments, "inflate").await?;
    delete(&pools, "default").await?;
    until(
        "all of its nodes are deleted",
        &all_nodes,
        labels,
        SOON,
        |seen| Ok(seen.is_empty().then_some(())),
    )
    .await?;
    fake.until_nothing_is_left().await
}

/// Returns the pods of every EKS cluster.
pub(super) fn add_ons() -> Vec<Value> {
    let daemon = |name: &str, requests: Value| {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": name, "namespace": KARPENTER.namespace },
            "spec": {
                "selector": { "matchLabels": { "k8s-app": name } },
                "template": {
                    "metadata": { "labels": { "k8s-app": name } },
                    "spec": {
                        "nodeSelector": { "kubernetes.io/os": "linux" },
                        "tolerations": [{ "operator": "Exists" }],
                        "containers": [{ "name": name, "image": name, "resources": { "requests": requests } }],
                    },
                },
            },
        })
    };
    let dns = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "kube-dns", "namespace": KARPENTER.namespace },
        "spec": { "clusterIP": "10.96.0.10", "ports": [{ "name": "dns", "port": 53, "protocol": "UDP" }] },
    });
    vec![
        daemon("aws-node", json!({ "cpu": "50m" })),
        daemon("kube-proxy", json!({ "cpu": "100m" })),
        daemon("eks-pod-identity-agent", json!({})),
        dns,
    ]
}
