//! A file that is written completely or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// A file under a temporary name next to its own. Dropped before [`persist`](Self::persist), it is removed.
#[derive(Debug)]
pub(crate) struct Partial {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    persisted: bool,
}

impl Partial {
    /// Creates the temporary file, readable by its owner only.
    ///
    /// # Errors
    /// Fails if the directory cannot be written, or the path is no path of a file.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let Some(name) = path.file_name() else {
            bail!(
                "cannot write {}: it is not the name of a file",
                path.display()
            );
        };
        if path.is_dir() {
            bail!("cannot write {}: it is a directory", path.display());
        }
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}.partial", std::process::id()));
        let temporary = path.with_file_name(temporary);
        let file = private().read(true).create_new(true).open(&temporary);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            file,
            temporary,
            path: path.to_owned(),
            persisted: false,
        })
    }

    /// Writes bytes at the end.
    ///
    /// # Errors
    /// Fails if the file cannot be written, for example because the disk is full.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let failed = || format!("cannot write {}", self.path.display());
        self.file.write_all(bytes).with_context(failed)
    }

    /// Returns a reader of what was written.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(crate) fn reader(&mut self) -> anyhow::Result<BufReader<&File>> {
        let failed = || format!("cannot write {}", self.path.display());
        self.file.seek(SeekFrom::Start(0)).with_context(failed)?;
        Ok(BufReader::new(&self.file))
    }

    /// Stores what was written on the disk, still under the temporary name.
    ///
    /// # Errors
    /// Fails if it cannot be stored: some file systems report only now that they are full.
    pub(crate) fn store(&self) -> anyhow::Result<()> {
        let stored = self.file.sync_all();
        stored.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Gives the file its name, and returns its size.
    ///
    /// # Errors
    /// Fails if the file cannot be stored or renamed.
    pub(crate) fn persist(mut self) -> anyhow::Result<u64> {
        self.store()?;
        let failed = || format!("cannot write {}", self.path.display());
        let bytes = self.file.metadata().with_context(failed)?.len();
        std::fs::rename(&self.temporary, &self.path).with_context(failed)?;
        self.persisted = true;
        Ok(bytes)
    }
}

impl Write for Partial {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.persisted {
            // A failure is not reported: the error that ends the command is.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Returns options for a new file that only its owner can read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_that_is_not_persisted_leaves_the_old_one_as_it_was() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.karpenter.zst");
        std::fs::write(&path, "old").unwrap();
        let mut partial = Partial::create(&path).unwrap();
        partial.write_all(b"new").unwrap();
        drop(partial);
        assert_eq!(entries(home.path()), ["a.karpenter.zst"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        let mut partial = Partial::create(&path).unwrap();
        partial.write_all(b"new").unwrap();
        assert_eq!(partial.persist().unwrap(), 3);
        assert_eq!(entries(home.path()), ["a.karpenter.zst"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_reported_with_the_name_of_the_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.karpenter.zst");
        let mut partial = Partial::create(&path).unwrap();
        partial.file = private().open("/dev/full").unwrap();
        let error = partial.append(b"text").unwrap_err();
        let expected = format!(
            "cannot write {}: No space left on device (os error 28)",
            path.display()
        );
        assert_eq!(format!("{error:#}"), expected);
        drop(partial);
        assert_eq!(entries(home.path()), [""; 0]);
    }

    #[test]
    fn a_path_that_cannot_be_written_is_named() {
        let home = tempfile::tempdir().unwrap();
        for path in [home.path().join("missing/a"), home.path().to_owned()] {
            let error = Partial::create(&path).unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }
}
