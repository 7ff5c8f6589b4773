//! The order in which plans are compared.

use super::*;

impl Cost {
    /// Reports whether a plan is better than one, and leaves no more preferences unmet if it places as many pods.
    fn beats(&self, best: &Self) -> bool {
        self.improves(best, best.unmet())
    }
}

/// Returns the cost of a plan for which so many nodes are launched.
fn at(price: f64, nodes: usize) -> Cost {
    Cost {
        price,
        nodes,
        ..Cost::default()
    }
}

/// Returns what became of pods: how many of each class and priority have no place.
fn left_out(pods: &[(u32, i32, usize)]) -> Outcome {
    let mut unplaced: BTreeMap<i32, usize> = BTreeMap::new();
    for (_, priority, number) in pods {
        *unplaced.entry(*priority).or_default() += number;
    }
    Outcome {
        unmet: 0,
        unplaced: unplaced.into_iter().rev().collect(),
        left_out: pods
            .iter()
            .map(|(class, _, number)| (ClassId(*class), *number))
            .collect(),
    }
}

#[test]
fn of_plans_that_place_the_same_pods_the_cheaper_is_better() {
    assert!(at(1.0, 9).beats(&at(1.1, 1)));
    assert!(!at(1.1, 1).beats(&at(1.0, 9)));
    assert!(!at(1.0, 1).beats(&at(1.0, 1)));
}

#[test]
fn of_plans_of_one_price_that_with_fewer_nodes_is_better() {
    let sum = 0.1 + 0.2;
    assert!(at(sum, 1).beats(&at(0.3, 2)));
    assert!(at(0.3, 1).beats(&at(sum, 2)));
    assert!(!at(0.3, 2).beats(&at(sum, 1)));
}

#[test]
fn a_plan_that_leaves_fewer_pods_unplaced_is_better_at_any_price() {
    let with = |price, pods: &[(u32, i32, usize)]| Cost {
        pods: left_out(pods),
        ..at(price, 1)
    };
    assert!(with(9.0, &[(0, 0, 1)]).beats(&with(1.0, &[(0, 0, 2)])));
    assert!(with(9.0, &[]).beats(&with(1.0, &[(0, 0, 1)])));
    assert!(!with(1.0, &[(0, 0, 1)]).beats(&with(9.0, &[])));
    let buffers = |price, pods: &[(u32, i32, usize)]| Cost {
        buffers: left_out(pods),
        ..at(price, 1)
    };
    assert!(buffers(9.0, &[]).beats(&buffers(1.0, &[(0, 0, 1)])));
    assert!(!buffers(9.0, &[]).beats(&with(1.0, &[])));
    assert!(buffers(9.0, &[(0, 0, 5)]).beats(&with(1.0, &[(0, 0, 1)])));
}

#[test]
fn the_unplaced_pods_of_the_highest_priority_decide() {
    let with = |pods: &[(u32, i32, usize)]| Cost {
        pods: left_out(pods),
        ..Cost::default()
    };
    let (high, low) = (with(&[(0, 9, 1)]), with(&[(1, 0, 5)]));
    assert!(low.beats(&high));
    assert!(!high.beats(&low));
    assert!(with(&[(0, 9, 1)]).beats(&with(&[(0, 9, 1), (1, 0, 1)])));
}

#[test]
fn preferences_are_not_given_up_for_a_lower_price() {
    let with = |unmet, price| Cost {
        pods: Outcome {
            unmet,
            ..Outcome::default()
        },
        ..at(price, 1)
    };
    assert!(!with(2, 1.0).beats(&with(1, 2.0)));
    assert!(with(1, 1.0).beats(&with(1, 2.0)));
    assert!(with(0, 1.0).beats(&with(1, 1.0)), "at one price");
    assert!(with(2, 1.0).improves(&with(1, 2.0), 2), "as first fit does");
}

#[test]
fn a_plan_leaves_out_no_more_pods_of_any_class_than_first_fit() {
    let with = |pods: &[(u32, i32, usize)], buffers: &[(u32, i32, usize)]| Cost {
        pods: left_out(pods),
        buffers: left_out(buffers),
        ..Cost::default()
    };
    let first = with(&[(0, 0, 2)], &[(5, 0, 1)]);
    assert!(with(&[(0, 0, 2)], &[(5, 0, 1)]).is_admissible(&first));
    assert!(!with(&[(1, 0, 1)], &[]).is_admissible(&first));
    assert!(!with(&[(0, 0, 3)], &[]).is_admissible(&first));
    assert!(!with(&[(0, 0, 2)], &[(5, 0, 2)]).is_admissible(&first));
    let places_more = with(&[(0, 0, 1)], &[(5, 0, 2)]);
    assert!(places_more.is_admissible(&first));
}

#[test]
fn fewer_nodes_cost_at_most_a_hundredth_more_than_first_fit() {
    let with = |instances, nodes| Cost {
        instances,
        ..at(instances + 0.05 * nodes as f64, nodes)
    };
    let first_fit = with(1.0, 4);
    assert!(with(1.01, 1).is_admissible(&first_fit));
    assert!(with(1.02, 1).improves(&first_fit, 0));
    assert!(!with(1.02, 1).is_admissible(&first_fit));
    let places_more = Cost {
        pods: left_out(&[(0, 0, 1)]),
        ..first_fit.clone()
    };
    assert!(with(9.0, 9).is_admissible(&places_more));
}
