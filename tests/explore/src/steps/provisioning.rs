//! Executes the provisioning process.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::provisioning::{
    Effect, Event, PodNomination, Question, admit, has_limits,
};
use karpenter_core::pod::{Pod, PodKey};
use karpenter_core::schedule::{Plan, PlannedNodeClaim, Policy, schedule};

use crate::checks::violated_if;
use crate::world::objects::Object as _;
use crate::world::tasks::{Answer, Request};
use crate::world::{Halt, WINDOW, World};

impl World {
    /// Hands an event to the process, and executes the effects.
    pub(super) fn provisioning_on(&mut self, event: Event) {
        let snapshot = self.model.fork();
        let now = self.now;
        let effects = self.provisioning_mut().on(event, &snapshot, now);
        for effect in effects {
            match effect {
                Effect::Plan(question) => self.request(Request::Plan(question)),
                Effect::Nominate(nodes) => self.nominate(&nodes),
                Effect::Launch(_, plan) => self.request(Request::Launch(plan)),
                Effect::NominatePods(pods) => {
                    self.check_nominations(&pods);
                    self.request(Request::NominatePods(pods));
                }
                Effect::ReportIdle => {}
            }
        }
    }

    /// Protects nodes from disruption for a while.
    pub(super) fn nominate(&mut self, nodes: &BTreeSet<String>) {
        self.tell(|| format!("nodes {nodes:?} are nominated"));
        let until = after(self.now, WINDOW.nomination());
        self.change_model(|cluster| nodes.iter().for_each(|node| cluster.nominate(node, until)));
    }

    pub(crate) fn answer_nominations(
        &mut self,
        pods: &[PodNomination],
        answer: Answer,
    ) -> Result<(), Halt> {
        if answer == Answer::Forbidden {
            self.provisioning_mut().end_pod_nomination();
            self.ghosts.is_forbidden = true;
        }
        // A pod of the same name that was created meanwhile has another uid.
        for PodNomination { pod, node } in pods.iter().filter(|_| answer == Answer::Right) {
            self.write()?;
            self.tell(|| format!("pod {} is nominated to {node:?}", pod.name));
            self.change::<Pod>(&pod.name, |pod| {
                (pod.nominated_node, pod.nominated_by_plan) = (node.clone(), node.is_some());
            });
        }
        Ok(())
    }

    /// Nominates the pods of a NodeClaim whose Node is about to be registered.
    pub(super) fn registering(&mut self, claim: &str, node: &str) -> Result<(), Halt> {
        let (snapshot, now) = (self.model.fork(), self.now);
        let event = Event::Registering {
            claim: claim.to_owned(),
            node: node.to_owned(),
        };
        for effect in self.provisioning_mut().on(event, &snapshot, now) {
            if let Effect::NominatePods(pods) = effect {
                self.check_nominations(&pods);
                self.answer_nominations(&pods, Answer::Right)?;
            }
        }
        self.check_registration(claim, node);
        Ok(())
    }

    pub(crate) fn answer_plan(&mut self, question: &Question, answer: Answer) {
        if answer != Answer::Right {
            return self.provisioning_on(Event::Unanswered);
        }
        let plan = schedule(&question.snapshot, &Policy::at(self.now), &question.query);
        self.tell(|| {
            let new = plan.new_node_claims.iter();
            let new = new.map(|it| format!("a new {} node for {}", it.node_pool, pods(&it.pods)));
            let existing = plan.existing.iter();
            let existing = existing.map(|it| format!("{} on {}", it.pod.name, it.node));
            let places: Vec<String> = new.chain(existing).collect();
            format!("the provisioner plans: {}", places.join(", "))
        });
        self.check_plan(&question.snapshot, &plan);
        self.provisioning_on(Event::Planned(Arc::new(plan)));
    }

    pub(crate) fn answer_launch(&mut self, plan: &Plan, answer: Answer) -> Result<(), Halt> {
        let created = self.create_claims(&plan.new_node_claims, &BTreeSet::new(), answer)?;
        let snapshot = self.model.fork();
        if !self.setting.buffer_pods.is_empty() {
            let names = created.iter().map(|claim| Some(claim.as_ref()?.name()));
            let pods = &self.setting.buffer_pods;
            self.buffers.record(pods, plan, names, &snapshot);
            let on_nodes = self.buffers.on_nodes(&snapshot);
            self.disruption_mut().set_buffer_pods(on_nodes);
        }
        let names = created
            .iter()
            .map(|claim| Some(claim.as_ref()?.name().to_owned()))
            .collect();
        self.provisioning_on(Event::Launched(names));
        Ok(())
    }

    /// Creates the NodeClaims of planned nodes that limits allow; nodes of `replaced` NodeClaims do not count. A fault is one of the
    /// last request.
    pub(super) fn create_claims(
        &mut self,
        planned: &[PlannedNodeClaim],
        replaced: &BTreeSet<String>,
        answer: Answer,
    ) -> Result<Vec<Option<Arc<NodeClaim>>>, Halt> {
        if self.is_unknown && has_limits(&self.model, planned) {
            self.is_unknown = false;
            self.know_claims(|_| true);
        }
        let admitted = admit(&self.model, planned, replaced);
        let last = admitted.iter().rposition(Result::is_ok);
        let mut created = Vec::new();
        for (index, (planned, admitted)) in planned.iter().zip(admitted).enumerate() {
            let fault = if Some(index) == last {
                answer
            } else {
                Answer::Right
            };
            let Some(admitted) = admitted.ok().filter(|_| fault != Answer::Failed) else {
                created.push(None);
                continue;
            };
            let mut claim = self.create_claim(planned, admitted.clone())?;
            if fault == Answer::Lost {
                self.is_unknown = true;
                self.ghosts.unknown.insert(claim.name().to_owned());
            } else {
                self.know_claims(|it| it == claim.name());
            }
            if fault == Answer::Doubled {
                // No process can know of the first one in time.
                claim = self.create_claim(planned, admitted)?;
                self.know_claims(|it| it == claim.name());
            } else {
                self.check_second_node(claim.name(), planned, !replaced.is_empty());
                self.check_limits(&planned.node_pool, replaced);
            }
            // A command plans pods that wait as well, but only the provisioner nominates them.
            if fault == Answer::Right && replaced.is_empty() {
                let pods = planned.pods.iter();
                pods.for_each(|pod| self.check_again(&pod.name, claim.name()));
            }
            created.push((fault != Answer::Lost).then_some(claim));
        }
        Ok(created)
    }

    /// Adds NodeClaims to the model that the watch has not delivered: the controllers have what they created there at once.
    fn know_claims(&mut self, is_meant: impl Fn(&str) -> bool) {
        for (name, claim) in Arc::clone(&self.api.claims).iter() {
            let is_new = claim.status.provider_id.is_none() && is_meant(name);
            if is_new && self.seen.claim(name).is_none() {
                NodeClaim::all_mut(&mut self.seen).insert(name.clone(), claim.clone());
                self.change_model(|cluster| drop(cluster.apply_node_claim(claim)));
            }
        }
    }

    fn create_claim(
        &mut self,
        planned: &PlannedNodeClaim,
        admitted: NodeClaim,
    ) -> Result<Arc<NodeClaim>, Halt> {
        self.write()?;
        let (claim, pool) = (self.new_claim(admitted), &planned.node_pool);
        let (name, pods) = (claim.name().to_owned(), pods(&planned.pods));
        self.tell(|| format!("NodeClaim {name} of NodePool {pool} is created for {pods}"));
        self.put(claim.clone());
        Ok(Arc::new(claim))
    }

    /// Returns a NodeClaim as the API server creates it.
    pub fn new_claim(&mut self, mut claim: NodeClaim) -> NodeClaim {
        let name = format!("nc-{:04}", self.number(0));
        claim.metadata.name = Some(name.clone());
        claim.metadata.generate_name = None;
        claim.metadata.uid = Some(name);
        claim.metadata.creation_timestamp = Some(Time(self.now));
        claim
    }

    /// Notes for which pods a NodeClaim was created; no other NodeClaim that is starting may be for them. A command plans without
    /// nominations, and a process that began again knows none: pods that have lost their node may take the places of others there, and
    /// drift may replace it.
    fn check_second_node(&mut self, name: &str, planned: &PlannedNodeClaim, is_replacement: bool) {
        let has_claim = |pod: &String| {
            let claim = self.ghosts.promised.get(pod);
            let claim = claim.and_then(|it| self.api.claim(it));
            claim.is_some_and(|it| !it.is_deleting() && !it.is_true(types::INITIALIZED))
        };
        let needs_place = |name: &String| {
            let node = self.api.pod(name).and_then(|pod| pod.node_name.as_deref());
            let claim = node.and_then(|node| self.api.claim(node));
            claim.is_some_and(|it| it.is_deleting()) || self.api.waits(name) && !has_claim(name)
        };
        let unknown = &self.ghosts.unknown;
        let plans_anew = is_replacement || !unknown.is_empty();
        let places_taken = plans_anew && self.api.pods.keys().any(needs_place);
        for pod in planned.pods.iter().map(|it| &it.name) {
            let promised = &mut self.ghosts.promised;
            let first = promised.get(pod).cloned();
            if !is_replacement {
                promised.insert(pod.clone(), name.to_owned());
            }
            let Some(first) = first else {
                continue;
            };
            let is_starting = self.seen.claim(&first).is_some()
                && self.api.claim(&first).is_some_and(|claim| {
                    !claim.is_deleting() && !claim.is_true(types::INITIALIZED)
                });
            let is_unknown = self.ghosts.unknown.contains(&first);
            let is_known = !is_unknown || !is_replacement && !self.is_unknown;
            let is_second = self.api.waits(pod) && is_starting && is_known && !places_taken;
            violated_if!(self.violations, is_second => "NodeClaim {name} is created for pod {pod}, for which NodeClaim {first} is starting");
        }
    }
}

fn pods(keys: &[PodKey]) -> String {
    let names: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
    names.join(" and ")
}
