//! The images of the controllers: a layer with what each program needs (C library, certificates, time zones, users), and a layer
//! with the binary. No shell, no package manager, user 65532.
//!
//! The C library is the one of this computer, or of the cross toolchain: what the binary was linked with.
//!
//! Written here, and not by the Dockerfile, for the same bytes in each run, and without a daemon.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::archive::{Entries, gzip};
use super::binaries::Platform;
use super::inputs::Release;
use super::oci::{INDEX, Layout, MANIFEST};
use crate::files::sha256;

/// The images, which are named as their binaries, with their ports.
const IMAGES: [(&str, &[&str]); 3] = [
    ("karpenter", &["8080/tcp", "8081/tcp", "8443/tcp"]),
    ("karpenter-kwok", &["8080/tcp", "8081/tcp"]),
    ("karpenter-cluster-api", &["8080/tcp", "8081/tcp"]),
];
/// The user that the process runs as, as the chart and other distroless images have it.
const USER: u32 = 65532;

/// Writes an image for each controller, with all architectures that have its binary.
pub(super) fn write_all(release: &Release, platforms: &[Platform]) -> anyhow::Result<()> {
    for (name, ports) in IMAGES {
        let of_linux = platforms.iter().filter(|platform| platform.os == "linux");
        let built: Vec<_> = of_linux
            .filter_map(|platform| Some((platform, platform.binary(name)?)))
            .collect();
        if built.is_empty() {
            println!("skipped the image {name}: there is no binary for Linux");
            continue;
        }
        let layout = Layout::create(&release.out.join("images").join(name))?;
        let mut manifests = Vec::new();
        for (platform, binary) in built {
            let manifest = manifest(release, &layout, name, ports, platform, &binary)
                .with_context(|| format!("cannot write the image {name} for {platform}"))?;
            manifests.push(manifest);
        }
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
        layout.tag(layout.document(INDEX, &index)?, &release.version)?;
    }
    Ok(())
}

/// Writes the image of one architecture, and returns its descriptor.
fn manifest(
    release: &Release,
    layout: &Layout,
    name: &str,
    ports: &[&str],
    platform: &Platform,
    binary: &Path,
) -> anyhow::Result<Value> {
    let mut program = Entries::default();
    program.file(name, fs::read(binary)?, 0o755);
    for file in ["LICENSE", "NOTICE"] {
        let path = format!("licenses/{file}");
        program.file(&path, fs::read(release.root.join(file))?, 0o644);
    }
    let (mut layers, mut contents) = (Vec::new(), Vec::new());
    for entries in [base(binary, &platform.arch)?, program] {
        let tar = entries.tar(release.time)?;
        contents.push(format!("sha256:{}", sha256(&tar)));
        let media_type = "application/vnd.oci.image.layer.v1.tar+gzip";
        layers.push(layout.blob(media_type, &gzip(&tar)?)?);
    }
    let labels = json!({
        "org.opencontainers.image.title": name,
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.commit,
        "org.opencontainers.image.source": "https://github.com/karpenter-rs/karpenter",
        "org.opencontainers.image.licenses": "Apache-2.0",
    });
    let exposed: serde_json::Map<String, Value> = ports
        .iter()
        .map(|port| ((*port).to_owned(), json!({})))
        .collect();
    let config = json!({
        "architecture": platform.arch,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": [format!("/{name}")],
            "Env": ["PATH=/", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
            "WorkingDir": "/",
            "ExposedPorts": exposed,
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": contents },
    });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.document("application/vnd.oci.image.config.v1+json", &config)?,
        "layers": layers,
        "annotations": labels,
    });
    let mut descriptor = layout.document(MANIFEST, &manifest)?;
    descriptor["platform"] = json!({ "architecture": platform.arch, "os": "linux" });
    Ok(descriptor)
}

/// Returns what a binary needs of an operating system.
fn base(binary: &Path, arch: &str) -> anyhow::Result<Entries> {
    let mut entries = Entries::default();
    for (path, file) in libraries(binary, arch)? {
        let content = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        entries.file(path.trim_start_matches('/'), content, 0o755);
    }
    let certificates = "/etc/ssl/certs/ca-certificates.crt";
    let content = fs::read(certificates)
        .with_context(|| format!("cannot read {certificates}: install ca-certificates"))?;
    entries.file(certificates.trim_start_matches('/'), content, 0o644);
    let zones = "/usr/share/zoneinfo";
    for folder in
        fs::read_dir(zones).with_context(|| format!("cannot read {zones}: install tzdata"))?
    {
        let path = folder?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        // The same again with other leap seconds, and what no program reads.
        if ["posix", "right", "localtime", "posixrules"].contains(&name.as_str()) {
            continue;
        }
        let to = format!("{}/{name}", zones.trim_start_matches('/'));
        match path.is_dir() {
            true => entries.tree(&to, &path)?,
            false => entries.file(&to, fs::read(&path)?, 0o644),
        }
    }
    let passwd = format!(
        "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{USER}:{USER}:nonroot:/home/nonroot:/sbin/nologin\n"
    );
    entries.file("etc/passwd", passwd, 0o644);
    entries.file(
        "etc/group",
        format!("root:x:0:\nnonroot:x:{USER}:\n"),
        0o644,
    );
    // Without it the C library asks DNS before /etc/hosts.
    entries.file("etc/nsswitch.conf", "hosts: files dns\n", 0o644);
    entries.folder("home/nonroot");
    entries.folder("tmp");
    Ok(entries)
}

/// Returns the shared libraries of a binary and its dynamic linker: their paths in the image, and where they are here.
fn libraries(binary: &Path, arch: &str) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let (triplet, linker) = match arch {
        "amd64" => ("x86_64-linux-gnu", "/lib64/ld-linux-x86-64.so.2"),
        "arm64" => ("aarch64-linux-gnu", "/lib/ld-linux-aarch64.so.1"),
        arch => bail!("unknown architecture `{arch}`"),
    };
    // The first is of this computer's own architecture, the second of a cross toolchain.
    let folders = [
        format!("/lib/{triplet}"),
        format!("/usr/lib/{triplet}"),
        format!("/usr/{triplet}/lib"),
    ];
    let find = |name: &str| {
        let mut candidates = folders.iter().map(|folder| Path::new(folder).join(name));
        let found = candidates.find(|path| path.exists());
        found.with_context(|| format!("cannot find {name} for {arch}"))
    };
    let linker_name = Path::new(linker)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let mut found = vec![(linker.to_owned(), find(&linker_name)?)];
    let (mut known, mut queue) = (BTreeSet::from([linker_name.into_owned()]), needed(binary)?);
    while let Some(name) = queue.pop() {
        if !known.insert(name.clone()) {
            continue;
        }
        let file = find(&name)?;
        queue.extend(needed(&file)?);
        found.push((format!("/lib/{triplet}/{name}"), file));
    }
    Ok(found)
}

/// Returns the names of the shared libraries that a file is linked with.
fn needed(file: &Path) -> anyhow::Result<Vec<String>> {
    let output = Command::new("readelf")
        .arg("--dynamic")
        .arg(file)
        .output()
        .context("cannot run readelf: install binutils")?;
    if !output.status.success() {
        bail!("`{}` is not a binary", file.display());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter(|line| line.contains("(NEEDED)"));
    let name = |line: &str| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned());
    Ok(lines.filter_map(name).collect())
}
