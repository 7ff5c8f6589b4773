//! Compresses the files of the page into the output directory, and writes a table of them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> io::Result<()> {
    let variable = |name| env::var_os(name).map(PathBuf::from);
    let missing = || io::Error::other("cargo sets the directories of a build script");
    let assets = variable("CARGO_MANIFEST_DIR")
        .ok_or_else(missing)?
        .join("assets");
    let out = variable("OUT_DIR").ok_or_else(missing)?;
    println!("cargo:rerun-if-changed={}", assets.display());
    let mut files = Vec::new();
    list(&assets, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for file in &files {
        let Some(media_type) = media_type(file) else {
            continue;
        };
        let content = fs::read(file)?;
        let digest = blake3::hash(&content).to_hex();
        let mut zip = GzEncoder::new(Vec::new(), Compression::best());
        zip.write_all(&content)?;
        let zipped = out.join(format!("{digest}.gz"));
        fs::write(&zipped, zip.finish()?)?;
        let name = file.strip_prefix(&assets).map_err(io::Error::other)?;
        let path = match name.to_str() {
            Some("index.html") => "/".to_owned(),
            Some(name) => format!("/assets/{}", name.replace('\\', "/")),
            None => return Err(io::Error::other("the name of a file is not UTF-8")),
        };
        let etag = format!("\"{}\"", &digest[..32]);
        let _ = writeln!(
            table,
            "File {{ path: {path:?}, media_type: {media_type:?}, etag: {etag:?}, gzip: include_bytes!({zipped:?}) }},"
        );
    }
    table.push(']');
    fs::write(out.join("files.rs"), table)
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Returns the media type of a file that is served; licenses and checksums are not.
fn media_type(file: &Path) -> Option<&'static str> {
    match file.extension()?.to_str()? {
        "html" => Some("text/html; charset=utf-8"),
        "css" => Some("text/css; charset=utf-8"),
        "js" => Some("text/javascript; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        _ => None,
    }
}
