//! Why a file cannot be read as a bundle.

use std::fmt;
use std::io;

use super::SCHEMA;

/// Why a file cannot be read as a bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read or decompressed.
    #[error("cannot read the bundle{}: {source}", At(.line))]
    Io {
        /// The line at which it failed, from 1; 0 before the first.
        line: u64,
        source: io::Error,
    },
    /// The first line is not a manifest: the file is something else.
    #[error("invalid bundle: the file does not begin with the manifest of a bundle")]
    NotABundle,
    /// The bundle is of a later version of the format.
    #[error(
        "cannot read schema {schema} of the bundle: this version reads schema {SCHEMA}; use version {engine} or a later one"
    )]
    Newer {
        /// The schema of the bundle.
        schema: u32,
        /// The version of the engine that wrote it, and that can read it.
        engine: String,
    },
    #[error("invalid bundle: line {line}, byte {byte}: {field}: {problem}")]
    Invalid {
        /// The number of the line, from 1.
        line: u64,
        /// The position of the problem in the decompressed file.
        byte: u64,
        /// The field of the line.
        field: String,
        problem: String,
    },
    /// The file ends before its trailer.
    #[error("invalid bundle: it ends after line {line}, without its trailer")]
    Truncated {
        /// The number of the last complete line.
        line: u64,
    },
    /// Trailer and content differ.
    #[error("invalid bundle: its trailer does not match its content: {problem}")]
    Trailer { problem: &'static str },
    /// The bundle is larger than what is read.
    #[error("invalid bundle: line {line}: {problem}")]
    TooLarge {
        line: u64,
        /// What is too large.
        problem: String,
    },
}

struct At<'a>(&'a u64);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            line => write!(f, " at line {line}"),
        }
    }
}

/// The field of a line, and its problem.
pub(super) type Problem = (&'static str, String);
