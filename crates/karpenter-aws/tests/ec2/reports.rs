//! What launches report besides their result: log lines and the size of user data.

use karpenter_aws_fake::Shortage;
use karpenter_core::provider::CloudProviderError;
use serde_json::Value;

use crate::ec2::launches::Case;
use crate::ec2::support::Log;

fn fields<'a>(line: &'a Value, names: &[&str]) -> Vec<&'a str> {
    let text = |name: &&str| line[*name].as_str().unwrap_or_default();
    names.iter().map(text).collect()
}

/// Conformance: AWS-ice-10
#[tokio::test]
async fn an_offering_that_becomes_unavailable_is_logged_with_its_fleet() {
    let log = Log::here();
    let case = Case::new("on-demand").await;
    let shortage = Shortage::new("m5.large", "us-west-2a", "*");
    case.world.fake.set_shortages(vec![shortage]);
    case.launch().await.unwrap();
    let lines = log.lines("removing offering from offerings");
    let [line] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    let names = [
        "level",
        "reason",
        "instance-type",
        "zone",
        "capacity-type",
        "ttl",
    ];
    let expected = [
        "DEBUG",
        "InsufficientInstanceCapacity",
        "m5.large",
        "us-west-2a",
        "on-demand",
        "3m0s",
    ];
    assert_eq!(fields(line, &names), expected);
    assert!(
        line["fleet-id"].as_str().unwrap().starts_with("fleet-"),
        "{line}"
    );
    assert!(line.get("placement-group-id").is_none(), "{line}");
}

/// Conformance: AWS-ice-04
#[tokio::test]
async fn a_reservation_that_is_used_up_is_logged() {
    let log = Log::here();
    let mut case = Case::new("reserved").await;
    case.reserve(1);
    case.launcher.counts.set_reported("cr-1", 5);
    case.launch().await.unwrap();
    let message = "marking capacity reservation unavailable";
    assert_eq!(log.lines(message), [Value::Null; 0]);
    case.claim.metadata.uid = Some("uid-2".into());
    case.launch().await.unwrap_err();
    let lines = log.lines(message);
    let [line] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    let names = ["reason", "instance-type", "zone", "capacity-reservation-id"];
    let expected = [
        "ReservationCapacityExceeded",
        "m5.large",
        "us-west-2a",
        "cr-1",
    ];
    assert_eq!(fields(line, &names), expected);
}

/// Conformance: AWS-userdata-14
#[tokio::test]
async fn the_size_of_user_data_is_exported_at_launches_also_if_it_is_too_large() {
    let log = Log::here();
    let mut case = Case::new("on-demand").await;
    let warning = "user data is near the limit";
    let exported = |case: &Case| {
        let text = case.world.registry.render();
        let of = r#"karpenter_ec2nodeclasses_userdata_bytes{nodeclass="default"} "#;
        let value = text.lines().find_map(|line| line.strip_prefix(of));
        value.map(|bytes| bytes.parse::<usize>().unwrap())
    };
    assert_eq!(exported(&case), None);
    case.launch().await.unwrap();
    let own = exported(&case).unwrap();
    assert!((500..10_000).contains(&own), "{own} bytes");
    assert_eq!(log.lines(warning).len(), 0);

    case.class.spec.user_data = Some(format!("#!/bin/sh\n# {}", "x".repeat(15_000 - own)));
    for uid in ["uid-2", "uid-3"] {
        case.claim.metadata.uid = Some(uid.into());
        case.launch().await.unwrap();
    }
    let near = exported(&case).unwrap();
    assert!((14_746..=16_384).contains(&near), "{near} bytes");
    assert_eq!(log.lines(warning).len(), 1, "once for a size");

    case.class.spec.user_data = Some("x".repeat(20_000));
    let error = case.launch().await.unwrap_err();
    let CloudProviderError::Create { reason, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(reason, "UserDataSizeLimitExceeded");
    let beyond = exported(&case).unwrap();
    assert!(beyond > 20_000, "{beyond} bytes");
    case.launcher.templates.forget("default");
    assert_eq!(exported(&case), None);
}
