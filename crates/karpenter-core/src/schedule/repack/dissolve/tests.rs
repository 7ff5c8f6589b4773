use jiff::Timestamp;
use karpenter_fixtures::{CAPACITY_TYPE, Object, Pod, Z1, copies, node_pool, pod};

use super::*;
use crate::cluster::Cluster;
use crate::fake;
use crate::instance_type::InstanceType;
use crate::schedule::compile::algebra::ANYTHING;
use crate::schedule::compile::solver::Solver;
use crate::schedule::pass::Pass;
use crate::schedule::request::{Policy, Query};

#[test]
fn a_pod_s_share_is_that_of_the_resource_it_uses_most_of() {
    assert_eq!(share(&[2, 3, 0], &[4, 12, 0]), Some(0.5));
    assert_eq!(share(&[5, 1], &[4, 4]), None);
    assert_eq!(share(&[0, 0], &[4, 4]), Some(0.0));
}

fn pods_of(need: i64, pods: usize) -> Kind {
    Kind {
        set: ANYTHING,
        needs: [(0, need)].into_iter().collect(),
        origin: None,
        pods: (0..pods).map(|pod| PodIdx(pod as u32)).collect(),
        worth: 1.0,
    }
}

fn wasteful(index: u32, (price, worth): (f64, f64), kinds: usize) -> Wasteful {
    Wasteful {
        index: PlannedId(index),
        price,
        worth,
        // Other requests than those of any other node, so that they are not joined.
        kinds: (0..kinds)
            .map(|kind| pods_of((index as usize * 100 + kind) as i64, 1))
            .collect(),
    }
}

#[test]
fn the_most_wasteful_planned_nodes_are_packed_first() {
    let planned = |found: Vec<Wasteful>| -> Vec<Vec<u32>> {
        let nodes = |chunk: &Chunk| chunk.planned.iter().map(|planned| planned.0).collect();
        chunks(found).iter().map(nodes).collect()
    };
    // 40 kinds each: no two nodes fit in one chunk. The first wastes 2, the second 3, the others 1.
    let found = vec![
        wasteful(0, (9.0, 7.0), 40),
        wasteful(1, (4.0, 1.0), 40),
        wasteful(2, (6.0, 5.0), 40),
        wasteful(3, (2.0, 1.0), 40),
    ];
    assert_eq!(planned(found), [[1], [0], [2], [3]]);
    let found = vec![
        wasteful(0, (9.0, 1.0), 40),
        wasteful(1, (8.0, 1.0), 24),
        wasteful(2, (7.0, 1.0), 1),
    ];
    assert_eq!(planned(found), [vec![0, 1], vec![2]]);
}

#[test]
fn a_chunk_has_the_price_of_its_nodes_and_their_pods_by_kind() {
    let node = |index, price, kinds| Wasteful {
        kinds,
        ..wasteful(index, (price, 0.0), 0)
    };
    let mut chunk = Chunk::default();
    chunk.take(node(0, 2.0, vec![pods_of(1, 2), pods_of(2, 1)]));
    chunk.take(node(1, 3.5, vec![pods_of(2, 3)]));
    let pods: Vec<usize> = chunk.kinds.iter().map(|kind| kind.pods.len()).collect();
    assert_eq!((chunk.price, pods), (5.5, vec![2, 4]));
}

/// Returns an instance type with 4 GiB per core, spot at a third of its price.
fn sized(cores: i64, price: f64) -> InstanceType {
    let offerings = [("on-demand", 1.0), ("spot", 1.0 / 3.0)];
    let offerings = offerings.map(|(kind, share)| fake::offering(kind, Z1, price * share));
    let sized = fake::instance_type(&format!("m-{cores:02}")).cpu(cores);
    let sized = sized.gib(cores * 4).pods(2000);
    sized.offerings(offerings.into()).build()
}

/// Returns what `read` finds once these pods are placed, but not repacked.
fn placed<R>(
    types: Vec<InstanceType>,
    pods: Vec<Object<Pod>>,
    read: impl FnOnce(&mut Repacker<'_, '_>) -> R,
) -> R {
    let mut cluster = Cluster::new(fake::cluster_config());
    let pool = node_pool("default").requires(CAPACITY_TYPE, "In", &["spot", "on-demand"]);
    cluster.apply_node_pool(&pool.build());
    cluster.set_instance_types("default", Ok(types.into()));
    for pod in pods {
        cluster.apply_pod(&pod.build());
    }
    let (policy, query) = (Policy::at(Timestamp::UNIX_EPOCH), Query::default());
    let solver = Solver::prepare_for(&cluster.snapshot(), &policy, &query);
    let mut pass = Pass::new(&solver, &query).unwrap();
    pass.place_first(false);
    read(&mut pass.repacker(true))
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
        let kinds = repacker.kinds(PlannedId(0));
        let [kind] = kinds.as_deref().unwrap_or_default() else {
            panic!("the node has pods of one kind");
        };
        let room = repacker.solver.templates[POOL].row_room(RowId(0));
        assert_eq!(kind.worth, 2000.0 / room[0] as f64, "spot costs 1");
    });
}

#[test]
fn an_offer_with_less_room_than_a_cheaper_one_is_left_out() {
    let types = vec![sized(2, 0.6), sized(4, 2.7), sized(8, 2.4)];
    placed(types, vec![], |repacker| {
        let set = repacker.solver.templates[POOL].set;
        let offers = repacker.rows.offers(POOL, set);
        let kept: Vec<u32> = offers.iter().map(|(_, row)| row.0).collect();
        assert_eq!(kept, [0, 2]);
    });
}

/// Reports whether first fit's plan has wasteful nodes.
fn wastes(types: Vec<InstanceType>, pods: Vec<Object<Pod>>) -> bool {
    placed(types, pods, |repacker| !repacker.wasteful(1).is_empty())
}

#[test]
fn nodes_are_wasteful_if_they_cost_more_than_the_worth_of_their_pods() {
    // Prices of a cent and less: the difference counts in proportion.
    let cheap = || vec![sized(2, 0.002), sized(16, 0.016)];
    assert!(wastes(cheap(), one_keeps_many_off_spot(9)));
    // Each pod fills a node of its own, and two pods fill one together.
    let full = |cpu: &str, pods: usize| {
        let pods = copies(&pod("p").cpu(cpu), pods);
        wastes(vec![sized(2, 6.0)], pods)
    };
    assert!(!full("1900m", 3));
    assert!(!full("950m", 4));
}

#[test]
fn planned_nodes_with_fewer_pods_than_asked_for_are_not_repacked() {
    let types = vec![sized(2, 0.2), sized(16, 1.6)];
    placed(types, one_keeps_many_off_spot(9), |repacker| {
        assert_eq!(repacker.wasteful(10).len(), 1);
        assert_eq!(repacker.wasteful(11).len(), 0);
    });
}

#[test]
fn pods_are_packed_in_rounds_only_while_there_is_work_left_for_them() {
    let types = || vec![sized(2, 0.2), sized(4, 0.4), sized(16, 1.6)];
    let work = |rounds, before| {
        placed(types(), one_keeps_many_off_spot(9), |repacker| {
            (repacker.rounds, repacker.work) = (rounds, before);
            let chunk = repacker.wasteful(1).remove(0);
            assert!(repacker.repack_chunk(chunk).is_some());
            repacker.work - before
        })
    };
    let once = work(1, 0);
    assert!(once > 0 && work(2, 0) > once);
    assert_eq!(work(2, MOST_WORK_OF_ROUNDS), once);
}
