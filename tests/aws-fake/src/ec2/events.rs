//! EventBridge events about instances, which interruption queues receive.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Ec2;

/// Kinds of events, as rules select them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A spot instance is reclaimed in two minutes.
    SpotInterruption,
    /// A spot instance is at elevated risk of interruption.
    RebalanceRecommendation,
    /// An instance changed its state.
    StateChange,
    /// An instance in a capacity reservation is reclaimed.
    CapacityReservationInterruption,
}

impl EventKind {
    /// Returns EventBridge's `detail-type`.
    #[must_use]
    pub fn detail_type(self) -> &'static str {
        match self {
            Self::SpotInterruption => "EC2 Spot Instance Interruption Warning",
            Self::RebalanceRecommendation => "EC2 Instance Rebalance Recommendation",
            Self::StateChange => "EC2 Instance State-change Notification",
            Self::CapacityReservationInterruption => {
                "EC2 Capacity Reservation Instance Interruption Warning"
            }
        }
    }
}

impl Ec2 {
    /// Adds an event to the outbox, from which the region's interruption queues receive it.
    pub(crate) fn emit(
        &mut self,
        kind: EventKind,
        resources: Vec<String>,
        detail: &Value,
        at: Timestamp,
    ) {
        self.events += 1;
        // EventBridge's timestamps have whole seconds.
        let time = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.outbox.push(
            json!({
                "version": "0",
                "id": format!("00000000-0000-4000-8000-{:012x}", self.events),
                "detail-type": kind.detail_type(),
                "source": "aws.ec2",
                "account": self.account,
                "time": time,
                "region": self.region,
                "resources": resources,
                "detail": detail,
            })
            .to_string(),
        );
    }

    fn instance_arn(&self, id: &str) -> String {
        let (region, account) = (&self.region, &self.account);
        format!("arn:aws:ec2:{region}:{account}:instance/{id}")
    }

    pub(crate) fn emit_state(&mut self, id: &str, at: Timestamp) {
        let Some(state) = self.instances.get(id).map(|i| i.state.name()) else {
            return;
        };
        let resources = vec![self.instance_arn(id)];
        let detail = json!({"instance-id": id, "state": state});
        self.emit(EventKind::StateChange, resources, &detail, at);
    }

    pub(crate) fn emit_spot_interruption(&mut self, id: &str, at: Timestamp) {
        // Spot warnings name the instance without region and account.
        let zone = self
            .instances
            .get(id)
            .map(|i| i.zone.clone())
            .unwrap_or_default();
        let resources = vec![format!("arn:aws:ec2:{zone}:instance/{id}")];
        let detail = json!({"instance-id": id, "instance-action": "terminate"});
        self.emit(EventKind::SpotInterruption, resources, &detail, at);
    }

    pub(crate) fn emit_rebalance(&mut self, id: &str, at: Timestamp) {
        let zone = self
            .instances
            .get(id)
            .map(|i| i.zone.clone())
            .unwrap_or_default();
        let resources = vec![format!("arn:aws:ec2:{zone}:instance/{id}")];
        let detail = json!({"instance-id": id});
        self.emit(EventKind::RebalanceRecommendation, resources, &detail, at);
    }

    pub(crate) fn emit_reservation_interruption(&mut self, id: &str, at: Timestamp) {
        let resources = vec![self.instance_arn(id)];
        let detail = json!({"instance-id": id, "instance-action": "terminate"});
        self.emit(
            EventKind::CapacityReservationInterruption,
            resources,
            &detail,
            at,
        );
    }
}
