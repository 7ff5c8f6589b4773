use super::*;
use crate::schedule::compile::algebra::ANYTHING;

fn kind(cpu: i64, memory: i64, count: usize, worth: f64) -> Kind {
    let needs = [(0, cpu), (1, memory)].into_iter();
    Kind {
        set: ANYTHING,
        needs: needs.filter(|(_, need)| *need > 0).collect(),
        origin: None,
        count,
        worth,
    }
}

fn packer(offers: &[(f64, [i64; 2])], kinds: usize) -> Packer<'_> {
    let offers = offers.iter().enumerate();
    let offers = offers.map(|(row, (price, room))| Offer {
        price: *price,
        row: RowId(row as u32),
        room,
    });
    let group = RequirementGroup {
        set: ANYTHING,
        offers: offers.collect(),
        takes: (0..kinds).collect(),
    };
    Packer {
        groups: vec![group],
        node_overhead: 0.0,
        width: 2,
        work: 0,
        most_work: 100_000,
    }
}

/// Row, copies and pod counts of nodes.
type Found = Vec<(u32, usize, Vec<(usize, usize)>)>;

fn read(bins: Bins) -> Found {
    let mut found: Found = bins
        .into_iter()
        .map(|(mut bin, copies)| {
            bin.counts.sort_unstable();
            (bin.row.0, copies, bin.counts)
        })
        .collect();
    found.sort();
    found
}

fn pack(offers: &[(f64, [i64; 2])], kinds: &[Kind]) -> Found {
    let bins = packer(offers, kinds.len()).pack(kinds);
    read(bins.unwrap_or_default())
}

#[test]
fn pods_with_complementary_requests_share_nodes() {
    // With `highest_worth_first`, four pods of the first kind and none of the second would go on each node.
    let kinds = [kind(3, 1, 21, 3.1), kind(1, 3, 21, 3.0)];
    assert_eq!(
        pack(&[(4.0, [12, 12])], &kinds),
        [(0, 7, vec![(0, 3), (1, 3)])]
    );
}

#[test]
fn nodes_with_the_same_filling_are_merged_where_that_costs_no_more() {
    let offers = [(40.0, [64, 64]), (8.0, [16, 16]), (2.0, [4, 4])];
    let small = Bin {
        set: ANYTHING,
        row: RowId(2),
        price: 2.0,
        used: [4, 3].into_iter().collect(),
        counts: vec![(0, 2)],
    };
    let found = read(packer(&offers, 1).joined(vec![(small, 9)]));
    assert_eq!(found, [(1, 2, vec![(0, 8)]), (2, 1, vec![(0, 2)])]);
}

#[test]
fn pods_of_different_planned_nodes_under_a_hostname_constraint_stay_apart() {
    let of = |origin| Kind {
        origin: Some(PlannedId(origin)),
        ..kind(1, 1, 2, 1.0)
    };
    let found = pack(&[(4.0, [4, 4])], &[of(0), of(1)]);
    assert_eq!(found, [(0, 1, vec![(0, 2)]), (0, 1, vec![(1, 2)])]);
}

#[test]
fn a_pod_that_fits_on_no_instance_type_is_not_packed() {
    assert_eq!(pack(&[(4.0, [4, 4])], &[kind(5, 1, 1, 1.0)]), []);
}

fn small(used: [i64; 2], price: f64) -> Bin {
    Bin {
        set: ANYTHING,
        row: RowId(99),
        price,
        used: used.into_iter().collect(),
        counts: vec![(0, 1)],
    }
}

#[test]
fn the_cheapest_of_the_offers_that_hold_the_most_copies_replaces_them() {
    let offers = [
        (4.1, [8, 8]),
        (4.0, [8, 8]),
        (3.9, [9, 8]),
        (2.0, [4, 4]),
        (1.0, [2, 2]),
    ];
    let packer = packer(&offers, 1);
    let larger = |bin: &Bin, most| {
        let found = packer.larger(bin, most);
        found.map(|(times, offer)| (times, offer.row.0))
    };
    assert_eq!(larger(&small([2, 2], 1.0), 9), Some((4, 2)));
    assert_eq!(larger(&small([2, 2], 1.0), 3), Some((2, 3)));
    assert_eq!(larger(&small([2, 2], 1.0), 1), None);
    // Resources that no pod uses do not count.
    assert_eq!(larger(&small([0, 2], 1.0), 9), Some((4, 2)));
    // Each of these costs more than its copies.
    assert_eq!(larger(&small([2, 2], 0.9), 9), None);
}

#[test]
fn a_larger_node_may_cost_more_by_the_overhead_of_the_nodes_it_saves() {
    let times = |node_overhead| {
        let offers = [(7.0, [8, 8])];
        let packer = Packer {
            node_overhead,
            ..packer(&offers, 1)
        };
        let found = packer.larger(&small([2, 2], 1.0), 4);
        found.map(|(times, _)| times)
    };
    assert_eq!((times(0.75), times(1.0)), (None, Some(4)));
}

#[test]
fn with_an_overhead_for_each_node_fewer_and_larger_nodes_are_opened() {
    let offers = [(4.4, [15, 15]), (1.0, [4, 4])];
    let packed = |node_overhead| {
        let mut packer = Packer {
            node_overhead,
            ..packer(&offers, 1)
        };
        read(packer.pack(&[kind(1, 1, 15, 0.25)]).unwrap_or_default())
    };
    assert_eq!(packed(0.0), [(1, 1, vec![(0, 3)]), (1, 3, vec![(0, 4)])]);
    assert_eq!(packed(0.5), [(0, 1, vec![(0, 15)])]);
}

#[test]
fn a_packing_that_exceeds_the_work_limit_is_given_up() {
    let kinds = [kind(3, 1, 21, 3.1), kind(1, 3, 20, 3.0)];
    let offers = [(4.0, [12, 12]), (1.5, [4, 4])];
    let mut packer = packer(&offers, 2);
    assert!(packer.pack(&kinds).is_some());
    let needed = packer.work;
    let within = |most_work| {
        let mut packer = Packer {
            work: 0,
            most_work,
            ..packer.clone()
        };
        packer.pack(&kinds).is_some()
    };
    assert!(within(needed));
    assert!(!within(needed - 1) && !within(1));
}

#[test]
fn a_filling_is_computed_again_only_when_too_few_pods_are_left_for_it() {
    let filling = Filling {
        counts: vec![(0, 2), (1, 1)],
        ..Filling::default()
    };
    assert!(filling.is_possible(&[2, 1]) && filling.is_possible(&[3, 9]));
    assert!(!filling.is_possible(&[1, 9]) && !filling.is_possible(&[2, 0]));
    // The first node takes all large pods. What the small offer can hold stays the same until small pods are packed.
    let offers = [(4.0, [12, 12]), (1.0, [3, 3])];
    let mut packer = packer(&offers, 2);
    packer.pack(&[kind(12, 12, 5, 9.0), kind(1, 1, 6, 0.5)]);
    assert_eq!(packer.work, 28);
}

#[test]
fn the_worth_of_a_kind_moves_halfway_to_its_share_of_the_prices_by_worth() {
    let mut kinds = [kind(1, 1, 6, 2.0), kind(1, 1, 2, 1.0)];
    let bin = |price, counts: &[(usize, usize)]| Bin {
        counts: counts.to_vec(),
        ..small([1, 1], price)
    };
    // The first kind pays 6 of 9 on each of two nodes, and all of the last: 18 for six pods. The second pays 6 for two.
    let bins = vec![(bin(9.0, &[(0, 1), (1, 1)]), 2), (bin(6.0, &[(0, 4)]), 1)];
    learn(&mut kinds, &bins);
    assert_eq!(kinds.map(|kind| kind.worth), [2.5, 2.0]);
}

#[test]
fn costs_and_nodes_are_counted_with_their_copies() {
    let bins = vec![(small([1, 1], 1.5), 4), (small([2, 2], 2.0), 1)];
    assert_eq!((cost(&bins, 0.5), node_count(&bins)), (10.5, 5));
}

#[test]
fn the_offer_that_holds_the_most_copies_is_kept_and_of_equals_the_first() {
    let row = |offers: &[(f64, [i64; 2])]| {
        let packer = packer(offers, 1);
        let found = packer.larger(&small([2, 2], 1.0), 9);
        found.map(|(times, offer)| (times, offer.row.0))
    };
    assert_eq!(row(&[(2.0, [4, 4]), (1.9, [8, 8])]), Some((4, 1)));
    assert_eq!(row(&[(3.0, [8, 8]), (3.0, [8, 9])]), Some((4, 0)));
}

#[test]
fn a_kind_pays_by_its_worth_times_its_pods() {
    let mut kinds = [kind(1, 1, 1, 2.0), kind(1, 1, 2, 1.0)];
    let bin = Bin {
        counts: vec![(0, 1), (1, 2)],
        ..small([3, 3], 12.0)
    };
    // Each kind has half of the worth on the node, so it pays 6.
    learn(&mut kinds, &vec![(bin, 1)]);
    assert_eq!(kinds.map(|kind| kind.worth), [4.0, 2.0]);
}

/// The requirements of pods that any node of [`STRICT`] or of [`ANYTHING`] meets, and of pods that only the former meets.
const STRICT: SetId = SetId(7);

fn strict(kind: Kind) -> Kind {
    Kind {
        set: STRICT,
        ..kind
    }
}

/// Returns a packer for kinds of which the first needs nodes of a stricter set. Such nodes accept all of them.
fn two_sets(kinds: usize) -> Packer<'static> {
    let offers = vec![Offer {
        price: 1.0,
        row: RowId(0),
        room: &[8, 8],
    }];
    let group = |set, takes| RequirementGroup {
        set,
        offers: offers.clone(),
        takes,
    };
    Packer {
        groups: vec![
            group(ANYTHING, (1..kinds).collect()),
            group(STRICT, (0..kinds).collect()),
        ],
        ..packer(&[], 0)
    }
}

#[test]
fn pods_with_fewer_requirements_fill_the_nodes_of_pods_with_more() {
    // The pods with fewer requirements are worth more, and come after those that need the node.
    let kinds = [strict(kind(2, 2, 1, 0.1)), kind(3, 3, 2, 0.5)];
    let packed = two_sets(2).pack(&kinds).unwrap_or_default();
    let sets: Vec<SetId> = packed.iter().map(|(bin, _)| bin.set).collect();
    assert_eq!(sets, [STRICT]);
    assert_eq!(read(packed), [(0, 1, vec![(0, 1), (1, 2)])]);
}

fn fill<'f>(kinds: &'f [Kind], takes: &'f [usize], left: &'f [usize]) -> BinFill<'f> {
    BinFill {
        set: STRICT,
        takes,
        room: &[8, 8],
        kinds,
        left,
        width: 2,
    }
}

#[test]
fn a_node_is_filled_with_the_pods_that_need_it_and_then_with_others() {
    let kinds = [strict(kind(2, 2, 1, 0.1)), kind(3, 3, 2, 0.5)];
    let filled = |left: &[usize]| {
        let filling = fill(&kinds, &[0, 1], left).highest_worth_first(&mut 0);
        (filling.counts, filling.used.to_vec())
    };
    assert_eq!(filled(&[1, 2]), (vec![(0, 1), (1, 2)], vec![8, 8]));
    assert_eq!(filled(&[0, 2]), (vec![], vec![0, 0]));
}

#[test]
fn of_pods_with_the_same_worth_the_first_kind_is_put_on_a_node() {
    let kinds = [kind(1, 1, 8, 1.0), kind(1, 1, 8, 1.0)].map(strict);
    let filling = fill(&kinds, &[0, 1], &[8, 8]).evenly(&mut 0);
    assert_eq!(filling.counts, [(0, 8)]);
}

#[test]
fn of_fillings_of_the_same_worth_that_with_the_highest_first_is_used() {
    let kinds = [kind(2, 1, 2, 1.0), kind(1, 2, 2, 1.0)];
    let found = pack(&[(1.0, [4, 4])], &kinds);
    assert_eq!(found, [(0, 1, vec![(0, 2)]), (0, 1, vec![(1, 2)])]);
}

#[test]
fn kinds_without_pods_left_are_not_tried() {
    let work = |kinds: &[Kind]| {
        let mut packer = packer(&[(4.0, [4, 4])], kinds.len());
        packer.pack(kinds);
        packer.work
    };
    let one = kind(1, 1, 4, 1.0);
    assert_eq!(work(&[one.clone(), kind(1, 1, 0, 1.0)]), work(&[one]));
    // Once the pod of the stricter set has a node, that set is not tried for the other pod.
    let kinds = [strict(kind(8, 8, 1, 2.0)), kind(8, 8, 1, 1.0)];
    let mut packer = two_sets(2);
    packer.pack(&kinds);
    assert_eq!(packer.work, 9);
}
