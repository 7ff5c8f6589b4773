//! Kinds of interruption and health events, and the reaction to each.
//!
//! UPSTREAM: pkg/controllers/interruption/messages/types.go, events/events.go

use karpenter_kube::events::EventType;

use crate::api::events;

/// Kind of an interruption or health event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// EC2 reclaims a spot instance in two minutes.
    SpotInterrupted,
    /// A spot instance is at elevated risk of interruption.
    RebalanceRecommendation,
    /// EC2 reclaims an instance of an interruptible capacity reservation.
    CapacityReservationInterrupted,
    InstanceStopped,
    /// The instance is shutting down or terminated.
    InstanceTerminated,
    /// AWS Health has announced a scheduled change of the instance.
    ScheduledChange,
    /// The instance status check fails.
    InstanceStatus,
    /// The system status check fails.
    SystemStatus,
    /// EC2 has scheduled an event for the instance.
    EventStatus,
    /// An event that needs no reaction.
    NoOp,
}

/// The reaction to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// No reaction.
    None,
    /// The NodeClaim is deleted; its node is drained as far as time allows.
    Drain,
    /// The NodeClaim is deleted with a termination deadline of now, because the kubelet does not respond.
    Force,
}

/// The Kubernetes event that is published on the NodeClaim and its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    pub type_: EventType,
    pub reason: &'static str,
    pub message: &'static str,
}

impl Kind {
    /// Returns the category in the metric of unhealthy instances, as upstream names it.
    #[must_use]
    pub fn category(self) -> &'static str {
        match self {
            Self::InstanceStatus => "InstanceStatus",
            Self::SystemStatus => "SystemStatus",
            Self::EventStatus => "EventStatus",
            other => other.as_str(),
        }
    }

    /// Returns the value of metric labels.
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

    /// Returns the reaction to the event.
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

    /// Returns the event to publish; `None` if nothing is published.
    #[must_use]
    pub fn notification(self) -> Option<Notification> {
        let warning = |reason, message| {
            Some(Notification {
                type_: EventType::Warning,
                reason,
                message,
            })
        };
        match self {
            Self::SpotInterrupted => warning(
                events::SPOT_INTERRUPTED,
                "Spot interruption warning was triggered",
            ),
            Self::RebalanceRecommendation => Some(Notification {
                type_: EventType::Normal,
                reason: events::SPOT_REBALANCE_RECOMMENDATION,
                message: "Spot rebalance recommendation was triggered",
            }),
            Self::CapacityReservationInterrupted => warning(
                events::CAPACITY_RESERVATION_INSTANCE_INTERRUPTED,
                "Capacity Reservation interruption warning was triggered",
            ),
            Self::InstanceStopped => warning(events::INSTANCE_STOPPING, "Instance is stopping"),
            Self::InstanceTerminated => {
                warning(events::INSTANCE_TERMINATING, "Instance is terminating")
            }
            Self::ScheduledChange
            | Self::InstanceStatus
            | Self::SystemStatus
            | Self::EventStatus => warning(
                events::INSTANCE_UNHEALTHY,
                "An unhealthy warning was triggered for the instance",
            ),
            Self::NoOp => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_of_an_interrupted_reservation_has_upstream_s_text() {
        let event = Kind::CapacityReservationInterrupted.notification();
        assert_eq!(
            event.map(|event| event.message),
            Some("Capacity Reservation interruption warning was triggered")
        );
    }

    /// Conformance: AWS-interruption-10
    #[test]
    fn each_kind_has_its_action_its_label_and_its_event() {
        use EventType::{Normal, Warning};
        for (kind, label, action, event) in [
            (
                Kind::SpotInterrupted,
                "spot_interrupted",
                Action::Drain,
                Some((Warning, "SpotInterrupted")),
            ),
            (
                Kind::RebalanceRecommendation,
                "rebalance_recommendation",
                Action::None,
                Some((Normal, "SpotRebalanceRecommendation")),
            ),
            (
                Kind::CapacityReservationInterrupted,
                "capacity_reservation_interrupted",
                Action::Drain,
                Some((Warning, "CapacityReservationInstanceInterrupted")),
            ),
            (
                Kind::InstanceStopped,
                "instance_stopped",
                Action::Drain,
                Some((Warning, "InstanceStopping")),
            ),
            (
                Kind::InstanceTerminated,
                "instance_terminated",
                Action::Drain,
                Some((Warning, "InstanceTerminating")),
            ),
            (
                Kind::ScheduledChange,
                "scheduled_change",
                Action::Drain,
                Some((Warning, "InstanceUnhealthy")),
            ),
            (
                Kind::InstanceStatus,
                "instance_status",
                Action::Force,
                Some((Warning, "InstanceUnhealthy")),
            ),
            (
                Kind::SystemStatus,
                "system_status",
                Action::Force,
                Some((Warning, "InstanceUnhealthy")),
            ),
            (
                Kind::EventStatus,
                "event_status",
                Action::Drain,
                Some((Warning, "InstanceUnhealthy")),
            ),
            (Kind::NoOp, "no_op", Action::None, None),
        ] {
            let observed = kind.notification().map(|t| (t.type_, t.reason));
            assert_eq!(
                (kind.as_str(), kind.action(), observed),
                (label, action, event)
            );
        }
    }
}
