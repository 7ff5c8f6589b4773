//! Which changes of objects make a controller reconcile, where no scenario would notice a change that is missed.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
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
use karpenter_kube::nodeclaim::drift::Drift;
use karpenter_kube::nodeclaim::lifecycle::Lifecycle;
use karpenter_kube::nodepool::RegistrationHealth;
use karpenter_kube::provisioning::{Provisioner, Triggers};
use serde_json::json;

use crate::world::{World, deployment, node_pool};

/// A cluster with one pod that blocks the drain of its node, and the model of its controllers.
struct Cluster {
    world: World,
    cx: Arc<Context>,
    view: Arc<View>,
}

impl Cluster {
    async fn new() -> Self {
        let pool = node_pool("default").consolidate_after("Never");
        let world = World::with(pool).await;
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

    /// Returns whether a change makes a controller reconcile the object of this name at once.
    fn reconciled<C>(&self, controller: &C, name: &str, change: Change) -> bool
    where
        C: Controller<Key = ObjectKey>,
    {
        let queue = Queue::new();
        controller.triggered_by(&change, &self.view, &queue);
        let due = due(&queue);
        assert!(due.is_empty() || due == [name], "{due:?}");
        !due.is_empty()
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

/// Functions that return the change of an object of a kind from one version to another.
macro_rules! changes {
    ($($function:ident $kind:ident)*) => {$(
        fn $function<'a>(
            before: impl Into<Option<&'a Arc<$kind>>>,
            after: impl Into<Option<&'a Arc<$kind>>>,
        ) -> Change {
            let (before, after) = (before.into(), after.into());
            let name = &after.or(before).unwrap().metadata.name;
            Change::$kind {
                name: name.as_deref().unwrap().into(),
                before: before.cloned(),
                after: after.cloned(),
            }
        }
    )*};
}

changes!(node_change Node claim_change NodeClaim pool_change NodePool);

fn pod_change<'a>(
    before: impl Into<Option<&'a Arc<Pod>>>,
    after: impl Into<Option<&'a Arc<Pod>>>,
) -> Change {
    let (before, after) = (before.into(), after.into());
    Change::Pod {
        before: before.cloned(),
        after: after.cloned(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_and_its_pods_trigger_termination_only_while_it_is_deleted() {
    let mut cluster = Cluster::new().await;
    let name = cluster.node_name();
    let (node, pod) = (cluster.node(), cluster.pod());
    let deleting = with(&cluster.claim(), |claim| {
        claim.metadata.deletion_timestamp = Some(Time(cluster.cx.clock.now()));
    });
    let staying = cluster.claim();
    let changes = [
        node_change(&node, &node),
        claim_change(&deleting, &deleting),
        pod_change(&pod, None),
        pod_change(None, &pod),
        Change::VolumeAttachment {
            node: name.as_str().into(),
        },
    ];
    let queue = EvictionQueue::new(Arc::clone(&cluster.cx), Queue::new());
    let termination = Termination::new(Arc::clone(&cluster.cx), Arc::new(queue));
    for change in &changes {
        assert!(
            !cluster.reconciled(&termination, &name, change.clone()),
            "{change:?}"
        );
    }
    cluster.world.delete::<Node>(&name).await;
    cluster.world.pass(3).await;
    cluster.view = cluster.cx.view();
    for change in &changes {
        assert!(
            cluster.reconciled(&termination, &name, change.clone()),
            "{change:?}"
        );
    }
    for change in [
        claim_change(&staying, &staying),
        pod_change(None, &with(&pod, |pod| pod.node_name = None)),
        Change::Other("StorageClass"),
    ] {
        assert!(!cluster.reconciled(&termination, &name, change));
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_condition_triggers_a_health_check_and_no_heartbeat_does() {
    let cluster = Cluster::new().await;
    let (name, node, claim) = (cluster.node_name(), cluster.node(), cluster.claim());
    let health = Health {
        cx: Arc::clone(&cluster.cx),
    };
    let reconciled = |change| cluster.reconciled(&health, &name, change);
    assert!(reconciled(node_change(None, &node)));
    assert!(!reconciled(node_change(&node, None)));
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
        reconciled(node_change(&node, &after))
    };
    assert!(!changed(
        &|condition| condition.last_heartbeat_time = Some(later.clone())
    ));
    assert!(changed(&|condition| condition.status = "Unknown".into()));
    assert!(changed(&|condition| condition.type_ = "Other".into()));
    assert!(changed(
        &|condition| condition.last_transition_time = Some(later.clone())
    ));

    let launching = with(&claim, |claim| claim.status.provider_id = None);
    assert!(
        reconciled(claim_change(&launching, &claim)),
        "the instance of the NodeClaim is known"
    );
    assert!(reconciled(claim_change(None, &claim)));
    assert!(!reconciled(claim_change(&claim, &claim)));
}

#[tokio::test(start_paused = true)]
async fn nodeclaims_are_checked_for_drift_when_pool_or_class_changes() {
    let cluster = Cluster::new().await;
    let (claim, pool) = (cluster.claim(), cluster.pool());
    let drift = Drift::new(Arc::clone(&cluster.cx));
    let reconciled = |change| cluster.reconciled(&drift, claim.name(), change);
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
        assert!(reconciled(pool_change(&pool, &after)));
    }
    assert!(reconciled(pool_change(None, &pool)));
    assert!(!reconciled(pool_change(&pool, &annotated("example.com/a"))));

    assert!(reconciled(claim_change(None, &claim)));
    assert!(!reconciled(claim_change(&claim, &claim)));

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
        [""; 0],
        "the provider may not have observed the change"
    );
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(due(&queue), [claim.name()]);
}

#[tokio::test(start_paused = true)]
async fn published_devices_concern_the_nodeclaims_that_wait_for_some() {
    let mut cluster = Cluster::new().await;
    let world = &cluster.world;
    world.cluster.cloud.fail_launches(u32::MAX);
    let drivers = json!({"metadata": {"annotations": {annotations::REQUESTED_DRA_DRIVERS: "gpu.example.com"}}});
    let ready = cluster.claim();
    world.patch::<NodeClaim>(ready.name(), drivers).await;
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
    let triggers = Arc::new(Triggers::new(&cluster.cx.options, cluster.cx.clock));
    let lifecycle = Lifecycle::new(Arc::clone(&cluster.cx), Arc::new(health), triggers);
    let reconciled = |kind| cluster.reconciled(&lifecycle, "waits", Change::Other(kind));
    assert!(reconciled("ResourceSlice"));
    assert!(!reconciled("DeviceClass"));
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
    assert!(!added_again(pod_change(&pod, &pod)));
    assert!(added_again(pod_change(&pod, None)));
    let replaced = with(&pod, |pod| pod.key.uid = "another".into());
    assert!(added_again(pod_change(&pod, &replaced)));
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
async fn a_pod_is_planned_when_it_is_provisionable_or_its_needs_change() {
    let cluster = Cluster::new().await;
    let planned = |before: Option<&Arc<Pod>>, after: Option<&Arc<Pod>>| {
        is_planned(&cluster, &pod_change(before, after))
    };
    let small = Arc::new(Pod::parse(&pod("a").cpu("1").build()));
    let large = Arc::new(Pod::parse(&pod("a").cpu("2").build()));
    let bound = Arc::new(Pod::parse(&pod("a").cpu("1").on("n").build()));
    assert!(planned(None, Some(&small)));
    assert!(planned(Some(&bound), Some(&small)));
    assert!(planned(Some(&small), Some(&large)));
    let changed = with(&small, |pod| pod.termination_grace_seconds = Some(7));
    assert!(!planned(Some(&small), Some(&changed)));
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
    let planned = |before: Option<&Arc<Node>>, after: Option<&Arc<Node>>| {
        is_planned(&cluster, &node_change(before, after))
    };
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
async fn pending_pods_are_planned_when_a_claim_goes_or_a_pool_changes() {
    let mut cluster = Cluster::new().await;
    let (claim, pool) = (cluster.claim(), cluster.pool());
    let deleting = with(&claim, |claim| {
        claim.metadata.deletion_timestamp = Some(Time(cluster.cx.clock.now()));
    });
    let heavier = with(&pool, |pool| pool.spec.weight = Some(7));
    let causes = [
        Change::Synced,
        claim_change(&claim, &deleting),
        claim_change(&claim, None),
        pool_change(&pool, &heavier),
        pool_change(None, &pool),
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
        claim_change(&deleting, None),
        claim_change(&deleting, &deleting),
        claim_change(&claim, &claim),
        claim_change(None, &claim),
        pool_change(&pool, &pool),
        Change::Other("StorageClass"),
    ] {
        assert!(!is_planned(&cluster, &change), "{change:?}");
    }
}
