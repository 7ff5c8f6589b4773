//! The pause of a NodePool's voluntary disruption: the annotation [`PAUSED`](crate::labels::annotations::PAUSED).
//!
//! The value is a list of `key=value`, separated by `;`, in any order except that `why` is the last:
//!
//! | key | value | without it |
//! |---|---|---|
//! | `until` | the end of the pause, as an RFC 3339 time | the value is invalid |
//! | `reasons` | disruption reasons, separated by `,`: `Drifted`, `Empty`, `Underutilized` | every reason |
//! | `by` | the user who paused, without `;` | |
//! | `why` | any text, up to the end of the value | |
//!
//! A pause has an end, at most [`LONGEST`] ahead, so that a forgotten one does not keep a fleet from being updated.

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};

use crate::labels::annotations;
use crate::v1::{DisruptionReason, NodePool};

/// The longest pause.
pub const LONGEST: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The largest difference between the clocks of the user and the controller for which a pause of [`LONGEST`] is valid.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_hours(1);

/// The number of characters of the user's text that an error repeats.
const REPEATED: usize = 64;

/// A pause of voluntary disruption.
///
/// ```
/// use karpenter_api::pause::Pause;
/// use karpenter_api::v1::DisruptionReason;
///
/// let pause: Pause = "until=2026-11-24T06:00:00Z;reasons=Drifted;by=alice;why=incident 42; see #ops".parse()?;
/// assert!(pause.covers(&DisruptionReason::Drifted) && !pause.covers(&DisruptionReason::Empty));
/// assert_eq!(pause.why.as_deref(), Some("incident 42; see #ops"));
/// assert!(pause.is_active("2026-11-24T05:59:59Z".parse()?) && !pause.is_active(pause.until));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The end, excluded.
    pub until: Timestamp,
    /// The reasons for which no node is disrupted; every reason if empty.
    pub reasons: Vec<DisruptionReason>,
    /// The user who paused.
    pub by: Option<String>,
    /// The user's explanation.
    pub why: Option<String>,
}

/// The error of an invalid annotation; it counts as absent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPause {
    /// A part is not `key=value`.
    #[error("invalid part `{part}`: must be key=value")]
    Part {
        /// The beginning of the part.
        part: String,
    },
    /// A key is not known.
    #[error("unknown key `{key}`: must be until, reasons, by or why")]
    Key {
        /// The beginning of the key.
        key: String,
    },
    /// A key occurs twice.
    #[error("invalid key `{key}`: it is given twice")]
    Repeated {
        /// The key.
        key: &'static str,
    },
    /// There is no `until`.
    #[error("invalid pause: it has no end (until=<RFC 3339 time>)")]
    NoEnd,
    /// `until` is not a time.
    #[error("invalid time `{text}`: must be as 2006-01-02T15:04:05Z")]
    Until {
        /// The beginning of the value.
        text: String,
    },
    /// A reason is not known.
    #[error("unknown reason `{reason}`: must be Drifted, Empty or Underutilized")]
    Reason {
        /// The beginning of the reason.
        reason: String,
    },
    /// `until` is too far ahead.
    #[error("invalid end `{until}`: it is more than 7 days ahead")]
    TooLong {
        /// The end.
        until: Timestamp,
    },
}

impl Pause {
    /// Returns the pause that the NodePool's annotation describes; `None` without the annotation, or if the pause is over.
    ///
    /// # Errors
    /// If the value is invalid, or its end is more than [`LONGEST`] ahead of `now`.
    pub fn of(pool: &NodePool, now: Timestamp) -> Result<Option<Self>, InvalidPause> {
        let annotations = pool.metadata.annotations.as_ref();
        let Some(value) = annotations.and_then(|all| all.get(annotations::PAUSED)) else {
            return Ok(None);
        };
        let pause: Self = value.parse()?;
        if pause.until.duration_since(now) > LONGEST + CLOCK_SKEW {
            return Err(InvalidPause::TooLong { until: pause.until });
        }
        Ok(pause.is_active(now).then_some(pause))
    }

    /// Returns whether the pause is not over.
    pub fn is_active(&self, now: Timestamp) -> bool {
        now < self.until
    }

    /// Returns whether no node is disrupted for this reason.
    pub fn covers(&self, reason: &DisruptionReason) -> bool {
        self.reasons.is_empty() || self.reasons.contains(reason)
    }

    /// Writes the pause as part of a sentence: `until 2026-11-24T06:00:00Z by alice for Drifted: incident 42`.
    pub fn describe(&self) -> impl fmt::Display {
        fmt::from_fn(|f| {
            write!(f, "until {}", self.until)?;
            if let Some(by) = &self.by {
                write!(f, " by {by}")?;
            }
            if !self.reasons.is_empty() {
                write!(f, " for {}", names(&self.reasons, ", "))?;
            }
            match &self.why {
                Some(why) => write!(f, ": {why}"),
                None => Ok(()),
            }
        })
    }
}

fn names(reasons: &[DisruptionReason], separator: &str) -> String {
    let names: Vec<&str> = reasons.iter().map(DisruptionReason::as_str).collect();
    names.join(separator)
}

impl fmt::Display for Pause {
    /// Writes the value of the annotation. A `;` in the user's name is written as `,`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "until={}", self.until)?;
        if !self.reasons.is_empty() {
            write!(f, ";reasons={}", names(&self.reasons, ","))?;
        }
        if let Some(by) = &self.by {
            write!(f, ";by={}", by.replace(';', ","))?;
        }
        match &self.why {
            Some(why) => write!(f, ";why={why}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Pause {
    type Err = InvalidPause;

    fn from_str(text: &str) -> Result<Self, InvalidPause> {
        let (mut until, mut reasons, mut by, mut why) = (None, None, None, None);
        let mut rest = Some(text);
        while let Some(current) = rest {
            // The explanation may contain the separator.
            let is_last = current
                .split_once('=')
                .is_some_and(|(key, _)| key.trim() == "why");
            let (part, after) = match current.split_once(';') {
                Some((part, after)) if !is_last => (part, Some(after)),
                _ => (current, None),
            };
            rest = after;
            if part.trim().is_empty() {
                continue;
            }
            let (key, value) = part.split_once('=').ok_or_else(|| InvalidPause::Part {
                part: beginning(part),
            })?;
            let value = value.trim();
            match key.trim() {
                "until" => once("until", &mut until, timestamp(value)?)?,
                "reasons" => once("reasons", &mut reasons, reasons_of(value)?)?,
                "by" => once("by", &mut by, value.to_owned())?,
                "why" => once("why", &mut why, value.to_owned())?,
                key => {
                    let key = beginning(key);
                    return Err(InvalidPause::Key { key });
                }
            }
        }
        Ok(Self {
            until: until.ok_or(InvalidPause::NoEnd)?,
            reasons: reasons.unwrap_or_default(),
            by: by.filter(|by| !by.is_empty()),
            why: why.filter(|why| !why.is_empty()),
        })
    }
}

fn once<T>(key: &'static str, slot: &mut Option<T>, value: T) -> Result<(), InvalidPause> {
    match slot.replace(value) {
        Some(_) => Err(InvalidPause::Repeated { key }),
        None => Ok(()),
    }
}

fn timestamp(text: &str) -> Result<Timestamp, InvalidPause> {
    text.parse().map_err(|_| InvalidPause::Until {
        text: beginning(text),
    })
}

/// Parses reasons separated by commas; each once, in the order of the text.
///
/// ```
/// use karpenter_api::pause::reasons_of;
/// use karpenter_api::v1::DisruptionReason::{Drifted, Empty};
/// assert_eq!(reasons_of("Drifted, Empty,Drifted"), Ok(vec![Drifted, Empty]));
/// assert!(reasons_of("Expired").is_err());
/// ```
///
/// # Errors
/// If there is none, or one is not a known [`DisruptionReason`].
pub fn reasons_of(text: &str) -> Result<Vec<DisruptionReason>, InvalidPause> {
    let mut reasons = Vec::new();
    for name in text.split(',') {
        let reason = DisruptionReason::from(name.trim());
        if let DisruptionReason::Other(name) = reason {
            let reason = beginning(&name);
            return Err(InvalidPause::Reason { reason });
        }
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    Ok(reasons)
}

fn beginning(text: &str) -> String {
    text.trim().chars().take(REPEATED).collect()
}

#[cfg(test)]
mod tests {
    use DisruptionReason::{Drifted, Empty, Underutilized};

    use super::*;

    const NOON: &str = "2026-01-01T12:00:00Z";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn pool(value: &str) -> NodePool {
        let mut pool = NodePool::default();
        let annotation = (annotations::PAUSED.to_owned(), value.to_owned());
        pool.metadata.annotations = Some([annotation].into());
        pool
    }

    fn invalid(value: &str) -> String {
        value.parse::<Pause>().unwrap_err().to_string()
    }

    #[test]
    fn without_reasons_every_reason_is_paused() {
        let pause: Pause = "until=2026-01-01T13:00:00Z".parse().unwrap();
        assert!(DisruptionReason::KNOWN.iter().all(|r| pause.covers(r)));
        let pause: Pause = "reasons=Drifted,Underutilized;until=2026-01-01T13:00:00Z"
            .parse()
            .unwrap();
        let covered = [Drifted, Empty, Underutilized].map(|reason| pause.covers(&reason));
        assert_eq!(covered, [true, false, true]);
    }

    #[test]
    fn the_explanation_is_the_rest_of_the_value() {
        let text = "until=2026-01-01T13:00:00Z;by=alice;why=a;b=c; until=never";
        let pause: Pause = text.parse().unwrap();
        assert_eq!(pause.by.as_deref(), Some("alice"));
        assert_eq!(pause.why.as_deref(), Some("a;b=c; until=never"));
        assert_eq!(pause.to_string(), text);
    }

    #[test]
    fn a_value_that_is_not_understood_is_refused_as_a_whole() {
        for (value, error) in [
            ("", "invalid pause: it has no end (until=<RFC 3339 time>)"),
            ("true", "invalid part `true`: must be key=value"),
            (
                "until=tomorrow",
                "invalid time `tomorrow`: must be as 2006-01-02T15:04:05Z",
            ),
            (
                "until=2026-01-01T13:00:00Z;reason=Empty",
                "unknown key `reason`: must be until, reasons, by or why",
            ),
            (
                "until=2026-01-01T13:00:00Z;reasons=Empty,drifted",
                "unknown reason `drifted`: must be Drifted, Empty or Underutilized",
            ),
            (
                "until=2026-01-01T13:00:00Z;reasons=",
                "unknown reason ``: must be Drifted, Empty or Underutilized",
            ),
            (
                "until=2026-01-01T13:00:00Z;until=2026-01-02T13:00:00Z",
                "invalid key `until`: it is given twice",
            ),
        ] {
            assert_eq!(invalid(value), error);
        }
        assert!(invalid(&"x".repeat(100_000)).len() < 200);
    }

    #[test]
    fn a_pause_is_over_at_its_end() {
        let pool = pool("until=2026-01-01T12:00:01Z");
        assert!(Pause::of(&pool, at(NOON)).unwrap().is_some());
        assert_eq!(Pause::of(&pool, at("2026-01-01T12:00:01Z")), Ok(None));
        assert_eq!(Pause::of(&NodePool::default(), at(NOON)), Ok(None));
    }

    #[test]
    fn an_end_more_than_a_week_ahead_is_refused_except_for_clocks_that_differ() {
        let (week, later) = ("2026-01-08T13:00:00Z", "2026-01-08T13:00:01Z");
        assert!(Pause::of(&pool(&format!("until={week}")), at(NOON)).is_ok());
        let until = at(later);
        assert_eq!(
            Pause::of(&pool(&format!("until={later}")), at(NOON)),
            Err(InvalidPause::TooLong { until })
        );
    }

    #[test]
    fn a_pause_is_described_with_all_that_is_known() {
        let pause: Pause =
            "until=2026-01-01T13:00:00Z;reasons=Drifted,Empty;by=bob;why=incident 42"
                .parse()
                .unwrap();
        assert_eq!(
            pause.describe().to_string(),
            "until 2026-01-01T13:00:00Z by bob for Drifted, Empty: incident 42"
        );
        let pause: Pause = "until=2026-01-01T13:00:00Z".parse().unwrap();
        assert_eq!(pause.describe().to_string(), "until 2026-01-01T13:00:00Z");
    }
}
