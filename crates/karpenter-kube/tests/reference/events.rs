//! Reasons of events, and the intervals of their deduplication (section 9 of core-api.md).

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use karpenter_api::events;
use karpenter_kube::events::{Event, EventType};

/// Conformance: API-186
#[test]
fn reasons_are_spelt_as_users_alert_on_them() {
    for (reason, spelt) in [
        (events::NOMINATED, "Nominated"),
        (events::FAILED_SCHEDULING, "FailedScheduling"),
        (
            events::NO_COMPATIBLE_INSTANCE_TYPES,
            "NoCompatibleInstanceTypes",
        ),
        (events::DISRUPTION_LAUNCHING, "DisruptionLaunching"),
        (
            events::DISRUPTION_WAITING_READINESS,
            "DisruptionWaitingReadiness",
        ),
        (events::DISRUPTION_TERMINATING, "DisruptionTerminating"),
        (events::DISRUPTION_BLOCKED, "DisruptionBlocked"),
        (events::UNCONSOLIDATABLE, "Unconsolidatable"),
        (events::CONSOLIDATION_CANDIDATE, "ConsolidationCandidate"),
        (events::CONSOLIDATION_REJECTED, "ConsolidationRejected"),
        (events::CONSOLIDATION_APPROVED, "ConsolidationApproved"),
        (events::EVICTED, "Evicted"),
        (events::DISRUPTED, "Disrupted"),
        (events::FAILED_DRAINING, "FailedDraining"),
        (
            events::AWAITING_VOLUME_DETACHMENT,
            "AwaitingVolumeDetachment",
        ),
        (
            events::TERMINATION_GRACE_PERIOD_EXPIRING,
            "TerminationGracePeriodExpiring",
        ),
        (events::NODE_REPAIR_BLOCKED, "NodeRepairBlocked"),
        (events::FAILED_CONSISTENCY_CHECK, "FailedConsistencyCheck"),
        (
            events::INSUFFICIENT_CAPACITY_ERROR,
            "InsufficientCapacityError",
        ),
        (
            events::UNREGISTERED_TAINT_MISSING,
            "UnregisteredTaintMissing",
        ),
        (
            events::INVALID_DO_NOT_DISRUPT_ANNOTATION,
            "InvalidDoNotDisruptAnnotation",
        ),
        (events::DO_NOT_DISRUPT_UNTIL, "DoNotDisruptUntil"),
        (
            events::DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED,
            "DoNotDisruptGracePeriodElapsed",
        ),
        (events::FINALIZED, "Finalized"),
        (events::DISRUPTION_PAUSED, "DisruptionPaused"),
        (events::INVALID_KNOB, "InvalidKnob"),
        (events::INVALID_NODE_POOL, "InvalidNodePool"),
        (events::INVALID_OBJECT, "InvalidObject"),
        (events::FEATURE_GATE_CLOSED, "FeatureGateClosed"),
    ] {
        assert_eq!(reason, spelt);
    }
}

/// Conformance: API-187
#[test]
fn an_event_about_an_object_is_repeated_every_two_minutes_by_default() {
    let about = || ObjectReference {
        uid: Some("u".to_owned()),
        ..ObjectReference::default()
    };
    for event in [
        Event::normal(about(), "A", "b"),
        Event::warning(about(), "A", "b"),
    ] {
        assert_eq!(event.window, Duration::from_secs(120));
        assert_eq!(event.dedupe, ["u"]);
        assert!(!event.limited);
    }
    assert_eq!(Event::normal(about(), "A", "b").type_, EventType::Normal);
    assert_eq!(Event::warning(about(), "A", "b").type_, EventType::Warning);
}
