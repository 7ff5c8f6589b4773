//! Charts of how a measure grows with the size of a cluster: both axes logarithmic, so that a constant factor per doubling is a
//! straight line.

use std::fmt::Write as _;

use anyhow::bail;

use super::{PAGE, WIDTH, escaped, rows, value};

/// A chart of the columns of one table over the number in its first column.
pub(super) struct Curves {
    pub(super) file: &'static str,
    pub(super) title: &'static str,
    /// What the axes are.
    pub(super) axis: &'static str,
    /// The heading that the table follows.
    pub(super) heading: &'static str,
    /// Each curve: its name and its column.
    pub(super) curves: &'static [(&'static str, usize)],
    /// Writes a value of the vertical axis.
    pub(super) unit: fn(f64) -> String,
}

/// Writes milliseconds.
pub(super) fn seconds(value: f64) -> String {
    if value < 1000.0 {
        format!("{value} ms")
    } else {
        format!("{} s", value / 1000.0)
    }
}

/// The factor per doubling of the dashed line: the target of the project.
const TARGET: f64 = 2.2;

const LEFT: f64 = 70.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 70.0;
const HEIGHT: f64 = 300.0;
/// Space for the numbers of the horizontal axis.
const FOOT: f64 = 34.0;
/// Height of a line of the legend.
const LINE: f64 = 20.0;

type Points = Vec<(f64, f64)>;

/// Returns the points of each curve. The size is the first number of a row; of "12 to 14 s" the larger value counts.
fn points(curves: &Curves, page: &str) -> anyhow::Result<Vec<Points>> {
    let Some(rows) = rows(page, curves.heading) else {
        bail!("cannot find a table under `{}`", curves.heading);
    };
    let point = |row: &[String], column: usize| {
        let size = row[0].split(", ").next().and_then(value)?;
        let cell = row.get(column)?;
        let upper = cell.rsplit(" to ").next().unwrap_or(cell);
        Some((size, value(upper)?)).filter(|(x, y)| *x > 0.0 && *y > 0.0)
    };
    let all: Vec<Points> = curves
        .curves
        .iter()
        .map(|(_, column)| rows.iter().filter_map(|row| point(row, *column)).collect())
        .collect();
    if all.iter().any(|points| points.len() < 2) {
        bail!(
            "a curve of the table under `{}` has no two values",
            curves.heading
        );
    }
    Ok(all)
}

struct Axis {
    from: f64,
    to: f64,
    /// Where its ends are in the picture.
    place: (f64, f64),
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let share = (value / self.from).ln() / (self.to / self.from).ln();
        self.place.0 + share * (self.place.1 - self.place.0)
    }

    /// Returns 1, 2 and 5 times the powers of ten on the axis.
    fn ticks(&self) -> Vec<f64> {
        let first = self.from.log10().floor() as i32;
        let last = self.to.log10().ceil() as i32;
        (first..=last)
            .flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10f64.powi(power)))
            .filter(|tick| (self.from..=self.to).contains(tick))
            .collect()
    }
}

fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<&str> = groups
        .filter_map(|group| std::str::from_utf8(group).ok())
        .collect();
    groups.join(",")
}

pub(super) fn draw(chart: &Curves, page: &str) -> anyhow::Result<String> {
    let all = points(chart, page)?;
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let values = all.iter().flatten().map(of);
        values.fold((f64::INFINITY, 0.0_f64), |(low, high), v| {
            (low.min(v), high.max(v))
        })
    };
    let ((x0, x1), (y0, y1)) = (bounds(|p| p.0), bounds(|p| p.1));
    let x = Axis {
        from: x0,
        to: x1,
        place: (LEFT, WIDTH - RIGHT),
    };
    let y = Axis {
        from: y0 / 1.5,
        to: y1 * 1.5,
        place: (TOP + HEIGHT, TOP),
    };
    let mut body = String::new();
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = writeln!(
            body,
            r#"  <line class="grid" x1="{at:.1}" y1="{TOP}" x2="{at:.1}" y2="{}"/><text class="small middle" x="{at:.1}" y="{}">{}</text>"#,
            TOP + HEIGHT,
            TOP + HEIGHT + 18.0,
            thousands(tick),
        );
    }
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = writeln!(
            body,
            r#"  <line class="grid" x1="{LEFT}" y1="{at:.1}" x2="{}" y2="{at:.1}"/><text class="small end" x="{}" y="{:.1}">{}</text>"#,
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            escaped(&(chart.unit)(tick)),
        );
    }
    // From the first point of the first curve, as far as the picture reaches.
    if let Some((size, first)) = all.first().and_then(|points| points.first()) {
        let slope = TARGET.ln() / 2f64.ln();
        let end = x1.min(size * (y.to / first).powf(1.0 / slope));
        let _ = writeln!(
            body,
            r#"  <line class="target" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            x.at(*size),
            y.at(*first),
            x.at(end),
            y.at(first * (end / size).powf(slope)),
        );
    }
    let mut description = Vec::new();
    for (class, (points, (name, _))) in all.iter().zip(chart.curves).enumerate() {
        let line: Vec<String> = points
            .iter()
            .map(|(size, value)| format!("{:.1},{:.1}", x.at(*size), y.at(*value)))
            .collect();
        let _ = writeln!(
            body,
            r#"  <polyline class="c{class}" points="{}"/>"#,
            line.join(" ")
        );
        for (size, value) in points {
            let _ = writeln!(
                body,
                r#"  <circle class="d{class}" cx="{:.1}" cy="{:.1}" r="4"/>"#,
                x.at(*size),
                y.at(*value)
            );
        }
        let of: Vec<String> = points
            .iter()
            .map(|(size, value)| format!("{} at {}", (chart.unit)(*value), thousands(*size)))
            .collect();
        description.push(format!("{name}: {}", of.join(", ")));
    }
    let mut at = TOP + HEIGHT + FOOT;
    let names = chart.curves.iter().map(|(name, _)| *name);
    for (class, name) in names.enumerate() {
        let _ = writeln!(
            body,
            r#"  <circle class="d{class}" cx="{}" cy="{}" r="5"/><text class="small" x="{}" y="{}">{}</text>"#,
            LEFT + 6.0,
            at + 8.0,
            LEFT + 20.0,
            at + 12.0,
            escaped(name),
        );
        at += LINE;
    }
    let _ = writeln!(
        body,
        r#"  <line class="target" x1="{LEFT}" y1="{}" x2="{}" y2="{}"/><text class="small" x="{}" y="{}">{TARGET} times as much for each doubling</text>"#,
        at + 8.0,
        LEFT + 14.0,
        at + 8.0,
        LEFT + 20.0,
        at + 12.0,
    );
    let height = at + LINE + 6.0;
    Ok(format!(
        r#"<!-- Drawn from {PAGE} by `cargo xtask plots`; do not edit. -->
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="title desc">
  <title id="title">{title}</title>
  <desc id="desc">{description}</desc>
  <style>
    .bg {{ fill: #ffffff; }} text {{ font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }}
    .small {{ font-size: 12px; fill: #57606a; }} .bold {{ font-size: 15px; font-weight: 600; }}
    .middle {{ text-anchor: middle; }} .end {{ text-anchor: end; }}
    .grid {{ stroke: #d1d9e0; stroke-width: 1; }} .target {{ stroke: #8c959f; stroke-width: 1.5; stroke-dasharray: 5 4; }}
    polyline {{ fill: none; stroke-width: 2.5; }}
    .c0 {{ stroke: #2da44e; }} .c1 {{ stroke: #0969da; }} .c2 {{ stroke: #bf8700; }} .c3 {{ stroke: #8c959f; }}
    .d0 {{ fill: #2da44e; }} .d1 {{ fill: #0969da; }} .d2 {{ fill: #bf8700; }} .d3 {{ fill: #8c959f; }}
    @media (prefers-color-scheme: dark) {{
      .bg {{ fill: #0d1117; }} text {{ fill: #e6edf3; }} .small {{ fill: #9198a1; }} .grid {{ stroke: #30363d; }}
    }}
  </style>
  <rect class="bg" width="{WIDTH}" height="{height}" rx="6"/>
  <text class="bold" x="20" y="28">{title}</text>
  <text class="small" x="20" y="48">{axis}</text>
{body}</svg>
"#,
        title = escaped(chart.title),
        axis = escaped(chart.axis),
        description = escaped(&description.join("; ")),
    ))
}
