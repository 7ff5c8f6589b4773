//! The user's text, labels and taints, and sizes.

use super::*;

/// Conformance: AWS-userdata-01
#[test]
fn al2_runs_the_users_parts_first() {
    let wrapped = mime_parts(&text(
        AmiFamily::Al2,
        &with_custom("#!/bin/bash\necho \"hi\"\r\n"),
    ));
    assert_eq!(wrapped.len(), 2);
    assert_eq!(
        wrapped[0],
        (
            "text/x-shellscript".to_owned(),
            "#!/bin/bash\necho \"hi\"\n".to_owned()
        )
    );
    assert!(wrapped[1].1.contains("/etc/eks/bootstrap.sh 'prod'"));

    let archive = "Content-Type: multipart/mixed; boundary=\"BOUNDARY\"\nMIME-Version: 1.0\n\n\
                   --BOUNDARY\nContent-Type: text/x-shellscript; charset=\"us-ascii\"\n\necho first\n\n\
                   --BOUNDARY\nContent-Type: text/cloud-config\n\npackages: [jq]\n--BOUNDARY--\n";
    let merged = mime_parts(&text(AmiFamily::Al2, &with_custom(archive)));
    assert_eq!(
        merged[..2],
        [
            ("text/x-shellscript".to_owned(), "echo first\n".to_owned()),
            ("text/cloud-config".to_owned(), "packages: [jq]".to_owned())
        ]
    );
    assert_eq!(merged.len(), 3);

    assert_eq!(mime_parts(&text(AmiFamily::Al2, &with_custom(""))).len(), 1);
}

/// Conformance: AWS-userdata-02
#[test]
fn al2023_puts_its_document_after_the_users() {
    let own = |custom: &str| {
        let mut parts = mime_parts(&text(AmiFamily::Al2023, &with_custom(custom)));
        let (kind, last) = parts.pop().unwrap();
        assert_eq!(kind, "application/node.eks.aws");
        assert!(last.starts_with("# Karpenter Generated NodeConfig\n"));
        parts
    };
    let part = |kind: &str, content: &str| (kind.to_owned(), content.to_owned());

    assert_eq!(own(""), []);
    let yaml = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {}\n";
    assert_eq!(own(yaml), [part("application/node.eks.aws", yaml)]);
    let script = "#!/bin/bash\nset -e\nyum install -y jq";
    assert_eq!(own(script), [part("text/x-shellscript", script)]);
    // It would parse as a map: `echo "a` to `b"`.
    let odd = "#!/bin/bash\necho \"a: b\"";
    assert_eq!(own(odd), [part("text/x-shellscript", odd)]);
    let bare = "systemctl restart chronyd";
    assert_eq!(own(bare), [part("text/x-shellscript", bare)]);
    let archive = format!(
        "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"//\"\n\n\
         --//\nContent-Type: text/x-shellscript; charset=\"us-ascii\"\n\n{script}\n\
         --//\nContent-Type: application/node.eks.aws\n\n{yaml}\n--//--"
    );
    assert_eq!(
        own(&archive),
        [
            part("text/x-shellscript", script),
            part("application/node.eks.aws", yaml)
        ]
    );
}

/// Conformance: AWS-userdata-10
#[test]
fn al2023_waits_for_the_service_cidr() {
    for cidr in [None, Some(String::new())] {
        let mut settings = settings(&[]);
        settings.cluster.service_cidr = cidr;
        let error = generate(AmiFamily::Al2023, &settings).unwrap_err();
        assert!(error.is_transient());
        assert!(generate(AmiFamily::Al2, &settings).is_ok());
    }
}

/// Conformance: AWS-userdata-04, AWS-userdata-19
#[test]
fn bottlerocket_keeps_the_users_settings_and_overwrites_its_own() {
    let custom = r#"
        [settings.host-containers.admin]
        enabled = true
        [settings.autoscaling]
        should-wait = true
        [settings.kubernetes]
        cluster-name = "other"
        max-pods = 1
        registry-qps = 20
        reserved-cpus = "0-1"
        made-up = "x"
        [settings.kubernetes.node-labels]
        team = "theirs"
        mine = "kept"
        [settings.kubernetes.node-taints]
        gone = ["x:NoSchedule"]
        [other]
        key = 1
    "#;
    let generated = generate(AmiFamily::Bottlerocket, &with_custom(custom)).unwrap();
    let settings = &toml(&generated.text)["settings"];
    let kubernetes = &settings["kubernetes"];
    assert_eq!(settings["host-containers"]["admin"]["enabled"], true);
    assert_eq!(settings["autoscaling"]["should-wait"], false);
    assert_eq!(kubernetes["cluster-name"], "prod");
    assert_eq!(kubernetes["max-pods"], 58);
    assert_eq!(kubernetes["registry-qps"], 20);
    assert_eq!(kubernetes["reserved-cpus"], "0-1");
    assert_eq!(kubernetes["node-labels"]["team"], "search");
    assert_eq!(kubernetes["node-labels"]["mine"], "kept");
    assert_eq!(kubernetes["node-taints"]["gone"], Value::Null);
    assert_eq!(kubernetes["made-up"], Value::Null);
    assert_eq!(
        generated.ignored,
        [
            "`other` is outside of `settings`",
            "`settings.kubernetes.made-up` is not a setting of Bottlerocket"
        ]
    );
    assert!(generate(AmiFamily::Bottlerocket, &with_custom("not toml")).is_err());
}

#[test]
fn an_empty_map_replaces_the_users_setting_of_bottlerocket() {
    let with = |kubelet: &[(&str, Value)]| {
        let settings = NodeSettings {
            custom: Some("[settings.kubernetes.eviction-hard]\n\"pid.available\" = \"5%\"".into()),
            ..settings(kubelet)
        };
        let text = text(AmiFamily::Bottlerocket, &settings);
        toml(&text)["settings"]["kubernetes"]["eviction-hard"].clone()
    };
    let users = json!({"pid.available": "5%"});
    assert_eq!(with(&[]), users);
    assert_eq!(with(&[("evictionHard", Value::Null)]), users);
    assert_eq!(with(&[("evictionHard", json!({}))]), json!({}));
}

/// Conformance: AWS-userdata-16
#[test]
fn invalid_user_data_is_an_error_with_the_reason() {
    let bottlerocket = |custom: &str| refusal(AmiFamily::Bottlerocket, &with_custom(custom));
    let archive = "Content-Type: text/plain\n\nhi";
    let dns = ("clusterDNS", json!("10.0.0.10"));
    let kubelet = settings(&[dns, ("cpuCFSQuota", json!("no"))]);
    let mut authority = settings(&[]);
    authority.cluster.certificate_authority = Some("not base64!".to_owned());
    insta::assert_snapshot!(
        [
            bottlerocket("#!/bin/bash\necho hi"),
            bottlerocket("settings = 1"),
            bottlerocket("[settings]\nkubernetes = 1"),
            bottlerocket("[settings.kubernetes]\nlog-level = \"2\""),
            bottlerocket("[settings.kubernetes]\nallowed-unsafe-sysctls = [1]"),
            refusal(AmiFamily::Al2, &with_custom(archive)),
            refusal(AmiFamily::Al2023, &with_custom(archive)),
            refusal(AmiFamily::Al2023, &authority),
            refusal(AmiFamily::Al2, &kubelet),
        ]
        .join("\n"),
        @r#"
        invalid TOML in spec.userData: TOML parse error at line 2, column 6
          |
        2 | echo hi
          |      ^
        key with no value, expected `=`

        setting `settings` of spec.userData must be a table
        setting `settings.kubernetes` of spec.userData must be a table
        setting `settings.kubernetes.log-level` of spec.userData must be a whole number
        setting `settings.kubernetes.allowed-unsafe-sysctls` of spec.userData must be a list of strings
        invalid MIME document in spec.userData: the content type `text/plain` is not multipart
        invalid MIME document in spec.userData: the content type `text/plain` is not multipart
        invalid certificate authority of the cluster, not base64: Invalid symbol 32, offset 3.
        invalid spec.kubelet: clusterDNS: "10.0.0.10" is not a list of strings; cpuCFSQuota: "no" is not a boolean
        "#
    );
}

/// Conformance: AWS-userdata-05
#[test]
fn instance_storage_is_joined_on_request() {
    let raid0 = |default_mounts: bool, custom: Option<&str>| NodeSettings {
        raid0: true,
        default_mounts,
        custom: custom.map(str::to_owned),
        ..settings(&[])
    };
    let script = &mime_parts(&text(AmiFamily::Al2, &raid0(false, None)))[0].1;
    assert!(bootstrap_call(script).ends_with(&["--local-disks".to_owned(), "raid0".to_owned()]));
    let config = &mime_parts(&text(AmiFamily::Al2023, &raid0(false, None)))[0].1;
    let config: Value = serde_saphyr::from_str(config).unwrap();
    assert_eq!(
        config["spec"]["instance"],
        json!({"localStorage": {"strategy": "RAID0"}})
    );

    let user = "[settings.bootstrap-commands.001-mine]\ncommands = [[\"echo\"]]\nmode = \"once\"\nessential = false";
    let commands = |version: &str| {
        let default = binds_instance_storage_by_default(Some(version));
        let text = text(AmiFamily::Bottlerocket, &raid0(default, Some(user)));
        toml(&text)["settings"]["bootstrap-commands"].clone()
    };
    let expected = |bind: Value| {
        json!({
            "000-mount-instance-storage": {
                "commands": [["apiclient", "ephemeral-storage", "init"], bind],
                "essential": true,
                "mode": "always",
            },
            "001-mine": {"commands": [["echo"]], "mode": "once", "essential": false},
        })
    };
    assert_eq!(
        commands("v1.46.0"),
        expected(json!(["apiclient", "ephemeral-storage", "bind"]))
    );
    assert_eq!(
        commands("v1.45.0"),
        expected(json!([
            "apiclient",
            "ephemeral-storage",
            "bind",
            "--dirs",
            "/var/lib/containerd",
            "/var/lib/kubelet",
            "/var/log/pods"
        ]))
    );
    for (version, default) in [
        (Some("latest"), true),
        (Some("2.0.1"), true),
        (Some("v1.46.0-431fe75a"), true),
        (Some("v1.9.0"), false),
        (Some("odd"), false),
        (None, false),
    ] {
        assert_eq!(
            binds_instance_storage_by_default(version),
            default,
            "{version:?}"
        );
    }
}

/// Conformance: AWS-userdata-06, AWS-userdata-18
#[test]
fn labels_that_a_kubelet_may_not_set_are_left_to_registration() {
    let labels = kubelet_labels([
        ("kubernetes.io/x", "1"),
        ("k8s.io/x", "1"),
        ("foo.k8s.io/x", "1"),
        ("node.kubernetes.io/x", "1"),
        ("notk8s.io/x", "1"),
        ("karpenter.k8s.aws/instance-cpu", "4"),
        ("plain", "1"),
    ]);
    let keys: Vec<&str> = labels.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "karpenter.k8s.aws/instance-cpu",
            "karpenter.sh/do-not-sync-taints",
            "notk8s.io/x",
            "plain"
        ]
    );
}

/// Conformance: AWS-userdata-13
#[test]
fn the_unregistered_taint_is_added_once() {
    let unregistered = kubelet_taints(Vec::new(), Vec::new());
    assert_eq!(unregistered.len(), 1);
    assert_eq!(
        kubelet_taints(unregistered.clone(), Vec::new()),
        unregistered
    );
}

/// Conformance: AWS-userdata-07, AWS-userdata-18
#[test]
fn a_custom_image_gets_the_users_text_unchanged() {
    let custom = "anything\r\n\tat all ä\n";
    assert_eq!(text(AmiFamily::Custom, &with_custom(custom)), custom);
    assert_eq!(text(AmiFamily::Custom, &settings(&[])), "");
}

/// Conformance: AWS-userdata-08
#[test]
fn al2_gets_the_ip_family_of_an_ipv6_cluster() {
    let call = |address: &str| {
        let settings = settings(&[("clusterDNS", json!([address, "ignored"]))]);
        bootstrap_call(&mime_parts(&text(AmiFamily::Al2, &settings))[0].1)
    };
    let v6 = call("fd30:1c53:5f8a::a");
    assert_eq!(
        v6[5..9],
        [
            "--ip-family",
            "ipv6",
            "--dns-cluster-ip",
            "fd30:1c53:5f8a::a"
        ]
    );
    assert!(!call("10.100.0.10").contains(&"--ip-family".to_owned()));
}

#[test]
fn quotes_in_values_are_escaped() {
    let mut settings = settings(&[("clusterDNS", json!(["'; reboot; '"]))]);
    settings
        .labels
        .insert("odd".to_owned(), "a\"b\\".to_owned());
    let script = &mime_parts(&text(AmiFamily::Al2, &settings))[0].1;
    let call = bootstrap_call(script);
    assert_eq!(call[6], "'; reboot; '");
    assert!(kubelet_flags(&call[10])[0].contains("odd=a\"b\\,"));
    assert!(text(AmiFamily::Windows2022, &settings).contains("-DNSClusterIP '''; reboot; '''"));
}

/// Conformance: AWS-userdata-14
#[test]
fn user_data_over_the_limit_is_refused_before_the_launch() {
    let sized = |bytes: usize| UserData::new("x".repeat(bytes));
    assert!(sized(16_384).check_size().is_ok());
    insta::assert_snapshot!(sized(16_385).check_size().unwrap_err(), @"user data has 16385 bytes, and EC2 allows 16384: shorten spec.userData or load parts of it at boot");
    for family in AmiFamily::ALL {
        let custom = match family {
            AmiFamily::Bottlerocket => format!("[settings]\nmotd = \"{}\"", "x".repeat(61_440)),
            _ => "x".repeat(61_440),
        };
        let generated = generate(family, &with_custom(&custom)).unwrap();
        assert!(generated.check_size().is_err(), "{family}");
    }
}

proptest::proptest! {
    #[test]
    fn scripts_survive_the_archive(script in "[ -~\n\té]{1,200}") {
        proptest::prop_assume!(!mime::is_mime(&script));
        for family in [AmiFamily::Al2, AmiFamily::Al2023] {
            let parts = mime_parts(&text(family, &with_custom(&script)));
            proptest::prop_assert_eq!(parts.len(), 2);
            proptest::prop_assert_eq!(&parts[0].1, &script);
        }
    }
}
