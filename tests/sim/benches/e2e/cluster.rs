//! The cluster of an end-to-end measurement: API server, scheduler, workload controllers and nodes, with accelerated time.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::crd;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::quantity::Quantity;
use karpenter_kwok::{KwokNodeClass, node_class};
use karpenter_testbed::loops::Loops;
use karpenter_testbed::{Clock, Testbed, loops};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::processes::{Outcome, commands, report};
use crate::workloads::{Workload, named};

/// Serves a cluster whose time passes `speed` times faster until the standard input ends.
///
/// It first reports how it is reached. Then `phase WORKLOAD N` creates a workload's Deployments or scales them down, and
/// `look` reports its state.
pub async fn run(speed: f64) -> Outcome<()> {
    let clock = Clock::new(Timestamp::now(), speed);
    let testbed = Testbed::builder().seed(1).clock(clock).start().await;
    let definitions = crd::all(&[], &[])
        .into_iter()
        .map(|(_, definition)| definition);
    testbed
        .apply_crds(definitions.chain([node_class::crd()]))
        .await?;
    let client = testbed.admin_client();
    let _loops = Loops::start(testbed.client(), clock, loops::Options::default());
    Api::<KwokNodeClass>::all(client.clone())
        .create(&PostParams::default(), &KwokNodeClass::new("default"))
        .await?;
    let pool = serde_json::from_value(node_pool())?;
    Api::<NodePool>::all(client.clone())
        .create(&PostParams::default(), &pool)
        .await?;
    let served = testbed.serve(([127, 0, 0, 1], 0).into()).await?;
    report(&json!({"kubeconfig": served.kubeconfig(), "now": clock.now().to_string()}))?;
    let mut commands = commands();
    while let Some(line) = commands.recv().await {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["phase", workload, phase] => {
                let workload = named(workload).ok_or("unknown workload")?;
                begin(&client, &workload, phase.parse()?).await?;
                report(&json!({"now": clock.now().to_string()}))?;
            }
            ["look"] => report(&look(&client, clock.now()).await?)?,
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Returns upstream's NodePool: on-demand instances with less than 32 cores.
fn node_pool() -> Value {
    let requirement = |key: &str, operator: &str, value: &str| json!({"key": key, "operator": operator, "values": [value]});
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {
            "template": {"spec": {
                "expireAfter": "Never",
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [
                    requirement("kubernetes.io/os", "In", "linux"),
                    requirement("karpenter.sh/capacity-type", "In", "on-demand"),
                    requirement("karpenter.kwok.sh/instance-cpu", "Lt", "32"),
                ],
            }},
            "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]},
        },
    })
}

async fn begin(client: &Client, workload: &Workload, phase: usize) -> Outcome<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), "default");
    for deployment in &workload.deployments {
        if phase == 0 {
            let object = serde_json::from_value(deployment.object())?;
            api.create(&PostParams::default(), &object).await?;
        } else {
            let scale = json!({"spec": {"replicas": deployment.replicas[1]}});
            api.patch(
                deployment.name(),
                &PatchParams::default(),
                &Patch::Merge(scale),
            )
            .await?;
        }
    }
    Ok(())
}

async fn list<K>(client: &Client) -> Outcome<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let api = Api::<K>::all(client.clone());
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Returns the running pods, the nodes, and the share of the nodes' resources that pods request.
async fn look(client: &Client, now: Timestamp) -> Outcome<Value> {
    let (pods, nodes) = (list::<Pod>(client).await?, list::<Node>(client).await?);
    let claims = list::<NodeClaim>(client).await?;
    let amount = |text: &str| text.parse::<Quantity>().map_or(0.0, |q| q.as_f64());
    let mut asked = [0.0; 2];
    let mut running = 0;
    for pod in &pods {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        let leaves = pod.metadata.deletion_timestamp.is_some();
        running += usize::from(phase == Some("Running") && !leaves);
        let spec = pod.spec.as_ref();
        if spec.is_none_or(|s| s.node_name.is_none()) {
            continue;
        }
        for container in spec.into_iter().flat_map(|s| &s.containers) {
            let requests = container
                .resources
                .as_ref()
                .and_then(|r| r.requests.as_ref());
            for (sum, resource) in asked.iter_mut().zip(["cpu", "memory"]) {
                let request = requests.and_then(|r| r.get(resource));
                *sum += request.map_or(0.0, |q| amount(&q.0));
            }
        }
    }
    let mut there = [0.0; 2];
    for node in &nodes {
        let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
        for (sum, resource) in there.iter_mut().zip(["cpu", "memory"]) {
            let amount = allocatable
                .and_then(|a| a.get(resource))
                .map(|q| amount(&q.0));
            *sum += amount.unwrap_or(0.0);
        }
    }
    let names: Vec<&str> = claims.iter().map(NodeClaim::name).collect();
    Ok(json!({
        "now": now.to_string(), "pods": pods.len(), "running": running, "nodes": nodes.len(), "claims": names,
        "cpu": asked[0] / there[0], "memory": asked[1] / there[1],
    }))
}
