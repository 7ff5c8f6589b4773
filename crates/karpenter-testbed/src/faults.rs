//! Fault injection: errors, latency, conflicts, dropped watches, stale reads.
//!
//! [`Faults`] is a set of [`Rule`]s that may change while the server runs. A rule selects requests, a probability, and a fault;
//! randomness comes from a seeded generator, so that equal seeds and request orders produce equal faults. Requests marked
//! [`Exempt`] have no faults. Compaction is not a rule but an action: [`crate::Testbed::compact`].

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The request header (HTTP) and request extension (in process) that exempts a request from faults.
pub const EXEMPT_HEADER: &str = "x-testbed-exempt";

/// Marks a request, as an extension, as exempt from faults.
#[derive(Debug, Clone, Copy)]
pub struct Exempt;

/// A fault of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The server responds with this HTTP status instead of handling the request.
    Error(u16),
    /// The server handles the request but responds with 500: the client cannot know the outcome.
    LostAnswer,
    /// A write is answered with 409 `Conflict`.
    Conflict,
    /// The response is delayed by this much cluster time.
    Latency(Duration),
    /// A watch is closed without an error after this many events.
    DropWatch {
        /// Number of events delivered before.
        after: u64,
    },
    /// Reads that accept the cache (`resourceVersion=0`) return an older state.
    Stale {
        /// Number of revisions the state is behind.
        revisions: u64,
    },
}

/// Selects requests and their fault.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; any verb when absent.
    pub verb: Option<String>,
    /// The plural, with its subresource after a slash (`pods/eviction`); any resource when absent.
    pub resource: Option<String>,
    /// The probability that a matching request has the fault, 0 to 1.
    pub rate: f64,
    /// Number of requests after which the rule is used up; unlimited when absent.
    pub times: Option<u64>,
    pub fault: Fault,
}

impl Rule {
    /// Returns a rule for every request.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self {
            verb: None,
            resource: None,
            rate: 1.0,
            times: None,
            fault,
        }
    }

    /// Restricts the rule to this verb.
    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }

    /// Restricts the rule to this resource.
    #[must_use]
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// Restricts the rule to this share of the requests.
    #[must_use]
    pub fn rate(mut self, rate: f64) -> Self {
        self.rate = rate;
        self
    }

    /// Restricts the rule to this many requests.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }
}

#[derive(Debug)]
struct State {
    rng: StdRng,
    rules: Vec<Rule>,
}

/// The fault rules of a server. Cheap to clone; clones share the rules.
#[derive(Debug, Clone)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

impl Faults {
    /// Returns an empty set of rules.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                rng: StdRng::seed_from_u64(seed),
                rules: Vec::new(),
            })),
        }
    }

    pub fn add(&self, rule: Rule) {
        self.state.lock().rules.push(rule);
    }

    pub fn set(&self, rules: Vec<Rule>) {
        self.state.lock().rules = rules;
    }

    pub fn clear(&self) {
        self.state.lock().rules.clear();
    }

    /// Draws the faults of a request.
    #[must_use]
    pub fn draw(&self, verb: &str, resource: &str) -> Vec<Fault> {
        let mut state = self.state.lock();
        if state.rules.is_empty() {
            return Vec::new();
        }
        let State { rng, rules } = &mut *state;
        let mut hit = Vec::new();
        for rule in rules.iter_mut() {
            let concerned = rule.verb.as_deref().is_none_or(|v| v == verb)
                && rule.resource.as_deref().is_none_or(|r| r == resource);
            if !concerned || rule.times == Some(0) {
                continue;
            }
            if rule.rate >= 1.0 || rng.random::<f64>() < rule.rate {
                if let Some(times) = &mut rule.times {
                    *times -= 1;
                }
                hit.push(rule.fault.clone());
            }
        }
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_faults() {
        let draw = |seed| {
            let faults = Faults::new(seed);
            faults.add(Rule::new(Fault::Conflict).verb("update").rate(0.5));
            (0..64)
                .map(|_| faults.draw("update", "pods").len())
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_rule_is_used_up_after_its_times_and_hits_only_what_it_names() {
        let faults = Faults::new(0);
        faults.add(
            Rule::new(Fault::Conflict)
                .verb("update")
                .resource("nodes")
                .times(2),
        );
        assert!(faults.draw("update", "pods").is_empty());
        assert!(faults.draw("patch", "nodes").is_empty());
        let hits: usize = (0..5).map(|_| faults.draw("update", "nodes").len()).sum();
        assert_eq!(hits, 2);
    }
}
