//! Schedules of disruption budgets: cron expressions of five fields, in UTC.
//!
//! The dialect is that of robfig/cron, which upstream uses: names regardless of case, `?` for `*`, `N/step` for `N-max/step`,
//! the macros `@yearly` to `@hourly`; no seconds, no time zones, no `7` for Sunday, no backward ranges. Where both the day of
//! the month and the day of the week are restricted, either suffices.
//!
//! UPSTREAM: robfig/cron v3 parser.go and spec.go

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// How far ahead the next time is searched: schedules like the 30th of February have none.
const YEARS_AHEAD: i16 = 5;

/// A parsed schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days_of_month: u64,
    months: u64,
    days_of_week: u64,
    /// Both day fields are restricted, so either suffices.
    either_day: bool,
}

/// The error of parsing an invalid schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid schedule `{schedule}`: {problem}")]
pub struct InvalidSchedule {
    schedule: String,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("{0} fields instead of 5")]
    FieldCount(usize),
    #[error("unknown macro")]
    Macro,
    #[error("`{part}` is not a valid {field}")]
    Part { part: String, field: &'static str },
}

struct Field {
    name: &'static str,
    first: u32,
    last: u32,
    names: &'static [&'static str],
}

const MINUTE: Field = Field {
    name: "minute",
    first: 0,
    last: 59,
    names: &[],
};
const HOUR: Field = Field {
    name: "hour",
    first: 0,
    last: 23,
    names: &[],
};
const DAY_OF_MONTH: Field = Field {
    name: "day of the month",
    first: 1,
    last: 31,
    names: &[],
};
const MONTH: Field = Field {
    name: "month",
    first: 1,
    last: 12,
    names: &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ],
};
const DAY_OF_WEEK: Field = Field {
    name: "day of the week",
    first: 0,
    last: 6,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

impl Field {
    /// Parses a field into its values as bits, and whether it is unrestricted (`*`).
    fn parse(&self, text: &str) -> Result<(u64, bool), Problem> {
        let (mut bits, mut open) = (0, false);
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let invalid = || Problem::Part {
                part: part.to_owned(),
                field: self.name,
            };
            let (part_bits, part_open) = self.parse_part(part).ok_or_else(invalid)?;
            bits |= part_bits;
            open |= part_open;
        }
        if bits == 0 {
            return Err(Problem::Part {
                part: text.to_owned(),
                field: self.name,
            });
        }
        Ok((bits, open))
    }

    fn parse_part(&self, part: &str) -> Option<(u64, bool)> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(integer(step)?)),
            None => (part, None),
        };
        let (low, high) = match range.split_once('-') {
            Some((low, high)) => (low, Some(high)),
            None => (range, None),
        };
        let open = low == "*" || low == "?";
        let (first, last) = match (open, high) {
            // The text after a star is ignored, as in robfig/cron.
            (true, _) => (self.first, self.last),
            (false, Some(high)) => (self.value(low)?, self.value(high)?),
            (false, None) if step.is_some() => (self.value(low)?, self.last),
            (false, None) => (self.value(low)?, self.value(low)?),
        };
        let step = step.unwrap_or(1);
        if first < self.first || last > self.last || first > last || step == 0 {
            return None;
        }
        let bits = (first..=last)
            .step_by(step as usize)
            .fold(0, |bits, value| bits | 1 << value);
        Some((bits, open && step == 1))
    }

    fn value(&self, text: &str) -> Option<u32> {
        let named = self
            .names
            .iter()
            .position(|name| name.eq_ignore_ascii_case(text));
        match named {
            Some(index) => Some(self.first + u32::try_from(index).ok()?),
            None => integer(text),
        }
    }
}

fn integer(text: &str) -> Option<u32> {
    text.parse().ok()
}

impl FromStr for Schedule {
    type Err = InvalidSchedule;

    fn from_str(schedule: &str) -> Result<Self, InvalidSchedule> {
        let invalid = |problem| InvalidSchedule {
            schedule: schedule.to_owned(),
            problem,
        };
        let expression = match schedule.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other if other.starts_with('@') => return Err(invalid(Problem::Macro)),
            other => other,
        };
        let fields: Vec<&str> = expression.split_whitespace().collect();
        let [minute, hour, day_of_month, month, day_of_week] = fields.as_slice() else {
            return Err(invalid(Problem::FieldCount(fields.len())));
        };
        let (minutes, _) = MINUTE.parse(minute).map_err(invalid)?;
        let (hours, _) = HOUR.parse(hour).map_err(invalid)?;
        let (days_of_month, any_day_of_month) =
            DAY_OF_MONTH.parse(day_of_month).map_err(invalid)?;
        let (months, _) = MONTH.parse(month).map_err(invalid)?;
        let (days_of_week, any_day_of_week) = DAY_OF_WEEK.parse(day_of_week).map_err(invalid)?;
        let either_day = !any_day_of_month && !any_day_of_week;
        Ok(Self {
            minutes,
            hours,
            days_of_month,
            months,
            days_of_week,
            either_day,
        })
    }
}

impl Schedule {
    /// Returns the first time strictly after `after`, or None if there is none before the end of the fifth year from then.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let after = after.to_zoned(TimeZone::UTC).datetime();
        let (last_year, mut date) = (after.year().saturating_add(YEARS_AHEAD), after.date());
        // On the first day only times after `after` count.
        let mut from = Some((after.hour(), after.minute()));
        while date.year() <= last_year {
            if !has(self.months, date.month()) {
                date = date.first_of_month().checked_add(1.month()).ok()?;
                from = None;
                continue;
            }
            if self.matches_day(date)
                && let Some(time) = self.next_time(from)
            {
                return Some(
                    date.to_datetime(time)
                        .to_zoned(TimeZone::UTC)
                        .ok()?
                        .timestamp(),
                );
            }
            date = date.tomorrow().ok()?;
            from = None;
        }
        None
    }

    fn matches_day(&self, date: Date) -> bool {
        let of_month = has(self.days_of_month, date.day());
        let of_week = has(self.days_of_week, date.weekday().to_sunday_zero_offset());
        if self.either_day {
            of_month || of_week
        } else {
            of_month && of_week
        }
    }

    /// Returns the first time of a day after the hour and minute of `from`.
    fn next_time(&self, from: Option<(i8, i8)>) -> Option<Time> {
        let (hour, minute) = from.unwrap_or((0, -1));
        let same_hour = if has(self.hours, hour) {
            first_from(self.minutes, minute + 1)
        } else {
            None
        };
        let (hour, minute) = match same_hour {
            Some(minute) => (hour, minute),
            None => (
                first_from(self.hours, hour + 1)?,
                first_from(self.minutes, 0)?,
            ),
        };
        Time::new(hour, minute, 0, 0).ok()
    }
}

fn has(bits: u64, value: i8) -> bool {
    bits >> value & 1 == 1
}

/// Returns the lowest set bit at or above `from`.
fn first_from(bits: u64, from: i8) -> Option<i8> {
    let left = bits >> from << from;
    if left == 0 {
        None
    } else {
        i8::try_from(left.trailing_zeros()).ok()
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |bits: u64| {
            (0..64)
                .filter(|value| bits >> value & 1 == 1)
                .map(|value| value.to_string())
                .collect::<Vec<_>>()
                .join(",")
        };
        let [minutes, hours, days, months, weekdays] = [
            self.minutes,
            self.hours,
            self.days_of_month,
            self.months,
            self.days_of_week,
        ]
        .map(list);
        write!(f, "{minutes} {hours} {days} {months} {weekdays}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn next_after(schedule: &str, after: &str) -> String {
        let schedule: Schedule = schedule.parse().unwrap();
        let next = schedule.next(after.parse().unwrap());
        next.map_or_else(|| "none".to_owned(), |time| time.to_string())
    }

    /// Returns the next time after the begin of 2026, a Thursday.
    fn next(schedule: &str) -> String {
        next_after(schedule, "2026-01-01T00:00:00Z")
    }

    /// Conformance: API-046
    #[test]
    fn five_fields_in_utc_are_parsed() {
        for (schedule, expected) in [
            ("* * * * *", "2026-01-01T00:01:00Z"),
            ("0 9 * * mon-FRI", "2026-01-01T09:00:00Z"),
            ("0 0 * * 0", "2026-01-04T00:00:00Z"),
            ("15/20 * * * *", "2026-01-01T00:15:00Z"),
            ("*/40 1 * * ?", "2026-01-01T01:00:00Z"),
            ("0 0 ? * *", "2026-01-02T00:00:00Z"),
            ("0 0 29 feb *", "2028-02-29T00:00:00Z"),
            ("5,3 1-2 * * *", "2026-01-01T01:03:00Z"),
            ("0 0 1 * *", "2026-02-01T00:00:00Z"),
            ("0 0 31 4,6,7 *", "2026-07-31T00:00:00Z"),
        ] {
            assert_eq!(next(schedule), expected, "{schedule}");
        }
    }

    /// Conformance: API-046
    #[test]
    fn macros_are_parsed() {
        for (schedule, expected) in [
            ("@yearly", "2027-01-01T00:00:00Z"),
            ("@annually", "2027-01-01T00:00:00Z"),
            ("@monthly", "2026-02-01T00:00:00Z"),
            ("@weekly", "2026-01-04T00:00:00Z"),
            ("@daily", "2026-01-02T00:00:00Z"),
            ("@midnight", "2026-01-02T00:00:00Z"),
            ("@hourly", "2026-01-01T01:00:00Z"),
        ] {
            assert_eq!(next(schedule), expected, "{schedule}");
        }
    }

    /// Conformance: API-047
    #[test]
    fn days_of_month_and_week_are_alternatives_when_both_are_restricted() {
        assert_eq!(next("0 0 13 * fri"), "2026-01-02T00:00:00Z");
        assert_eq!(next("0 0 13 * *"), "2026-01-13T00:00:00Z");
        assert_eq!(next("0 0 * * fri"), "2026-01-02T00:00:00Z");
        // A star with a step is a restriction, unless the step is 1.
        assert_eq!(next("0 0 */1 * fri"), "2026-01-02T00:00:00Z");
        assert_eq!(next("0 0 */30 * sat"), "2026-01-03T00:00:00Z");
    }

    /// Conformance: API-048
    #[test]
    fn texts_that_robfig_cron_rejects_are_rejected() {
        for schedule in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 7",
            "* * * * tue-mon",
            "*/0 * * * *",
            "1-2-3 * * * *",
            "1/2/3 * * * *",
            "x * * * *",
            ", * * * *",
            "-1 * * * *",
            "@dailyx",
            "@every 1h",
            "TZ=UTC * * * * *",
            "CRON_TZ=UTC 0 0 * * *",
            "* * L * *",
        ] {
            assert!(schedule.parse::<Schedule>().is_err(), "{schedule}");
        }
        let error = "* * * * 7".parse::<Schedule>().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid schedule `* * * * 7`: `7` is not a valid day of the week"
        );
    }

    /// Conformance: API-045
    #[test]
    fn the_next_time_is_strictly_later_and_a_schedule_may_have_none() {
        assert_eq!(next("0 0 * * *"), "2026-01-02T00:00:00Z");
        assert_eq!(
            next_after("0 0 * * *", "2025-12-31T23:59:59.999Z"),
            "2026-01-01T00:00:00Z"
        );
        assert_eq!(next("0 0 30 2 *"), "none");
    }

    fn field(first: u32, last: u32) -> impl Strategy<Value = String> {
        let value = first..=last;
        let part = prop_oneof![
            3 => Just("*".to_owned()),
            2 => value.clone().prop_map(|value| value.to_string()),
            1 => (value.clone(), 1..=last).prop_map(|(value, step)| format!("{value}/{step}")),
            1 => (1..=last).prop_map(|step| format!("*/{step}")),
            1 => (value.clone(), value).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
        ];
        prop::collection::vec(part, 1..=2).prop_map(|parts| parts.join(","))
    }

    /// Evaluates the text independently of the parser, by testing a value against each part.
    fn admits(text: &str, first: u32, last: u32, value: u32) -> bool {
        text.split(',').any(|part| {
            let (range, step) = part
                .split_once('/')
                .map_or((part, 1), |(range, step)| (range, step.parse().unwrap()));
            let (low, high) = match range.split_once('-') {
                _ if range == "*" => (first, last),
                Some((low, high)) => (low.parse().unwrap(), high.parse().unwrap()),
                None if part.contains('/') => (range.parse().unwrap(), last),
                None => (range.parse().unwrap(), range.parse().unwrap()),
            };
            (low..=high).contains(&value) && (value - low).is_multiple_of(step)
        })
    }

    fn is_open(text: &str) -> bool {
        text.split(',').any(|part| part == "*" || part == "*/1")
    }

    proptest! {
        /// Conformance: API-046, API-047
        #[test]
        fn the_next_time_is_that_of_a_scan_minute_by_minute(
            fields in (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6)),
            start in 1_767_225_600_i64..1_830_297_600,
        ) {
            let (minute, hour, day, month, weekday) = fields;
            let text = format!("{minute} {hour} {day} {month} {weekday}");
            let schedule: Schedule = text.parse().unwrap();
            let after = Timestamp::from_second(start).unwrap();
            // The scan covers two days; a later time must not be within them.
            let limit = 2 * 24 * 60;
            let scanned = (1..=limit).map(|minutes| (start / 60 + minutes) * 60).find(|second| {
                let time = Timestamp::from_second(*second).unwrap().to_zoned(TimeZone::UTC);
                let of_month = admits(&day, 1, 31, time.day() as u32);
                let of_week = admits(&weekday, 0, 6, time.weekday().to_sunday_zero_offset() as u32);
                let on_day = if is_open(&day) || is_open(&weekday) { of_month && of_week } else { of_month || of_week };
                on_day
                    && admits(&minute, 0, 59, time.minute() as u32)
                    && admits(&hour, 0, 23, time.hour() as u32)
                    && admits(&month, 1, 12, time.month() as u32)
            });
            let found = schedule.next(after).map(|time| time.as_second());
            match scanned {
                Some(_) => prop_assert_eq!(found, scanned, "{}", text),
                None => prop_assert!(found.is_none_or(|second| second > (start / 60 + limit) * 60), "{}", text),
            }
        }

        #[test]
        fn the_parser_does_not_panic_on_any_text(text in "[0-9a-z*?/,@ -]{0,24}") {
            if let Ok(schedule) = text.parse::<Schedule>() {
                schedule.next(Timestamp::UNIX_EPOCH);
            }
        }
    }
}
