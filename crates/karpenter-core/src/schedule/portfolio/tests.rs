//! Which of several plans is chosen, and which strategies make them.

use karpenter_api::v1::NodeClaim;

use super::*;
use crate::pod::PodKey;
use crate::schedule::compile::ids::ClassId;
use crate::schedule::pods::queue::Outcome;
use crate::schedule::report::planned_node_claim::PlannedNodeClaim;
use crate::schedule::strategy::shuffled_rank;

fn strategy(domains: DomainOrder) -> Strategy {
    Strategy {
        domains,
        ..Strategy::default()
    }
}

fn planned(price: f64, pods: usize) -> PlannedNodeClaim {
    let pod = |index: usize| PodKey {
        name: format!("p{index}"),
        ..PodKey::default()
    };
    let mut claim = PlannedNodeClaim::new("default", NodeClaim::default());
    claim.hourly_price = price;
    claim.pods = (0..pods).map(pod).collect();
    claim
}

/// Returns an attempt with planned nodes of these prices, with so many pods each that the number of nodes does not count.
fn at(prices: &[f64]) -> Attempt {
    with_pods(prices, MANY_PODS_FROM)
}

fn with_pods(prices: &[f64], pods: usize) -> Attempt {
    let nodes = prices.iter().map(|price| planned(*price, pods));
    Attempt {
        plan: Plan {
            new_node_claims: nodes.collect(),
            ..Plan::default()
        },
        ..Attempt::default()
    }
}

/// Returns what became of pods: how many of the first class have no place, and how many preferences are not met.
fn outcome(unplaced: usize, dropped: usize) -> Outcome {
    Outcome {
        dropped,
        unplaced,
        left_out: [(ClassId(0), unplaced)].into_iter().collect(),
    }
}

fn chosen(attempts: Vec<Attempt>) -> Vec<f64> {
    let claims = choose(attempts).plan.new_node_claims;
    claims.iter().map(|claim| claim.hourly_price).collect()
}

#[test]
fn the_cheapest_plan_is_chosen() {
    assert_eq!(chosen(vec![at(&[3.0]), at(&[2.0]), at(&[2.5])]), [2.0]);
    assert_eq!(chosen(vec![at(&[2.0]), at(&[3.0])]), [2.0]);
}

#[test]
fn of_plans_of_nearly_the_same_price_the_one_with_fewest_nodes_is_chosen() {
    let cheapest = || at(&[1.0, 1.0]);
    assert_eq!(chosen(vec![cheapest(), at(&[2.01])]), [2.01]);
    assert_eq!(chosen(vec![cheapest(), at(&[2.03])]), [1.0, 1.0]);
    // With as many nodes the cheaper, then the first.
    assert_eq!(chosen(vec![at(&[1.005, 1.0]), cheapest()]), [1.0, 1.0]);
    assert_eq!(chosen(vec![at(&[1.5, 0.5]), cheapest()]), [1.5, 0.5]);
}

#[test]
fn a_plan_that_leaves_out_more_of_a_class_than_first_fit_is_not_chosen() {
    let first = || Attempt {
        pods: outcome(1, 0),
        ..at(&[3.0])
    };
    let other = |class: u32, unplaced| Attempt {
        strategy: Strategy::shuffled(1),
        pods: Outcome {
            dropped: 0,
            unplaced,
            left_out: [(ClassId(class), unplaced)].into_iter().collect(),
        },
        ..at(&[1.0])
    };
    assert_eq!(chosen(vec![first(), other(0, 2)]), [3.0]);
    assert_eq!(chosen(vec![first(), other(1, 1)]), [3.0]);
    assert_eq!(chosen(vec![first(), other(0, 1)]), [1.0]);
}

/// Which pods first fit leaves out depends on the domains it chooses.
#[test]
fn a_plan_may_leave_out_the_pods_that_first_fit_leaves_out() {
    let with = |strategy, left_out: &[(u32, usize)], price| Attempt {
        strategy,
        pods: Outcome {
            dropped: 0,
            unplaced: left_out.iter().map(|(_, number)| number).sum(),
            left_out: left_out
                .iter()
                .map(|(class, number)| (ClassId(*class), *number))
                .collect(),
        },
        ..at(&[price])
    };
    let first = || with(Strategy::default(), &[(0, 3)], 1.0);
    let by_name = || with(strategy(DomainOrder::Upstream), &[(0, 1), (1, 1)], 9.0);
    let other = |left_out: &[(u32, usize)]| with(Strategy::shuffled(1), left_out, 2.0);
    assert_eq!(chosen(vec![first(), by_name()]), [9.0]);
    assert_eq!(
        chosen(vec![first(), by_name(), other(&[(0, 1), (1, 1)])]),
        [2.0]
    );
    assert_eq!(chosen(vec![first(), by_name(), other(&[(1, 1)])]), [2.0]);
    // No plan of first fit leaves out two pods of the second class.
    assert_eq!(chosen(vec![first(), other(&[(1, 1)])]), [1.0]);
    assert_eq!(chosen(vec![first(), by_name(), other(&[(1, 2)])]), [9.0]);
    // Other strategies are no bound.
    let increase = with(Strategy::least_increase(Order::Size), &[(2, 1)], 5.0);
    assert_eq!(chosen(vec![first(), increase]), [1.0]);
    let shuffled = with(strategy(DomainOrder::Shuffled(1)), &[(2, 1)], 5.0);
    assert_eq!(chosen(vec![first(), shuffled]), [1.0]);
}

#[test]
fn orders_that_place_more_than_first_fit_are_tried_with_other_choices() {
    let of = |strategy, unplaced, price| Attempt {
        strategy,
        pods: outcome(unplaced, 0),
        ..at(&[price])
    };
    let order = |number| Strategy::new(Order::Shuffled(number));
    let increase = |strategy| Strategy {
        least_increase: true,
        ..strategy
    };
    let first = |unplaced| of(Strategy::default(), unplaced, 1.0);
    let attempts = |unplaced| {
        let others = [
            of(order(4), 1, 3.0),
            of(order(8), 1, 2.0),
            of(order(12), 2, 1.0),
        ];
        std::iter::once(first(unplaced))
            .chain(others)
            .collect::<Vec<_>>()
    };
    let of_order = |number| {
        let by_name = Strategy::by_name(Order::Shuffled(number));
        [increase(order(number)), by_name, increase(by_name)]
    };
    let both = [of_order(8), of_order(4)].concat();
    assert_eq!(variations(&attempts(2), 12), both);
    assert_eq!(variations(&attempts(2), 2), both[..2]);
    // First fit places as many.
    assert_eq!(variations(&attempts(1), 9), []);
}

#[test]
fn a_plan_that_was_cancelled_is_not_chosen() {
    let mut cancelled = at(&[1.0]);
    cancelled.plan.undecided.push(PodKey::default());
    assert_eq!(chosen(vec![at(&[3.0]), cancelled]), [3.0]);
}

#[test]
fn the_plan_that_places_the_most_pods_is_chosen_at_any_price() {
    let with = |unplaced, price| Attempt {
        pods: outcome(unplaced, 0),
        ..at(&[price])
    };
    assert_eq!(
        chosen(vec![with(2, 1.0), with(1, 9.0), with(2, 0.5)]),
        [9.0]
    );
    let buffers = |unplaced, price| Attempt {
        buffers: outcome(unplaced, 0),
        ..at(&[price])
    };
    assert_eq!(chosen(vec![buffers(2, 1.0), buffers(1, 9.0)]), [9.0]);
}

/// A buffer must not keep a pod from its place.
#[test]
fn a_plan_may_leave_out_more_buffers_only_if_it_places_more_pods() {
    let with = |pods, buffers, price| Attempt {
        pods: outcome(pods, 0),
        buffers: outcome(buffers, 0),
        ..at(&[price])
    };
    assert_eq!(chosen(vec![with(1, 0, 3.0), with(0, 1, 2.0)]), [2.0]);
    assert_eq!(chosen(vec![with(1, 0, 3.0), with(1, 1, 2.0)]), [3.0]);
}

#[test]
fn preferences_are_not_given_up_for_a_lower_price() {
    let with = |dropped, price| Attempt {
        pods: outcome(0, dropped),
        ..at(&[price])
    };
    let by_name = |dropped, price| Attempt {
        strategy: strategy(DomainOrder::Upstream),
        ..with(dropped, price)
    };
    assert_eq!(chosen(vec![with(1, 3.0), with(2, 2.0)]), [3.0]);
    assert_eq!(chosen(vec![with(1, 3.0), with(1, 2.0)]), [2.0]);
    assert_eq!(
        chosen(vec![
            with(1, 3.0),
            by_name(2, 4.0),
            with(2, 2.0),
            with(3, 1.0)
        ]),
        [2.0]
    );
    // Preferences of the pods of buffers count as much.
    let buffers = |dropped, price| Attempt {
        buffers: outcome(0, dropped),
        ..with(1, price)
    };
    assert_eq!(chosen(vec![buffers(1, 3.0), buffers(2, 2.0)]), [3.0]);
    assert_eq!(chosen(vec![buffers(1, 3.0), with(2, 2.0)]), [2.0]);
}

#[test]
fn where_nodes_have_few_pods_one_more_costs_a_fifth_of_the_mean_price() {
    let few = MANY_PODS_FROM - 1;
    let first = || with_pods(&[4.0], few);
    // The second node costs 0.8 more than its price.
    assert_eq!(
        chosen(vec![first(), with_pods(&[1.5, 1.5], few)]),
        [1.5, 1.5]
    );
    assert_eq!(chosen(vec![first(), with_pods(&[1.7, 1.7], few)]), [4.0]);
    // With many pods it does not.
    assert_eq!(chosen(vec![at(&[4.0]), at(&[1.7, 1.7])]), [1.7, 1.7]);
    // Nodes of the plan with domains by name cost nothing more.
    let by_name = Attempt {
        strategy: strategy(DomainOrder::Upstream),
        ..with_pods(&[9.0, 9.0], few)
    };
    let attempts = vec![first(), by_name, with_pods(&[1.7, 1.7], few)];
    assert_eq!(chosen(attempts), [1.7, 1.7]);
}

#[test]
fn one_order_of_domains_is_upstream_s() {
    let domains = [
        DomainOrder::Upstream,
        DomainOrder::Name,
        DomainOrder::Price,
        DomainOrder::Shuffled(1),
    ];
    assert_eq!(
        domains.map(|domains| strategy(domains).is_upstreams()),
        [true, false, false, false]
    );
}

#[test]
fn every_second_pseudo_random_strategy_compares_prices() {
    let of = |number| {
        let shuffled = Strategy::shuffled(number);
        assert_eq!(shuffled.order, Order::Shuffled(number));
        let domains = shuffled.domains == DomainOrder::Shuffled(number);
        (domains, shuffled.least_increase)
    };
    assert_eq!(
        [of(0), of(1), of(2), of(3), of(4)],
        [
            (false, false),
            (false, true),
            (true, false),
            (true, true),
            (false, false)
        ]
    );
}

#[test]
fn ranks_are_the_numbers_of_splitmix64() {
    let ranks = [1, 2, 3].map(|number| shuffled_rank(0, number));
    assert_eq!(
        ranks,
        [
            0xE220_A839_7B1D_CDAF,
            0x6E78_9E6A_A1B9_65F4,
            0x06C4_5D18_8009_454F
        ]
    );
    assert_ne!(shuffled_rank(1, 1), shuffled_rank(0, 1));
}

#[test]
fn the_mean_price_is_that_of_all_nodes_of_first_fit() {
    let with_three = |price: f64| {
        let first = with_pods(&[2.0, 2.0], 1);
        chosen(vec![first, with_pods(&[price; 3], 1)])
    };
    // $3 and $0.40 are less than $4.
    assert_eq!(with_three(1.0), [1.0; 3]);
    assert_eq!(with_three(1.25), [2.0, 2.0]);
}
