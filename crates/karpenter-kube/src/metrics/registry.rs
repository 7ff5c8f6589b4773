//! A small metrics registry in Prometheus text format (version 0.0.4).
//!
//! It is not a library because dashboards written for upstream need all of: verbatim names, counters, gauges, histograms
//! *and* summaries, and the removal of every series of a deleted object (`remove_matching`). Series are stored in one map
//! per metric behind a mutex: the controllers update them a few hundred times per second, scrapes read them every fifteen
//! seconds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;

use super::live::{Collect, Emit, Live};

/// All metrics of a process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    families: Arc<Mutex<BTreeMap<String, Arc<Family>>>>,
    collectors: Arc<Mutex<Vec<Collector>>>,
    live: Arc<Mutex<Vec<Live>>>,
}

struct Collector(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Collector")
    }
}

#[derive(Debug)]
struct Family {
    name: String,
    help: String,
    labels: Vec<String>,
    kind: Kind,
    series: Mutex<BTreeMap<Vec<String>, Series>>,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Counter,
    Gauge,
    Histogram(Vec<f64>),
    Summary(Vec<f64>),
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
            Self::Summary(_) => "summary",
        }
    }
}

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

#[derive(Debug)]
enum Series {
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
struct Window {
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

impl Registry {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a counter, or returns the one of this name.
    pub fn counter(&self, name: &str, help: &str, labels: &[&str]) -> Counter {
        Counter(self.family(name, help, labels, Kind::Counter))
    }

    /// Registers a gauge, or returns the one of this name.
    pub fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> Gauge {
        Gauge(self.family(name, help, labels, Kind::Gauge))
    }

    /// Registers a histogram with the upper bounds `buckets`, or returns the one of this name.
    pub fn histogram(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> Histogram {
        Histogram(self.family(name, help, labels, Kind::Histogram(buckets.to_vec())))
    }

    /// Registers a summary of `quantiles`, or returns the one of this name.
    pub fn summary(&self, name: &str, help: &str, labels: &[&str], quantiles: &[f64]) -> Summary {
        Summary(self.family(name, help, labels, Kind::Summary(quantiles.to_vec())))
    }

    /// Runs `collect` before each rendering, for gauges that are derived from state rather than stored.
    pub fn before_render(&self, collect: impl Fn() + Send + Sync + 'static) {
        self.collectors.lock().push(Collector(Box::new(collect)));
    }

    /// Renders a gauge from state at each scrape, without stored series. A later one of the same name replaces it.
    pub fn live(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        collect: impl Fn(&mut Emit<'_>) + Send + Sync + 'static,
    ) {
        self.show(name, help, labels, "gauge", Box::new(collect));
    }

    /// Like [`Registry::live`], for a counter.
    pub fn live_counter(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        collect: impl Fn(&mut Emit<'_>) + Send + Sync + 'static,
    ) {
        self.show(name, help, labels, "counter", Box::new(collect));
    }

    fn show(&self, name: &str, help: &str, labels: &[&str], kind: &'static str, collect: Collect) {
        let mut live = self.live.lock();
        live.retain(|known| known.name != name);
        live.push(Live {
            name: name.to_owned(),
            help: help.to_owned(),
            labels: labels.iter().map(|l| (*l).to_owned()).collect(),
            kind,
            collect,
        });
    }

    fn family(&self, name: &str, help: &str, labels: &[&str], kind: Kind) -> Arc<Family> {
        let mut families = self.families.lock();
        let family = families.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(Family {
                name: name.to_owned(),
                help: help.to_owned(),
                labels: labels.iter().map(|l| (*l).to_owned()).collect(),
                kind,
                series: Mutex::default(),
            })
        });
        Arc::clone(family)
    }

    /// Returns the names of all metrics, including those without series.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.families.lock().keys().cloned().collect();
        names.extend(self.live.lock().iter().map(|live| live.name.clone()));
        names
    }

    /// Returns a description of each metric by its name, including those without series.
    #[must_use]
    pub fn descriptions(&self) -> BTreeMap<String, Description> {
        let kept = self.families.lock();
        let kept = kept.values().map(|family| {
            let description = Description {
                kind: family.kind.name(),
                labels: family.labels.clone(),
                help: family.help.clone(),
            };
            (family.name.clone(), description)
        });
        let mut all: BTreeMap<_, _> = kept.collect();
        let live = self.live.lock();
        all.extend(live.iter().map(|live| {
            let description = Description {
                kind: live.kind,
                labels: live.labels.clone(),
                help: live.help.clone(),
            };
            (live.name.clone(), description)
        }));
        all
    }

    /// Renders every series, sorted by names and label values; live gauges last.
    #[must_use]
    pub fn render(&self) -> String {
        for collector in self.collectors.lock().iter() {
            (collector.0)();
        }
        let families: Vec<_> = self.families.lock().values().cloned().collect();
        let mut out = String::new();
        for family in families {
            family.render(&mut out);
        }
        for live in self.live.lock().iter() {
            live.render(&mut out);
        }
        out
    }
}

impl Family {
    fn with<R>(&self, values: &[&str], update: impl FnOnce(&mut Series) -> R) -> R {
        debug_assert_eq!(
            values.len(),
            self.labels.len(),
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

    fn number(&self, values: &[&str]) -> f64 {
        let key: Vec<String> = values.iter().map(|v| (*v).to_owned()).collect();
        match self.series.lock().get(&key) {
            Some(Series::Number(n)) => *n,
            Some(Series::Histogram { count, .. } | Series::Summary { count, .. }) => *count as f64,
            None => 0.0,
        }
    }

    fn observe(&self, values: &[&str], value: f64) {
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

    fn remove_matching(&self, matching: &[(&str, &str)]) {
        let positions: Option<Vec<_>> = matching
            .iter()
            .map(|(label, value)| {
                self.labels
                    .iter()
                    .position(|l| l == label)
                    .map(|at| (at, *value))
            })
            .collect();
        // A label that the metric does not have matches nothing.
        if let Some(positions) = positions {
            self.series
                .lock()
                .retain(|key, _| !positions.iter().all(|(at, value)| key[*at] == *value));
        }
    }

    fn render(&self, out: &mut String) {
        let series = self.series.lock();
        let kind = self.kind.name();
        if series.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "# HELP {} {}",
            self.name,
            self.help.replace('\\', "\\\\").replace('\n', "\\n")
        );
        let _ = writeln!(out, "# TYPE {} {kind}", self.name);
        for (values, series) in series.iter() {
            match series {
                Series::Number(n) => self.line(out, "", values, None, *n),
                Series::Histogram { counts, sum, count } => {
                    if let Kind::Histogram(bounds) = &self.kind {
                        for (bound, n) in bounds.iter().zip(counts) {
                            self.line(
                                out,
                                "_bucket",
                                values,
                                Some(("le", &number(*bound))),
                                *n as f64,
                            );
                        }
                    }
                    self.line(out, "_bucket", values, Some(("le", "+Inf")), *count as f64);
                    self.line(out, "_sum", values, None, *sum);
                    self.line(out, "_count", values, None, *count as f64);
                }
                Series::Summary { window, sum, count } => {
                    if let Kind::Summary(quantiles) = &self.kind {
                        let sorted = window.sorted();
                        for q in quantiles {
                            self.line(
                                out,
                                "",
                                values,
                                Some(("quantile", &number(*q))),
                                window.quantile(&sorted, *q),
                            );
                        }
                    }
                    self.line(out, "_sum", values, None, *sum);
                    self.line(out, "_count", values, None, *count as f64);
                }
            }
        }
    }

    fn line(
        &self,
        out: &mut String,
        suffix: &str,
        values: &[String],
        extra: Option<(&str, &str)>,
        value: f64,
    ) {
        out.push_str(&self.name);
        out.push_str(suffix);
        let pairs = self
            .labels
            .iter()
            .map(String::as_str)
            .zip(values.iter().map(String::as_str))
            .chain(extra);
        let mut any = false;
        for (label, value) in pairs {
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

/// Writes an escaped label value.
pub(super) fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

pub(super) fn number(value: f64) -> String {
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

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name(Arc<Family>);

        impl $name {
            /// Removes every series that has all of the given label values.
            pub fn remove_matching(&self, matching: &[(&str, &str)]) {
                self.0.remove_matching(matching);
            }
        }
    };
}

handle!(
    /// A value that only grows.
    Counter
);
handle!(
    /// A value that goes up and down.
    Gauge
);
handle!(
    /// Observations counted in buckets.
    Histogram
);
handle!(
    /// Observations as quantiles over the latest 1024.
    Summary
);

impl Counter {
    /// Adds one to the series of these label values.
    pub fn inc(&self, values: &[&str]) {
        self.add(values, 1.0);
    }
    /// Adds `amount`, which is not negative.
    pub fn add(&self, values: &[&str], amount: f64) {
        self.0.observe(values, amount.max(0.0));
    }
    /// Returns the current value; zero if the series does not exist.
    #[must_use]
    pub fn get(&self, values: &[&str]) -> f64 {
        self.0.number(values)
    }
}

impl Gauge {
    /// Sets the series of these label values.
    pub fn set(&self, values: &[&str], value: f64) {
        self.0
            .with(values, |series| *series = Series::Number(value));
    }
    /// Returns the current value; zero if the series does not exist.
    #[must_use]
    pub fn get(&self, values: &[&str]) -> f64 {
        self.0.number(values)
    }
    /// Replaces all series at once, so that those of deleted objects disappear.
    pub fn replace_all(&self, series: impl IntoIterator<Item = (Vec<String>, f64)>) {
        let fresh = series
            .into_iter()
            .map(|(key, value)| (key, Series::Number(value)))
            .collect();
        *self.0.series.lock() = fresh;
    }
}

impl Histogram {
    /// Counts one observation.
    pub fn observe(&self, values: &[&str], value: f64) {
        self.0.observe(values, value);
    }
    /// Returns the number of observations of the series.
    #[must_use]
    pub fn count(&self, values: &[&str]) -> f64 {
        self.0.number(values)
    }
}

impl Summary {
    /// Records one observation.
    pub fn observe(&self, values: &[&str], value: f64) {
        self.0.observe(values, value);
    }
    /// Returns the number of observations of the series.
    #[must_use]
    pub fn count(&self, values: &[&str]) -> f64 {
        self.0.number(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposition_is_prometheus_text() {
        let registry = Registry::new();
        let created = registry.counter("karpenter_created_total", "Created.", &["pool"]);
        created.inc(&["a\"b"]);
        registry
            .gauge("karpenter_nodes", "Nodes.", &[])
            .set(&[], 2.5);
        let wait = registry.histogram("karpenter_wait_seconds", "Wait.", &[], &[0.5, 1.0]);
        wait.observe(&[], 0.7);
        let end = registry.summary("karpenter_end_seconds", "End.", &[], &[0.0, 1.0]);
        end.observe(&[], 3.0);
        end.observe(&[], 1.0);
        let expected = "\
# HELP karpenter_created_total Created.
# TYPE karpenter_created_total counter
karpenter_created_total{pool=\"a\\\"b\"} 1
# HELP karpenter_end_seconds End.
# TYPE karpenter_end_seconds summary
karpenter_end_seconds{quantile=\"0\"} 1
karpenter_end_seconds{quantile=\"1\"} 3
karpenter_end_seconds_sum 4
karpenter_end_seconds_count 2
# HELP karpenter_nodes Nodes.
# TYPE karpenter_nodes gauge
karpenter_nodes 2.5
# HELP karpenter_wait_seconds Wait.
# TYPE karpenter_wait_seconds histogram
karpenter_wait_seconds_bucket{le=\"0.5\"} 0
karpenter_wait_seconds_bucket{le=\"1\"} 1
karpenter_wait_seconds_bucket{le=\"+Inf\"} 1
karpenter_wait_seconds_sum 0.7
karpenter_wait_seconds_count 1
";
        assert_eq!(registry.render(), expected);
    }

    /// Conformance: API-176
    #[test]
    fn series_of_a_deleted_object_are_removed_by_any_of_its_labels() {
        let registry = Registry::new();
        let gauge = registry.gauge("g", "G.", &["node", "resource"]);
        gauge.set(&["a", "cpu"], 1.0);
        gauge.set(&["a", "memory"], 1.0);
        gauge.set(&["b", "cpu"], 1.0);
        gauge.remove_matching(&[("node", "a")]);
        assert_eq!(registry.render().matches("g{").count(), 1);
        gauge.remove_matching(&[("unknown", "b")]);
        assert_eq!(gauge.get(&["b", "cpu"]), 1.0);
    }

    #[test]
    fn one_name_is_one_metric() {
        let registry = Registry::new();
        registry.counter("c", "C.", &[]).inc(&[]);
        registry.counter("c", "C.", &[]).inc(&[]);
        assert_eq!(registry.counter("c", "C.", &[]).get(&[]), 2.0);
    }

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
