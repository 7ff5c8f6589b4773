//! Explores every order of events of the processes of `karpenter-core` in a small cluster.
//!
//! [`world::World`] is the state: the objects of the API server, the provider's instances, what the controllers have read, and the
//! processes of `karpenter_core::lifecycle` themselves. [`steps`] says what can happen next, and executes the processes' effects as
//! `karpenter-kube` does. [`search`] tries all orders; [`checks`] says what must hold at each effect, and where a fair course without
//! further faults must end. [`worlds`] are the clusters to explore; [`scenarios`] reads those of others.
//!
//! # From a story to a test
//!
//! A counterexample is printed as a numbered list: the steps with their time, the objects, and what the controllers did. To write it as a
//! test of a process, that fails before the mend:
//!
//! 1. Find the last effect before the violation, and the process that returned it: a command is `Disruption`, a nomination or a launch is
//!    `Provisioning`, what a NodeClaim or a Node does is `Joining`, `on_node_claim` or `on_node`.
//! 2. Build the cluster of that moment with `karpenter-fixtures`: what the controllers had read, which an interrupted watch leaves behind
//!    what the story says.
//! 3. Hand the process the events of the story that it was told since it began, in their order and with their times: answers of requests
//!    are events, a crash is a new process, a lost answer is the event of a failure.
//! 4. Assert on the effects of the last event. `a_planned_command_starts_unless_a_later_change_forbids_it` and
//!    `a_registered_node_is_drained_even_if_its_claim_does_not_say_so_yet` in `karpenter-core` were written so.

mod checks;
mod ends;
pub mod scenarios;
pub mod search;
pub mod steps;
pub mod world;
pub mod worlds;
