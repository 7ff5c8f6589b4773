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
//!
//! # What no counterexample can show
//!
//! Rules of the core that another rule repeats, so that the behaviour stays the same without them:
//!
//! - `held`, the nodes of commands that run: they are marked for deletion, too, and a pass starts one command after the other.
//! - A nomination protects a node: kube-scheduler binds within the step that follows, and the start of a command checks the pods again.
//! - The taints of a command that fails are removed at its end, and again by the next pass, which removes those of no command.
//! - A launch that fails for good deletes its NodeClaim; without that, the time limit of launches does.
//! - The API server is asked for the Node of a registered NodeClaim that has none: a process lists all Nodes before it begins, and has seen
//!   the one that it registered.
//! - NodeClaims without a provider id count in the check of limits at a creation: they counted in the plan already, because a process has
//!   what it creates in its model at once.
//!
//! Rules without which the same happens later: pods of a deleted NodeClaim are planned again at once, not after their back-off, as are
//! pods that have lost their room; protection from consolidation ends when pods leave; a launch without an answer is repeated, not left to
//! its time limit; pods of nodes that leave are planned before they are evicted.
//!
//! # How far it goes
//!
//! `cargo xtask explore` on 2026-11-30, on two cores beside other work: a million states of each cluster, all with at most one departure
//! from the fair course and the first of those with two; then the fair courses of 20,000 states at the bound and of all after rare steps.
//! No violation. Before, the first runs found in every cluster what smaller bounds had not: three faults of the core, and checks that asked
//! for what no process can know.
//!
//! | cluster | states | on fair courses | seconds | GiB |
//! |---|---|---|---|---|
//! | one | 1,004,235 | 2,698,047 | 107 | 1.7 |
//! | late | 1,000,034 | 1,351,878 | 53 | 2.4 |
//! | move | 1,005,615 | 4,790,136 | 235 | 1.8 |
//! | empty | 1,003,988 | 2,977,328 | 146 | 1.7 |
//! | expire | 1,002,812 | 3,572,773 | 210 | 1.7 |
//! | drift | 1,002,136 | 7,114,971 | 472 | 1.7 |
//! | consolidate | 1,001,317 | 19,027,347 | 767 | 2.3 |
//! | launch | 1,003,075 | 7,125,738 | 574 | 1.9 |
//! | whole | 1,002,374 | 4,120,010 | 356 | 1.6 |
//!
//! # What was found and is not mended
//!
//! - While kube-scheduler is behind, drift may replace a node that was launched for a pod before the pod is bound: a new process does not know
//!   what was nominated, and a nomination is lost if the Node joins before the model has the provider id of its NodeClaim, or if the process
//!   stands still for half a minute.
//! - While the watch of NodeClaims is interrupted, a pod is planned on a Node that a user deletes: as upstream [SCH-189], a Node leaves once
//!   its NodeClaim does. The pod is planned again when the watch is back; its name is not written to the pod.

mod checks;
mod ends;
pub mod scenarios;
pub mod search;
pub mod steps;
pub mod world;
pub mod worlds;
