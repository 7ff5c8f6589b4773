//! A NodeClaim until it is a node: its instance is launched, its Node registered and initialized, each in time.
//!
//! What has been reached stands in the NodeClaim's conditions, so that the process begins again with each reconciliation; a step
//! does nothing once its condition is known. A step that fails does not keep the later ones from setting their conditions.
//!
//! 1. Launch: the provider creates the instance. What can never succeed deletes the NodeClaim.
//! 2. Registration: exactly one Node has the NodeClaim's provider id. It gets the NodeClaim's metadata and taints; once the provider's
//!    registration hooks agree, the unregistered taint goes.
//! 3. Initialization: the Node is ready for the pods it was launched for.
//! 4. Liveness: five minutes for the launch, unless the provider needs longer, fifteen for the registration, from the NodeClaim's
//!    creation and from the launch. Initialization has no limit.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/lifecycle/{controller,launch,registration,initialization,liveness}.go

mod initialization;
mod registration;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{Condition, HasConditions, Status, reasons, types};
use karpenter_api::k8s_openapi::api::core::v1::Node;
use karpenter_api::labels;
use karpenter_api::labels::taints;
use karpenter_api::v1::NodeClaim;

use crate::cluster::Snapshot;
use crate::lifecycle::after;
use crate::provider::CloudProviderError;
use initialization::{devices_published, is_initialized};
use registration::{admit, has_label, has_taint, sync};

/// How long a registration may take.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Longest error text in a condition, in bytes.
const MAX_ERROR_LENGTH: usize = 300;

/// The process of one NodeClaim, for one reconciliation.
#[derive(Clone, Debug, PartialEq)]
pub struct Joining {
    claim: NodeClaim,
    hooks: HookAnswers,
}

/// An event of the process.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The NodeClaim is to be reconciled.
    Due,
    /// The provider has created the instance; its answer.
    Launched(Box<NodeClaim>),
    /// The provider has not created the instance.
    NotLaunched(LaunchFailure),
    /// The registration hooks have run.
    HooksRan(HookAnswers),
    /// The Node of [`Effect::Register`] is written, or not.
    Registered(bool),
    /// The Node of [`Effect::Initialize`] is written, or not.
    Initialized(bool),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Ask the provider for the instance: [`Event::Launched`] or [`Event::NotLaunched`].
    Launch,
    /// Warn that the Node lacks the unregistered taint, without which pods may be bound to it too early.
    WarnOfMissingTaint(Arc<Node>),
    /// Run the provider's registration hooks: [`Event::HooksRan`].
    RunHooks,
    /// Write the Node as it is to be, only onto the version that was read: [`Event::Registered`].
    Register(Arc<Node>, Box<Node>),
    /// Write the Node as it is to be, onto any version: [`Event::Initialized`].
    Initialize(Arc<Node>, Box<Node>),
    /// Delete the NodeClaim, for a reason of the disruption metric; it ends the process.
    Delete {
        /// The reason.
        reason: &'static str,
        /// Reason and message for the NodePool's registration health, unless the NodeClaim has not failed by itself.
        failure: Option<(String, String)>,
    },
    /// Write [`Joining::claim`]; it ends the process.
    Write {
        /// In how long the next step is due, if the cluster does not change.
        next: Option<Duration>,
    },
}

/// Why the provider has not created an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchFailure {
    /// The NodeClaim is to be deleted for this reason, so that the next one is planned with what is available.
    Final(&'static str),
    /// To be tried again; reason and message of the condition.
    Retryable {
        /// Reason of the condition Launched.
        reason: String,
        /// Message of the condition Launched.
        message: String,
    },
}

impl From<&CloudProviderError> for LaunchFailure {
    fn from(error: &CloudProviderError) -> Self {
        let (reason, message) = match error {
            CloudProviderError::InsufficientCapacity(_) => {
                return Self::Final("insufficient_capacity");
            }
            CloudProviderError::NodeClassNotReady(_) => return Self::Final("nodeclass_not_ready"),
            CloudProviderError::Create {
                reason, message, ..
            } => (reason.clone(), shorten(message)),
            other => (
                reasons::LAUNCH_FAILED.to_owned(),
                shorten(&other.to_string()),
            ),
        };
        Self::Retryable { reason, message }
    }
}

/// The combined answers of the registration hooks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookAnswers {
    /// Names of the hooks that have not agreed yet.
    pub pending: Vec<String>,
    /// In how long the first of them is to run again.
    pub next: Option<Duration>,
    /// Labels for the NodeClaim and its Node.
    pub labels: BTreeMap<String, String>,
}

/// The cluster around a NodeClaim.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The cluster.
    pub snapshot: &'a Snapshot,
    /// The Nodes with the NodeClaim's provider id.
    pub nodes: &'a [Arc<Node>],
}

impl Joining {
    /// Begins with a NodeClaim, as it was read.
    pub fn new(mut claim: NodeClaim, now: Timestamp) -> Self {
        claim.initialize_conditions(now);
        restamp(&mut claim);
        Self {
            claim,
            hooks: HookAnswers::default(),
        }
    }

    /// Returns the NodeClaim as it is to be written.
    pub fn claim(&self) -> &NodeClaim {
        &self.claim
    }

    /// Returns what is to be done after an event. The first event is [`Event::Due`]; the last effect is [`Effect::Delete`] or
    /// [`Effect::Write`].
    pub fn on(&mut self, event: Event, around: Surroundings<'_>, now: Timestamp) -> Vec<Effect> {
        match event {
            Event::Due if self.claim.condition_status(types::LAUNCHED) == Status::Unknown => {
                vec![Effect::Launch]
            }
            Event::Due => self.register(around, now),
            Event::Launched(answer) => {
                record_launch(&mut self.claim, &answer);
                self.claim.set_true(types::LAUNCHED, now);
                self.register(around, now)
            }
            Event::NotLaunched(LaunchFailure::Final(reason)) => vec![Effect::Delete {
                reason,
                failure: None,
            }],
            Event::NotLaunched(LaunchFailure::Retryable { reason, message }) => {
                let launched = types::LAUNCHED;
                self.claim
                    .set_unknown_with_reason(launched, &reason, &message, now);
                self.register(around, now)
            }
            Event::HooksRan(answers) => self.hooks_ran(answers, around),
            Event::Registered(false) => self.initialize(around, now),
            Event::Registered(true) => {
                self.registered(around, now);
                self.initialize(around, now)
            }
            Event::Initialized(written) => {
                if written {
                    self.claim.set_true(types::INITIALIZED, now);
                }
                self.end(around, now)
            }
        }
    }

    fn register(&mut self, around: Surroundings<'_>, now: Timestamp) -> Vec<Effect> {
        let claim = &mut self.claim;
        let registered = types::REGISTERED;
        if claim.condition_status(registered) != Status::Unknown {
            return self.initialize(around, now);
        }
        match around.nodes {
            _ if !claim.is_true(types::LAUNCHED) => {
                claim.set_unknown(registered, now);
            }
            [node] => {
                let is_registered = has_label(node, labels::REGISTERED, "true");
                let tainted = has_taint(node, &taints::unregistered());
                let warning = Effect::WarnOfMissingTaint(Arc::clone(node));
                let warning = (!is_registered && !tainted).then_some(warning);
                return warning.into_iter().chain([Effect::RunHooks]).collect();
            }
            [] => {
                let message = "Node not registered with cluster";
                claim.set_unknown_with_reason(registered, reasons::NODE_NOT_FOUND, message, now);
            }
            _ => {
                let message = "Invariant violated, matched multiple nodes";
                claim.set_false(registered, reasons::MULTIPLE_NODES_FOUND, message, now);
            }
        }
        self.initialize(around, now)
    }

    fn hooks_ran(&mut self, answers: HookAnswers, around: Surroundings<'_>) -> Vec<Effect> {
        if !answers.labels.is_empty() {
            let labels = self.claim.metadata.labels.get_or_insert_default();
            labels.extend(answers.labels.clone());
        }
        self.hooks = answers;
        let [node] = around.nodes else {
            // It went, or another came, while the hooks ran: the change leads to another reconciliation.
            return vec![Effect::Write { next: None }];
        };
        let mut wanted = Node::clone(node);
        sync(&mut wanted, &self.claim);
        if self.hooks.pending.is_empty() {
            admit(&mut wanted);
        }
        vec![Effect::Register(Arc::clone(node), Box::new(wanted))]
    }

    fn registered(&mut self, around: Surroundings<'_>, now: Timestamp) {
        let registered = types::REGISTERED;
        if !self.hooks.pending.is_empty() {
            let pending = self.hooks.pending.join(", ");
            let message = format!("waiting for registration hooks: {pending}");
            let reason = reasons::REGISTRATION_HOOK_PENDING;
            self.claim
                .set_unknown_with_reason(registered, reason, &message, now);
            return;
        }
        self.claim.set_true(registered, now);
        let name = around.nodes.first().map(|node| &node.metadata.name);
        self.claim.status.node_name = name.cloned().flatten();
    }

    fn initialize(&mut self, around: Surroundings<'_>, now: Timestamp) -> Vec<Effect> {
        let claim = &mut self.claim;
        let initialized = types::INITIALIZED;
        if claim.condition_status(initialized) != Status::Unknown {
            return self.end(around, now);
        }
        match around.nodes {
            _ if !claim.is_true(types::REGISTERED) => {
                claim.set_unknown(initialized, now);
            }
            // The model may lack the registration yet; its change leads to another reconciliation.
            [node] if !has_label(node, labels::REGISTERED, "true") => {}
            [node] => {
                let slices = around.snapshot.resource_slices();
                let ready = is_initialized(node, claim, around.snapshot.config())
                    .and_then(|()| devices_published(node, claim, slices));
                let Err((reason, message)) = ready else {
                    let mut wanted = Node::clone(node);
                    let labels = wanted.metadata.labels.get_or_insert_default();
                    labels.insert(labels::INITIALIZED.into(), "true".into());
                    return vec![Effect::Initialize(Arc::clone(node), Box::new(wanted))];
                };
                claim.set_unknown_with_reason(initialized, reason, &message, now);
            }
            _ => {
                let message = "Node not registered with cluster";
                claim.set_unknown_with_reason(initialized, reasons::NODE_NOT_FOUND, message, now);
            }
        }
        self.end(around, now)
    }

    /// Deletes a NodeClaim whose time is over, and has any other written.
    fn end(&mut self, around: Surroundings<'_>, now: Timestamp) -> Vec<Effect> {
        let hooks = self.hooks.next;
        let Some((ends, timeout)) = self.deadline(around) else {
            return vec![Effect::Write { next: hooks }];
        };
        if now < ends {
            let left = Duration::try_from(ends.duration_since(now)).unwrap_or_default();
            let next = hooks.map_or(left, |hooks| hooks.min(left));
            return vec![Effect::Write { next: Some(next) }];
        }
        let failure = match self.claim.condition(types::LAUNCHED) {
            Some(launched) if timeout == "launch_timeout" => {
                (launched.reason.clone(), launched.message.clone())
            }
            _ => (
                reasons::REGISTRATION_FAILED.to_owned(),
                "Failed to register node".to_owned(),
            ),
        };
        vec![Effect::Delete {
            reason: timeout,
            failure: Some(failure),
        }]
    }

    /// Returns when the time for the next condition ends, and the reason of the deletion then; `None` if the NodeClaim is
    /// registered.
    fn deadline(&self, around: Surroundings<'_>) -> Option<(Timestamp, &'static str)> {
        let claim = &self.claim;
        if claim.is_true(types::REGISTERED) {
            return None;
        }
        let (condition, time, reason) = if claim.is_true(types::LAUNCHED) {
            (
                types::REGISTERED,
                REGISTRATION_TIMEOUT,
                "registration_timeout",
            )
        } else {
            let timeout = around.snapshot.config().launch_timeout;
            (types::LAUNCHED, timeout, "launch_timeout")
        };
        let of = |kind| Some(claim.condition(kind)?.last_transition_time.0);
        // DIFFERS: upstream counts both from the NodeClaim's creation, so that a launch that takes longer than the registration may
        // take ends with its success.
        let launched = of(types::LAUNCHED).filter(|_| condition == types::REGISTERED);
        let since = of(condition)?.max(launched.unwrap_or(Timestamp::MIN));
        Some((after(since, time), reason))
    }
}

/// Updates the observed generation of conditions that are known: otherwise a change of the spec would make the NodeClaim
/// unready forever.
fn restamp(claim: &mut NodeClaim) {
    let generation = claim.metadata.generation;
    let kinds = NodeClaim::TYPES;
    let is_dependent = |c: &Condition| kinds.dependents.contains(&&*c.type_);
    let is_known = |c: &Condition| Status::of(c) != Status::Unknown;
    let all_known = claim
        .conditions()
        .iter()
        .all(|c| !is_dependent(c) || is_known(c));
    for condition in claim.conditions_mut() {
        // The root condition stays what it is only if no dependent condition may change it.
        let is_root = condition.type_ == kinds.root;
        if (is_dependent(condition) && is_known(condition)) || (is_root && all_known) {
            condition.observed_generation = generation;
        }
    }
}

/// Copies the provider's answer: its labels unless the NodeClaim has them, its annotations over the NodeClaim's.
fn record_launch(claim: &mut NodeClaim, answer: &NodeClaim) {
    let own = claim.metadata.labels.take().unwrap_or_default();
    let mut merged = answer.metadata.labels.clone().unwrap_or_default();
    merged.extend(own);
    claim.metadata.labels = Some(merged);
    claim
        .metadata
        .annotations
        .get_or_insert_default()
        .extend(answer.metadata.annotations.clone().unwrap_or_default());
    let (ours, theirs) = (&mut claim.status, &answer.status);
    ours.provider_id.clone_from(&theirs.provider_id);
    ours.image_id.clone_from(&theirs.image_id);
    ours.capacity.clone_from(&theirs.capacity);
    ours.allocatable.clone_from(&theirs.allocatable);
}

/// Shortens an error text for a condition or an event.
pub fn shorten(text: &str) -> String {
    if text.len() <= MAX_ERROR_LENGTH {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(MAX_ERROR_LENGTH)])
}

#[cfg(test)]
mod tests;
