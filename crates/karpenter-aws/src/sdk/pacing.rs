//! Client-side rate limits and circuit breakers.
//!
//! There is no limit until AWS throttles an operation. Then the operation is called at half its rate, somewhat faster
//! with every success, and without limit once a minute passed without throttling: calls wait instead of failing. A
//! service that does not answer at all is not called for a moment, and then probed with a single call.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::clients::jittered;

/// Minimum rate of an operation, in calls per second.
const MIN_RATE: f64 = 0.5;
/// Increase of a reduced rate after a success.
const RATE_STEP: f64 = 0.5;
/// Time without throttling after which the limit is removed.
const RECOVERY: Duration = Duration::from_secs(60);
/// Period over which the current rate is measured.
const RATE_WINDOW: Duration = Duration::from_secs(1);
/// Number of consecutive failures that open the circuit.
const FAILURE_THRESHOLD: u32 = 5;
/// How long the circuit stays open at first, and at most; the actual time is between half and all of it, because other
/// processes see the same outage.
const OPEN_TIME: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The service answered, possibly with a refusal.
    Answered,
    /// The call was throttled.
    Throttled,
    /// There was no answer, or the service failed.
    Failed,
}

#[derive(Debug, Default)]
struct Lane {
    /// Times of the last calls.
    made: VecDeque<Instant>,
    /// Rate limit in calls per second, if AWS throttled the operation.
    rate: Option<f64>,
    /// When the next call may be made.
    next: Option<Instant>,
    throttled: Option<Instant>,
}

#[derive(Debug, Default)]
struct Circuit {
    failures: u32,
    open: Duration,
    /// When `open` was last set; failures of calls that were sent before do not change it.
    set: Option<Instant>,
    until: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    lanes: HashMap<&'static str, Lane>,
    circuits: HashMap<&'static str, Circuit>,
}

/// Rate limits and circuits of all operations of one region.
#[derive(Debug, Default)]
pub struct Pacing {
    state: Mutex<State>,
}

/// The service's circuit is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open;

impl Pacing {
    /// Waits until `operation` of `service` may be called.
    ///
    /// # Errors
    /// If the circuit of the service is open.
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
        let mut state = self.state.lock();
        let circuit = state.circuits.entry(service).or_default();
        if let Some(until) = circuit.until {
            if now < until {
                return Err(Open);
            }
            // One call probes the service; the others wait for another period.
            circuit.until = Some(now + circuit.open);
        }
        let lane = state.lanes.entry(operation).or_default();
        if lane.throttled.is_some_and(|at| now - at >= RECOVERY) {
            (lane.rate, lane.next, lane.throttled) = (None, None, None);
        }
        let due = lane.rate.map(|rate| {
            let due = lane.next.filter(|next| *next > now).unwrap_or(now);
            lane.next = Some(due + Duration::from_secs_f64(1.0 / rate));
            due
        });
        while lane
            .made
            .front()
            .is_some_and(|at| now.saturating_duration_since(*at) > RATE_WINDOW)
        {
            lane.made.pop_front();
        }
        lane.made.push_back(due.unwrap_or(now));
        Ok(due.filter(|due| *due > now))
    }

    pub fn record(&self, service: &'static str, operation: &'static str, outcome: Outcome) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let circuit = state.circuits.entry(service).or_default();
        if outcome == Outcome::Failed {
            circuit.failures += 1;
            let due = circuit.set.is_none_or(|set| now - set >= circuit.open);
            if circuit.failures >= FAILURE_THRESHOLD && due {
                circuit.open = (circuit.open * 2).clamp(OPEN_TIME.0, OPEN_TIME.1);
                circuit.set = Some(now);
                circuit.until = Some(now + jittered(circuit.open));
            }
        } else {
            *circuit = Circuit::default();
        }
        let lane = state.lanes.entry(operation).or_default();
        match outcome {
            Outcome::Answered => {
                lane.rate = lane.rate.map(|rate| rate + RATE_STEP);
            }
            Outcome::Throttled => {
                // A burst that is throttled as a whole counts once; otherwise a hundred refusals would reduce the rate
                // to its minimum.
                let first = lane.throttled.is_none_or(|at| now - at >= RATE_WINDOW);
                if first {
                    let measured = lane.made.len() as f64;
                    let rate = lane.rate.unwrap_or(measured).min(measured.max(1.0));
                    lane.rate = Some((rate / 2.0).max(MIN_RATE));
                    lane.next =
                        Some(now + Duration::from_secs_f64(1.0 / (rate / 2.0).max(MIN_RATE)));
                    lane.throttled = Some(now);
                }
            }
            Outcome::Failed => {}
        }
    }

    /// Returns the rate limit of `operation` in calls per second, if there is one.
    pub fn rate(&self, operation: &str) -> Option<f64> {
        let state = self.state.lock();
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
        pacing.record(OP.0, OP.1, outcome);
        waited
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_waits_until_aws_throttles() {
        let pacing = Pacing::default();
        for _ in 0..1000 {
            assert_eq!(call(&pacing, Outcome::Answered).await, Duration::ZERO);
        }
        assert_eq!(pacing.rate(OP.1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn throttling_halves_the_rate_and_successes_raise_it() {
        let pacing = Pacing::default();
        for _ in 0..20 {
            call(&pacing, Outcome::Answered).await;
        }
        call(&pacing, Outcome::Throttled).await;
        let rate = pacing.rate(OP.1).unwrap();
        assert!((rate - 10.5).abs() < 1e-9, "{rate}");
        assert!(call(&pacing, Outcome::Answered).await >= Duration::from_millis(90));
        assert!(pacing.rate(OP.1).unwrap() > rate);
        tokio::time::advance(RECOVERY).await;
        call(&pacing, Outcome::Answered).await;
        assert_eq!(pacing.rate(OP.1), None, "a minute without throttling");
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttled_burst_counts_once() {
        let pacing = Pacing::default();
        for _ in 0..100 {
            pacing.admit(OP.0, OP.1).await.unwrap();
        }
        for _ in 0..100 {
            pacing.record(OP.0, OP.1, Outcome::Throttled);
        }
        assert_eq!(pacing.rate(OP.1), Some(50.0));
    }

    #[tokio::test(start_paused = true)]
    async fn processes_that_saw_the_same_outage_do_not_retry_together() {
        let mut ends = Vec::new();
        for _ in 0..20 {
            let pacing = Pacing::default();
            for _ in 0..FAILURE_THRESHOLD {
                call(&pacing, Outcome::Failed).await;
            }
            let lost = Instant::now();
            while pacing.admit(OP.0, OP.1).await.is_err() {
                tokio::time::advance(Duration::from_millis(1)).await;
            }
            let left = lost.elapsed();
            assert!((OPEN_TIME.0 / 2..=OPEN_TIME.0 + Duration::from_millis(2)).contains(&left));
            ends.push(left);
        }
        ends.sort_unstable();
        ends.dedup();
        assert!(ends.len() > 5, "{ends:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_service_is_not_called_and_then_probed_with_one_call() {
        let pacing = Pacing::default();
        for _ in 0..FAILURE_THRESHOLD {
            call(&pacing, Outcome::Failed).await;
        }
        assert_eq!(pacing.admit(OP.0, OP.1).await, Err(Open));
        assert_eq!(pacing.admit("sqs", "ReceiveMessage").await, Ok(()));
        tokio::time::advance(OPEN_TIME.0).await;
        assert_eq!(pacing.admit(OP.0, OP.1).await, Ok(()), "one call probes");
        assert_eq!(pacing.admit(OP.0, OP.1).await, Err(Open));
        pacing.record(OP.0, OP.1, Outcome::Answered);
        assert_eq!(pacing.admit(OP.0, OP.1).await, Ok(()));
    }
}
