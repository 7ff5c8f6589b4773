use karpenter_api::v1::ConsolidationPolicy;
use serde_json::json;

use super::*;

/// Returns an object with `spec` merged over `all`; `null` removes a field.
fn named<T: serde::de::DeserializeOwned>(name: &str, mut all: Value, spec: Value) -> T {
    for (key, value) in spec.as_object().unwrap() {
        match value {
            Value::Null => drop(all.as_object_mut().unwrap().remove(key)),
            value => all[key] = value.clone(),
        }
    }
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": all })).unwrap()
}

fn provisioner_with(name: &str, spec: Value) -> Provisioner {
    named(name, json!({ "providerRef": { "name": "t" } }), spec)
}

fn template_with(name: &str, spec: Value) -> AWSNodeTemplate {
    let all = json!({
        "subnetSelector": { "env": "x" }, "securityGroupSelector": { "env": "x" }, "instanceProfile": "profile",
    });
    named(name, all, spec)
}

/// Projects these objects and the template `t`.
fn projected(provisioners: &[Provisioner], settings: &ProjectionSettings) -> Projection {
    project(provisioners, &[template_with("t", json!({}))], settings)
}

fn projected_by_default(provisioners: &[Provisioner]) -> Projection {
    projected(provisioners, &ProjectionSettings::default())
}

fn pool(spec: Value) -> NodePool {
    let projection = projected_by_default(&[provisioner_with("p", spec)]);
    projection.node_pools.into_iter().next().unwrap().1
}

fn class(spec: Value) -> EC2NodeClass {
    let projection = project(
        &[],
        &[template_with("t", spec)],
        &ProjectionSettings::default(),
    );
    assert_eq!(
        projection.node_classes.len(),
        1,
        "{:?}",
        projection.findings
    );
    projection.node_classes.into_iter().next().unwrap().1
}

/// Returns the findings of a severity, without their subject.
fn found(projection: &Projection, severity: Severity) -> Vec<String> {
    let all = projection.findings.iter();
    all.filter(|f| f.severity == severity)
        .map(ToString::to_string)
        .collect()
}

fn errors_of_provisioner(spec: Value) -> Vec<String> {
    let both = [
        provisioner_with("p", spec),
        provisioner_with("other", json!({})),
    ];
    let projection = projected_by_default(&both);
    let names: Vec<&str> = projection
        .node_pools
        .iter()
        .map(|(_, p)| p.name())
        .collect();
    assert_eq!(names, ["other"], "only the invalid one is left out");
    found(&projection, Severity::Error)
}

fn errors_of_template(spec: Value) -> Vec<String> {
    let templates = [template_with("t", spec), template_with("u", json!({}))];
    let projection = project(&[], &templates, &ProjectionSettings::default());
    let names: Vec<&str> = projection
        .node_classes
        .iter()
        .map(|(_, c)| c.name())
        .collect();
    assert_eq!(names, ["u"], "only the invalid one is left out");
    found(&projection, Severity::Error)
}

fn requirement(pool: &NodePool, key: &str) -> Option<String> {
    let all = pool.spec.template.spec.requirements.iter();
    all.filter(|r| r.key == key)
        .map(|r| format!("{} {}", r.operator, r.values.join(",")))
        .next()
}

/// Conformance: AWS-legacy-03
#[test]
fn implicit_defaults_of_the_webhook_become_explicit() {
    let pool = pool(json!({}));
    let is = |key: &str| requirement(&pool, key).unwrap();
    assert_eq!(is("kubernetes.io/os"), "In linux");
    assert_eq!(is("kubernetes.io/arch"), "In amd64");
    assert_eq!(is("karpenter.sh/capacity-type"), "In on-demand");
    assert_eq!(is("karpenter.k8s.aws/instance-category"), "In c,m,r");
    assert_eq!(is("karpenter.k8s.aws/instance-generation"), "Gt 2");
}

/// Conformance: AWS-legacy-03
#[test]
fn defaults_are_not_added_to_labels_that_the_user_constrains() {
    let constrained = pool(json!({
        "labels": { "kubernetes.io/arch": "arm64" },
        "requirements": [
            { "key": "kubernetes.io/os", "operator": "In", "values": ["windows"] },
            { "key": "karpenter.sh/capacity-type", "operator": "Exists" },
            { "key": "karpenter.k8s.aws/instance-family", "operator": "NotIn", "values": ["t3"] },
        ],
    }));
    assert_eq!(
        requirement(&constrained, "kubernetes.io/os").unwrap(),
        "In windows"
    );
    assert_eq!(constrained.spec.template.spec.requirements.len(), 3);
    for key in [
        "node.kubernetes.io/instance-type",
        "karpenter.k8s.aws/instance-category",
        "karpenter.k8s.aws/instance-generation",
    ] {
        let one =
            pool(json!({ "requirements": [{ "key": key, "operator": "In", "values": ["5"] }] }));
        assert_eq!(requirement(&one, key).unwrap(), "In 5");
        assert_eq!(one.spec.template.spec.requirements.len(), 4, "{key}");
    }
}

#[test]
fn ttls_and_consolidation_become_a_disruption_policy() {
    let of = |spec: Value| {
        let pool = pool(spec);
        let disruption = pool.spec.disruption;
        let policy = disruption.consolidation_policy;
        (policy, disruption.consolidate_after.to_string())
    };
    let empty = ConsolidationPolicy::WhenEmpty;
    assert_eq!(
        of(json!({ "ttlSecondsAfterEmpty": 30 })),
        (empty.clone(), "30s".into())
    );
    assert_eq!(
        of(json!({ "consolidation": { "enabled": true } })),
        (ConsolidationPolicy::WhenEmptyOrUnderutilized, "0s".into())
    );
    for neither in [json!({}), json!({ "consolidation": { "enabled": false } })] {
        assert_eq!(of(neither), (empty.clone(), "Never".into()));
    }
    assert_eq!(
        of(json!({ "consolidation": { "enabled": false }, "ttlSecondsAfterEmpty": 0 })),
        (empty, "0s".into())
    );
}

/// Conformance: AWS-legacy-01
#[test]
fn nodes_expire_only_with_ttl_seconds_until_expired() {
    let of = |spec: Value| pool(spec).spec.template.spec.expire_after.to_string();
    assert_eq!(
        of(json!({ "ttlSecondsUntilExpired": 2_592_000 })),
        "2592000s"
    );
    assert_eq!(of(json!({})), "Never");
}

#[test]
fn all_other_fields_of_a_provisioner_are_kept() {
    let pool = pool(json!({
        "labels": { "team": "a" },
        "annotations": { "x": "y", "karpenter.sh/do-not-consolidate": "true" },
        "taints": [{ "key": "a", "effect": "NoSchedule" }],
        "startupTaints": [{ "key": "b", "effect": "NoExecute" }],
        "limits": { "resources": { "cpu": 1000, "memory": "1000Gi" } },
        "weight": 7,
    }));
    let metadata = &pool.spec.template.metadata;
    assert_eq!(
        json!(metadata),
        json!({ "labels": { "team": "a" }, "annotations": { "x": "y", "karpenter.sh/do-not-disrupt": "true" } })
    );
    assert_eq!(
        json!(pool.spec.limits),
        json!({ "cpu": "1000", "memory": "1000Gi" })
    );
    assert_eq!(pool.spec.weight, Some(7));
    let spec = &pool.spec.template.spec;
    assert_eq!(spec.taints.as_ref().unwrap()[0].key, "a");
    assert_eq!(spec.startup_taints.as_ref().unwrap()[0].key, "b");
    assert_eq!(
        json!(spec.node_class_ref),
        json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "t" })
    );
}

#[test]
fn nodes_have_the_label_of_the_provisioner_if_pods_may_select_by_it() {
    let settings = ProjectionSettings {
        provisioner_label: true,
        ..ProjectionSettings::default()
    };
    let projection = projected(&[provisioner_with("p", json!({}))], &settings);
    let labels = &projection.node_pools[0].1.spec.template.metadata.labels;
    assert_eq!(
        labels.as_ref().unwrap()["karpenter.sh/provisioner-name"],
        "p"
    );
}

#[test]
fn requirements_on_labels_that_no_longer_exist_are_left_out() {
    let old = provisioner_with(
        "p",
        json!({ "requirements": [{ "key": "karpenter.k8s.aws/instance-pods", "operator": "Gt", "values": ["20"] }] }),
    );
    let projection = projected_by_default(&[old]);
    assert_eq!(
        requirement(
            &projection.node_pools[0].1,
            "karpenter.k8s.aws/instance-pods"
        ),
        None
    );
    assert_eq!(
        found(&projection, Severity::Loss),
        [
            "lossy: Provisioner/p: spec.requirements[0]: the label `karpenter.k8s.aws/instance-pods` no longer exists; the requirement \
          is left out; limit pods with the kubelet setting maxPods, or select instance types"
        ]
    );
}

#[test]
fn provisioners_with_exclusive_fields_are_rejected() {
    for (spec, error) in [
        (
            json!({ "provider": { "subnetSelector": { "a": "b" } } }),
            "spec.provider: excludes providerRef; remove one of them",
        ),
        (
            json!({ "providerRef": null }),
            "spec.providerRef: is missing; name an AWSNodeTemplate in it",
        ),
        (
            json!({ "ttlSecondsAfterEmpty": 30, "consolidation": { "enabled": true } }),
            "spec.ttlSecondsAfterEmpty: excludes consolidation.enabled; remove one of them",
        ),
        (
            json!({ "providerRef": { "apiVersion": "example.com/v1", "kind": "Template", "name": "t" } }),
            "spec.providerRef: refers to a Template of `example.com`; refer to an AWSNodeTemplate of karpenter.k8s.aws",
        ),
    ] {
        let found = errors_of_provisioner(spec);
        assert_eq!(found, [format!("error: Provisioner/p: {error}")]);
    }
    let negative = json!({ "ttlSecondsAfterEmpty": -1 });
    assert_eq!(errors_of_provisioner(negative).len(), 1);
}

#[test]
fn a_reference_to_a_missing_template_is_rejected_in_a_cluster() {
    let old = [provisioner_with(
        "p",
        json!({ "providerRef": { "name": "gone" } }),
    )];
    let settings = ProjectionSettings {
        missing_template: MissingTemplate::Refuse,
        ..ProjectionSettings::default()
    };
    let refused = project(&old, &[], &settings);
    assert!(refused.node_pools.is_empty());
    assert_eq!(
        found(&refused, Severity::Error),
        [
            "error: Provisioner/p: spec.providerRef: there is no AWSNodeTemplate `gone`; create it, or refer to another"
        ]
    );
    let assumed = project(&old, &[], &ProjectionSettings::default());
    assert_eq!(
        assumed.node_pools[0]
            .1
            .spec
            .template
            .spec
            .node_class_ref
            .name,
        "gone"
    );
}

#[test]
fn templates_that_have_no_equivalent_are_rejected() {
    assert_eq!(
        errors_of_template(
            json!({ "launchTemplate": "mine", "subnetSelector": { "a": "b" }, "securityGroupSelector": null })
        ),
        [
            "error: AWSNodeTemplate/t: spec.launchTemplate: custom launch templates have no equivalent; move its user data, \
          image, security groups, devices and metadata options into userData, amiSelector, securityGroupSelector, \
          blockDeviceMappings and metadataOptions"
        ]
    );
    let many = (0..31).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(
        errors_of_template(json!({ "subnetSelector": { "env": many } })),
        [
            "error: AWSNodeTemplate/t: spec.subnetSelector: the comma lists expand to 31 terms; v1 allows 30; \
          select by one tag that all of them share, or split the object into several"
        ]
    );
    for spec in [
        json!({ "subnetSelector": null }),
        json!({ "instanceProfile": null }),
        json!({ "amiFamily": "Ubuntu" }),
        json!({ "amiFamily": "Custom" }),
        json!({ "amiFamily": "Solaris" }),
        json!({ "blockDeviceMappings": [{ "ebs": { "volumeSize": "1Ei" } }] }),
    ] {
        assert_eq!(errors_of_template(spec.clone()).len(), 1, "{spec}");
    }
}

#[test]
fn a_provisioner_of_a_rejected_template_is_not_converted() {
    let projection = project(
        &[provisioner_with("p", json!({}))],
        &[template_with("t", json!({ "launchTemplate": "mine" }))],
        &ProjectionSettings::default(),
    );
    assert!(projection.node_pools.is_empty() && projection.node_classes.is_empty());
    assert!(projection.failed(&provisioner("p")) && projection.failed(&template("t")));
}

#[test]
fn an_image_is_named_by_alias_unless_it_is_selected() {
    let terms = |class: &EC2NodeClass| json!(class.spec.ami_selector_terms);
    let plain = class(json!({}));
    assert_eq!(terms(&plain), json!([{ "alias": "al2@latest" }]));
    assert_eq!(plain.spec.ami_family, None);
    let windows = class(json!({ "amiFamily": "Windows2022" }));
    assert_eq!(terms(&windows), json!([{ "alias": "windows2022@latest" }]));
    let selected = class(
        json!({ "amiFamily": "Bottlerocket", "amiSelector": { "aws::name": "a,b", "aws::owners": "123,amazon" } }),
    );
    assert_eq!(selected.spec.ami_selector_terms.len(), 4);
    assert_eq!(selected.spec.ami_family.as_deref(), Some("Bottlerocket"));
    let ubuntu = class(json!({ "amiFamily": "Ubuntu", "amiSelector": { "aws::ids": "ami-1" } }));
    assert_eq!(terms(&ubuntu), json!([{ "id": "ami-1" }]));
    assert_eq!(ubuntu.spec.ami_family.as_deref(), Some("AL2"));
    assert_eq!(
        json!(ubuntu.spec.block_device_mappings),
        json!([{ "deviceName": "/dev/sda1", "rootVolume": true, "ebs": { "encrypted": true, "volumeSize": "20Gi", "volumeType": "gp3" } }])
    );
}

#[test]
fn metadata_options_keep_their_meaning() {
    let of = |spec: Value| json!(class(spec).spec.metadata_options);
    assert_eq!(
        of(json!({})),
        json!({ "httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 2, "httpTokens": "required" })
    );
    assert_eq!(
        of(json!({ "metadataOptions": { "httpEndpoint": "disabled" } })),
        json!({ "httpEndpoint": "disabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 1, "httpTokens": "optional" })
    );
}

#[test]
fn settings_of_the_controller_are_written_into_every_class() {
    let settings = ProjectionSettings {
        default_instance_profile: Some("default".to_owned()),
        tags: [("a", "settings"), ("b", "settings")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        ..ProjectionSettings::default()
    };
    let templates = [
        template_with("own", json!({ "tags": { "b": "own" } })),
        template_with(
            "without",
            json!({ "instanceProfile": null, "tags": { "karpenter.sh/managed-by": "x" } }),
        ),
    ];
    let projection = project(&[], &templates, &settings);
    let of = |index: usize| &projection.node_classes[index].1.spec;
    assert_eq!(of(0).instance_profile.as_deref(), Some("profile"));
    assert_eq!(json!(of(0).tags), json!({ "a": "settings", "b": "own" }));
    assert_eq!(of(1).instance_profile.as_deref(), Some("default"));
    assert_eq!(
        json!(of(1).tags),
        json!({ "a": "settings", "b": "settings" })
    );
    assert_eq!(found(&projection, Severity::Loss).len(), 1);
}

fn classes_of(provisioners: &[(&str, Value)], names: ClassNames) -> (Vec<String>, Vec<String>) {
    let provisioners: Vec<Provisioner> = provisioners
        .iter()
        .map(|(name, kubelet)| provisioner_with(name, json!({ "kubeletConfiguration": kubelet })))
        .collect();
    let settings = ProjectionSettings {
        class_names: names,
        ..ProjectionSettings::default()
    };
    let projection = projected(&provisioners, &settings);
    let classes = projection.node_classes.iter().map(|(_, class)| {
        let kubelet = class.spec.kubelet.as_ref();
        let pods = kubelet.and_then(|kubelet| kubelet.get("maxPods"));
        format!("{} {}", class.name(), json!(pods))
    });
    let pools = projection.node_pools.iter().map(|(_, pool)| {
        let class = &pool.spec.template.spec.node_class_ref.name;
        format!("{} {class}", pool.name())
    });
    (classes.collect(), pools.collect())
}

#[test]
fn each_kubelet_configuration_has_its_own_class() {
    let pods = |count: i32| json!({ "maxPods": count, "containerRuntime": "containerd" });
    let (classes, pools) = classes_of(&[("a", pods(10)), ("b", pods(10))], ClassNames::Readable);
    assert_eq!(
        (classes, pools),
        (vec!["t 10".into()], vec!["a t".into(), "b t".into()])
    );
    let mixed = [
        ("a", pods(10)),
        ("b", pods(10)),
        ("c", pods(20)),
        ("d", json!({})),
    ];
    let (classes, pools) = classes_of(&mixed, ClassNames::Readable);
    assert_eq!(classes, ["t null", "t-a 10", "t-c 20"]);
    assert_eq!(pools, ["a t-a", "b t-a", "c t-c", "d t"]);
}

#[test]
fn stable_names_do_not_depend_on_other_provisioners() {
    let pods = |count: i32| json!({ "maxPods": count });
    let (classes, one) = classes_of(&[("b", pods(10))], ClassNames::Stable);
    assert_eq!(classes.len(), 2, "the class of the template is kept");
    let (_, two) = classes_of(&[("a", pods(10)), ("b", pods(10))], ClassNames::Stable);
    assert_eq!(one[0], two[1]);
    assert!(one[0].starts_with("b t-kubelet-"), "{one:?}");
}

#[test]
fn inline_settings_of_aws_become_a_class() {
    let old = [
        provisioner_with(
            "t",
            json!({ "providerRef": null, "kubeletConfiguration": { "maxPods": 5 }, "provider": {
                "apiVersion": "extensions.karpenter.sh/v1alpha1", "kind": "AWS", "instanceProfile": "inline",
                "subnetSelector": { "Name": "*public*" }, "securityGroupSelector": { "aws-ids": "sg-1,sg-2" },
            } }),
        ),
        provisioner_with(
            "q",
            json!({ "providerRef": null, "provider": { "launchTemplate": "mine" } }),
        ),
    ];
    let projection = projected_by_default(&old);
    let (from, class) = &projection.node_classes[1];
    assert_eq!((from, class.name()), (&provisioner("t"), "t-provider"));
    assert_eq!(
        json!(class.spec.security_group_selector_terms),
        json!([{ "id": "sg-1" }, { "id": "sg-2" }])
    );
    assert_eq!(class.spec.kubelet.as_ref().unwrap()["maxPods"], 5);
    assert_eq!(
        projection.node_pools[0]
            .1
            .spec
            .template
            .spec
            .node_class_ref
            .name,
        "t-provider"
    );
    assert!(projection.failed(&provisioner("q")));
}

#[test]
fn a_machine_becomes_a_nodeclaim_for_reference() {
    let old = serde_json::from_value(json!({
        "metadata": { "name": "m", "labels": { "karpenter.sh/provisioner-name": "p" } },
        "spec": {
            "machineTemplateRef": { "name": "t" }, "resources": { "requests": { "cpu": "1" } },
            "requirements": [{ "key": "a", "operator": "Exists" }],
        },
    }))
    .unwrap();
    let (claim, findings) = node_claim(&old);
    assert_eq!(claim.label("karpenter.sh/nodepool"), Some("p"));
    assert_eq!(claim.spec.node_class_ref.name, "t");
    assert_eq!(claim.spec.expire_after.to_string(), "Never");
    assert_eq!(findings[0].severity, Severity::Loss);
}
