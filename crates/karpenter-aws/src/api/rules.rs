//! The CEL validation rules of EC2NodeClass. Users and tools match on their messages, so they are upstream's texts
//! wherever upstream has the rule.
//!
//! DIFFERS: mutually exclusive fields are checked in each selector term. Upstream's rules about subnets, security
//! groups and capacity reservations only fail if every term is invalid.

use serde_json::{Value, json};

use super::AmiFamily;

fn rules(pairs: &[(&str, &str)]) -> Value {
    pairs
        .iter()
        .map(|(message, rule)| json!({ "message": message, "rule": rule }))
        .collect()
}

pub(super) fn spec() -> Value {
    let mut all = vec![json!({
        "message": "must specify exactly one of ['role', 'instanceProfile']",
        "rule": "(has(self.role) && !has(self.instanceProfile)) || (!has(self.role) && has(self.instanceProfile))",
    })];
    for family in AmiFamily::ALL {
        if family == AmiFamily::Custom {
            continue;
        }
        let (name, alias) = (family.as_str(), family.as_str().to_ascii_lowercase());
        let article = if name.starts_with('A') { "an" } else { "a" };
        all.push(json!({
            "message": format!("if set, amiFamily must be '{name}' or 'Custom' when using {article} {name} alias"),
            "rule": format!("!has(self.amiFamily) || (self.amiSelectorTerms.exists(x, has(x.alias) && x.alias.find('^[^@]+') == '{alias}') ? (self.amiFamily == 'Custom' || self.amiFamily == '{name}') : true)"),
        }));
    }
    all.push(json!({
        "message": "must specify amiFamily if amiSelectorTerms does not contain an alias",
        "rule": "self.amiSelectorTerms.exists(x, has(x.alias)) ? true : has(self.amiFamily)",
    }));
    Value::Array(all)
}

pub(super) fn subnet_terms() -> Value {
    rules(&[
        ("subnetSelectorTerms cannot be empty", "self.size() != 0"),
        (
            "expected at least one, got none, ['tags', 'id']",
            "self.all(x, has(x.tags) || has(x.id))",
        ),
        (
            "'id' is mutually exclusive, cannot be set with a combination of other fields in a subnet selector term",
            "!self.exists(x, has(x.id) && has(x.tags))",
        ),
    ])
}

pub(super) fn security_group_terms() -> Value {
    rules(&[
        (
            "securityGroupSelectorTerms cannot be empty",
            "self.size() != 0",
        ),
        (
            "expected at least one, got none, ['tags', 'id', 'name']",
            "self.all(x, has(x.tags) || has(x.id) || has(x.name))",
        ),
        (
            "'id' is mutually exclusive, cannot be set with a combination of other fields in a security group selector term",
            "!self.exists(x, has(x.id) && (has(x.tags) || has(x.name)))",
        ),
        (
            "'name' is mutually exclusive, cannot be set with a combination of other fields in a security group selector term",
            "!self.exists(x, has(x.name) && (has(x.tags) || has(x.id)))",
        ),
    ])
}

pub(super) fn capacity_reservation_terms() -> Value {
    rules(&[
        (
            "expected at least one, got none, ['tags', 'id', 'instanceMatchCriteria']",
            "self.all(x, has(x.tags) || has(x.id) || has(x.instanceMatchCriteria))",
        ),
        (
            "'id' is mutually exclusive, cannot be set along with other fields in a capacity reservation selector term",
            "!self.exists(x, has(x.id) && (has(x.tags) || has(x.ownerID) || has(x.instanceMatchCriteria)))",
        ),
    ])
}

pub(super) fn placement_group() -> Value {
    rules(&[(
        "must specify exactly one of ['name', 'id']",
        "has(self.name) != has(self.id)",
    )])
}

pub(super) fn ami_terms() -> Value {
    rules(&[
        (
            "expected at least one, got none, ['tags', 'id', 'name', 'alias', 'ssmParameter']",
            "self.all(x, has(x.tags) || has(x.id) || has(x.name) || has(x.alias) || has(x.ssmParameter))",
        ),
        (
            "'id' is mutually exclusive, cannot be set with a combination of other fields in amiSelectorTerms",
            "!self.exists(x, has(x.id) && (has(x.alias) || has(x.tags) || has(x.name) || has(x.owner) || has(x.ssmParameter)))",
        ),
        (
            "'alias' is mutually exclusive, cannot be set with a combination of other fields in amiSelectorTerms",
            "!self.exists(x, has(x.alias) && (has(x.id) || has(x.tags) || has(x.name) || has(x.owner) || has(x.ssmParameter)))",
        ),
        (
            "'alias' is mutually exclusive, cannot be set with a combination of other amiSelectorTerms",
            "!(self.exists(x, has(x.alias)) && self.size() != 1)",
        ),
    ])
}

pub(super) fn alias() -> Value {
    const FAMILIES: &str =
        "'al2', 'al2023', 'bottlerocket', 'windows2019', 'windows2022', 'windows2025'";
    json!([
        {
            "message": "'alias' is improperly formatted, must match the format 'family@version'",
            "rule": "self.matches('^[a-zA-Z0-9]+@.+$')",
        },
        {
            "message": format!("family is not supported, must be one of the following: {FAMILIES}"),
            "rule": format!("self.split('@')[0] in [{FAMILIES}]"),
        },
        {
            "message": "windows families may only specify version 'latest'",
            "rule": "self.split('@')[0] in ['windows2019','windows2022','windows2025'] ? self.split('@')[1] == 'latest' : true",
        },
    ])
}

pub(super) fn selector_tags() -> Value {
    rules(&[(
        "empty tag keys or values aren't supported",
        "self.all(k, k != '' && self[k] != '')",
    )])
}

pub(super) fn tags() -> Value {
    rules(&[
        ("empty tag keys aren't supported", "self.all(k, k != '')"),
        (
            "tag contains a restricted tag matching eks:eks-cluster-name",
            "self.all(k, k !='eks:eks-cluster-name')",
        ),
        (
            "tag contains a restricted tag matching kubernetes.io/cluster/",
            "self.all(k, !k.startsWith('kubernetes.io/cluster') )",
        ),
        (
            "tag contains a restricted tag matching karpenter.sh/nodepool",
            "self.all(k, k != 'karpenter.sh/nodepool')",
        ),
        (
            "tag contains a restricted tag matching karpenter.sh/nodeclaim",
            "self.all(k, k !='karpenter.sh/nodeclaim')",
        ),
        (
            "tag contains a restricted tag matching karpenter.k8s.aws/ec2nodeclass",
            "self.all(k, k !='karpenter.k8s.aws/ec2nodeclass')",
        ),
    ])
}

/// Returns the rule of a field that must not be an empty string.
pub(super) fn not_empty(field: &str) -> Value {
    json!([{ "message": format!("{field} cannot be empty"), "rule": "self != ''" }])
}

pub(super) fn block_devices() -> Value {
    rules(&[(
        "must have only one blockDeviceMappings with rootVolume",
        "self.filter(x, has(x.rootVolume)?x.rootVolume==true:false).size() <= 1",
    )])
}

pub(super) fn ebs() -> Value {
    rules(&[
        (
            "snapshotID or volumeSize must be defined",
            "has(self.snapshotID) || has(self.volumeSize)",
        ),
        (
            "snapshotID must be set when volumeInitializationRate is set",
            "!has(self.volumeInitializationRate) || (has(self.snapshotID) && self.snapshotID != '')",
        ),
    ])
}

pub(super) fn network_interfaces() -> Value {
    rules(&[
        (
            "networkInterfaces must include an interface of type 'interface' with networkCardIndex 0 and deviceIndex 0",
            "self.size() == 0 || self.exists(x, x.networkCardIndex == 0 && x.deviceIndex == 0 && x.interfaceType == 'interface')",
        ),
        (
            "the pair of networkCardIndex and deviceIndex must be unique in networkInterfaces",
            "self.all(x, self.exists_one(y, x.networkCardIndex == y.networkCardIndex && x.deviceIndex == y.deviceIndex))",
        ),
        (
            "at most one interface of type 'efa-only' is allowed on a network card",
            "self.all(x, x.interfaceType != 'efa-only' || self.exists_one(y, y.interfaceType == 'efa-only' && x.networkCardIndex == y.networkCardIndex))",
        ),
    ])
}

pub(super) fn connection_tracking() -> Value {
    rules(&[(
        "expected at least one, got none, ['tcpEstablishedTimeout', 'udpStreamTimeout', 'udpTimeout']",
        "has(self.tcpEstablishedTimeout) || has(self.udpStreamTimeout) || has(self.udpTimeout)",
    )])
}
