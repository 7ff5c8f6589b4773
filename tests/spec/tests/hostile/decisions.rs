//! Hostile objects in the answers about a cluster: overview, explanations, blockers, bundles, rehearsals.

use std::sync::Arc;

use karpenter_core::disruption::DisruptionRequest;
use karpenter_decisions::answer::Subject;
use karpenter_decisions::bundle::{self, Bundle, Offline, Settings};
use karpenter_decisions::explain::Question;
use karpenter_decisions::history::History;
use karpenter_decisions::overview::{Curve, Overview};
use karpenter_decisions::rehearse;
use karpenter_decisions::rehearse::request::{Intent, PlanRequest};
use karpenter_spec::engine;
use proptest::prelude::*;
use serde_json::json;

use super::objects::{World, world};
use super::settings_of;
use crate::cases;

/// Returns the cluster with the settings of its passes.
fn captured(world: &World) -> Bundle {
    let mut cluster = engine::cluster(&world.objects);
    for budget in &world.budgets {
        cluster.apply_pdb(budget);
    }
    let policy = engine::policy(settings_of(world.settings));
    let mut request = DisruptionRequest::at(policy.now);
    request.policy = policy.clone();
    let mut settings = Settings::new(policy, request);
    settings.gates.insert("StaticCapacity".to_owned(), true);
    Bundle::new("test", "0.0.0", cluster.snapshot(), settings)
}

/// Returns all that can be asked about.
fn subjects(objects: &karpenter_spec::World) -> Vec<Subject> {
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    let pods = objects.pods.iter().map(|pod| Subject::Pod {
        namespace: name(&pod.metadata.namespace),
        name: name(&pod.metadata.name),
    });
    let nodes = objects.nodes.iter();
    let nodes = nodes.map(|node| Subject::Node(name(&node.metadata.name)));
    let claims = objects.node_claims.iter();
    let claims = claims.map(|claim| Subject::NodeClaim(name(&claim.metadata.name)));
    let pools = objects.node_pools.iter();
    let pools = pools.map(|pool| Subject::NodePool(name(&pool.metadata.name)));
    pods.chain(nodes).chain(claims).chain(pools).collect()
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn any_object_is_counted_and_explained(world in world()) {
        let bundle = captured(&world);
        let history = History::new(bundle.at());
        let question = Question { snapshot: &bundle.snapshot, history: &history, messages: &|_| None, now: bundle.at(), engine: "0.0.0" };
        let overview = Overview::of(&question);
        prop_assert_eq!(overview.rows().len(), bundle.snapshot.nodes().count());
        let mut curve = Curve::default();
        curve.add(overview.point());
        let json: serde_json::Value = serde_json::from_str(&overview.to_json(&curve)).unwrap_or_default();
        prop_assert_eq!(&json["kind"], "Overview");

        let never: karpenter_core::schedule::Cancel = Arc::new(|| false);
        let offline = Offline::new(bundle);
        for subject in subjects(&world.objects) {
            let answer = offline.explain(&subject, &[], Arc::clone(&never));
            prop_assert!(answer.is_ok(), "{subject:?}");
        }
        prop_assert!(offline.pods_by_reason().is_ok());
        prop_assert!(offline.nodes_by_reason(Arc::clone(&never)).is_ok());
        let report = offline.blockers(None, never);
        prop_assert!(report.cost_per_day >= 0.0, "{}", report.cost_per_day);
    }

    #[test]
    fn any_object_is_captured_and_rehearsed(world in world()) {
        let captured = captured(&world);
        let mut file = Vec::new();
        prop_assert!(bundle::write(&captured, &mut file).is_ok());
        prop_assert!(bundle::read(file.as_slice()).is_ok());

        let spec = world.objects.pods.first().and_then(|pod| pod.spec.clone());
        let workload = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "new" },
            "spec": { "replicas": 3, "selector": {}, "template": { "metadata": {}, "spec": spec } },
        });
        let settings = rehearse::Settings::of_bundle(&captured);
        let mut request = PlanRequest { length: Some("5m".to_owned()), ..PlanRequest::default() };
        prop_assert!(rehearse::rehearse(&captured.snapshot, &settings, &request).is_ok());
        request.changes = vec![Intent::Apply(workload)];
        if let Ok(plan) = rehearse::rehearse(&captured.snapshot, &settings, &request) {
            prop_assert_eq!(plan.changes.len(), 1);
        }
    }
}
