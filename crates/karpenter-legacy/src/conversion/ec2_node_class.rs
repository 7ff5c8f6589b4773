//! EC2NodeClass: aliases instead of an implied image, Ubuntu, the hops of the metadata service, and the new fields of v1.

use karpenter_aws::api::AmiFamily;
use serde_json::{Map, Value, json};

use super::object::{annotate, annotation, object_at, take_annotation};
use crate::names::UBUNTU_COMPATIBILITY;

/// The fields of a v1beta1 spec.
const FIELDS: [&str; 14] = [
    "amiFamily",
    "amiSelectorTerms",
    "associatePublicIPAddress",
    "blockDeviceMappings",
    "context",
    "detailedMonitoring",
    "instanceProfile",
    "instanceStorePolicy",
    "metadataOptions",
    "role",
    "securityGroupSelectorTerms",
    "subnetSelectorTerms",
    "tags",
    "userData",
];
/// A placeholder for the id that v1 requires: no image has this id.
pub(crate) const PLACEHOLDER: &str = "ami-placeholder";
const UBUNTU: &str = "Ubuntu";

pub(super) fn up(class: &mut Value) {
    let family = class["spec"]["amiFamily"].as_str().unwrap_or_default();
    let by_alias = !has_terms(&class["spec"]);
    let ubuntu = family == UBUNTU;
    let alias = AmiFamily::from_name(family)
        .filter(|family| by_alias && *family != AmiFamily::Custom)
        .map(|family| format!("{}@latest", family.as_str().to_ascii_lowercase()));
    let mut changed = vec!["amiFamily"];
    let Some(spec) = object_at(class, "/spec") else {
        return;
    };
    if let Some(alias) = alias {
        spec.remove("amiFamily");
        spec.insert("amiSelectorTerms".to_owned(), json!([{ "alias": alias }]));
    }
    if ubuntu {
        spec.insert("amiFamily".to_owned(), AmiFamily::Al2.as_str().into());
        if spec.get("blockDeviceMappings").is_none_or(Value::is_null) {
            changed.push("blockDeviceMappings");
            spec.insert("blockDeviceMappings".to_owned(), ubuntu_devices());
        }
        if by_alias {
            changed.push("incompatible");
            spec.insert(
                "amiSelectorTerms".to_owned(),
                json!([{ "id": PLACEHOLDER }]),
            );
        }
    }
    metadata_options_up(spec);
    if ubuntu {
        annotate(class, UBUNTU_COMPATIBILITY, changed.join(","));
    }
}

pub(super) fn down(class: &mut Value) {
    let changed: Option<Vec<String>> = annotation(class, UBUNTU_COMPATIBILITY)
        .map(|text| text.split(',').map(str::to_owned).collect());
    let Some(spec) = object_at(class, "/spec") else {
        return;
    };
    spec.retain(|field, _| FIELDS.contains(&field.as_str()));
    let family = family_of(spec);
    if let Some(terms) = spec
        .get_mut("amiSelectorTerms")
        .and_then(Value::as_array_mut)
    {
        terms.retain(|term| term.get("alias").is_none() && term.get("ssmParameter").is_none());
        if terms.is_empty() {
            spec.remove("amiSelectorTerms");
        }
    }
    if let Some(changed) = &changed {
        let was = |what: &str| changed.iter().any(|changed| changed == what);
        spec.insert("amiFamily".to_owned(), UBUNTU.into());
        if was("incompatible")
            && spec.get("amiSelectorTerms") == Some(&json!([{ "id": PLACEHOLDER }]))
        {
            spec.remove("amiSelectorTerms");
        }
        if was("blockDeviceMappings") && spec.get("blockDeviceMappings") == Some(&ubuntu_devices())
        {
            spec.remove("blockDeviceMappings");
        }
    } else {
        spec.insert("amiFamily".to_owned(), family.into());
    }
    for mapping in spec
        .get_mut("blockDeviceMappings")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(ebs) = object_at(mapping, "/ebs") {
            ebs.remove("volumeInitializationRate");
        }
    }
    if changed.is_some() {
        take_annotation(class, UBUNTU_COMPATIBILITY);
    }
}

fn has_terms(spec: &Value) -> bool {
    spec["amiSelectorTerms"]
        .as_array()
        .is_some_and(|terms| !terms.is_empty())
}

/// Returns `amiFamily`, else the family of the alias, else `Custom`.
fn family_of(spec: &Map<String, Value>) -> String {
    if let Some(family) = spec.get("amiFamily").and_then(Value::as_str) {
        return family.to_owned();
    }
    let terms = spec.get("amiSelectorTerms").and_then(Value::as_array);
    let alias = terms
        .into_iter()
        .flatten()
        .find_map(|term| term.get("alias")?.as_str());
    let name = alias
        .and_then(|alias| alias.split_once('@'))
        .map(|(n, _)| n);
    AmiFamily::ALL
        .into_iter()
        .find(|family| name == Some(family.as_str().to_ascii_lowercase().as_str()))
        .unwrap_or(AmiFamily::Custom)
        .as_str()
        .to_owned()
}

/// Sets two hops, the default of v1beta1, as the default of v1 is one.
fn metadata_options_up(spec: &mut Map<String, Value>) {
    let options = spec
        .entry("metadataOptions")
        .or_insert_with(|| Value::Object(Map::new()));
    if options.is_null() {
        *options = Value::Object(Map::new());
    }
    let Some(options) = options.as_object_mut() else {
        return;
    };
    for (field, default) in [
        ("httpEndpoint", json!("enabled")),
        ("httpProtocolIPv6", json!("disabled")),
        ("httpPutResponseHopLimit", json!(2)),
        ("httpTokens", json!("required")),
    ] {
        options.entry(field).or_insert(default);
    }
}

/// Returns the root volume of Ubuntu's images.
fn ubuntu_devices() -> Value {
    json!([{
        "deviceName": "/dev/sda1",
        "rootVolume": true,
        "ebs": { "encrypted": true, "volumeType": "gp3", "volumeSize": "20Gi" },
    }])
}
