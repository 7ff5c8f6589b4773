//! A small metrics registry in Prometheus text format (version 0.0.4).
//!
//! It is not a library because dashboards written for upstream need all of: verbatim names, counters, gauges, histograms
//! *and* summaries, and the removal of every series of a deleted object (`remove_matching`). Series are stored in one map
//! per metric behind a mutex: the controllers update them a few hundred times per second, scrapes read them every fifteen
//! seconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::family::{Description, Family, Kind};
use super::handles::{Counter, Gauge, Histogram, Summary};
use super::live::{Emit, Live};

/// All metrics of a process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    families: Arc<Mutex<BTreeMap<String, Arc<Family>>>>,
    live: Arc<Mutex<Vec<Live>>>,
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

    /// Renders a gauge from state at each scrape, without stored series. A later one of the same name replaces it.
    pub fn live(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        collect: impl Fn(&mut Emit<'_>) + Send + Sync + 'static,
    ) {
        self.show(name, help, labels, "gauge", collect);
    }

    /// Like [`Registry::live`], for a counter.
    pub fn live_counter(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        collect: impl Fn(&mut Emit<'_>) + Send + Sync + 'static,
    ) {
        self.show(name, help, labels, "counter", collect);
    }

    /// Renders a metric of kind `gauge` or `counter` from state at each scrape.
    pub(super) fn show(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        kind: &'static str,
        collect: impl Fn(&mut Emit<'_>) + Send + Sync + 'static,
    ) {
        let mut live = self.live.lock();
        live.retain(|known| known.name != name);
        live.push(Live {
            name: name.to_owned(),
            description: Description::new(kind, labels, help),
            collect: Box::new(collect),
        });
    }

    fn family(&self, name: &str, help: &str, labels: &[&str], kind: Kind) -> Arc<Family> {
        let mut families = self.families.lock();
        let family = families.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(Family {
                name: name.to_owned(),
                description: Description::new(kind.name(), labels, help),
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
        let kept = kept.values().map(|it| (&it.name, &it.description));
        let live = self.live.lock();
        let live = live.iter().map(|it| (&it.name, &it.description));
        kept.chain(live)
            .map(|(name, description)| (name.clone(), description.clone()))
            .collect()
    }

    /// Renders every series, sorted by names and label values; live gauges last.
    #[must_use]
    pub fn render(&self) -> String {
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
}
