//! Archives that are the same in each run: entries sorted by path, without an owner, with the time of the commit.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

use super::binaries::{BINARIES, Platform};
use super::inputs::Release;
use crate::files::{below, sha256};

/// The content of an archive, by path.
#[derive(Debug, Default)]
pub(super) struct Entries(BTreeMap<String, Entry>);

#[derive(Debug)]
enum Entry {
    Folder,
    File { content: Vec<u8>, mode: u32 },
}

impl Entries {
    /// Adds a file, and the folders that it is in.
    pub(super) fn file(&mut self, path: &str, content: impl Into<Vec<u8>>, mode: u32) {
        let content = content.into();
        self.add(path, Entry::File { content, mode });
    }

    /// Adds an empty folder.
    pub(super) fn folder(&mut self, path: &str) {
        self.add(path, Entry::Folder);
    }

    /// Adds the files below a folder of this computer, symbolic links resolved.
    pub(super) fn tree(&mut self, path: &str, from: &Path) -> anyhow::Result<()> {
        for file in below(from, &[])? {
            let name = file.strip_prefix(from)?.to_string_lossy().into_owned();
            let content =
                fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            self.file(&format!("{path}/{name}"), content, 0o644);
        }
        Ok(())
    }

    fn add(&mut self, path: &str, entry: Entry) {
        for (at, _) in path.match_indices('/') {
            self.0.entry(path[..at].to_owned()).or_insert(Entry::Folder);
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// Returns the entries as a tar archive.
    pub(super) fn tar(&self, time: u64) -> anyhow::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let mut header = Header::new_gnu();
            header.set_mtime(time);
            header.set_uid(0);
            header.set_gid(0);
            let content: &[u8] = match entry {
                Entry::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(0o755);
                    &[]
                }
                Entry::File { content, mode } => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_mode(*mode);
                    content
                }
            };
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content)?;
        }
        Ok(archive.into_inner()?)
    }
}

/// Compresses without a name and a time.
pub(super) fn gzip(content: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut out = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::best());
    out.write_all(content)?;
    Ok(out.finish()?)
}

/// An archive with the binary of a platform.
#[derive(Debug)]
pub(super) struct Archive {
    pub(super) binary: &'static str,
    /// The platform as in the archive's name: `linux_amd64`.
    pub(super) platform: String,
    pub(super) sha256: String,
}

/// Writes an archive for each binary and platform.
pub(super) fn write_all(release: &Release, platforms: &[Platform]) -> anyhow::Result<Vec<Archive>> {
    let mut archives = Vec::new();
    for platform in platforms {
        for (binary, _) in BINARIES {
            let Some(file) = platform.binary(binary) else {
                continue;
            };
            let mut entries = Entries::default();
            entries.file(binary, fs::read(file)?, 0o755);
            for file in ["LICENSE", "NOTICE"] {
                entries.file(file, fs::read(release.root.join(file))?, 0o644);
            }
            if binary == "kubectl-karpenter" {
                let completion = release
                    .root
                    .join("bins/kubectl-karpenter/kubectl_complete-karpenter");
                entries.file("kubectl_complete-karpenter", fs::read(completion)?, 0o755);
            }
            for folder in ["man", "completions"] {
                for file in below(&release.root.join("deploy").join(folder), &[])? {
                    let name = file
                        .file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned();
                    if is_of(binary, &name) {
                        entries.file(&format!("{folder}/{name}"), fs::read(&file)?, 0o644);
                    }
                }
            }
            let archive = gzip(&entries.tar(release.time)?)?;
            fs::write(
                release.out.join(format!("{binary}_{platform}.tar.gz")),
                &archive,
            )?;
            archives.push(Archive {
                binary,
                platform: platform.to_string(),
                sha256: sha256(&archive),
            });
        }
    }
    Ok(archives)
}

/// Returns whether a man page or completion is of a binary: the longest name that begins its own.
fn is_of(binary: &str, file: &str) -> bool {
    let stem = file.split('.').next().unwrap_or_default();
    let is_part = |name: &str| stem == name || stem.starts_with(&format!("{name}-"));
    let others = BINARIES.iter().map(|(name, _)| *name);
    let longest = others
        .filter(|name| is_part(name))
        .max_by_key(|name| name.len());
    longest == Some(binary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_the_archive_of_its_binary_alone() {
        let of = |file: &str| -> Vec<&str> {
            let names = BINARIES.iter().map(|(name, _)| *name);
            names.filter(|name| is_of(name, file)).collect()
        };
        assert_eq!(of("karpenter.1"), ["karpenter"]);
        assert_eq!(of("karpenter-playground.1"), ["karpenter-playground"]);
        assert_eq!(of("karpenter-playground.fish"), ["karpenter-playground"]);
        assert_eq!(of("kubectl-karpenter-why.1"), ["kubectl-karpenter"]);
    }

    #[test]
    fn an_archive_has_its_folders_once_and_no_trace_of_the_computer() {
        let mut entries = Entries::default();
        entries.file("b/c/file", "content", 0o644);
        entries.file("a", "first", 0o755);
        let tar = entries.tar(7).unwrap();
        let mut archive = tar::Archive::new(tar.as_slice());
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 7));
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            found.push((path, header.mode().unwrap()));
        }
        let found: Vec<_> = found
            .iter()
            .map(|(path, mode)| (path.as_str(), *mode))
            .collect();
        assert_eq!(
            found,
            [
                ("a", 0o755),
                ("b", 0o755),
                ("b/c", 0o755),
                ("b/c/file", 0o644)
            ]
        );
        assert_eq!(gzip(&tar).unwrap(), gzip(&entries.tar(7).unwrap()).unwrap());
    }
}
