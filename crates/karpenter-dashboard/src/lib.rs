//! The dashboard: the files of a page that shows nodes, pending pods and decisions, for the server of decisions to serve.
//!
//! The files are static and contain no data: the page asks only the server that serves it, so it works without the
//! internet. They are compressed into the library by its build script; nothing but cargo is needed to build it. Third-party code
//! is in `assets/vendor`, with its licenses and checksums in `VENDOR.toml`; `cargo xtask vendor-web` refreshes it from npm.
//!
//! All addresses in the page are relative, so that it also works below a path.

use std::io::Read as _;

use flate2::read::GzDecoder;

/// A file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct File {
    /// Its path: `/`, or `/assets/…`.
    pub path: &'static str,
    pub media_type: &'static str,
    /// An entity tag that changes with the content.
    pub etag: &'static str,
    /// The content, compressed with gzip.
    pub gzip: &'static [u8],
}

impl File {
    /// Returns the content, for a client that does not accept gzip.
    pub fn plain(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        // It was compressed by the build script, and reading from memory does not fail.
        let _ = GzDecoder::new(self.gzip).read_to_end(&mut plain);
        plain
    }
}

/// All files of the page, by path.
pub const FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// Headers that each file is to be sent with: nothing from elsewhere is loaded, no script or style is inline, no page embeds this
/// one, no address is told to other sites, and a copy in the browser is used only while it is current.
pub const HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
];

/// Returns the file of a path.
pub fn find(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: DASH-14
    #[test]
    fn all_files_together_are_at_most_150_kib_compressed() {
        let sum: usize = FILES.iter().map(|file| file.gzip.len()).sum();
        println!("{sum} bytes");
        assert!(sum <= 150 << 10, "{sum}");
    }

    #[test]
    fn files_are_found_by_path_and_unpacked_as_they_were() {
        let page = find("/").unwrap();
        assert_eq!(page.media_type, "text/html; charset=utf-8");
        let html = String::from_utf8(page.plain()).unwrap();
        assert_eq!(html, include_str!("../assets/index.html"));
        for path in ["", "/index.html", "/assets/", "/assets/vendor/VENDOR.toml"] {
            assert_eq!(find(path), None, "{path}");
        }
    }

    #[test]
    fn the_page_has_no_inline_script_or_style_and_only_relative_addresses() {
        let html = include_str!("../assets/index.html");
        for (at, _) in html.match_indices("<script") {
            let tag = &html[at..];
            let source = tag.find("src=\"assets/");
            assert!(
                source.is_some_and(|at| at < tag.find('>').unwrap()),
                "{tag}"
            );
            assert!(
                tag[tag.find('>').unwrap()..].starts_with("></script>"),
                "{tag}"
            );
        }
        for forbidden in ["<style", "style=", " onclick", "//", "href=\"/", "src=\"/"] {
            assert!(!html.contains(forbidden), "{forbidden}");
        }
        // What a module loads is beside it, and markup is never made of text.
        let mut imports = 0;
        for file in FILES
            .iter()
            .filter(|file| file.media_type.contains("javascript"))
        {
            let text = String::from_utf8(file.plain()).unwrap();
            if !file.path.contains("/vendor/") {
                for forbidden in [
                    "innerHTML",
                    "outerHTML",
                    "insertAdjacentHTML",
                    "document.write",
                    "eval(",
                ] {
                    assert!(!text.contains(forbidden), "{}: {forbidden}", file.path);
                }
            }
            let statements = text.split([';', '\n']).map(str::trim_start);
            let begins = |text: &&str| {
                ["import", "export", "}"]
                    .iter()
                    .any(|b| text.starts_with(b))
            };
            for statement in statements.filter(begins) {
                let source = statement
                    .rsplit_once("from")
                    .map(|(_, rest)| rest.trim_start());
                if let Some(path) = source.and_then(|source| source.strip_prefix(['"', '\''])) {
                    imports += 1;
                    assert!(
                        path.starts_with("./") || path.starts_with("../"),
                        "{}: {path}",
                        file.path
                    );
                }
            }
        }
        assert!(imports > 20, "{imports}");
    }
}
