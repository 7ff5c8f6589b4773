//! What a scheduling pass may choose freely.

/// Plans for more pods are made with one strategy.
pub(crate) const MOST_PODS: usize = 1_500;

/// The order in which pods are placed. Buffers' pods come last in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Order {
    /// By cpu request, then memory, descending: upstream's order.
    #[default]
    Size,
    /// By memory request, then cpu, descending.
    Memory,
    /// Pods with the same node requirements one after the other.
    Alike,
}

/// The choices that constraints leave open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Strategy {
    pub(crate) order: Order,
    /// Joins the planned node whose price rises least, or opens one if that costs less; else joins the first with room.
    pub(crate) least_increase: bool,
    /// Among domains that a topology constraint ranks equal, takes the first by name, as upstream does, else the cheapest for the
    /// pod: the cheapest domain for the first pod may be expensive for the pods after it.
    pub(crate) domains_by_name: bool,
    /// Repacks wasteful nodes thoroughly. Done once, for the best strategy: the savings differ little between strategies, and the
    /// search takes most of the time.
    pub(crate) thorough: bool,
}

impl Strategy {
    pub(crate) const fn new(order: Order) -> Self {
        Self {
            order,
            least_increase: false,
            domains_by_name: false,
            thorough: false,
        }
    }

    pub(crate) const fn least_increase(order: Order) -> Self {
        Self {
            least_increase: true,
            ..Self::new(order)
        }
    }
}
