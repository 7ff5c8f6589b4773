//! What can befall a machine, what is done about it, and how it is told.
//!
//! UPSTREAM: pkg/controllers/interruption/messages/types.go, events/events.go

use karpenter_kube::events::EventType;

/// What befalls a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// EC2 takes back a spot instance in two minutes.
    SpotInterrupted,
    /// A spot instance is at higher risk.
    RebalanceRecommendation,
    /// EC2 takes back an instance of an interruptible reservation.
    CapacityReservationInterrupted,
    /// The instance stops.
    InstanceStopped,
    /// The instance ends.
    InstanceTerminated,
    /// AWS has planned something for it.
    ScheduledChange,
    /// The instance does not answer.
    InstanceStatus,
    /// The host does not work.
    SystemStatus,
    /// EC2 has planned something for it.
    EventStatus,
    /// Nothing that matters.
    NoOp,
}

/// What is done with the NodeClaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// It is deleted: pods move in order, as far as time allows.
    Drain,
    /// It is deleted, and its deadline is now: nothing answers there any more.
    Force,
}

/// How something is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Telling {
    /// How serious it is.
    pub type_: EventType,
    /// The reason of the event.
    pub reason: &'static str,
    /// The sentence.
    pub message: &'static str,
}

impl Kind {
    /// The category in the metric of unhealthy instances; upstream's word.
    #[must_use]
    pub fn category(self) -> &'static str {
        match self {
            Self::InstanceStatus => "InstanceStatus",
            Self::SystemStatus => "SystemStatus",
            Self::EventStatus => "EventStatus",
            other => other.as_str(),
        }
    }

    /// The value of metric labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SpotInterrupted => "spot_interrupted",
            Self::RebalanceRecommendation => "rebalance_recommendation",
            Self::CapacityReservationInterrupted => "capacity_reservation_interrupted",
            Self::InstanceStopped => "instance_stopped",
            Self::InstanceTerminated => "instance_terminated",
            Self::ScheduledChange => "scheduled_change",
            Self::InstanceStatus => "instance_status",
            Self::SystemStatus => "system_status",
            Self::EventStatus => "event_status",
            Self::NoOp => "no_op",
        }
    }

    /// What is done with the NodeClaim.
    #[must_use]
    pub fn action(self) -> Action {
        match self {
            Self::RebalanceRecommendation | Self::NoOp => Action::None,
            Self::InstanceStatus | Self::SystemStatus => Action::Force,
            Self::SpotInterrupted
            | Self::CapacityReservationInterrupted
            | Self::InstanceStopped
            | Self::InstanceTerminated
            | Self::ScheduledChange
            | Self::EventStatus => Action::Drain,
        }
    }

    /// How users are told.
    #[must_use]
    pub fn telling(self) -> Option<Telling> {
        let warning = |reason, message| {
            Some(Telling {
                type_: EventType::Warning,
                reason,
                message,
            })
        };
        match self {
            Self::SpotInterrupted => {
                warning("SpotInterrupted", "Spot interruption warning was triggered")
            }
            Self::RebalanceRecommendation => Some(Telling {
                type_: EventType::Normal,
                reason: "SpotRebalanceRecommendation",
                message: "Spot rebalance recommendation was triggered",
            }),
            Self::CapacityReservationInterrupted => warning(
                "CapacityReservationInstanceInterrupted",
                "Capacity reservation instance interruption warning was triggered",
            ),
            Self::InstanceStopped => warning("InstanceStopping", "Instance is stopping"),
            Self::InstanceTerminated => warning("InstanceTerminating", "Instance is terminating"),
            Self::ScheduledChange
            | Self::InstanceStatus
            | Self::SystemStatus
            | Self::EventStatus => warning(
                "InstanceUnhealthy",
                "An unhealthy warning was triggered for the instance",
            ),
            Self::NoOp => None,
        }
    }
}
