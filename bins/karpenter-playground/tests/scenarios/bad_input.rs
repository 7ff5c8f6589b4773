//! What users get wrong around disruption: each says what is wrong, keeps nothing else from working, and has a way out.

use k8s_openapi::api::core::v1::{Node, PodTemplate};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceValidation, JSONSchemaProps,
};
use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodePool;
use karpenter_kwok::KwokNodeClass;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::lines::Lines;
use crate::world::{World, pool, settings};

/// A cluster whose pool has these budgets.
async fn budgeted(budgets: Value) -> World {
    let world = World::bare(settings()).await;
    world.create(&KwokNodeClass::new("default")).await;
    world
        .create(&pool(
            "default",
            json!({"disruption": {"budgets": budgets}}),
        ))
        .await;
    world
}

async fn change_pool(world: &World, spec: Value) {
    let api: Api<NodePool> = world.api();
    let patch = Patch::Merge(json!({"spec": spec}));
    api.patch("default", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// An empty machine, which these budgets keep for ten minutes.
async fn kept(budgets: Value) -> World {
    let world = budgeted(budgets).await;
    world.deploy("app", 2).await;
    world.until_running(2, 60).await;
    world.scale("app", 0).await;
    world.pass(600).await;
    assert!(
        !world.claims().await.is_empty(),
        "{}",
        world.describe().await
    );
    world
}

/// The way out of every budget: one that allows something.
async fn let_go(world: &World) {
    change_pool(
        world,
        json!({"disruption": {"budgets": [{"nodes": "100%"}]}}),
    )
    .await;
    world.until_empty(300).await;
}

/// Whether an event of this reason says this.
async fn says(world: &World, reason: &str, what: &str) -> bool {
    let events = world.events().await;
    let mut own = events
        .iter()
        .filter(|e| e.reason.as_deref() == Some(reason));
    own.any(|e| e.message.as_deref().is_some_and(|m| m.contains(what)))
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_cannot_be_read_keeps_machines_and_is_told_on_the_pool() {
    let world = kept(
        json!([{"nodes": "100%"}, {"nodes": "1", "schedule": "99 99 * * *", "duration": "1h"}]),
    )
    .await;
    assert!(says(&world, "InvalidNodePool", "99 99 * * *").await);
    assert!(world.told("DisruptionBlocked").await);
    let pool: NodePool = world.api().get("default").await.unwrap();
    assert!(
        pool.is_true(types::READY),
        "machines can still be bought from it"
    );
    world.deploy("other", 1).await;
    world.until_running(1, 60).await;
    world.scale("other", 0).await;
    let_go(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_zero_keeps_machines_and_says_for_which_reason() {
    let world = kept(json!([{"nodes": "0", "reasons": ["Empty"]}])).await;
    let told = "No allowed disruptions for disruption reason Empty due to blocking budget";
    assert!(says(&world, "DisruptionBlocked", told).await);
    let allowed = "karpenter_nodepools_allowed_disruptions{nodepool=\"default\",reason=\"Empty\"}";
    assert_eq!(world.metric(allowed), Some(0.0));
    let_go(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_whole_hundred_percent_may_go_at_once() {
    let world = budgeted(json!([{"nodes": "100%"}])).await;
    world.deploy("app", 3).await;
    world.until_running(3, 60).await;
    world.scale("app", 0).await;
    world.until_empty(120).await;
}

#[tokio::test(start_paused = true)]
async fn budgets_that_are_no_numbers_of_nodes_are_not_accepted() {
    let world = budgeted(json!([{"nodes": "100%"}])).await;
    for nodes in ["101%", "-1", "-10%", "many", "1.5"] {
        let patch = Patch::Merge(json!({"spec": {"disruption": {"budgets": [{"nodes": nodes}]}}}));
        let api: Api<NodePool> = world.api();
        let answer = api.patch("default", &PatchParams::default(), &patch).await;
        match answer {
            Err(kube::Error::Api(status)) => {
                assert!(
                    status.message.contains("nodes"),
                    "{nodes}: {}",
                    status.message
                );
            }
            other => panic!("{nodes}: {other:?}"),
        }
    }
}

async fn budget(world: &World, name: &str, spec: Value) {
    let mut all = json!({"selector": {"matchLabels": {"app": "app"}}});
    all.as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    let budget: PodDisruptionBudget = serde_json::from_value(
        json!({"metadata": {"name": name, "namespace": "default"}, "spec": all}),
    )
    .unwrap();
    budgets(world)
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
}

fn budgets(world: &World) -> Api<PodDisruptionBudget> {
    Api::namespaced(world.client.clone(), "default")
}

/// A machine with pods that these PodDisruptionBudgets keep, being deleted; it is kept.
async fn held(pdbs: &[(&str, Value)]) -> (World, String) {
    let world = budgeted(json!([{"nodes": "100%"}])).await;
    world.deploy("app", 2).await;
    world.until_running(2, 60).await;
    for (name, spec) in pdbs {
        budget(&world, name, spec.clone()).await;
    }
    world.pass(5).await;
    let node = world.nodes().await.remove(0).metadata.name.unwrap();
    world.delete::<Node>(&node).await;
    world.pass(300).await;
    assert!(world.api::<Node>().get_opt(&node).await.unwrap().is_some());
    (world, node)
}

async fn until_gone(world: &World, node: &str) {
    world
        .until(120, "the node is gone", async |w| {
            w.api::<Node>().get_opt(node).await.unwrap().is_none()
        })
        .await;
    world.until_running(2, 120).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_two_budgets_cover_is_named_until_one_of_them_goes() {
    let (world, node) = held(&[
        ("one", json!({"maxUnavailable": 1})),
        ("two", json!({"maxUnavailable": 1})),
    ])
    .await;
    let told = "eviction does not support multiple PDBs";
    assert!(says(&world, "FailedDraining", told).await);
    budgets(&world)
        .delete("two", &DeleteParams::default())
        .await
        .unwrap();
    until_gone(&world, &node).await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_never_allows_anything_holds_the_node_until_it_is_changed() {
    let (world, node) = held(&[("never", json!({"maxUnavailable": 0}))]).await;
    let told = "The disruption budget never allows no disruption now";
    assert!(says(&world, "FailedDraining", told).await);
    let patch = Patch::Merge(json!({"spec": {"maxUnavailable": 1}}));
    budgets(&world)
        .patch("never", &PatchParams::default(), &patch)
        .await
        .unwrap();
    until_gone(&world, &node).await;
}

#[tokio::test(start_paused = true)]
async fn machines_without_a_pool_stay_are_told_of_and_can_be_deleted() {
    let world = budgeted(json!([{"nodes": "100%"}])).await;
    world.deploy("app", 1).await;
    world.until_running(1, 60).await;
    let claim = world.claims().await.remove(0);
    // The pool goes and leaves its machines.
    let orphan = DeleteParams {
        propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    world
        .api::<NodePool>()
        .delete("default", &orphan)
        .await
        .unwrap();
    world
        .until(120, "it is told why the machine stays", async |w| {
            says(w, "DisruptionBlocked", "NodePool not found").await
        })
        .await;
    world.scale("app", 0).await;
    world.pass(600).await;
    assert_eq!(world.claims().await.len(), 1);
    world
        .delete::<karpenter_api::v1::NodeClaim>(claim.name())
        .await;
    world.until_empty(120).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_deleted_while_a_command_waits_takes_everything_along() {
    let world = budgeted(json!([{"nodes": "100%"}])).await;
    let on_demand = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]);
    change_pool(
        &world,
        json!({"template": {"spec": {"requirements": on_demand}}}),
    )
    .await;
    world.deploy("app", 12).await;
    world.until_running(12, 60).await;
    world.stack.cloud.never_register(true);
    world.scale("app", 2).await;
    world
        .until(120, "a command waits for its replacement", async |w| {
            let claims = w.claims().await;
            claims.iter().any(|c| c.is_true(types::DISRUPTION_REASON))
        })
        .await;
    world.delete::<NodePool>("default").await;
    world.until_empty(300).await;
    world.pass(900).await;
    let machines = world.stack.cloud.machines();
    assert!(machines.is_empty(), "{}", world.describe().await);
    // What comes next works.
    world.stack.cloud.never_register(false);
    world.create(&pool("default", json!({}))).await;
    world.until_running(2, 60).await;
}

/// Takes the schema away from a definition, as an older generation of it may have been.
async fn without_schema(world: &World, name: &str) {
    let api: Api<CustomResourceDefinition> = world.api();
    let mut definition = api.get(name).await.unwrap();
    for version in &mut definition.spec.versions {
        let anything = JSONSchemaProps {
            type_: Some("object".into()),
            x_kubernetes_preserve_unknown_fields: Some(true),
            ..JSONSchemaProps::default()
        };
        version.schema = Some(CustomResourceValidation {
            open_api_v3_schema: Some(anything),
        });
    }
    api.replace(name, &PostParams::default(), &definition)
        .await
        .unwrap();
}

/// Creates an object of any shape.
async fn create_any(world: &World, resource: &ApiResource, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let namespace = object.metadata.namespace.clone();
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(world.client.clone(), &namespace, resource),
        None => Api::all_with(world.client.clone(), resource),
    };
    api.create(&PostParams::default(), &object).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_be_read_are_told_of_and_hide_no_others() {
    let lines = Lines::taken();
    let mut settings = settings();
    settings.options.feature_gates.capacity_buffer = true;
    let world = World::bare(settings).await;
    without_schema(&world, "nodepools.karpenter.sh").await;
    without_schema(&world, "capacitybuffers.autoscaling.x-k8s.io").await;
    let (pools, buffers) = (
        ApiResource::erase::<NodePool>(&()),
        ApiResource::erase::<CapacityBuffer>(&()),
    );
    let bad_pool = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "bad"}, "spec": {"weight": "heavy"}});
    create_any(&world, &pools, bad_pool).await;
    let buffer = |name: &str, replicas: Value| {
        let spec = json!({"podTemplateRef": {"name": "chunk"}, "replicas": replicas});
        json!({"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
    };
    create_any(&world, &buffers, buffer("bad", json!("many"))).await;
    world.create(&KwokNodeClass::new("default")).await;
    world.create(&pool("default", json!({}))).await;
    let chunk = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "chunk", "namespace": "default"},
        "template": {"spec": {"containers": [{"name": "c", "image": "pause", "resources": {"requests": {"cpu": "1"}}}]}}});
    let templates = ApiResource::erase::<PodTemplate>(&());
    create_any(&world, &templates, chunk).await;
    create_any(&world, &buffers, buffer("good", json!(2))).await;
    world
        .until(120, "the good buffer has its machine", async |w| {
            w.claims()
                .await
                .iter()
                .any(|c| c.is_true(types::INITIALIZED))
        })
        .await;
    for kind in ["NodePool", "CapacityBuffer"] {
        let events = world.events().await;
        let told = events.iter().find(|e| {
            e.reason.as_deref() == Some("InvalidObject")
                && e.involved_object.kind.as_deref() == Some(kind)
        });
        let told = told.unwrap_or_else(|| panic!("nothing is said of the {kind}"));
        assert_eq!(told.involved_object.name.as_deref(), Some("bad"));
        let named = lines.of("ERROR");
        assert!(
            named.iter().any(|line| line[kind]["name"] == "bad"),
            "{named:#?}"
        );
    }
}
