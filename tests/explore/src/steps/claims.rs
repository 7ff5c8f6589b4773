//! Reconciles NodeClaims: launch to initialization, deletion, conditions, expiry.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::annotations::TERMINATION_TIMESTAMP;
use karpenter_api::labels::finalizers;
use karpenter_api::v1::NodeClaim;
use karpenter_core::drift;
use karpenter_core::lifecycle::conditions::{update_consolidatable, update_drifted};
use karpenter_core::lifecycle::node_claim::{
    Effect, Event, HookAnswers, Joining, LaunchFailure, Surroundings,
};
use karpenter_core::lifecycle::termination::{ClaimEffect, ClaimEvent, Progress, on_node_claim};
use karpenter_core::provider::CloudProviderError;

use crate::checks::violated_if;
use crate::world::objects::{Kind, Named, Object as _, has_finalizer, has_ready};
use crate::world::tasks::{Answer, Request, Task};
use crate::world::{Halt, World};

impl World {
    pub(super) fn reconcile_claim(&mut self, name: &str) -> Result<(), Halt> {
        let Some(mut claim) = self.view::<NodeClaim>(name) else {
            return Ok(());
        };
        if claim.is_deleting() {
            return self.finalize(&claim);
        }
        let is_asked =
            |task: &Task| matches!(&task.kind, Request::Create(claim, _) if claim.name() == name);
        // A launch that failed is repeated later, as is one whose NodeClaim was gone when its instance was to be recorded.
        let is_gone = self.api.claim(name).is_none() && self.instances.contains_key(name);
        let is_early = is_gone || self.stuck.get(name).is_some_and(|at| *at == self.now);
        if is_early || self.tasks.iter().any(is_asked) {
            return Ok(());
        }
        if !has_finalizer(&*claim) {
            self.write()?;
            self.change::<NodeClaim>(name, |claim| {
                let all = claim.metadata.finalizers.get_or_insert_default();
                all.push(finalizers::TERMINATION.to_owned());
            });
            claim = Arc::new(self.written(name)?);
        }
        let joining = Joining::new(NodeClaim::clone(&claim), self.now);
        self.join_on(&claim, joining, Event::Due)
    }

    pub(crate) fn answer_create(
        &mut self,
        before: &Arc<NodeClaim>,
        joining: Joining,
        answer: Answer,
    ) -> Result<(), Halt> {
        let retryable = |message: &str| {
            Event::NotLaunched(LaunchFailure::Retryable {
                reason: "LaunchFailed".to_owned(),
                message: message.to_owned(),
            })
        };
        let name = before.name();
        let fails = |error: CloudProviderError| Event::NotLaunched(LaunchFailure::from(&error));
        let event = if answer == Answer::Stuck || self.stuck.contains_key(name) {
            self.stuck.insert(name.to_owned(), self.now);
            retryable("internal error")
        } else if !self.is_class_ready {
            fails(CloudProviderError::NodeClassNotReady("not ready".into()))
        } else if answer == Answer::Failed {
            fails(CloudProviderError::InsufficientCapacity("none".into()))
        } else {
            self.write()?;
            self.tell(|| format!("the provider launches instance {name}"));
            let launched = self.launch(joining.claim());
            if answer == Answer::Doubled {
                self.launch(joining.claim());
            }
            if let Some(instance) = self.instances.get_mut(name)
                && matches!(answer, Answer::Silent | Answer::Slow)
            {
                instance.kubelet = answer;
            }
            match launched.filter(|_| answer != Answer::Lost) {
                Some(answer) => Event::Launched(Box::new(answer)),
                None => retryable("no answer"),
            }
        };
        self.join_on(before, joining, event)
    }

    /// Hands an event to the process of a NodeClaim, and executes the effects.
    fn join_on(
        &mut self,
        before: &Arc<NodeClaim>,
        mut joining: Joining,
        event: Event,
    ) -> Result<(), Halt> {
        let mut event = event;
        loop {
            let snapshot = self.model.fork();
            let id = joining.claim().status.provider_id.clone();
            let nodes = id
                .iter()
                .flat_map(|id| snapshot.node_objects_by_provider_id(id));
            let nodes: Vec<Arc<Node>> = nodes
                .filter_map(|node| self.view(node.own_name()))
                .collect();
            let around = Surroundings {
                snapshot: &snapshot,
                nodes: &nodes,
            };
            let effects = joining.on(event, around, self.now);
            event = Event::Due;
            for effect in effects {
                match effect {
                    Effect::Launch => {
                        self.request(Request::Create(Arc::clone(before), Box::new(joining)));
                        return Ok(());
                    }
                    Effect::WarnOfMissingTaint(_) => {}
                    Effect::RunHooks => {
                        if let [node] = &nodes[..] {
                            self.registering(before.name(), node.own_name())?;
                        }
                        event = Event::HooksRan(HookAnswers::default());
                    }
                    Effect::Register(read, wanted) => {
                        self.replace(&*read, *wanted)?;
                        self.tell(|| format!("Node {} is registered", read.own_name()));
                        event = Event::Registered(true);
                    }
                    Effect::Initialize(read, wanted) => {
                        let name = read.own_name();
                        self.api.node(name).ok_or(Halt::Conflict)?;
                        self.write()?;
                        let is_open = has_ready(&read, "True");
                        violated_if!(self.violations, !is_open => "Node {name} is initialized, although it is not ready");
                        let labels = wanted.metadata.labels.unwrap_or_default();
                        self.change::<Node>(name, |node| {
                            node.metadata.labels.get_or_insert_default().extend(labels);
                        });
                        self.tell(|| format!("Node {name} is initialized"));
                        for command in &mut self.ghosts.commands {
                            command.waiting.remove(before.name());
                        }
                        event = Event::Initialized(true);
                    }
                    Effect::Delete { reason, .. } => {
                        let name = before.name().to_owned();
                        self.tell(|| format!("NodeClaim {name} is deleted: {reason}"));
                        return self.delete_unchanged(&name);
                    }
                    Effect::Write { .. } => return self.write_joined(before, joining.claim()),
                }
            }
        }
    }

    /// Writes what a reconciliation changed onto what others have written since.
    fn write_joined(&mut self, before: &NodeClaim, after: &NodeClaim) -> Result<(), Halt> {
        if before == after {
            return Ok(());
        }
        let mut latest = self.written(before.name())?;
        let (old, new, meta) = (&before.metadata, &after.metadata, &mut latest.metadata);
        if old.labels != new.labels || old.annotations != new.annotations {
            self.write()?;
            let labels = new.labels.clone().unwrap_or_default();
            meta.labels.get_or_insert_default().extend(labels);
            let annotations = new.annotations.clone().unwrap_or_default();
            meta.annotations.get_or_insert_default().extend(annotations);
            self.put(latest.clone());
        }
        if before.status == after.status {
            return Ok(());
        }
        self.write()?;
        let (old, new, status) = (&before.status, &after.status, &mut latest.status);
        if old.node_name != new.node_name {
            status.node_name.clone_from(&new.node_name);
        }
        if old.provider_id != new.provider_id {
            status.provider_id.clone_from(&new.provider_id);
            status.capacity.clone_from(&new.capacity);
            status.allocatable.clone_from(&new.allocatable);
        }
        for condition in after.conditions() {
            if before.condition(&condition.type_) == Some(condition) {
                continue;
            }
            let conditions = latest.conditions_mut();
            match conditions.iter_mut().find(|it| it.type_ == condition.type_) {
                Some(known) => known.clone_from(condition),
                None => conditions.push(condition.clone()),
            }
        }
        self.put(latest);
        Ok(())
    }

    /// Deletes a NodeClaim in the version that was read.
    pub(super) fn delete_unchanged(&mut self, name: &str) -> Result<(), Halt> {
        let read = self.view::<NodeClaim>(name);
        let Some(stored) = self.api.claim(name) else {
            return Ok(());
        };
        if read.is_none_or(|read| *read != *stored.value) {
            return Err(Halt::Conflict);
        }
        self.write()?;
        self.tell(|| format!("NodeClaim {name} is deleted"));
        self.delete::<NodeClaim>(name);
        Ok(())
    }

    pub(super) fn update_conditions(&mut self, name: &str) -> Result<(), Halt> {
        let before = self.view::<NodeClaim>(name);
        let Some(before) = before.filter(|claim| !claim.is_deleting()) else {
            return Ok(());
        };
        let snapshot = self.model.fork();
        let Some(pool) = before.node_pool().and_then(|pool| snapshot.node_pool(pool)) else {
            return Ok(());
        };
        let mut after = NodeClaim::clone(&before);
        update_consolidatable(pool, &mut after, self.now);
        let drift = drift::check(&snapshot, pool, &before, self.now);
        update_drifted(&mut after, drift.without_provider(&before), self.now);
        if !matches!(self.stale, Some(Kind::NodeClaim | Kind::Pod)) {
            self.check_consolidatable(&after, pool);
            self.check_drifted(&after, pool);
        }
        if after.status == before.status {
            return Ok(());
        }
        self.write()?;
        self.change::<NodeClaim>(name, |claim| {
            for kind in [types::CONSOLIDATABLE, types::DRIFTED] {
                let conditions = claim.conditions_mut();
                conditions.retain(|it| it.type_ != kind);
                conditions.extend(after.condition(kind).cloned());
            }
        });
        Ok(())
    }

    /// Executes the deletion of a NodeClaim as far as it goes now.
    fn finalize(&mut self, claim: &Arc<NodeClaim>) -> Result<(), Halt> {
        if !has_finalizer(&**claim) {
            return Ok(());
        }
        let name = claim.name().to_owned();
        let id = claim.status.provider_id.as_deref();
        let nodes = id.map(|id| self.model.node_objects_by_provider_id(id));
        let nodes: Vec<Arc<Node>> = nodes.into_iter().flatten().cloned().collect();
        let (mut claim, mut event) = (NodeClaim::clone(claim), ClaimEvent::Due);
        loop {
            for effect in on_node_claim(event, &claim, &nodes) {
                match effect {
                    ClaimEffect::Announce(deadline) => {
                        self.write()?;
                        let text = deadline.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                        self.change::<NodeClaim>(&name, |claim| {
                            let all = claim.metadata.annotations.get_or_insert_default();
                            all.insert(TERMINATION_TIMESTAMP.to_owned(), text);
                        });
                        claim = self.written(&name)?;
                    }
                    ClaimEffect::DeleteNodes => {
                        for node in nodes.iter().filter(|node| !node.is_leaving()) {
                            self.write()?;
                            self.tell(|| format!("Node {} is deleted", node.own_name()));
                            self.delete::<Node>(node.own_name());
                        }
                        return Ok(());
                    }
                    ClaimEffect::FindNode => {
                        let found = self.api.node(&name).is_some();
                        if found {
                            self.write()?;
                            self.delete::<Node>(&name);
                        }
                        event = ClaimEvent::NodeFound(found);
                    }
                    ClaimEffect::Terminate => {
                        event = ClaimEvent::Terminated(self.terminate_instance(&claim)?)
                    }
                    ClaimEffect::Mark(progress) => claim = self.mark(&name, progress)?,
                    ClaimEffect::Release => {
                        return self.release(&claim, claim.status.provider_id.is_some());
                    }
                    ClaimEffect::Poll(_) => return Ok(()),
                }
            }
        }
    }

    /// Removes the finalizer of an object in the version that was read, which ends it: its instance is gone, if that `is_known`.
    pub(super) fn release<T: Named>(&mut self, object: &T, is_known: bool) -> Result<(), Halt> {
        let mut released = object.clone();
        released.meta_mut().finalizers = None;
        self.tell(|| format!("{:?} {} is released", T::KIND, object.own_name()));
        self.replace(object, released)?;
        let (kind, name) = (T::KIND, object.own_name());
        let runs = is_known && self.instances.contains_key(name);
        violated_if!(self.violations, runs => "{kind:?} {name} is released, although its instance exists");
        self.delete::<T>(name);
        Ok(())
    }

    /// Asks the provider to terminate the instance of a NodeClaim; returns whether there is none.
    pub(super) fn terminate_instance(&mut self, claim: &NodeClaim) -> Result<bool, Halt> {
        self.write()?;
        self.check_termination(claim);
        let gone = self.terminate(claim.name());
        let what = if gone { "has no" } else { "terminates" };
        self.tell(|| format!("the provider {what} instance {}", claim.name()));
        Ok(gone)
    }

    /// Writes conditions of a NodeClaim; returns it as written.
    pub(super) fn mark(&mut self, name: &str, progress: Progress) -> Result<NodeClaim, Halt> {
        let known = self.written(name)?;
        let mut wanted = known.clone();
        progress.mark(&mut wanted, self.now);
        self.replace(&known, wanted)?;
        self.written(name)
    }

    fn written(&self, name: &str) -> Result<NodeClaim, Halt> {
        let stored = self.api.claim(name).ok_or(Halt::Conflict)?;
        Ok(NodeClaim::clone(stored))
    }
}
