//! DescribeInstances: rendering and filters.
//!
//! An instance is rendered once and cached until it changes: a cluster of ten thousand is listed every two minutes.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::json;

use super::Ec2Call;
use super::filters::{Filterable, Filters, Tags};
use super::instances::{Instance, InstanceState, Interface, Lifecycle};
use crate::clock::rfc3339;
use crate::wire::error::AwsError;
use crate::wire::params::Params;
use crate::wire::xml::Writer;
use crate::wire::{Reply, xml};

impl Instance {
    fn private_dns(&self) -> String {
        let region = self.zone.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let name = self.private_ip.to_string().replace('.', "-");
        format!("ip-{name}.{region}.compute.internal")
    }

    pub(crate) fn render(&mut self, account: &str) -> Arc<str> {
        if let Some(rendered) = &self.rendered {
            return rendered.clone();
        }
        let mut w = Writer(String::with_capacity(3072));
        self.write(&mut w, account);
        let rendered: Arc<str> = w.0.into();
        self.rendered = Some(rendered.clone());
        rendered
    }

    fn write(&self, w: &mut Writer, account: &str) {
        let gone = matches!(self.state, InstanceState::Terminated);
        let data = Params(&self.data);
        let launched = rfc3339(self.launched);
        w.text("instanceId", &self.id);
        w.text("imageId", &self.image);
        w.value("instanceState", &self.state.wire());
        let dns = if gone {
            String::new()
        } else {
            self.private_dns()
        };
        w.text("privateDnsName", &dns);
        w.text("dnsName", "");
        w.text(
            "reason",
            self.reason.as_ref().map_or("", |(_, message)| message),
        );
        w.maybe("keyName", data.text("KeyName"));
        w.text("amiLaunchIndex", &self.launch_index.to_string());
        w.text("productCodes", "");
        w.text("instanceType", &self.instance_type);
        w.text("launchTime", &launched);
        w.open("placement");
        w.text("availabilityZone", &self.zone);
        w.text("availabilityZoneId", &self.zone_id);
        let (group, partition) = match &self.placement {
            Some((id, name, partition)) => (Some((id, name)), *partition),
            None => (None, None),
        };
        w.text("groupName", group.map_or("", |(_, name)| name));
        w.maybe("groupId", group.map(|(id, _)| id.as_str()));
        w.text(
            "tenancy",
            data.inner("Placement").text("Tenancy").unwrap_or("default"),
        );
        w.maybe(
            "partitionNumber",
            partition.map(|p| p.to_string()).as_deref(),
        );
        w.close("placement");
        w.maybe("platform", self.windows.then_some("windows"));
        w.text(
            "platformDetails",
            if self.windows {
                "Windows"
            } else {
                "Linux/UNIX"
            },
        );
        let monitored = data.inner("Monitoring").flag("Enabled") == Some(true);
        w.value(
            "monitoring",
            &json!({"state": if monitored { "enabled" } else { "disabled" }}),
        );
        if !gone {
            w.text("subnetId", &self.subnet);
            w.text("vpcId", &self.vpc);
            w.text("privateIpAddress", &self.private_ip.to_string());
            w.maybe(
                "ipAddress",
                self.interfaces.first().and_then(|i| i.public.as_deref()),
            );
            w.text("sourceDestCheck", "true");
            groups(w, &self.groups);
        }
        if let Some((code, message)) = &self.reason {
            w.value("stateReason", &json!({"code": code, "message": message}));
        }
        w.text("architecture", &self.architecture);
        w.text("rootDeviceType", "ebs");
        w.text("rootDeviceName", &self.root_device);
        w.open("blockDeviceMapping");
        if !gone {
            for (device, _, id, with_instance) in &self.volumes {
                w.value("item", &json!({"deviceName": device, "ebs": {
                    "volumeId": id, "status": "attached", "attachTime": launched, "deleteOnTermination": with_instance,
                }}));
            }
        }
        w.close("blockDeviceMapping");
        w.text("virtualizationType", "hvm");
        w.maybe(
            "instanceLifecycle",
            (self.lifecycle != Lifecycle::OnDemand).then(|| self.lifecycle.name()),
        );
        w.maybe("spotInstanceRequestId", self.spot_request.as_deref());
        w.text("clientToken", &self.client_token);
        w.open("tagSet");
        for (key, value) in &self.tags {
            w.open("item");
            w.text("key", key);
            w.text("value", value);
            w.close("item");
        }
        w.close("tagSet");
        w.text("hypervisor", "xen");
        w.open("networkInterfaceSet");
        if !gone {
            for interface in &self.interfaces {
                self.write_interface(w, interface, account, &launched);
            }
        }
        w.close("networkInterfaceSet");
        if let Some((_, arn, id)) = self.profile.as_ref().filter(|_| !gone) {
            w.value("iamInstanceProfile", &json!({"arn": arn, "id": id}));
        }
        w.text(
            "ebsOptimized",
            if data.flag("EbsOptimized") == Some(true) {
                "true"
            } else {
                "false"
            },
        );
        w.text("enaSupport", "true");
        let cpu = data.inner("CpuOptions");
        w.value("cpuOptions", &json!({
            "coreCount": cpu.int("CoreCount").unwrap_or_else(|| i64::try_from(self.cores).unwrap_or(1)),
            "threadsPerCore": cpu.int("ThreadsPerCore").unwrap_or_else(|| {
                i64::from(self.vcpus) / i64::try_from(self.cores.max(1)).unwrap_or(1)
            }),
            "nestedVirtualization": cpu.text("NestedVirtualization"),
        }));
        w.maybe(
            "capacityReservationId",
            self.capacity_reservation.as_deref(),
        );
        let (preference, target) = &self.reservation_preference;
        w.value("capacityReservationSpecification", &json!({
            "capacityReservationPreference": preference,
            "capacityReservationTarget": target.as_ref().map(|id| json!({"capacityReservationId": id})),
        }));
        w.value("hibernationOptions", &json!({"configured": false}));
        let metadata = data.inner("MetadataOptions");
        w.value(
            "metadataOptions",
            &json!({
                "state": if self.state == InstanceState::Pending { "pending" } else { "applied" },
                "httpTokens": metadata.text("HttpTokens").unwrap_or("optional"),
                "httpPutResponseHopLimit": metadata.int("HttpPutResponseHopLimit").unwrap_or(1),
                "httpEndpoint": metadata.text("HttpEndpoint").unwrap_or("enabled"),
                "httpProtocolIpv6": metadata.text("HttpProtocolIpv6").unwrap_or("disabled"),
                "instanceMetadataTags": metadata.text("InstanceMetadataTags").unwrap_or("disabled"),
            }),
        );
        let enclave = data.inner("EnclaveOptions").flag("Enabled") == Some(true);
        w.value("enclaveOptions", &json!({"enabled": enclave}));
        w.text("bootMode", "uefi-preferred");
        w.value("maintenanceOptions", &json!({"autoRecovery": "default"}));
        w.text(
            "usageOperation",
            if self.windows {
                "RunInstances:0002"
            } else {
                "RunInstances"
            },
        );
        w.text("usageOperationUpdateTime", &launched);
        w.value("privateDnsNameOptions", &json!({
            "hostnameType": "ip-name", "enableResourceNameDnsARecord": false, "enableResourceNameDnsAAAARecord": false,
        }));
    }

    fn write_interface(&self, w: &mut Writer, i: &Interface, account: &str, launched: &str) {
        w.open("item");
        w.text("networkInterfaceId", &i.id);
        w.text("subnetId", &self.subnet);
        w.text("vpcId", &self.vpc);
        w.text("description", "");
        w.text("ownerId", account);
        w.text("status", "in-use");
        if let Some(address) = i.address {
            let address = address.to_string();
            w.text("privateIpAddress", &address);
            w.open("privateIpAddressesSet");
            w.value(
                "item",
                &json!({"privateIpAddress": address, "primary": true}),
            );
            w.close("privateIpAddressesSet");
        }
        w.text("sourceDestCheck", "true");
        groups(w, &i.groups);
        w.value(
            "attachment",
            &json!({
                "attachmentId": i.id.replacen("eni-", "eni-attach-", 1),
                "deviceIndex": i.device,
                "networkCardIndex": i.card,
                "status": "attached",
                "attachTime": launched,
                "deleteOnTermination": true,
            }),
        );
        if let Some(public) = &i.public {
            w.value(
                "association",
                &json!({"publicIp": public, "ipOwnerId": "amazon"}),
            );
        }
        w.open("ipv6AddressesSet");
        for address in &i.ipv6 {
            w.value("item", &json!({"ipv6Address": address}));
        }
        w.close("ipv6AddressesSet");
        w.text("interfaceType", &i.kind);
        w.close("item");
    }
}

fn groups(w: &mut Writer, groups: &[(String, String)]) {
    w.open("groupSet");
    for (id, name) in groups {
        w.open("item");
        w.text("groupId", id);
        w.text("groupName", name);
        w.close("item");
    }
    w.close("groupSet");
}

impl Filterable for Instance {
    fn values(&self, name: &str) -> Vec<String> {
        let maybe = |value: &Option<String>| value.iter().cloned().collect();
        match name {
            "instance-id" => vec![self.id.clone()],
            "instance-state-name" => vec![self.state.name().to_owned()],
            "instance-state-code" => vec![self.state.code().to_string()],
            "instance-type" => vec![self.instance_type.clone()],
            "image-id" => vec![self.image.clone()],
            "availability-zone" | "placement.availability-zone" => vec![self.zone.clone()],
            "availability-zone-id" => vec![self.zone_id.clone()],
            "subnet-id" | "network-interface.subnet-id" => vec![self.subnet.clone()],
            "vpc-id" => vec![self.vpc.clone()],
            "architecture" => vec![self.architecture.clone()],
            "private-ip-address" => vec![self.private_ip.to_string()],
            "private-dns-name" => vec![self.private_dns()],
            "launch-time" => vec![rfc3339(self.launched)],
            "reservation-id" => vec![self.reservation.clone()],
            "client-token" => vec![self.client_token.clone()],
            "capacity-reservation-id" => maybe(&self.capacity_reservation),
            "spot-instance-request-id" => maybe(&self.spot_request),
            "instance-lifecycle" if self.lifecycle == Lifecycle::Spot => vec!["spot".to_owned()],
            "iam-instance-profile.arn" => {
                self.profile.iter().map(|(_, arn, _)| arn.clone()).collect()
            }
            "instance.group-id" | "network-interface.group-id" => {
                self.groups.iter().map(|(id, _)| id.clone()).collect()
            }
            "instance.group-name" => self.groups.iter().map(|(_, name)| name.clone()).collect(),
            "placement-group-name" => self
                .placement
                .iter()
                .map(|(_, name, _)| name.clone())
                .collect(),
            "tenancy" => vec![
                Params(&self.data)
                    .inner("Placement")
                    .text("Tenancy")
                    .unwrap_or("default")
                    .to_owned(),
            ],
            "availability-zone-name" => vec![self.zone.clone()],
            _ => vec![],
        }
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }
}

const INSTANCE_FILTERS: &[&str] = &[
    "tag",
    "instance-id",
    "instance-state-name",
    "instance-state-code",
    "instance-type",
    "image-id",
    "availability-zone",
    "availability-zone-id",
    "placement.availability-zone",
    "subnet-id",
    "network-interface.subnet-id",
    "vpc-id",
    "architecture",
    "private-ip-address",
    "private-dns-name",
    "launch-time",
    "reservation-id",
    "client-token",
    "capacity-reservation-id",
    "spot-instance-request-id",
    "instance-lifecycle",
    "iam-instance-profile.arn",
    "instance.group-id",
    "network-interface.group-id",
    "instance.group-name",
    "placement-group-name",
    "tenancy",
];

/// Returns the error for unknown instance IDs.
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
        let filters = Filters::read(p, INSTANCE_FILTERS)?;
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
        let account = self.ec2.account.clone();
        let ids: HashSet<&str> = ids.into_iter().collect();

        let mut out = String::from("<reservationSet>");
        let mut reservation: Option<String> = None;
        let mut count = 0;
        let mut last = 0;
        let mut token = None;
        for instance in self.ec2.instances.after(after) {
            let wanted =
                (ids.is_empty() || ids.contains(instance.id.as_str())) && filters.matches(instance);
            if !wanted {
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
                open_reservation(&mut out, &instance.reservation, &account);
                reservation = Some(instance.reservation.clone());
            }
            out.push_str("<item>");
            out.push_str(&instance.render(&account));
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

fn open_reservation(out: &mut String, id: &str, account: &str) {
    out.push_str("<item><reservationId>");
    out.push_str(id);
    out.push_str("</reservationId><ownerId>");
    out.push_str(account);
    out.push_str("</ownerId><groupSet></groupSet><instancesSet>");
}
