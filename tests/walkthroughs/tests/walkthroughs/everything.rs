//! Not a users' walkthrough: the current Karpenter with all features enabled but those of older generations, to compare the chart's
//! roles with all requests of the controller to the API server.

use std::time::Duration;

use crate::cluster::{Cluster, Start, is_true};

const VALUES: &str = "
settings:
  clusterName: ${CLUSTER_NAME}
  interruptionQueue: ${CLUSTER_NAME}
  ignoreDRARequests: false
  featureGates:
    nodeRepair: true
    nodeOverlay: true
    spotToSpotConsolidation: true
    staticCapacity: true
    capacityBuffer: true
  awsFeatureGates: {nodeClassCEL: true}
";
const OBJECTS: &str = r#"
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: KarpenterNodeRole-everything
  amiSelectorTerms: [{alias: al2@latest}]
  subnetSelectorTerms: [{tags: {karpenter.sh/discovery: everything}}]
  securityGroupSelectorTerms: [{tags: {karpenter.sh/discovery: everything}}]
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: fixed}
spec:
  replicas: 1
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [m5.large]}]
      taints: [{key: fixed, effect: NoSchedule}]
---
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: discount}
spec:
  requirements: [{key: karpenter.k8s.aws/instance-family, operator: In, values: [c5]}]
  priceAdjustment: "-99%"
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {karpenter.sh/nodepool: general}
      containers: [{name: web, image: web, resources: {requests: {cpu: "1"}}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec:
  maxUnavailable: 1
  selector: {matchLabels: {app: web}}
---
apiVersion: autoscaling.x-k8s.io/v1beta1
kind: CapacityBuffer
metadata: {name: web}
spec:
  scalableRef: {apiGroup: apps, kind: Deployment, name: web}
  replicas: 2
"#;
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_roles_of_the_chart_are_sufficient_with_every_feature_gate_enabled() {
    let start = Start {
        title: "All features enabled",
        cluster: "everything",
        kubernetes: "1.30",
        published: &[],
        generation: 6,
        values: VALUES,
    };
    let Some(mut cluster) = Cluster::start(start).await else {
        return;
    };
    cluster.apply_text(OBJECTS);
    cluster
        .until("pods run on the discounted family", MINUTE, |cluster| {
            is_true(&cluster.get(&["nodeoverlay", "discount"]), "Ready")?;
            let deployment = cluster.get(&["deployment", "web"]);
            (deployment["status"]["readyReplicas"] == 2).then_some(())
        })
        .await;
    let family = "karpenter.k8s.aws/instance-family";
    let general = cluster.items(&["nodes", "-l", "karpenter.sh/nodepool=general"]);
    for node in &general {
        assert_eq!(node["metadata"]["labels"][family], "c5");
    }
    cluster
        .until(
            "there is capacity for the buffer's pods",
            MINUTE,
            |cluster| {
                is_true(
                    &cluster.get(&["capacitybuffer", "web"]),
                    "ReadyForProvisioning",
                )?;
                let nodes = cluster.items(&["nodes", "-l", "karpenter.sh/nodepool=general"]);
                let cpus = nodes.iter().map(|node| {
                    let label = &node["metadata"]["labels"]["karpenter.k8s.aws/instance-cpu"];
                    label.as_str().unwrap().parse::<u32>().unwrap()
                });
                let all: u32 = cpus.sum();
                (all >= 4).then_some(())
            },
        )
        .await;
    cluster
        .until("the static NodePool has its node", MINUTE, |cluster| {
            let nodes = cluster.items(&["nodes", "-l", "karpenter.sh/nodepool=fixed"]);
            (nodes.len() == 1).then_some(())
        })
        .await;
    cluster.step("Deleting all NodePools.");
    cluster.kubectl(&["delete", "capacitybuffer,deployment", "web"]);
    cluster.kubectl(&["delete", "nodepools", "--all", "--wait=false"]);
    cluster.until_nothing_is_left().await;
    cluster.end().await;
}
