//! Bundles of generated clusters: read back as they were written, and decided on as before.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

use std::collections::BTreeSet;

use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::disruption::{DisruptionRequest, VerdictKind};
use karpenter_core::pod::{Pod, PodKey};
use karpenter_core::reason::{Reason, pod_reason};
use karpenter_core::schedule::{Placement, PlannedNodeClaim, Policy};
use karpenter_decisions::bundle::redact::redact;
use karpenter_decisions::bundle::{self, Bundle, PassResult, Redaction, Replayed, Settings};
use karpenter_spec::World;
use karpenter_spec::clusters::{Shape, cluster};
use karpenter_spec::engine;
use serde_json::{Value, json};

use crate::number;

/// Returns how many clusters are generated: KARPENTER_SPEC_CASES, else `usual`.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    0..number("KARPENTER_SPEC_CASES").unwrap_or(usual)
}

fn now() -> jiff::Timestamp {
    "2026-01-10T00:00:00Z".parse().unwrap()
}

fn change<T: serde::Serialize + serde::de::DeserializeOwned>(
    object: &T,
    change: impl FnOnce(&mut Value),
) -> T {
    let mut value = serde_json::to_value(object).unwrap();
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

/// Lets consolidation take every node of the cluster.
fn disruptable(mut world: World) -> World {
    for pool in &mut world.node_pools {
        *pool = change(pool, |pool| {
            pool["spec"]["disruption"] =
                json!({ "consolidateAfter": "0s", "budgets": [{ "nodes": "100%" }] });
        });
    }
    for claim in &mut world.node_claims {
        *claim = change(claim, |claim| {
            let all = ["Launched", "Registered", "Initialized", "Consolidatable"].map(|kind| {
                json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })
            });
            claim["status"]["conditions"] = json!(all);
            claim["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
    }
    world
}

/// The cluster of a seed, as a bundle. Some nodes have marks, and the settings are not the default ones.
fn captured(seed: u64) -> Bundle {
    let world = disruptable(cluster(seed, Shape::SMALL));
    let mut cluster: Cluster = engine::cluster(&world);
    let nodes: Vec<String> = cluster
        .snapshot()
        .nodes()
        .map(|node| node.name().to_owned())
        .collect();
    if let Some(first) = nodes.first().filter(|_| seed.is_multiple_of(3)) {
        cluster.nominate(first, now() + jiff::SignedDuration::from_secs(20));
    }
    let last = cluster
        .snapshot()
        .nodes()
        .last()
        .and_then(|node| node.provider_id().map(str::to_owned));
    if let Some(last) = last.filter(|_| seed.is_multiple_of(5)) {
        cluster.mark_for_deletion(&[&last]);
    }
    let policy = Policy::at(now()).with_ignore_dra_requests(false);
    let mut request = DisruptionRequest::at(now())
        .with_policy(policy.clone())
        .with_spot_to_spot(seed.is_multiple_of(2));
    request.multi_node.max_replacements = 1 + (seed % 2) as usize;
    let mut settings = Settings::new(policy, request);
    settings
        .gates
        .insert("SpotToSpotConsolidation".to_owned(), seed.is_multiple_of(2));
    Bundle::new("fake", "0.1.0", cluster.snapshot(), settings).decided(None)
}

fn written(bundle: &Bundle) -> Vec<u8> {
    let mut file = Vec::new();
    bundle::write(bundle, &mut file).unwrap();
    file
}

fn sorted(snapshot: &Snapshot) -> Vec<&Pod> {
    let mut pods: Vec<&Pod> = snapshot.pods().map(|pod| &**pod).collect();
    pods.sort_by(|a, b| a.key.cmp(&b.key));
    pods
}

#[test]
fn a_bundle_is_read_back_exactly() {
    for seed in seeds(24) {
        let bundle = captured(seed);
        let file = written(&bundle);
        let read =
            bundle::read(file.as_slice()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let (was, is) = (&bundle.snapshot, &read.snapshot);
        assert_eq!(sorted(is), sorted(was), "seed {seed}");
        let of = |snapshot: &Snapshot| -> Vec<_> {
            let marked = snapshot.nodes().map(|node| {
                (
                    node.name().to_owned(),
                    node.marked_for_deletion,
                    node.nominated_until,
                    node.managed,
                    node.is_deleting(),
                )
            });
            marked.collect()
        };
        assert_eq!(of(is), of(was), "seed {seed}");
        for pool in was.instance_type_pools() {
            assert_eq!(
                is.instance_types(pool),
                was.instance_types(pool),
                "seed {seed}"
            );
        }
        assert_eq!(is.epoch(), was.epoch());
        assert_eq!(read.decisions, bundle.decisions);
        // Nothing was lost: writing it again gives the same bytes.
        assert_eq!(written(&read), file, "seed {seed}");
    }
}

/// Conformance: PLAN-04
#[test]
fn recorded_decisions_are_made_again_whatever_the_number_of_threads() {
    let (mut planned, mut commands) = (0, 0);
    for seed in seeds(24) {
        let bundle = captured(seed);
        for decision in &bundle.decisions {
            planned += decision.counts.get("planned").copied().unwrap_or_default();
            commands += decision.counts.get("commands").copied().unwrap_or_default();
        }
        let read = bundle::read(written(&bundle).as_slice()).unwrap();
        for threads in [1, 2, 8] {
            for made in read.replay(threads) {
                assert_eq!(
                    made.replayed.as_ref(),
                    Some(&made.recorded),
                    "seed {seed}, {threads} threads: {:?}",
                    made.pass
                );
            }
        }
    }
    assert!(
        planned > 0 && commands > 0,
        "{planned} planned nodes, {commands} commands"
    );
    eprintln!("{planned} planned nodes, {commands} commands");
}

#[test]
fn a_decision_on_another_cluster_differs() {
    let bundle = captured(1);
    let busiest = bundle.snapshot.pending_pods().next().cloned();
    let pod = busiest.unwrap();
    let mut other = bundle.clone();
    other.snapshot = bundle.snapshot.without_pods(&[pod]);
    let replayed = other.replay(1);
    let provisioning = replayed
        .iter()
        .find(|made| made.pass == Replayed::Provisioning);
    assert!(provisioning.is_some_and(|made| made.differs()));
}

#[test]
fn a_pass_that_was_cut_short_is_not_compared() {
    let bundle = captured(1);
    let cancel: karpenter_core::schedule::Cancel = std::sync::Arc::new(|| true);
    let cut = bundle.decided(Some(&cancel));
    assert!(cut.decisions.iter().all(|decision| decision.truncated));
    assert!(
        cut.replay(1)
            .iter()
            .all(|made| made.replayed.is_none() && !made.differs())
    );
}

#[test]
fn made_plans_are_those_of_the_engine() {
    let bundle = captured(2);
    let made = bundle::run_pass(
        Replayed::Provisioning,
        &bundle.snapshot,
        &bundle.settings,
        1,
        None,
    );
    let PassResult::Provisioning(plan) = made else {
        panic!("{made:?}")
    };
    let query = karpenter_core::schedule::Query::default();
    assert_eq!(
        plan,
        karpenter_core::schedule::schedule(&bundle.snapshot, bundle.settings.policy(), &query)
    );
}

/// What a redacted decision must have in common with the original one: everything but the words of reasons.
fn essence(result: &PassResult, name: &dyn Fn(&str) -> String) -> Value {
    let pod = |key: &PodKey| json!([name(&key.namespace), name(&key.name), name(&key.uid)]);
    let pods = |all: &[PodKey]| all.iter().map(pod).collect::<Vec<_>>();
    let planned = |all: &[PlannedNodeClaim]| -> Vec<Value> {
        let of = |node: &PlannedNodeClaim| {
            json!([
                name(&node.node_pool),
                node.instance_types.to_vec(),
                pods(&node.pods),
                node.hourly_price.to_bits(),
                node.reservations
            ])
        };
        all.iter().map(of).collect()
    };
    let placed = |all: &[Placement]| -> Vec<Value> {
        let of = |it: &Placement| json!([pod(&it.pod), name(&it.node), it.buffer]);
        all.iter().map(of).collect()
    };
    match result {
        PassResult::Provisioning(plan) => {
            let unplaced = plan.unplaced.iter();
            let unplaced =
                unplaced.map(|it| json!([pod(&it.pod), it.buffer, pod_reason(&it.why).id()]));
            let pools = plan.pools.iter();
            let pools = pools.map(|it| json!([name(&it.node_pool), Reason::from(it).id()]));
            json!([
                planned(&plan.new_node_claims),
                placed(&plan.existing),
                unplaced.collect::<Vec<_>>(),
                pools.collect::<Vec<_>>(),
                plan.bound_pods
            ])
        }
        PassResult::Disruption(plan) => {
            let commands = plan.commands.iter().map(|command| {
                let nodes = command.candidates.iter();
                json!([
                    format!("{:?}", command.method),
                    nodes.map(|node| name(node.name())).collect::<Vec<_>>(),
                    planned(&command.replacements),
                    placed(&command.placements),
                    command.savings.to_bits()
                ])
            });
            let verdicts = plan.verdicts.iter().map(|verdict| {
                let essence = match &verdict.kind {
                    VerdictKind::NotDisruptable(why) => json!(Reason::from(why).id()),
                    VerdictKind::Kept(why) => json!(Reason::from(why).id()),
                    other => json!(format!("{other:?}")),
                };
                json!([name(verdict.node.name()), essence])
            });
            json!([
                commands.collect::<Vec<_>>(),
                verdicts.collect::<Vec<_>>(),
                format!("{:?}", plan.eligible)
            ])
        }
        other => panic!("{other:?}"),
    }
}

/// Collects the texts of a line, and the keys of its labels.
fn texts(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            names.insert(text.clone());
        }
        Value::Array(all) => all.iter().for_each(|value| texts(value, names)),
        Value::Object(fields) => {
            for (field, value) in fields {
                if ["labels", "matchLabels", "nodeSelector", "selector"].contains(&field.as_str()) {
                    names.extend(
                        value
                            .as_object()
                            .into_iter()
                            .flatten()
                            .map(|(key, _)| key.clone()),
                    );
                }
                texts(value, names);
            }
        }
        _ => {}
    }
}

/// Conformance: PLAN-05
#[test]
fn a_redacted_bundle_decides_as_the_original_and_has_none_of_its_names() {
    for seed in seeds(30) {
        let bundle = captured(seed);
        let (redacted, key) = redact(&bundle, Redaction::All, None).unwrap();
        let pseudonym = |name: &str| {
            key.names
                .get(name)
                .cloned()
                .unwrap_or_else(|| name.to_owned())
        };
        for pass in Replayed::ALL {
            let of = |bundle: &Bundle| {
                bundle::run_pass(pass, &bundle.snapshot, &bundle.settings, 1, None)
            };
            let expected = essence(&of(&bundle), &pseudonym);
            let is = essence(&of(&redacted), &|name| name.to_owned());
            assert_eq!(is, expected, "seed {seed}: {pass:?}");
        }
        let text = zstd::decode_all(written(&redacted).as_slice()).unwrap();
        let text = String::from_utf8(text).unwrap();
        let mut names = BTreeSet::new();
        for line in text.lines() {
            texts(&serde_json::from_str(line).unwrap(), &mut names);
        }
        let all = key.names.keys().chain(key.keys.keys());
        let mut long = all.filter(|name| name.len() > 3);
        let found = long.find(|name| names.contains(*name));
        assert_eq!(found, None, "seed {seed}");
        assert!(
            ["zone-a", "claim-0", "node-0", "pool-", "example.com/team"]
                .iter()
                .all(|name| !text.contains(name)),
            "seed {seed}"
        );
        let names = |snapshot: &Snapshot| {
            snapshot
                .nodes()
                .map(|node| node.name().to_owned())
                .collect::<Vec<_>>()
        };
        let renamed: Vec<String> = names(&bundle.snapshot)
            .iter()
            .map(|name| pseudonym(name))
            .collect();
        assert_eq!(
            names(&redacted.snapshot),
            renamed,
            "seed {seed}: the order of names is kept"
        );
        assert_eq!(
            bundle::read(written(&redacted).as_slice())
                .unwrap()
                .redaction,
            Redaction::All
        );
    }
}
