//! Reports the pauses of NodePools: an event at the begin and at the end, a warning about an invalid annotation, a metric.
//!
//! The engine honors the annotation by itself, as a budget of 0. What is remembered here serves the reports alone; a new leader
//! reports the pauses it finds again. The warnings are those about other annotations of NodePools, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::events;
use karpenter_api::labels::annotations;
use karpenter_api::pause::Pause;
use karpenter_api::v1::NodePool;
use karpenter_core::behavior::destinations_annotation;

use crate::context::Context;
use crate::events::{Event, reference};
use crate::model::View;

/// The pauses and invalid annotations that were reported, by NodePool.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    active: BTreeMap<String, Pause>,
    /// What is wrong with them, by NodePool and annotation.
    invalid: BTreeMap<(String, &'static str), String>,
}

impl Pauses {
    /// Reports what has changed since the last call.
    pub(super) fn report(&mut self, cx: &Context, view: &View) {
        let now = cx.clock.now();
        for event in self.changes(view.snapshot.node_pools(), now) {
            cx.recorder.publish(event);
        }
        let paused = self.active.keys().map(|name| (vec![name.clone()], 1.0));
        cx.metrics.nodepools_paused.replace_all(paused);
    }

    /// Returns the events that are due. Those of deleted NodePools are not.
    fn changes<'a>(
        &mut self,
        pools: impl Iterator<Item = &'a Arc<NodePool>>,
        now: Timestamp,
    ) -> Vec<Event> {
        let mut due = Vec::new();
        let (mut were_active, mut were_invalid) = (
            std::mem::take(&mut self.active),
            std::mem::take(&mut self.invalid),
        );
        for pool in pools {
            let name = pool.name();
            let was_active = were_active.remove(name);
            // Only changes are reported, so equal events are not repetitions.
            let mut normal = |message: String| {
                due.push(
                    Event::normal(reference(&**pool), events::DISRUPTION_PAUSED, message).always(),
                );
            };
            let (active, invalid) = match Pause::of(pool, now) {
                Ok(active) => (active, None),
                Err(error) => (None, Some(error.to_string())),
            };
            if let Some(pause) = active {
                if was_active.as_ref() != Some(&pause) {
                    normal(format!("Disruption is paused {}", pause.describe()));
                }
                self.active.insert(name.to_owned(), pause);
            } else if let Some(over) = was_active {
                let cause = if over.is_active(now) {
                    "was removed"
                } else {
                    "is over"
                };
                normal(format!(
                    "Disruption is resumed: the pause until {} {cause}",
                    over.until
                ));
            }
            let destinations = destinations_annotation(pool).and_then(Result::err);
            let destinations = destinations.map(|value| {
                let beginning: String = value.chars().take(64).collect();
                format!("invalid value `{beginning}`: must be true or false")
            });
            let invalid = [
                (annotations::PAUSED, invalid),
                (
                    annotations::CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS,
                    destinations,
                ),
            ];
            for (annotation, error) in invalid {
                let Some(error) = error else { continue };
                let key = (name.to_owned(), annotation);
                if were_invalid.remove(&key).as_ref() != Some(&error) {
                    let message = format!("Annotation \"{annotation}\" counts as absent: {error}");
                    due.push(
                        Event::warning(reference(&**pool), events::INVALID_KNOB, message).always(),
                    );
                }
                self.invalid.insert(key, error);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: &str = "2026-01-01T12:00:00Z";
    const ONE: &str = "2026-01-01T13:00:00Z";

    /// Returns the events of one look at a NodePool with this annotation.
    fn look(pauses: &mut Pauses, value: Option<&str>, now: &str) -> Vec<String> {
        let mut pool = NodePool::default();
        pool.metadata.name = Some("default".to_owned());
        let annotation = value.map(|value| (annotations::PAUSED.to_owned(), value.to_owned()));
        pool.metadata.annotations = Some(annotation.into_iter().collect());
        let events = pauses.changes([&Arc::new(pool)].into_iter(), now.parse().unwrap());
        let texts = events.into_iter();
        texts
            .map(|event| format!("{} {}", event.reason, event.message))
            .collect()
    }

    #[test]
    fn begin_and_end_of_a_pause_are_each_reported_once() {
        let mut pauses = Pauses::default();
        assert!(look(&mut pauses, None, NOON).is_empty());
        let shorter = "2026-01-01T12:30:00Z";
        let by_alice = format!("until={ONE};by=alice");
        let until_shorter = format!("until={shorter}");
        for (value, now, expected) in [
            (
                Some(&by_alice),
                NOON,
                format!("paused until {ONE} by alice"),
            ),
            (
                Some(&by_alice),
                ONE,
                format!("resumed: the pause until {ONE} is over"),
            ),
            (
                Some(&until_shorter),
                NOON,
                format!("paused until {shorter}"),
            ),
            (
                None,
                NOON,
                format!("resumed: the pause until {shorter} was removed"),
            ),
        ] {
            let value = value.map(String::as_str);
            let expected = format!("DisruptionPaused Disruption is {expected}");
            assert_eq!(
                look(&mut pauses, value, now),
                std::slice::from_ref(&expected)
            );
            assert!(look(&mut pauses, value, now).is_empty(), "{expected}");
        }
    }

    #[test]
    fn a_change_of_a_pause_is_reported() {
        let mut pauses = Pauses::default();
        look(&mut pauses, Some(&format!("until={ONE}")), NOON);
        let shorter = "2026-01-01T12:30:00Z";
        let said = look(&mut pauses, Some(&format!("until={shorter}")), NOON);
        let expected = format!("DisruptionPaused Disruption is paused until {shorter}");
        assert_eq!(said, [expected]);
    }

    #[test]
    fn an_invalid_annotation_is_reported_once_and_ends_the_pause() {
        let mut pauses = Pauses::default();
        look(&mut pauses, Some(&format!("until={ONE}")), NOON);
        let events = look(&mut pauses, Some("until=soon"), NOON);
        assert_eq!(events.len(), 2, "{events:?}");
        assert_eq!(
            events[1],
            "InvalidKnob Annotation \"operations.karpenter.sh/paused\" counts as absent: invalid time `soon`: must be as 2006-01-02T15:04:05Z"
        );
        assert!(look(&mut pauses, Some("until=soon"), NOON).is_empty());
        assert_eq!(look(&mut pauses, Some("until=later"), NOON).len(), 1);
    }

    #[test]
    fn an_invalid_annotation_about_destinations_is_reported_once() {
        let mut pool = NodePool::default();
        pool.metadata.name = Some("default".to_owned());
        let annotation = annotations::CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS.to_owned();
        pool.metadata.annotations = Some([(annotation, "no".to_owned())].into());
        let pool = Arc::new(pool);
        let mut pauses = Pauses::default();
        let mut look = || pauses.changes([&pool].into_iter(), NOON.parse().unwrap());
        let said: Vec<String> = look().into_iter().map(|event| event.message).collect();
        assert_eq!(
            said,
            [
                "Annotation \"operations.karpenter.sh/consolidate-after-applies-to-destinations\" counts as absent: invalid value `no`: must be true or false"
            ]
        );
        assert!(look().is_empty());
    }
}
