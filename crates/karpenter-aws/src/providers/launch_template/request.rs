//! Launch templates as parameters of EC2's API.
//!
//! UPSTREAM: pkg/providers/launchtemplate/types.go

use std::collections::BTreeMap;

use aws_sdk_ec2::types as ec2;

use super::template::{Network, Template};
use crate::api::{BlockDeviceMapping, NetworkInterface};
use crate::sdk::terms::sdk_tags;

#[must_use]
pub fn data(t: &Template) -> ec2::RequestLaunchTemplateData {
    let profile = ec2::LaunchTemplateIamInstanceProfileSpecificationRequest::builder()
        .name(&t.instance_profile)
        .build();
    let monitoring = ec2::LaunchTemplatesMonitoringRequest::builder()
        .enabled(t.detailed_monitoring.unwrap_or(false))
        .build();
    let devices: Vec<_> = t.block_devices.iter().map(block_device).collect();
    let mut kinds = vec![ec2::ResourceType::NetworkInterface];
    if t.spot {
        kinds.push(ec2::ResourceType::SpotInstancesRequest);
    }
    let tags = kinds.into_iter().map(|kind| {
        ec2::LaunchTemplateTagSpecificationRequest::builder()
            .resource_type(kind)
            .set_tags(Some(sdk_tags(&t.tags)))
            .build()
    });
    ec2::RequestLaunchTemplateData::builder()
        .image_id(&t.image_id)
        .user_data(&t.user_data)
        .iam_instance_profile(profile)
        .monitoring(monitoring)
        .set_block_device_mappings((!devices.is_empty()).then_some(devices))
        .set_network_interfaces(Some(interfaces(t)))
        .metadata_options(metadata(t))
        .set_enclave_options(t.enclaves.then(|| {
            ec2::LaunchTemplateEnclaveOptionsRequest::builder()
                .enabled(true)
                .build()
        }))
        .set_cpu_options(t.nested_virtualization.as_deref().map(|nested| {
            ec2::LaunchTemplateCpuOptionsRequest::builder()
                .nested_virtualization(nested.into())
                .build()
        }))
        .placement(placement(t))
        .set_capacity_reservation_specification(reservation(t))
        .set_instance_market_options(market(t))
        .set_tag_specifications(Some(tags.collect()))
        .build()
}

/// Returns the tags of the launch template itself.
#[must_use]
pub fn tag_specification(
    kind: ec2::ResourceType,
    tags: &BTreeMap<String, String>,
) -> ec2::TagSpecification {
    ec2::TagSpecification::builder()
        .resource_type(kind)
        .set_tags(Some(sdk_tags(tags)))
        .build()
}

fn metadata(t: &Template) -> ec2::LaunchTemplateInstanceMetadataOptionsRequest {
    let hops = t
        .metadata
        .http_put_response_hop_limit
        .and_then(|n| i32::try_from(n).ok());
    let of = |text: &Option<String>| text.as_deref().map(str::to_owned);
    ec2::LaunchTemplateInstanceMetadataOptionsRequest::builder()
        .set_http_endpoint(of(&t.metadata.http_endpoint).map(|v| v.as_str().into()))
        .set_http_protocol_ipv6(of(&t.metadata.http_protocol_ipv6).map(|v| v.as_str().into()))
        .set_http_put_response_hop_limit(hops)
        .set_http_tokens(of(&t.metadata.http_tokens).map(|v| v.as_str().into()))
        // Tag keys of the cluster contain slashes, which the instance metadata service does not support.
        .instance_metadata_tags(ec2::LaunchTemplateInstanceMetadataTagsState::Disabled)
        .build()
}

fn placement(t: &Template) -> ec2::LaunchTemplatePlacementRequest {
    let (group, partition) = match &t.placement {
        Some((group, partition)) => (Some(group.clone()), *partition),
        None => (None, None),
    };
    ec2::LaunchTemplatePlacementRequest::builder()
        .tenancy(t.tenancy.as_str().into())
        .set_group_id(group)
        .set_partition_number(partition.and_then(|n| i32::try_from(n).ok()))
        .build()
}

fn reservation(t: &Template) -> Option<ec2::LaunchTemplateCapacityReservationSpecificationRequest> {
    let target = t.reservation.as_ref()?;
    let builder = ec2::LaunchTemplateCapacityReservationSpecificationRequest::builder();
    Some(match target {
        Some(target) => builder
            .capacity_reservation_preference(
                ec2::CapacityReservationPreference::CapacityReservationsOnly,
            )
            .capacity_reservation_target(
                ec2::CapacityReservationTarget::builder()
                    .capacity_reservation_id(&target.id)
                    .build(),
            )
            .build(),
        // Instances that do not target a reservation must not use an open one.
        None => builder
            .capacity_reservation_preference(ec2::CapacityReservationPreference::None)
            .build(),
    })
}

fn market(t: &Template) -> Option<ec2::LaunchTemplateInstanceMarketOptionsRequest> {
    let target = t.reservation.as_ref()?.as_ref()?;
    let market = match (target.block, target.interruptible) {
        (true, _) => "capacity-block",
        (false, true) => "interruptible-capacity-reservation",
        (false, false) => return None,
    };
    Some(
        ec2::LaunchTemplateInstanceMarketOptionsRequest::builder()
            .market_type(market.into())
            .build(),
    )
}

/// Returns the network interfaces of a template.
#[must_use]
pub fn interfaces(
    t: &Template,
) -> Vec<ec2::LaunchTemplateInstanceNetworkInterfaceSpecificationRequest> {
    let listed = |card: i32, device: i32, kind: &str| NetworkInterface {
        network_card_index: card,
        device_index: device,
        interface_type: kind.to_owned(),
    };
    let all = match &t.network {
        Network::Listed(interfaces) => interfaces.clone(),
        Network::Efa(count) => (0..i32::try_from(*count).unwrap_or(0))
            .map(|card| listed(card, i32::from(card != 0), "efa"))
            .collect(),
        Network::Primary => vec![listed(0, 0, "")],
    };
    all.iter().map(|i| interface(t, i)).collect()
}

fn interface(
    t: &Template,
    i: &NetworkInterface,
) -> ec2::LaunchTemplateInstanceNetworkInterfaceSpecificationRequest {
    let groups = t.security_groups.iter().cloned().collect();
    let builder = ec2::LaunchTemplateInstanceNetworkInterfaceSpecificationRequest::builder()
        .device_index(i.device_index)
        .set_groups(Some(groups));
    let builder = match i.interface_type.as_str() {
        "" => builder,
        kind => builder
            .network_card_index(i.network_card_index)
            .interface_type(kind),
    };
    if i.is_efa_only() {
        return builder.build();
    }
    let (v4, v6) = if t.ipv6 {
        (None, t.ip_prefix_count)
    } else {
        (t.ip_prefix_count, None)
    };
    let tracking = t.connection_tracking.as_ref().map(|c| {
        ec2::ConnectionTrackingSpecificationRequest::builder()
            .set_tcp_established_timeout(c.tcp_established_timeout)
            .set_udp_stream_timeout(c.udp_stream_timeout)
            .set_udp_timeout(c.udp_timeout)
            .build()
    });
    builder
        .set_associate_public_ip_address(t.public_ip)
        .set_ipv4_prefix_count(v4)
        .set_ipv6_prefix_count(v6)
        .set_primary_ipv6(t.ipv6.then_some(true))
        .set_ipv6_address_count(t.ipv6.then_some(1))
        .set_connection_tracking_specification(tracking)
        .build()
}

fn block_device(mapping: &BlockDeviceMapping) -> ec2::LaunchTemplateBlockDeviceMappingRequest {
    let small = |n: Option<i64>| n.filter(|n| *n > 0).and_then(|n| i32::try_from(n).ok());
    let ebs = mapping.ebs.as_ref().map(|ebs| {
        ec2::LaunchTemplateEbsBlockDeviceRequest::builder()
            .set_delete_on_termination(ebs.delete_on_termination)
            .set_encrypted(ebs.encrypted)
            .set_volume_type(ebs.volume_type.as_deref().map(Into::into))
            .set_iops(small(ebs.iops))
            .set_throughput(small(ebs.throughput))
            .set_kms_key_id(ebs.kms_key_id.clone())
            .set_snapshot_id(ebs.snapshot_id.clone())
            .set_volume_initialization_rate(ebs.volume_initialization_rate)
            .set_volume_size(ebs.size().and_then(|size| gibibytes(size.units_ceil())))
            .build()
    });
    ec2::LaunchTemplateBlockDeviceMappingRequest::builder()
        .set_device_name(mapping.device_name.clone())
        .set_ebs(ebs)
        .build()
}

/// Converts bytes to GiB, rounded up.
fn gibibytes(bytes: i64) -> Option<i32> {
    const GIB: i64 = 1 << 30;
    i32::try_from(bytes.saturating_add(GIB - 1) / GIB).ok()
}
