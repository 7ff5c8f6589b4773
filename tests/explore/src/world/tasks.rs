//! Requests to the engine, the API server and the provider: how they begin and are answered.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{Candidate, Command};
use karpenter_core::lifecycle::disruption::{Inputs, TaintedNode};
use karpenter_core::lifecycle::node_claim::Joining;
use karpenter_core::lifecycle::provisioning::{PodNomination, Question};
use karpenter_core::schedule::Plan;

use super::print::Print;
use super::{Halt, World};

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// As it should be.
    Right,
    /// The request had its effect, but the answer says that it failed.
    Lost,
    /// The request fails without an effect.
    Failed,
    /// The request has its effect twice.
    Doubled,
    /// The provider can never launch the instance, and does not say so.
    Stuck,
    /// The API server refuses the request, because the permission is missing.
    Forbidden,
    /// The instance is launched, but its kubelet never registers a Node.
    Silent,
    /// The instance is launched, but its Node becomes ready late.
    Slow,
}

/// What was requested.
#[derive(Clone)]
pub enum Request {
    /// A plan of the provisioner.
    Plan(Arc<Question>),
    /// The NodeClaims of a plan.
    Launch(Arc<Plan>),
    /// A disruption plan.
    DisruptionPlan(Snapshot, Inputs),
    /// The validation of a command.
    Validate(Snapshot, Box<Command>, Inputs),
    /// The taints of a command's nodes.
    Taint(Arc<Command>),
    /// The removal of taints.
    Untaint(Vec<TaintedNode>),
    /// The replacements of a command.
    Replace(Arc<Command>),
    NominatePods(Vec<PodNomination>),
    /// The deletion of a candidate's NodeClaim.
    Delete(Arc<Command>, Box<Candidate>),
    /// The instance of a NodeClaim: the NodeClaim as it was read, and its process.
    Create(Arc<NodeClaim>, Box<Joining>),
}

/// A request that is under way.
#[derive(Clone)]
pub struct Task {
    /// What was requested.
    pub kind: Request,
    /// What the request looks like.
    pub print: Arc<Print>,
    /// The hash of what the controllers had read then.
    pub view: u64,
    /// When it is answered at the earliest.
    pub from: Timestamp,
}

impl Request {
    /// Returns what can go wrong with it.
    pub fn faults(&self) -> &'static [Answer] {
        match self {
            Self::Plan(_) | Self::DisruptionPlan(..) | Self::Validate(..) => &[Answer::Failed],
            Self::Launch(..) | Self::Replace(_) => &[Answer::Lost, Answer::Failed, Answer::Doubled],
            Self::Create(..) => &[
                Answer::Lost,
                Answer::Failed,
                Answer::Doubled,
                Answer::Stuck,
                Answer::Silent,
                Answer::Slow,
            ],
            Self::Taint(_) | Self::Untaint(_) => &[Answer::Lost, Answer::Failed],
            Self::NominatePods(_) => &[Answer::Failed, Answer::Forbidden],
            Self::Delete(..) => &[Answer::Lost, Answer::Failed],
        }
    }

    /// Returns what it looks like.
    pub fn print(&self) -> Print {
        Print::of_text(&match self {
            Self::Plan(question) => format!("plan {question:?}"),
            Self::Launch(plan) => format!("launch {:?}", plan.new_node_claims),
            Self::DisruptionPlan(_, inputs) => format!("disruption plan {inputs:?}"),
            Self::Validate(_, command, inputs) => format!("validate {:?} {inputs:?}", command.id()),
            Self::Taint(command) => format!("taint {:?}", command.id()),
            Self::Untaint(nodes) => format!("untaint {nodes:?}"),
            Self::Replace(command) => {
                format!("replace {:?} {:?}", command.id(), command.replacements)
            }
            Self::NominatePods(pods) => format!("nominate {pods:?}"),
            Self::Delete(command, candidate) => {
                format!("delete {:?} {}", command.id(), candidate.claim_name())
            }
            Self::Create(claim, joining) => {
                format!("create {} {:?}", claim.name(), joining.claim())
            }
        })
    }
}

impl World {
    /// Begins a request.
    pub fn request(&mut self, kind: Request) {
        let reads = matches!(
            kind,
            Request::Plan(_) | Request::DisruptionPlan(..) | Request::Validate(..)
        );
        let view = if reads { self.hash_of_view() } else { 0 };
        let print = Arc::new(kind.print());
        let from = self.now;
        self.tasks.push(Task {
            kind,
            print,
            view,
            from,
        });
    }

    /// Answers a request.
    pub fn answer(&mut self, index: usize, answer: Answer) -> Result<(), Halt> {
        if index >= self.tasks.len() {
            return Ok(());
        }
        match self.tasks.remove(index).kind {
            Request::Plan(question) => self.answer_plan(&question, answer),
            Request::Launch(plan) => return self.answer_launch(&plan, answer),
            Request::DisruptionPlan(snapshot, inputs) => {
                self.answer_disruption_plan(&snapshot, &inputs, answer)
            }
            Request::Validate(snapshot, command, inputs) => {
                self.answer_validation(&snapshot, *command, &inputs, answer)
            }
            Request::Taint(command) => return self.answer_taint(&command, answer),
            Request::Untaint(nodes) => return self.answer_untaint(nodes, answer),
            Request::Replace(command) => return self.answer_replace(&command, answer),
            Request::NominatePods(pods) => return self.answer_nominations(&pods, answer),
            Request::Delete(command, it) => return self.answer_delete(&command, &it, answer),
            Request::Create(before, it) => return self.answer_create(&before, *it, answer),
        }
        Ok(())
    }
}
