//! Clusters as small numbers, and their distribution.

use proptest::prelude::*;

use super::Features;

#[derive(Debug, Clone)]
pub(super) struct TypeSketch {
    pub(super) cpu: usize,
    pub(super) ratio: usize,
    pub(super) pods: usize,
    pub(super) arm: bool,
    pub(super) zones: usize,
    pub(super) spot: bool,
    pub(super) unavailable: usize,
    /// The pairs of zone and capacity type without an offering.
    pub(super) missing: usize,
    pub(super) reserved: u32,
    pub(super) noise: u32,
    /// How many devices its nodes have, and whether they can be shared.
    pub(super) devices: usize,
    pub(super) shared: bool,
}

#[derive(Debug, Clone)]
pub(super) struct PoolSketch {
    pub(super) weight: i32,
    pub(super) zones: usize,
    pub(super) capacity_type: usize,
    pub(super) team: usize,
    pub(super) taint: usize,
    pub(super) cpu_limit: usize,
    pub(super) node_limit: usize,
    pub(super) min_values: u32,
    pub(super) types: usize,
}

#[derive(Debug, Clone)]
pub(super) struct NodeSketch {
    pub(super) pool: usize,
    pub(super) instance_type: usize,
    pub(super) zone: usize,
    pub(super) state: usize,
    pub(super) taint: usize,
    /// Whether its drivers have not published its devices.
    pub(super) unpublished: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Wish {
    Anything,
    Zone(usize),
    NotZone(usize),
    Arch(bool),
    Spot(bool),
    Team(usize),
    NotTeam(usize),
    HasTeam(bool),
    Size(bool, i64),
    Type(usize),
    Unknown,
}

#[derive(Debug, Clone)]
pub(super) enum Tie {
    Spread {
        key: usize,
        skew: i32,
        soft: bool,
        min_domains: i32,
        honor_taints: bool,
        ignore_affinity: bool,
        app: usize,
    },
    Near {
        key: usize,
        app: usize,
        soft: bool,
    },
    Apart {
        key: usize,
        app: usize,
        soft: bool,
    },
}

#[derive(Debug, Clone)]
pub(super) struct WorkloadSketch {
    pub(super) replicas: usize,
    pub(super) cpu: usize,
    pub(super) memory: usize,
    pub(super) app: usize,
    pub(super) selector: Wish,
    pub(super) terms: Vec<Wish>,
    pub(super) preferred: Vec<Wish>,
    pub(super) ties: Vec<Tie>,
    pub(super) port: usize,
    pub(super) volume: usize,
    pub(super) tolerates: usize,
    pub(super) init: usize,
    pub(super) bound: Vec<usize>,
    /// The devices it requests.
    pub(super) claim: usize,
    /// Whether all its pods use one claim.
    pub(super) one_claim: bool,
}

#[derive(Debug, Clone)]
pub(super) struct DaemonSketch {
    pub(super) cpu: usize,
    pub(super) wish: Wish,
    pub(super) tolerates: bool,
    pub(super) port: usize,
}

fn one_in<T: std::fmt::Debug + Clone + 'static>(
    n: u32,
    usual: T,
    other: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<T> {
    prop_oneof![n - 1 => Just(usual), 1 => other].boxed()
}

pub(super) fn instance_type(features: Features) -> impl Strategy<Value = TypeSketch> {
    let devices = if features.devices {
        one_in(2, 0, 1usize..4)
    } else {
        Just(0).boxed()
    };
    let reserved = if features.reserved {
        one_in(4, 0, 1u32..3)
    } else {
        Just(0).boxed()
    };
    (
        0usize..5,
        0usize..4,
        0usize..4,
        prop::bool::weighted(0.2),
        1usize..8,
        any::<bool>(),
        one_in(3, 0, 0usize..8),
        reserved,
        (0u32..30, one_in(3, 0, 1usize..64), devices, any::<bool>()),
    )
        .prop_map(
            |(
                cpu,
                ratio,
                pods,
                arm,
                zones,
                spot,
                unavailable,
                reserved,
                (noise, missing, devices, shared),
            )| {
                TypeSketch {
                    cpu,
                    ratio,
                    pods,
                    arm,
                    zones,
                    spot,
                    unavailable,
                    missing,
                    reserved,
                    noise,
                    devices,
                    shared,
                }
            },
        )
}

pub(super) fn pool(features: Features) -> impl Strategy<Value = PoolSketch> {
    let limit = |most: usize| {
        if features.limits {
            one_in(3, 0, 1..most)
        } else {
            Just(0).boxed()
        }
    };
    let min_values = if features.min_values {
        one_in(4, 0, 1u32..4)
    } else {
        Just(0).boxed()
    };
    let taint = if features.extras {
        one_in(3, 0, 1usize..3)
    } else {
        Just(0).boxed()
    };
    (
        0i32..3,
        one_in(2, 0, 1usize..8),
        one_in(3, 0, 1usize..3),
        one_in(2, 0, 1usize..3),
        taint,
        limit(7),
        limit(4),
        min_values,
        one_in(2, 255, 1usize..64),
    )
        .prop_map(
            |(
                weight,
                zones,
                capacity_type,
                team,
                taint,
                cpu_limit,
                node_limit,
                min_values,
                types,
            )| PoolSketch {
                weight,
                zones,
                capacity_type,
                team,
                taint,
                cpu_limit,
                node_limit,
                min_values,
                types,
            },
        )
}

pub(super) fn node(features: Features) -> impl Strategy<Value = NodeSketch> {
    let taint = if features.extras {
        one_in(4, 0, 1usize..3)
    } else {
        Just(0).boxed()
    };
    (
        0usize..3,
        0usize..6,
        0usize..3,
        one_in(2, 0, 1usize..5),
        taint,
        prop::bool::weighted(0.2),
    )
        .prop_map(
            |(pool, instance_type, zone, state, taint, unpublished)| NodeSketch {
                pool,
                instance_type,
                zone,
                state,
                taint,
                unpublished,
            },
        )
}

fn wish() -> impl Strategy<Value = Wish> {
    prop_oneof![
        3 => (1usize..8).prop_map(Wish::Zone),
        1 => (1usize..7).prop_map(Wish::NotZone),
        1 => any::<bool>().prop_map(Wish::Arch),
        1 => any::<bool>().prop_map(Wish::Spot),
        2 => (1usize..3).prop_map(Wish::Team),
        1 => (1usize..3).prop_map(Wish::NotTeam),
        1 => any::<bool>().prop_map(Wish::HasTeam),
        2 => (any::<bool>(), 0i64..10).prop_map(|(above, size)| Wish::Size(above, size)),
        1 => (0usize..6).prop_map(Wish::Type),
        1 => Just(Wish::Unknown),
    ]
}

fn tie(features: Features) -> impl Strategy<Value = Tie> {
    let soft = if features.preferences {
        prop::bool::weighted(0.3).boxed()
    } else {
        Just(false).boxed()
    };
    let spread = (
        0usize..4,
        1i32..3,
        soft.clone(),
        one_in(3, 0, 1i32..4),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        0usize..4,
    )
        .prop_map(
            |(key, skew, soft, min_domains, honor_taints, ignore_affinity, app)| Tie::Spread {
                key,
                skew,
                soft,
                min_domains: if soft { 0 } else { min_domains },
                honor_taints,
                ignore_affinity,
                app,
            },
        );
    let near = (0usize..3, 0usize..4, soft.clone()).prop_map(|(key, app, soft)| Tie::Near {
        key,
        app,
        soft,
    });
    let apart =
        (0usize..3, 0usize..4, soft).prop_map(|(key, app, soft)| Tie::Apart { key, app, soft });
    match (features.spread, features.affinity) {
        (true, false) => spread.boxed(),
        (false, true) => prop_oneof![near, apart].boxed(),
        _ => prop_oneof![2 => spread, 1 => near, 1 => apart].boxed(),
    }
}

pub(super) fn workload(features: Features) -> impl Strategy<Value = WorkloadSketch> {
    let ties = if features.spread || features.affinity {
        prop::collection::vec(tie(features), 0..3).boxed()
    } else {
        Just(vec![]).boxed()
    };
    let preferred = if features.preferences {
        one_in(3, vec![], prop::collection::vec(wish(), 1..3))
    } else {
        Just(vec![]).boxed()
    };
    let extra = |most: usize| {
        if features.extras {
            one_in(5, 0, 1..most)
        } else {
            Just(0).boxed()
        }
    };
    let bound = if features.nodes {
        one_in(2, vec![], prop::collection::vec(0usize..5, 1..3))
    } else {
        Just(vec![]).boxed()
    };
    let claim = if features.devices {
        one_in(2, 0, 1usize..10)
    } else {
        Just(0).boxed()
    };
    let size = (1usize..6, 0usize..6, 0usize..5, 0usize..3);
    let place = (
        one_in(3, Wish::Anything, wish()),
        one_in(2, vec![], prop::collection::vec(wish(), 1..4)),
        preferred,
    );
    (
        size,
        place,
        ties,
        (extra(3), extra(5), one_in(2, 0, 1usize..4), extra(4)),
        bound,
        (claim, prop::bool::weighted(0.3)),
    )
        .prop_map(
            |(
                (replicas, cpu, memory, app),
                (selector, terms, preferred),
                ties,
                (port, volume, tolerates, init),
                bound,
                (claim, one_claim),
            )| WorkloadSketch {
                replicas,
                cpu,
                memory,
                app,
                selector,
                terms,
                preferred,
                ties,
                port,
                volume,
                tolerates,
                init,
                bound,
                claim,
                one_claim,
            },
        )
}

pub(super) fn daemon() -> impl Strategy<Value = DaemonSketch> {
    (
        0usize..4,
        one_in(2, Wish::Anything, wish()),
        any::<bool>(),
        one_in(4, 0, 1usize..3),
    )
        .prop_map(|(cpu, wish, tolerates, port)| DaemonSketch {
            cpu,
            wish,
            tolerates,
            port,
        })
}
