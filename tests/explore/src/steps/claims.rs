//! Reconciles NodeClaims: launch to initialization, deletion, conditions, expiry.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::HasConditions;
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

use crate::world::tasks::{Answer, Request};
use crate::world::{Halt, World};

/// Returns whether Karpenter's finalizer holds an object.
pub(super) fn has_finalizer(finalizers: Option<&Vec<String>>) -> bool {
    finalizers.is_some_and(|all| all.iter().any(|name| name == finalizers::TERMINATION))
}

impl World {
    pub(super) fn reconcile_claim(&mut self, name: &str) -> Result<(), Halt> {
        let Some(claim) = self.view_claim(name) else {
            return Ok(());
        };
        if claim.is_deleting() {
            return self.finalize(&claim);
        }
        let is_asked =
            |kind: &Request| matches!(kind, Request::Create(claim, _) if claim.name() == name);
        // A launch that failed is repeated later.
        let is_early = self.stuck.get(name).is_some_and(|at| *at == self.now);
        if is_early || self.tasks.iter().any(|task| is_asked(&task.kind)) {
            return Ok(());
        }
        let mut claim = claim;
        if !has_finalizer(claim.metadata.finalizers.as_ref()) {
            self.write()?;
            let Some(stored) = self.api.claims.get(name) else {
                return Err(Halt::Conflict);
            };
            let mut held = NodeClaim::clone(&stored.value);
            held.metadata
                .finalizers
                .get_or_insert_default()
                .push(finalizers::TERMINATION.to_owned());
            self.put_claim(held.clone());
            claim = Arc::new(held);
        }
        let joining = Joining::new(NodeClaim::clone(&claim), self.now);
        self.join_on(&claim, joining, Event::Due)
    }

    pub(super) fn answer_create(
        &mut self,
        before: &Arc<NodeClaim>,
        joining: Joining,
        answer: Answer,
    ) -> Result<(), Halt> {
        if answer == Answer::Stuck || self.stuck.contains_key(before.name()) {
            self.stuck.insert(before.name().to_owned(), self.now);
            let failure = LaunchFailure::Retryable {
                reason: "LaunchFailed".to_owned(),
                message: "internal error".to_owned(),
            };
            return self.join_on(before, joining, Event::NotLaunched(failure));
        }
        let event = match answer {
            _ if answer == Answer::Failed || !self.is_class_ready => {
                let error = match self.is_class_ready {
                    true => CloudProviderError::InsufficientCapacity("no capacity".into()),
                    false => CloudProviderError::NodeClassNotReady("not ready".into()),
                };
                Event::NotLaunched(LaunchFailure::from(&error))
            }
            _ => {
                self.write()?;
                self.tell(|| format!("the provider launches instance {}", before.name()));
                let launched = self.launch(joining.claim());
                if answer == Answer::Doubled {
                    self.launch(joining.claim());
                }
                if let Some(instance) = self.instances.get_mut(before.name()) {
                    instance.is_silent |= answer == Answer::Silent;
                }
                match launched.filter(|_| answer != Answer::Lost) {
                    Some(answer) => Event::Launched(Box::new(answer)),
                    None => Event::NotLaunched(LaunchFailure::Retryable {
                        reason: "LaunchFailed".to_owned(),
                        message: "no answer".to_owned(),
                    }),
                }
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
            let nodes: Vec<Arc<Node>> = match &id {
                Some(id) => {
                    let found = snapshot.node_objects_by_provider_id(id);
                    found
                        .filter_map(|node| self.view_node(node.metadata.name.as_deref()?))
                        .collect()
                }
                None => Vec::new(),
            };
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
                    Effect::RunHooks => event = Event::HooksRan(HookAnswers::default()),
                    Effect::Register(read, wanted) => {
                        let name = read.metadata.name.as_deref().unwrap_or_default();
                        if self
                            .api
                            .nodes
                            .get(name)
                            .is_none_or(|node| *node.value != *read)
                        {
                            return Err(Halt::Conflict);
                        }
                        if *wanted != *read {
                            self.write()?;
                            self.put_node(*wanted);
                            self.tell(|| format!("Node {name} is registered"));
                        }
                        event = Event::Registered(true);
                    }
                    Effect::Initialize(read, wanted) => {
                        let name = read.metadata.name.as_deref().unwrap_or_default();
                        let Some(stored) = self.api.nodes.get(name) else {
                            return Err(Halt::Conflict);
                        };
                        let mut node = Node::clone(&stored.value);
                        self.write()?;
                        self.check_initialization(&read);
                        let labels = wanted.metadata.labels.clone().unwrap_or_default();
                        node.metadata.labels.get_or_insert_default().extend(labels);
                        self.put_node(node);
                        self.tell(|| format!("Node {name} is initialized"));
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
        let Some(stored) = self.api.claims.get(before.name()) else {
            return Err(Halt::Conflict);
        };
        let mut latest = NodeClaim::clone(&stored.value);
        if before.metadata.labels != after.metadata.labels
            || before.metadata.annotations != after.metadata.annotations
        {
            self.write()?;
            let labels = after.metadata.labels.clone().unwrap_or_default();
            latest
                .metadata
                .labels
                .get_or_insert_default()
                .extend(labels);
            let annotations = after.metadata.annotations.clone().unwrap_or_default();
            latest
                .metadata
                .annotations
                .get_or_insert_default()
                .extend(annotations);
            self.put_claim(latest.clone());
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
        self.put_claim(latest);
        Ok(())
    }

    /// Deletes a NodeClaim in the version that was read.
    pub(super) fn delete_unchanged(&mut self, name: &str) -> Result<(), Halt> {
        let read = self.view_claim(name);
        let Some(stored) = self.api.claims.get(name) else {
            return Ok(());
        };
        if read.is_none_or(|read| *read != *stored.value) {
            return Err(Halt::Conflict);
        }
        self.write()?;
        self.tell(|| format!("NodeClaim {name} is deleted"));
        self.delete_claim(name);
        Ok(())
    }

    pub(super) fn update_conditions(&mut self, name: &str) -> Result<(), Halt> {
        let Some(before) = self.view_claim(name).filter(|claim| !claim.is_deleting()) else {
            return Ok(());
        };
        let snapshot = self.model.fork();
        let Some(pool) = before.node_pool().and_then(|pool| snapshot.node_pool(pool)) else {
            return Ok(());
        };
        let mut after = NodeClaim::clone(&before);
        update_consolidatable(pool, &mut after, self.now);
        if before.is_true(karpenter_api::conditions::types::LAUNCHED) {
            let names = &snapshot.config().well_known;
            let drifted = drift::from_node_pool(pool, &before, names).ok().flatten();
            update_drifted(&mut after, drifted, self.now);
        }
        if after.status == before.status {
            return Ok(());
        }
        self.check_consolidatable(&after, pool);
        self.write()?;
        let kinds = [
            karpenter_api::conditions::types::CONSOLIDATABLE,
            karpenter_api::conditions::types::DRIFTED,
        ];
        self.change_claim(name, |claim| {
            for kind in kinds {
                let wanted = after.condition(kind).cloned();
                let conditions = claim.conditions_mut();
                conditions.retain(|it| it.type_ != kind);
                conditions.extend(wanted);
            }
        });
        Ok(())
    }

    /// Executes the deletion of a NodeClaim as far as it goes now.
    fn finalize(&mut self, claim: &Arc<NodeClaim>) -> Result<(), Halt> {
        if !has_finalizer(claim.metadata.finalizers.as_ref()) {
            return Ok(());
        }
        let name = claim.name().to_owned();
        let nodes: Vec<Arc<Node>> = match &claim.status.provider_id {
            Some(id) => self
                .model
                .node_objects_by_provider_id(id)
                .cloned()
                .collect(),
            None => Vec::new(),
        };
        let (mut claim, mut event) = (NodeClaim::clone(claim), ClaimEvent::Due);
        loop {
            for effect in on_node_claim(event, &claim, &nodes) {
                match effect {
                    ClaimEffect::Announce(deadline) => {
                        self.write()?;
                        let text = deadline.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                        self.change_claim(&name, |claim| {
                            let all = claim.metadata.annotations.get_or_insert_default();
                            all.insert(TERMINATION_TIMESTAMP.to_owned(), text);
                        });
                        claim = self.written(&name)?;
                    }
                    ClaimEffect::DeleteNodes => {
                        for node in &nodes {
                            if node.metadata.deletion_timestamp.is_none() {
                                self.write()?;
                                let node = node.metadata.name.clone().unwrap_or_default();
                                self.tell(|| format!("Node {node} is deleted"));
                                self.delete_node(&node);
                            }
                        }
                        return Ok(());
                    }
                    ClaimEffect::FindNode => {
                        let found = self.api.nodes.contains_key(&name);
                        if found {
                            self.write()?;
                            self.delete_node(&name);
                        }
                        event = ClaimEvent::NodeFound(found);
                    }
                    ClaimEffect::Terminate => {
                        event = ClaimEvent::Terminated(self.terminate_instance(&claim)?)
                    }
                    ClaimEffect::Mark(progress) => claim = self.mark(&name, progress)?,
                    ClaimEffect::Release => return self.release_claim(&claim),
                    ClaimEffect::Poll(_) => return Ok(()),
                }
            }
        }
    }

    /// Asks the provider to terminate the instance of a NodeClaim; returns whether there is none.
    pub(super) fn terminate_instance(&mut self, claim: &NodeClaim) -> Result<bool, Halt> {
        self.write()?;
        self.check_termination(claim);
        let gone = self.terminate(claim.status.provider_id.as_deref().unwrap_or_default());
        self.tell(|| match gone {
            true => format!("the provider has no instance {}", claim.name()),
            false => format!("the provider terminates instance {}", claim.name()),
        });
        Ok(gone)
    }

    /// Writes conditions of a NodeClaim; returns it as written.
    pub(super) fn mark(&mut self, name: &str, progress: Progress) -> Result<NodeClaim, Halt> {
        let now = self.now;
        if let Some(stored) = self.api.claims.get(name) {
            let mut claim = NodeClaim::clone(&stored.value);
            progress.mark(&mut claim, now);
            if claim != *stored.value {
                self.write()?;
                self.put_claim(claim);
            }
        }
        self.written(name)
    }

    fn written(&self, name: &str) -> Result<NodeClaim, Halt> {
        let stored = self.api.claims.get(name).ok_or(Halt::Conflict)?;
        Ok(NodeClaim::clone(&stored.value))
    }

    fn release_claim(&mut self, claim: &NodeClaim) -> Result<(), Halt> {
        let name = claim.name();
        if self
            .api
            .claims
            .get(name)
            .is_none_or(|stored| *stored.value != *claim)
        {
            return Err(Halt::Conflict);
        }
        self.write()?;
        self.check_release(claim);
        self.tell(|| format!("NodeClaim {name} is released"));
        let mut released = claim.clone();
        released.metadata.finalizers = None;
        self.put_claim(released);
        self.delete_claim(name);
        Ok(())
    }
}
