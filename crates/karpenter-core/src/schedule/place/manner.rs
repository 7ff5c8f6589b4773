//! How pods are placed where the constraints leave a choice: what the steps of the search vary.

/// How pods are placed where the constraints leave a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Manner {
    /// Joins the planned node whose price rises least, or opens one if that costs less; else joins the first with room.
    pub(crate) cheapest: bool,
    pub(crate) domains: DomainOrder,
}

/// The order of domains that a topology constraint ranks equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum DomainOrder {
    /// The cheapest for the pod first. It may be expensive for the pods after it.
    #[default]
    Price,
    /// By name, and the other choices of upstream: see [`Manner::is_upstreams`].
    Upstream,
    /// In a pseudo-random order: a different one for each number.
    Shuffled(u64),
}

impl Manner {
    /// Reports whether it decides as upstream where the rules leave a choice: domains by name, required anti-affinity leaves a planned
    /// node all its domains, and once a preference is dropped only the last alternative of the node affinity is tried. A plan that is
    /// made like upstream's is a bound for what the others leave out.
    pub(crate) fn is_upstreams(&self) -> bool {
        self.domains == DomainOrder::Upstream
    }
}
