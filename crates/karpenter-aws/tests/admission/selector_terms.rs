//! Selector terms of AMIs, subnets, security groups and capacity reservations, and the AMI family.

use serde_json::{Value, json};

use crate::admission::{accepted, refused};

/// Conformance: AWS-api-31
#[test]
fn an_alias_is_alone_in_its_term() {
    for (field, value) in [
        ("id", json!("ami-1")),
        ("tags", json!({ "a": "b" })),
        ("name", json!("a")),
        ("owner", json!("self")),
        ("ssmParameter", json!("/a")),
    ] {
        let term = json!({ "alias": "al2023@latest", field: value });
        refused(
            json!({ "amiSelectorTerms": [term], "amiFamily": "AL2023" }),
            "'alias' is mutually exclusive, cannot be set with a combination of other fields in amiSelectorTerms",
        );
    }
}

/// Conformance: AWS-api-03, AWS-api-04, AWS-api-05, AWS-api-06
#[test]
fn the_family_must_be_known_and_match_the_alias() {
    refused(
        json!({ "amiFamily": "Ubuntu" }),
        "/spec/amiFamily: \"Ubuntu\" is not one of",
    );
    for (alias, family) in [
        ("al2@latest", "AL2"),
        ("al2023@latest", "AL2023"),
        ("bottlerocket@latest", "Bottlerocket"),
        ("windows2019@latest", "Windows2019"),
        ("windows2022@latest", "Windows2022"),
        ("windows2025@latest", "Windows2025"),
    ] {
        let with =
            |family: &str| json!({ "amiSelectorTerms": [{ "alias": alias }], "amiFamily": family });
        accepted(with(family));
        accepted(with("Custom"));
        refused(
            with(if family == "AL2" { "AL2023" } else { "AL2" }),
            &format!("if set, amiFamily must be '{family}' or 'Custom' when using a"),
        );
    }
    accepted(
        json!({ "amiSelectorTerms": [{ "alias": "al2023@v20240703" }], "amiFamily": "Custom" }),
    );
    accepted(json!({ "amiSelectorTerms": [{ "id": "ami-1" }], "amiFamily": "Custom" }));
    refused(
        json!({ "amiSelectorTerms": [{ "id": "ami-1" }] }),
        "must specify amiFamily if amiSelectorTerms does not contain an alias",
    );
}

/// Conformance: AWS-api-07, AWS-api-08, AWS-api-09, AWS-api-10
#[test]
fn image_terms_have_one_kind_of_selector() {
    let of = |terms: Value| json!({ "amiSelectorTerms": terms, "amiFamily": "AL2023" });
    let alone =
        "'alias' is mutually exclusive, cannot be set with a combination of other amiSelectorTerms";
    refused(
        of(json!([{ "alias": "al2023@latest" }, { "id": "ami-1" }])),
        alone,
    );
    refused(
        of(json!([{ "alias": "al2023@latest" }, { "alias": "al2023@latest" }])),
        alone,
    );
    let format = "'alias' is improperly formatted, must match the format 'family@version'";
    for (alias, rule) in [
        ("al2023", format),
        ("@latest", format),
        ("al2023@", format),
        ("al2023#latest", format),
        ("al2023/latest", format),
        ("ubuntu@latest", "family is not supported, must be one of"),
    ] {
        refused(json!({ "amiSelectorTerms": [{ "alias": alias }] }), rule);
    }
    for family in ["windows2019", "windows2022", "windows2025"] {
        refused(
            json!({ "amiSelectorTerms": [{ "alias": format!("{family}@v1.0.0") }] }),
            "windows families may only specify version 'latest'",
        );
        accepted(json!({ "amiSelectorTerms": [{ "alias": format!("{family}@latest") }] }));
    }
    accepted(of(json!([{ "owner": "self", "tags": { "a": "b" } }])));
    accepted(of(json!([{ "owner": "self", "name": "a" }])));
    accepted(of(json!([{ "ssmParameter": "/a" }])));
    let something =
        "expected at least one, got none, ['tags', 'id', 'name', 'alias', 'ssmParameter']";
    refused(of(json!([{ "owner": "self" }])), something);
    refused(of(json!([{}])), something);
    refused(
        of(json!([])),
        "/spec/amiSelectorTerms: [] has less than 1 item",
    );
    for other in [
        json!({ "tags": { "a": "b" } }),
        json!({ "name": "a" }),
        json!({ "owner": "self" }),
        json!({ "ssmParameter": "/a" }),
    ] {
        let mut term = other;
        term["id"] = "ami-1".into();
        refused(
            of(json!([term])),
            "'id' is mutually exclusive, cannot be set with a combination of other fields in amiSelectorTerms",
        );
    }
}

/// Conformance: AWS-api-11, AWS-api-12, AWS-api-13
#[test]
fn subnet_and_security_group_terms_must_select_something() {
    let empty_tags = "empty tag keys or values aren't supported";
    for (field, something, id) in [
        (
            "subnetSelectorTerms",
            "expected at least one, got none, ['tags', 'id']",
            "subnet-",
        ),
        (
            "securityGroupSelectorTerms",
            "expected at least one, got none, ['tags', 'id', 'name']",
            "sg-",
        ),
    ] {
        let of_field = |rule: &str| format!("{field}{rule}");
        for (terms, rule) in [
            (Value::Null, of_field("\" is a required property")),
            (json!([]), of_field(" cannot be empty")),
            (json!([{}]), something.to_owned()),
            (
                json!([{ "tags": {} }]),
                of_field("/0/tags: {} has less than 1 property"),
            ),
            (json!([{ "tags": { "a": "b" } }, {}]), something.to_owned()),
            (json!([{ "tags": { "": "b" } }]), empty_tags.to_owned()),
            (json!([{ "tags": { "a": "" } }]), empty_tags.to_owned()),
            (
                json!([{ "tags": { "a": "b" } }, { "tags": { "a": "" } }]),
                empty_tags.to_owned(),
            ),
            (
                json!([{ "id": "x-1" }]),
                of_field(&format!("/0/id: \"x-1\" does not match \"{id}")),
            ),
        ] {
            refused(json!({ field: terms }), &rule);
        }
        accepted(json!({ field: [{ "tags": { "a": "*" } }, { "tags": { "c": "d" } }] }));
    }
    accepted(json!({ "subnetSelectorTerms": [{ "id": "subnet-1" }] }));
    let group = |term: Value| json!({ "securityGroupSelectorTerms": [term] });
    accepted(group(json!({ "id": "sg-1" })));
    accepted(group(json!({ "name": "a" })));
    refused(
        group(json!({ "id": "sg-1", "tags": { "a": "b" } })),
        &exclusive("id", GROUP),
    );
    refused(
        group(json!({ "id": "sg-1", "name": "a" })),
        &exclusive("id", GROUP),
    );
    refused(
        group(json!({ "name": "a", "tags": { "a": "b" } })),
        &exclusive("name", GROUP),
    );
}

const GROUP: &str = "with a combination of other fields in a security group selector term";
const SUBNET: &str = "with a combination of other fields in a subnet selector term";
const RESERVATION: &str = "along with other fields in a capacity reservation selector term";

fn exclusive(field: &str, terms: &str) -> String {
    format!("'{field}' is mutually exclusive, cannot be set {terms}")
}

#[test]
fn a_valid_term_does_not_hide_an_invalid_one() {
    let good = json!({ "tags": { "a": "b" } });
    refused(
        json!({ "subnetSelectorTerms": [good, { "id": "subnet-1", "tags": { "a": "b" } }] }),
        &exclusive("id", SUBNET),
    );
    refused(
        json!({ "securityGroupSelectorTerms": [good, { "id": "sg-1", "name": "a" }] }),
        &exclusive("name", GROUP),
    );
    refused(
        json!({ "capacityReservationSelectorTerms": [good, { "id": "cr-1", "ownerID": "012345678901" }] }),
        &exclusive("id", RESERVATION),
    );
}

/// Conformance: AWS-api-15, AWS-api-16
#[test]
fn reservation_terms_are_refined_by_their_owner() {
    let of = |term: Value| json!({ "capacityReservationSelectorTerms": [term] });
    refused(
        of(json!({ "ownerID": "012345678901" })),
        "expected at least one, got none, ['tags', 'id', 'instanceMatchCriteria']",
    );
    refused(of(json!({ "id": "r-1" })), "/0/id: \"r-1\" does not match");
    refused(
        of(json!({ "tags": { "a": "b" }, "ownerID": "01234567890" })),
        "/0/ownerID: \"01234567890\" does not match",
    );
    accepted(of(json!({ "id": "cr-1" })));
    accepted(of(
        json!({ "instanceMatchCriteria": "open", "tags": { "a": "b" }, "ownerID": "012345678901" }),
    ));
    refused(
        of(json!({ "instanceMatchCriteria": "closed" })),
        "/0/instanceMatchCriteria: \"closed\" is not one of \"open\" or \"targeted\"",
    );
    refused(
        of(json!({ "instanceMatchCriteria": "open", "id": "cr-1" })),
        &exclusive("id", RESERVATION),
    );
}
