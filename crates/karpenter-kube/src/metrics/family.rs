//! One metric: its kind, its series by label values, and their text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parking_lot::Mutex;

/// Description of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The type in Prometheus text format: `counter`, `gauge`, `histogram` or `summary`.
    pub kind: &'static str,
    /// The labels of its series.
    pub labels: Vec<String>,
    /// The text of its `# HELP` line.
    pub help: String,
}

impl Description {
    pub(super) fn new(kind: &'static str, labels: &[&str], help: &str) -> Self {
        Self {
            kind,
            labels: labels.iter().map(|l| (*l).to_owned()).collect(),
            help: help.to_owned(),
        }
    }

    /// Writes the lines before the series.
    pub(super) fn begin(&self, out: &mut String, name: &str) {
        let help = self.help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(out, "# HELP {name} {help}");
        let _ = writeln!(out, "# TYPE {name} {}", self.kind);
    }

    /// Writes the value of a series. `name` consists of the metric's name and a suffix.
    pub(super) fn line<V: AsRef<str>>(
        &self,
        out: &mut String,
        name: [&str; 2],
        values: &[V],
        extra: Option<(&str, &str)>,
        value: f64,
    ) {
        out.extend(name);
        let labels = self.labels.iter().map(String::as_str);
        let pairs = labels.zip(values.iter().map(AsRef::as_ref));
        let mut any = false;
        for (label, value) in pairs.chain(extra) {
            out.push(if any { ',' } else { '{' });
            any = true;
            let _ = write!(out, "{label}=\"");
            escape(out, value);
            out.push('"');
        }
        if any {
            out.push('}');
        }
        let _ = writeln!(out, " {}", number(value));
    }
}

/// A metric and its series.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) description: Description,
    pub(super) kind: Kind,
    pub(super) series: Mutex<BTreeMap<Vec<String>, Series>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram(Vec<f64>),
    Summary(Vec<f64>),
}

impl Kind {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
            Self::Summary(_) => "summary",
        }
    }
}

#[derive(Debug)]
pub(super) enum Series {
    Number(f64),
    Histogram {
        counts: Vec<u64>,
        sum: f64,
        count: u64,
    },
    Summary {
        window: Window,
        sum: f64,
        count: u64,
    },
}

/// The latest observations of a summary: enough for stable quantiles, with bounded memory.
#[derive(Debug, Default)]
pub(super) struct Window {
    values: Vec<f64>,
    next: usize,
}

impl Window {
    const CAPACITY: usize = 1024;

    fn push(&mut self, value: f64) {
        if self.values.len() < Self::CAPACITY {
            self.values.push(value);
        } else {
            self.values[self.next] = value;
            self.next = (self.next + 1) % Self::CAPACITY;
        }
    }

    fn quantile(&self, sorted: &[f64], q: f64) -> f64 {
        let last = sorted.len().saturating_sub(1);
        sorted
            .get((q * last as f64).round() as usize)
            .copied()
            .unwrap_or(f64::NAN)
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl Family {
    pub(super) fn with<R>(&self, values: &[&str], update: impl FnOnce(&mut Series) -> R) -> R {
        debug_assert_eq!(
            values.len(),
            self.description.labels.len(),
            "label values of {}",
            self.name
        );
        let key: Vec<String> = values.iter().map(|v| (*v).to_owned()).collect();
        let mut series = self.series.lock();
        update(series.entry(key).or_insert_with(|| self.empty()))
    }

    fn empty(&self) -> Series {
        match &self.kind {
            Kind::Counter | Kind::Gauge => Series::Number(0.0),
            Kind::Histogram(buckets) => Series::Histogram {
                counts: vec![0; buckets.len()],
                sum: 0.0,
                count: 0,
            },
            Kind::Summary(_) => Series::Summary {
                window: Window::default(),
                sum: 0.0,
                count: 0,
            },
        }
    }

    pub(super) fn number(&self, values: &[&str]) -> f64 {
        let key: Vec<String> = values.iter().map(|v| (*v).to_owned()).collect();
        match self.series.lock().get(&key) {
            Some(Series::Number(n)) => *n,
            Some(Series::Histogram { count, .. } | Series::Summary { count, .. }) => *count as f64,
            None => 0.0,
        }
    }

    pub(super) fn observe(&self, values: &[&str], value: f64) {
        self.with(values, |series| match series {
            Series::Number(n) => *n += value,
            Series::Histogram { counts, sum, count } => {
                if let Kind::Histogram(bounds) = &self.kind {
                    for (bound, n) in bounds.iter().zip(counts) {
                        if value <= *bound {
                            *n += 1;
                        }
                    }
                }
                *sum += value;
                *count += 1;
            }
            Series::Summary { window, sum, count } => {
                window.push(value);
                *sum += value;
                *count += 1;
            }
        });
    }

    pub(super) fn remove_matching(&self, matching: &[(&str, &str)]) {
        let positions: Option<Vec<_>> = matching
            .iter()
            .map(|(label, value)| {
                let mut labels = self.description.labels.iter();
                labels.position(|l| l == label).map(|at| (at, *value))
            })
            .collect();
        // A label that the metric does not have matches nothing.
        if let Some(positions) = positions {
            self.series
                .lock()
                .retain(|key, _| !positions.iter().all(|(at, value)| key[*at] == *value));
        }
    }

    pub(super) fn render(&self, out: &mut String) {
        let series = self.series.lock();
        if series.is_empty() {
            return;
        }
        self.description.begin(out, &self.name);
        let mut line = |suffix, values: &[String], extra: Option<(&str, &str)>, value| {
            let name = [self.name.as_str(), suffix];
            self.description.line(out, name, values, extra, value);
        };
        for (values, series) in series.iter() {
            match series {
                Series::Number(n) => line("", values, None, *n),
                Series::Histogram { counts, sum, count } => {
                    if let Kind::Histogram(bounds) = &self.kind {
                        for (bound, n) in bounds.iter().zip(counts) {
                            line("_bucket", values, Some(("le", &number(*bound))), *n as f64);
                        }
                    }
                    line("_bucket", values, Some(("le", "+Inf")), *count as f64);
                    line("_sum", values, None, *sum);
                    line("_count", values, None, *count as f64);
                }
                Series::Summary { window, sum, count } => {
                    if let Kind::Summary(quantiles) = &self.kind {
                        let sorted = window.sorted();
                        for q in quantiles {
                            line(
                                "",
                                values,
                                Some(("quantile", &number(*q))),
                                window.quantile(&sorted, *q),
                            );
                        }
                    }
                    line("_sum", values, None, *sum);
                    line("_count", values, None, *count as f64);
                }
            }
        }
    }
}

/// Writes an escaped label value.
fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 {
            "+Inf".into()
        } else {
            "-Inf".into()
        }
    } else {
        format!("{value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_keeps_bounded_memory() {
        let mut window = Window::default();
        for i in 0..5000 {
            window.push(f64::from(i));
        }
        assert_eq!(window.values.len(), Window::CAPACITY);
        assert!(window.sorted()[0] >= 3900.0);
    }
}
