//! What is measured of a provider (section 11 of core-api.md).

use std::sync::Arc;

use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::fake::FakeCloud;
use karpenter_core::provider::{CloudProvider, CloudProviderError};
use karpenter_kube::metrics::{Metrics, Registry};
use karpenter_kube::provider::Provider;

fn measured() -> (Arc<FakeCloud>, Provider, Registry) {
    let (registry, cloud) = (Registry::new(), Arc::new(FakeCloud::default()));
    let inner: Arc<dyn CloudProvider> = cloud.clone();
    let measured = Provider::new(inner, Metrics::new(&registry));
    (cloud, measured, registry)
}

fn series(registry: &Registry, series: &str) -> Option<f64> {
    let text = registry.render();
    text.lines()
        .find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

/// Conformance: API-202
#[tokio::test]
async fn every_call_of_a_provider_is_timed_under_upstreams_name() {
    let (_, measured, registry) = measured();
    let claim = NodeClaim::new("a", Default::default());
    let launched = measured.create(&claim).await.unwrap();
    let id = launched.status.provider_id.clone().unwrap();
    measured.get(&id).await.unwrap();
    measured.list().await.unwrap();
    measured.instance_types(&NodePool::default()).await.unwrap();
    measured.is_drifted(&launched).await.unwrap();
    measured.delete(&launched).await.unwrap();
    for method in [
        "Create",
        "Get",
        "List",
        "GetInstanceTypes",
        "IsDrifted",
        "Delete",
    ] {
        let name = measured.profile().name.as_str();
        let labels = format!("{{controller=\"\",method=\"{method}\",provider=\"{name}\"}}");
        let timed = format!("karpenter_cloudprovider_duration_seconds_count{labels}");
        assert_eq!(series(&registry, &timed), Some(1.0), "{method}");
    }
    assert!(
        !registry
            .render()
            .contains("karpenter_cloudprovider_errors_total{")
    );
}

/// Conformance: API-203
#[tokio::test]
async fn errors_of_a_provider_are_counted_by_kind_nodeclaimnotfound_included() {
    let (cloud, measured, registry) = measured();
    let claim = NodeClaim::new("a", Default::default());
    for (error, label) in [
        (
            CloudProviderError::InsufficientCapacity("x".into()),
            "InsufficientCapacityError",
        ),
        (
            CloudProviderError::NodeClassNotReady("x".into()),
            "NodeClassNotReadyError",
        ),
        (
            CloudProviderError::NodeClaimNotFound("x".into()),
            "NodeClaimNotFoundError",
        ),
        (
            CloudProviderError::Create {
                reason: "R".into(),
                message: "m".into(),
                source: None,
            },
            "",
        ),
        (CloudProviderError::other("x"), ""),
    ] {
        let counted = format!(
            "karpenter_cloudprovider_errors_total{{controller=\"\",method=\"Create\",provider=\"{}\",error=\"{label}\"}}",
            measured.profile().name
        );
        let before = series(&registry, &counted).unwrap_or_default();
        cloud.fail(error);
        measured.create(&claim).await.unwrap_err();
        assert_eq!(series(&registry, &counted), Some(before + 1.0), "{label}");
    }
    measured.delete(&claim).await.unwrap_err();
    let gone = format!(
        "karpenter_cloudprovider_errors_total{{controller=\"\",method=\"Delete\",provider=\"{}\",error=\"NodeClaimNotFoundError\"}}",
        measured.profile().name
    );
    assert_eq!(series(&registry, &gone), Some(1.0));
}
