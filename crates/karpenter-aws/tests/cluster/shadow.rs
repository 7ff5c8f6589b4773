//! A shadow on AWS: it offers instance types with Describe calls only, which `docs/iam-policy-shadow.json` allows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use karpenter_aws::context::AwsSettings;
use karpenter_aws::operator::AwsOperator;
use karpenter_aws::sdk::{Aws, Connect};
use karpenter_aws_fake::{AwsFake, Policy};
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::world::policy::fill;
use crate::world::{CLUSTER, World};

const POLICY: &str = include_str!("../../../../docs/iam-policy-shadow.json");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_plans_nodes_with_the_describe_calls_of_its_policy_and_changes_nothing() {
    let world = World::new().await;
    // An AWS of its own, so that all calls there are those of the shadow.
    let fake = AwsFake::builder()
        .region("us-west-2")
        .cluster(CLUSTER)
        .unlimited()
        .settings(|s| s.page_size = 100)
        .build();
    fake.set_policy(Some(Policy::parse(&fill(POLICY)).unwrap()));
    let server = fake.serve(0).await.unwrap();
    let registry = Registry::new();
    let how = Connect {
        region: Some("us-west-2".into()),
        endpoint: Some(server.url()),
        credentials: Some(("AKIASHADOW".into(), "secret".into())),
        pause: Duration::from_millis(1),
        registry: registry.clone(),
        ..Connect::default()
    };
    let aws = Aws::connect(&how).await.unwrap();
    let clock = world.cx.as_ref().unwrap().clock;
    let client = world.client.clone();
    let settings = AwsSettings::for_cluster(CLUSTER);
    let on_aws = AwsOperator::new(aws, client.clone(), clock, &registry, settings)
        .await
        .unwrap();
    let options = Options {
        shadow: true,
        metrics_port: 0,
        decisions_port: 0,
        health_probe_port: 0,
        ..Options::default()
    };
    let operator = Operator::builder(on_aws.provider(), client.clone(), options)
        .clock(clock)
        .registry(registry.clone())
        .with(|_| unreachable!("controllers do not run in a shadow"))
        .with_in_shadow(move |controllers| on_aws.add_reads(controllers))
        .build();
    let cx = Arc::clone(operator.context());
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(operator.run(stop));

    let pod = json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": [{"name": "web", "image": "web", "resources": {"requests": {"cpu": "1"}}}]},
    });
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let unschedulable = json!({"status": {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
    ]}});
    let patch = Patch::Merge(unschedulable);
    let params = PatchParams::default();
    pods.patch_status("web", &params, &patch).await.unwrap();
    let report = world
        .until("a compared window", async || {
            let report = cx.shadow.as_ref()?.report(None, clock.now());
            let nodes = report.provisioning.nodes;
            (nodes.ours == 1 && nodes.theirs == 1).then_some(report)
        })
        .await;
    assert_eq!(report.provisioning.covered.ours, 1);
    assert!(report.provisioning.price_per_hour.ours > 0.0);
    assert_eq!(report.refused, 0);
    let needed = fake.needed_permissions();
    let actions: BTreeSet<&str> = needed.iter().map(|it| it.action.as_str()).collect();
    for action in &actions {
        let (_, operation) = action.split_once(':').unwrap();
        let reads = ["Describe", "Get", "List"];
        assert!(
            reads.iter().any(|read| operation.starts_with(read)),
            "{action}"
        );
    }
    let policy = Policy::parse(&fill(POLICY)).unwrap();
    let denied: Vec<_> = needed.iter().filter(|it| !policy.allows(it)).collect();
    assert!(denied.is_empty(), "{denied:?}");
    // Nothing in the policy is superfluous.
    for action in [
        "ec2:DescribeInstanceTypeOfferings",
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeSpotPriceHistory",
        "eks:DescribeCluster",
        "pricing:GetProducts",
    ] {
        assert!(actions.contains(action), "{actions:?}");
    }
}
