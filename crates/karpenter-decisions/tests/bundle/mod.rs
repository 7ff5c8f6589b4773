//! Bundles as files: what is in them, and what is refused. Generated clusters are read back in `karpenter-spec`.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod recording;
mod redaction;

use std::io::{self, Write};

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::fake;
use karpenter_decisions::bundle::{self, Bundle, ReadError, Settings};
use proptest::prelude::*;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-10T00:00:00Z".parse().unwrap()
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A cluster with an object of each kind, most of them with a secret where objects can have one.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(ClusterConfig {
        well_known: fake::well_known(),
        ..ClusterConfig::default()
    });
    let class = json!({ "group": "example.com", "kind": "Rack", "name": "any" });
    let secret = json!({ "kubectl.kubernetes.io/last-applied-configuration": "SECRET", "example.com/note": "SECRET" });
    let managed = json!([{ "manager": "SECRET" }]);
    let is_true = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    cluster.apply_node_pool(&read(json!({
        "metadata": { "name": "default", "uid": "pool", "annotations": secret, "managedFields": managed },
        "spec": { "template": { "spec": { "requirements": [], "nodeClassRef": class } }, "disruption": { "consolidateAfter": "0s" } },
        "status": { "conditions": [is_true("Ready")] },
    })));
    cluster.set_instance_types("default", Ok(fake::instance_types(5)));
    cluster.set_instance_types("broken", Err("no such class".to_owned()));
    let resources = json!({ "cpu": "4", "memory": "8Gi", "pods": "20" });
    let labels = json!({
        "karpenter.sh/nodepool": "default", "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
        "karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "test-zone-1", "kubernetes.io/hostname": "node-a",
    });
    cluster.apply_node_claim(&read(json!({
        "metadata": { "name": "claim-a", "uid": "claim-a", "labels": labels, "annotations": secret, "managedFields": managed },
        "spec": { "requirements": [], "nodeClassRef": class },
        "status": { "providerID": "fake:///a", "capacity": resources, "allocatable": resources, "conditions": [is_true("Initialized"), is_true("Consolidatable")] },
    })));
    cluster.apply_node(&read(json!({
        "metadata": { "name": "node-a", "uid": "node-a", "labels": labels, "annotations": secret, "managedFields": managed },
        "spec": { "providerID": "fake:///a", "podCIDR": "SECRET" },
        "status": {
            "capacity": resources, "allocatable": resources, "images": [{ "names": ["SECRET"] }],
            "conditions": [{ "type": "Ready", "status": "True", "message": "SECRET" }],
        },
    })));
    for (name, node) in [("web-1", Some("node-a")), ("web-2", None)] {
        cluster.apply_pod(&read(json!({
            "metadata": { "name": name, "namespace": "shop", "uid": name, "labels": { "app": "web" }, "annotations": secret, "managedFields": managed },
            "spec": {
                "nodeName": node,
                "containers": [{
                    "name": "SECRET", "image": "SECRET", "command": ["SECRET"], "args": ["--password=SECRET"], "workingDir": "SECRET",
                    "env": [{ "name": "SECRET", "value": "SECRET" }], "envFrom": [{ "secretRef": { "name": "SECRET" } }],
                    "resources": { "requests": { "cpu": "500m" }, "limits": { "memory": "1Gi" } },
                    "volumeMounts": [{ "name": "data", "mountPath": "SECRET" }],
                    "livenessProbe": { "exec": { "command": ["SECRET"] } },
                }],
                "serviceAccountName": "SECRET", "imagePullSecrets": [{ "name": "SECRET" }], "hostAliases": [{ "ip": "1.1.1.1", "hostnames": ["SECRET"] }],
                "volumes": [
                    { "name": "data", "secret": { "secretName": "SECRET" } }, { "name": "SECRET", "configMap": { "name": "SECRET" } },
                    { "name": "claim", "persistentVolumeClaim": { "claimName": "data" } },
                ],
            },
            "status": {
                "phase": if node.is_some() { "Running" } else { "Pending" }, "message": "SECRET",
                "conditions": [{ "type": "PodScheduled", "status": if node.is_some() { "True" } else { "False" }, "reason": "Unschedulable", "message": "SECRET" }],
            },
        })));
    }
    cluster.apply_daemon_set(&read(json!({
        "metadata": { "name": "agent", "namespace": "kube-system", "uid": "agent", "annotations": secret },
        "spec": { "selector": {}, "template": { "metadata": { "annotations": secret }, "spec": {
            "containers": [{ "name": "c", "image": "SECRET", "env": [{ "name": "SECRET", "value": "SECRET" }], "resources": { "requests": { "cpu": "100m" } } }],
        } } },
    })));
    cluster.apply_pdb(&read(json!({
        "metadata": { "name": "web", "namespace": "shop", "annotations": secret, "managedFields": managed },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": "web" } } }, "status": { "disruptionsAllowed": 1, "disruptedPods": { "SECRET": "2026-01-01T00:00:00Z" } },
    })));
    cluster.apply_service(&read(json!({ "metadata": { "name": "web", "namespace": "shop", "annotations": secret }, "spec": { "selector": { "app": "web" }, "externalName": "SECRET" } })));
    cluster.apply_replica_set(&read(json!({ "metadata": { "name": "web", "namespace": "shop", "annotations": secret }, "spec": { "selector": { "matchLabels": { "app": "web" } }, "template": {} } })));
    cluster.apply_namespace(&read(json!({ "metadata": { "name": "shop", "labels": { "team": "red" }, "annotations": secret } })));
    cluster.apply_volume_claim(&read(json!({ "metadata": { "name": "data", "namespace": "shop", "annotations": secret }, "spec": { "volumeName": "vol" } })));
    cluster.apply_volume(&read(json!({ "metadata": { "name": "vol", "annotations": secret }, "spec": { "csi": { "driver": "d", "volumeHandle": "SECRET", "volumeAttributes": { "password": "SECRET" } } } })));
    cluster.apply_storage_class(&read(json!({ "metadata": { "name": "fast", "annotations": secret }, "provisioner": "d", "parameters": { "secret": "SECRET" } })));
    cluster.apply_csi_node(&read(json!({ "metadata": { "name": "node-a" }, "spec": { "drivers": [{ "name": "d", "nodeID": "SECRET", "allocatable": { "count": 5 } }] } })));
    cluster.apply_volume_attachment(&read(json!({ "metadata": { "name": "att" }, "spec": { "attacher": "d", "nodeName": "node-a", "source": { "persistentVolumeName": "vol" } }, "status": { "attached": true, "attachmentMetadata": { "token": "SECRET" } } })));
    cluster.apply_device_class(&read(json!({ "metadata": { "name": "gpu", "annotations": secret }, "spec": { "config": [{ "opaque": { "driver": "d", "parameters": { "key": "SECRET" } } }] } })));
    cluster.nominate("node-a", now());
    cluster
}

fn captured() -> Bundle {
    let settings = Settings::at(now());
    Bundle::new("fake", "0.1.0", cluster().snapshot(), settings).decided(None)
}

fn file(bundle: &Bundle) -> Vec<u8> {
    let mut file = Vec::new();
    bundle::write(bundle, &mut file).unwrap();
    file
}

fn lines(file: &[u8]) -> Vec<String> {
    let text = zstd::decode_all(file).unwrap();
    String::from_utf8(text)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Writes lines as a bundle: with the trailer that belongs to them.
fn of_lines(lines: &[String]) -> Vec<u8> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let digest = blake3::hash(text.as_bytes()).to_hex();
    let count = lines.len();
    let trailer = format!(r#"{{"kind":"Trailer","lines":{count},"blake3":"{digest}"}}"#);
    zstd::encode_all(format!("{text}{trailer}\n").as_bytes(), 1).unwrap()
}

/// Returns the lines of a bundle without its trailer, after a change.
fn changed(change: impl FnOnce(&mut Vec<String>)) -> Vec<u8> {
    let mut all = lines(&file(&captured()));
    all.pop();
    change(&mut all);
    of_lines(&all)
}

/// Returns the first line that starts so.
fn line_of<'a>(all: &'a mut [String], start: &str) -> &'a mut String {
    let mut all = all.iter_mut();
    all.find(|line| line.starts_with(start)).unwrap()
}

fn refused(file: &[u8]) -> String {
    bundle::read(file).unwrap_err().to_string()
}

/// Conformance: PLAN-06
#[test]
fn no_secret_of_any_object_is_in_a_bundle() {
    let text = lines(&file(&captured())).join("\n");
    assert!(text.contains("web-1") && text.contains("node-a") && text.contains("test-zone-1"));
    let at = text.find("SECRET");
    let around = at.map(|at| &text[at.saturating_sub(120)..at + 20]);
    assert_eq!(around, None);
}

#[test]
fn a_bundle_is_lines_of_json_between_a_manifest_and_a_trailer() {
    let all = lines(&file(&captured()));
    let first: Value = serde_json::from_str(&all[0]).unwrap();
    assert_eq!(
        (&first["kind"], &first["schema"], &first["provider"]),
        (&json!("Manifest"), &json!(4), &json!("fake"))
    );
    let last: Value = serde_json::from_str(all.last().unwrap()).unwrap();
    assert_eq!(
        (&last["kind"], &last["lines"]),
        (&json!("Trailer"), &json!(all.len() - 1))
    );
}

#[test]
fn what_the_bundle_knows_of_each_kind_is_read_back() {
    let bundle = captured();
    let read = bundle::read(file(&bundle).as_slice()).unwrap();
    assert_eq!(file(&read), file(&bundle));
    let (was, is) = (&bundle.snapshot, &read.snapshot);
    assert_eq!(is.pod("shop", "web-1"), was.pod("shop", "web-1"));
    assert_eq!(is.instance_types("broken"), was.instance_types("broken"));
    assert_eq!(is.volume("vol"), was.volume("vol"));
    assert_eq!(is.volume_attachments_on("node-a").count(), 1);
    assert_eq!(is.attach_limits("node-a"), was.attach_limits("node-a"));
    assert_eq!(
        is.controller_selector("ReplicaSet", "shop", "web"),
        was.controller_selector("ReplicaSet", "shop", "web")
    );
    assert_eq!(is.service_selectors("shop").count(), 1);
    assert_eq!(is.namespace_labels("shop"), was.namespace_labels("shop"));
    assert_eq!(is.daemon_sets().count(), 1);
    assert_eq!(is.node("node-a").unwrap().nominated_until, Some(now()));
    assert_eq!(is.pods_on("node-a").len(), 1);
}

/// Conformance: PLAN-15
#[test]
fn another_schema_is_refused_with_the_version_that_reads_it() {
    for (schema, expected) in [
        (
            5,
            "cannot read schema 5 of the bundle: this version reads schema 4; use version 9.1.0 or a later one",
        ),
        (
            3,
            "invalid bundle: line 1, byte 0: schema: 3 was written by no release; this version reads 4: capture again",
        ),
    ] {
        let first =
            format!(r#"{{"kind":"Manifest","schema":{schema},"engine":"9.1.0","news":true}}"#);
        assert_eq!(refused(&changed(|all| all[0] = first)), expected);
    }
}

#[test]
fn a_file_that_is_not_a_bundle_is_refused() {
    for foreign in [
        &b""[..],
        b"{}",
        b"PK\x03\x04",
        &[0; 512],
        &of_lines(&["{\"kind\":\"List\"}".to_owned()]),
    ] {
        let error = refused(foreign);
        assert!(
            error.contains("does not begin with the manifest"),
            "{error}"
        );
    }
    let yaml = zstd::encode_all(&b"kind: Manifest\n"[..], 1).unwrap();
    assert!(matches!(
        bundle::read(yaml.as_slice()),
        Err(ReadError::NotABundle)
    ));
}

#[test]
fn an_error_names_line_byte_and_field() {
    let wrong = changed(|all| {
        let line = line_of(all, r#"{"s":"pods""#);
        *line = line.replace(r#""phase":"Running""#, r#""phase":"Sleeping""#) + " ";
    });
    let error = refused(&wrong);
    let ReadError::Invalid {
        line,
        byte,
        field,
        problem,
    } = bundle::read(wrong.as_slice()).unwrap_err()
    else {
        panic!("{error}")
    };
    let all = lines(&wrong);
    let at = all.iter().position(|it| it.contains("Sleeping")).unwrap();
    let before: usize = all[..at].iter().map(|line| line.len() + 1).sum();
    assert_eq!(
        (line as usize, field.as_str()),
        (at + 1, "v.pod.phase"),
        "{error}"
    );
    let start = before + all[at].find("Sleeping").unwrap();
    assert!((byte as usize).abs_diff(start) < 16, "{byte} {start}");
    assert!(problem.contains("Sleeping"), "{problem}");
}

#[test]
fn lines_that_contradict_each_other_are_refused() {
    let pods = r#"{"s":"pods""#;
    for (expected, of, from, to) in [
        ("v.i: unknown number 99", pods, r#""i":0"#, r#""i":99"#),
        ("v.i: must be 0", r#"{"s":"shapes""#, r#""i":0"#, r#""i":7"#),
        (
            "unknown field `extra`",
            pods,
            r#""key":"#,
            r#""extra":1,"key":"#,
        ),
    ] {
        let error = refused(&changed(|all| {
            let line = line_of(all, of);
            *line = line.replacen(from, to, 1);
        }));
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let error = refused(&changed(|all| {
        all.push(r#"{"s":"secrets","v":{}}"#.to_owned());
    }));
    assert!(error.contains("unknown variant `secrets`"), "{error}");
}

#[test]
fn a_file_that_was_cut_or_changed_is_refused() {
    let whole = file(&captured());
    let error = refused(&whole[..whole.len() / 2]);
    assert!(
        error.contains("without its trailer") || error.contains("manifest"),
        "{error}"
    );
    let mut all = lines(&whole);
    let trailer = all.pop().unwrap();
    let compress = |lines: &[String]| {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        zstd::encode_all(text.as_bytes(), 1).unwrap()
    };
    assert!(refused(&compress(&all)).contains("without its trailer"));
    let mut missing = all.clone();
    missing.remove(all.len() - 1);
    missing.push(trailer.clone());
    assert!(refused(&compress(&missing)).contains("the number of lines"));
    let mut other = all.clone();
    let at = other.iter().position(|it| it.contains("web-1")).unwrap();
    other[at] = other[at].replace("web-1", "web-0");
    other.push(trailer.clone());
    assert!(refused(&compress(&other)).contains("the digest"));
    all.extend([trailer, "{}".to_owned()]);
    assert!(refused(&compress(&all)).contains("lines follow it"));
}

/// A disk with room for a number of bytes.
struct Disk {
    written: Vec<u8>,
    room: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(self.room - self.written.len());
        if fits == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.written.extend_from_slice(&bytes[..fits]);
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_bundle_without_room_on_the_disk_is_an_error_and_not_readable() {
    let (bundle, whole) = (captured(), file(&captured()));
    let last = whole.len().saturating_sub(3)..=whole.len();
    for room in (0..whole.len()).step_by(41).chain(last) {
        let written = Vec::new();
        let mut disk = Disk { written, room };
        let result = bundle::write(&bundle, &mut disk);
        if room == whole.len() {
            assert!(result.is_ok() && disk.written == whole);
        } else {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{room}: {error}");
            assert!(bundle::read(disk.written.as_slice()).is_err(), "{room}");
        }
    }
}

#[test]
fn a_bomb_is_refused_before_it_is_in_memory() {
    // A line without an end, 64 MiB of it, from a few KiB.
    let mut bomb = zstd::Encoder::new(Vec::new(), 1).unwrap();
    let manifest = lines(&file(&captured())).remove(0);
    writeln!(bomb, "{manifest}").unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..64 {
        bomb.write_all(&piece).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 64 << 10, "{}", bomb.len());
    let read =
        allocation_counter::measure(|| assert!(refused(&bomb).contains("longer than 32 MiB")));
    assert!(read.bytes_max < 96 << 20, "{}", read.bytes_max);
    // A window of 128 MiB, which the decompressor would have to allocate.
    let mut wide = zstd::Encoder::new(Vec::new(), 1).unwrap();
    wide.window_log(27).unwrap();
    wide.write_all(&piece).unwrap();
    let wide = wide.finish().unwrap();
    let read = allocation_counter::measure(|| drop(refused(&wide)));
    assert!(read.bytes_max < 32 << 20, "{}", read.bytes_max);
    // Values of three bytes, each a condition of a node in memory.
    let conditions = |count: usize| {
        let all_of_them = "{},".repeat(count);
        changed(|all| {
            all.push(format!(r#"{{"s":"objects","v":{{"Nodes":{{"metadata":{{}},"status":{{"conditions":[{all_of_them}{{}}]}}}}}}}}"#))
        })
    };
    let file = conditions(1_000_000);
    let read = allocation_counter::measure(|| drop(refused(&file)));
    assert!(read.bytes_max < 768 << 20, "{}", read.bytes_max);
    let file = conditions(10_000_000);
    let expected = "more than 2097152 values";
    let read = allocation_counter::measure(|| assert!(refused(&file).contains(expected)));
    assert!(read.bytes_max < 96 << 20, "{}", read.bytes_max);
    // Nesting that would overflow a stack.
    let deep = changed(|all| {
        let parameters = "[".repeat(1 << 20);
        all.push(format!(
            r#"{{"s":"objects","v":{{"DeviceClasses":{{"metadata":{{}},"spec":{{"config":[{{"opaque":{{"driver":"d","parameters":{parameters}"#
        ));
    });
    assert!(
        refused(&deep).contains("recursion limit"),
        "{}",
        refused(&deep)
    );
}

#[test]
fn untrusted_text_in_an_error_is_escaped_and_short() {
    let hostile = changed(|all| {
        all.push("{\"s\":\"\\u001b[2J\\u0007".to_owned() + &"x".repeat(5000) + "\",\"v\":1}")
    });
    let error = refused(&hostile);
    assert!(
        !error.chars().any(char::is_control) && error.len() < 600,
        "{error:?}"
    );
}

proptest! {
    /// A change of the compressed file, or of a line with a trailer that fits it, is read or refused, and never more.
    #[test]
    fn no_change_of_a_file_makes_reading_panic(
        at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<bool>(), line in any::<prop::sample::Index>(),
        byte in any::<prop::sample::Index>(), text in "[\\x00-\\x7f]{0,4}",
    ) {
        static WHOLE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| file(&captured()));
        let whole = WHOLE.clone();
        let mut damaged = whole.clone();
        let position = at.index(damaged.len());
        if cut { damaged.truncate(position) } else { damaged[position] ^= with | 1 }
        // What is read in spite of it is what was written: the digest covers every byte.
        if let Ok(read) = bundle::read(damaged.as_slice()) {
            prop_assert_eq!(lines(&file(&read)), lines(&whole));
        }
        let mut all = lines(&whole);
        all.pop();
        let line = line.index(all.len());
        let position = byte.index(all[line].len());
        if all[line].is_char_boundary(position) && all[line].is_char_boundary(position + 1) {
            all[line].replace_range(position..=position, &text);
        }
        if let Ok(read) = bundle::read(of_lines(&all).as_slice()) {
            let _ = read.clone().decided(None).replay(2);
            file(&read);
        }
    }
}
