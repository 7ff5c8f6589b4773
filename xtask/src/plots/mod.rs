//! `cargo xtask plots`: draws the tables of docs/performance.md as bar charts, `docs/img/perf-*.svg`.
//!
//! The numbers are in the page only: who updates a table runs this command. Colors follow the reader's light or dark theme.
//! A library for charts would draw one look for both themes, and bring more code than these bars.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::files;

const PAGE: &str = "docs/performance.md";

/// A chart of one table.
struct Plot {
    file: &'static str,
    title: &'static str,
    /// What the length of a bar means.
    axis: &'static str,
    /// The heading that the table follows.
    heading: &'static str,
    series: Series,
}

/// Where the bars of a group are in the table.
enum Series {
    /// In columns of one row: name, column.
    Columns(&'static [(&'static str, usize)]),
    /// In successive rows, whose second column is the name; the first row of a group has its label. The number is the column of
    /// the values.
    Rows(usize),
}

const PLOTS: [Plot; 8] = [
    Plot {
        file: "perf-scheduling",
        title: "Time of one scheduling pass",
        axis: "shorter is faster; the targets are of the project",
        heading: "## Scheduling",
        series: Series::Columns(&[("now", 1), ("target", 2)]),
    },
    Plot {
        file: "perf-plans",
        title: "Cost of plans, relative to the cheapest possible",
        axis: "1 is a lower bound that no plan can beat",
        heading: "## Cost of plans",
        series: Series::Columns(&[("first fit", 1), ("engine", 2)]),
    },
    Plot {
        file: "perf-steps",
        title: "Price of a plan after some steps of the search",
        axis: "1 is the price of first fit's plan",
        heading: "### Steps of the search",
        series: Series::Columns(&[("0 steps", 1), ("10 steps", 2), ("end", 3)]),
    },
    Plot {
        file: "perf-burst",
        title: "Time until the last pod of a burst is bound",
        axis: "same cluster, same pods",
        heading: "## Beside Karpenter in Go",
        series: Series::Rows(2),
    },
    Plot {
        file: "perf-processor",
        title: "Processor time of the controller",
        axis: "same cluster, same pods",
        heading: "## Beside Karpenter in Go",
        series: Series::Rows(7),
    },
    Plot {
        file: "perf-memory",
        title: "Peak memory of the controller",
        axis: "same cluster, same pods",
        heading: "## Beside Karpenter in Go",
        series: Series::Rows(8),
    },
    Plot {
        file: "perf-scale",
        title: "Processor time of a pass, from 5,000 to 100,000 nodes",
        axis: "by numbers of nodes and of pods",
        heading: "### From 5,000 to 100,000 nodes",
        series: Series::Columns(&[
            ("all nodes simulated", 1),
            ("10,000 pending pods placed", 3),
        ]),
    },
    Plot {
        file: "perf-pods",
        title: "Processor time of a scheduling pass, from 100 to 20,000 pods",
        axis: "by number of diverse pods",
        heading: "### Upstream's own benchmark",
        series: Series::Columns(&[("Karpenter in Go, v1.14.1", 1), ("here", 2)]),
    },
];

/// A bar: the name of its series, its value in the smallest unit, and the value as the page has it.
#[derive(Debug, Clone, PartialEq)]
struct Bar {
    series: String,
    value: f64,
    text: String,
}

pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let page = files::read(&root.join(PAGE))?;
    let pictures = PLOTS.iter().map(|plot| {
        let picture = draw(plot, &groups(plot, &page)?);
        Ok((format!("docs/img/{}.svg", plot.file), picture))
    });
    let pictures = pictures.collect::<anyhow::Result<Vec<_>>>()?;
    files::generate(root, check, "plots", pictures)
}

/// Returns the labels of a chart with the bars of each.
fn groups(plot: &Plot, page: &str) -> anyhow::Result<Vec<(String, Vec<Bar>)>> {
    let rows = rows(page, plot.heading)
        .with_context(|| format!("cannot find a table under `{}`", plot.heading))?;
    let bar = |series: &str, cell: Option<&String>| {
        // Without the spread of several runs.
        let text = cell?.split(" (").next()?.to_owned();
        Some(Bar {
            series: series.to_owned(),
            value: value(&text)?,
            text,
        })
    };
    let mut groups: Vec<(String, Vec<Bar>)> = Vec::new();
    match plot.series {
        Series::Columns(columns) => {
            for row in rows {
                let bars = columns
                    .iter()
                    .filter_map(|(name, column)| bar(name, row.get(*column)));
                groups.push((label(&row[0]), bars.collect()));
            }
        }
        Series::Rows(column) => {
            for row in rows {
                let name = row.get(1).map(String::as_str).unwrap_or_default();
                if !row[0].is_empty() {
                    groups.push((label(&row[0]), Vec::new()));
                }
                if let Some((_, bars)) = groups.last_mut() {
                    bars.extend(bar(name, row.get(column)));
                }
            }
            // A single bar has nothing to be compared with.
            groups.retain(|(_, bars)| bars.len() > 1);
        }
    }
    if groups.iter().all(|(_, bars)| bars.is_empty()) {
        bail!("the table under `{}` has no values", plot.heading);
    }
    Ok(groups)
}

/// Returns the cells of the first table after a heading, without its head.
fn rows(page: &str, heading: &str) -> Option<Vec<Vec<String>>> {
    let (_, section) = page.split_once(&format!("{heading}\n"))?;
    let lines = section.lines().skip_while(|line| !line.starts_with('|'));
    let table = lines.take_while(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim_matches('|');
        inner
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    let rows: Vec<Vec<String>> = table.skip(2).map(cells).collect();
    (!rows.is_empty()).then_some(rows)
}

fn label(cell: &str) -> String {
    let text = cell.split(" (").next().unwrap_or(cell);
    text.replace('`', "")
}

/// Returns a number in its smallest unit: milliseconds, KiB, or itself.
fn value(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number: f64 = number.replace(',', "").parse().ok()?;
    let factor = match unit {
        "" | "ms" | "KiB" => 1.0,
        "s" => 1000.0,
        "MiB" => 1024.0,
        "GiB" => 1024.0 * 1024.0,
        _ => return None,
    };
    Some(number * factor)
}

const WIDTH: f64 = 700.0;
const LEFT: f64 = 20.0;
const RIGHT: f64 = 90.0;
const BAR: f64 = 16.0;

fn draw(plot: &Plot, groups: &[(String, Vec<Bar>)]) -> String {
    let bars = || groups.iter().flat_map(|(_, bars)| bars);
    let largest = bars().map(|bar| bar.value).fold(0.0, f64::max);
    let mut names: Vec<&str> = Vec::new();
    for bar in bars() {
        if !names.contains(&bar.series.as_str()) {
            names.push(&bar.series);
        }
    }
    let mut body = String::new();
    let mut y = 88.0;
    for (label, bars) in groups {
        let _ = writeln!(
            body,
            r#"  <text x="{LEFT}" y="{}">{}</text>"#,
            y + 12.0,
            escaped(label)
        );
        y += 18.0;
        for bar in bars {
            let class = names
                .iter()
                .position(|name| *name == bar.series)
                .unwrap_or_default();
            let length = (bar.value / largest * (WIDTH - LEFT - RIGHT)).max(1.0);
            let _ = writeln!(
                body,
                r#"  <rect class="s{class}" x="{LEFT}" y="{y}" width="{length:.1}" height="{}"/><text class="small" x="{:.1}" y="{}">{}</text>"#,
                BAR - 3.0,
                LEFT + length + 6.0,
                y + BAR - 5.0,
                escaped(&bar.text),
            );
            y += BAR;
        }
        y += 12.0;
    }
    let mut legend = String::new();
    let mut x = LEFT;
    for (class, name) in names.iter().enumerate() {
        let _ = writeln!(
            legend,
            r#"  <rect class="s{class}" x="{x}" y="60" width="12" height="12"/><text class="small" x="{}" y="71">{}</text>"#,
            x + 18.0,
            escaped(name),
        );
        x += 40.0 + 8.0 * name.len() as f64;
    }
    // On light and on dark ground. This implementation is green wherever it stands.
    let mut colors = [("#8c959f", "#656c76"), ("#2da44e", "#3fb950")];
    if matches!(plot.series, Series::Rows(_)) {
        colors.reverse();
    }
    let description: Vec<String> = groups
        .iter()
        .map(|(label, bars)| {
            let bars: Vec<String> = bars
                .iter()
                .map(|bar| format!("{} {}", bar.series, bar.text))
                .collect();
            format!("{label}: {}", bars.join(", "))
        })
        .collect();
    format!(
        r#"<!-- Drawn from {PAGE} by `cargo xtask plots`; do not edit. -->
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img" aria-labelledby="title desc">
  <title id="title">{title}</title>
  <desc id="desc">{description}</desc>
  <style>
    .bg {{ fill: #ffffff; }} text {{ font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }}
    .small {{ font-size: 12px; fill: #57606a; }} .bold {{ font-size: 15px; font-weight: 600; }}
    .s0 {{ fill: {first}; }} .s1 {{ fill: {second}; }} .s2 {{ fill: #d4a72c; }}
    @media (prefers-color-scheme: dark) {{
      .bg {{ fill: #0d1117; }} text {{ fill: #e6edf3; }} .small {{ fill: #9198a1; }}
      .s0 {{ fill: {first_dark}; }} .s1 {{ fill: {second_dark}; }} .s2 {{ fill: #9e6a03; }}
    }}
  </style>
  <rect class="bg" width="{WIDTH}" height="{y}" rx="6"/>
  <text class="bold" x="20" y="28">{title}</text>
  <text class="small" x="20" y="48">{axis}</text>
{legend}{body}</svg>
"#,
        title = escaped(plot.title),
        axis = escaped(plot.axis),
        description = escaped(&description.join("; ")),
        first = colors[0].0,
        second = colors[1].0,
        first_dark = colors[0].1,
        second_dark = colors[1].1,
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
