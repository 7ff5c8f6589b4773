//! How often a call may be made now.
//!
//! Nothing is held back until AWS complains. Then the operation is sent at half the rate it had, a little more with every
//! success, and freely again once a minute went by without a complaint: calls wait their turn instead of failing. A service
//! that does not answer at all is left alone for a moment, and asked again with a single call.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::clients::jittered;

/// The slowest an operation gets, in calls a second.
const SLOWEST: f64 = 0.5;
/// What a success adds to a reduced rate.
const GAIN: f64 = 0.5;
/// A rate is forgotten after so long without a complaint.
const FORGET: Duration = Duration::from_secs(60);
/// Over how long the present rate is measured.
const MEASURED: Duration = Duration::from_secs(1);
/// So many failures in a row open the circuit.
const FAILURES: u32 = 5;
/// How long the circuit stays open at first, and at most; between half and all of it, as other processes see the same outage.
const OPEN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The service answered, be it with a refusal.
    Answered,
    /// Too many calls.
    Throttled,
    /// No answer, or the service's own fault.
    Failed,
}

#[derive(Debug, Default)]
struct Lane {
    /// When the last calls were made.
    made: VecDeque<Instant>,
    /// Calls a second, when AWS has complained.
    rate: Option<f64>,
    /// When the next call may be made.
    next: Option<Instant>,
    complained: Option<Instant>,
}

#[derive(Debug, Default)]
struct Circuit {
    failures: u32,
    open: Duration,
    /// When `open` was last set; failures of calls that were under way at that time change nothing.
    set: Option<Instant>,
    until: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    lanes: HashMap<&'static str, Lane>,
    circuits: HashMap<&'static str, Circuit>,
}

/// The pace of all operations of one region.
#[derive(Debug, Default)]
pub struct Pacing {
    state: Mutex<State>,
}

/// The service is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open;

impl Pacing {
    /// Waits until `operation` of `service` may be called.
    ///
    /// # Errors
    /// When the service is left alone.
    pub async fn admit(&self, service: &'static str, operation: &'static str) -> Result<(), Open> {
        let due = self.reserve(service, operation, Instant::now())?;
        if let Some(due) = due {
            tokio::time::sleep_until(due).await;
        }
        Ok(())
    }

    fn reserve(
        &self,
        service: &'static str,
        operation: &'static str,
        now: Instant,
    ) -> Result<Option<Instant>, Open> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let circuit = state.circuits.entry(service).or_default();
        if let Some(until) = circuit.until {
            if now < until {
                return Err(Open);
            }
            // One call finds out; the others wait for another while.
            circuit.until = Some(now + circuit.open);
        }
        let lane = state.lanes.entry(operation).or_default();
        if lane.complained.is_some_and(|at| now - at >= FORGET) {
            (lane.rate, lane.next, lane.complained) = (None, None, None);
        }
        let due = lane.rate.map(|rate| {
            let due = lane.next.filter(|next| *next > now).unwrap_or(now);
            lane.next = Some(due + Duration::from_secs_f64(1.0 / rate));
            due
        });
        while lane
            .made
            .front()
            .is_some_and(|at| now.saturating_duration_since(*at) > MEASURED)
        {
            lane.made.pop_front();
        }
        lane.made.push_back(due.unwrap_or(now));
        Ok(due.filter(|due| *due > now))
    }

    /// Learns from a call.
    pub fn learn(&self, service: &'static str, operation: &'static str, outcome: Outcome) {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let circuit = state.circuits.entry(service).or_default();
        if outcome == Outcome::Failed {
            circuit.failures += 1;
            let due = circuit.set.is_none_or(|set| now - set >= circuit.open);
            if circuit.failures >= FAILURES && due {
                circuit.open = (circuit.open * 2).clamp(OPEN.0, OPEN.1);
                circuit.set = Some(now);
                circuit.until = Some(now + jittered(circuit.open));
            }
        } else {
            *circuit = Circuit::default();
        }
        let lane = state.lanes.entry(operation).or_default();
        match outcome {
            Outcome::Answered => {
                lane.rate = lane.rate.map(|rate| rate + GAIN);
            }
            Outcome::Throttled => {
                // A burst that is refused as a whole counts once, or a hundred refusals would end in a standstill.
                let first = lane.complained.is_none_or(|at| now - at >= MEASURED);
                if first {
                    let measured = lane.made.len() as f64;
                    let rate = lane.rate.unwrap_or(measured).min(measured.max(1.0));
                    lane.rate = Some((rate / 2.0).max(SLOWEST));
                    lane.next =
                        Some(now + Duration::from_secs_f64(1.0 / (rate / 2.0).max(SLOWEST)));
                    lane.complained = Some(now);
                }
            }
            Outcome::Failed => {}
        }
    }

    /// Calls a second that `operation` is held to, if it is.
    pub fn rate(&self, operation: &str) -> Option<f64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lanes.get(operation).and_then(|lane| lane.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: (&str, &str) = ("ec2", "CreateFleet");

    async fn call(pacing: &Pacing, outcome: Outcome) -> Duration {
        let before = Instant::now();
        pacing.admit(OP.0, OP.1).await.unwrap();
        let waited = before.elapsed();
        pacing.learn(OP.0, OP.1, outcome);
        waited
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_waits_until_aws_complains() {
        let pacing = Pacing::default();
        for _ in 0..1000 {
            assert_eq!(call(&pacing, Outcome::Answered).await, Duration::ZERO);
        }
        assert_eq!(pacing.rate(OP.1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_complaint_halves_the_rate_and_successes_raise_it() {
        let pacing = Pacing::default();
        for _ in 0..20 {
            call(&pacing, Outcome::Answered).await;
        }
        call(&pacing, Outcome::Throttled).await;
        let rate = pacing.rate(OP.1).unwrap();
        assert!((rate - 10.5).abs() < 1e-9, "{rate}");
        assert!(call(&pacing, Outcome::Answered).await >= Duration::from_millis(90));
        assert!(pacing.rate(OP.1).unwrap() > rate);
        tokio::time::advance(FORGET).await;
        call(&pacing, Outcome::Answered).await;
        assert_eq!(pacing.rate(OP.1), None, "a minute without complaint");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_burst_counts_once() {
        let pacing = Pacing::default();
        for _ in 0..100 {
            pacing.admit(OP.0, OP.1).await.unwrap();
        }
        for _ in 0..100 {
            pacing.learn(OP.0, OP.1, Outcome::Throttled);
        }
        assert_eq!(pacing.rate(OP.1), Some(50.0));
    }

    #[tokio::test(start_paused = true)]
    async fn processes_that_lost_a_service_together_do_not_come_back_together() {
        let mut ends = Vec::new();
        for _ in 0..20 {
            let pacing = Pacing::default();
            for _ in 0..FAILURES {
                call(&pacing, Outcome::Failed).await;
            }
            let lost = Instant::now();
            while pacing.admit(OP.0, OP.1).await.is_err() {
                tokio::time::advance(Duration::from_millis(1)).await;
            }
            let left = lost.elapsed();
            assert!((OPEN.0 / 2..=OPEN.0 + Duration::from_millis(2)).contains(&left));
            ends.push(left);
        }
        ends.sort_unstable();
        ends.dedup();
        assert!(ends.len() > 5, "{ends:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_service_is_left_alone_and_asked_with_one_call() {
        let pacing = Pacing::default();
        for _ in 0..FAILURES {
            call(&pacing, Outcome::Failed).await;
        }
        assert_eq!(pacing.admit(OP.0, OP.1).await, Err(Open));
        assert_eq!(pacing.admit("sqs", "ReceiveMessage").await, Ok(()));
        tokio::time::advance(OPEN.0).await;
        assert_eq!(pacing.admit(OP.0, OP.1).await, Ok(()), "one call finds out");
        assert_eq!(pacing.admit(OP.0, OP.1).await, Err(Open));
        pacing.learn(OP.0, OP.1, Outcome::Answered);
        assert_eq!(pacing.admit(OP.0, OP.1).await, Ok(()));
    }
}
