//! The truth tables of the algebra, and its laws.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::Operator::{DoesNotExist, Exists, Gt, Gte, In, Lt, Lte, NotIn};
use super::*;

fn r(operator: Operator, values: &[&str]) -> Requirement {
    Requirement::new("key", operator, values.iter().copied())
}

fn rs(requirement: Requirement) -> Requirements {
    [requirement].into_iter().collect()
}

/// Returns why requirements refuse a label that no node is known to have otherwise.
fn refusal(here: &Requirements, asked: Requirement) -> String {
    let refusal = here.compatible(&rs(asked), AllowUndefined::Nothing);
    refusal.unwrap_err().to_string()
}

/// Conformance: SCH-014
#[test]
fn an_intersection_has_the_larger_min_values() {
    for (a, b) in [
        (r(In, &["a"]), r(In, &["a"])),
        (r(In, &["a"]), r(In, &["b"])),
        (r(Exists, &[]), r(DoesNotExist, &[])),
        (r(Gt, &["9"]), r(Lt, &["9"])),
    ] {
        for (left, right, expected) in [
            (Some(1), None, Some(1)),
            (None, Some(1), Some(1)),
            (Some(1), Some(2), Some(2)),
            (None, None, None),
        ] {
            let both = a
                .clone()
                .with_min_values(left)
                .intersection(&b.clone().with_min_values(right));
            assert_eq!(both.min_values(), expected, "{a} and {b}");
        }
    }
}

/// Conformance: SCH-015
#[test]
fn bounds_are_inclusive() {
    let (least, most) = (r(Gte, &["2"]), r(Lte, &["8"]));
    for (requirement, admitted, refused) in [
        (&least, ["2", "3", "100"], &["1", "0", "a", ""][..]),
        (&most, ["8", "7", "0"], &["9", "10"]),
        (&least.intersection(&most), ["2", "5", "8"], &["1", "9"]),
    ] {
        assert!(admitted.iter().all(|value| requirement.has(value)));
        assert!(!refused.iter().any(|value| requirement.has(value)));
    }
}

/// Conformance: SCH-016
#[test]
fn any_is_the_smallest_value() {
    let any = |operator, values: &[&str]| r(operator, values).any();
    assert_eq!(any(In, &["B", "A"]).as_deref(), Some("A"));
    assert_eq!(any(NotIn, &["A"]).as_deref(), Some("0"));
    assert_eq!(any(NotIn, &["0", "1"]).as_deref(), Some("2"));
    assert_eq!(any(DoesNotExist, &[]).unwrap_or_default(), "");
    assert_eq!(any(Lt, &["1"]).as_deref(), Some("0"));
    assert_eq!(any(Gt, &["9"]).as_deref(), Some("10"));
    assert_eq!(any(Lt, &["9"]).as_deref(), Some("0"));
}

/// Conformance: SCH-204
#[test]
fn any_does_not_panic_where_upstream_does() {
    let most = "9223372036854775807";
    assert_eq!(r(Lte, &["-1"]).any(), None);
    assert_eq!(r(Lt, &["0"]).any(), None);
    assert_eq!(r(Gte, &[most]).any().as_deref(), Some(most));
    assert_eq!(r(Lte, &[most]).any().as_deref(), Some("0"));
    assert_eq!(r(Gte, &["-5"]).any().as_deref(), Some("0"));
    let narrow = r(Gte, &["3"])
        .intersection(&r(Lte, &["3"]))
        .intersection(&r(NotIn, &["3", "03"]));
    assert_eq!(narrow.any().as_deref(), Some("003"));
    let last = r(Gte, &[most]).intersection(&r(NotIn, &[most]));
    assert_eq!(last.any(), Some(format!("0{most}")));
}

/// Conformance: SCH-017
#[test]
fn bounds_print_as_upstream() {
    let printed = |above: &str, below: &str| {
        let both = r(Gt, &[above]).intersection(&r(Lt, &[below]));
        both.to_string()
    };
    assert_eq!(printed("1", "9"), "key Exists >=2 <=8");
    assert_eq!(printed("9", "1"), "key DoesNotExist");
}

/// Conformance: SCH-197
#[test]
fn prints_as_upstream() {
    for (requirement, text) in [
        (r(In, &["b", "a"]), "key In [a b]"),
        (r(NotIn, &["a"]), "key NotIn [a]"),
        (r(Exists, &[]), "key Exists"),
        (r(DoesNotExist, &[]), "key DoesNotExist"),
        (r(In, &[]), "key DoesNotExist"),
        (r(In, &["1", "2", "3", "4", "5"]), "key In [1 2 3 4 5]"),
        (
            r(In, &["1", "2", "3", "4", "5", "6", "7"]),
            "key In [1 2 3 4 5 and 2 others]",
        ),
        (
            r(Gte, &["1"]).with_min_values(Some(2)),
            "key Exists >=1 minValues 2",
        ),
        (
            r(NotIn, &["3"]).intersection(&r(Gt, &["1"])),
            "key NotIn [3] >=2",
        ),
    ] {
        assert_eq!(requirement.to_string(), text);
    }
    let all: Requirements = [
        Requirement::equal("b", "1"),
        Requirement::exists("a"),
        Requirement::equal("kubernetes.io/hostname", "x"),
    ]
    .into_iter()
    .collect();
    assert_eq!(
        all.to_string(),
        "a Exists, b In [1], kubernetes.io/hostname In [x]"
    );
    assert_eq!(
        all.display(|key| key == "kubernetes.io/hostname"),
        "a Exists, b In [1]"
    );
}

/// Conformance: SCH-193
#[test]
fn selected_intersections() {
    let both = |a: &Requirement, b: &Requirement| {
        let (ab, ba) = (a.intersection(b), b.intersection(a));
        assert_eq!(ab, ba);
        ab.to_string()
    };
    let not_in = r(NotIn, &["1", "2"]);
    assert_eq!(both(&not_in, &r(Gt, &["1"])), "key NotIn [2] >=2");
    assert_eq!(both(&not_in, &r(Gt, &["9"])), "key Exists >=10");
    assert_eq!(both(&not_in, &r(Lt, &["1"])), "key Exists <=0");
    assert_eq!(both(&not_in, &r(Lt, &["9"])), "key NotIn [1 2] <=8");
    assert_eq!(both(&r(Gt, &["1"]), &r(Lt, &["9"])), "key Exists >=2 <=8");
    assert_eq!(both(&r(Gt, &["9"]), &r(Lt, &["9"])), "key DoesNotExist");
    assert_eq!(both(&r(In, &["1", "9"]), &r(Gt, &["1"])), "key In [9]");
    assert_eq!(both(&r(In, &["A"]), &r(Gt, &["1"])), "key DoesNotExist");
    assert_eq!(both(&r(In, &["A", "B"]), &r(NotIn, &["B"])), "key In [A]");
    assert_eq!(
        both(&r(NotIn, &["A"]), &r(NotIn, &["B"])),
        "key NotIn [A B]"
    );
    for other in [
        r(Exists, &[]),
        r(In, &["A"]),
        not_in,
        r(Gt, &["1"]),
        r(DoesNotExist, &[]),
    ] {
        assert_eq!(both(&other, &r(DoesNotExist, &[])), "key DoesNotExist");
    }
}

/// Conformance: SCH-201
#[test]
fn a_contradiction_is_not_the_absence_of_the_label() {
    let never = r(In, &["a"]).intersection(&r(In, &["b"]));
    assert!(never.is_never() && !never.allows_absent());
    assert!(r(Gt, &["9223372036854775807"]).is_never());
    assert!(r(In, &[]).is_never());
    assert!(!r(DoesNotExist, &[]).is_never());
    // NotIn and the absence of the label are compatible, whatever the values.
    let absent = r(NotIn, &["a"]).intersection(&r(DoesNotExist, &[]));
    assert!(!absent.is_never());
    let known: BTreeSet<String> = ["key".to_owned()].into();
    for here in [
        Requirements::new(),
        rs(r(Exists, &[])),
        rs(r(DoesNotExist, &[])),
        rs(r(NotIn, &["a"])),
        rs(never.clone()),
    ] {
        for undefined in [AllowUndefined::Nothing, AllowUndefined::Keys(&known)] {
            let admits = here.is_compatible(&rs(never.clone()), undefined);
            assert!(!admits, "{here}");
        }
    }
}

/// Conformance: SCH-202
#[test]
fn requiring_a_label_to_exist_wins_over_excluding_values() {
    let both = r(Exists, &[]).intersection(&r(NotIn, &["a"]));
    assert!(!both.allows_absent());
    assert!(!Requirements::new().is_compatible(&rs(both), AllowUndefined::Nothing));
}

/// Rows are existing requirements, columns incoming ones.
///
/// Conformance: SCH-194
#[test]
fn compatibility_grid() {
    let columns = [
        r(Exists, &[]),
        r(DoesNotExist, &[]),
        r(In, &["A"]),
        r(In, &["B"]),
        r(NotIn, &["A"]),
        r(Gt, &["1"]),
        r(Lt, &["9"]),
    ];
    let known: BTreeSet<String> = ["key".to_owned()].into();
    let nothing = AllowUndefined::Nothing;
    for (here, undefined, expected) in [
        (Requirements::new(), AllowUndefined::Keys(&known), "+++++++"),
        (Requirements::new(), nothing, "-+--+--"),
        (rs(r(Exists, &[])), nothing, "+-+++++"),
        (rs(r(DoesNotExist, &[])), nothing, "-+--+--"),
        (rs(r(In, &["A"])), nothing, "+-+----"),
        (rs(r(In, &["9"])), nothing, "+---++-"),
        (rs(r(NotIn, &["A"])), nothing, "++-++++"),
        (rs(r(Gt, &["1"])), nothing, "+---+++"),
        (rs(r(Gt, &["9"])), nothing, "+---++-"),
    ] {
        let sign = |column: &Requirement| {
            let incoming = rs(column.clone());
            let is_compatible = here.compatible(&incoming, undefined).is_ok();
            assert_eq!(here.is_compatible(&incoming, undefined), is_compatible);
            if is_compatible { '+' } else { '-' }
        };
        let got: String = columns.iter().map(sign).collect();
        assert_eq!(got, expected, "`{here}`");
    }
}

/// Conformance: SCH-195
#[test]
fn only_incoming_keys_are_compared() {
    let (none, here) = (Requirements::new(), rs(Requirement::equal("other", "x")));
    assert!(here.is_compatible(&none, AllowUndefined::Nothing));
    assert!(!none.is_compatible(&here, AllowUndefined::Nothing));
    assert!(none.intersects(&here).is_ok());
}

#[test]
fn values_that_no_node_has_in_any_cluster_hint_at_the_one_that_was_meant() {
    let arch = |values: &[&str]| Requirement::new("kubernetes.io/arch", In, values.iter().copied());
    let here = rs(arch(&["amd64", "arm64"]));
    let refusal = |values: &[&str]| refusal(&here, arch(values));
    assert_eq!(
        refusal(&["amd46"]),
        "key kubernetes.io/arch, kubernetes.io/arch In [amd46] not in kubernetes.io/arch In [amd64 arm64] (typo of \"amd64\"?)"
    );
    assert!(
        !refusal(&["s390x", "amd46"]).contains("typo"),
        "one of them exists"
    );
}

/// Conformance: SCH-196
#[test]
fn conflicts_read_as_upstream() {
    let here = rs(Requirement::equal("zone", "z1"));
    let conflict = refusal(&here, Requirement::equal("zone", "z2"));
    assert_eq!(conflict, "key zone, zone In [z2] not in zone In [z1]");
    let unknown = refusal(&here, Requirement::equal("disk", "x"));
    assert_eq!(unknown, "label \"disk\" does not have known values");
}

/// Conformance: SCH-196
#[test]
fn unknown_keys_hint_at_known_ones() {
    let (zone, region) = (
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
    );
    let known = BTreeSet::from([zone, region].map(str::to_owned));
    let here = rs(Requirement::equal("example.com/team", "a"));
    for (key, hint) in [
        ("zone", Some(zone)),
        ("node.io/zone", Some(zone)),
        ("topology.kubernetes.io/regio", Some(region)),
        ("team", Some("example.com/team")),
        ("topology.kubernetes.io/znoe", Some(zone)),
        ("something-else", None),
    ] {
        let asked = rs(Requirement::exists(key));
        let error = here.compatible(&asked, AllowUndefined::Keys(&known));
        let hint = hint.map(|hint| format!(" (typo of \"{hint}\"?)"));
        let hint = hint.unwrap_or_default();
        let expected = format!("label \"{key}\" does not have known values{hint}");
        assert_eq!(error.unwrap_err().to_string(), expected);
    }
}

/// Conformance: SCH-199
#[test]
fn unknown_operators_and_invalid_bounds_are_reported() {
    let parse = |operator, values: &[&str]| {
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        Requirement::parse("key", operator, &values)
    };
    assert_eq!(
        parse("Like", &["a"]).unwrap_err().to_string(),
        "key `key` has an unsupported operator `Like`"
    );
    assert!(r(Operator::Other("Like".to_owned()), &["a"]).is_never());
    for values in [&[][..], &["a"], &["1", "2"], &["9223372036854775808"]] {
        assert_eq!(
            parse("Gt", values).unwrap_err().to_string(),
            "key `key` with operator Gt needs exactly one integer value"
        );
        assert!(r(Gt, values).is_never());
    }
    assert_eq!(parse("Lte", &["3"]).unwrap().to_string(), "key Exists <=3");
}

/// An alias and a renamed value, as a provider may define them.
struct Renamed;

impl LabelNames for Renamed {
    fn canonical_key<'a>(&'a self, key: &'a str) -> &'a str {
        if key == "beta.kubernetes.io/arch" {
            "kubernetes.io/arch"
        } else {
            key
        }
    }

    fn canonical_value<'a>(&'a self, key: &str, value: &'a str) -> &'a str {
        if key == "kubernetes.io/arch" && value == "x86_64" {
            "amd64"
        } else {
            value
        }
    }
}

/// Conformance: SCH-198
#[test]
fn aliases_are_read_as_current_names() {
    let labels = [("beta.kubernetes.io/arch".to_owned(), "x86_64".to_owned())];
    let requirements =
        Requirements::from_labels(labels.iter().map(|(key, value)| (key, value)), &Renamed);
    assert_eq!(requirements.to_string(), "kubernetes.io/arch In [amd64]");
}

/// Conformance: SCH-203
#[test]
fn written_requirements_keep_bounds_and_exclusions() {
    let wire = |requirement: &Requirement| -> Vec<String> {
        let entries = requirement.to_node_selector_requirements().into_iter();
        let text = |operator: &str, values: &[String]| format!("{operator} {}", values.join(" "));
        entries
            .map(|it| text(it.operator.as_str(), &it.values))
            .collect()
    };
    let ranged = r(Gt, &["1"])
        .intersection(&r(Lt, &["9"]))
        .intersection(&r(NotIn, &["4", "10"]));
    assert_eq!(wire(&ranged), ["Gte 2", "Lte 8", "NotIn 4"]);
    assert_eq!(wire(&r(NotIn, &["a"])), ["NotIn a"]);
    let present = r(NotIn, &["a"]).intersection(&r(Exists, &[]));
    assert_eq!(wire(&present), ["Exists ", "NotIn a"]);
    assert_eq!(wire(&r(In, &[])), ["Exists ", "DoesNotExist "]);
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![3 => (0u8..12).prop_map(|n| n.to_string()), 2 => "[ab]", 1 => Just("9223372036854775807".to_owned())]
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let values = prop::collection::vec(value(), 0..4);
    let bound = prop_oneof![8 => (0i64..12).prop_map(|n| n.to_string()), 1 => Just("9223372036854775807".to_owned())];
    let plain = (
        prop_oneof![Just(In), Just(NotIn), Just(Exists), Just(DoesNotExist)],
        values,
    )
        .prop_map(|(operator, values)| Requirement::new("key", operator, values));
    let ranged = (prop_oneof![Just(Gt), Just(Lt), Just(Gte), Just(Lte)], bound)
        .prop_map(|(operator, bound)| Requirement::new("key", operator, [bound]));
    (
        prop::collection::vec(prop_oneof![2 => plain, 1 => ranged], 1..4),
        prop::option::of(1u32..4),
    )
        .prop_map(|(all, min_values)| {
            let first = all[0].clone();
            all.iter()
                .fold(first, |sum, next| sum.intersection(next))
                .with_min_values(min_values)
        })
}

/// Returns enough values to distinguish any two generated requirements, whatever values they exclude.
fn universe() -> impl Iterator<Item = String> {
    let numbers =
        (0..16).flat_map(|n| (0..16).map(move |zeros| format!("{}{n}", "0".repeat(zeros))));
    numbers.chain(
        [
            "a",
            "b",
            "c",
            "9223372036854775807",
            "9223372036854775806",
            "09223372036854775807",
        ]
        .map(String::from),
    )
}

proptest! {
    #[test]
    fn intersection_is_commutative_associative_and_idempotent(a in requirement(), b in requirement(), c in requirement()) {
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.intersection(&b).intersection(&c), a.intersection(&b.intersection(&c)));
        prop_assert_eq!(a.intersection(&a), a);
    }

    #[test]
    fn an_intersection_admits_the_values_that_both_admit(a in requirement(), b in requirement()) {
        let both = a.intersection(&b);
        for value in universe() {
            prop_assert_eq!(both.has(&value), a.has(&value) && b.has(&value), "{} and {} on {}", a, b, value);
        }
        prop_assert_eq!(both.allows_absent(), a.allows_absent() && b.allows_absent());
    }

    #[test]
    fn compatible_means_that_a_witness_exists(a in requirement(), b in requirement()) {
        let witness = universe().any(|value| a.has(&value) && b.has(&value)) || (a.allows_absent() && b.allows_absent());
        prop_assert_eq!(a.has_intersection(&b), witness, "{} and {}", a, b);
        prop_assert_eq!(rs(a.clone()).compatible(&rs(b.clone()), AllowUndefined::Nothing).is_ok(), witness);
        prop_assert_eq!(!a.intersection(&b).is_never(), witness);
    }

    /// Conformance: SCH-204
    #[test]
    fn any_is_admitted(a in requirement()) {
        match a.any() {
            Some(value) => prop_assert!(a.has(&value), "{} by {}", value, a),
            None => prop_assert!(a.is_empty() && universe().all(|value| !a.has(&value))),
        }
    }

    /// Conformance: SCH-203
    #[test]
    fn written_requirements_parse_back(a in requirement()) {
        let entries = a.to_node_selector_requirements().into_iter().map(|entry| Requirement::from_api(&entry).unwrap());
        let back: Requirements = entries.collect();
        prop_assert_eq!(back.get("key"), Some(&a));
    }
}
