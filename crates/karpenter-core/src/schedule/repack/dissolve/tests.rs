use jiff::Timestamp;
use karpenter_fixtures::{CAPACITY_TYPE, Object, Pod, Z1, copies, node_pool, pod};

use super::*;
use crate::cluster::Cluster;
use crate::fake;
use crate::instance_type::InstanceType;
use crate::schedule::compile::algebra::ANYTHING;
use crate::schedule::compile::solver::Solver;
use crate::schedule::pass::{self, Placed};
use crate::schedule::request::{Policy, Query};
use crate::schedule::strategy::MOST_PODS;
use crate::schedule::strategy::Strategy;

#[test]
fn the_shares_of_a_pod_are_those_of_the_resources_it_requests() {
    assert_eq!(shares(&[2, 3, 0], &[4, 12, 0]), Some((0.5, 0.375)));
    assert_eq!(shares(&[4, 1], &[4, 4]), Some((1.0, 0.625)));
    assert_eq!(shares(&[5, 1], &[4, 4]), None);
    assert_eq!(shares(&[0, 0], &[4, 4]), Some((0.0, 0.0)));
}

#[test]
fn a_packing_pays_if_it_saves_a_twentieth_of_the_price_and_the_overhead() {
    let before = (10.0, 10);
    assert!(pays((9.0, 10), before, 1.0));
    assert!(!pays((9.1, 10), before, 1.0));
    assert!(pays((9.1, 9), before, 1.0));
    assert!(pays((9.5, 99), before, 0.0));
    assert!(!pays((0.0, 20), before, 1.0));
}

fn pods_of(worth: f64, pods: usize) -> PodGroup {
    PodGroup {
        set: ANYTHING,
        // Other requests than those of any other worth, so that they are not joined.
        requests: [worth as i64].into_iter().collect(),
        origin: None,
        pods: (0..pods).map(|pod| PodIdx(pod as u32)).collect(),
        worth,
        balanced: worth,
    }
}

fn wasteful(few: bool, index: u32, (price, worth): (f64, f64), kinds: usize) -> Wasteful {
    Wasteful {
        few,
        index: PlannedId(index),
        price,
        worth,
        pod_groups: (0..kinds)
            .map(|kind| pods_of((index as usize * 100 + kind) as f64, 1))
            .collect(),
    }
}

#[test]
fn planned_nodes_with_many_pods_are_packed_first_then_the_most_wasteful() {
    let planned = |found: Vec<Wasteful>| -> Vec<(bool, Vec<u32>)> {
        let nodes = |chunk: &Chunk| chunk.planned.iter().map(|planned| planned.0).collect();
        let chunks = chunks(found);
        chunks
            .iter()
            .map(|chunk| (chunk.few, nodes(chunk)))
            .collect()
    };
    // 40 kinds each: no two nodes fit in one chunk. The first wastes 2, the second 3, the third 1.
    let found = vec![
        wasteful(false, 0, (9.0, 7.0), 40),
        wasteful(false, 1, (4.0, 1.0), 40),
        wasteful(true, 2, (8.0, 1.0), 40),
        wasteful(false, 3, (6.0, 5.0), 40),
        wasteful(false, 4, (2.0, 1.0), 40),
    ];
    assert_eq!(
        planned(found),
        [
            (false, vec![1]),
            (false, vec![0]),
            (false, vec![3]),
            (false, vec![4]),
            (true, vec![2])
        ]
    );
    let found = vec![
        wasteful(false, 0, (9.0, 1.0), 40),
        wasteful(false, 1, (8.0, 1.0), 24),
        wasteful(false, 2, (7.0, 1.0), 1),
        wasteful(true, 3, (6.0, 1.0), 1),
    ];
    assert_eq!(
        planned(found),
        [(false, vec![0, 1]), (false, vec![2]), (true, vec![3])]
    );
}

#[test]
fn a_chunk_has_the_price_of_its_nodes_and_their_pods_by_kind() {
    let node = |index, price, pod_groups| Wasteful {
        pod_groups,
        ..wasteful(false, index, (price, 0.0), 0)
    };
    let mut chunk = Chunk::default();
    chunk.take(node(0, 2.0, vec![pods_of(1.0, 2), pods_of(2.0, 1)]));
    chunk.take(node(1, 3.5, vec![pods_of(2.0, 3)]));
    let pods: Vec<usize> = (chunk.pod_groups.iter())
        .map(|group| group.pods.len())
        .collect();
    assert_eq!((chunk.price, pods), (5.5, vec![2, 4]));
}

#[test]
fn each_node_costs_the_usual_overhead_or_a_fifth_of_the_mean_price() {
    let overhead = |few, usual| {
        let mut chunk = Chunk {
            few,
            ..Chunk::default()
        };
        for index in 0..4 {
            chunk.take(wasteful(few, index, (2.5, 1.0), 1));
        }
        chunk.node_overhead(usual)
    };
    assert_eq!(overhead(false, 0.1), 0.1);
    assert_eq!(overhead(true, 0.1), 0.5);
    assert_eq!(overhead(true, 0.7), 0.7);
}

/// Returns an instance type with 4 GiB per core, spot at a third of its price.
fn sized(cores: i64, price: f64) -> InstanceType {
    let offerings = [("on-demand", 1.0), ("spot", 1.0 / 3.0)];
    let offerings = offerings.map(|(kind, share)| fake::offering(kind, Z1, price * share));
    let sized = fake::instance_type(&format!("m-{cores:02}")).cpu(cores);
    let sized = sized.gib(cores * 4).pods(2000);
    sized.offerings(offerings.into()).build()
}

/// Returns a solver for these pods, all of which are pending.
fn solver(types: Vec<InstanceType>, pods: Vec<Object<Pod>>) -> Solver {
    let mut cluster = Cluster::new(fake::cluster_config());
    let pool = node_pool("default").requires(CAPACITY_TYPE, "In", &["spot", "on-demand"]);
    cluster.apply_node_pool(&pool.build());
    cluster.set_instance_types("default", Ok(types.into()));
    for pod in pods {
        cluster.apply_pod(&pod.build());
    }
    let policy = Policy::at(Timestamp::UNIX_EPOCH);
    Solver::prepare_for(&cluster.snapshot(), &policy, &Query::default())
}

/// Returns what `read` finds once the pods are placed, but not repacked.
fn placed<R>(
    types: Vec<InstanceType>,
    pods: Vec<Object<Pod>>,
    read: impl FnOnce(&mut Repacker<'_, '_>) -> R,
) -> R {
    let solver = solver(types, pods);
    let placed = Placed::new(&solver, &Query::default(), Strategy::default());
    read(&mut placed.unwrap().repacker(true))
}

/// Returns pods that first fit puts on one node: an on-demand pod that keeps the others off spot.
fn one_keeps_many_off_spot(many: usize) -> Vec<Object<Pod>> {
    let steady = pod("steady").cpu("1").select(CAPACITY_TYPE, "on-demand");
    let mut pods = copies(&pod("p").cpu("1"), many);
    pods.push(steady);
    pods
}

const POOL: TemplateId = TemplateId(0);

#[test]
fn the_worth_of_a_pod_is_the_price_of_its_share_of_a_node() {
    let pods = vec![pod("p").cpu("2").memory("1Gi")];
    placed(vec![sized(8, 3.0)], pods, |repacker| {
        let groups = repacker.pod_groups(PlannedId(0));
        let [group] = groups.as_deref().unwrap_or_default() else {
            panic!("the node has pods of one kind");
        };
        let room = repacker.solver.templates[POOL].row_room(RowId(0));
        let (most, mean) = shares(&group.requests, room).unwrap_or_default();
        assert!(mean < most);
        assert_eq!((group.worth, group.balanced), (most, mean), "spot costs 1");
    });
}

#[test]
fn an_offer_with_less_room_than_a_cheaper_one_is_left_out() {
    let types = vec![sized(2, 0.6), sized(4, 2.7), sized(8, 2.4)];
    placed(types, vec![], |repacker| {
        let set = repacker.solver.templates[POOL].set;
        let offers = repacker.offer_list(set);
        let kept: Vec<u32> = offers.iter().map(|(_, row)| row.0).collect();
        assert_eq!(kept, [2, 0]);
    });
}

/// Reports whether planned nodes were repacked, but not thoroughly.
fn is_hasty(types: Vec<InstanceType>, pods: Vec<Object<Pod>>, thorough: bool) -> bool {
    let strategy = Strategy {
        thorough,
        ..Strategy::default()
    };
    let attempt = pass::run(&solver(types, pods), &Query::default(), strategy);
    attempt.unwrap().hasty
}

#[test]
fn wasteful_nodes_are_repacked_thoroughly_by_strategy_or_for_many_pods() {
    let pods = || one_keeps_many_off_spot(9);
    let types = || vec![sized(2, 0.2), sized(16, 1.6)];
    assert!(is_hasty(types(), pods(), false));
    assert!(!is_hasty(types(), pods(), true));
    let small = |mut pods: Vec<Object<Pod>>| {
        pods.truncate(MOST_PODS - 1);
        pods.push(pod("steady").cpu("1").select(CAPACITY_TYPE, "on-demand"));
        pods
    };
    let few = small(copies(&pod("p").cpu("1m"), MOST_PODS));
    assert!(is_hasty(types(), few.clone(), false));
    let many = [few, vec![pod("one-more").cpu("1m")]].concat();
    assert!(!is_hasty(types(), many, false));
}

#[test]
fn nodes_are_wasteful_if_they_cost_more_than_the_worth_of_their_pods() {
    // Prices of a cent and less: the difference counts in proportion.
    let cheap = || vec![sized(2, 0.002), sized(16, 0.016)];
    assert!(is_hasty(cheap(), one_keeps_many_off_spot(9), false));
    // Each pod fills a node of its own, and two pods fill one together.
    let full = |cpu: &str, pods: usize| {
        let pods = copies(&pod("p").cpu(cpu), pods);
        is_hasty(vec![sized(2, 6.0)], pods, false)
    };
    assert!(!full("1900m", 3));
    assert!(!full("950m", 4));
}

/// The limit is shared by all planned nodes of a repacker.
#[test]
fn no_plan_is_improved_once_the_work_for_it_is_done() {
    let types = vec![sized(2, 0.2), sized(4, 0.4), sized(16, 1.6)];
    placed(types, one_keeps_many_off_spot(9), |repacker| {
        repacker.improving = MOST_IMPROVING;
        let chunks = repacker.wasteful(1);
        assert_eq!(chunks.len(), 1);
        assert!(repacker.repack_chunk(&chunks[0]).is_some());
        assert!(repacker.work > 0);
        assert_eq!(repacker.improving, MOST_IMPROVING);
    });
}

#[test]
fn the_work_of_improving_a_plan_is_counted() {
    let types = vec![sized(2, 0.2), sized(4, 0.4), sized(16, 1.6)];
    placed(types, one_keeps_many_off_spot(9), |repacker| {
        let chunks = repacker.wasteful(1);
        repacker.repack_chunk(&chunks[0]);
        assert!(repacker.improving > 0);
    });
}
