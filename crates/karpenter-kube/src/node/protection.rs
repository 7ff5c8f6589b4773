//! Events about `karpenter.sh/do-not-disrupt` on pods: invalid values, and temporary protection that begins or ends.
//!
//! UPSTREAM: pkg/utils/pod/scheduling.go, pkg/controllers/disruption/events

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use karpenter_api::events;
use karpenter_api::labels::annotations;
use karpenter_core::pod::{DoNotDisrupt, Pod, do_not_disrupt, protected_until};

use crate::context::Context;
use crate::events::Event;
use crate::model::Change;

/// Returns a reference to a pod of the model, for events about it.
pub(crate) fn pod_reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: Some(pod.key.name.clone()),
        namespace: Some(pod.key.namespace.clone()),
        uid: Some(pod.key.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Checks pods that are added or changed: an invalid annotation is reported at once.
pub(crate) fn observe(cx: &Context, change: &Change) {
    let Change::Pod {
        before,
        after: Some(pod),
    } = change
    else {
        return;
    };
    let value = |pod: &Arc<Pod>| pod.annotations.get(annotations::DO_NOT_DISRUPT).cloned();
    let known = before.as_ref().and_then(value);
    if value(pod) != known && do_not_disrupt(pod, cx.clock.now()) == DoNotDisrupt::Invalid {
        cx.recorder.publish(invalid(pod));
    }
}

/// Reports whether a pod that blocks a disruption is protected for a while, or was.
pub(crate) fn report(cx: &Context, pod: &Pod) {
    if let Some(event) = protection_event(pod, cx.clock.now()) {
        cx.recorder.publish(event);
    }
}

fn protection_event(pod: &Pod, now: Timestamp) -> Option<Event> {
    if do_not_disrupt(pod, now) == DoNotDisrupt::Invalid {
        return Some(invalid(pod));
    }
    let until = protected_until(pod)?;
    let about = pod_reference(pod);
    Some(if now < until {
        let message = format!("Pod is protected from disruption until {until:.0}");
        Event::normal(about, events::DO_NOT_DISRUPT_UNTIL, message)
    } else {
        let message = format!("Protection of the pod from disruption ended at {until:.0}");
        Event::normal(about, events::DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED, message)
    })
}

fn invalid(pod: &Pod) -> Event {
    let value = pod.annotations.get(annotations::DO_NOT_DISRUPT);
    let message = format!(
        "Ignored the value {:?} of the annotation {}: it must be `true` or a positive duration such as `1h30m`",
        value.map(String::as_str).unwrap_or_default(),
        annotations::DO_NOT_DISRUPT
    );
    Event::warning(
        pod_reference(pod),
        events::INVALID_DO_NOT_DISRUPT_ANNOTATION,
        message,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: Option<&str>, started: Option<&str>) -> Pod {
        let mut pod = karpenter_fixtures::pod("p").on("n");
        if let Some(value) = value {
            pod = pod.annotation("karpenter.sh/do-not-disrupt", value);
        }
        if let Some(started) = started {
            pod = pod.set("/status/startTime", started);
        }
        Pod::parse(&pod.build())
    }

    /// Conformance: API-092
    #[test]
    fn the_state_of_the_protection_is_reported() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let started = Some("2026-01-01T00:00:00Z");
        let reason = |value, started| {
            protection_event(&pod(value, started), now).map(|e| (e.reason, e.message))
        };
        assert_eq!(reason(None, started), None);
        assert_eq!(reason(Some("true"), started), None);
        let unstarted = reason(Some("2h"), None);
        assert_eq!(unstarted, None, "protected at least until it has started");
        let (elapsed, invalid) = (
            "DoNotDisruptGracePeriodElapsed",
            "InvalidDoNotDisruptAnnotation",
        );
        for (value, expected, part) in [
            ("2h", "DoNotDisruptUntil", "2026-01-01T02:00:00Z"),
            ("30m", elapsed, "2026-01-01T00:30:00Z"),
            ("1h", elapsed, ""),
            ("soon", invalid, "soon"),
            ("-1h", invalid, "-1h"),
            ("0s", invalid, "0s"),
            ("False", invalid, "False"),
            ("", invalid, ""),
        ] {
            let (reason, message) = reason(Some(value), started).unwrap();
            assert_eq!(reason, expected, "{value}");
            assert!(message.contains(part), "{message}");
        }
    }
}
