//! Launch of a thousand NodeClaims at once, its duration and its calls: `cargo xtask bench aws-launch`.
//!
//! Calls are counted where they arrive, at a stand-in for AWS over HTTP with EC2's rate limits.

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

use std::time::{Duration, Instant};

use futures::future::join_all;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_bench::{Run, Suite};
use karpenter_core::provider::CloudProvider;
use kube::api::{ListParams, PostParams};

use world::{World, WorldOptions};

#[path = "../tests/cluster/world/mod.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod world;

const CLAIMS: usize = 1000;

fn manifests() -> Vec<NodeClaim> {
    let manifest = |n: usize| {
        World::manifest(
            &format!("claim-{n}"),
            &[("karpenter.sh/capacity-type", &["spot", "on-demand"])],
        )
    };
    (0..CLAIMS).map(manifest).collect()
}

async fn world(controllers: bool) -> World {
    let how = WorldOptions {
        speed: 1.0,
        controllers,
        ..WorldOptions::default()
    };
    let limits = |s: &mut karpenter_aws_fake::AwsFakeSettings| s.rate_limits = true;
    World::start(|b| b.settings(limits), |_| {}, |_| {}, how).await
}

/// Records the calls to EC2.
fn record(run: &mut Run, world: &World) {
    let counts = world.fake.call_counts();
    let of = |prefix: &str| -> usize {
        let found = counts
            .iter()
            .filter(|(action, _)| action.starts_with(prefix));
        found.map(|(_, count)| count).sum()
    };
    run.parameter("claims", CLAIMS);
    run.record("create_fleet", of("CreateFleet"));
    run.record("describe", of("Describe"));
    run.record("create_launch_template", of("CreateLaunchTemplate"));
    let throttled = world.fake.calls();
    let throttled = throttled
        .iter()
        .filter(|c| c.error.as_deref() == Some("RequestLimitExceeded"));
    run.record("throttled", throttled.count());
    assert_eq!(world.fake.instances().len(), CLAIMS);
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut suite = Suite::from_args("aws-launch");
    suite.case("provider", |run| {
        runtime.block_on(async {
            let world = world(false).await;
            world.fake.forget_calls();
            let started = Instant::now();
            let manifests = manifests();
            let created = manifests.into_iter().map(|manifest| {
                let provider = world.aws.provider.clone();
                tokio::spawn(async move { provider.create(&manifest).await.map(|_| ()) })
            });
            for created in join_all(created).await {
                created.unwrap().unwrap();
            }
            run.sample(CLAIMS, started.elapsed());
            record(run, &world);
        });
    });
    suite.case("claims", |run| {
        runtime.block_on(async {
            let world = world(true).await;
            world.fake.forget_calls();
            let started = Instant::now();
            let claims = world.api::<NodeClaim>();
            for mut manifest in manifests() {
                manifest.metadata.uid = None;
                claims
                    .create(&PostParams::default(), &manifest)
                    .await
                    .unwrap();
            }
            run.record("written_seconds", started.elapsed().as_secs_f64());
            loop {
                let all = claims.list(&ListParams::default()).await.unwrap();
                if all.items.iter().all(|c| c.is_true(types::LAUNCHED)) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            run.sample(CLAIMS, started.elapsed());
            record(run, &world);
        });
    });
}
