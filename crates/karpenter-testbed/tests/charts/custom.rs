//! The charts with a provider that is not of this project.

use serde_json::json;

use super::{helm, notes, objects, template};

const CUSTOM: &str = "
provider: custom
controller:
  image: {repository: registry.example.com/karpenter-lagoon, tag: 1.2.3}
  env: [{name: LAGOON_REGION, value: east}]
additionalClusterRoleRules:
  - {apiGroups: [lagoon.example.com], resources: [lagoonclasses], verbs: [get, list, watch]}
";

#[test]
fn a_custom_provider_has_its_own_image_settings_and_permissions() {
    needs_helm!();
    let manifests = template("karpenter", CUSTOM);
    for word in ["aws", "AWS", "kwok", "CLUSTER_NAME", "INTERRUPTION_QUEUE"] {
        assert!(!manifests.contains(word), "{word}: {manifests}");
    }
    let deployment = &objects(&manifests, "Deployment")[0];
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        container["image"],
        "registry.example.com/karpenter-lagoon:1.2.3"
    );
    let region = json!({ "name": "LAGOON_REGION", "value": "east" });
    assert!(container["env"].as_array().unwrap().contains(&region));
    let roles = objects(&manifests, "ClusterRole");
    let names = roles.iter().map(|role| role["metadata"]["name"].as_str());
    let names: Vec<&str> = names.flatten().collect();
    assert_eq!(
        names,
        ["karpenter-admin", "karpenter-view", "karpenter-core"]
    );
    let core = roles[2]["rules"].as_array().unwrap();
    let own = json!({ "apiGroups": ["lagoon.example.com"], "resources": ["lagoonclasses"], "verbs": ["get", "list", "watch"] });
    assert!(core.contains(&own), "{core:?}");
    assert!(!notes(CUSTOM).contains("interruption"));
    let crds = template("karpenter-crd", "provider: custom");
    assert!(!crds.contains("nodeclasses"), "{crds}");
}

#[test]
fn a_provider_of_ones_own_needs_an_image() {
    needs_helm!();
    let refused = helm(&["template", "karpenter"], "karpenter", "provider: custom");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(
        error.contains("controller.image.repository is required"),
        "{error}"
    );
}
