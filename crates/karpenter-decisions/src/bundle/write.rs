//! Writing a bundle, line by line: what leads from an empty cluster to the state of the first recorded pass, the pass, what leads to
//! the next one, and at last what leads to the bundle's own state, its settings and decisions.

use std::io::{self, Write};

use karpenter_core::cluster::Cluster;
use serde::Serialize;

use super::out::{Out, Sink};
use super::rows::{Line, Manifest, ManifestKind, Trailer, TrailerKind};
use super::{Bundle, SCHEMA, changes};

/// The level of compression: a higher one takes twice as long for a tenth less.
const LEVEL: i32 = 3;

/// Writes a bundle. Memory beside the bundle is that of the compressor, and of the numbers of distinct shapes and instance types.
///
/// # Errors
/// Fails if the file cannot be written. The file is not valid then: its trailer is missing.
pub fn write(bundle: &Bundle, file: impl Write) -> io::Result<()> {
    let mut out = Lines {
        file: zstd::Encoder::new(file, LEVEL)?,
        hash: blake3::Hasher::new(),
        lines: 0,
        buffer: Vec::new(),
    };
    out.json(&Manifest {
        kind: ManifestKind::Manifest,
        schema: SCHEMA,
        engine: bundle.engine.clone(),
        at: bundle.at(),
        provider: bundle.provider.clone(),
        epoch: bundle.snapshot.epoch(),
        redact: bundle.redaction,
        config: bundle.snapshot.config().clone(),
    })?;
    lines(bundle, &mut |line| out.json(&line))?;
    out.end()
}

/// Passes on the lines between manifest and trailer.
pub(super) fn lines(bundle: &Bundle, sink: &mut Sink<'_>) -> io::Result<()> {
    let mut out = Out::new(sink);
    let empty = Cluster::new(bundle.snapshot.config().clone()).snapshot();
    let mut before = &empty;
    for pass in &bundle.recording {
        changes::between(before, &pass.snapshot, &mut out)?;
        before = &pass.snapshot;
        let row = out.pass(pass)?;
        out.line(Line::Passes(Box::new(row)))?;
    }
    changes::between(before, &bundle.snapshot, &mut out)?;
    let request = out.request(&bundle.settings)?;
    out.line(Line::Requests(Box::new(request)))?;
    let mut decisions = bundle.decisions.iter().cloned();
    decisions.try_for_each(|decision| out.line(Line::Decisions(decision)))
}

/// Lines that are counted, hashed and compressed.
struct Lines<W: Write> {
    file: zstd::Encoder<'static, W>,
    hash: blake3::Hasher,
    lines: u64,
    buffer: Vec<u8>,
}

impl<W: Write> Lines<W> {
    fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        self.buffer.clear();
        serde_json::to_writer(&mut self.buffer, value)?;
        self.buffer.push(b'\n');
        self.hash.update(&self.buffer);
        self.lines += 1;
        self.file.write_all(&self.buffer)
    }

    fn end(mut self) -> io::Result<()> {
        let trailer = Trailer {
            kind: TrailerKind::Trailer,
            lines: self.lines,
            blake3: self.hash.finalize().to_hex().to_string(),
        };
        serde_json::to_writer(&mut self.file, &trailer)?;
        self.file.write_all(b"\n")?;
        self.file.finish()?.flush()
    }
}
