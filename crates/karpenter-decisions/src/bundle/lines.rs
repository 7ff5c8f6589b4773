//! The lines of an untrusted file: decompressed as they are read, with bounded memory. What is parsed of them is bounded by the number
//! of values.

use std::io::{self, BufRead, BufReader, Read};

use super::error::ReadError;

const MAX_LINE: usize = 32 << 20;
/// The most bytes that a bundle may have once it is decompressed: a cluster of 2,000,000 pods has fewer.
const MAX_BYTES: u64 = 1 << 30;
/// The most values of a line, counted by the characters that begin one: `{},` is three bytes, and hundreds in memory.
const MAX_VALUES_OF_LINE: u64 = 2 << 20;
/// The most values of a bundle. A pod has about twenty.
const MAX_VALUES: u64 = 64 << 20;
/// The largest window of the compressor (2^23 bytes), which the decompressor allocates.
const WINDOW_LOG: u32 = 23;

/// Lines of a decompressed file, with the digest of those that were read.
pub(super) struct LineReader<R: Read> {
    file: BufReader<zstd::Decoder<'static, BufReader<R>>>,
    line: Vec<u8>,
    /// The number of the line, from 1.
    pub(super) number: u64,
    /// The position of the line's first byte.
    pub(super) offset: u64,
    next: u64,
    /// The number of values of all lines so far.
    values: u64,
    hash: blake3::Hasher,
}

impl<R: Read> LineReader<R> {
    pub(super) fn new(file: R) -> io::Result<Self> {
        let mut decoder = zstd::Decoder::new(file)?;
        decoder.window_log_max(WINDOW_LOG)?;
        Ok(Self {
            file: BufReader::with_capacity(128 << 10, decoder),
            line: Vec::new(),
            number: 0,
            offset: 0,
            next: 0,
            values: 0,
            hash: blake3::Hasher::new(),
        })
    }

    /// Reads the next line; `false` at the end of the file.
    pub(super) fn advance(&mut self) -> Result<bool, ReadError> {
        self.line.clear();
        self.offset = self.next;
        self.number += 1;
        let line = self.number;
        let too_large = |problem: String| Err(ReadError::TooLarge { line, problem });
        let before = self.values;
        loop {
            let read = match self.file.fill_buf() {
                Ok([]) if self.line.is_empty() => return Ok(false),
                Ok([]) => return Err(ReadError::Truncated { line: line - 1 }),
                Ok(read) => read,
                // The decompressor fails if the file ends within a block.
                Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(ReadError::Truncated { line: line - 1 });
                }
                Err(source) => return Err(ReadError::Io { line, source }),
            };
            let end = read.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(read.len(), |end| end + 1);
            if self.line.len() + taken > MAX_LINE {
                return too_large(format!("it is longer than {} MiB", MAX_LINE >> 20));
            }
            self.line.extend_from_slice(&read[..taken]);
            let begins = |byte: &&u8| matches!(**byte, b',' | b'{' | b'[');
            self.values += read[..taken].iter().filter(begins).count() as u64;
            self.file.consume(taken);
            self.next += taken as u64;
            if self.next > MAX_BYTES {
                return too_large(format!("the bundle has more than {} MiB", MAX_BYTES >> 20));
            }
            if self.values > MAX_VALUES || self.values - before > MAX_VALUES_OF_LINE {
                return too_large(format!(
                    "a line has more than {MAX_VALUES_OF_LINE} values, or the bundle more than {MAX_VALUES}"
                ));
            }
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// Returns the current line without its end.
    pub(super) fn line(&self) -> &[u8] {
        self.line.strip_suffix(b"\n").unwrap_or(&self.line)
    }

    /// Counts the current line in the digest.
    pub(super) fn accept(&mut self) {
        self.hash.update(&self.line);
    }

    /// Returns the digest of the accepted lines.
    pub(super) fn digest(&self) -> String {
        self.hash.finalize().to_hex().to_string()
    }
}
