//! Curves as inline SVG: steps over time, with and without the change.

use std::fmt::Write as _;

use karpenter_decisions::rehearse::plan::Sample;

use super::text::duration;

const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 26.0;

/// One chart: what of a sample it shows, and how values are written.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) seconds: i64,
    pub(super) value: fn(&Sample) -> f64,
    pub(super) shown: fn(f64) -> String,
    /// Whether values are counts, so that each line of the grid is a whole number.
    pub(super) whole: bool,
    pub(super) changed: &'a [Sample],
    pub(super) unchanged: Option<&'a [Sample]>,
}

/// Returns a round number that is not below `value`, for the top of an axis.
fn ceiling(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    let fits = steps.into_iter().find(|step| step * power >= value);
    fits.unwrap_or(10.0) * power
}

impl Chart<'_> {
    fn x(&self, after: i64) -> f64 {
        let length = self.seconds.max(1) as f64;
        LEFT + (WIDTH - LEFT - RIGHT) * (after as f64 / length).clamp(0.0, 1.0)
    }

    /// Returns the path of a curve, which holds each value until the next.
    fn path(&self, samples: &[Sample], top: f64) -> String {
        let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top;
        let mut path = String::new();
        for (index, sample) in samples.iter().enumerate() {
            let (x, y) = (self.x(sample.after), y((self.value)(sample)));
            let _ = match index {
                0 => write!(path, "M{LEFT:.1} {y:.1}"),
                _ => write!(path, "H{x:.1}V{y:.1}"),
            };
        }
        let _ = write!(path, "H{:.1}", WIDTH - RIGHT);
        path
    }

    /// Renders the chart.
    pub(super) fn render(&self) -> String {
        let all = self
            .changed
            .iter()
            .chain(self.unchanged.unwrap_or_default());
        let top = ceiling(all.map(self.value).fold(0.0, f64::max));
        let top = if self.whole {
            (top / 4.0).ceil() * 4.0
        } else {
            top
        };
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            self.title
        );
        for part in 0..=4 {
            let share = f64::from(part) / 4.0;
            let y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share;
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                (self.shown)(top * share)
            );
        }
        for part in 0..=4 {
            let after = self.seconds * part / 4;
            let (x, anchor) = match part {
                0 => (LEFT, "start"),
                4 => (WIDTH - RIGHT, "end"),
                _ => (self.x(after), "middle"),
            };
            let _ = write!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">+{}</text>",
                HEIGHT - 6.0,
                duration(after)
            );
        }
        if let Some(unchanged) = self.unchanged {
            let path = self.path(unchanged, top);
            let _ = write!(svg, "<path class=\"unchanged\" d=\"{path}\"/>");
        }
        let path = self.path(self.changed, top);
        let _ = write!(svg, "<path class=\"changed\" d=\"{path}\"/></svg>");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_of_an_axis_is_a_round_number_above_every_value() {
        for (value, top) in [
            (0.0, 1.0),
            (0.3, 0.3),
            (7.1, 8.0),
            (214.0, 250.0),
            (1000.0, 1000.0),
        ] {
            let found = ceiling(value);
            assert!(
                (found - top).abs() < 1e-9 && found >= value,
                "{value}: {found}"
            );
        }
    }

    #[test]
    fn a_curve_holds_each_value_until_the_next_and_ends_at_the_right() {
        let sample = |after, nodes| Sample {
            after,
            nodes,
            ..Sample::default()
        };
        let samples = [sample(0, 4), sample(50, 2)];
        let chart = Chart {
            title: "nodes",
            seconds: 100,
            value: |sample| sample.nodes as f64,
            shown: |value| value.to_string(),
            whole: true,
            changed: &samples,
            unchanged: None,
        };
        assert_eq!(chart.path(&samples, 4.0), "M64.0 12.0H464.0V93.0H864.0");
    }
}
