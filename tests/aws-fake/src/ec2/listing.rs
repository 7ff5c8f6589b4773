//! DescribeInstances: rendering and filters.
//!
//! An instance is rendered once and cached until it changes: a cluster of ten thousand is listed every two minutes.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Ec2Call;
use super::filters::{Filters, tag_set};
use super::instances::{Instance, InstanceState, Lifecycle};
use crate::clock::rfc3339;
use crate::wire::error::AwsError;
use crate::wire::params::Params;
use crate::wire::{Reply, xml};

impl Instance {
    /// Returns the members of the instance in a response: those that Karpenter reads.
    pub(crate) fn render(&mut self) -> Arc<str> {
        if let Some(rendered) = &self.rendered {
            return rendered.clone();
        }
        let mut written = String::with_capacity(2048);
        xml::write_members(&self.wire(), "item", &mut written);
        self.rendered.insert(written.into()).clone()
    }

    fn wire(&self) -> Value {
        let listed = self.state != InstanceState::Terminated;
        let (group, partition) = match &self.placement {
            Some((id, partition)) => (Some(id), *partition),
            None => (None, None),
        };
        let tenancy = Params(&self.data).inner("Placement").text("Tenancy");
        let (preference, target) = &self.reservation_preference;
        let mut wire = json!({
            "instanceId": self.id,
            "imageId": self.image,
            "instanceState": self.state.wire(),
            "instanceType": self.instance_type,
            "launchTime": rfc3339(self.launched),
            "placement": {
                "availabilityZone": self.zone,
                "availabilityZoneId": self.zone_id,
                "groupId": group,
                "tenancy": tenancy.unwrap_or("default"),
                "partitionNumber": partition,
            },
            "instanceLifecycle": (self.lifecycle != Lifecycle::OnDemand).then(|| self.lifecycle.name()),
            "spotInstanceRequestId": self.spot_request,
            "tagSet": tag_set(&self.tags),
            "capacityReservationId": self.capacity_reservation,
            "capacityReservationSpecification": {
                "capacityReservationPreference": preference,
                "capacityReservationTarget": target.as_ref().map(|id| json!({"capacityReservationId": id})),
            },
        });
        if listed {
            let groups = self.groups.iter();
            let groups = groups.map(|(id, name)| json!({"groupId": id, "groupName": name}));
            let interfaces = self.interfaces.iter();
            let interfaces = interfaces.map(|i| json!({"interfaceType": i.kind}));
            wire["subnetId"] = self.subnet.clone().into();
            wire["groupSet"] = groups.collect();
            wire["networkInterfaceSet"] = interfaces.collect();
        }
        wire
    }
}

fn missing_instances(ids: &[&str]) -> AwsError {
    let message = match ids {
        [one] => format!("The instance ID '{one}' does not exist"),
        many => format!("The instance IDs '{}' do not exist", many.join(", ")),
    };
    AwsError::new("InvalidInstanceID.NotFound", message)
}

/// Refuses malformed instance IDs.
pub(super) fn check_ids(ids: &[&str]) -> Result<(), AwsError> {
    let well_formed = |id: &&&str| {
        id.strip_prefix("i-").is_some_and(|hex| {
            matches!(hex.len(), 8 | 17) && hex.chars().all(|c| c.is_ascii_hexdigit())
        })
    };
    match ids.iter().find(|id| !well_formed(id)) {
        Some(bad) => Err(AwsError::new(
            "InvalidInstanceID.Malformed",
            format!("Invalid id: \"{bad}\""),
        )),
        None => Ok(()),
    }
}

impl Ec2Call<'_> {
    /// Refuses IDs that are malformed or unknown.
    pub(crate) fn check_instances(&self, ids: &[&str]) -> Result<(), AwsError> {
        check_ids(ids)?;
        let absent: Vec<&str> = ids
            .iter()
            .copied()
            .filter(|id| self.ec2.instances.get(id).is_none())
            .collect();
        if absent.is_empty() {
            Ok(())
        } else {
            Err(missing_instances(&absent))
        }
    }

    pub(crate) fn describe_instances(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let filters = Filters::read(p, &["tag", "instance-state-name"])?;
        let ids = p.texts("InstanceId");
        if !ids.is_empty() && p.has("MaxResults") {
            return Err(AwsError::combination(
                "The parameter instancesSet cannot be used with the parameter maxResults",
            ));
        }
        self.check_instances(&ids)?;
        let page = self.page(p, (5, 1000))?;
        let size = if ids.is_empty() {
            page.size()
        } else {
            usize::MAX
        };
        let after = page.after().and_then(|k| k.parse().ok()).unwrap_or(0);
        let ids: HashSet<&str> = ids.into_iter().collect();

        let mut out = String::from("<reservationSet>");
        let mut reservation: Option<String> = None;
        let mut count = 0;
        let mut last = 0;
        let mut token = None;
        for instance in self.ec2.instances.after(after) {
            let named = ids.is_empty() || ids.contains(instance.id.as_str());
            let state = instance.state.name();
            if !(named && filters.matches(&instance.tags, |_| vec![state])) {
                continue;
            }
            if count == size {
                token = Some(page.token(&last.to_string()));
                break;
            }
            if reservation.as_deref() != Some(&instance.reservation) {
                if reservation.is_some() {
                    out.push_str("</instancesSet></item>");
                }
                let id = reservation.insert(instance.reservation.clone());
                let head = [
                    "<item><reservationId>",
                    id,
                    "</reservationId><instancesSet>",
                ];
                out.extend(head);
            }
            out.push_str("<item>");
            out.push_str(&instance.render());
            out.push_str("</item>");
            last = instance.sequence;
            count += 1;
        }
        if reservation.is_some() {
            out.push_str("</instancesSet></item>");
        }
        out.push_str("</reservationSet>");
        xml::write_members(&json!({"nextToken": token}), "item", &mut out);
        Ok(Reply::Xml(out))
    }
}
