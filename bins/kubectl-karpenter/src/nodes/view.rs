//! The view as lines of styled text, for a screen and for a pipe.

use std::collections::BTreeMap;

use console::{measure_text_width, truncate_str};

use super::select::{Resource, share, value};
use super::state::{Node, State};
use crate::output::{age, grouped};

/// The hours of a month, as eks-node-viewer counts.
const HOURS_OF_MONTH: f64 = 365.0 * 24.0 / 12.0;
/// The widest bar of a node.
const MAX_BAR: usize = 17;
/// The width of the bar over all nodes, and the width of a terminal that has room for it.
const TOTAL_BAR: usize = 20;
const WIDE_TERMINAL: usize = 100;
/// The least width of the column with the reason, before other columns are left out.
const MIN_REASON: usize = 14;
/// The width of the reason for which bars are shortened.
const SHORT_REASON: usize = 40;
/// A bar where there is less room.
const SHORT_BAR: usize = 8;
/// The width of names for which no column is left out.
const FULL_NAME: usize = 24;
/// The least width of names.
const MIN_NAME: usize = 12;

/// How a text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Dim,
    Good,
    Ok,
    Bad,
    Selected,
}

/// A line: texts one after the other.
pub(super) type Line = Vec<(String, Look)>;

#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) resources: Vec<Resource>,
    pub(super) prices: bool,
    pub(super) extra_labels: Vec<String>,
    pub(super) by_pool: bool,
    pub(super) headers: bool,
}

impl Shown {
    fn resource_columns(&self) -> impl Iterator<Item = Column> {
        let names = self.resources.iter().map(|it| it.name().to_uppercase());
        names.map(|name| column(&name, 0))
    }
}

/// Returns the look of a share of a resource: eks-node-viewer's limits, of which a full node is good.
fn look(share: f64) -> Look {
    if share > 0.9 {
        Look::Good
    } else if share > 0.6 {
        Look::Ok
    } else {
        Look::Bad
    }
}

fn bar(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    let full = full.min(width);
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

fn amount(resource: Resource, number: i64) -> String {
    match resource {
        Resource::Cpu => grouped((number as f64 / 1000.0).round() as i64),
        Resource::Memory => format!("{}Gi", grouped((number as f64 / 1024.0).round() as i64)),
        Resource::Pods => grouped(number),
    }
}

/// Returns the lines above the table.
pub(super) fn summary(
    state: &State,
    nodes: &[&Node],
    shown: &Shown,
    width: Option<usize>,
) -> Vec<Line> {
    let mut lines = Vec::new();
    let sum = match width {
        Some(width) if width < WIDE_TERMINAL => SHORT_BAR,
        _ => TOTAL_BAR,
    };
    for (at, resource) in shown.resources.iter().enumerate() {
        let (used, all) = resource.of_all(nodes);
        let share = share(used, all).unwrap_or_default();
        let mut line = Vec::new();
        let count = match at {
            0 => format!("{} nodes  ", grouped(nodes.len())),
            _ => "  ".to_owned(),
        };
        let (used, all) = (amount(*resource, used), amount(*resource, all));
        line.push((
            format!("{count}({used}/{all} {})  ", resource.name()),
            Look::Plain,
        ));
        line.push((format!("{:.1}% ", share * 100.0), look(share)));
        line.push((bar(share, sum), look(share)));
        if at == 0 && shown.prices && state.missing.is_none() {
            let price: i64 = nodes.iter().map(|node| node.price).sum();
            let price = price as f64 / 1e6;
            let month = grouped((price * HOURS_OF_MONTH).round() as i64);
            line.push((format!("  ${price:.3}/hour | ${month}/month"), Look::Plain));
        }
        lines.push(line);
    }
    let totals = &state.totals;
    let mut text = format!("{} pods", grouped(totals.pods));
    if totals.pending > 0 {
        let reasons: Vec<String> = state
            .pending
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        let reasons = match reasons.is_empty() {
            true => String::new(),
            false => format!(": {}", reasons.join(", ")),
        };
        text.push_str(&format!(" ({} pending{reasons})", totals.pending));
    }
    let flights: Vec<String> = [
        (totals.launching, "launching"),
        (totals.starting, "starting"),
        (totals.disrupting, "disrupting"),
        (totals.terminating, "terminating"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    let flights = match flights.is_empty() {
        true => String::new(),
        false => format!("in flight: {}", flights.join(", ")),
    };
    let both = measure_text_width(&text) + 2 + measure_text_width(&flights);
    if flights.is_empty() || width.is_some_and(|width| both > width) {
        lines.push(vec![(text, Look::Plain)]);
        lines.extend((!flights.is_empty()).then(|| vec![(flights, Look::Plain)]));
    } else {
        lines.push(vec![(format!("{text}  {flights}"), Look::Plain)]);
    }
    if let Some(missing) = &state.missing {
        lines.push(vec![(missing.clone(), Look::Dim)]);
    }
    lines
}

/// A table to be laid out.
struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

struct Column {
    header: String,
    /// Columns with higher numbers are left out first; 0 never.
    rank: u8,
}

/// A text, or a share that is drawn as a bar.
enum Cell {
    Text(String),
    Share(Option<f64>),
}

/// Returns the table: a header, and a line for each node or NodePool.
pub(super) fn table(
    state: &State,
    nodes: &[&Node],
    shown: &Shown,
    width: Option<usize>,
) -> Vec<Line> {
    let grid = if shown.by_pool {
        by_pool(nodes, shown, state.missing.is_none())
    } else {
        by_node(state, nodes, shown)
    };
    lay_out(grid, shown.headers, width)
}

fn column(header: &str, rank: u8) -> Column {
    Column {
        header: header.to_owned(),
        rank,
    }
}

fn by_node(state: &State, nodes: &[&Node], shown: &Shown) -> Grid {
    let prices = shown.prices && state.missing.is_none();
    let mut columns = vec![column("NAME", 0)];
    columns.extend(shown.resource_columns());
    columns.extend([column("PODS", 3), column("TYPE", 2)]);
    if prices {
        columns.push(column("$/H", 1));
    }
    columns.extend([column("CAP", 5), column("STATE", 0), column("AGE", 4)]);
    columns.extend(shown.extra_labels.iter().map(|label| column(label, 0)));
    if state.missing.is_none() {
        columns.push(column("WHY KEPT", 0));
    }
    let rows = nodes.iter().map(|node| {
        let mut row = vec![Cell::Text(node.name().to_owned())];
        row.extend(shown.resources.iter().map(|it| Cell::Share(it.share(node))));
        let pods = match node.pods_allocatable {
            0 => node.pods.to_string(),
            all => format!("{}/{all}", node.pods),
        };
        row.extend([Cell::Text(pods), Cell::Text(node.instance_type.clone())]);
        if prices {
            row.push(Cell::Text(match node.price {
                0 => String::new(),
                price => format!("{:.4}", price as f64 / 1e6),
            }));
        }
        row.extend([
            Cell::Text(node.capacity_type.clone()),
            Cell::Text(node.state.clone()),
            Cell::Text(match node.created {
                0 => String::new(),
                created => age((state.at - created).max(0)),
            }),
        ]);
        row.extend(
            shown
                .extra_labels
                .iter()
                .map(|label| Cell::Text(value(node, label))),
        );
        if state.missing.is_none() {
            let why = match node.text.is_empty() {
                true => node.reason.clone(),
                false => node.text.clone(),
            };
            row.push(Cell::Text(why));
        }
        row
    });
    let rows = rows.collect();
    Grid { columns, rows }
}

fn by_pool(nodes: &[&Node], shown: &Shown, known: bool) -> Grid {
    let mut pools: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in nodes {
        pools.entry(&node.node_pool).or_default().push(node);
    }
    let prices = shown.prices && known;
    let mut columns = vec![column("NODEPOOL", 0), column("NODES", 0)];
    columns.extend(shown.resource_columns());
    let pods = !shown.resources.contains(&Resource::Pods);
    columns.extend(pods.then(|| column("PODS", 2)));
    if prices {
        columns.push(column("$/H", 1));
    }
    if known {
        columns.push(column("WHY KEPT", 0));
    }
    let rows = pools.into_iter().map(|(pool, nodes)| {
        let mut row = vec![
            Cell::Text(pool.to_owned()),
            Cell::Text(nodes.len().to_string()),
        ];
        row.extend(shown.resources.iter().map(|resource| {
            let (used, all) = resource.of_all(&nodes);
            Cell::Share(share(used, all))
        }));
        let sum: i64 = nodes.iter().map(|node| node.pods).sum();
        row.extend(pods.then(|| Cell::Text(sum.to_string())));
        if prices {
            let price: i64 = nodes.iter().map(|node| node.price).sum();
            row.push(Cell::Text(format!("{:.4}", price as f64 / 1e6)));
        }
        if known {
            let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
            for node in nodes.iter().filter(|node| !node.reason.is_empty()) {
                *reasons.entry(&node.reason).or_default() += 1;
            }
            let mut reasons: Vec<(&str, usize)> = reasons.into_iter().collect();
            reasons.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
            let reasons: Vec<String> = reasons
                .iter()
                .map(|(reason, count)| format!("{count} {reason}"))
                .collect();
            row.push(Cell::Text(reasons.join(", ")));
        }
        row
    });
    let rows = rows.collect();
    Grid { columns, rows }
}

/// The width of each column, and of bars.
struct Fit {
    /// `None` for a column that is left out.
    widths: Vec<Option<usize>>,
    bar: usize,
}

/// The width of a percentage behind a bar.
const PERCENT_WIDTH: usize = 5;

fn fit(grid: &Grid, width: Option<usize>) -> Fit {
    let natural = |at: usize, bar: usize| {
        let cells = grid.rows.iter().filter_map(|row| row.get(at));
        let header = grid
            .columns
            .get(at)
            .map_or(0, |it| measure_text_width(&it.header));
        cells
            .map(|cell| match cell {
                Cell::Text(text) => measure_text_width(text).max(1),
                Cell::Share(_) => bar + PERCENT_WIDTH,
            })
            .chain([header])
            .max()
            .unwrap_or(0)
    };
    let columns = grid.columns.len();
    let all = |bar| Fit {
        widths: (0..columns).map(|at| Some(natural(at, bar))).collect(),
        bar,
    };
    let Some(width) = width else {
        return all(MAX_BAR);
    };
    let sum = |fit: &Fit| {
        let used = fit.widths.iter().flatten();
        used.map(|width| width + 2).sum::<usize>().saturating_sub(2)
    };
    // The last column takes what is left, and is cut to it. It must not get too little.
    let why = grid
        .columns
        .last()
        .is_some_and(|it| it.header == "WHY KEPT");
    let shrink_last = |fit: &mut Fit, least: usize| {
        let over = sum(fit).saturating_sub(width);
        if let Some(Some(last)) = fit.widths.last_mut().filter(|_| why) {
            *last -= over.min(last.saturating_sub(least));
        }
        sum(fit) <= width
    };
    let attempt = |bar: usize, name: usize| {
        let mut fit = all(bar);
        if let Some(Some(first)) = fit.widths.first_mut() {
            *first = (*first).min(name);
        }
        fit
    };
    for (bar, name, least) in [
        (MAX_BAR, usize::MAX, SHORT_REASON),
        (SHORT_BAR, usize::MAX, SHORT_REASON),
        (SHORT_BAR, FULL_NAME, SHORT_REASON),
        (0, FULL_NAME, MIN_REASON),
    ] {
        let mut fit = attempt(bar, name);
        if shrink_last(&mut fit, least) {
            return fit;
        }
    }
    let mut left_out: Vec<u8> = grid
        .columns
        .iter()
        .map(|it| it.rank)
        .filter(|rank| *rank > 0)
        .collect();
    left_out.sort_unstable_by(|a, b| b.cmp(a));
    let mut fit = attempt(0, FULL_NAME);
    for rank in left_out {
        for (at, column) in grid.columns.iter().enumerate() {
            if column.rank >= rank
                && let Some(width) = fit.widths.get_mut(at)
            {
                *width = None;
            }
        }
        if shrink_last(&mut fit, MIN_REASON) {
            return fit;
        }
    }
    let over = sum(&fit).saturating_sub(width);
    if let Some(Some(name)) = fit.widths.first_mut() {
        *name -= over.min(name.saturating_sub(MIN_NAME));
    }
    fit
}

fn lay_out(grid: Grid, headers: bool, width: Option<usize>) -> Vec<Line> {
    let fit = fit(&grid, width);
    let mut lines = Vec::new();
    if headers {
        let texts = grid.columns.iter().map(|it| it.header.as_str());
        let cells = texts.map(|text| vec![(text.to_owned(), Look::Dim)]);
        lines.push(line(cells.collect(), &fit, width));
    }
    for row in &grid.rows {
        let cells = row.iter().map(|cell| match cell {
            Cell::Text(text) if text.is_empty() => vec![("-".to_owned(), Look::Plain)],
            Cell::Text(text) => vec![(text.clone(), Look::Plain)],
            Cell::Share(None) => vec![("-".to_owned(), Look::Plain)],
            Cell::Share(Some(share)) => {
                let percent = format!("{:>4.0}%", share * 100.0);
                vec![(bar(*share, fit.bar), look(*share)), (percent, Look::Plain)]
            }
        });
        lines.push(line(cells.collect(), &fit, width));
    }
    lines
}

/// Returns cells beside each other, with two spaces between columns.
fn line(cells: Vec<Line>, fit: &Fit, width: Option<usize>) -> Line {
    let mut line: Line = Vec::new();
    let mut used = 0;
    let mut gap = 0;
    for (cell, column) in cells.into_iter().zip(&fit.widths) {
        let Some(column) = *column else { continue };
        if gap > 0 {
            line.push((" ".repeat(gap), Look::Plain));
            used += gap;
        }
        let mut room = column;
        if let Some(width) = width {
            room = room.min(width.saturating_sub(used));
        }
        let mut wide = 0;
        for (text, look) in cell {
            let text = clipped(&text, room.saturating_sub(wide));
            wide += measure_text_width(&text);
            line.push((text, look));
        }
        used += wide;
        gap = column.saturating_sub(wide) + 2;
    }
    line
}

/// Cuts a text to a width.
fn clipped(text: &str, room: usize) -> String {
    if room == 0 {
        return String::new();
    }
    truncate_str(text, room, "…").into_owned()
}

/// Cuts a line to the width of the screen.
pub(super) fn cut(line: Line, width: Option<usize>) -> Line {
    let Some(width) = width else { return line };
    let mut room = width;
    let mut cut = Vec::new();
    for (text, look) in line {
        let text = clipped(&text, room);
        room -= measure_text_width(&text).min(room);
        cut.push((text, look));
    }
    cut
}
