//! Makes the overview, when a client asks or a stream is open.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use karpenter_decisions::explain::Question;
use karpenter_decisions::overview::Overview;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::status::Failure;
use crate::context::Context;
use crate::controller::{Backoff, compute};
use crate::decisions::feed::{Current, Feed, event};
use crate::decisions::state::{Decisions, ENGINE};

/// The shortest time between two overviews: a stream has at most two events a second.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// The longest age of an overview: budgets open and close with time.
const MAX_AGE: Duration = Duration::from_secs(10);
/// The pauses after failures.
const ERROR_BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

impl Feed {
    /// Returns the overview of the current state, which is at most half a second old.
    pub(super) async fn current(
        &self,
        cx: &Context,
        decisions: &Decisions,
    ) -> Result<Arc<Current>, Failure> {
        let _making = self.making.lock().await;
        let (view, revision) = (cx.view(), decisions.revision());
        let of = (view.snapshot.epoch(), revision);
        let earlier = self.current.lock().clone();
        if let Some(earlier) = &earlier {
            let age = earlier.made.elapsed();
            if age < MIN_INTERVAL || (earlier.of == of && age < MAX_AGE) {
                return Ok(Arc::clone(earlier));
            }
        }
        let (history, now, made) = (decisions.so_far(), cx.clock.now(), Instant::now());
        let mut curve = self.curve.lock().clone();
        let making = compute("the overview", move || {
            let messages = |_: &str| None;
            let overview = Overview::of(&Question {
                snapshot: &view.snapshot,
                history: &history,
                messages: &messages,
                now,
                engine: ENGINE,
            });
            curve.add(overview.point());
            let delta = earlier
                .as_ref()
                .and_then(|earlier| Some(overview.since(&earlier.overview)?.to_json()));
            let current = Current {
                of,
                made,
                overview,
                curve,
                json: OnceLock::new(),
                gzip: OnceLock::new(),
            };
            (Arc::new(current), delta)
        });
        let (current, delta) = making.await.map_err(|error| Failure::internal(&error))?;
        self.curve.lock().clone_from(&current.curve);
        // Under the lock: a stream that begins now gets the change either with its first event or from here.
        let mut latest = self.current.lock();
        *latest = Some(Arc::clone(&current));
        if let Some(delta) = delta {
            let _ = self.events.send(event("change", &delta));
        }
        Ok(current)
    }

    /// Makes overviews for streams, and for the curve, until `stop`.
    pub(super) async fn run(&self, cx: &Context, decisions: &Decisions, stop: CancellationToken) {
        let mut failures = 0_u32;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause(failures)) => {}
                () = stop.cancelled() => return,
            }
            let acts = cx.acting.since().is_some() && cx.view().is_synced();
            let due = || self.curve.lock().is_due(cx.clock.now().as_second());
            if !(acts && (self.events.receiver_count() > 0 || due())) {
                continue;
            }
            match self.current(cx, decisions).await {
                Ok(_) => failures = 0,
                Err(failure) => {
                    failures = failures.saturating_add(1);
                    tracing::error!(logger = "decisions", ?failure, "failed building overview");
                }
            }
        }
    }
}

/// Returns the pause before the next overview, after this many consecutive failures.
fn pause(failures: u32) -> Duration {
    match failures {
        0 => MIN_INTERVAL,
        _ => ERROR_BACKOFF.after(failures),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overview_that_fails_is_made_less_and_less_often_until_it_succeeds() {
        let seconds = |failures| pause(failures).as_secs_f64();
        let pauses: Vec<f64> = (0..9).map(seconds).collect();
        assert_eq!(pauses, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
        assert_eq!(seconds(u32::MAX), 60.0);
    }
}
