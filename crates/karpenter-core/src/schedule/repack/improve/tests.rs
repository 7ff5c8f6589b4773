use super::*;
use crate::schedule::compile::algebra::ANYTHING;
use crate::schedule::compile::ids::RowId;
use crate::schedule::repack::packing::RequirementGroup;
use index_vec::Idx;

const SMALL: Offer<'_> = Offer {
    price: 1.0,
    row: RowId(0),
    room: &[4],
};
const LARGE: Offer<'_> = Offer {
    price: 1.9,
    row: RowId(1),
    room: &[8],
};

fn packer() -> Packer<'static> {
    Packer {
        groups: vec![RequirementGroup {
            set: ANYTHING,
            offers: vec![LARGE, SMALL],
            takes: vec![0, 1],
        }],
        node_overhead: 0.1,
        width: 1,
        work: 0,
        most_work: 1_000_000,
    }
}

fn kinds(counts: [usize; 2]) -> Vec<Kind> {
    let kind = |(need, count)| Kind {
        set: ANYTHING,
        needs: [(0, need)].into_iter().collect(),
        origin: None,
        count,
        worth: 0.25 * need as f64,
    };
    [3, 1].into_iter().zip(counts).map(kind).collect()
}

fn bin(offer: Offer<'_>, counts: &[(usize, usize)]) -> Bin {
    let used = counts
        .iter()
        .map(|(kind, count)| [3, 1][*kind] * *count as i64);
    Bin {
        set: ANYTHING,
        row: offer.row,
        price: offer.price,
        used: [used.sum()].into_iter().collect(),
        counts: counts.to_vec(),
    }
}

#[test]
fn wasteful_nodes_are_packed_again() {
    // Sixteen units on three large nodes; two are enough.
    let wasteful = vec![
        (bin(LARGE, &[(0, 2)]), 1),
        (bin(LARGE, &[(0, 2)]), 1),
        (bin(LARGE, &[(1, 4)]), 1),
    ];
    let improved = packer().improve(&kinds([4, 4]), wasteful, 1_000_000);
    let price = |bins: &Bins| {
        bins.iter()
            .map(|(bin, n)| bin.price * *n as f64)
            .sum::<f64>()
    };
    assert!((price(&improved) - 3.8).abs() < 1e-9, "{improved:?}");
    let mut placed = [0, 0];
    for (bin, copies) in &improved {
        bin.counts
            .iter()
            .for_each(|(kind, count)| placed[*kind] += count * copies);
        assert!(bin.used[0] <= [4, 8][bin.row.index()]);
    }
    assert_eq!(placed, [4, 4]);
}

#[test]
fn a_packing_stays_without_an_improvement_or_at_the_work_limit() {
    let rows =
        |bins: Bins| -> Vec<(u32, usize)> { bins.iter().map(|(bin, n)| (bin.row.0, *n)).collect() };
    let full = vec![(bin(LARGE, &[(0, 2), (1, 2)]), 2)];
    assert_eq!(
        rows(packer().improve(&kinds([4, 4]), full, 1_000_000)),
        [(1, 2)]
    );
    let wasteful = || vec![(bin(LARGE, &[(1, 1)]), 2)];
    assert_eq!(
        rows(packer().improve(&kinds([0, 2]), wasteful(), 0)),
        [(1, 2)]
    );
    let many = vec![(bin(LARGE, &[(1, 1)]), MOST_NODES + 1)];
    let many = packer().improve(&kinds([0, MOST_NODES + 1]), many, 1_000_000);
    assert_eq!(rows(many), [(1, MOST_NODES + 1)]);
    let improved = packer().improve(&kinds([0, 2]), wasteful(), 1_000_000);
    assert_eq!(rows(improved), [(0, 1)]);
    // A single node has no other to share pods with.
    let single = vec![(bin(LARGE, &[(1, 1)]), 1)];
    let single = packer().improve(&kinds([0, 1]), single, 1_000_000);
    assert_eq!(rows(single), [(1, 1)]);
}

#[test]
fn plans_with_up_to_a_hundred_nodes_are_improved() {
    let wasteful = vec![(bin(LARGE, &[(1, 1)]), MOST_NODES)];
    let improved = packer().improve(&kinds([0, MOST_NODES]), wasteful, 1_000_000);
    assert!(node_count(&improved) < MOST_NODES);
}

#[test]
fn without_work_left_nothing_is_tried() {
    let mut packer = packer();
    packer.improve(&kinds([0, 2]), vec![(bin(LARGE, &[(1, 1)]), 2)], 0);
    assert_eq!(packer.work, 0);
}

/// Waste is the cost of a node less the worth of its pods.
#[test]
fn the_first_node_drawn_is_the_most_wasteful_of_three() {
    let bins: Bins = [
        bin(LARGE, &[(1, 8)]),
        bin(LARGE, &[(0, 2)]),
        bin(SMALL, &[(1, 2)]),
        bin(LARGE, &[(1, 4)]),
        bin(LARGE, &[(0, 1), (1, 1)]),
    ]
    .map(|bin| (bin, 1))
    .into();
    // The waste of the last two is equal.
    let rank = [0, 1, 2, 3, 3];
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let [mut expected, second, third] = [(); 3].map(|()| random.below(bins.len()));
        for other in [second, third] {
            if rank[other] > rank[expected] {
                expected = other;
            }
        }
        let drawn = packer().draw(&bins, &kinds([9, 9]), 1, &mut Random::new(seed));
        assert_eq!(drawn, [(expected, 1)], "seed {seed}");
    }
}

#[test]
fn a_node_costs_its_price_and_the_overhead() {
    assert!((packer().cost(&bin(LARGE, &[])) - 2.0).abs() < 1e-9);
}

#[test]
fn a_node_moves_to_the_cheapest_offer_that_holds_its_pods() {
    let moved = |offer, counts: &[(usize, usize)]| {
        let mut bin = bin(offer, counts);
        packer().reprice(&mut bin);
        (bin.row.0, bin.price)
    };
    assert_eq!(moved(LARGE, &[(1, 4)]), (0, 1.0));
    assert_eq!(moved(LARGE, &[(1, 5)]), (1, 1.9));
    assert_eq!(moved(SMALL, &[(1, 4)]), (0, 1.0));
    let as_cheap = Offer {
        row: RowId(7),
        ..SMALL
    };
    assert_eq!(moved(as_cheap, &[(1, 4)]), (7, 1.0));
}

#[test]
fn the_search_ends_after_many_attempts_without_an_improvement() {
    let full = vec![(bin(LARGE, &[(0, 2), (1, 2)]), 4)];
    let mut packer = packer();
    let improved = packer.improve(&kinds([8, 8]), full, 1_000_000);
    assert_eq!(node_count(&improved), 4);
    assert_eq!(packer.work, 8074);
    assert_eq!((packer.node_overhead, packer.most_work), (0.1, 1_000_000));
}
