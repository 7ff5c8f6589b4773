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
