//! The ids of the objects of a pass: indices with a type each, so that a node cannot be taken for a planned node.

use index_vec::Idx;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) struct $name(pub(crate) u32);

        impl Idx for $name {
            #[inline]
            fn from_usize(index: usize) -> Self {
                Self(index as u32)
            }

            #[inline]
            fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A catalogue of instance types.
    CatalogueId
    /// A row of a catalogue: an instance type with one pair of capacity and overhead overrides.
    RowId
    /// The offerings of a catalogue that have the same requirements.
    OfferingKindId
    /// A capacity reservation.
    ReservationId
    /// A NodePool, compiled.
    TemplateId
    /// An existing node.
    NodeIdx
    /// A pod of the pass.
    PodIdx
    /// A class of pods.
    ClassId
    /// A label whose values are domains.
    AxisId
    /// A value of such a label.
    DomainId
    /// A topology constraint that several pods share.
    GroupId
    /// A planned node.
    PlannedId
}

/// An existing node, or a planned node of this pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Node(NodeIdx),
    Planned(PlannedId),
}

/// The row of a planned node before a pod is placed on it.
pub(crate) const NO_ROW: RowId = RowId(u32::MAX);
