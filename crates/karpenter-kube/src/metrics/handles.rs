//! Handles of metrics, by which callers change the series.

use std::sync::Arc;

use super::family::{Family, Series};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name(pub(super) Arc<Family>);

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

macro_rules! observes {
    ($($name:ident)+) => {
        $(impl $name {
            /// Counts one observation.
            pub fn observe(&self, values: &[&str], value: f64) {
                self.0.observe(values, value);
            }

            /// Returns the number of observations of the series.
            #[must_use]
            pub fn count(&self, values: &[&str]) -> f64 {
                self.0.number(values)
            }
        })+
    };
}

observes!(Histogram Summary);
