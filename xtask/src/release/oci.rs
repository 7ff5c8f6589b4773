//! OCI layouts on disk: blobs by digest, an index, and the file that marks the folder.
//!
//! <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::files::sha256;

/// Media type of manifests.
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of indexes.
pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A layout that is being written.
#[derive(Debug)]
pub(super) struct Layout {
    folder: PathBuf,
}

impl Layout {
    /// Creates an empty layout.
    pub(super) fn create(folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder.join("blobs/sha256"))?;
        let folder = folder.to_owned();
        fs::write(
            folder.join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )?;
        Ok(Self { folder })
    }

    /// Adds a blob, and returns its descriptor.
    pub(super) fn blob(&self, media_type: &str, content: &[u8]) -> anyhow::Result<Value> {
        let digest = sha256(content);
        fs::write(self.folder.join("blobs/sha256").join(&digest), content)?;
        Ok(json!({
            "mediaType": media_type,
            "digest": format!("sha256:{digest}"),
            "size": content.len(),
        }))
    }

    /// Adds a JSON document as a blob.
    pub(super) fn document(&self, media_type: &str, document: &Value) -> anyhow::Result<Value> {
        self.blob(media_type, &serde_json::to_vec(document)?)
    }

    /// Writes the index of the layout: one artifact, under a tag.
    pub(super) fn tag(&self, mut artifact: Value, tag: &str) -> anyhow::Result<()> {
        artifact["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [artifact] });
        fs::write(self.folder.join("index.json"), serde_json::to_vec(&index)?)?;
        Ok(())
    }
}
