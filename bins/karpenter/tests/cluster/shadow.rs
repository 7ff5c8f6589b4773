//! The binary as a shadow beside another one, with the permissions of a shadow.

use std::path::Path;
use std::time::{Duration, Instant};

use karpenter_aws_fake::{AwsFake, Policy};
use karpenter_lab::aws::CLUSTER;
use serde_json::Value;

use crate::{Karpenter, MANIFESTS, TIMEOUT, free_port, kubectl_is_missing};
use crate::{log_of, on_a_cluster, page, succeeds, until};

fn decided(port: u16, path: &str) -> Option<Value> {
    let body = page(
        port,
        &format!("/apis/decisions.karpenter.sh/v1alpha1/{path}"),
    )?;
    Some(serde_json::from_str(&body).unwrap())
}

fn a_shadow_decides_and_calls_nothing_else(home: &Path, endpoint: &str, fake: &AwsFake) {
    let (objects, deployment) = MANIFESTS.rsplit_once("---\n").unwrap();
    // The other Karpenter makes the node class ready, which is in its status, and then pauses.
    let mut other = Karpenter::start(home, endpoint, &[("DECISIONS_PORT", "0")]);
    until(home, "readiness", || page(other.probes, "/readyz"));
    succeeds(home, &["apply", "-f", "-"], objects);
    let ready = ["wait", "--for=condition=Ready", "--timeout=60s"];
    succeeds(home, &[&ready[..], &["nodepool/default"]].concat(), "");
    assert!(other.stop().success());
    let before = fake.calls().len();
    let policy = include_str!("../../../../docs/iam-policy-shadow.json");
    let policy = Policy::parse(&Policy::fill(policy, CLUSTER)).unwrap();
    fake.set_policy(Some(policy));

    let port = free_port();
    let beside = home.join("shadow");
    std::fs::create_dir(&beside).unwrap();
    std::fs::copy(home.join("kubeconfig"), beside.join("kubeconfig")).unwrap();
    let shadow = [("SHADOW", "true"), ("DECISIONS_PORT", &port.to_string())];
    let mut shadow = Karpenter::start(&beside, endpoint, &shadow);
    until(&beside, "readiness", || page(shadow.probes, "/readyz"));
    succeeds(home, &["apply", "-f", "-"], deployment);
    let planned = until(&beside, "a decision", || {
        let answer = decided(port, "decisions?kind=Provisioning")?;
        let records = answer["items"].as_array().unwrap().iter();
        let mut items = records.flat_map(|record| record["items"].as_array().unwrap());
        items.find(|item| item["type"] == "Launched").cloned()
    });
    assert!(planned["pricePerHour"].as_f64().unwrap() > 0.0, "{planned}");
    let calls = fake.calls().split_off(before);
    assert!(!calls.is_empty());
    for call in &calls {
        let read = ["Describe", "Get"]
            .iter()
            .any(|it| call.action.starts_with(it));
        // The call that tests the permissions is a dry run, which AWS answers with an error.
        let allowed = call
            .error
            .as_deref()
            .is_none_or(|it| it == "DryRunOperation");
        assert!(read && allowed, "{call:?}");
    }
    assert!(fake.instances().is_empty());

    // The other goes on; the report compares both once the window of a minute is over.
    fake.set_policy(None);
    let mut other = Karpenter::start(home, endpoint, &[("DECISIONS_PORT", "0")]);
    let start = Instant::now();
    let report = loop {
        let report = decided(port, "shadow").unwrap();
        if report["provisioning"]["windows"] != 0 {
            break report;
        }
        let log = log_of(&beside);
        assert!(start.elapsed() < 3 * TIMEOUT, "{report}, {log}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(report["provisioning"]["pods"], 3, "{report}");
    assert_eq!(report["provisioning"]["covered"]["ours"], 3, "{report}");
    assert!(
        report["provisioning"]["nodes"]["ours"].as_u64() > Some(0),
        "{report}"
    );
    assert_eq!(report["refused"], 0, "{report}");
    let metrics = page(shadow.metrics, "/metrics").unwrap();
    for target in ["api", "provider"] {
        let line = format!("karpenter_shadow_refused_total{{target=\"{target}\"}} 0");
        assert!(metrics.lines().any(|it| it == line), "{metrics}");
    }
    assert!(shadow.stop().success() && other.stop().success());
    assert!(!log_of(&beside).contains("panicked"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_decides_beside_another_karpenter_with_describe_permissions() {
    if kubectl_is_missing() {
        return;
    }
    on_a_cluster(a_shadow_decides_and_calls_nothing_else).await;
}
