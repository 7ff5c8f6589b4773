//! Messages of the interruption queue: EventBridge's envelope, and the details that are used.
//!
//! UPSTREAM: pkg/controllers/interruption/messages, parser.go

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::kind::Kind;

/// A parsed message of the interruption queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// ID of the EventBridge event; the same in every delivery.
    pub id: Option<String>,
    pub kind: Kind,
    /// IDs of the affected instances.
    pub instances: Vec<String>,
    /// When EventBridge sent the event.
    pub sent: Option<Timestamp>,
}

/// The message is not an event of EventBridge.
#[derive(Debug, thiserror::Error)]
#[error("parsing message, {0}")]
pub struct Unreadable(#[from] serde_json::Error);

#[derive(Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[derive(Default)]
struct Envelope {
    version: String,
    id: String,
    detail_type: String,
    source: String,
    time: String,
    detail: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct OfInstance {
    instance_id: String,
    state: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OfHealth {
    service: String,
    event_type_category: String,
    status_code: String,
    affected_entities: Vec<Entity>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entity {
    entity_value: String,
}

/// Parses a message. An event that does not concern instances is a [`Kind::NoOp`].
///
/// # Errors
/// If the message is not EventBridge's JSON.
pub fn parse(body: &str) -> Result<Notice, Unreadable> {
    if body.trim().is_empty() {
        return Ok(Notice {
            id: None,
            kind: Kind::NoOp,
            instances: Vec::new(),
            sent: None,
        });
    }
    let envelope: Envelope = serde_json::from_str(body)?;
    let (kind, instances) = affected(&envelope)?;
    Ok(Notice {
        id: Some(envelope.id).filter(|id| !id.is_empty()),
        kind,
        instances,
        sent: envelope.time.parse().ok(),
    })
}

fn affected(envelope: &Envelope) -> Result<(Kind, Vec<String>), serde_json::Error> {
    let nothing = Ok((Kind::NoOp, Vec::new()));
    if envelope.version != "0" {
        return nothing;
    }
    let kind = match (envelope.source.as_str(), envelope.detail_type.as_str()) {
        ("aws.ec2", "EC2 Spot Instance Interruption Warning") => Some(Kind::SpotInterrupted),
        ("aws.ec2", "EC2 Instance Rebalance Recommendation") => Some(Kind::RebalanceRecommendation),
        ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning") => {
            Some(Kind::CapacityReservationInterrupted)
        }
        ("aws.ec2", "EC2 Instance State-change Notification") => None,
        ("aws.health", "AWS Health Event") => return health(&envelope.detail),
        _ => return nothing,
    };
    let detail = OfInstance::deserialize(&envelope.detail)?;
    // DIFFERS: upstream accepts a state in any case, and then matches it in lower case only.
    let kind = kind.or_else(|| match detail.state.to_ascii_lowercase().as_str() {
        "stopping" | "stopped" => Some(Kind::InstanceStopped),
        "shutting-down" | "terminated" => Some(Kind::InstanceTerminated),
        _ => None,
    });
    match kind {
        Some(kind) if !detail.instance_id.is_empty() => Ok((kind, vec![detail.instance_id])),
        _ => nothing,
    }
}

fn health(detail: &Value) -> Result<(Kind, Vec<String>), serde_json::Error> {
    let detail = OfHealth::deserialize(detail)?;
    let is_change = detail.service.eq_ignore_ascii_case("EC2")
        && detail.event_type_category == "scheduledChange"
        // DIFFERS: upstream deletes NodeClaims when AWS Health reports that their maintenance is over.
        && detail.status_code != "closed";
    if !is_change {
        return Ok((Kind::NoOp, Vec::new()));
    }
    let entities = detail.affected_entities.into_iter();
    let instances = entities.map(|entity| entity.entity_value).collect();
    Ok((Kind::ScheduledChange, instances))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(source: &str, detail_type: &str, detail: Value) -> Notice {
        let body = json!({
            "version": "0", "id": "e-1", "source": source, "detail-type": detail_type, "detail": detail,
            "account": "123456789012", "region": "us-west-2", "time": "2026-01-01T00:00:00Z", "resources": [],
        });
        parse(&body.to_string()).unwrap()
    }

    fn of_state(state: &str) -> Kind {
        let detail = json!({ "instance-id": "i-1", "state": state });
        read("aws.ec2", "EC2 Instance State-change Notification", detail).kind
    }

    /// Conformance: AWS-interruption-09
    #[test]
    fn every_kind_of_message_is_recognized() {
        let one = json!({ "instance-id": "i-1", "instance-action": "terminate" });
        for (detail_type, kind) in [
            (
                "EC2 Spot Instance Interruption Warning",
                Kind::SpotInterrupted,
            ),
            (
                "EC2 Instance Rebalance Recommendation",
                Kind::RebalanceRecommendation,
            ),
            (
                "EC2 Capacity Reservation Instance Interruption Warning",
                Kind::CapacityReservationInterrupted,
            ),
        ] {
            let notice = read("aws.ec2", detail_type, one.clone());
            assert_eq!((notice.kind, notice.instances), (kind, vec!["i-1".into()]));
            assert_eq!(notice.id.as_deref(), Some("e-1"));
            assert_eq!(notice.sent.unwrap().to_string(), "2026-01-01T00:00:00Z");
            assert_eq!(read("aws.sns", detail_type, one.clone()).kind, Kind::NoOp);
        }
    }

    /// Conformance: AWS-interruption-09
    #[test]
    fn states_count_when_the_instance_is_ending_however_they_are_spelt() {
        assert_eq!(of_state("stopping"), Kind::InstanceStopped);
        assert_eq!(of_state("Stopped"), Kind::InstanceStopped);
        assert_eq!(of_state("shutting-down"), Kind::InstanceTerminated);
        assert_eq!(of_state("TERMINATED"), Kind::InstanceTerminated);
        assert_eq!(of_state("pending"), Kind::NoOp);
        assert_eq!(of_state("running"), Kind::NoOp);
    }

    /// Conformance: AWS-interruption-12
    #[test]
    fn maintenance_concerns_all_its_instances_unless_it_is_over() {
        let health = |service: &str, category: &str, status: &str| {
            let detail = json!({
                "service": service, "eventTypeCategory": category, "statusCode": status,
                "affectedEntities": [{ "entityValue": "i-1" }, { "entityValue": "i-2" }],
            });
            read("aws.health", "AWS Health Event", detail)
        };
        let notice = health("EC2", "scheduledChange", "upcoming");
        assert_eq!(notice.kind, Kind::ScheduledChange);
        assert_eq!(notice.instances, ["i-1", "i-2"]);
        assert_eq!(health("EC2", "scheduledChange", "closed").kind, Kind::NoOp);
        assert_eq!(health("RDS", "scheduledChange", "open").kind, Kind::NoOp);
        assert_eq!(
            health("EC2", "accountNotification", "open").kind,
            Kind::NoOp
        );
    }

    /// Conformance: AWS-interruption-09
    #[test]
    fn an_empty_or_unknown_message_is_a_no_op_and_a_broken_one_an_error() {
        assert_eq!(parse("  ").unwrap().kind, Kind::NoOp);
        assert_eq!(parse("{}").unwrap().kind, Kind::NoOp);
        let newer = json!({ "version": "1", "source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning" });
        assert_eq!(parse(&newer.to_string()).unwrap().kind, Kind::NoOp);
        for broken in ["not json", "7", r#"{"version": 0}"#] {
            assert!(parse(broken).is_err(), "{broken}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_in_a_queue_panics(body in ".*") {
            let _ = parse(&body);
        }
    }
}
