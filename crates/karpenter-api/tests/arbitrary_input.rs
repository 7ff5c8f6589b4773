//! Arbitrary input of users is deserialized or rejected, validated, hashed and counted without a panic.
#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use jiff::Timestamp;
use karpenter_api::conditions::{Condition, HasConditions, Status};
use karpenter_api::labels::annotations;
use karpenter_api::pause::Pause;
use karpenter_api::v1::{DisruptionReason, NodeClaim, NodePool};
use karpenter_api::validation::WellKnown;
use karpenter_api::{budget, hash, validation};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

/// Words that appear in NodePools, and other words.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => select(vec![
            "karpenter.sh/nodepool", "karpenter.sh/capacity-type", "kubernetes.io/hostname", "beta.kubernetes.io/arch", "a", "",
            "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte", "spot", "-1", "0", "9223372036854775808",
            "NoSchedule", "NoExecute", "10%", "100%", "* * * * *", "@daily", "0 0 30 2 *", "Empty", "Drifted", "Never", "1h", "0s",
        ])
        .prop_map(str::to_owned),
        1 => "\\PC{0,12}",
    ]
}

fn words() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(word(), 0..3)
}

fn some<T: std::fmt::Debug + Clone + Into<Value> + 'static>(
    strategy: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Value> {
    prop::option::of(strategy)
        .prop_map(|value| value.map_or(Value::Null, Into::into))
        .boxed()
}

fn duration() -> impl Strategy<Value = Value> {
    some(prop_oneof![
        Just("1h".to_owned()),
        "[0-9]{1,20}[smh]".prop_map(String::from)
    ])
}

fn pool() -> impl Strategy<Value = NodePool> {
    let requirement = (word(), word(), words(), prop::option::of(any::<i64>()))
        .prop_map(|(key, operator, values, min)| json!({ "key": key, "operator": operator, "values": values, "minValues": min }));
    let taint = (word(), some(word()), word())
        .prop_map(|(key, value, effect)| json!({ "key": key, "value": value, "effect": effect }))
        .boxed();
    let budget = (word(), some(words()), some(word()), duration())
        .prop_map(|(nodes, reasons, schedule, duration)| json!({ "nodes": nodes, "reasons": reasons, "schedule": schedule, "duration": duration }));
    let labels = prop::collection::btree_map(word(), word(), 0..3);
    let list = |strategy: BoxedStrategy<Value>| prop::collection::vec(strategy, 0..4);
    (prop::option::of(labels), list(requirement.boxed()), some(list(taint.clone())), list(taint), list(budget.boxed()), duration()).prop_map(
        |(labels, requirements, taints, startup_taints, budgets, grace)| {
            let spec = json!({
                "nodeClassRef": { "group": "g", "kind": "K", "name": "n" }, "requirements": requirements, "taints": taints,
                "startupTaints": startup_taints, "terminationGracePeriod": grace,
            });
            let template = json!({ "metadata": { "labels": labels }, "spec": spec });
            serde_json::from_value(json!({ "spec": { "template": template, "disruption": { "budgets": budgets } } })).unwrap()
        },
    )
}

/// Values of the annotation of a pause: some valid, some nearly valid, some any text.
fn pause() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => (-100_000_000_000_i64..100_000_000_000)
            .prop_map(|second| format!("until={}", Timestamp::from_second(second).unwrap())),
        2 => select(vec![
            "until=", "until=9999-12-31T23:59:59Z", "until=-009999-01-02T01:59:59Z", "reasons=Drifted,Empty", "reasons=Empty,",
            "by=alice", "by=", "why=a=b", " why = c", "=", "", "=;=", "why", "until",
        ])
        .prop_map(str::to_owned),
        1 => "\\PC{0,12}",
    ];
    prop_oneof![
        9 => prop::collection::vec(part, 0..5).prop_map(|parts| parts.join(";")),
        1 => "\\PC{0,40}",
    ]
}

proptest! {
    #[test]
    fn a_node_pool_is_validated_hashed_and_counted(pool in pool(), nodes in any::<u32>(), second in -100_000_000_000_i64..100_000_000_000) {
        let now = Timestamp::from_second(second).unwrap();
        let findings = validation::node_pool(&pool, &WellKnown::default());
        prop_assert_eq!(findings.message().is_empty(), findings.is_ok());
        for reason in DisruptionReason::KNOWN {
            prop_assert!(budget::allowed(&pool, reason, nodes, now) <= budget::UNBOUNDED);
        }
        let read: NodePool = serde_json::from_value(serde_json::to_value(&pool).unwrap()).unwrap();
        prop_assert_eq!(hash::node_pool(&read), hash::node_pool(&pool));
        prop_assert_eq!(read, pool);
    }

    #[test]
    fn a_pause_is_read_or_refused(text in pause(), second in -100_000_000_000_i64..100_000_000_000) {
        let now = Timestamp::from_second(second).unwrap();
        let mut pool = NodePool::default();
        pool.metadata.annotations = Some([(annotations::PAUSED.to_owned(), text.clone())].into());
        match Pause::of(&pool, now) {
            Ok(Some(pause)) => {
                prop_assert!(now < pause.until);
                prop_assert!(DisruptionReason::KNOWN.iter().any(|reason| pause.covers(reason)));
                prop_assert_eq!(pause.to_string().parse::<Pause>(), Ok(pause));
            }
            Ok(None) => prop_assert!(text.parse::<Pause>().is_ok_and(|pause| pause.until <= now)),
            Err(refused) => prop_assert!(!refused.to_string().is_empty()),
        }
    }

    #[test]
    fn the_order_of_taints_does_not_change_the_hash(pool in pool()) {
        let mut reversed = pool.clone();
        let spec = &mut reversed.spec.template.spec;
        for taints in [&mut spec.taints, &mut spec.startup_taints].into_iter().flatten() {
            taints.reverse();
        }
        prop_assert_eq!(hash::node_pool(&reversed), hash::node_pool(&pool));
    }

    #[test]
    fn any_json_is_deserialized_or_rejected(text in "[\\[\\]{}\":,a-z0-9.]{0,40}") {
        let _read_or_refused = serde_json::from_str::<NodePool>(&text).is_ok();
    }

    /// Conformance: API-014, API-015, API-018
    #[test]
    fn the_root_summarizes_its_dependents_after_any_sequence(
        changes in prop::collection::vec((select(vec!["Launched", "Registered", "Initialized", "Drifted", "Ready"]), 0..3_usize, any::<bool>()), 1..20),
    ) {
        let mut claim = NodeClaim::new("a", Default::default());
        claim.metadata.generation = Some(1);
        for (second, (condition_type, status, new_generation)) in changes.into_iter().enumerate() {
            if new_generation {
                claim.metadata.generation = claim.metadata.generation.map(|generation| generation + 1);
            }
            let status = [Status::True, Status::False, Status::Unknown][status];
            let now = Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
            claim.set_condition(condition_type, status, "Reason", "", now);

            let order: Vec<_> = claim.conditions().iter().map(|condition| condition.last_transition_time.0).collect();
            prop_assert!(order[..order.len() - 1].is_sorted());
            prop_assert_eq!(claim.conditions().last().unwrap().type_.as_str(), "Ready");
        }
        // The next change corrects a root that a caller set itself.
        let generation = claim.metadata.generation;
        claim.set_unknown_with_reason("Launched", "Last", "", Timestamp::from_second(100).unwrap());
        let dependents: Vec<&Condition> = ["Launched", "Registered", "Initialized"].iter().map(|name| claim.condition(name).unwrap()).collect();
        let failed = dependents.iter().any(|condition| Status::of(condition) == Status::False && condition.observed_generation == generation);
        prop_assert_eq!(claim.condition_status("Ready"), if failed { Status::False } else { Status::Unknown });
    }
}
