//! Metrics and events that describe the cluster's objects.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_fixtures::ARCH;
use karpenter_testbed::faults::{Fault, Rule};
use serde_json::json;
use skipped::skipped;

use crate::world::{World, deployment, node_pool};

/// Conformance: API-170, API-172, API-176, API-177
#[tokio::test(start_paused = true)]
async fn metrics_have_series_of_existing_objects_and_none_of_deleted_ones() {
    let world = World::new().await;
    world.run("app", 2).await;
    world.pass(30).await;
    let text = world.cluster.registry.render();
    let pod = world.pod_name("app").await;
    let node = world.node_name().await;
    let claim = world.claim().await;
    let count = |name: &str, parts: &str| {
        let own = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with('{'))
        });
        own.filter(|line| parts.split(" & ").all(|part| line.contains(part)))
            .count()
    };
    let pod_label = format!("name=\"{pod}\"");
    let node_label = format!("node_name=\"{node}\"");
    let named = format!("name=\"{}\"", claim.name());
    for name in ["allocatable", "total_pod_requests", "system_overhead"] {
        assert!(
            count(&format!("karpenter_nodes_{name}"), &node_label) > 0,
            "{name}"
        );
    }
    let initialized = format!(r#"type="Initialized" & status="True" & {named}"#);
    for (name, parts) in [
        (
            "karpenter_pods_state",
            format!(
                r#"{pod_label} & phase="Running" & nodepool="default" & node="{node}" & managed="true""#
            ),
        ),
        (
            "karpenter_nodes_total_pod_requests",
            format!(r#"{node_label} & resource_type="cpu" & capacity_type="spot" & }} 2"#),
        ),
        (
            "karpenter_nodes_current_lifetime_seconds",
            format!("{node_label} & instance_family="),
        ),
        (
            "karpenter_cluster_utilization_percent",
            r#"resource_type="cpu""#.to_owned(),
        ),
        (
            "karpenter_nodepools_usage",
            r#"resource_type="nodes" & nodepool="default" & } 1"#.to_owned(),
        ),
        (
            "operator_nodeclaim_status_condition_count",
            format!(
                r#"{initialized} & karpenter_sh_nodepool="default" & karpenter_kwok_sh_kwoknodeclass="default""#
            ),
        ),
        (
            "operator_status_condition_count",
            format!(r#"{initialized} & group="karpenter.sh" & kind="NodeClaim""#),
        ),
        (
            "operator_node_status_condition_current_status_seconds",
            format!(r#"name="{node}" & type="Ready" & karpenter_sh_initialized="true""#),
        ),
        (
            "operator_nodeclaim_status_condition_transitions_total",
            r#"type="Launched" & status="True" & reason="Launched" & } 1"#.to_owned(),
        ),
    ] {
        assert_eq!(count(name, &parts), 1, "{name}: {parts}");
    }
    let price = world.metric("karpenter_nodepools_cost_total{nodepool=\"default\"}");
    assert!((price.unwrap() - world.cluster.cloud.hourly_price()).abs() < 1e-9);
    assert_eq!(world.metric("karpenter_cluster_state_synced"), Some(1.0));
    assert_eq!(
        world.metric("karpenter_cluster_state_node_count"),
        Some(1.0)
    );
    let events = world.events_of("Registered").await.into_iter();
    let mut messages = events.filter_map(|event| event.message);
    assert!(messages.any(|it| it == "Status condition transitioned, Type: Registered, Status: Unknown -> True, Reason: Registered"));

    world.scale("app", 0).await;
    world.until_empty(300).await;
    world.pass(5).await;
    let text = world.cluster.registry.render();
    for gone in [pod_label, node_label, named] {
        assert!(!text.contains(&gone), "{gone}");
    }
    assert!(text.contains("karpenter_nodeclaims_disrupted_total{reason=\"empty\""));
    assert!(text.contains("operator_nodeclaim_termination_duration_seconds_count 1"));
    assert!(world.says("Finalized karpenter.sh/termination").await);
}

/// Conformance: API-171
#[tokio::test(start_paused = true)]
async fn metrics_have_the_age_of_pending_pods() {
    let world = World::new().await;
    world.add(deployment("app", 1).select(ARCH, "s390x")).await;
    world.pass(60).await;
    let pod = world.pod_name("app").await;
    for name in ["unstarted", "unbound"] {
        let waited = world.metric(&format!(
            "karpenter_pods_{name}_time_seconds{{name=\"{pod}\",namespace=\"default\"}}"
        ));
        assert!(waited.unwrap() >= 55.0, "{name}: {waited:?}");
    }
}

/// Conformance: API-210
#[tokio::test(start_paused = true)]
async fn metrics_of_unschedulable_pods_return_to_zero_once_they_are_deleted() {
    let world = World::new().await;
    world.add(deployment("app", 2).select(ARCH, "s390x")).await;
    world.pass(30).await;
    let unschedulable = "karpenter_scheduler_unschedulable_pods_count{controller=\"provisioner\"}";
    let zones = "karpenter_scheduler_pending_pods_by_effective_zone_count";
    let shows_zones = || world.cluster.registry.render().contains(zones);
    assert_eq!(world.metric(unschedulable), Some(2.0));
    assert!(shows_zones());
    world.scale("app", 0).await;
    world.pass(15).await;
    assert_eq!(world.pods().await.len(), 0);
    assert_eq!(world.metric(unschedulable), Some(0.0));
    assert!(!shows_zones());
}

/// Conformance: API-182
#[tokio::test(start_paused = true)]
async fn startup_of_pods_that_need_no_new_node_is_measured_too() {
    let world = World::new().await;
    // Once the NodePool has a node, its nodes are known to register.
    world.run("first", 1).await;
    world.add(deployment("large", 1).cpu("50")).await;
    world.until_running(2, 60).await;
    world.add(deployment("small", 1).cpu("10m")).await;
    world.until_running(3, 60).await;
    world.pass(5).await;
    assert_eq!(
        world.claims().await.len(),
        2,
        "the existing nodes have enough capacity"
    );
    for (name, pods) in [
        ("bound", 3.0),
        ("startup", 3.0),
        ("provisioning_bound", 1.0),
        ("provisioning_startup", 1.0),
    ] {
        let series = format!("karpenter_pods_{name}_duration_seconds_count");
        assert_eq!(world.metric(&series), Some(pods), "{name}");
    }
}

/// Conformance: API-176
#[tokio::test(start_paused = true)]
async fn the_budget_metrics_of_a_nodepool_are_removed_with_it() {
    let world = World::new().await;
    world.add(node_pool("other")).await;
    world.pass(30).await;
    let shown = |pool: &str| {
        let of = format!("{{nodepool=\"{pool}\",reason=\"Empty\"}}");
        ["allowed_disruptions", "nodes_consuming_budgets"]
            .map(|name| world.metric(&format!("karpenter_nodepools_{name}{of}")))
    };
    assert_eq!(shown("other"), [Some(0.0); 2]);
    world.delete::<NodePool>("other").await;
    world.pass(30).await;
    assert_eq!(shown("other"), [None; 2]);
    assert_eq!(shown("default"), [Some(0.0); 2]);
}

/// Conformance: API-184
#[tokio::test(start_paused = true)]
async fn pods_of_a_node_deleted_by_a_user_are_drained_forcefully() {
    let world = World::new().await;
    world.run("app", 2).await;
    let claim = world.claim().await;
    world.delete::<NodeClaim>(claim.name()).await;
    until!(world, 120, "its pods run elsewhere", |w| {
        let claims = w.claims().await;
        claims.iter().all(|c| c.name() != claim.name())
    });
    let drained = |reason: &str| {
        world.metric(&format!(
            "karpenter_pods_drained_total{{reason=\"{reason}\"}}"
        ))
    };
    assert_eq!(drained("Forceful Termination"), Some(2.0));
    assert_eq!(drained(""), None);
}

/// Conformance: API-185
#[tokio::test(start_paused = true)]
async fn a_command_that_cannot_delete_does_not_count_as_failed_replacement() {
    let world = World::new().await;
    world.run("app", 1).await;
    let fails = Fault::Error(500);
    let rule = Rule::new(fails).verb("delete").resource("nodeclaims");
    world.cluster.testbed.faults().add(rule);
    world.scale("app", 0).await;
    let failures = "karpenter_voluntary_disruption_queue_failures_total{decision=\"delete\",reason=\"empty\",consolidation_type=\"empty\"}";
    until!(world, 900, "the command times out", |w| {
        w.metric(failures).is_some()
    });
    assert_eq!(world.metric(failures), Some(0.0));
}

/// Conformance: API-159
#[tokio::test(start_paused = true)]
async fn metrics_and_events_about_objects_can_be_disabled() {
    let mut settings = crate::world::settings();
    settings.options.disable_cluster_state_observability = true;
    let world = World::with_settings(settings, node_pool("default")).await;
    world.run("app", 1).await;
    let text = world.cluster.registry.render();
    assert!(text.contains("karpenter_cluster_state_synced 1"));
    for described in [
        "karpenter_pods_state",
        "karpenter_nodes_allocatable",
        "karpenter_nodepools_usage",
        "status_condition",
    ] {
        assert!(!text.contains(described), "{described}");
    }
    let messages = world.messages().await;
    let is_transition = |it: &String| it.starts_with("Status condition transitioned");
    assert!(!messages.iter().any(is_transition));
}

#[tokio::test(start_paused = true)]
async fn dashboards_and_alerts_use_only_existing_metrics() {
    let world = World::new().await;
    let known = world.cluster.registry.names();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/karpenter");
    let mut asked = 0;
    let boards = std::fs::read_dir(chart.join("dashboards")).unwrap();
    let boards = boards.map(|file| file.unwrap().path());
    for path in boards.chain([chart.join("alerts.yaml")]) {
        let text = std::fs::read_to_string(&path).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("karpenter_")) {
            let exists = |name: &str| known.iter().any(|known| known == name);
            let of_histogram = ["_bucket", "_count", "_sum"]
                .iter()
                .any(|suffix| word.strip_suffix(suffix).is_some_and(exists));
            assert!(exists(word) || of_histogram, "{}: {word}", path.display());
            asked += 1;
        }
    }
    assert!(asked > 50);
}

#[tokio::test(start_paused = true)]
async fn promtool_accepts_the_metrics() {
    let world = World::new().await;
    world.run("app", 2).await;
    world.pass(30).await;
    let scrape = world.cluster.registry.render();
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        skipped("promtool", "it is not in PATH");
        return;
    };
    let mut stdin = promtool.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(scrape.as_bytes()).unwrap());
    let output = promtool.wait_with_output().unwrap();
    writer.join().unwrap();
    let findings = String::from_utf8_lossy(&output.stderr);
    // promtool reports upstream's metric names, which are kept.
    let of_ours = findings
        .lines()
        .filter(|line| !line.contains("metrics should not have"));
    assert_eq!(of_ours.collect::<Vec<_>>(), [""; 0]);
}

/// Conformance: API-170, API-171, API-177
#[tokio::test(start_paused = true)]
async fn series_about_objects_have_the_labels_of_the_reference() {
    let mut settings = crate::world::settings();
    settings.options.feature_gates.capacity_buffer = true;
    let world = World::with_settings(settings, node_pool("default").limit("cpu", "1000")).await;
    world.run("app", 2).await;
    world
        .add(deployment("nowhere", 1).select(ARCH, "s390x"))
        .await;
    world.pass(15).await;
    let claim = world.claim().await;
    // The finalizer of another controller keeps the claim terminating.
    let held =
        json!({"metadata": {"finalizers": ["karpenter.sh/termination", "example.com/held"]}});
    world.patch::<NodeClaim>(claim.name(), held).await;
    let text_before = world.cluster.registry.render();
    world.delete::<NodeClaim>(claim.name()).await;
    world.pass(3).await;
    let text = text_before + &world.cluster.registry.render();
    let labels = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('{'))
        });
        let line = line.unwrap_or_else(|| panic!("no series of {name}"));
        let inner = line[name.len() + 1..].rsplit_once("} ").unwrap().0;
        let mut labels: Vec<String> = inner
            .split("\",")
            .map(|pair| pair.split('=').next().unwrap().to_owned())
            .collect();
        labels.sort();
        labels
    };
    let has = |name: &str, expected: &str| {
        let mut expected: Vec<String> = expected.split_whitespace().map(str::to_owned).collect();
        expected.sort();
        assert_eq!(labels(name), expected, "{name}");
    };
    // What follows the slash of every well-known label, the provider's four included.
    let of_node = "node_name phase managed nodepool zone region instance_type arch os capacity_type windows_build \
        instance_size instance_family instance_cpu instance_memory";
    has("karpenter_nodes_current_lifetime_seconds", of_node);
    for name in ["allocatable", "total_pod_requests", "system_overhead"] {
        has(
            &format!("karpenter_nodes_{name}"),
            &format!("{of_node} resource_type"),
        );
    }
    has(
        "karpenter_pods_state",
        "name namespace owner node scheduled nodepool zone arch capacity_type instance_type phase ready managed",
    );
    has("karpenter_pods_unstarted_time_seconds", "name namespace");
    has("karpenter_pods_unbound_time_seconds", "name namespace");
    has("karpenter_nodepools_limit", "resource_type nodepool");
    has("karpenter_nodepools_usage", "resource_type nodepool");
    has("karpenter_nodepools_cost_total", "nodepool");
    has("karpenter_cluster_utilization_percent", "resource_type");
    let of_claim = "karpenter_sh_nodepool karpenter_kwok_sh_kwoknodeclass";
    let kinds = [
        ("nodeclaim", of_claim.to_owned()),
        ("nodepool", String::new()),
        ("node", format!("{of_claim} karpenter_sh_initialized")),
    ];
    for (kind, extra) in kinds {
        for name in ["count", "current_status_seconds"] {
            let of_condition = format!("namespace name type status reason {extra}");
            has(
                &format!("operator_{kind}_status_condition_{name}"),
                &of_condition,
            );
        }
        let transitions = format!("operator_{kind}_status_condition_transitions_total");
        has(&transitions, "type status reason");
        // Nodes are ready from the start here.
        if kind != "node" {
            let seconds = format!("operator_{kind}_status_condition_transition_seconds_count");
            has(&seconds, "type status");
        }
    }
    has(
        "operator_nodeclaim_termination_current_time_seconds",
        &format!("namespace name {of_claim}"),
    );
    has(
        "operator_status_condition_count",
        "namespace name group kind type status reason",
    );
    has(
        "operator_status_condition_transitions_total",
        "group kind type status reason",
    );
    has(
        "operator_termination_current_time_seconds",
        "namespace name group kind",
    );
    let buckets = text.lines().filter_map(|line| {
        let of_joining = "operator_nodeclaim_status_condition_transition_seconds_bucket{type=\"Registered\",status=\"Unknown\",le=\"";
        line.strip_prefix(of_joining)?.split('"').next()?.parse().ok()
    });
    let mut buckets: Vec<f64> = buckets.filter(|bucket: &f64| bucket.is_finite()).collect();
    buckets.dedup();
    let doubling = (0..15).map(|n| 0.5 * 2f64.powi(n));
    assert_eq!(buckets.get(..15), Some(&*doubling.collect::<Vec<_>>()));
    assert!(
        !text.contains("kind=\"Node\""),
        "nodes have no deprecated twins"
    );
}
