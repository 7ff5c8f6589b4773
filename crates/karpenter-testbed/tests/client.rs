//! The embedded server with kube-rs: pages, faults, loaded objects.

#![expect(clippy::panic, reason = "what fails here fails the test")]

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use karpenter_testbed::Testbed;
use kube::api::{DeleteParams, ListParams, PostParams, WatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

fn pod(name: &str) -> Pod {
    let pod = karpenter_fixtures::pod(name).label("app", "a");
    pod.as_written().remove("/metadata/namespace").build()
}

#[tokio::test]
async fn pages_are_of_one_snapshot_while_objects_change() {
    let testbed = Testbed::builder().start().await;
    let pods: Api<Pod> = Api::namespaced(testbed.client(), "default");
    for name in ["a", "b", "c", "d"] {
        pods.create(&PostParams::default(), &pod(name))
            .await
            .unwrap();
    }
    let cached = "/api/v1/namespaces/default/pods?limit=2&resourceVersion=0";
    let cached = http::Request::get(cached).body(Vec::new()).unwrap();
    let cached: kube::core::ObjectList<Pod> = testbed.client().request(cached).await.unwrap();
    assert_eq!(cached.items.len(), 4, "a read from the cache is complete");
    let first = pods.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(2));
    pods.delete("c", &DeleteParams::default()).await.unwrap();
    pods.create(&PostParams::default(), &pod("cc"))
        .await
        .unwrap();
    let token = first.metadata.continue_.unwrap();
    let second = pods
        .list(&ListParams::default().limit(5).continue_token(&token))
        .await
        .unwrap();
    let names: Vec<_> = second.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["c", "d"]);
    testbed.compact();
    let error = pods
        .list(&ListParams::default().limit(5).continue_token(&token))
        .await
        .unwrap_err();
    assert!(matches!(error, kube::Error::Api(s) if s.code == 410));
}

mod faults {
    use std::time::Duration;

    use futures::{StreamExt, TryStreamExt};
    use k8s_openapi::api::core::v1::Pod;
    use karpenter_testbed::Testbed;
    use karpenter_testbed::faults::{Fault, Rule};
    use kube::Api;
    use kube::api::{GetParams, Patch, PatchParams, PostParams, WatchParams};

    use super::{json, pod};

    fn code(error: kube::Error) -> u16 {
        match error {
            kube::Error::Api(status) => status.code,
            other => panic!("{other}"),
        }
    }

    #[tokio::test]
    async fn injected_errors_affect_normal_clients_but_not_exempt_ones() {
        let testbed = Testbed::builder().start().await;
        let pods: Api<Pod> = Api::namespaced(testbed.client(), "default");
        let observer: Api<Pod> = Api::namespaced(testbed.admin_client(), "default");
        let error = Fault::Error(500);
        testbed
            .faults()
            .add(Rule::new(error).verb("create").resource("pods"));
        assert_eq!(
            code(
                pods.create(&PostParams::default(), &pod("a"))
                    .await
                    .unwrap_err()
            ),
            500
        );
        assert!(observer.get_opt("a").await.unwrap().is_none());
        testbed
            .faults()
            .set(vec![Rule::new(Fault::LostAnswer).times(1)]);
        assert_eq!(
            code(
                pods.create(&PostParams::default(), &pod("a"))
                    .await
                    .unwrap_err()
            ),
            500
        );
        assert!(observer.get_opt("a").await.unwrap().is_some());
        testbed
            .faults()
            .set(vec![Rule::new(Fault::Conflict).times(1)]);
        let patch = Patch::Merge(json!({"metadata": {"labels": {"x": "y"}}}));
        assert_eq!(
            code(
                pods.patch("a", &PatchParams::default(), &patch)
                    .await
                    .unwrap_err()
            ),
            409
        );
        pods.patch("a", &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn latency_passes_in_cluster_time() {
        let testbed = Testbed::builder().start().await;
        testbed
            .faults()
            .add(Rule::new(Fault::Latency(Duration::from_secs(3600))));
        let before = testbed.clock().now();
        let pods: Api<Pod> = Api::namespaced(testbed.client(), "default");
        pods.list(&Default::default()).await.unwrap();
        assert!(testbed.clock().now().duration_since(before).as_secs() >= 3600);
    }

    #[tokio::test]
    async fn a_dropped_watch_ends_and_a_stale_read_returns_an_older_state() {
        let testbed = Testbed::builder().start().await;
        let pods: Api<Pod> = Api::namespaced(testbed.client(), "default");
        pods.create(&PostParams::default(), &pod("a"))
            .await
            .unwrap();
        testbed
            .faults()
            .set(vec![Rule::new(Fault::DropWatch { after: 1 }).verb("watch")]);
        let watch = pods.watch(&WatchParams::default(), "0").await.unwrap();
        let events: Vec<_> = watch.boxed().try_collect().await.unwrap();
        assert_eq!(events.len(), 1);
        testbed
            .faults()
            .set(vec![Rule::new(Fault::Stale { revisions: 1 })]);
        let cached = GetParams::any();
        assert!(pods.get_with("a", &cached).await.is_err());
        assert!(pods.get("a").await.is_ok());
    }
}

#[tokio::test]
async fn loaded_objects_are_stored_unchanged_and_watched() {
    let testbed = Testbed::builder().start().await;
    let pods: Api<Pod> = Api::namespaced(testbed.client(), "default");
    let watch = pods.watch(&WatchParams::default(), "0").await.unwrap();
    let object = |kind: &str, name: &str| {
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"}})
    };
    let all = [
        object("Pod", "a"),
        object("Pod", "b"),
        object("Pod", "a"),
        object("Nothing", "c"),
    ];
    assert_eq!(
        testbed.load(all),
        2,
        "an existing name and an unknown kind are skipped"
    );
    let seen: Vec<_> = watch.boxed().take(2).try_collect().await.unwrap();
    assert_eq!(seen.len(), 2);
    let on_node = ListParams::default().fields("spec.nodeName=n");
    let listed = pods.list(&on_node).await.unwrap().items;
    let [a, _] = listed.as_slice() else {
        panic!("{listed:?}");
    };
    assert!(a.uid().is_some() && a.metadata.creation_timestamp.is_some());
    assert_eq!(
        a.status.as_ref().and_then(|s| s.phase.as_deref()),
        Some("Running")
    );
}
