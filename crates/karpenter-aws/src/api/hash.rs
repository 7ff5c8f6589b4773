//! The static hash of an EC2NodeClass, bit for bit as upstream computes it.
//!
//! It covers the fields that cannot be compared with a running instance: user data, block devices, metadata options,
//! kubelet settings, the cluster's CA, and more. Selectors and prefix counts are not covered. Nodes of a cluster that
//! upstream managed must not drift, so field names, their order, integer widths and the details of Go's hashstructure
//! are kept; see [`karpenter_api::hash`].
//!
//! UPSTREAM: pkg/apis/v1/ec2nodeclass.go Hash, pkg/controllers/nodeclass/hash/controller.go

use std::collections::BTreeMap;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::hash::{Struct, boolean, int32, int64, list, map, string};
use karpenter_api::v1::NodeClaim;

use super::canonical_json::canonical_json;
use crate::api::labels::annotations;
use crate::api::{
    BlockDevice, BlockDeviceMapping, ConnectionTracking, CpuOptions, EC2NodeClass,
    EC2NodeClassSpec, MetadataOptions, NetworkInterface, PlacementGroupSelector,
};

/// The version of [`static_hash`], written next to it. NodeClaims with another version get the new hash instead of
/// drifting.
pub const VERSION: &str = "v6";

/// Returns the static hash of a class in a cluster with this CA bundle (base64; empty for none).
pub fn static_hash(class: &EC2NodeClass, ca_bundle: &str) -> String {
    list([
        spec(&class.spec),
        string(class.ami_family().as_str()),
        string(ca_bundle),
        string(&canonical_json(class.spec.kubelet.as_ref())),
    ])
    .to_string()
}

/// Returns the annotations with the hash and its version, for the class itself and for NodeClaims created from it.
pub fn hash_annotations(class: &EC2NodeClass, ca_bundle: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (annotations::NODE_CLASS_HASH, static_hash(class, ca_bundle)),
        (annotations::NODE_CLASS_HASH_VERSION, VERSION.to_owned()),
    ])
}

/// Returns the annotations to write on a NodeClaim whose hash has another version: the current version, and the current
/// hash unless the NodeClaim has drifted, so that a drift found before the upgrade is kept. Empty if the version is
/// current.
pub fn updated_annotations(
    class: &EC2NodeClass,
    ca_bundle: &str,
    claim: &NodeClaim,
) -> BTreeMap<&'static str, String> {
    if claim.annotation(annotations::NODE_CLASS_HASH_VERSION) == Some(VERSION) {
        return BTreeMap::new();
    }
    let mut written = hash_annotations(class, ca_bundle);
    if claim.condition(types::DRIFTED).is_some() {
        written.remove(annotations::NODE_CLASS_HASH);
    }
    written
}

fn text(value: &Option<String>) -> Option<u64> {
    value.as_deref().map(string)
}

fn spec(spec: &EC2NodeClassSpec) -> u64 {
    let mappings = |all: &Vec<BlockDeviceMapping>| list(all.iter().map(mapping));
    let interfaces = |all: &Vec<NetworkInterface>| list(all.iter().map(interface));
    Struct::new("EC2NodeClassSpec")
        .field_some(
            "PlacementGroupSelector",
            spec.placement_group_selector.as_ref().map(placement_group),
        )
        .field_some(
            "AssociatePublicIPAddress",
            spec.associate_public_ip_address.map(boolean),
        )
        .field_some("UserData", text(&spec.user_data))
        .field_if("Role", spec.role.as_deref().unwrap_or_default())
        .field_some("InstanceProfile", text(&spec.instance_profile))
        .field_some("Tags", spec.tags.as_ref().map(map))
        .field_some(
            "BlockDeviceMappings",
            spec.block_device_mappings.as_ref().map(mappings),
        )
        .field_some("InstanceStorePolicy", text(&spec.instance_store_policy))
        .field_some(
            "NetworkInterfaces",
            spec.network_interfaces.as_ref().map(interfaces),
        )
        .field_some("DetailedMonitoring", spec.detailed_monitoring.map(boolean))
        .field_some(
            "MetadataOptions",
            spec.metadata_options.as_ref().map(metadata),
        )
        .field_some(
            "ConnectionTracking",
            spec.connection_tracking.as_ref().map(connection_tracking),
        )
        .field_some("Context", text(&spec.context))
        .field_some("CPUOptions", spec.cpu_options.as_ref().map(cpu_options))
        .finish()
}

fn placement_group(selector: &PlacementGroupSelector) -> u64 {
    Struct::new("PlacementGroupSelector")
        .field_if("Name", selector.name.as_deref().unwrap_or_default())
        .field_if("ID", selector.id.as_deref().unwrap_or_default())
        .finish()
}

fn mapping(mapping: &BlockDeviceMapping) -> u64 {
    Struct::new("BlockDeviceMapping")
        .field_some("DeviceName", text(&mapping.device_name))
        .field_some("EBS", mapping.ebs.as_ref().map(volume))
        .field_some("RootVolume", mapping.root_volume.then(|| boolean(true)))
        .finish()
}

fn volume(volume: &BlockDevice) -> u64 {
    // A size is hashed in the canonical form of its quantity; admission rejects sizes that are not quantities.
    let written = volume.volume_size.as_deref();
    let size = written.map(|written| match volume.size() {
        Some(quantity) => string(&quantity.to_string()),
        None => string(written),
    });
    Struct::new("BlockDevice")
        .field_some(
            "DeleteOnTermination",
            volume.delete_on_termination.map(boolean),
        )
        .field_some("Encrypted", volume.encrypted.map(boolean))
        .field_some("IOPS", volume.iops.map(int64))
        .field_some("KMSKeyID", text(&volume.kms_key_id))
        .field_some("SnapshotID", text(&volume.snapshot_id))
        .field_some("Throughput", volume.throughput.map(int64))
        .field_some(
            "VolumeInitializationRate",
            volume.volume_initialization_rate.map(int32),
        )
        .field_some("VolumeSize", size)
        .field_some("VolumeType", text(&volume.volume_type))
        .finish()
}

fn interface(interface: &NetworkInterface) -> u64 {
    let index = |index: i32| (index != 0).then(|| int32(index));
    Struct::new("NetworkInterface")
        .field_some("NetworkCardIndex", index(interface.network_card_index))
        .field_some("DeviceIndex", index(interface.device_index))
        .field_if("InterfaceType", &interface.interface_type)
        .finish()
}

fn metadata(options: &MetadataOptions) -> u64 {
    Struct::new("MetadataOptions")
        .field_some("HTTPEndpoint", text(&options.http_endpoint))
        .field_some("HTTPProtocolIPv6", text(&options.http_protocol_ipv6))
        .field_some(
            "HTTPPutResponseHopLimit",
            options.http_put_response_hop_limit.map(int64),
        )
        .field_some("HTTPTokens", text(&options.http_tokens))
        .finish()
}

fn connection_tracking(tracking: &ConnectionTracking) -> u64 {
    Struct::new("ConnectionTracking")
        .field_some(
            "TCPEstablishedTimeout",
            tracking.tcp_established_timeout.map(int32),
        )
        .field_some("UDPStreamTimeout", tracking.udp_stream_timeout.map(int32))
        .field_some("UDPTimeout", tracking.udp_timeout.map(int32))
        .finish()
}

fn cpu_options(options: &CpuOptions) -> u64 {
    Struct::new("CPUOptions")
        .field_some("NestedVirtualization", text(&options.nested_virtualization))
        .finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn class(spec: Value) -> EC2NodeClass {
        let mut spec: EC2NodeClassSpec = serde_json::from_value(spec).unwrap();
        spec.ami_family.get_or_insert_with(|| "Custom".to_owned());
        EC2NodeClass::new("default", spec)
    }

    fn golden() -> Vec<(String, Value, String)> {
        let file: Value = serde_json::from_str(include_str!(
            "../../tests/data/ec2nodeclass-hash-golden.json"
        ))
        .unwrap();
        file["vectors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|vector| {
                let text = |key: &str| vector[key].as_str().unwrap().to_owned();
                (text("case"), vector["spec"].clone(), text("hash"))
            })
            .collect()
    }

    fn claim(written: BTreeMap<&'static str, String>) -> NodeClaim {
        let mut claim = NodeClaim::new("a", Default::default());
        let written = written
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value));
        claim.metadata.annotations = Some(written.collect());
        claim
    }

    /// Conformance: AWS-hash-01
    #[test]
    fn every_vector_of_upstream_is_reproduced() {
        let golden = golden();
        assert_eq!(golden.len(), 26);
        let wrong: Vec<String> = golden
            .iter()
            .filter_map(|(case, spec, hash)| {
                let ours = static_hash(&class(spec.clone()), "test-ca-bundle");
                (ours != *hash).then(|| format!("{case}: {ours} instead of {hash}"))
            })
            .collect();
        assert_eq!(wrong, [""; 0]);
        let mut hashes: Vec<&String> = golden.iter().map(|(_, _, hash)| hash).collect();
        hashes.sort();
        hashes.dedup();
        assert!(hashes.len() > 20, "changes change the hash");
    }

    /// The hash covers the bytes of the CA: a comment and other line ends change it.
    #[test]
    fn kubelet_settings_and_a_real_ca_are_hashed_as_by_karpenter_in_go() {
        let file: Value = serde_json::from_str(include_str!(
            "../../tests/data/ec2nodeclass-hash-kubelet-ca.json"
        ))
        .unwrap();
        let vectors = file["vectors"].as_array().unwrap();
        assert_eq!(vectors.len(), 5);
        for vector in vectors {
            let spec: EC2NodeClassSpec = serde_json::from_value(vector["spec"].clone()).unwrap();
            let class = EC2NodeClass::new("default", spec);
            let ours = static_hash(&class, vector["caBundle"].as_str().unwrap());
            assert_eq!(vector["hash"], ours, "{}", vector["case"]);
        }
    }

    /// Conformance: AWS-hash-02
    #[test]
    fn selectors_and_prefix_counts_do_not_change_the_hash() {
        let mut other = class(golden()[0].1.clone());
        let before = static_hash(&other, "");
        other.spec.subnet_selector_terms = vec![Default::default()];
        other.spec.security_group_selector_terms = vec![Default::default()];
        other.spec.ami_selector_terms = vec![Default::default()];
        other.spec.capacity_reservation_selector_terms = vec![Default::default()];
        other.spec.ip_prefix_count = Some(3);
        assert_eq!(static_hash(&other, ""), before);
    }

    /// Conformance: AWS-hash-03
    #[test]
    fn the_order_of_disks_and_tags_does_not_change_the_hash() {
        let spec = json!({ "role": "r", "tags": { "a": "1", "b": "2" },
            "blockDeviceMappings": [{ "deviceName": "x" }, { "deviceName": "y" }] });
        let turned = json!({ "role": "r", "tags": { "b": "2", "a": "1" },
            "blockDeviceMappings": [{ "deviceName": "y" }, { "deviceName": "x" }] });
        assert_eq!(
            static_hash(&class(spec), ""),
            static_hash(&class(turned), "")
        );
    }

    /// Conformance: AWS-hash-04
    #[test]
    fn kubelet_settings_of_the_same_bytes_differ() {
        let of = |max_pods: i64| {
            static_hash(
                &class(json!({ "role": "r", "kubelet": { "maxPods": max_pods } })),
                "",
            )
        };
        assert_ne!(of(12), of(21));
    }

    /// Conformance: AWS-hash-09
    #[test]
    fn what_is_unset_differs_from_zero_and_sizes_count_as_quantities() {
        let of = |spec: Value| static_hash(&class(spec), "");
        let plain = of(json!({ "role": "r" }));
        for zero in [
            json!({ "role": "r", "associatePublicIPAddress": false }),
            json!({ "role": "r", "detailedMonitoring": false }),
            json!({ "role": "r", "cpuOptions": {} }),
            json!({ "role": "r", "userData": "" }),
        ] {
            assert_ne!(of(zero.clone()), plain, "{zero}");
        }
        for unset in [
            json!({ "role": "r", "associatePublicIPAddress": null }),
            json!({ "role": "r", "tags": null }),
        ] {
            assert_eq!(of(unset.clone()), plain, "{unset}");
        }
        let disk = |size: &str| {
            of(json!({ "role": "r", "blockDeviceMappings": [{ "ebs": { "volumeSize": size } }] }))
        };
        assert_eq!(disk("1024Gi"), disk("1Ti"));
        assert_eq!(disk("2000G"), disk("2T"));
        assert_ne!(disk("2Gi"), disk("2G"));
    }

    /// Conformance: AWS-hash-11
    #[test]
    fn the_hash_covers_the_resolved_family() {
        let with = |family: Option<&str>| {
            let spec = json!({ "role": "r", "amiSelectorTerms": [{ "alias": "al2023@latest" }], "amiFamily": family });
            static_hash(
                &EC2NodeClass::new("a", serde_json::from_value(spec).unwrap()),
                "",
            )
        };
        assert_eq!(with(None), with(Some("AL2023")));
        assert_ne!(with(None), with(Some("Custom")));
    }

    /// Conformance: AWS-hash-05
    #[cfg(feature = "sdk")]
    #[test]
    fn another_ca_drifts_every_node() {
        use crate::cloud_provider::drift::is_static_part_changed;
        let mut class = class(json!({ "role": "r" }));
        let old = claim(hash_annotations(&class, "ca-1"));
        class.metadata.annotations = old.metadata.annotations.clone();
        assert!(!is_static_part_changed(&class, &old));
        let new = claim(hash_annotations(&class, "ca-2"));
        assert_ne!(new.metadata.annotations, old.metadata.annotations);
        class.metadata.annotations = new.metadata.annotations.clone();
        assert!(is_static_part_changed(&class, &old));
        assert!(!is_static_part_changed(&class, &new));
    }
}
