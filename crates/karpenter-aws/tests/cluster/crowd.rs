//! Many launches at once: the number of calls, counted where they arrive.

use std::time::Instant;

use futures::future::join_all;
use karpenter_core::provider::CloudProvider;

use crate::cluster::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_claims_are_a_handful_of_calls() {
    let world = World::still().await;
    world.fake.forget_calls();
    let of = [
        ("node.kubernetes.io/instance-type", &["m5.large"][..]),
        ("karpenter.sh/capacity-type", &["on-demand"]),
    ];
    let started = Instant::now();
    let manifests = (0..1000).map(|n| World::manifest(&format!("claim-{n}"), &of));
    let created = manifests.map(|manifest| {
        let provider = world.aws.provider.clone();
        tokio::spawn(async move { provider.create(&manifest).await.map(|_| ()) })
    });
    for created in join_all(created).await {
        created.unwrap().unwrap();
    }
    // In one call: instances go from pending to running meanwhile.
    assert_eq!(world.fake.instances().len(), 1000);
    let counts = world.fake.call_counts();
    // A fleet includes all launches within a second, and all that are announced meanwhile: one fleet per second, apart
    // from the first and the last. The number of seconds depends on the speed of this computer.
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
    assert!(
        counts["CreateFleet"] <= seconds + 2,
        "{counts:?} in {seconds} s"
    );
    assert_eq!(counts["CreateLaunchTemplate"], 1, "{counts:?}");
    let described: usize = counts
        .iter()
        .filter(|(action, _)| action.starts_with("Describe"))
        .map(|(_, count)| count)
        .sum();
    assert!(described <= 10, "{counts:?}");
}
