//! The documented policy reduced to the used permissions: `docs/iam-policy-minimal.json`.
//!
//! A cluster uses every feature once; a statement of `docs/iam-policy.json` stays if a call needed it. A cluster that
//! uses fewer features can drop more: no queue, no reservations, no zonal shift.

use std::path::Path;

use karpenter_api::v1::NodeClaim;
use karpenter_aws::api::EC2NodeClass;
use karpenter_aws_fake::{Cluster, Permission, PlacementGroup, Policy};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::cluster::world::{CLUSTER, POLICY, QUEUE, World};

/// Returns the statements of the documented policy that one of these permissions needs.
fn used(needed: &[Permission]) -> Value {
    let document: Value = serde_json::from_str(POLICY).unwrap();
    let statements = document["Statement"].as_array().unwrap();
    let one = |statement: &Value, action: &Value, resource: &Value| {
        let mut single = statement.clone();
        single["Action"] = action.clone();
        single["Resource"] = resource.clone();
        let text = Policy::fill(&json!({ "Statement": [single] }).to_string(), CLUSTER);
        Policy::parse(&text).unwrap()
    };
    let kept = statements.iter().filter_map(|statement| {
        let list = |key: &str| statement[key].as_array().unwrap().clone();
        let (actions, resources) = (list("Action"), list("Resource"));
        let grants = |action: &Value, resource: &Value| {
            let policy = one(statement, action, resource);
            needed.iter().any(|permission| policy.allows(permission))
        };
        let used_actions: Vec<&Value> = actions
            .iter()
            .filter(|action| resources.iter().any(|resource| grants(action, resource)))
            .collect();
        let used_resources: Vec<&Value> = resources
            .iter()
            .filter(|resource| actions.iter().any(|action| grants(action, resource)))
            .collect();
        let mut kept = statement.clone();
        kept["Action"] = json!(used_actions);
        kept["Resource"] = json!(used_resources);
        (!used_actions.is_empty()).then_some(kept)
    });
    json!({ "Version": document["Version"], "Statement": kept.collect::<Vec<_>>() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_minimal_policy_is_what_a_cluster_needed() {
    let world = World::with_fake(
        |b| b,
        |fake| {
            fake.add_cluster(Cluster {
                zonal_shift: true,
                ..Cluster::new(CLUSTER, "1.34")
            });
            fake.add_placement_group(PlacementGroup {
                partitions: Some(3),
                ..PlacementGroup::new("pg-00000000000000001", "parts", "partition")
            });
        },
        |s| s.zonal_shift = true,
    )
    .await;
    // A class whose profile is managed by Karpenter, with everything a class may select.
    let spec = json!({
        "role": "KarpenterNodeRole-test", "instanceProfile": null,
        "placementGroupSelector": { "name": "parts" },
        "capacityReservationSelectorTerms": [{ "tags": { "team": "x" } }],
    });
    world.class("whole", spec).await;
    let of = |kind: &'static str| {
        [
            ("node.kubernetes.io/instance-type", &["m5.large"][..]),
            (
                "karpenter.sh/capacity-type",
                match kind {
                    "spot" => &["spot"],
                    _ => &["on-demand"],
                },
            ),
        ]
    };
    let (claim, _) = world.launched("a", &of("on-demand")).await;
    world.join(&claim).await;
    let (_, id) = world.launched("b", &of("spot")).await;
    world
        .until("its tags", async || {
            (world.calls("CreateTags") > 0).then_some(())
        })
        .await;
    // The status is described only while there are instances.
    let action = "DescribeInstanceStatus";
    world
        .until(action, async || (world.calls(action) > 0).then_some(()))
        .await;
    world.fake.interrupt_spot(&id);
    world.leaves("b").await;
    let claims = world.api::<NodeClaim>();
    claims.delete("a", &DeleteParams::default()).await.unwrap();
    for name in ["a", "b"] {
        world
            .until("the termination", async || {
                let claim = world.get::<NodeClaim>(name).await;
                claim.is_none().then_some(())
            })
            .await;
    }
    world
        .until("an empty queue", async || {
            world.fake.messages(QUEUE).is_empty().then_some(())
        })
        .await;
    for class in ["default", "whole"] {
        let classes = world.api::<EC2NodeClass>();
        let now = DeleteParams::default();
        classes.delete(class, &now).await.unwrap();
        world
            .until("the end of the class", async || {
                let class = world.get::<EC2NodeClass>(class).await;
                class.is_none().then_some(())
            })
            .await;
    }
    for action in [
        "DescribeSpotPriceHistory",
        "GetManagedResource",
        "GetProducts",
        "ListInstanceProfiles",
    ] {
        world
            .until(action, async || (world.calls(action) > 0).then_some(()))
            .await;
    }
    world.nothing_beyond_the_policy();

    let found =
        serde_json::to_string_pretty(&used(&world.fake.needed_permissions())).unwrap() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/iam-policy-minimal.json");
    if std::env::var_os("UPDATE_POLICY").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == found,
        "docs/iam-policy-minimal.json is out of date: UPDATE_POLICY=1 cargo test -p karpenter-aws --test aws policy\n{found}"
    );
}
