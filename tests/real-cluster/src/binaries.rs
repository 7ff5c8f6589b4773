//! The programs of a control plane, and upstream's chart: finds them, or builds them through the Go module proxy.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::paths::root;

const KUBERNETES: &str = "1.36.3";
/// Programs that are a package of a module: name, module, version, package.
const OTHERS: [(&str, &str, &str, &str); 4] = [
    (
        "etcd",
        "go.etcd.io/etcd/server/v3",
        "v3.6.5",
        "go.etcd.io/etcd/server/v3",
    ),
    (
        "kwok",
        "sigs.k8s.io/kwok",
        "v0.8.0",
        "sigs.k8s.io/kwok/cmd/kwok",
    ),
    (
        "helm",
        "helm.sh/helm/v3",
        "v3.19.0",
        "helm.sh/helm/v3/cmd/helm",
    ),
    (
        "helm4",
        "helm.sh/helm/v4",
        "v4.3.1",
        "helm.sh/helm/v4/cmd/helm",
    ),
];
/// The program that only the full run needs.
const NOT_QUICK: &str = "helm4";
/// Upstream's chart, which a cluster is switched from: a file of it, its module, its version.
pub(crate) const UPSTREAM: (&str, &str, &str) = (
    "upstream/Chart.yaml",
    "github.com/aws/karpenter-provider-aws",
    "v1.14.1",
);
/// The version of Cluster API's modules.
const CLUSTER_API: &str = "v1.14.2";
const OF_KUBERNETES: [&str; 3] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];

/// The paths of the programs of a control plane.
#[derive(Clone, Debug)]
pub(crate) struct Binaries(BTreeMap<&'static str, PathBuf>);

impl Binaries {
    /// The path of a program.
    pub(crate) fn path(&self, name: &str) -> Result<&Path> {
        let found = self.0.get(name).map(PathBuf::as_path);
        found.with_context(|| format!("unknown program {name} of the control plane"))
    }
}

/// Returns the directory of the programs that were built here.
fn built() -> PathBuf {
    root().join("target/realcluster/bin")
}

/// Searches every program in `KUBEBUILDER_ASSETS`, then among those built here, then in `PATH`; `quick`: only those that the quick
/// scenarios need. The error has the names of the missing ones.
pub(crate) fn find(quick: bool) -> Result<Binaries, Vec<&'static str>> {
    let mut folders: Vec<PathBuf> = Vec::new();
    folders.extend(std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from));
    folders.push(built());
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    find_in(&folders, quick)
}

fn find_in(folders: &[PathBuf], quick: bool) -> Result<Binaries, Vec<&'static str>> {
    let names = OF_KUBERNETES
        .into_iter()
        .chain(OTHERS.map(|(name, ..)| name))
        .chain([UPSTREAM.0])
        .filter(|name| !quick || *name != NOT_QUICK);
    let mut found = BTreeMap::new();
    let mut missing = Vec::new();
    for name in names {
        let mut there = folders.iter().map(|folder| folder.join(name));
        match there.find(|file| is_program(file)) {
            Some(file) => {
                found.insert(name, file);
            }
            None => missing.push(name),
        }
    }
    match missing.is_empty() {
        true => Ok(Binaries(found)),
        false => Err(missing),
    }
}

/// Whether a file is the program itself: `.ci/run` installs a script in `PATH` that only renders charts as Helm does.
fn is_program(file: &Path) -> bool {
    let mut start = [0; 2];
    let read = fs::File::open(file).and_then(|mut file| file.read(&mut start));
    read.is_ok() && start != *b"#!"
}

/// Builds the missing programs, which takes a quarter of an hour on two cores; `quick`: only those that the quick scenarios need.
pub(crate) fn build(quick: bool) -> Result<Binaries> {
    let missing = match find(quick) {
        Ok(binaries) => return Ok(binaries),
        Err(missing) => missing,
    };
    let go = Command::new("go").arg("version").output();
    if !go.is_ok_and(|go| go.status.success()) {
        bail!(
            "missing: {}; install Go, or set KUBEBUILDER_ASSETS to a directory with them",
            missing.join(", ")
        );
    }
    fs::create_dir_all(built())?;
    let (kubernetes, others): (Vec<_>, Vec<_>) = missing
        .into_iter()
        .partition(|name| OF_KUBERNETES.contains(name));
    if !kubernetes.is_empty() {
        let module = kubernetes_module()?;
        for name in kubernetes {
            let package = format!("k8s.io/kubernetes/cmd/{name}");
            compile(&module, name, &package, &version_flags(KUBERNETES))?;
        }
    }
    for (name, module, version, package) in OTHERS {
        if others.contains(&name) {
            let folder = module_folder(name, "module realcluster\n\ngo 1.25.0\n")?;
            go_in(&folder, &["get", &format!("{module}@{version}")])?;
            compile(&folder, name, package, "")?;
        }
    }
    if others.contains(&UPSTREAM.0) {
        copy_upstream()?;
    }
    find(quick).map_err(|missing| anyhow::anyhow!("still missing: {}", missing.join(", ")))
}

/// Creates a directory with a `go.mod`.
fn module_folder(name: &str, go_mod: &str) -> Result<PathBuf> {
    let folder = root().join("target/realcluster/build").join(name);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("go.mod"), go_mod)?;
    Ok(folder)
}

fn go_in(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("go")
        .args(arguments)
        .current_dir(folder)
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .env("CGO_ENABLED", "0")
        // A module may need a newer Go than the installed one, which the proxy has, too.
        .env("GOTOOLCHAIN", "auto")
        .output()?;
    if !output.status.success() {
        bail!(
            "`go {}` failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn compile(folder: &Path, name: &str, package: &str, flags: &str) -> Result<()> {
    println!("building {name}");
    let finished = built().join(name);
    // An interrupted build must leave no file that looks complete.
    let partial = built().join(format!(".{name}"));
    let output = partial.to_string_lossy().into_owned();
    let flags = format!("-s -w {flags}");
    // The linker drops debug information, so the compiler need not write it.
    let without_dwarf = "-gcflags=all=-dwarf=false";
    go_in(
        folder,
        &[
            "build",
            without_dwarf,
            "-ldflags",
            &flags,
            "-o",
            &output,
            package,
        ],
    )?;
    fs::rename(partial, finished)?;
    Ok(())
}

/// A controller of upstream for kwok, with the chart that installs it.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamKwok {
    pub(crate) program: PathBuf,
    /// The module's directory `kwok`.
    pub(crate) sources: PathBuf,
}

/// Returns upstream's controller for kwok of a version of `sigs.k8s.io/karpenter`, such as `1.14.1`; builds it if needed, which takes
/// some minutes.
pub(crate) fn upstream_kwok(version: &str) -> Result<UpstreamKwok> {
    let name = format!("upstream-kwok-{version}");
    let module = format!("sigs.k8s.io/karpenter@v{version}");
    let folder = module_folder(&name, "module realcluster\n\ngo 1.26.0\n")?;
    let sources = download(&folder, &module)?.join("kwok");
    let program = built().join(&name);
    if !program.is_file() {
        fs::create_dir_all(built())?;
        go_in(
            &folder,
            &["get", &format!("sigs.k8s.io/karpenter/kwok@v{version}")],
        )?;
        compile(&folder, &name, "sigs.k8s.io/karpenter/kwok", "")?;
    }
    Ok(UpstreamKwok { program, sources })
}

/// A manager of Cluster API, with the directory of its CRDs and webhooks.
#[derive(Clone, Debug)]
pub(crate) struct Manager {
    pub(crate) program: PathBuf,
    pub(crate) config: PathBuf,
}

/// Returns Cluster API's managers of the core and of the in-memory infrastructure provider; builds them if needed, which takes five
/// minutes.
pub(crate) fn cluster_api() -> Result<[Manager; 2]> {
    let modules = ["", "/api", "/test"].map(|part| format!("sigs.k8s.io/cluster-api{part}"));
    let required = modules
        .each_ref()
        .map(|m| format!("require {m} {CLUSTER_API}\n"));
    let go_mod = format!("module realcluster\n\ngo 1.26.0\n\n{}", required.concat());
    let folder = module_folder("cluster-api", &go_mod)?;
    let managers = [
        ("capi-manager", &modules[0], "core"),
        ("capd-manager", &modules[2], "infrastructure/docker"),
    ];
    let is_built = managers
        .iter()
        .all(|(name, ..)| built().join(name).is_file());
    if !is_built {
        fs::create_dir_all(built())?;
        let packages = managers.map(|(_, module, package)| format!("{module}/{package}"));
        tidy(&folder, &packages)?;
        for ((name, ..), package) in managers.iter().zip(&packages) {
            compile(&folder, name, package, "")?;
        }
    }
    let [core, infrastructure] = managers.map(|(name, module, package)| {
        let sources = download(&folder, &format!("{module}@{CLUSTER_API}"))?;
        Ok::<_, anyhow::Error>(Manager {
            program: built().join(name),
            config: sources.join(package).join("config"),
        })
    });
    Ok([core?, infrastructure?])
}

/// Copies the chart from upstream's module, with the CRDs, to which `crds` is a symbolic link in upstream's repository.
fn copy_upstream() -> Result<()> {
    let (chart, module, version) = UPSTREAM;
    println!("copying the chart of {module}");
    let folder = module_folder("upstream", "module realcluster\n\ngo 1.25.0\n")?;
    let sources = download(&folder, &format!("{module}@{version}"))?;
    // An interrupted copy must leave no directory that looks complete.
    let partial = tempfile::tempdir_in(built())?;
    copy(&sources.join("charts/karpenter"), partial.path())?;
    copy(&sources.join("pkg/apis/crds"), &partial.path().join("crds"))?;
    let finished = built().join(chart);
    fs::rename(
        partial.keep(),
        finished.parent().context("a chart is in a directory")?,
    )?;
    Ok(())
}

/// Copies a directory; the files of a module are read-only.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => fs::write(&target, fs::read(entry.path())?)?,
        }
    }
    Ok(())
}

/// Returns the linker flags that set the version of Kubernetes' programs, which kubectl and Karpenter read.
fn version_flags(version: &str) -> String {
    let of = "k8s.io/component-base/version";
    let mut numbers = version.split('.');
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    format!("-X {of}.gitVersion=v{version} -X {of}.gitMajor={major} -X {of}.gitMinor={minor}")
}

/// Downloads a module, and returns its directory.
fn download(folder: &Path, module: &str) -> Result<PathBuf> {
    let answer = go_in(folder, &["mod", "download", "-json", module])?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    let sources = answer["Dir"].as_str();
    let sources = sources.context("cannot find the directory of the module")?;
    Ok(PathBuf::from(sources))
}

/// Creates a module that builds Kubernetes. Kubernetes' own `go.mod` replaces its staging modules by directories; here they have
/// versions.
fn kubernetes_module() -> Result<PathBuf> {
    let module = format!("k8s.io/kubernetes@v{KUBERNETES}");
    let folder = module_folder("kubernetes", "module realcluster\n\ngo 1.25.0\n")?;
    let sources = download(&folder, &module)?;
    let theirs = fs::read_to_string(sources.join("go.mod"))?;
    fs::write(
        folder.join("go.mod"),
        kubernetes_go_mod(&theirs, KUBERNETES),
    )?;
    println!("downloading Kubernetes {KUBERNETES}");
    tidy(
        &folder,
        &OF_KUBERNETES.map(|name| format!("k8s.io/kubernetes/cmd/{name}")),
    )?;
    Ok(folder)
}

/// Adds what these packages need to the `go.mod` of a directory.
fn tidy(folder: &Path, packages: &[String]) -> Result<()> {
    let imports = packages
        .iter()
        .map(|package| format!("\t_ \"{package}\"\n"));
    let imports: String = imports.collect();
    let tools = format!("//go:build tools\n\npackage tools\n\nimport (\n{imports})\n");
    fs::write(folder.join("tools.go"), tools)?;
    // The command reports errors for packages that only tests import; they do not matter if the programs build.
    if let Err(problem) = go_in(folder, &["mod", "tidy", "-e"]) {
        println!("{problem:#}");
    }
    Ok(())
}

/// Returns a `go.mod` that requires Kubernetes, derived from Kubernetes' own: its Go version and settings, and a version for each
/// staging module.
fn kubernetes_go_mod(theirs: &str, version: &str) -> String {
    let minor = version.split_once('.').map_or("", |(_, rest)| rest);
    let mut text = String::from("module realcluster\n\n");
    let mut in_settings = false;
    let mut staging = Vec::new();
    for line in theirs.lines() {
        if line.starts_with("go ") {
            text += &format!("{line}\n\n");
        }
        in_settings |= line.starts_with("godebug (");
        if in_settings {
            text += &format!("{line}\n");
            in_settings = line != ")";
        }
        let mut words = line.split_whitespace();
        if let (Some(module), Some("v0.0.0")) = (words.next(), words.next())
            && module.starts_with("k8s.io/")
        {
            staging.push(module);
        }
    }
    text += &format!("\nrequire k8s.io/kubernetes v{version}\n\n");
    staging.sort_unstable();
    staging.dedup();
    for module in staging {
        text += &format!("replace {module} => {module} v0.{minor}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_modules_of_kubernetes_get_the_matching_version() {
        let theirs = "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug (\n\tdefault=go1.26\n)\n\nrequire (\n\tk8s.io/api v0.0.0\n\tk8s.io/klog/v2 v2.140.0\n\tk8s.io/cri-api v0.0.0 // indirect\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n";
        assert_eq!(
            kubernetes_go_mod(theirs, "1.36.3"),
            "module realcluster\n\ngo 1.26.0\n\ngodebug (\n\tdefault=go1.26\n)\n\nrequire k8s.io/kubernetes v1.36.3\n\nreplace k8s.io/api => k8s.io/api v0.36.3\nreplace k8s.io/cri-api => k8s.io/cri-api v0.36.3\n"
        );
    }

    #[test]
    fn the_first_folder_with_a_program_is_used_and_missing_programs_are_named() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = [first.path().to_owned(), second.path().to_owned()];
        fs::write(second.path().join("etcd"), "").unwrap();
        fs::write(second.path().join("helm"), "#!/bin/sh\n").unwrap();
        let missing = find_in(&folders, false).unwrap_err();
        assert!(
            missing.contains(&"helm4")
                && missing.contains(&"helm")
                && missing.contains(&"kwok")
                && !missing.contains(&"etcd"),
            "{missing:?}"
        );
        fs::create_dir(second.path().join("upstream")).unwrap();
        let others = OTHERS.map(|o| o.0).into_iter().chain([UPSTREAM.0]);
        for name in OF_KUBERNETES.into_iter().chain(others) {
            fs::write(second.path().join(name), "").unwrap();
        }
        fs::write(first.path().join("etcd"), "").unwrap();
        let found = find_in(&folders, false).unwrap();
        assert_eq!(found.path("etcd").unwrap(), first.path().join("etcd"));
        assert_eq!(found.path("helm").unwrap(), second.path().join("helm"));
        assert!(found.path("kubectl").is_err());
        fs::remove_file(second.path().join("helm4")).unwrap();
        assert_eq!(find_in(&folders, false).unwrap_err(), ["helm4"]);
        assert!(find_in(&folders, true).is_ok());
    }

    #[test]
    fn versions_are_linked_into_the_programs() {
        assert!(version_flags("1.36.3").ends_with("gitMinor=36"));
    }
}
