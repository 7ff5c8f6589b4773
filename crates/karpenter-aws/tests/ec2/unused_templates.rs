//! Launch templates that are no longer used.

use karpenter_aws::providers::launch_template::LaunchTemplates;
use karpenter_aws_fake::Fault;

use crate::ec2::support::{Log, World};
use crate::ec2::templates::template;

/// Conformance: AWS-lt-13
#[tokio::test]
async fn unused_templates_are_deleted_and_those_of_an_earlier_process_adopted() {
    let world = World::new().await;
    let mut one = template(&world.class("one"));
    one.tags
        .insert("eks:eks-cluster-name".into(), "test".into());
    one.tags
        .insert("karpenter.k8s.aws/ec2nodeclass".into(), "one".into());
    let dead = LaunchTemplates::new(world.aws.clone(), "test");
    dead.ensure(&one).await.unwrap();
    drop(dead);
    let templates = LaunchTemplates::new(world.aws.clone(), "test");
    assert_eq!(templates.hydrate().await.unwrap(), 1);
    templates.sweep().await;
    assert_eq!(
        world.fake.launch_templates().len(),
        1,
        "it may still be used"
    );
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    tokio::time::resume();
    templates.sweep().await;
    assert_eq!(world.fake.launch_templates().len(), 0);
    templates.ensure(&one).await.unwrap();
    templates.delete_all("one").await.unwrap();
    assert_eq!(world.fake.launch_templates().len(), 0);
}

/// Conformance: AWS-log-01
#[tokio::test]
async fn a_call_that_failed_is_logged_with_aws_s_code() {
    let world = World::new().await;
    let templates = LaunchTemplates::new(world.aws.clone(), "test");
    let one = template(&world.class("one"));
    templates.ensure(&one).await.unwrap();
    let denied = Fault::error("DeleteLaunchTemplate", "UnauthorizedOperation").message("not yours");
    world.fake.add_fault(denied.always());
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    tokio::time::resume();
    let log = Log::here();
    templates.sweep().await;
    let lines = log.lines("failed to delete launch template");
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["aws-error-code"], "UnauthorizedOperation");
    let text = lines[0]["error"].as_str().unwrap();
    assert!(text.contains("not yours"), "{text}");
}
