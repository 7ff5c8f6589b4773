//! The manifest for krew, with the version and the checksums of the release.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use super::archive::Archive;
use super::inputs::Release;

/// Start of the entry of a platform.
const PLATFORM: &str = "    - selector:";

pub(super) fn write(release: &Release, archives: &[Archive]) -> anyhow::Result<()> {
    let template = fs::read_to_string(release.root.join("deploy/krew/karpenter.yaml"))?;
    let of_plugin = archives
        .iter()
        .filter(|archive| archive.binary == "kubectl-karpenter");
    let archives: Vec<(&str, &str)> = of_plugin
        .map(|archive| (archive.platform.as_str(), archive.sha256.as_str()))
        .collect();
    let text = filled(&template, &release.version, &archives)?;
    Ok(fs::write(
        release.out.join(Path::new("karpenter.yaml")),
        text,
    )?)
}

/// Returns the manifest with checksums, without the platforms that have no archive.
fn filled(template: &str, version: &str, archives: &[(&str, &str)]) -> anyhow::Result<String> {
    let mut entries = template.split(PLATFORM);
    let head = entries.next().unwrap_or_default();
    if !head.contains(&format!("\n  version: v{version}\n")) {
        bail!("deploy/krew/karpenter.yaml does not have version v{version}");
    }
    let mut text = head.to_owned();
    for entry in entries {
        let archive = archives.iter().find(|(platform, _)| {
            entry.contains(&format!(
                "/v{version}/kubectl-karpenter_{platform}.tar.gz\n"
            ))
        });
        let Some((_, checksum)) = archive else {
            continue;
        };
        let (before, rest) = entry
            .split_once("sha256: \"")
            .context("a platform without sha256")?;
        let (_, after) = rest
            .split_once('"')
            .context("a checksum that does not end")?;
        text.push_str(&format!("{PLATFORM}{before}sha256: \"{checksum}\"{after}"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = "spec:\n  version: v1.2.3\n  platforms:\n    - selector: {os: linux}\n      \
        uri: https://h/v1.2.3/kubectl-karpenter_linux_amd64.tar.gz\n      sha256: \"00\"\n      bin: k\n    - selector: {os: darwin}\n      \
        uri: https://h/v1.2.3/kubectl-karpenter_darwin_amd64.tar.gz\n      sha256: \"00\"\n      bin: k\n";

    #[test]
    fn platforms_with_an_archive_get_its_checksum_and_the_others_are_left_out() {
        let text = filled(TEMPLATE, "1.2.3", &[("linux_amd64", "ab")]).unwrap();
        assert!(text.contains("sha256: \"ab\"\n      bin: k\n"), "{text}");
        assert!(
            !text.contains("darwin") && !text.contains("\"00\""),
            "{text}"
        );
    }

    #[test]
    fn a_manifest_of_another_version_is_an_error() {
        let error = filled(TEMPLATE, "2.0.0", &[]).unwrap_err();
        assert!(error.to_string().contains("v2.0.0"), "{error}");
    }
}
