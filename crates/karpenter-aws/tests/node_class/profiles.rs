//! The instance profile of a class, and the garbage collection of unused profiles.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::{HasConditions, types as core_types};
use karpenter_aws::api::condition_types as types;
use karpenter_aws::controllers::node_class::InstanceProfileGc;
use karpenter_kube::controller::Periodic;
use serde_json::json;

use crate::node_class::support::{ROLE, World, is, observed, says};

fn names(world: &World) -> Vec<String> {
    let all = world.fake.instance_profiles();
    all.into_iter().map(|profile| profile.name).collect()
}

/// Conformance: AWS-profile-01, AWS-profile-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_has_its_own_profile_and_unused_ones_are_deleted() {
    let world = World::with(|aws| aws.role("B").role("C"), |_| {}).await;
    world.create("default", json!({})).await;
    let mut profiles = Vec::new();
    for role in [ROLE, "B", "path/C"] {
        let class = world.changed("default", json!({ "role": role })).await;
        assert!(class.is_true(core_types::READY), "{:#?}", class.status);
        let name = class.status.instance_profile.unwrap();
        let all = world.fake.instance_profiles();
        let made = all.iter().find(|p| p.name == name).unwrap();
        assert_eq!(made.role.as_deref(), role.rsplit('/').next());
        assert!(made.path.starts_with("/karpenter/us-west-2/test/"));
        assert!(world.aws.instance_profiles.is_protected(&name));
        profiles.push(name);
    }
    assert_eq!(names(&world).len(), 3, "a new one each time");
    let mut collection = InstanceProfileGc::new(Arc::clone(&world.cx), &world.aws);
    let wait = collection.pass().await.unwrap();
    assert_eq!(wait, Duration::from_secs(30 * 60));
    assert_eq!(names(&world).len(), 3, "all are protected");

    // The class uses the last; an instance runs with the first; after an hour the second is not protected any more.
    world
        .claim(
            "a",
            "default",
            json!({ "karpenter.k8s.aws/instance-profile-name": profiles[0] }),
        )
        .await;
    an_hour_later(&world, &profiles);
    collection.pass().await.unwrap();
    let mut left = vec![profiles[0].clone(), profiles[2].clone()];
    left.sort();
    assert_eq!(names(&world), left);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_of_a_profile_follow_those_of_its_class() {
    let world = World::new().await;
    let name = world
        .made("default", json!({ "tags": { "team": "x" } }))
        .await
        .status
        .instance_profile
        .unwrap();
    let tags = || {
        let all = world.fake.instance_profiles();
        all.into_iter().find(|p| p.name == name).unwrap().tags
    };
    assert_eq!(tags()["team"], "x");
    assert_eq!(
        world.calls("TagInstanceProfile"),
        0,
        "it was created with them"
    );
    let changed = json!({ "tags": { "team": "y", "unit": "z" } });
    let class = world.changed("default", changed).await;
    assert_eq!(class.status.instance_profile.as_ref(), Some(&name));
    assert_eq!((&*tags()["team"], &*tags()["unit"]), ("y", "z"));
    world.seen("default").await;
    assert_eq!(world.calls("TagInstanceProfile"), 1);

    world.fake.deny(&["iam:TagInstanceProfile"]);
    assert!(
        world
            .changed("default", json!({ "tags": { "team": "w" } }))
            .await
            .is_true(core_types::READY)
    );
    assert_eq!(tags()["team"], "y");
}

/// Lets the protection of profiles expire.
fn an_hour_later(world: &World, profiles: &[String]) {
    for name in profiles {
        world.aws.instance_profiles.unprotect(name);
    }
}

/// Conformance: AWS-profile-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classes_with_the_same_role_have_a_profile_each() {
    let world = World::new().await;
    world.create("a", json!({})).await;
    world.create("b", json!({})).await;
    let a = world.seen("a").await.status.instance_profile;
    let b = world.seen("b").await.status.instance_profile;
    assert!(a.is_some() && b.is_some());
    assert_ne!(a, b);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_managed_profile_is_not_changed() {
    let world = World::new().await;
    world.fake.add_instance_profile("theirs", Some(ROLE));
    let ours = world
        .made("default", json!({}))
        .await
        .status
        .instance_profile
        .unwrap();
    let class = world
        .changed(
            "default",
            json!({ "role": null, "instanceProfile": "theirs" }),
        )
        .await;
    assert_eq!(class.status.instance_profile.as_deref(), Some("theirs"));
    assert!(class.is_true(core_types::READY));
    assert!(world.aws.instance_profiles.is_protected(&ours));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_is_missing_or_forbidden_is_named() {
    let world = World::new().await;
    world.create("default", json!({ "role": "Missing" })).await;
    let (class, _) = world.failed("default").await;
    says(
        &class,
        types::INSTANCE_PROFILE_READY,
        is("False", "InstanceProfileResolutionFailed"),
        &["Missing"],
    );
    assert_eq!(names(&world), [""; 0], "the incomplete profile is deleted");

    world.fake.deny(&["iam:PassRole"]);
    world.respecify("default", json!({ "role": ROLE })).await;
    let (class, _) = world.failed("default").await;
    let (_, _, message) = observed(&class, types::INSTANCE_PROFILE_READY);
    assert!(message.contains("iam:PassRole"), "{message}");
    assert!(message.contains(&format!("role/{ROLE}")), "{message}");
    world.fake.deny(&[]);
    assert!(world.seen("default").await.is_true(core_types::READY));
}
