use std::io::Read as _;

use serde_json::{Value, json};
use skipped::skipped;

use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    let file = layout.join("blobs").join(digest.replace(':', "/"));
    assert_eq!(descriptor["size"], fs::metadata(&file).unwrap().len());
    assert_eq!(digest, sha256sum(&file));
    file
}

/// Returns the digest of a file, by another implementation.
fn sha256sum(file: &Path) -> String {
    let output = Command::new("sha256sum").arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    format!("sha256:{}", text.split_whitespace().next().unwrap())
}

/// Runs a program, with root's permissions.
fn as_root(
    program: &str,
    arguments: &[&str],
    folder: &Path,
) -> std::io::Result<std::process::Output> {
    let user = Command::new("id").arg("-u").output()?;
    let is_root = user.stdout == b"0\n";
    let words = if is_root {
        vec![program]
    } else {
        vec!["sudo", "-n", program]
    };
    Command::new(words[0])
        .args(&words[1..])
        .args(arguments)
        .current_dir(folder)
        .output()
}

fn release(out: &Path) -> Release {
    Release {
        root: root(),
        version: version(&root()).unwrap(),
        time: 1_700_000_000,
        commit: "c0ffee".to_owned(),
        out: out.to_owned(),
    }
}

/// The image has the binary that was built with these tests; a container runtime starts it.
#[test]
fn the_image_starts_as_another_user_than_root_with_nothing_but_its_files() {
    let tests = std::env::current_exe().unwrap();
    let binary = tests.parent().unwrap().with_file_name("karpenter-kwok");
    if !binary.exists() {
        skipped(
            "karpenter-kwok",
            format!("{} is not built", binary.display()),
        );
        return;
    }
    if as_root("runc", &["--version"], Path::new("/")).is_err() {
        skipped("runc", "it is not in PATH");
        return;
    }
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let home = tempfile::tempdir().unwrap();
    let from = home.path().join("binaries");
    let platform = from.join(format!("linux_{arch}"));
    fs::create_dir_all(&platform).unwrap();
    let stripped = platform.join("karpenter-kwok");
    let strip = Command::new("strip")
        .arg("-o")
        .arg(&stripped)
        .arg(&binary)
        .status();
    assert!(strip.unwrap().success());

    let release = release(&home.path().join("out"));
    let platforms = binaries::collect(&release, &from).unwrap();
    image::write_all(&release, &platforms).unwrap();
    let layout = release.out.join("images/karpenter-kwok");
    assert!(!release.out.join("images/karpenter").exists());
    let tagged = &read(&layout.join("index.json"))["manifests"][0];
    let tag = &tagged["annotations"]["org.opencontainers.image.ref.name"];
    assert_eq!(*tag, release.version.as_str());
    let index = read(&blob(&layout, tagged));
    let manifest = &index["manifests"][0];
    assert_eq!(
        manifest["platform"],
        json!({ "architecture": arch, "os": "linux" })
    );
    let manifest = read(&blob(&layout, manifest));
    let config = read(&blob(&layout, &manifest["config"]));

    let bundle = home.path().join("bundle");
    let layers = manifest["layers"].as_array().unwrap();
    for (layer, content) in layers
        .iter()
        .zip(config["rootfs"]["diff_ids"].as_array().unwrap())
    {
        let mut tar = Vec::new();
        let compressed = fs::File::open(blob(&layout, layer)).unwrap();
        flate2::read::GzDecoder::new(compressed)
            .read_to_end(&mut tar)
            .unwrap();
        let file = home.path().join("layer.tar");
        fs::write(&file, &tar).unwrap();
        assert_eq!(*content, sha256sum(&file));
        tar::Archive::new(tar.as_slice())
            .unpack(bundle.join("rootfs"))
            .unwrap();
    }
    for file in [
        "etc/ssl/certs/ca-certificates.crt",
        "usr/share/zoneinfo/Europe/Berlin",
        "licenses/LICENSE",
        "licenses/NOTICE",
    ] {
        assert!(bundle.join("rootfs").join(file).exists(), "{file}");
    }
    assert!(!bundle.join("rootfs/bin/sh").exists());

    let process = &config["config"];
    assert_eq!(process["User"], "65532:65532");
    let arguments = [process["Entrypoint"][0].clone(), json!("--version")];
    assert!(
        as_root("runc", &["spec"], &bundle)
            .unwrap()
            .status
            .success()
    );
    let mut spec = read(&bundle.join("config.json"));
    spec["process"]["terminal"] = json!(false);
    spec["process"]["args"] = json!(arguments);
    spec["process"]["env"] = process["Env"].clone();
    spec["process"]["user"] = json!({ "uid": 65532, "gid": 65532 });
    spec["process"]["capabilities"] = json!({});
    spec["root"]["readonly"] = json!(true);
    fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
    let name = format!("karpenter-release-{}", std::process::id());
    let output = as_root("runc", &["run", &name], &bundle).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        said.trim(),
        format!("karpenter-kwok {}", release.version),
        "{error}"
    );
}

#[test]
fn charts_are_reproducible() {
    let home = tempfile::tempdir().unwrap();
    let archives = ["a", "b"].map(|run| {
        let release = release(&home.path().join(run));
        charts::check_versions(&release).unwrap();
        charts::write_all(&release).unwrap();
        let name = format!("charts/karpenter-{}.tgz", release.version);
        fs::read(release.out.join(name)).unwrap()
    });
    assert_eq!(archives[0], archives[1]);
}

#[test]
fn checksums_are_of_every_file_outside_of_layouts() {
    let out = tempfile::tempdir().unwrap();
    fs::write(out.path().join("a.tar.gz"), "a").unwrap();
    oci::Layout::create(&out.path().join("images/x")).unwrap();
    checksums(out.path()).unwrap();
    let sums = fs::read_to_string(out.path().join("SHA256SUMS")).unwrap();
    let expected = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a.tar.gz\n";
    assert_eq!(sums, expected);
}

/// Only what `cargo metadata` and the files say: `cargo xtask package` builds the packages.
#[test]
fn every_library_can_be_published_and_selects_no_kubernetes_version() {
    let metadata: Value = crate::metadata(&root()).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let (published, unpublished): (Vec<_>, Vec<_>) = packages.partition(|p| p["publish"].is_null());
    let of = |packages: &[&Value]| -> Vec<String> {
        let name = |p: &&Value| p["name"].as_str().unwrap().to_owned();
        packages.iter().map(name).collect()
    };
    let mut names = of(&published);
    names.sort();
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let folders = folders.map(|it| it.unwrap().file_name().into_string().unwrap());
    let mut folders: Vec<String> = folders.collect();
    folders.sort();
    assert_eq!(names, folders, "not published: {:?}", of(&unpublished));

    let mut problems = Vec::new();
    for package in published {
        let name = package["name"].as_str().unwrap();
        let has = |key: &str| package[key].as_array().is_some_and(|it| !it.is_empty());
        if !(has("keywords") && has("categories") && package["readme"].is_string()) {
            problems.push(format!("{name} has no keywords, categories or README"));
        }
        for file in ["LICENSE", "NOTICE"] {
            let link = root().join("crates").join(name).join(file);
            if fs::read(&link).ok() != fs::read(root().join(file)).ok() {
                problems.push(format!("{name} has no {file}"));
            }
        }
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let is_kubernetes = |d: &&Value| d["name"] == "k8s-openapi";
        for dependency in dependencies.clone().filter(is_kubernetes) {
            let chooses = dependency["features"] == json!(["v1_36"]);
            if chooses != (dependency["kind"] == "dev") {
                problems.push(format!("{name}: only tests choose the Kubernetes version"));
            }
            let features = package["metadata"]["docs"]["rs"]["features"].to_string();
            if !features.contains("k8s-openapi/v1_36") {
                problems.push(format!("{name}: docs.rs does not choose one"));
            }
        }
        // A dependency on a path without a version is left out of the published manifest.
        for dependency in dependencies.filter(|d| d["path"].is_string() && d["req"] != "*") {
            if !names.iter().any(|name| dependency["name"] == *name) {
                problems.push(format!("{name} depends on {}", dependency["name"]));
            }
        }
    }
    assert_eq!(problems, [""; 0]);
}
