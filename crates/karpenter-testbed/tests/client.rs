//! Tests of the embedded server with kube-rs: typed clients, watcher, finalizers, patches, eviction.

#![expect(clippy::panic, reason = "what fails here fails the test")]

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use karpenter_testbed::Testbed;
use kube::api::{
    DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::json;

fn pod(name: &str) -> Pod {
    let pod = karpenter_fixtures::pod(name).label("app", "a");
    pod.as_written().remove("/metadata/namespace").build()
}

#[tokio::test]
async fn a_watcher_sees_the_initial_objects_and_then_every_change() {
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ] {
        let testbed = Testbed::builder().start().await;
        let pods: Api<Pod> = Api::namespaced(testbed.client(), "default");
        pods.create(&PostParams::default(), &pod("a"))
            .await
            .unwrap();
        let mut events = watcher(Api::<Pod>::all(testbed.client()), config).boxed();
        let mut seen = Vec::new();
        while let Some(event) = events.try_next().await.unwrap() {
            seen.push(match event {
                watcher::Event::Init => "init".to_owned(),
                watcher::Event::InitApply(p) => format!("init {}", p.name_any()),
                watcher::Event::InitDone => {
                    pods.create(&PostParams::default(), &pod("b"))
                        .await
                        .unwrap();
                    pods.delete("a", &DeleteParams::default()).await.unwrap();
                    "ready".to_owned()
                }
                watcher::Event::Apply(p) => format!("apply {}", p.name_any()),
                watcher::Event::Delete(p) => format!("delete {}", p.name_any()),
            });
            if seen.len() == 5 {
                break;
            }
        }
        assert_eq!(seen, ["init", "init a", "ready", "apply b", "delete a"]);
    }
}

#[tokio::test]
async fn a_watch_with_a_selector_reports_changed_matches_as_added_and_deleted() {
    let testbed = Testbed::builder().start().await;
    let maps: Api<ConfigMap> = Api::namespaced(testbed.client(), "default");
    let start = maps
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let watch = maps
        .watch(&WatchParams::default().labels("on=yes"), &start)
        .await
        .unwrap();
    let mut watch = watch.boxed();
    let new = ConfigMap {
        metadata: ObjectMeta {
            name: Some("m".into()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    maps.create(&PostParams::default(), &new).await.unwrap();
    for value in ["yes", "no"] {
        let patch = json!({"metadata": {"labels": {"on": value}}});
        maps.patch("m", &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }
    assert!(matches!(
        watch.try_next().await.unwrap(),
        Some(WatchEvent::Added(_))
    ));
    assert!(matches!(
        watch.try_next().await.unwrap(),
        Some(WatchEvent::Deleted(_))
    ));
}

#[tokio::test]
async fn a_watch_from_compacted_history_reports_expiry() {
    let testbed = Testbed::builder().start().await;
    let pods: Api<Pod> = Api::namespaced(testbed.client(), "default");
    let start = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    pods.create(&PostParams::default(), &pod("a"))
        .await
        .unwrap();
    testbed.compact();
    let mut watch = pods
        .watch(&WatchParams::default(), &start)
        .await
        .unwrap()
        .boxed();
    match watch.try_next().await.unwrap() {
        Some(WatchEvent::Error(status)) => {
            assert_eq!((status.code, status.reason.as_str()), (410, "Expired"))
        }
        other => panic!("{other:?}"),
    }
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

/// The field may be omitted: counting a million objects for each page would make a list quadratic.
#[tokio::test]
async fn the_objects_after_a_page_are_counted_up_to_ten_thousand() {
    let testbed = Testbed::builder().start().await;
    let map = |n| {
        let metadata = json!({"namespace": "default", "name": format!("m-{n:05}")});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    };
    assert_eq!(testbed.load((0..10_001).map(map)), 10_001);
    let maps: Api<ConfigMap> = Api::namespaced(testbed.client(), "default");
    let mut page = ListParams::default().limit(1);
    let mut remaining = Vec::new();
    for _ in 0..2 {
        let metadata = maps.list(&page).await.unwrap().metadata;
        remaining.push(metadata.remaining_item_count);
        page = page.continue_token(&metadata.continue_.unwrap());
    }
    assert_eq!(remaining, [None, Some(9_999)]);
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
