//! A values file of upstream's chart, and what upstream's chart protects.

use super::{TODAY, helm, objects, template};

/// A values file of upstream's chart may name upstream's image, which would go on to run.
#[test]
fn the_image_of_upstream_is_refused_in_one_sentence() {
    needs_helm!();
    let values = format!(
        "{}\n",
        TODAY.replace(
            "controller:",
            "controller:\n  image: {repository: public.ecr.aws/karpenter/controller, tag: 1.14.1}"
        )
    );
    let refused = helm(&["template", "karpenter"], "karpenter", &values);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success());
    let sentence = "controller.image.repository is public.ecr.aws/karpenter/controller, the image of upstream: remove controller.image from the values, or set an image of this project";
    assert!(error.contains(sentence), "{error}");
    let own = values.replace(
        "public.ecr.aws/karpenter/controller",
        "123456789012.dkr.ecr.us-west-2.amazonaws.com/karpenter",
    );
    assert!(template("karpenter", &own).contains("amazonaws.com/karpenter:1.14.1"));
}

#[test]
fn only_the_controllers_pods_get_the_token_of_their_account() {
    needs_helm!();
    let manifests = template("karpenter", TODAY);
    let account = &objects(&manifests, "ServiceAccount")[0];
    assert_eq!(account["automountServiceAccountToken"], false);
    let deployment = &objects(&manifests, "Deployment")[0];
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], true);
}
