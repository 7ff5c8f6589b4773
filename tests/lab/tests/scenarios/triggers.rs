//! Which changes of objects make which controllers reconcile.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{annotations, taints};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::pod::Pod;
use karpenter_fixtures::{node_claim, pod};
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Controller, ObjectKey, Queue};
use karpenter_kube::model::{Change, View};
use karpenter_kube::node::eviction::EvictionQueue;
use karpenter_kube::node::health::Health;
use karpenter_kube::node::termination::Termination;
use karpenter_kube::nodeclaim::conditions::DisruptionConditions;
use karpenter_kube::nodeclaim::consistency::Consistency;
use karpenter_kube::nodeclaim::drift::Drift;
use karpenter_kube::nodeclaim::expiration::Expiration;
use karpenter_kube::nodeclaim::hydration::{ClaimHydration, NodeHydration};
use karpenter_kube::nodeclaim::lifecycle::Lifecycle;
use karpenter_kube::nodeclaim::model_gc::ModelNodeClaimGc;
use karpenter_kube::nodeclaim::pod_events::PodEvents;
use karpenter_kube::nodepool::RegistrationHealth;
use karpenter_kube::provisioning::{Provisioner, Triggers};
use karpenter_kwok::KwokNodeClass;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::world::{World, deployment, node_pool, settings};

/// A cluster with one pod that blocks the drain of its node, and the model of its controllers.
struct Cluster {
    world: World,
    cx: Arc<Context>,
    view: Arc<View>,
}

impl Cluster {
    async fn new() -> Self {
        let world = World::bare(settings()).await;
        world.create(&KwokNodeClass::new("default")).await;
        let pool = node_pool("default").consolidate_after("Never");
        world.add(pool).await;
        world.add(deployment("app", 1).do_not_disrupt()).await;
        world.until_running(1, 60).await;
        world.pass(20).await;
        let cx = Arc::clone(world.cluster.context().unwrap());
        let view = cx.view();
        Self { world, cx, view }
    }

    fn node(&self) -> Arc<Node> {
        Arc::clone(self.view.nodes().next().unwrap())
    }

    fn node_name(&self) -> String {
        self.node().metadata.name.clone().unwrap()
    }

    fn claim(&self) -> Arc<NodeClaim> {
        Arc::clone(self.view.snapshot.node_claims().next().unwrap())
    }

    fn pool(&self) -> Arc<NodePool> {
        Arc::clone(self.view.node_pool("default").unwrap())
    }

    fn pod(&self) -> Arc<Pod> {
        Arc::clone(&self.view.pods_on(&self.node_name())[0])
    }

    /// Returns the names of the objects that a controller reconciles at once because of a change.
    fn reconciled<C>(&self, controller: &C, change: Change) -> Vec<String>
    where
        C: Controller<Key = ObjectKey>,
    {
        let queue = Queue::new();
        controller.triggered_by(&change, &self.view, &queue);
        due(&queue)
    }
}

fn due(queue: &Queue<ObjectKey>) -> Vec<String> {
    let keys = std::iter::from_fn(|| queue.next());
    keys.map(|key| key.name.to_string()).collect()
}

fn with<K: Clone>(object: &Arc<K>, change: impl FnOnce(&mut K)) -> Arc<K> {
    let mut changed = K::clone(object);
    change(&mut changed);
    Arc::new(changed)
}

fn node_change(before: Option<&Arc<Node>>, after: Option<&Arc<Node>>) -> Change {
    let node = after.or(before).unwrap();
    Change::Node {
        name: node.metadata.name.as_deref().unwrap().into(),
        before: before.cloned(),
        after: after.cloned(),
    }
}

fn claim_change(before: Option<&Arc<NodeClaim>>, after: Option<&Arc<NodeClaim>>) -> Change {
    let claim = after.or(before).unwrap();
    Change::NodeClaim {
        name: claim.name().into(),
        before: before.cloned(),
        after: after.cloned(),
    }
}

fn pool_change(before: Option<&Arc<NodePool>>, after: Option<&Arc<NodePool>>) -> Change {
    let pool = after.or(before).unwrap();
    Change::NodePool {
        name: pool.name().into(),
        before: before.cloned(),
        after: after.cloned(),
    }
}

fn pod_change(before: Option<&Arc<Pod>>, after: Option<&Arc<Pod>>) -> Change {
    Change::Pod {
        before: before.cloned(),
        after: after.cloned(),
    }
}

const NONE: [&str; 0] = [];

#[tokio::test(start_paused = true)]
async fn a_node_and_what_is_on_it_trigger_its_termination_only_while_it_is_being_deleted() {
    let mut cluster = Cluster::new().await;
    let name = cluster.node_name();
    let (node, pod) = (cluster.node(), cluster.pod());
    let deleting = with(&cluster.claim(), |claim| {
        claim.metadata.deletion_timestamp = Some(Time(cluster.cx.clock.now()));
    });
    let staying = cluster.claim();
    let changes = [
        node_change(Some(&node), Some(&node)),
        claim_change(Some(&deleting), Some(&deleting)),
        pod_change(Some(&pod), None),
        pod_change(None, Some(&pod)),
        Change::VolumeAttachment {
            node: name.as_str().into(),
        },
    ];
    let queue = EvictionQueue::new(Arc::clone(&cluster.cx), Queue::new());
    let termination = Termination::new(Arc::clone(&cluster.cx), Arc::new(queue));
    for change in &changes {
        assert_eq!(
            cluster.reconciled(&termination, change.clone()),
            NONE,
            "{change:?}"
        );
    }
    cluster.world.delete::<Node>(&name).await;
    cluster.world.pass(3).await;
    cluster.view = cluster.cx.view();
    for change in &changes {
        assert_eq!(
            cluster.reconciled(&termination, change.clone()),
            [name.as_str()],
            "{change:?}"
        );
    }
    for change in [
        claim_change(Some(&staying), Some(&staying)),
        pod_change(None, Some(&with(&pod, |pod| pod.node_name = None))),
        Change::Other("StorageClass"),
    ] {
        assert_eq!(cluster.reconciled(&termination, change), NONE);
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_condition_triggers_the_check_of_a_node_s_health_and_a_heartbeat_does_not() {
    let cluster = Cluster::new().await;
    let (name, node, claim) = (cluster.node_name(), cluster.node(), cluster.claim());
    let health = Health::new(Arc::clone(&cluster.cx));
    let reconciled = |change| cluster.reconciled(&health, change);
    assert_eq!(reconciled(node_change(None, Some(&node))), [name.as_str()]);
    assert_eq!(reconciled(node_change(Some(&node), None)), NONE);
    let later = Time(cluster.cx.clock.now() + jiff::SignedDuration::from_secs(60));
    let conditions = |node: &mut Node| {
        let status = node.status.as_mut().unwrap();
        status.conditions.clone().unwrap()
    };
    let changed = |change: &dyn Fn(&mut k8s_openapi::api::core::v1::NodeCondition)| {
        let after = with(&node, |node| {
            let mut all = conditions(node);
            change(&mut all[0]);
            node.status.as_mut().unwrap().conditions = Some(all);
        });
        reconciled(node_change(Some(&node), Some(&after)))
    };
    assert_eq!(
        changed(&|condition| condition.last_heartbeat_time = Some(later.clone())),
        NONE
    );
    assert_eq!(
        changed(&|condition| condition.status = "Unknown".into()),
        [name.as_str()]
    );
    assert_eq!(
        changed(&|condition| condition.type_ = "Other".into()),
        [name.as_str()]
    );
    assert_eq!(
        changed(&|condition| condition.last_transition_time = Some(later.clone())),
        [name.as_str()]
    );

    let launching = with(&claim, |claim| claim.status.provider_id = None);
    assert_eq!(
        reconciled(claim_change(Some(&launching), Some(&claim))),
        [name.as_str()],
        "the instance of the NodeClaim is known"
    );
    assert_eq!(
        reconciled(claim_change(None, Some(&claim))),
        [name.as_str()]
    );
    assert_eq!(reconciled(claim_change(Some(&claim), Some(&claim))), NONE);
}

#[tokio::test(start_paused = true)]
async fn nodes_and_nodeclaims_without_the_label_of_their_nodeclass_get_it() {
    let cluster = Cluster::new().await;
    let (name, node, claim) = (cluster.node_name(), cluster.node(), cluster.claim());
    let label = "karpenter.kwok.sh/kwoknodeclass";
    let bare = with(&node, |node| {
        node.metadata
            .labels
            .as_mut()
            .unwrap()
            .remove(label)
            .unwrap();
    });
    let nodes = NodeHydration::new(Arc::clone(&cluster.cx));
    let reconciled = |change| cluster.reconciled(&nodes, change);
    assert_eq!(reconciled(node_change(None, Some(&bare))), [name.as_str()]);
    assert_eq!(reconciled(node_change(None, Some(&node))), NONE);
    assert_eq!(reconciled(claim_change(None, Some(&claim))), NONE);
    let other = with(&claim, |claim| {
        claim.spec.node_class_ref.kind = "Another".into();
    });
    assert_eq!(
        reconciled(claim_change(Some(&claim), Some(&other))),
        [name.as_str()]
    );

    let claims = ClaimHydration::new(Arc::clone(&cluster.cx));
    let bare = with(&claim, |claim| {
        claim
            .metadata
            .labels
            .as_mut()
            .unwrap()
            .remove(label)
            .unwrap();
    });
    let reconciled = |change| cluster.reconciled(&claims, change);
    assert_eq!(reconciled(claim_change(None, Some(&bare))), [claim.name()]);
    assert_eq!(reconciled(claim_change(None, Some(&claim))), NONE);
    assert_eq!(reconciled(claim_change(Some(&bare), None)), NONE);
}

#[tokio::test(start_paused = true)]
async fn nodeclaims_are_checked_for_drift_when_their_nodepool_or_nodeclass_changes() {
    let cluster = Cluster::new().await;
    let (claim, pool) = (cluster.claim(), cluster.pool());
    let drift = Drift::new(Arc::clone(&cluster.cx));
    let reconciled = |change| cluster.reconciled(&drift, change);
    let annotated = |key: &str| {
        with(&pool, |pool| {
            let all = pool.metadata.annotations.get_or_insert_default();
            all.insert(key.into(), "another".into());
        })
    };
    for after in [
        with(&pool, |pool| pool.metadata.generation = Some(99)),
        annotated(annotations::NODE_POOL_HASH),
        annotated(annotations::NODE_POOL_HASH_VERSION),
    ] {
        assert_eq!(
            reconciled(pool_change(Some(&pool), Some(&after))),
            [claim.name()]
        );
    }
    assert_eq!(reconciled(pool_change(None, Some(&pool))), [claim.name()]);
    assert_eq!(
        reconciled(pool_change(Some(&pool), Some(&annotated("example.com/a")))),
        NONE
    );

    assert_eq!(reconciled(claim_change(None, Some(&claim))), [claim.name()]);
    assert_eq!(reconciled(claim_change(Some(&claim), Some(&claim))), NONE);

    let queue = Queue::new();
    let class = claim.spec.node_class_ref.clone();
    let mut other = class.clone();
    other.name = "other".into();
    let changed = |reference| {
        let change = Change::NodeClass {
            reference,
            after: None,
        };
        drift.triggered_by(&change, &cluster.view, &queue);
    };
    changed(other);
    tokio::time::advance(Duration::from_secs(2)).await;
    changed(class);
    assert_eq!(
        due(&queue),
        NONE,
        "the provider may not have observed the change"
    );
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(due(&queue), [claim.name()]);
}

#[tokio::test(start_paused = true)]
async fn nodeclaims_are_checked_for_consolidation_when_they_or_the_spec_of_their_nodepool_change() {
    let cluster = Cluster::new().await;
    let (claim, pool) = (cluster.claim(), cluster.pool());
    let conditions = DisruptionConditions::new(Arc::clone(&cluster.cx));
    let reconciled = |change| cluster.reconciled(&conditions, change);
    assert_eq!(
        reconciled(claim_change(Some(&claim), Some(&claim))),
        [claim.name()]
    );
    assert_eq!(reconciled(claim_change(Some(&claim), None)), NONE);
    let changed = with(&pool, |pool| pool.metadata.generation = Some(99));
    assert_eq!(
        reconciled(pool_change(Some(&pool), Some(&changed))),
        [claim.name()]
    );
    assert_eq!(reconciled(pool_change(None, Some(&pool))), [claim.name()]);
    assert_eq!(reconciled(pool_change(Some(&pool), Some(&pool))), NONE);
}

#[tokio::test(start_paused = true)]
async fn the_lifecycle_of_a_nodeclaim_goes_on_when_it_or_a_node_of_its_instance_changes() {
    let cluster = Cluster::new().await;
    let (node, claim) = (cluster.node(), cluster.claim());
    let health = RegistrationHealth::new(Queue::new());
    let lifecycle = Lifecycle::new(Arc::clone(&cluster.cx), Arc::new(health));
    let reconciled = |change| cluster.reconciled(&lifecycle, change);
    for change in [
        claim_change(Some(&claim), None),
        claim_change(None, Some(&claim)),
        node_change(Some(&node), None),
        node_change(None, Some(&node)),
    ] {
        assert_eq!(reconciled(change), [claim.name()]);
    }
    assert_eq!(reconciled(Change::Synced), NONE);
}

#[tokio::test(start_paused = true)]
async fn devices_that_a_driver_publishes_concern_the_nodeclaims_that_wait_for_some() {
    let mut cluster = Cluster::new().await;
    let world = &cluster.world;
    world.cluster.cloud.fail_launches(u32::MAX);
    let drivers = json!({"metadata": {"annotations": {annotations::REQUESTED_DRA_DRIVERS: "gpu.example.com"}}});
    let ready = cluster.claim();
    let api = world.api::<NodeClaim>();
    api.patch(
        ready.name(),
        &PatchParams::default(),
        &Patch::Merge(drivers),
    )
    .await
    .unwrap();
    for name in ["waits", "without"] {
        let claim = node_claim(name).set("/spec/nodeClassRef", json!(ready.spec.node_class_ref));
        let claim = match name {
            "waits" => claim.annotation(annotations::REQUESTED_DRA_DRIVERS, "gpu.example.com"),
            _ => claim,
        };
        world.add(claim).await;
    }
    world.pass(3).await;
    cluster.view = cluster.cx.view();
    let health = RegistrationHealth::new(Queue::new());
    let lifecycle = Lifecycle::new(Arc::clone(&cluster.cx), Arc::new(health));
    let reconciled = |kind| cluster.reconciled(&lifecycle, Change::Other(kind));
    assert_eq!(reconciled("ResourceSlice"), ["waits"]);
    assert_eq!(reconciled("DeviceClass"), NONE);
}

#[tokio::test(start_paused = true)]
async fn a_nodeclaim_is_checked_for_consistency_once_it_is_initialized() {
    let cluster = Cluster::new().await;
    let claim = cluster.claim();
    let consistency = Consistency::new(Arc::clone(&cluster.cx));
    let reconciled = |change| cluster.reconciled(&consistency, change);
    let earlier = with(&claim, |claim| {
        claim.set_unknown(types::INITIALIZED, cluster.cx.clock.now());
    });
    assert_eq!(
        reconciled(claim_change(Some(&earlier), Some(&claim))),
        [claim.name()]
    );
    assert_eq!(reconciled(claim_change(None, Some(&claim))), [claim.name()]);
    assert_eq!(reconciled(claim_change(Some(&claim), Some(&claim))), NONE);
    assert_eq!(reconciled(claim_change(None, Some(&earlier))), NONE);
}

#[tokio::test(start_paused = true)]
async fn a_new_nodeclaim_is_checked_for_expiration_and_after_a_while_for_its_existence() {
    let cluster = Cluster::new().await;
    let claim = cluster.claim();
    let expiration = Expiration::new(Arc::clone(&cluster.cx));
    let reconciled = |change| cluster.reconciled(&expiration, change);
    assert_eq!(reconciled(claim_change(None, Some(&claim))), [claim.name()]);
    assert_eq!(reconciled(claim_change(Some(&claim), Some(&claim))), NONE);

    let gc = ModelNodeClaimGc::new(Arc::clone(&cluster.cx));
    let queue = Queue::new();
    let launching = with(&claim, |claim| claim.status.provider_id = None);
    for change in [
        claim_change(None, Some(&claim)),
        claim_change(Some(&launching), Some(&launching)),
    ] {
        gc.triggered_by(&change, &cluster.view, &queue);
    }
    cluster.world.pass(60).await;
    assert_eq!(due(&queue), NONE);
    gc.triggered_by(&claim_change(None, Some(&launching)), &cluster.view, &queue);
    cluster.world.pass(14).await;
    assert_eq!(due(&queue), NONE);
    cluster.world.pass(1).await;
    assert_eq!(due(&queue), [claim.name()]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_bound_is_an_event_of_its_node_s_nodeclaim() {
    let cluster = Cluster::new().await;
    let (pod, claim) = (cluster.pod(), cluster.claim());
    let events = PodEvents::new(Arc::clone(&cluster.cx));
    let pending = with(&pod, |pod| pod.node_name = None);
    assert_eq!(
        cluster.reconciled(&events, pod_change(Some(&pending), Some(&pod))),
        [claim.name()]
    );
    assert_eq!(
        cluster.reconciled(&events, pod_change(Some(&pod), Some(&pod))),
        NONE
    );
}

#[tokio::test(start_paused = true)]
async fn the_eviction_of_a_pod_ends_with_the_pod_and_not_with_a_change_of_it() {
    let cluster = Cluster::new().await;
    let pod = cluster.pod();
    let queue = Queue::new();
    let evictions = EvictionQueue::new(Arc::clone(&cluster.cx), queue.clone());
    let added_again = |change| {
        evictions.add(&[Arc::clone(&pod)], None);
        while queue.next().map(|key| queue.done(key, None)).is_some() {}
        evictions.triggered_by(&change, &cluster.view, &queue);
        evictions.add(&[Arc::clone(&pod)], None);
        !queue.is_empty()
    };
    assert!(!added_again(pod_change(Some(&pod), Some(&pod))));
    assert!(added_again(pod_change(Some(&pod), None)));
    let replaced = with(&pod, |pod| pod.key.uid = "another".into());
    assert!(added_again(pod_change(Some(&pod), Some(&replaced))));
}

/// Returns whether a provisioner plans because of a change.
fn is_planned(cluster: &Cluster, change: &Change) -> bool {
    let cx = Arc::clone(&cluster.cx);
    let triggers = Arc::new(Triggers::new(&cx.options, cx.clock));
    let provisioner = Provisioner::new(cx, Arc::clone(&triggers), Arc::default());
    provisioner.observe(change, &cluster.view);
    triggers.closes().is_some()
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_planned_when_it_becomes_provisionable_or_its_requirements_change() {
    let cluster = Cluster::new().await;
    let planned = |before, after| is_planned(&cluster, &pod_change(before, after));
    let small = Arc::new(Pod::parse(&pod("a").cpu("1").build()));
    let large = Arc::new(Pod::parse(&pod("a").cpu("2").build()));
    let bound = Arc::new(Pod::parse(&pod("a").cpu("1").on("n").build()));
    assert!(planned(None, Some(&small)));
    assert!(planned(Some(&bound), Some(&small)));
    assert!(planned(Some(&small), Some(&large)));
    let told = with(&small, |pod| pod.termination_grace_seconds = Some(7));
    assert!(!planned(Some(&small), Some(&told)));
    assert!(!planned(Some(&small), Some(&bound)));
    assert!(!planned(Some(&small), None));
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_node_are_planned_once_it_has_the_taint_of_disruption() {
    let cluster = Cluster::new().await;
    let node = cluster.node();
    let tainted = |taint: Taint| {
        with(&node, |node| {
            let spec = node.spec.get_or_insert_default();
            spec.taints.get_or_insert_default().push(taint);
        })
    };
    let disrupted = tainted(taints::disrupted());
    let planned = |before, after| is_planned(&cluster, &node_change(before, after));
    assert!(planned(Some(&node), Some(&disrupted)));
    assert!(planned(None, Some(&disrupted)));
    assert!(!planned(Some(&disrupted), Some(&disrupted)));
    assert!(!planned(Some(&disrupted), None));
    assert!(!planned(None, Some(&node)));
    let other = tainted(Taint {
        key: "example.com/other".into(),
        ..taints::disrupted()
    });
    assert!(!planned(Some(&node), Some(&other)));
}

#[tokio::test(start_paused = true)]
async fn pending_pods_are_planned_when_a_nodeclaim_is_deleted_or_a_nodepool_changes() {
    let mut cluster = Cluster::new().await;
    let (claim, pool) = (cluster.claim(), cluster.pool());
    let deleting = with(&claim, |claim| {
        claim.metadata.deletion_timestamp = Some(Time(cluster.cx.clock.now()));
    });
    let heavier = with(&pool, |pool| pool.spec.weight = Some(7));
    let causes = [
        Change::Synced,
        claim_change(Some(&claim), Some(&deleting)),
        claim_change(Some(&claim), None),
        pool_change(Some(&pool), Some(&heavier)),
        pool_change(None, Some(&pool)),
    ];
    for change in &causes {
        assert!(
            !is_planned(&cluster, change),
            "no pod is pending: {change:?}"
        );
    }
    let nowhere = deployment("nowhere", 1).select("example.com/none", "none");
    cluster.world.add(nowhere).await;
    cluster.world.pass(30).await;
    cluster.view = cluster.cx.view();
    for change in &causes {
        assert!(is_planned(&cluster, change), "{change:?}");
    }
    for change in [
        claim_change(Some(&deleting), None),
        claim_change(Some(&deleting), Some(&deleting)),
        claim_change(Some(&claim), Some(&claim)),
        claim_change(None, Some(&claim)),
        pool_change(Some(&pool), Some(&pool)),
        Change::Other("StorageClass"),
    ] {
        assert!(!is_planned(&cluster, &change), "{change:?}");
    }
}
