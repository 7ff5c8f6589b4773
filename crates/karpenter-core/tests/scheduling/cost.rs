//! The price of plans for mixes of workloads, compared with a lower bound.
//!
//! The mixes are those of the bench `schedule-cost`, on instance types with the proportions of EC2's. The
//! bounds were computed once with the linear program of that bench: nodes in fractions, and split pods. A plan that costs more
//! than before has lost a part of the search, which no rule about single pods shows.

use std::sync::Arc;

use karpenter_core::fake::{GPU_VENDOR_A, instance_type, offering};
use karpenter_core::instance_type::InstanceType;

use crate::fixture::*;

/// Where a deployment may run.
#[derive(Clone, Copy)]
enum Place {
    Anywhere,
    Amd64,
    /// On amd64, and on demand.
    OnDemand,
}

use Place::{Amd64, Anywhere, OnDemand};

/// Replicas, CPU in millicores, memory in MiB, GPUs, and where it may run.
type Deployment = (usize, i64, i64, i64, Place);

const SPOT_SHARES: [f64; 6] = [0.40, 0.36, 0.42, 0.38, 0.45, 0.41];

fn types() -> Arc<[InstanceType]> {
    let mut types = Vec::new();
    let mut add =
        |name: String, arch: &str, (cores, gib, gpus): (i64, i64, i64), price: f64, spot: f64| {
            let offerings = vec![
                offering("on-demand", Z1, price),
                offering("spot", Z1, price * spot),
            ];
            let mut built = instance_type(&name)
                .cpu(cores)
                .gib(gib)
                .pods(110)
                .arch(arch);
            if gpus > 0 {
                built = built.resource(GPU_VENDOR_A, gpus);
            }
            types.push(built.offerings(offerings).build());
        };
    for (family, gib, price) in [("c", 2, 0.0425), ("m", 4, 0.048), ("r", 8, 0.063)] {
        for (arch, share) in [("amd64", 1.0), ("arm64", 0.8)] {
            for (cores, spot) in [2, 4, 8, 16, 32, 64].into_iter().zip(SPOT_SHARES) {
                let name = format!("{family}-{arch}-{cores:02}");
                let price = price * cores as f64 * share;
                add(name, arch, (cores, cores * gib, 0), price, spot);
            }
        }
    }
    for (cores, gpus, price) in [
        (4, 1, 0.526),
        (8, 1, 0.752),
        (16, 1, 1.204),
        (48, 4, 3.912),
        (96, 8, 7.824),
    ] {
        add(
            format!("g-{cores:02}"),
            "amd64",
            (cores, cores * 4, gpus),
            price,
            0.4,
        );
    }
    types.into()
}

fn deployment(index: usize, (replicas, cpu, memory, gpus, place): Deployment) -> Vec<Object<Pod>> {
    let mut pod = pod(&format!("d{index}"))
        .cpu(&format!("{cpu}m"))
        .memory(&format!("{memory}Mi"));
    if gpus > 0 {
        pod = pod.request(GPU_VENDOR_A, &gpus.to_string());
    }
    pod = match place {
        Anywhere => pod,
        Amd64 => pod.select(ARCH, "amd64"),
        OnDemand => pod.select(ARCH, "amd64").select(CAPACITY_TYPE, "on-demand"),
    };
    copies(&pod, replicas)
}

/// Returns the price of the plan for a mix as a multiple of its lower bound.
fn over_bound(deployments: &[Deployment], bound: f64) -> f64 {
    let pool = node_pool("default").requires(CAPACITY_TYPE, "In", &["spot", "on-demand"]);
    let mut world = World::of(pool).with_types(types());
    // The bounds are those of the instances alone.
    world.policy = world.policy.with_node_overhead_price(0.004);
    for (index, one) in deployments.iter().enumerate() {
        world.add(deployment(index, *one));
    }
    let plan = world.plan();
    assert!(all_placed(&plan));
    plan.hourly_price() / bound
}

#[test]
fn the_plan_for_a_cpu_heavy_mix_costs_little_more_than_the_bound() {
    let mix = [
        (40, 2000, 2560, 0, Amd64),
        (30, 4000, 5120, 0, Amd64),
        (20, 7500, 9216, 0, Anywhere),
        (60, 1000, 1536, 0, Anywhere),
        (25, 3000, 3072, 0, OnDemand),
        (12, 15000, 16384, 0, Amd64),
        (80, 500, 512, 0, Amd64),
        (35, 1500, 1024, 0, Anywhere),
    ];
    let over = over_bound(&mix, 13.3669);
    assert!(over <= 1.05, "{over}");
}

#[test]
fn the_plan_for_a_memory_heavy_mix_costs_little_more_than_the_bound() {
    let mix = [
        (30, 500, 8192, 0, Amd64),
        (20, 1000, 15360, 0, Anywhere),
        (12, 2000, 30720, 0, OnDemand),
        (40, 250, 3072, 0, Amd64),
        (8, 4000, 61440, 0, Amd64),
        (50, 500, 4096, 0, Anywhere),
        (6, 3000, 98304, 0, OnDemand),
        (25, 1000, 10240, 0, Amd64),
    ];
    let over = over_bound(&mix, 11.6768);
    assert!(over <= 1.05, "{over}");
}

#[test]
fn the_plan_for_a_mixed_workload_costs_little_more_than_the_bound() {
    let mix = [
        (40, 900, 3100, 0, Amd64),
        (25, 3500, 28672, 0, Amd64),
        (50, 250, 512, 0, Anywhere),
        (20, 2000, 4096, 0, OnDemand),
        (30, 1000, 1024, 0, Anywhere),
        (15, 4000, 8192, 0, Amd64),
        (10, 500, 12288, 0, Amd64),
        (60, 100, 256, 0, Anywhere),
        (12, 6000, 7168, 0, Anywhere),
        (18, 1500, 6144, 0, OnDemand),
    ];
    let over = over_bound(&mix, 8.3724);
    assert!(over <= 1.059, "{over}");
}

#[test]
fn the_plan_for_gpu_pods_among_others_costs_little_more_than_the_bound() {
    let mix = [
        (16, 3500, 14336, 1, Amd64),
        (6, 15000, 61440, 4, Amd64),
        (8, 7000, 28672, 1, OnDemand),
        (3, 40000, 180224, 8, Amd64),
        (30, 1000, 2048, 0, Amd64),
        (20, 2000, 8192, 0, Amd64),
        (40, 250, 512, 0, Anywhere),
    ];
    let over = over_bound(&mix, 28.1600);
    assert!(over <= 1.001, "{over}");
}

#[test]
fn the_plan_for_many_small_pods_costs_little_more_than_the_bound() {
    let mix = [
        (200, 50, 64, 0, Anywhere),
        (150, 100, 128, 0, Amd64),
        (120, 250, 256, 0, Amd64),
        (100, 100, 512, 0, Anywhere),
        (80, 150, 384, 0, OnDemand),
        (100, 20, 96, 0, Amd64),
        (50, 500, 1024, 0, Anywhere),
    ];
    let over = over_bound(&mix, 1.8981);
    assert!(over <= 1.074, "{over}");
}
