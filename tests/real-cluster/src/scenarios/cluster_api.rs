//! The Cluster API provider with Cluster API's own controllers: no Machine is lost, none is doubled, whatever happens in a burst.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::audit;
use crate::binaries::Manager;
use crate::case::{Case, SOON};
use crate::cluster::{Cluster, claims_and_nodes_belong_together};
use crate::helm::KARPENTER;
use crate::objects::{
    DEV_MACHINES, MACHINE_DEPLOYMENTS, MACHINES, NODE_CLAIMS, NODES, api_of, apply, condition,
    delete, list, merge, merge_status, name,
};
use crate::paths::controller_binary;
use crate::plane::{ClusterApi, FLEET, offer};
use crate::scenarios::faults;
use crate::suite::{cluster_api_class, install_cluster_api};
use crate::wait::{Seen, until};

const UID: &str = "karpenter.cluster.x-k8s.io/nodeclaim-uid";
/// Pods of a burst: eight fit on a large node, four on a small one.
const MANY: usize = 200;
const FEW: usize = 40;
/// Machines that may be launched from each MachineDeployment of large and of small nodes, so that a burst needs all four.
const LARGE: u32 = 5;
const SMALL: u32 = 20;
const BURST: Duration = Duration::from_secs(240);
/// Drift of the provider is looked for every five minutes; then nodes are replaced.
const DRIFT: Duration = Duration::from_secs(480);

/// Runs the scenarios one after the other, and reports each.
pub(crate) async fn run(
    cluster: &mut Cluster,
    managers: &[Manager],
    mut report: impl FnMut(&str, Instant, Result<()>),
) {
    let started = Instant::now();
    let installed = install(cluster, managers).await;
    let mut fleet = match installed {
        Ok(fleet) => fleet,
        Err(problem) => return report("cluster-api-install", started, Err(problem)),
    };
    report("cluster-api-install", started, Ok(()));
    macro_rules! scenario {
        ($name:literal, $run:expr) => {
            let started = Instant::now();
            let result = $run.await.and_then(|()| fleet.managers.is_running());
            report(concat!("cluster-api-", $name), started, result);
        };
    }
    scenario!("burst", fleet.burst());
    scenario!("consolidation", fleet.consolidation());
    scenario!("interruption", fleet.interruption());
    scenario!("unhealthy", fleet.unhealthy());
    scenario!("drift", fleet.drift());
    scenario!("killed", fleet.killed(cluster));
    scenario!("api-server-gone", fleet.api_server_gone(cluster));
    scenario!("nothing-left", fleet.nothing_left());
    scenario!("rights-and-log", async { rights(cluster) });
}

struct Fleet {
    case: Case,
    managers: ClusterApi,
}

/// Starts Cluster API, installs the charts for its provider, and creates four MachineDeployments and a NodePool.
async fn install(cluster: &mut Cluster, managers: &[Manager]) -> Result<Fleet> {
    let managers = ClusterApi::start(&cluster.plane, managers).await?;
    let client = cluster.client.clone();
    for zone in ["a", "b"] {
        offer(&client, 4, zone, SMALL).await?;
        offer(&client, 8, zone, LARGE).await?;
    }
    let class = install_cluster_api(cluster, json!({})).await?;
    let binary = controller_binary("karpenter-cluster-api")?;
    cluster.run(&binary, &BTreeMap::new()).await?;
    let classes = api_of(&client, &class)?;
    until("the node class is ready", &classes, "", SOON, |seen| {
        let is_ready = |class: &Value| condition(class, "Ready") == "True";
        Ok(seen.values().any(is_ready).then_some(()))
    })
    .await?;
    let case = Case::new(&client, "fleet-pods").await?;
    case.pool(json!({
        "template": { "spec": { "nodeClassRef": cluster_api_class() } },
        "disruption": {
            "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "10s", "budgets": [{ "nodes": "50%" }],
        },
    }))
    .await?;
    Ok(Fleet { case, managers })
}

/// Checks that the audit log has no Machine that was created twice, no refused request, and a use for every permission.
fn rights(cluster: &mut Cluster) -> Result<()> {
    cluster.check()?;
    let requests = audit::requests(&cluster.plane.audit_log(), KARPENTER, cluster.started)?;
    let of_fleet = || {
        let groups = ["cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io"];
        requests.iter().filter(move |r| groups.contains(&r.group()))
    };
    let machines = of_fleet().filter(|r| r.what() == "create machines");
    let created: Vec<&str> = machines.filter_map(audit::Request::created).collect();
    let distinct: BTreeSet<&str> = created.iter().copied().collect();
    ensure!(created.len() > MANY / 8, "only {} Machines", created.len());
    ensure!(
        distinct.len() == created.len(),
        "created twice: {created:?}"
    );
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    of_fleet().for_each(|request| *counts.entry(request.what()).or_default() += 1);
    let used: BTreeSet<String> = counts.keys().cloned().collect();
    let granted = [
        "create devmachines",
        "create machines",
        "delete machines",
        "get clusters",
        "get devmachinetemplates",
        "get machines",
        "list machinedeployments",
        "list machines",
        "patch machines",
        "watch machinedeployments",
        "watch machines",
    ];
    ensure!(used == granted.map(str::to_owned).into(), "used: {used:?}");
    println!(
        "cluster-api: {} Machines were created; requests: {counts:?}",
        created.len()
    );
    Ok(())
}

impl Fleet {
    /// Pods are launched on Machines of all four MachineDeployments.
    async fn burst(&mut self) -> Result<()> {
        let pods = u32::try_from(MANY)?;
        self.case.deploy("work", pods, "900m", json!({})).await?;
        self.nothing_lost_or_doubled(MANY).await?;
        let machines = self.machines().await?;
        let used: BTreeSet<&str> = machines
            .iter()
            .filter_map(|m| m["metadata"]["labels"]["of"].as_str())
            .collect();
        ensure!(used.len() == 4, "only {used:?} are used");
        Ok(())
    }

    /// Nodes that are not needed any more are deleted with their Machines.
    async fn consolidation(&mut self) -> Result<()> {
        self.case.scale("work", u32::try_from(FEW)?).await?;
        // Forty pods need five large nodes, or ten small ones for the same price.
        self.until_machines("nodes are consolidated", |seen| seen.len() <= 10)
            .await?;
        self.nothing_lost_or_doubled(FEW).await
    }

    /// A Machine that a user deletes takes its NodeClaim with it, and its pods run elsewhere.
    async fn interruption(&mut self) -> Result<()> {
        let machines = self.machines().await?;
        let gone = machines.first().context("there are no Machines")?;
        let api = MACHINES.of_namespace(&self.case.client, FLEET);
        delete(&api, name(gone)).await?;
        self.until_replaced(gone).await
    }

    /// A Machine whose node a MachineHealthCheck finds unhealthy is replaced, by Karpenter and not by Cluster API.
    async fn unhealthy(&mut self) -> Result<()> {
        let client = &self.case.client;
        let check = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck",
            "metadata": { "name": "broken", "namespace": FLEET },
            "spec": {
                "clusterName": "c1",
                "selector": { "matchLabels": { "cluster.x-k8s.io/cluster-name": "c1" } },
                "checks": { "unhealthyNodeConditions": [{ "type": "Broken", "status": "True", "timeoutSeconds": 1 }] },
            },
        });
        apply(client, &check).await?;
        let machines = self.machines().await?;
        let broken = machines.first().context("there are no Machines")?;
        let node = broken
            .pointer("/status/nodeRef/name")
            .and_then(Value::as_str);
        let node = node.context("the Machine has no Node")?;
        let nodes = NODES.all(client);
        let mut conditions =
            serde_json::to_value(nodes.get(node).await?)?["status"]["conditions"].take();
        let now = jiff::Timestamp::now().strftime("%FT%TZ").to_string();
        let seen = json!({ "type": "Broken", "status": "True", "lastTransitionTime": now });
        conditions
            .as_array_mut()
            .context("the Node has no conditions")?
            .push(seen);
        merge_status(
            &nodes,
            node,
            json!({ "status": { "conditions": conditions } }),
        )
        .await?;
        self.until_replaced(broken).await?;
        delete(&api_of(client, &check)?, "broken").await
    }

    /// Nodes of an older version than their MachineDeployment's are replaced.
    async fn drift(&mut self) -> Result<()> {
        let deployments = MACHINE_DEPLOYMENTS.of_namespace(&self.case.client, FLEET);
        let version = json!("v1.36.4");
        let newer = json!({ "spec": { "template": { "spec": { "version": version } } } });
        for deployment in list(&deployments, "").await? {
            merge(&deployments, name(&deployment), newer.clone()).await?;
        }
        let machines = MACHINES.of_namespace(&self.case.client, FLEET);
        let what = "all Machines are of the new version";
        until(what, &machines, UID, DRIFT, |seen| {
            let newer = |m: &Value| m["spec"]["version"] == version;
            Ok(seen.values().all(newer).then_some(()))
        })
        .await?;
        self.nothing_lost_or_doubled(FEW).await
    }

    /// Waits until the NodeClaim of a Machine is gone, and its pods run elsewhere.
    async fn until_replaced(&self, machine: &Value) -> Result<()> {
        let uid = &machine["metadata"]["labels"][UID];
        let claims = NODE_CLAIMS.all(&self.case.client);
        let is_gone = |seen: &Seen| {
            let mut uids = seen.values().map(|claim| &claim["metadata"]["uid"]);
            Ok((!uids.any(|own| own == uid)).then_some(()))
        };
        until("its NodeClaim is gone", &claims, "", SOON, is_gone).await?;
        self.nothing_lost_or_doubled(FEW).await
    }

    async fn killed(&mut self, cluster: &mut Cluster) -> Result<()> {
        self.begin_burst().await?;
        let controller = cluster.controller()?;
        controller.kill();
        controller.start_again()?;
        self.nothing_lost_or_doubled(MANY).await?;
        self.consolidation().await
    }

    async fn api_server_gone(&mut self, cluster: &mut Cluster) -> Result<()> {
        self.begin_burst().await?;
        faults::without_api_server(cluster).await?;
        self.nothing_lost_or_doubled(MANY).await
    }

    /// Without pods there are no Machines, no infrastructure, no NodeClaims and no Nodes.
    async fn nothing_left(&mut self) -> Result<()> {
        self.case.end().await?;
        self.until_machines("no Machines are left", Seen::is_empty)
            .await?;
        let left = list(&DEV_MACHINES.of_namespace(&self.case.client, FLEET), "").await?;
        ensure!(left.is_empty(), "{} DevMachines are left", left.len());
        Ok(())
    }

    /// Scales up, and returns when some Machines are created and others are not.
    async fn begin_burst(&self) -> Result<()> {
        let before = self.machines().await?.len();
        self.case.scale("work", u32::try_from(MANY)?).await?;
        self.until_machines("ten more Machines", |seen| seen.len() >= before + 10)
            .await
    }

    async fn machines(&self) -> Result<Vec<Value>> {
        list(&MACHINES.of_namespace(&self.case.client, FLEET), UID).await
    }

    async fn until_machines(&self, what: &str, holds: impl Fn(&Seen) -> bool) -> Result<()> {
        let machines = MACHINES.of_namespace(&self.case.client, FLEET);
        until(what, &machines, UID, BURST, |seen| {
            Ok(holds(seen).then_some(()))
        })
        .await
    }

    /// Every pod runs, and each NodeClaim has one Machine, one DevMachine and one Node.
    async fn nothing_lost_or_doubled(&self, pods: usize) -> Result<()> {
        let case = &self.case;
        case.until_running(pods, BURST).await?;
        // Consolidation may replace nodes meanwhile: look when all of them are initialized and none is deleted.
        let claims = NODE_CLAIMS.all(&case.client);
        until(
            "NodeClaims are initialized",
            &claims,
            &case.selector(),
            BURST,
            |seen| {
                let settled = |claim: &Value| {
                    condition(claim, "Initialized") == "True"
                        && claim["metadata"]["deletionTimestamp"].is_null()
                };
                Ok(seen.values().all(settled).then_some(()))
            },
        )
        .await?;
        claims_and_nodes_belong_together(&case.client, &case.selector()).await?;
        let claims = list(&claims, &case.selector()).await?;
        let machines = self.machines().await?;
        let sorted = |all: &[Value], at: &str| {
            let all = all.iter().map(|o| {
                o.pointer(at)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            });
            let mut all: Vec<String> = all.collect();
            all.sort();
            all
        };
        let uid = format!("/metadata/labels/{}", UID.replace('/', "~1"));
        let (of_machines, of_claims) = (sorted(&machines, &uid), sorted(&claims, "/metadata/uid"));
        ensure!(
            of_machines == of_claims,
            "Machines of {of_machines:?}, NodeClaims {of_claims:?}"
        );
        let devices = list(&DEV_MACHINES.of_namespace(&case.client, FLEET), "").await?;
        let (of_machines, devices) = (
            sorted(&machines, "/metadata/name"),
            sorted(&devices, "/metadata/name"),
        );
        ensure!(
            of_machines == devices,
            "Machines {of_machines:?}, DevMachines {devices:?}"
        );
        Ok(())
    }
}
