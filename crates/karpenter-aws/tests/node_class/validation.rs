//! The condition ValidationSucceeded: errors in the class itself, and refused dry runs.

use karpenter_api::conditions::{HasConditions, types as core_types};
use karpenter_aws::api::condition_types as types;
use karpenter_aws_fake::{Cluster, Fault};
use karpenter_kube::controller::ReconcileError;
use serde_json::{Value, json};

use crate::node_class::support::{CLUSTER, World, is, observed, reason, says};

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
    let (_, _, message) = observed(&world.get("pods").await, VALIDATION);
    assert!(message.contains("NodeClassCEL=true"), "{message}");
}

/// Conformance: AWS-validation-25
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_settings_are_validated_before_any_call() {
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
    let class = world
        .made(
            "family",
            json!({
                "kubelet": { "serializeImagePulls": false },
                "amiSelectorTerms": [{ "alias": "bottlerocket@latest" }],
            }),
        )
        .await;
    assert_eq!(
        reason(&class, VALIDATION),
        is("False", "UnsupportedKubeletConfiguration")
    );
    assert_eq!(world.calls("RunInstances"), 0);
    assert!(
        observed(&world.get("unknown").await, VALIDATION)
            .2
            .contains("; "),
        "all at once"
    );
    let good = json!({ "maxPods": "vcpus * 10 + 10" });
    assert_eq!(
        with_kubelet(&world, "good", good).await,
        is("True", VALIDATION)
    );
}

/// Conformance: AWS-validation-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expression_waits_for_instance_types() {
    let world = World::with(|aws| aws, |s| s.expressions = true).await;
    world
        .aws
        .offered
        .with_resolver(|resolver| resolver.update_types(Vec::new()));
    world
        .create("default", json!({ "kubelet": { "maxPods": "vcpus * 10" } }))
        .await;
    let class = world.refused("default").await;
    assert_eq!(
        reason(&class, VALIDATION),
        is("Unknown", "AwaitingReconciliation")
    );
    world
        .aws
        .offered
        .refresh_types(jiff::Timestamp::UNIX_EPOCH)
        .await
        .unwrap();
    assert!(world.seen("default").await.is_true(VALIDATION));
}

/// Conformance: AWS-validation-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_permission_is_named_with_the_policy_that_denies_it() {
    let world = World::new().await;
    world.create("default", json!({})).await;
    for action in ["CreateLaunchTemplate", "CreateFleet", "RunInstances"] {
        let why = format!("{action}AuthCheckFailed");
        world.fake.set(|s| s.denied = vec![format!("ec2:{action}")]);
        // Another spec has its own verdict.
        let class = world
            .changed("default", json!({ "tags": { "try": action } }))
            .await;
        let (status, found, message) = observed(&class, VALIDATION);
        assert_eq!((status, found), is("False", &why));
        let start = format!("Controller isn't authorized to call ec2:{action}: ");
        assert!(message.starts_with(&start), "{message}");
        assert!(message.contains("service control policy"), "{message}");
        assert!(message.contains(&format!("`ec2:{action}`")), "{message}");
        assert!(class.is_false(core_types::READY));
    }
    world.fake.deny(&[]);
    let boundary = "You are not authorized to perform this operation. User: u is not authorized to perform: ec2:RunInstances on resource: r because no permissions boundary allows the ec2:RunInstances action. Encoded authorization failure message: x1";
    let fault = Fault::error("RunInstances", "UnauthorizedOperation").message(boundary);
    world.fake.add_fault(fault.always());
    world
        .respecify("default", json!({ "tags": { "try": "boundary" } }))
        .await;
    let (_, _, message) = observed(&world.seen("default").await, VALIDATION);
    assert!(message.contains("permissions boundary"), "{message}");
    let asked = world.calls("RunInstances");
    world.seen("default").await;
    assert_eq!(world.calls("RunInstances"), asked, "the verdict is cached");
}

/// Conformance: AWS-validation-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_working_subnet_is_enough_and_otherwise_the_first_error_decides() {
    let world = World::new().await;
    world
        .fake
        .add_fault(Fault::error("RunInstances", "InternalError"));
    assert!(world.made("default", json!({})).await.is_true(VALIDATION));
    assert_eq!(world.calls("RunInstances"), 2);

    world.fake.clear_faults();
    world
        .fake
        .add_fault(Fault::error("RunInstances", "InternalError"));
    world.fake.fail("RunInstances", "UnauthorizedOperation");
    world
        .respecify("default", json!({ "tags": { "a": "b" } }))
        .await;
    let class = world.refused("default").await;
    assert!(
        class.condition(VALIDATION).unwrap().observed_generation != class.metadata.generation,
        "there is no verdict on the new spec yet"
    );
}

/// Conformance: AWS-validation-10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_managed_profile_must_exist_and_our_new_one_is_waited_for() {
    let world = World::new().await;
    world
        .create(
            "theirs",
            json!({ "role": null, "instanceProfile": "missing" }),
        )
        .await;
    let class = world.refused("theirs").await;
    says(
        &class,
        VALIDATION,
        is("False", "InstanceProfileNotFound"),
        &["spec.instanceProfile"],
    );
    world
        .fake
        .add_instance_profile("missing", Some(crate::node_class::support::ROLE));
    assert!(
        world.seen("theirs").await.is_true(core_types::READY),
        "it is called again each time"
    );

    // EC2 sees changes of IAM with a delay.
    world.fake.set(|s| s.iam_delay_s = 3600.0);
    world.create("ours", json!({})).await;
    let class = world.refused("ours").await;
    assert_eq!(
        reason(&class, VALIDATION),
        is("Unknown", "AwaitingReconciliation")
    );
    assert!(class.is_true(types::INSTANCE_PROFILE_READY));
}

/// Conformance: AWS-validation-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_data_that_ec2_finds_too_large_has_its_own_reason() {
    let world = World::new().await;
    let malformed =
        |text: &str| Fault::error("RunInstances", "InvalidUserData.Malformed").message(text);
    world
        .fake
        .add_fault(malformed("User data is limited to 16384 bytes").always());
    let class = world.made("default", json!({})).await;
    says(
        &class,
        VALIDATION,
        is("False", "UserDataSizeLimitExceeded"),
        &["shorten spec.userData"],
    );

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
        "it was not a verdict"
    );
}

/// Conformance: AWS-validation-12
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_annotation_triggers_a_new_dry_run() {
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
}

/// Conformance: AWS-validation-13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_verdict_on_a_deleted_class_is_removed() {
    let world = World::new().await;
    world
        .fake
        .add_instance_profile("theirs", Some(crate::node_class::support::ROLE));
    let spec = json!({ "role": null, "instanceProfile": "theirs" });
    assert!(
        world
            .made("default", spec.clone())
            .await
            .is_true(VALIDATION)
    );
    let asked = world.calls("RunInstances");
    world.delete("default").await;
    world.reconcile("default").await.unwrap();
    world
        .until(async || world.aws.stores.class("default").is_none().then_some(()))
        .await;
    // A class with the same name and spec.
    assert!(world.made("default", spec).await.is_true(VALIDATION));
    assert_eq!(world.calls("RunInstances"), asked + 1);
}

/// Conformance: AWS-validation-18
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dry_runs_can_be_disabled() {
    let world = World::with(|aws| aws, |s| s.disable_dry_run = true).await;
    let class = world.made("default", json!({})).await;
    assert!(class.is_true(VALIDATION));
    assert!(class.is_true(core_types::READY));
    for action in ["CreateLaunchTemplate", "CreateFleet", "RunInstances"] {
        assert_eq!(world.calls(action), 0, "{action}");
    }
}

/// Conformance: AWS-validation-19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_cidr_is_discovered_for_al2023() {
    // At the start EKS refuses the call.
    let silent = Fault::error("DescribeCluster", "AccessDeniedException").message("not yours");
    let world = World::with(|aws| aws.fault(silent.times(2)), |_| {}).await;
    assert_eq!(world.aws.cluster.get().cluster.service_cidr, None);
    let mut cluster = Cluster::new(CLUSTER, "1.34");
    cluster.service_ipv4_cidr = None;
    cluster.service_ipv6_cidr = Some("fd00:10:96::/108".into());
    world.fake.add_cluster(cluster);

    let bottlerocket = json!({ "amiSelectorTerms": [{ "alias": "bottlerocket@latest" }] });
    world.ready("other", bottlerocket).await;
    world.create("default", json!({})).await;
    let (class, _) = world.failed("default").await;
    let (status, why, message) = observed(&class, VALIDATION);
    assert_eq!((status, why), is("False", "ClusterCIDRResolutionFailed"));
    assert!(
        message.starts_with("Failed to detect the cluster CIDR"),
        "{message}"
    );
    let class = world.seen("default").await;
    assert!(class.is_true(core_types::READY));
    let settings = world.aws.cluster.get();
    assert_eq!(
        settings.cluster.service_cidr.as_deref(),
        Some("fd00:10:96::/108")
    );
}

/// Conformance: AWS-validation-20
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_of_eks_is_no_verdict_on_the_range_of_service_addresses() {
    let silent = Fault::error("DescribeCluster", "InternalError").message("try again");
    let world = World::with(|aws| aws.fault(silent.always()), |_| {}).await;
    world.create("default", json!({})).await;
    let class = world.refused("default").await;
    assert_eq!(
        reason(&class, VALIDATION),
        is("Unknown", "AwaitingReconciliation")
    );
    world.fake.clear_faults();
    // EKS is left alone for a moment.
    world
        .until(async || world.reconcile("default").await.ok().map(|_| ()))
        .await;
    assert!(world.get("default").await.is_true(core_types::READY));
}

/// Conformance: AWS-validation-24
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_class_depends_on_is_waited_for_as_long_as_it_is_not_known() {
    let world = World::new().await;
    world.fake.fail("DescribeSubnets", "InternalError");
    world.create("default", json!({})).await;
    let (class, _) = world.failed("default").await;
    assert_eq!(reason(&class, types::SUBNETS_READY).0, "Unknown");
    assert_eq!(
        reason(&class, VALIDATION),
        is("Unknown", "DependenciesNotReady")
    );
    world.fake.clear_faults();
    let nothing = json!([{ "tags": { "no": "such" } }]);
    let class = world
        .changed("default", json!({ "subnetSelectorTerms": nothing }))
        .await;
    assert_eq!(
        reason(&class, VALIDATION),
        is("False", "DependenciesNotReady")
    );
    assert_eq!(world.calls("CreateLaunchTemplate"), 0, "nothing is tried");
}

/// Conformance: AWS-validation-28
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_that_only_karpenter_sets_is_reported_if_admission_allowed_it() {
    let world = World::new().await;
    world.admit_anything().await;
    let tags = json!({ "tags": { "karpenter.sh/nodepool": "mine" } });
    let class = world.made("default", tags).await;
    says(
        &class,
        VALIDATION,
        is("False", "TagValidationFailed"),
        &["karpenter.sh/nodepool"],
    );
    assert_eq!(world.calls("CreateLaunchTemplate"), 0, "nothing is tried");
}

/// Conformance: AWS-validation-27
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_that_is_throttled_or_broken_is_no_verdict_and_made_once() {
    let world = World::new().await;
    for (n, (action, code)) in [
        ("CreateFleet", "RequestLimitExceeded"),
        ("CreateFleet", "InternalError"),
        ("RunInstances", "RequestLimitExceeded"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("class-{n}");
        world.fake.fail(action, code);
        world.create(&name, json!({})).await;
        let before = world.calls(action);
        let class = world.refused(&name).await;
        assert_eq!(
            reason(&class, VALIDATION),
            is("Unknown", "AwaitingReconciliation"),
            "{action} {code}"
        );
        let subnets = class.status.subnets.len();
        let most = if action == "RunInstances" { subnets } else { 1 };
        assert!(
            (1..=most).contains(&(world.calls(action) - before)),
            "{action} is not repeated by the SDK"
        );
        let (_, error) = world.failed(&name).await;
        assert!(matches!(error, ReconcileError::Refused(_)), "asked again");
        world.fake.clear_faults();
        assert!(world.seen(&name).await.is_true(VALIDATION));
    }
}

/// Conformance: AWS-validation-26
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dry_runs_launch_nothing_and_use_the_parameters_of_a_launch() {
    let world = World::new().await;
    let requirements = json!([{
        "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.xlarge", "g4dn.xlarge"],
    }]);
    world.pool("default", "default", requirements).await;
    assert!(
        world
            .made("default", json!({ "tags": { "team": "x" } }))
            .await
            .is_true(VALIDATION)
    );
    assert!(world.fake.instances().is_empty());
    let calls = world.fake.calls();
    let of = |action: &str| &calls.iter().rfind(|c| c.action == action).unwrap().params;
    assert_eq!(of("RunInstances")["InstanceType"], "m5.xlarge");
    for action in ["CreateFleet", "RunInstances"] {
        assert_eq!(of(action)["DryRun"], true, "{action}");
        assert_eq!(world.calls(action), 1, "{action}");
    }
    assert_eq!(world.calls("CreateLaunchTemplate"), 1);
    let template = &world.fake.launch_templates()[0];
    assert_eq!(template.tags["team"], "x");
    assert_eq!(template.tags["karpenter.k8s.aws/ec2nodeclass"], "default");
    let bytes = world.cx.metrics.registry.render();
    assert!(
        bytes.contains("karpenter_ec2nodeclasses_userdata_bytes{nodeclass=\"default\"}"),
        "the size of user data is exported"
    );
}
