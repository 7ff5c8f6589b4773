//! Metrics of offerings.

use std::collections::BTreeMap;

use karpenter_api::v1::NodePool;
use karpenter_aws::providers::instance_type::unavailable::{CapacityType, Pool};
use karpenter_kube::metrics::Counting;
use kube::api::DeleteParams;
use serde_json::json;

use crate::cluster::world::{World, WorldOptions};

fn available(capacity_type: &str, zone: &str) -> String {
    let offering = "karpenter_cloudprovider_instance_type_offering_available";
    format!(
        r#"{offering}{{instance_type="m5.large",capacity_type="{capacity_type}",zone="us-west-2{zone}"}}"#
    )
}

/// Conformance: AWS-metrics-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_of_aws_has_upstream_s_name_and_labels() {
    let world = World::new().await;
    let known = world.registry.descriptions();
    let offering = ["instance_type", "capacity_type", "zone"];
    let call = ["service", "action"];
    let answer = ["service", "action", "status_code"];
    for (name, labels) in [
        (
            "karpenter_cloudprovider_instance_type_offering_available",
            &offering[..],
        ),
        (
            "karpenter_cloudprovider_instance_type_offering_price_estimate",
            &offering,
        ),
        (
            "karpenter_cloudprovider_instance_type_cpu_cores",
            &["instance_type"],
        ),
        (
            "karpenter_cloudprovider_instance_type_memory_bytes",
            &["instance_type"],
        ),
        (
            "karpenter_cloudprovider_instance_launch_failures_total",
            &["zone", "zone_id", "capacity_type", "reason"],
        ),
        (
            "karpenter_cloudprovider_instance_termination_failures_total",
            &["zone", "zone_id"],
        ),
        (
            "karpenter_cloudprovider_batcher_batch_time_seconds",
            &["batcher"],
        ),
        ("karpenter_cloudprovider_batcher_batch_size", &["batcher"]),
        (
            "karpenter_interruption_received_messages_total",
            &["message_type"],
        ),
        ("karpenter_interruption_deleted_messages_total", &[]),
        ("karpenter_interruption_message_queue_duration_seconds", &[]),
        (
            "karpenter_interruption_instance_status_unhealthy_total",
            &["category"],
        ),
        ("karpenter_ec2nodeclasses_userdata_bytes", &["nodeclass"]),
        ("aws_sdk_go_request_total", &answer),
        ("aws_sdk_go_request_retry_count", &call),
        ("aws_sdk_go_request_duration_seconds", &call),
        ("aws_sdk_go_request_attempt_total", &answer),
        ("aws_sdk_go_request_attempt_duration_seconds", &call),
    ] {
        let found = known.get(name).map(|metric| metric.labels.as_slice());
        assert_eq!(found.unwrap_or_default(), labels, "{name}");
        assert!(found.is_some(), "{name}");
    }
    let names = world.registry.names();
    for name in [
        "operator_ec2nodeclass_status_condition_count",
        "operator_ec2nodeclass_status_condition_transitions_total",
        "operator_ec2nodeclass_status_condition_transition_seconds",
        "operator_ec2nodeclass_termination_duration_seconds",
    ] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
}

/// Returns the heading of a metric in the reference.
fn heading(name: &str) -> &'static str {
    let headings = [
        ("karpenter_build_info", "Cluster"),
        ("karpenter_pods_", "Pods"),
        ("karpenter_nodes_", "Nodes"),
        ("karpenter_nodeclaims_", "NodeClaims"),
        ("karpenter_nodepools_", "NodePools"),
        ("karpenter_scheduler_", "Scheduling"),
        ("karpenter_voluntary_disruption_", "Disruption"),
        ("karpenter_consolidation_", "Disruption"),
        ("karpenter_cluster_", "Cluster"),
        ("karpenter_decisions_", "Decisions"),
        ("karpenter_", "Cloud provider"),
        ("aws_sdk_go_", "Cloud provider"),
        ("operator_", "Conditions of objects"),
        ("controller_runtime_", "Controllers and work queues"),
        ("workqueue_", "Controllers and work queues"),
        ("leader_election_", "Leader election"),
        ("client_go_", "Requests to the API server"),
        ("", "Process"),
    ];
    let found = headings.iter().find(|(prefix, _)| name.starts_with(prefix));
    found.unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reference_page_of_metrics_has_every_metric_that_is_registered() {
    let how = WorldOptions {
        leader_election: true,
        ..WorldOptions::default()
    };
    let world = World::start(|b| b, |_| {}, |_| {}, how).await;
    // The program's own clients count their requests.
    let _counting = Counting::new(&world.registry);
    let code = |name: &String| format!("`{name}`");
    let mut sections: BTreeMap<&str, String> = BTreeMap::new();
    for (name, metric) in world.registry.descriptions() {
        let labels: Vec<String> = metric.labels.iter().map(code).collect();
        sections
            .entry(heading(&name))
            .or_default()
            .push_str(&format!(
                "| `{name}` | {} | {} | {} |\n",
                metric.kind,
                labels.join(", "),
                reference::cell(metric.help.trim_end_matches('.')),
            ));
    }
    for section in ["Leader election", "Requests to the API server"] {
        assert!(sections.contains_key(section), "{sections:?}");
    }
    let mut page = "# Metrics\n\nThe metrics that the controller for AWS registers, including those without series yet. \
        [Metrics, dashboards, alerts](../metrics.md) says which of them answers which question.\n"
        .to_owned();
    for (heading, rows) in sections {
        page.push_str(&format!(
            "\n## {heading}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n{rows}"
        ));
    }
    reference::page("metrics", &page).unwrap();
}

/// Conformance: AWS-metrics-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offering_is_available_if_one_pool_can_use_it() {
    let world = World::new().await;
    let subnets = json!([{ "id": "subnet-00000000000000002" }]);
    let spec = json!({ "subnetSelectorTerms": subnets });
    world.class("half", spec).await;
    world.pool("half", "half", json!([])).await;
    world.pool("broken", "nowhere", json!([])).await;
    for zone in ["a", "b"] {
        world.counts(&available("on-demand", zone), 1.0).await;
        world.counts(&available("spot", zone), 1.0).await;
        world.counts(&available("reserved", zone), 0.0).await;
    }
    let price = available("on-demand", "a").replace("_available", "_price_estimate");
    assert!((world.metric(&price) - 0.096).abs() < 0.01);
    let of_type = |name: &str| {
        format!(r#"karpenter_cloudprovider_instance_type_{name}{{instance_type="m5.large"}}"#)
    };
    assert!((world.metric(&of_type("cpu_cores")) - 2.0).abs() < 0.01);
    let memory = 8.0 * 1024.0 * 1024.0 * 1024.0;
    assert!((world.metric(&of_type("memory_bytes")) - memory).abs() < 0.01);
    assert!(
        world
            .registry
            .render()
            .contains(&available("reserved", "a")),
        "exported as not available"
    );

    let pool = Pool {
        capacity_type: CapacityType::Spot,
        instance_type: "m5.large".into(),
        zone: "us-west-2b".into(),
        placement: None,
    };
    // The pool is marked at every poll, as failing launches would: on a loaded computer a mark may expire before it is
    // exported.
    world
        .until("a mark to be exported", async || {
            world
                .aws
                .offered
                .unavailable()
                .lock()
                .mark(pool.clone(), world.fake.clock().now());
            (world.metric(&available("spot", "b")).abs() < 0.01).then_some(())
        })
        .await;
    assert!((world.metric(&available("spot", "a")) - 1.0).abs() < 0.01);

    let pools = world.api::<NodePool>();
    let now = DeleteParams::default();
    pools.delete("default", &now).await.unwrap();
    world.counts(&available("on-demand", "a"), 0.0).await;
    assert!((world.metric(&available("on-demand", "b")) - 1.0).abs() < 0.01);
    world.nothing_beyond_the_policy();
}
