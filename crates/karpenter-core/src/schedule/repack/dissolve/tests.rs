use super::*;
use crate::schedule::compile::algebra::ANYTHING;

#[test]
fn the_shares_of_a_pod_are_those_of_the_resources_it_requests() {
    assert_eq!(shares(&[2, 3, 0], &[4, 12, 0]), Some((0.5, 0.375)));
    assert_eq!(shares(&[4, 1], &[4, 4]), Some((1.0, 0.625)));
    assert_eq!(shares(&[5, 1], &[4, 4]), None);
    assert_eq!(shares(&[0, 0], &[4, 4]), Some((0.0, 0.0)));
}

#[test]
fn a_packing_pays_if_it_saves_a_twentieth_of_the_price_and_the_overhead_of_all_nodes() {
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
fn each_node_costs_the_usual_overhead_or_where_nodes_have_few_pods_a_fifth_of_their_mean_price() {
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
