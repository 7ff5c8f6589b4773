//! Durations and ages as kubectl prints them.

use jiff::Timestamp;

/// Formats a duration in kubectl's short form: `45s`, `3m12s`, `12m`, `5h10m`, `26h`, `3d4h`, `40d`, `2y15d`.
///
/// UPSTREAM: apimachinery/pkg/util/duration.HumanDuration.
pub fn human_duration(seconds: i64) -> String {
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{large_unit}")
        } else {
            format!("{large}{large_unit}{small}{small_unit}")
        }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => two(hours / 24, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        _ if hours < 24 * 365 * 8 => two(hours / 24 / 365, "y", hours / 24 % 365, "d"),
        _ => format!("{}y", hours / 24 / 365),
    }
}

/// Returns the time from the RFC 3339 instant `since` to `now`, or `<unknown>` if it is absent or invalid.
pub fn age(since: Option<&str>, now: Timestamp) -> String {
    match since.and_then(|text| text.parse::<Timestamp>().ok()) {
        Some(since) => human_duration(now.as_second() - since.as_second()),
        None => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_print_as_kubectl_prints_them() {
        let hour = 3600;
        let day = 24 * hour;
        for (seconds, wanted) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (192, "3m12s"),
            (600, "10m"),
            (179 * 60, "179m"),
            (3 * hour, "3h"),
            (5 * hour + 600, "5h10m"),
            (8 * hour + 600, "8h"),
            (47 * hour, "47h"),
            (48 * hour, "2d"),
            (3 * day + 4 * hour, "3d4h"),
            (8 * day + hour, "8d"),
            (729 * day, "729d"),
            (730 * day, "2y"),
            (745 * day, "2y15d"),
            (8 * 365 * day, "8y"),
        ] {
            assert_eq!(human_duration(seconds), wanted, "{seconds}");
        }
    }

    #[test]
    fn an_absent_time_is_unknown() {
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        assert_eq!(age(None, now), "<unknown>");
        assert_eq!(age(Some("2026-01-01T00:00:00Z"), now), "10s");
    }
}
