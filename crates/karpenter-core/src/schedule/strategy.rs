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
    /// Class by class, in a pseudo-random order: a different one for each number.
    Shuffled(u32),
    /// The same, shape by shape: pods with volumes have a class each, and those of a workload stay together.
    ShuffledShapes(u32),
}

/// The order of domains that a topology constraint ranks equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum DomainOrder {
    /// The cheapest for the pod first. It may be expensive for the pods after it.
    #[default]
    Price,
    /// By name.
    Name,
    /// By name, and the other choices of upstream; see [`Strategy::is_upstreams`].
    Upstream,
    /// In a pseudo-random order: a different one for each number.
    Shuffled(u32),
}

/// The choices that constraints leave open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Strategy {
    pub(crate) order: Order,
    pub(crate) domains: DomainOrder,
    /// Joins the planned node whose price rises least, or opens one if that costs less; else joins the first with room.
    pub(crate) least_increase: bool,
    /// Repacks wasteful nodes thoroughly. Done once, for the best strategy: the savings differ little between strategies, and the
    /// search takes most of the time.
    pub(crate) thorough: bool,
}

impl Strategy {
    pub(crate) const fn new(order: Order) -> Self {
        Self {
            order,
            domains: DomainOrder::Price,
            least_increase: false,
            thorough: false,
        }
    }

    pub(crate) const fn least_increase(order: Order) -> Self {
        Self {
            least_increase: true,
            ..Self::new(order)
        }
    }

    /// Returns the strategy that takes domains by name, but fixes them as kube-scheduler needs.
    pub(crate) const fn by_name(order: Order) -> Self {
        Self {
            domains: DomainOrder::Name,
            ..Self::new(order)
        }
    }

    /// Reports whether it is first fit by size, with domains by price or by name.
    pub(crate) fn is_first_fit(&self) -> bool {
        let is_shuffled = matches!(self.domains, DomainOrder::Shuffled(_));
        self.order == Order::Size && !self.least_increase && !is_shuffled
    }

    /// Reports whether it decides as upstream where the rules leave a choice: domains by name, required anti-affinity leaves a planned
    /// node all its domains, and once a preference is dropped only the last alternative of the node affinity is tried. A plan that is
    /// made like upstream's is a bound for the price of the others.
    pub(crate) fn is_upstreams(&self) -> bool {
        self.domains == DomainOrder::Upstream
    }

    /// Returns a strategy with a pseudo-random order of classes, and in half of the cases of domains.
    pub(crate) const fn shuffled(number: u32) -> Self {
        Self::pseudo_random(Order::Shuffled(number), number)
    }

    /// Returns a strategy with this order, and in half of the cases a pseudo-random order of domains.
    pub(crate) const fn pseudo_random(order: Order, number: u32) -> Self {
        let domains = if number % 4 < 2 {
            DomainOrder::Price
        } else {
            DomainOrder::Shuffled(number)
        };
        Self {
            domains,
            least_increase: number % 2 == 1,
            ..Self::new(order)
        }
    }
}

/// Returns the rank of an id in the pseudo-random order of a number (splitmix64).
pub(crate) fn shuffled_rank(id: u32, number: u32) -> u64 {
    let seed = u64::from(number).wrapping_mul(GOLDEN_RATIO);
    mixed(seed.wrapping_add(u64::from(id)))
}

/// The step between the states of a pseudo-random sequence (splitmix64).
pub(crate) const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the number that follows from a state of the sequence.
pub(crate) fn mixed(state: u64) -> u64 {
    let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
