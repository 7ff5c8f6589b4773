//! EventBridge events about instances, which interruption queues receive.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Ec2;
use crate::REGION;

impl Ec2 {
    /// Adds an event to the outbox, from which the region's interruption queues receive it.
    fn emit(&mut self, detail_type: &str, resource: String, detail: &Value, at: Timestamp) {
        self.events += 1;
        // EventBridge's timestamps have whole seconds.
        let time = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.outbox.push(
            json!({
                "version": "0",
                "id": format!("00000000-0000-4000-8000-{:012x}", self.events),
                "detail-type": detail_type,
                "source": "aws.ec2",
                "account": self.account,
                "time": time,
                "region": REGION,
                "resources": [resource],
                "detail": detail,
            })
            .to_string(),
        );
    }

    fn instance_arn(&self, id: &str) -> String {
        format!("arn:aws:ec2:{REGION}:{}:instance/{id}", self.account)
    }

    /// Returns an instance as spot warnings name it: without region and account.
    fn spot_arn(&self, id: &str) -> String {
        let zone = self.instances.get(id).map_or("", |i| i.zone.as_str());
        format!("arn:aws:ec2:{zone}:instance/{id}")
    }

    /// Announces the state of an instance.
    pub(crate) fn emit_state(&mut self, id: &str, at: Timestamp) {
        let Some(state) = self.instances.get(id).map(|i| i.state.name()) else {
            return;
        };
        let detail = json!({"instance-id": id, "state": state});
        let kind = "EC2 Instance State-change Notification";
        self.emit(kind, self.instance_arn(id), &detail, at);
    }

    /// Warns that a spot instance is reclaimed in two minutes.
    pub(crate) fn emit_spot_interruption(&mut self, id: &str, at: Timestamp) {
        let detail = json!({"instance-id": id, "instance-action": "terminate"});
        let kind = "EC2 Spot Instance Interruption Warning";
        self.emit(kind, self.spot_arn(id), &detail, at);
    }

    /// Warns that a spot instance is at elevated risk of interruption.
    pub(crate) fn emit_rebalance(&mut self, id: &str, at: Timestamp) {
        let kind = "EC2 Instance Rebalance Recommendation";
        let detail = json!({"instance-id": id});
        self.emit(kind, self.spot_arn(id), &detail, at);
    }

    /// Warns that an instance in a capacity reservation is reclaimed.
    pub(crate) fn emit_reservation_interruption(&mut self, id: &str, at: Timestamp) {
        let detail = json!({"instance-id": id, "instance-action": "terminate"});
        let kind = "EC2 Capacity Reservation Instance Interruption Warning";
        self.emit(kind, self.instance_arn(id), &detail, at);
    }
}
