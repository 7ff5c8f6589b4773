//! Settings of a cluster on AWS.

/// How many times faster than real time passes in tests.
const SPEED: f64 = 12.0;

#[derive(Clone, Copy)]
pub struct WorldOptions {
    /// How many times faster than real time passes.
    pub speed: f64,
    /// Whether there are controllers. Without them objects stay as tests write them, and CustomResourceDefinitions have
    /// no rules.
    pub controllers: bool,
    /// A node class that cannot be parsed and exists before the controllers start.
    pub unreadable: Option<&'static str>,
    /// Whether the feature gate NodeOverlay is on.
    pub node_overlay: bool,
    /// Whether the controllers compete for a lease, as in a cluster.
    pub leader_election: bool,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            speed: SPEED,
            controllers: true,
            unreadable: None,
            node_overlay: false,
            leader_election: false,
        }
    }
}
