//! The bounds of ring and index hold whatever the passes decide, and their accounts of memory are true.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_core::reason::Reason;
use karpenter_decisions::digest::Digest;
use karpenter_decisions::index::{Fresh, Key, Known, MAX_NODES, MAX_PARAMETERS, MAX_PODS, Table};
use karpenter_decisions::record::{
    CommandOutcome, CommandState, DecisionRecord, Item, MAX_RECORD, Outcome, Pass, RecordId, Totals,
};
use karpenter_decisions::ring::{Bounds, Recorded, Ring};
use proptest::prelude::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn outcome(pass: Pass, items: Vec<Item>) -> Outcome {
    Outcome {
        pass,
        epoch: 1,
        input: Digest::of(&1),
        took_ms: 3,
        truncated: false,
        totals: Totals::default(),
        items,
    }
}

fn unplaced(class: String, count: usize, name: String) -> Item {
    Item::Unplaced {
        class,
        count,
        names: vec![name],
        reason: "TooLarge",
        text: "no instance type has enough resources".into(),
    }
}

/// Items of all lengths, from none to several times the size of a record.
fn items() -> impl Strategy<Value = Vec<Item>> {
    let item = (any::<u32>(), 1..100_usize, "[a-z]{1,90}")
        .prop_map(|(class, count, name)| unplaced(format!("{class:08x}"), count, name));
    prop_oneof![
        4 => prop::collection::vec(item.clone(), 0..4),
        1 => prop::collection::vec(item, 0..120),
    ]
}

fn pass() -> impl Strategy<Value = Pass> {
    prop::sample::select(Pass::ALL.to_vec())
}

proptest! {
    /// Conformance: DEC-002
    #[test]
    fn a_record_is_never_longer_than_a_line_of_a_container_log(items in items(), pass in pass()) {
        let all = items.len();
        let id = RecordId::new(at(0), u32::MAX);
        let mut record = DecisionRecord::new(id, at(0), outcome(pass, items.clone()));
        record.until = "2026-12-31T23:59:59.123456789Z".parse().unwrap();
        prop_assert!(record.to_json().len() <= MAX_RECORD, "{}", record.to_json().len());
        prop_assert_eq!(record.items.len() + record.totals.omitted_items, all);
        // Whatever is left out, the digest is of all of it.
        prop_assert_eq!(record.output_digest, Digest::of(&items));
    }

    /// Conformance: DEC-001
    #[test]
    fn a_ring_stays_within_its_bounds(
        passes in prop::collection::vec((pass(), items(), 0..40_000_i64), 1..16),
        records in 1..12_usize,
        memory in 17_000..60_000_usize,
    ) {
        let age = SignedDuration::from_hours(24);
        let mut ring = Ring::new(Bounds { records, age, memory });
        let mut now = 0;
        for (pass, items, later) in passes {
            now += later;
            ring.push(outcome(pass, items), at(now));
            prop_assert!(ring.len() <= records);
            prop_assert!(ring.memory() <= memory);
            let accounted: usize = ring.iter().map(|record| record.memory()).sum();
            prop_assert!(ring.memory() >= accounted);
            for record in ring.iter() {
                prop_assert!(at(now).duration_since(record.until) <= age);
                prop_assert_eq!(ring.get(record.id.number), Some(record));
            }
            let numbers: Vec<u32> = ring.iter().map(|record| record.id.number).collect();
            prop_assert!(numbers.is_sorted());
        }
    }

    /// Conformance: DEC-003
    #[test]
    fn a_table_stays_within_its_bounds_and_since_survives_new_parameters(
        passes in prop::collection::vec(prop::collection::vec((0..40_u32, 0..3_u8, 0..5_u32), 0..40), 1..12),
        capacity in 1..30_usize,
    ) {
        let mut table = Table::new(capacity);
        let mut last = std::collections::BTreeMap::new();
        for (number, pass) in passes.into_iter().enumerate() {
            let now = at(i64::try_from(number).unwrap());
            let reason = |kind: u8, parameter: u32| match kind {
                0 => Reason::NoNodePools {},
                1 => Reason::NoLabel { label: parameter.to_string() },
                _ => Reason::Unknown { problem: parameter.to_string() },
            };
            let by_object: std::collections::BTreeMap<u32, Reason> =
                pass.iter().map(|(object, kind, parameter)| (*object, reason(*kind, *parameter))).collect();
            let fresh = by_object.iter().map(|(object, reason)| Fresh {
                key: Key::of(&object.to_string()),
                known: Arc::new(Known::reason(reason.clone(), Vec::new())),
                object_time: None,
            });
            table.update(fresh.collect(), |_| false, (at(0), now), 1 + u32::try_from(number).unwrap());
            prop_assert!(table.len() <= capacity);
            prop_assert_eq!(table.len() + table.left_out(), by_object.len());
            let mut next = std::collections::BTreeMap::new();
            for (object, reason) in by_object {
                let Some(entry) = table.get(Key::of(&object.to_string())) else { continue };
                let expected = match last.get(&object) {
                    Some((id, since)) if *id == reason.id() => *since,
                    _ => now,
                };
                prop_assert_eq!(entry.since(), expected);
                prop_assert_eq!(entry.known().id(), Some(reason.id()));
                prop_assert_eq!(entry.records().next(), Some(1 + u32::try_from(number).unwrap()));
                prop_assert!(entry.records().count() <= 3);
                next.insert(object, (reason.id(), expected));
            }
            last = next;
        }
    }
}

/// The index of a cluster at its bounds: each pod has a long reason of its own.
///
/// Conformance: DEC-003
#[test]
fn the_index_needs_two_mebibytes_at_most_whatever_the_reasons_are() {
    let mut memory = 0;
    for capacity in [MAX_PODS, MAX_NODES] {
        let mut table = Table::new(capacity);
        let fresh = (0..capacity + 1000).map(|object| {
            let problem = format!("{object}: {}", "x".repeat(500));
            let reason = Reason::Unknown { problem };
            Fresh {
                key: Key::of(&object.to_string()),
                known: Arc::new(Known::reason(reason.clone(), vec![("pool".into(), reason)])),
                object_time: None,
            }
        });
        table.update(fresh.collect(), |_| false, (at(0), at(1)), 1);
        assert_eq!((table.len(), table.left_out()), (capacity, 1000));
        assert!(
            table.memory() <= capacity * 48 + MAX_PARAMETERS + 1024,
            "{}",
            table.memory()
        );
        memory += table.memory();
        // The id is known for all, the parameters for those that have room.
        let known =
            |object: usize| Arc::clone(table.get(Key::of(&object.to_string())).unwrap().known());
        let all =
            (0..capacity + 1000).filter(|object| table.get(Key::of(&object.to_string())).is_some());
        let (full, bare): (Vec<_>, Vec<_>) = all.map(known).partition(|known| {
            matches!(
                &**known,
                Known::Reason {
                    reason: Some(_),
                    ..
                }
            )
        });
        assert!(!full.is_empty() && !bare.is_empty());
        assert!(bare.iter().all(|known| known.id() == Some("Unknown")));
    }
    assert!(memory <= 2 << 20, "{memory}");
}

/// Conformance: DEC-001
#[test]
fn a_full_ring_needs_the_memory_that_it_accounts_for() {
    let mut accounted = 0;
    let measured = allocation_counter::measure(|| {
        let mut ring = Ring::new(Bounds::default());
        for number in 0..4000 {
            let items = (0..number % 90).map(|item| {
                unplaced(
                    format!("{item:08x}"),
                    number,
                    format!("shop/web-{number}-{item}"),
                )
            });
            ring.push(
                outcome(Pass::Provisioning, items.collect()),
                at(number.try_into().unwrap()),
            );
        }
        accounted = ring.memory();
        std::mem::forget(ring);
    });
    let bound = Bounds::default().memory;
    assert!(accounted > bound / 2 && accounted <= bound, "{accounted}");
    let measured = usize::try_from(measured.bytes_current).unwrap();
    // The deque of pointers has room for twice as many.
    assert!(measured <= bound + (64 << 10), "{measured} of {accounted}");
    assert!(
        accounted <= measured + (64 << 10),
        "{measured} of {accounted}"
    );
}

/// Conformance: DEC-001
#[test]
fn a_pass_that_finds_nothing_new_extends_the_last_record_of_its_kind() {
    let mut ring = Ring::default();
    let same = || vec![unplaced("1".into(), 2, "shop/web".into())];
    let first = ring.push(outcome(Pass::Provisioning, same()), at(0)).id();
    let between = ring.push(outcome(Pass::Disruption, vec![]), at(5)).id();
    assert_ne!(first, between);
    let again = ring.push(outcome(Pass::Provisioning, same()), at(10));
    assert!(matches!(again, Recorded::Extended(id) if id == first));
    let record = ring.get(first.number).unwrap();
    assert_eq!((record.at, record.until), (at(0), at(10)));
    let other = vec![unplaced("1".into(), 3, "shop/web".into())];
    assert!(matches!(
        ring.push(outcome(Pass::Provisioning, other), at(20)),
        Recorded::New(_)
    ));
    assert_eq!(ring.len(), 3);
}

/// Conformance: EXP-17
#[test]
fn an_object_older_than_the_history_has_waited_since_its_own_time() {
    let mut table = Table::new(10);
    let (began, now) = (at(100), at(130));
    let fresh = |object: &str, second: i64, reason: Reason| Fresh {
        key: Key::of(object),
        known: Arc::new(Known::reason(reason, Vec::new())),
        object_time: Some(at(second)),
    };
    let first = vec![
        fresh("old", 10, Reason::NoNodePools {}),
        fresh("young", 120, Reason::NoNodePools {}),
    ];
    table.update(first, |_| false, (began, now), 1);
    let since = |table: &Table, object: &str| {
        let entry = table.get(Key::of(object)).unwrap();
        (entry.since(), entry.is_at_least())
    };
    assert_eq!(since(&table, "old"), (at(10), true));
    assert_eq!(since(&table, "young"), (now, false));
    // The history has seen when this reason began.
    let later = vec![
        fresh("old", 10, Reason::NotReady {}),
        fresh("unseen", 20, Reason::NotReady {}),
    ];
    table.update(later, |_| false, (began, at(140)), 2);
    assert_eq!(since(&table, "old"), (at(140), false));
    assert_eq!(since(&table, "unseen"), (at(140), false));
}

#[test]
fn texts_that_are_no_ids_of_records_are_rejected() {
    for text in [
        "",
        "-",
        "abc",
        "-1",
        "+1-1",
        "1-+1",
        "z-4294967296",
        "1-1-1",
        "\u{661}-1",
    ] {
        assert!(text.parse::<RecordId>().is_err(), "{text}");
    }
    let id = RecordId::new(at(0), 12);
    assert_eq!(id.to_string().parse(), Ok(id));
}

/// Conformance: DEC-018
#[test]
fn the_end_of_a_command_is_accounted_to_the_ring_and_not_the_decision() {
    let item = Item::Disrupted {
        reason: "empty",
        command: "00c0ffee".to_owned(),
        decision: "delete",
        count: 1,
        names: vec!["node".to_owned()],
        replacements: 0,
        instance_types: Vec::new(),
        pods: 0,
        savings_per_hour: 1.0,
        rejected: None,
        outcome: None,
    };
    let mut ring = Ring::new(Bounds::default());
    let made = ring.push(outcome(Pass::Disruption, vec![item.clone()]), at(0));
    let before = ring.memory();
    let why = "replacement was deleted".repeat(8);
    let ended = ring.amend(
        |record| {
            let Item::Disrupted { outcome, .. } = &mut record.items[0] else {
                return false;
            };
            *outcome = Some(CommandOutcome {
                state: CommandState::RolledBack,
                at: at(5),
                why: Some(why.clone()),
                replacements: Vec::new(),
            });
            true
        },
        |record| record.pass == Pass::Disruption,
    );
    let ended = ended.unwrap();
    assert_eq!(ended.id, made.id());
    assert!(ring.memory() >= before + why.len());
    assert!(ended.to_json().len() <= MAX_RECORD);
    assert_eq!(ended.output_digest, Digest::of(&vec![item.clone()]));
    // The next pass finds the same: the record goes on, with its end.
    let again = ring.push(outcome(Pass::Disruption, vec![item]), at(10));
    assert!(matches!(again, Recorded::Extended(id) if id == made.id()));
    let kept: Vec<u32> = ring.iter().map(|record| record.id.number).collect();
    assert_eq!(kept, [made.id().number]);
    ring.expire(at(100_000));
    assert_eq!(ring.memory(), 0);
}
