//! A thousand messages in the interruption queue: `cargo xtask bench aws-interruption`.
//!
//! Calls are counted where they arrive, at a stand-in for AWS over HTTP.

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

use std::time::{Duration, Instant};

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_aws::providers::instance::instance_id;
use karpenter_bench::{Run, Suite};
use kube::api::{ListParams, PostParams};
use serde_json::json;

use world::{QUEUE, World, WorldOptions};

#[path = "../tests/cluster/world/mod.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod world;

const MESSAGES: usize = 1000;

async fn world() -> World {
    let how = WorldOptions {
        speed: 1.0,
        controllers: true,
        ..WorldOptions::default()
    };
    World::start(|b| b, |_| {}, |_| {}, how).await
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    while !holds().await {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn record(run: &mut Run, world: &World) {
    let counts = world.fake.call_counts();
    let of = |action: &str| counts.get(action).copied().unwrap_or(0);
    run.parameter("messages", MESSAGES);
    run.record("receive_message", of("ReceiveMessage"));
    run.record("delete_message_batch", of("DeleteMessageBatch"));
    run.record("delete_message", of("DeleteMessage"));
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut suite = Suite::from_args("aws-interruption");
    // The usual case: most messages concern instances of other clusters in the same account.
    suite.case("foreign", |run| {
        runtime.block_on(async {
            let world = world().await;
            let messages: Vec<String> = (0..MESSAGES)
                .map(|n| {
                    json!({
                        "version": "0", "id": format!("event-{n}"), "source": "aws.ec2",
                        "detail-type": "EC2 Instance State-change Notification",
                        "time": "2026-01-01T00:00:00Z", "region": "us-west-2", "account": "123456789012", "resources": [],
                        "detail": { "instance-id": format!("i-{n:017x}"), "state": "terminated" },
                    })
                    .to_string()
                })
                .collect();
            world.fake.forget_calls();
            let started = Instant::now();
            for message in &messages {
                world.fake.send_message(QUEUE, message);
            }
            until(async || world.fake.messages(QUEUE).is_empty()).await;
            run.sample(MESSAGES, started.elapsed());
            record(run, &world);
        });
    });
    // The worst case: every message interrupts an instance of the cluster.
    suite.case("storm", |run| {
        runtime.block_on(async {
            let world = world().await;
            let claims = world.api::<NodeClaim>();
            for n in 0..MESSAGES {
                let name = format!("claim-{n}");
                let spot = [("karpenter.sh/capacity-type", &["spot"][..])];
                let mut manifest = World::manifest(&name, &spot);
                manifest.metadata.uid = None;
                claims.create(&PostParams::default(), &manifest).await.unwrap();
            }
            let mut ids = Vec::new();
            until(async || {
                let all = claims.list(&ListParams::default()).await.unwrap();
                let launched = all.items.iter().filter(|c| c.is_true(types::LAUNCHED));
                ids = launched
                    .filter_map(|c| instance_id(c.status.provider_id.as_deref()?).map(str::to_owned))
                    .collect();
                ids.len() == MESSAGES
            })
            .await;
            until(async || world.fake.messages(QUEUE).is_empty()).await;
            world.fake.forget_calls();
            let started = Instant::now();
            for id in &ids {
                assert!(world.fake.interrupt_spot(id));
            }
            let handled =
                r#"karpenter_interruption_received_messages_total{message_type="spot_interrupted"}"#;
            until(async || {
                let messages = world.fake.messages(QUEUE);
                let left = messages.iter().any(|m| m.contains("Spot Instance Interruption"));
                !left && world.metric(handled) > MESSAGES as f64 - 0.5
            })
            .await;
            run.sample(MESSAGES, started.elapsed());
            record(run, &world);
        });
    });
}
