//! Gauges that are rendered from state at each scrape.
//!
//! Series per pod or per node and resource are many; storing them would use more memory than the state they are derived
//! from. A live gauge stores nothing: series of deleted objects are missing in the next scrape. Counters that other
//! libraries maintain are rendered in the same way.

use super::family::Description;

/// Emits the series of a live gauge.
pub type Collect = Box<dyn Fn(&mut Emit<'_>) + Send + Sync>;

/// A gauge without stored series.
pub(super) struct Live {
    pub(super) name: String,
    pub(super) description: Description,
    pub(super) collect: Collect,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live")
            .field("name", &self.name)
            .field("description", &self.description)
            .finish_non_exhaustive()
    }
}

impl Live {
    pub(super) fn render(&self, out: &mut String) {
        let mut emit = Emit {
            live: self,
            out,
            began: false,
        };
        (self.collect)(&mut emit);
    }
}

/// Receives the series of a live gauge, one by one.
#[derive(Debug)]
pub struct Emit<'a> {
    live: &'a Live,
    out: &'a mut String,
    began: bool,
}

impl Emit<'_> {
    /// Emits the value of the series with these label values. Each series may be emitted once.
    pub fn set(&mut self, values: &[&str], value: f64) {
        let Live {
            name, description, ..
        } = self.live;
        debug_assert_eq!(
            values.len(),
            description.labels.len(),
            "label values of {name}"
        );
        if !self.began {
            self.began = true;
            description.begin(self.out, name);
        }
        description.line(self.out, [name, ""], values, None, value);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Registry;

    #[test]
    fn a_live_gauge_renders_the_state_at_the_scrape() {
        let registry = Registry::new();
        registry.live("karpenter_things", "Things.", &["name"], |emit| {
            emit.set(&["a\"b"], 1.5);
            emit.set(&["c"], 2.0);
        });
        registry.live("karpenter_nothing", "Nothing.", &[], |_| {});
        let expected = "\
# HELP karpenter_things Things.
# TYPE karpenter_things gauge
karpenter_things{name=\"a\\\"b\"} 1.5
karpenter_things{name=\"c\"} 2
";
        assert_eq!(registry.render(), expected);
    }
}
