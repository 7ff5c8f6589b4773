use std::collections::BTreeSet;

use super::*;

/// Conformance: AWS-pricing-05
#[test]
fn the_price_list_is_read_from_the_region_that_has_it() {
    for (region, wanted) in [
        ("us-west-2", "us-east-1"),
        ("eu-north-1", "eu-central-1"),
        ("ap-southeast-2", "ap-south-1"),
        ("cn-north-1", "cn-northwest-1"),
        ("sa-east-1", "us-east-1"),
    ] {
        assert_eq!(pricing_region(region), wanted);
    }
}

async fn unreached() -> Aws {
    let how = Connect {
        region: Some("us-west-2".into()),
        credentials: Some(("AKIATEST".into(), "secret".into())),
        pause: Duration::from_millis(1),
        attempts: Some(1),
        ..Connect::default()
    };
    Aws::connect(&how).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn create_fleet_has_a_longer_timeout_than_other_calls() {
    use std::future::pending;

    use aws_sdk_ec2::operation::create_fleet::CreateFleetError;
    let aws = unreached().await;
    for (operation, wanted) in [("CreateFleet", 240), ("DescribeSubnets", 45)] {
        let started = Instant::now();
        let answer = aws.ec2(operation, |_| {
            pending::<Result<(), SdkError<CreateFleetError, HttpResponse>>>()
        });
        let error = answer.await.unwrap_err();
        assert_eq!(error.failure, crate::sdk::errors::Failure::NoAnswer);
        assert_eq!(started.elapsed().as_secs(), wanted, "{operation}");
    }
}

#[test]
fn retry_and_trust_settings_of_the_environment_are_used_or_refused() {
    let of = |pairs: &[(&str, &str)]| {
        Connect::from_env(|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    };
    assert_eq!(of(&[]).unwrap().attempts, None);
    assert_eq!(of(&[("AWS_MAX_ATTEMPTS", "")]).unwrap().attempts, None);
    let values = [("AWS_MAX_ATTEMPTS", "7"), ("AWS_RETRY_MODE", "Adaptive")];
    assert_eq!(of(&values).unwrap().attempts, Some(7));
    for (name, value) in [
        ("AWS_MAX_ATTEMPTS", "0"),
        ("AWS_MAX_ATTEMPTS", "many"),
        ("AWS_RETRY_MODE", "legacy"),
        ("AWS_CA_BUNDLE", "/nowhere/ca.pem"),
    ] {
        let error = of(&[(name, value)]).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(value), "{error}");
    }
}

#[tokio::test]
async fn invalid_ca_certificates_are_an_error() {
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for pem in ["", "no certificate", broken] {
        let how = Connect {
            region: Some("us-west-2".into()),
            roots: Some(pem.into()),
            ..Connect::default()
        };
        let error = Aws::connect(&how).await.unwrap_err().to_string();
        assert!(error.contains("AWS_CA_BUNDLE"), "{error}");
    }
}

#[test]
fn pauses_double_up_to_the_longest() {
    let pauses: Vec<u64> = (1..10)
        .map(|n| pause(Duration::from_millis(100), n).as_millis() as u64)
        .collect();
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 8000, 8000]);
    let once = Duration::from_secs(1);
    let drawn: BTreeSet<Duration> = (0..64).map(|_| jittered(once)).collect();
    assert!(drawn.iter().all(|pause| (once / 2..=once).contains(pause)));
    assert!(drawn.len() > 1, "calls that failed together wait as long");
}

#[tokio::test]
async fn the_sdk_retries_calls_for_credentials_and_not_those_of_services() {
    for (attempts, wanted) in [(None, 3), (Some(7), 7)] {
        let how = Connect {
            region: Some("us-west-2".into()),
            attempts,
            ..Connect::default()
        };
        let config = load(&how).await.unwrap();
        let attempts = |config: &SdkConfig| config.retry_config().unwrap().max_attempts();
        assert_eq!(attempts(&config), wanted);
        assert_eq!(attempts(&without_retries(config)), 1);
    }
}
