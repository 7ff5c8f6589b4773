//! The condition ValidationSucceeded: what is wrong with a class itself, and what EC2 says to a dry run.

use karpenter_api::conditions::{HasConditions, types as core_types};
use karpenter_aws::api::condition_types as types;
use karpenter_aws_fake::{Cluster, Fault};
use karpenter_kube::controller::ReconcileError;
use serde_json::{Value, json};

use crate::support::{CLUSTER, World, is, reason, said};

const VALIDATION: &str = types::VALIDATION_SUCCEEDED;

async fn with_kubelet(world: &World, name: &str, kubelet: Value) -> (String, String) {
    world.create(name, json!({ "kubelet": kubelet })).await;
    reason(&world.seen(name).await, VALIDATION)
}

/// Conformance: AWS-validation-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expressions_need_the_gate_and_values_do_not() {
    let world = World::new().await;
    let disabled = is("False", "KubeletExpressionsDisabled");
    let fine = is("True", "ValidationSucceeded");
    let text = json!({ "maxPods": "vcpus * 10" });
    assert_eq!(with_kubelet(&world, "pods", text).await, disabled);
    let text = json!({ "kubeReserved": { "cpu": "vcpus * 10" } });
    assert_eq!(with_kubelet(&world, "reserved", text).await, disabled);
    let plain = json!({ "maxPods": 20, "kubeReserved": { "cpu": "100m" } });
    assert_eq!(with_kubelet(&world, "plain", plain).await, fine);
    let (_, _, message) = said(&world.get("pods").await, VALIDATION);
    assert!(message.contains("NodeClassCEL=true"), "{message}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_settings_are_judged_before_anything_is_asked() {
    let world = World::with(|aws| aws, |s| s.expressions = true).await;
    for (name, kubelet, why) in [
        (
            "unknown",
            json!({ "maxPod": 1, "podsPerCore": -1 }),
            "InvalidKubeletConfiguration",
        ),
        (
            "syntax",
            json!({ "maxPods": "vcpus *" }),
            "KubeletExpressionInvalid",
        ),
        (
            "division",
            json!({ "maxPods": "100 / (vcpus - 2)" }),
            "KubeletExpressionEvaluationFailed",
        ),
    ] {
        assert_eq!(
            with_kubelet(&world, name, kubelet).await,
            is("False", why),
            "{name}"
        );
    }
    world
        .create(
            "family",
            json!({
                "kubelet": { "serializeImagePulls": false },
                "amiSelectorTerms": [{ "alias": "bottlerocket@latest" }],
            }),
        )
        .await;
    let class = world.seen("family").await;
    assert_eq!(
        reason(&class, VALIDATION),
        is("False", "UnsupportedKubeletConfiguration")
    );
    assert_eq!(world.calls("RunInstances"), 0);
    assert!(
        said(&world.get("unknown").await, VALIDATION)
            .2
            .contains("; "),
        "all at once"
    );
    let good = json!({ "maxPods": "vcpus * 10 + 10" });
    assert_eq!(
        with_kubelet(&world, "good", good).await,
        is("True", VALIDATION)
    );
    world.stop().await;
}

/// Conformance: AWS-validation-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expression_waits_for_instance_types() {
    let world = World::with(|aws| aws, |s| s.expressions = true).await;
    world
        .parts
        .offered
        .with_resolver(|resolver| resolver.update_types(Vec::new()));
    world
        .create("default", json!({ "kubelet": { "maxPods": "vcpus * 10" } }))
        .await;
    let (class, error) = world.failed("default").await;
    assert!(matches!(error, ReconcileError::Refused(_)), "{error}");
    assert_eq!(
        reason(&class, VALIDATION),
        is("Unknown", "AwaitingReconciliation")
    );
    world
        .parts
        .offered
        .refresh_types(jiff::Timestamp::UNIX_EPOCH)
        .await
        .unwrap();
    assert!(world.seen("default").await.is_true(VALIDATION));
    world.stop().await;
}

/// Conformance: AWS-validation-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_controller_may_not_do_is_named_with_the_policy_that_forbids_it() {
    let world = World::new().await;
    world.create("default", json!({})).await;
    for action in ["CreateLaunchTemplate", "CreateFleet", "RunInstances"] {
        let why = format!("{action}AuthCheckFailed");
        world.fake.set(|s| s.denied = vec![format!("ec2:{action}")]);
        // Another spec is another verdict.
        world
            .respecify("default", json!({ "tags": { "try": action } }))
            .await;
        let class = world.seen("default").await;
        let (status, found, message) = said(&class, VALIDATION);
        assert_eq!((status, found), is("False", &why));
        let start = format!("Controller isn't authorized to call ec2:{action}: ");
        assert!(message.starts_with(&start), "{message}");
        assert!(message.contains("service control policy"), "{message}");
        assert!(message.contains(&format!("`ec2:{action}`")), "{message}");
        assert!(class.is_false(core_types::READY));
    }
    world.fake.set(|s| s.denied.clear());
    let boundary = "You are not authorized to perform this operation. User: u is not authorized to perform: ec2:RunInstances on resource: r because no permissions boundary allows the ec2:RunInstances action. Encoded authorization failure message: x1";
    let fault = Fault::error("RunInstances", "UnauthorizedOperation").message(boundary);
    world.fake.add_fault(fault.always());
    world
        .respecify("default", json!({ "tags": { "try": "boundary" } }))
        .await;
    let (_, _, message) = said(&world.seen("default").await, VALIDATION);
    assert!(message.contains("permissions boundary"), "{message}");
    let asked = world.calls("RunInstances");
    world.seen("default").await;
    assert_eq!(world.calls("RunInstances"), asked, "the verdict is kept");
    world.stop().await;
}

/// Conformance: AWS-validation-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_subnet_that_works_is_enough_and_else_the_first_decides() {
    let world = World::new().await;
    world
        .fake
        .add_fault(Fault::error("RunInstances", "InternalError"));
    world.create("default", json!({})).await;
    assert!(world.seen("default").await.is_true(VALIDATION));
    assert_eq!(world.calls("RunInstances"), 2);

    world.fake.clear_faults();
    world
        .fake
        .add_fault(Fault::error("RunInstances", "InternalError"));
    let denied = Fault::error("RunInstances", "UnauthorizedOperation");
    world.fake.add_fault(denied.always());
    world
        .respecify("default", json!({ "tags": { "a": "b" } }))
        .await;
    let (class, error) = world.failed("default").await;
    assert!(matches!(error, ReconcileError::Refused(_)), "{error}");
    assert!(
        class.condition(VALIDATION).unwrap().observed_generation != class.metadata.generation,
        "nothing is said of the new spec yet"
    );
    world.stop().await;
}

/// Conformance: AWS-validation-10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_profile_of_the_user_must_exist_and_one_of_ours_comes_in_time() {
    let world = World::new().await;
    world
        .create(
            "theirs",
            json!({ "role": null, "instanceProfile": "missing" }),
        )
        .await;
    let (class, error) = world.failed("theirs").await;
    assert!(matches!(error, ReconcileError::Refused(_)), "{error}");
    let (status, why, message) = said(&class, VALIDATION);
    assert_eq!((status, why), is("False", "InstanceProfileNotFound"));
    assert!(message.contains("spec.instanceProfile"), "{message}");
    world
        .fake
        .add_instance_profile("missing", Some(crate::support::ROLE));
    assert!(
        world.seen("theirs").await.is_true(core_types::READY),
        "it is asked again each time"
    );

    // EC2 learns of IAM's changes late.
    world.fake.set(|s| s.iam_delay_s = 3600.0);
    world.create("ours", json!({})).await;
    let (class, error) = world.failed("ours").await;
    assert!(matches!(error, ReconcileError::Refused(_)), "{error}");
    assert_eq!(
        reason(&class, VALIDATION),
        is("Unknown", "AwaitingReconciliation")
    );
    assert!(class.is_true(types::INSTANCE_PROFILE_READY));
    world.stop().await;
}

/// Conformance: AWS-validation-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_data_that_ec2_finds_too_large_is_told_by_its_own_reason() {
    let world = World::new().await;
    let malformed =
        |text: &str| Fault::error("RunInstances", "InvalidUserData.Malformed").message(text);
    world
        .fake
        .add_fault(malformed("User data is limited to 16384 bytes").always());
    world.create("default", json!({})).await;
    let class = world.seen("default").await;
    let (status, why, message) = said(&class, VALIDATION);
    assert_eq!((status, why), is("False", "UserDataSizeLimitExceeded"));
    assert!(message.contains("shorten spec.userData"), "{message}");

    world.fake.clear_faults();
    world
        .fake
        .add_fault(malformed("Invalid BASE64 encoding of user data").always());
    world
        .respecify("default", json!({ "tags": { "a": "b" } }))
        .await;
    let (class, error) = world.failed("default").await;
    assert!(error.to_string().contains("Invalid BASE64"), "{error}");
    assert_eq!(reason(&class, VALIDATION), is("False", "LaunchRefused"));
    world.fake.clear_faults();
    assert!(
        world.seen("default").await.is_true(VALIDATION),
        "it was no verdict"
    );
    world.stop().await;
}

/// Conformance: AWS-validation-12
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_annotation_more_is_reason_to_try_again() {
    let world = World::new().await;
    world.create("default", json!({})).await;
    world.seen("default").await;
    let asked = world.calls("RunInstances");
    world.seen("default").await;
    assert_eq!(world.calls("RunInstances"), asked);
    let annotated = json!({ "metadata": { "annotations": { "a": "b" } } });
    world.edit("default", annotated).await;
    world.seen("default").await;
    assert_eq!(world.calls("RunInstances"), asked + 1);
    world.stop().await;
}

/// Conformance: AWS-validation-13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_verdict_on_a_class_goes_with_it() {
    let world = World::new().await;
    world
        .fake
        .add_instance_profile("theirs", Some(crate::support::ROLE));
    let spec = json!({ "role": null, "instanceProfile": "theirs" });
    world.create("default", spec.clone()).await;
    assert!(world.seen("default").await.is_true(VALIDATION));
    let asked = world.calls("RunInstances");
    world.delete("default").await;
    world.look("default").await.unwrap();
    world
        .until(async || world.parts.stores.class("default").is_none().then_some(()))
        .await;
    // A class that is the same to the letter.
    world.create("default", spec).await;
    assert!(world.seen("default").await.is_true(VALIDATION));
    assert_eq!(world.calls("RunInstances"), asked + 1);
    world.stop().await;
}

/// Conformance: AWS-validation-18
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dry_runs_can_be_switched_off() {
    let world = World::with(|aws| aws, |s| s.disable_dry_run = true).await;
    world.create("default", json!({})).await;
    let class = world.seen("default").await;
    assert!(class.is_true(VALIDATION));
    assert!(class.is_true(core_types::READY));
    for action in ["CreateLaunchTemplate", "CreateFleet", "RunInstances"] {
        assert_eq!(world.calls(action), 0, "{action}");
    }
    world.stop().await;
}

/// Conformance: AWS-validation-19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_range_of_service_addresses_is_found_out_for_al2023() {
    // At the start EKS does not answer.
    let silent = Fault::error("DescribeCluster", "AccessDeniedException").message("not yours");
    let world = World::with(|aws| aws.fault(silent.times(2)), |_| {}).await;
    assert_eq!(world.parts.cluster.get().cluster.service_cidr, None);
    let mut cluster = Cluster::new(CLUSTER, "1.34");
    cluster.service_ipv4_cidr = None;
    cluster.service_ipv6_cidr = Some("fd00:10:96::/108".into());
    world.fake.add_cluster(cluster);

    let bottlerocket = json!({ "amiSelectorTerms": [{ "alias": "bottlerocket@latest" }] });
    world.create("other", bottlerocket).await;
    assert!(
        world.seen("other").await.is_true(core_types::READY),
        "other families do not need it"
    );
    world.create("default", json!({})).await;
    let (class, _) = world.failed("default").await;
    let (status, why, message) = said(&class, VALIDATION);
    assert_eq!((status, why), is("False", "ClusterCIDRResolutionFailed"));
    assert!(
        message.starts_with("Failed to detect the cluster CIDR"),
        "{message}"
    );
    let class = world.seen("default").await;
    assert!(class.is_true(core_types::READY));
    let settings = world.parts.cluster.get();
    assert_eq!(
        settings.cluster.service_cidr.as_deref(),
        Some("fd00:10:96::/108")
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trial_launches_nothing_and_uses_what_a_launch_would() {
    let world = World::new().await;
    let requirements = json!([{
        "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.xlarge", "g4dn.xlarge"],
    }]);
    world.pool("default", "default", requirements).await;
    world
        .create("default", json!({ "tags": { "team": "x" } }))
        .await;
    assert!(world.seen("default").await.is_true(VALIDATION));
    assert!(world.fake.instances().is_empty());
    let calls = world.fake.calls();
    let of = |action: &str| &calls.iter().rfind(|c| c.action == action).unwrap().params;
    assert_eq!(of("RunInstances")["InstanceType"], "m5.xlarge");
    let template = &world.fake.launch_templates()[0];
    assert_eq!(template.tags["team"], "x");
    assert_eq!(template.tags["karpenter.k8s.aws/ec2nodeclass"], "default");
    let bytes = world.cx.metrics.registry.render();
    assert!(
        bytes.contains("karpenter_ec2nodeclasses_userdata_bytes{nodeclass=\"default\"}"),
        "the size of user data is shown"
    );
    world.stop().await;
}
