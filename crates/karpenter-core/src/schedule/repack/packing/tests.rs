use super::*;
use crate::schedule::compile::algebra::ANYTHING;

fn kind(cpu: i64, memory: i64, count: usize, worth: f64) -> Kind {
    let needs = [(0, cpu), (1, memory)].into_iter();
    Kind {
        set: ANYTHING,
        needs: needs.filter(|(_, need)| *need > 0).collect(),
        origin: None,
        pods: (0..count as u32).map(PodIdx).collect(),
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
    let kinds = [kind(3, 1, 21, 3.1), kind(1, 3, 21, 3.0)];
    assert_eq!(
        pack(&[(4.0, [12, 12])], &kinds),
        [(0, 7, vec![(0, 3), (1, 3)])]
    );
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
fn the_worth_of_a_kind_moves_halfway_to_its_share_of_the_prices_by_worth() {
    let mut kinds = [kind(1, 1, 6, 2.0), kind(1, 1, 2, 1.0)];
    let bin = |price, counts: &[(usize, usize)]| Bin {
        counts: counts.to_vec(),
        ..small([1, 1], price)
    };
    // The first kind pays 6 of 9 on each of two nodes, and all of the last: 18 for six pods. The second pays 6 for two.
    let bins = vec![(bin(9.0, &[(0, 1), (1, 1)]), 2), (bin(6.0, &[(0, 4)]), 1)];
    learn(&mut kinds, &bins, 0.0);
    assert_eq!(kinds.map(|kind| kind.worth), [2.5, 2.0]);
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
