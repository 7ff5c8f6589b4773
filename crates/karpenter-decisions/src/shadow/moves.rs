//! Disruption: the nodes that each Karpenter disrupts, matched by name within ten minutes.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use karpenter_core::disruption::{Command, VerdictKind};
use karpenter_core::reason::Reason;
use serde::Serialize;

use super::action::Agreement;
use crate::passes::disruption_reason;
use crate::prices::finite;
use crate::record::clipped;

/// Decisions within this window count as the same decision.
pub const MATCH: SignedDuration = SignedDuration::from_secs(600);
/// How long after its last node a command of the other may launch replacements.
const REPLACEMENT_WINDOW: SignedDuration = SignedDuration::from_secs(10);
/// The number of compared nodes in memory.
const MAX_COMPARED: usize = 2048;

/// The disruption of one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Move {
    pub node_pool: String,
    /// `empty`, `drifted` or `underutilized`.
    pub reason: &'static str,
    /// When it was decided.
    pub at: Timestamp,
    /// The number of pods that are evicted.
    pub evictions: usize,
    /// The price of the node less the node's share of its replacements, in dollars per hour.
    pub savings_per_hour: f64,
    /// The node's share of the replacements of its command.
    pub replacements: f64,
}

/// Why we keep a node that the other Karpenter disrupts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// The id of the reason.
    pub id: &'static str,
    /// The text of the reason.
    pub text: String,
}

impl Kept {
    /// Returns the reason of a verdict; `None` if it is to disrupt the node.
    pub fn of(verdict: &VerdictKind) -> Option<Self> {
        let reason = match verdict {
            VerdictKind::NotDisruptable(why) => Reason::from(why),
            VerdictKind::Kept(why) => Reason::from(why),
            _ => return None,
        };
        Some(Self {
            id: reason.id(),
            text: clipped(reason.to_string()),
        })
    }
}

/// What both Karpenters did with a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    pub node: String,
    /// When the first of both decided.
    pub at: Timestamp,
    pub ours: Option<Move>,
    /// The decision of the other.
    pub theirs: Option<Move>,
    /// Why we kept the node, if the other disrupted it.
    pub kept: Option<Kept>,
}

impl Compared {
    /// Returns how far both agree: on the node and on the reason.
    pub fn agreement(&self) -> Agreement {
        let reason = |side: &Option<Move>| side.as_ref().map(|side| side.reason);
        let (ours, theirs) = (reason(&self.ours), reason(&self.theirs));
        Agreement {
            ours: usize::from(ours.is_some()),
            theirs: usize::from(theirs.is_some()),
            both: usize::from(ours.is_some() && ours == theirs),
        }
    }

    /// Returns what following us saves in dollars per hour, compared with the other.
    pub fn rate(&self) -> f64 {
        let savings = |side: &Option<Move>| side.as_ref().map_or(0.0, |side| side.savings_per_hour);
        savings(&self.ours) - savings(&self.theirs)
    }

    /// Returns what following us would have saved until `now`, in dollars.
    pub fn dollars(&self, now: Timestamp) -> f64 {
        let lasted = now.duration_since(self.at).min(MATCH);
        self.rate() * lasted.as_secs_f64().max(0.0) / 3600.0
    }
}

/// The nodes of one command of the other Karpenter, which are inferred: those it began to disrupt together.
#[derive(Debug)]
struct Group {
    last: Timestamp,
    claims: Vec<String>,
    replacements: usize,
    /// Whether a node was deleted: a command deletes its nodes once its replacements are initialized.
    deleted: bool,
}

/// The disruptions of both Karpenters.
#[derive(Debug, Default)]
pub struct Moves {
    /// The nodes that were decided on within [`MATCH`], by NodeClaim.
    open: BTreeMap<String, Compared>,
    /// Older ones, oldest first.
    closed: VecDeque<Compared>,
    group: Option<Group>,
}

impl Moves {
    /// Records our decision to execute a command. A node that we decided on before, within [`MATCH`], counts once.
    pub fn ours(&mut self, command: &Command, at: Timestamp) {
        let nodes = command.candidates.len().max(1) as f64;
        let spent: f64 = command
            .replacements
            .iter()
            .map(|r| finite(r.hourly_price))
            .sum();
        for candidate in &command.candidates {
            let decided = Move {
                node_pool: candidate.pool_name().to_owned(),
                reason: disruption_reason(command.method),
                at,
                evictions: candidate.reschedulable().count(),
                savings_per_hour: finite(candidate.price) - spent / nodes,
                replacements: command.replacements.len() as f64 / nodes,
            };
            let node = self.open(candidate.claim_name(), candidate.name(), at);
            if node.ours.is_none() {
                node.ours = Some(decided);
                node.kept = None;
            }
        }
    }

    /// Reports whether we decided on a node within [`MATCH`].
    pub fn is_ours(&self, claim: &str) -> bool {
        let open = self.open.get(claim);
        open.is_some_and(|compared| compared.ours.is_some())
    }

    /// Reports whether the other began to disrupt a node within [`MATCH`].
    pub fn is_theirs(&self, claim: &str) -> bool {
        let open = self.open.get(claim);
        open.is_some_and(|compared| compared.theirs.is_some())
    }

    /// Records that the other Karpenter began to disrupt a node.
    pub fn theirs(&mut self, claim: &str, node: &str, decided: Move) {
        let at = decided.at;
        let compared = self.open(claim, node, at);
        if compared.theirs.is_some() {
            return;
        }
        compared.theirs = Some(decided);
        match &mut self.group {
            Some(group)
                if group.replacements == 0
                    && !group.deleted
                    && at.duration_since(group.last) < REPLACEMENT_WINDOW =>
            {
                group.last = at;
                group.claims.push(claim.to_owned());
            }
            _ => {
                self.group = Some(Group {
                    last: at,
                    claims: vec![claim.to_owned()],
                    replacements: 0,
                    deleted: false,
                });
            }
        }
    }

    /// Records why we keep a node that the other disrupts.
    pub fn kept(&mut self, claim: &str, why: Kept) {
        if let Some(compared) = self.open.get_mut(claim)
            && compared.ours.is_none()
        {
            compared.kept = Some(why);
        }
    }

    /// Takes a NodeClaim that the other created at `at` as a replacement, if it has just begun to disrupt nodes that have fewer
    /// replacements than nodes, and deletes none of them yet. An empty node is not replaced. Returns the NodeClaims of the nodes.
    pub fn take_replacement(&mut self, at: Timestamp) -> Option<Vec<String>> {
        let group = self.group.as_mut()?;
        let replaced = group.claims.iter().filter(|claim| {
            let theirs = self.open.get(*claim).and_then(|it| it.theirs.as_ref());
            theirs.is_some_and(|theirs| theirs.reason != "empty")
        });
        let is_late = at.duration_since(group.last) >= REPLACEMENT_WINDOW;
        if is_late || group.deleted || group.replacements >= replaced.count() {
            return None;
        }
        group.replacements += 1;
        let claims = group.claims.clone();
        self.share(&claims, 1.0, 0.0);
        Some(claims)
    }

    /// Records that the other deletes a node.
    pub fn deletes(&mut self, claim: &str) {
        if let Some(group) = &mut self.group {
            group.deleted |= group.claims.iter().any(|it| it == claim);
        }
    }

    /// Deducts the price of a replacement of these nodes, once it is known.
    pub fn replaced(&mut self, claims: &[String], price_per_hour: f64) {
        self.share(claims, 0.0, price_per_hour);
    }

    /// Reverts [`take_replacement`](Self::take_replacement), and the price if it was deducted.
    pub fn not_replaced(&mut self, claims: &[String], price_per_hour: f64) {
        self.share(claims, -1.0, -price_per_hour);
    }

    fn share(&mut self, claims: &[String], replacements: f64, price_per_hour: f64) {
        let nodes = claims.len().max(1) as f64;
        for claim in claims {
            if let Some(theirs) = self.open.get_mut(claim).and_then(|it| it.theirs.as_mut()) {
                theirs.replacements += replacements / nodes;
                theirs.savings_per_hour -= price_per_hour / nodes;
            }
        }
    }

    /// Closes the comparison of nodes that were decided on more than [`MATCH`] ago.
    pub fn expire(&mut self, now: Timestamp) {
        let old = |compared: &Compared| now.duration_since(compared.at) >= MATCH;
        let mut old: Vec<Compared> = self
            .open
            .extract_if(.., |_, compared| old(compared))
            .map(|(_, compared)| compared)
            .collect();
        old.sort_by(|a, b| (a.at, &a.node).cmp(&(b.at, &b.node)));
        self.closed.extend(old);
        while self.closed.len() > MAX_COMPARED {
            self.closed.pop_front();
        }
    }

    /// Iterates over the nodes that can be compared: those that both disrupted, and those that one did more than [`MATCH`] ago.
    pub fn compared(&self) -> impl Iterator<Item = &Compared> {
        let both = |compared: &&Compared| compared.ours.is_some() && compared.theirs.is_some();
        self.closed.iter().chain(self.open.values().filter(both))
    }

    /// Returns the number of nodes that only one of both has disrupted so far.
    pub fn waiting(&self) -> usize {
        self.open.len() - self.compared().count().saturating_sub(self.closed.len())
    }

    fn open(&mut self, claim: &str, node: &str, at: Timestamp) -> &mut Compared {
        let open = self.open.entry(claim.to_owned());
        open.or_insert_with(|| Compared {
            node: node.to_owned(),
            at,
            ours: None,
            theirs: None,
            kept: None,
        })
    }
}
