//! Reading a bundle. Its text is untrusted: whatever it says, reading ends with a bundle or an error. Memory is bounded by the bytes
//! and the number of values that [`lines`](super::lines) reads: a few hundred bytes for each value at most.

use std::io::{self, Read};
use std::sync::Arc;

use karpenter_core::cluster::{Cluster, DaemonSet};
use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::{Owner, Pod, Shape};
use karpenter_core::resources::Resources;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::{Problem, ReadError};
use super::lines::LineReader;
use super::recording::{MAX_PASSES, RecordedPass};
use super::rows::{
    DaemonSetRow, Indexed, Line, Manifest, PassRow, PodRow, PoolTypes, Request, Trailer,
};
use super::{Bundle, Decision, SCHEMA, Settings};

/// Reads a bundle.
///
/// # Errors
/// Fails if the file is not a complete bundle that this version reads: with the line, the byte and the field of the problem.
pub fn read(file: impl Read) -> Result<Bundle, ReadError> {
    let lines = LineReader::new(file).map_err(|source| ReadError::Io { line: 0, source })?;
    Reader { lines }.bundle()
}

struct Reader<R: Read> {
    lines: LineReader<R>,
}

/// The fields of any manifest, whatever its schema.
#[derive(Deserialize)]
struct AnyManifest {
    kind: String,
    schema: u32,
    #[serde(default)]
    engine: String,
}

impl<R: Read> Reader<R> {
    /// Reads the next line; the file does not end before its trailer.
    fn advance(&mut self) -> Result<(), ReadError> {
        match self.lines.advance()? {
            true => Ok(()),
            false => Err(ReadError::Truncated {
                line: self.lines.number - 1,
            }),
        }
    }

    fn bundle(mut self) -> Result<Bundle, ReadError> {
        match self.advance() {
            Err(ReadError::Truncated { .. }) => return Err(ReadError::NotABundle),
            // What is not compressed with zstd is not a bundle.
            Err(ReadError::Io { source, .. }) if source.kind() == io::ErrorKind::Other => {
                return Err(ReadError::NotABundle);
            }
            other => other?,
        }
        let any: AnyManifest =
            serde_json::from_slice(self.lines.line()).map_err(|_| ReadError::NotABundle)?;
        if any.kind != "Manifest" {
            return Err(ReadError::NotABundle);
        }
        if any.schema > SCHEMA {
            let engine = any.engine.chars().filter(|c| c.is_ascii_graphic());
            return Err(ReadError::Newer {
                schema: any.schema,
                engine: engine.take(64).collect(),
            });
        }
        if any.schema < SCHEMA {
            let problem = format!(
                "{} was written by no release; this version reads {SCHEMA}: capture again",
                any.schema
            );
            return Err(self.invalid("schema", &problem));
        }
        let manifest: Manifest = self.json()?;
        self.lines.accept();
        let cluster = Cluster::new(manifest.config.clone());
        let mut content = Content::new(cluster, Settings::at(manifest.at));
        self.content(&mut content)?;
        content.flush();
        Ok(Bundle {
            provider: manifest.provider,
            engine: manifest.engine,
            snapshot: content.cluster.with_epoch(manifest.epoch).snapshot(),
            settings: content.settings,
            decisions: content.decisions,
            recording: content.recording,
            redaction: manifest.redact,
        })
    }

    /// Reads the lines after the manifest, and the trailer.
    fn content(&mut self, content: &mut Content) -> Result<(), ReadError> {
        loop {
            self.advance()?;
            if self.lines.line().starts_with(br#"{"kind":"#) {
                break;
            }
            let line: Line = self.json()?;
            content
                .add(line)
                .map_err(|(field, problem)| self.invalid(field, &problem))?;
            self.lines.accept();
        }
        let trailer: Trailer = self.json()?;
        let problem = if trailer.lines != self.lines.number - 1 {
            Some("the number of lines")
        } else if trailer.blake3 != self.lines.digest() {
            Some("the digest")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(ReadError::Trailer { problem });
        }
        match self.lines.advance() {
            Ok(false) => Ok(()),
            Err(ReadError::Io { line, source }) => Err(ReadError::Io { line, source }),
            _ => {
                let problem = "lines follow it";
                Err(ReadError::Trailer { problem })
            }
        }
    }

    /// Reads the current line. The path of the field is found in a second attempt, which only a failure needs.
    fn json<T: DeserializeOwned>(&self) -> Result<T, ReadError> {
        let line = self.lines.line();
        serde_json::from_slice(line).map_err(|error| {
            let mut deserializer = serde_json::Deserializer::from_slice(line);
            let failed = serde_path_to_error::deserialize::<_, T>(&mut deserializer).err();
            let field = failed.map(|failed| failed.path().to_string());
            let at = error.column().saturating_sub(1) as u64;
            let text = error.to_string();
            // A line has no lines.
            let problem = text
                .rsplit_once(" at line ")
                .map_or(&*text, |(text, _)| text);
            ReadError::Invalid {
                line: self.lines.number,
                byte: self.lines.offset + at,
                field: printable(&field.unwrap_or_default()),
                problem: printable(problem),
            }
        })
    }

    fn invalid(&self, field: &str, problem: &str) -> ReadError {
        ReadError::Invalid {
            line: self.lines.number,
            byte: self.lines.offset,
            field: field.to_owned(),
            problem: problem.to_owned(),
        }
    }
}

/// Returns untrusted text for a message.
fn printable(text: &str) -> String {
    let escaped = text.chars().flat_map(|c| {
        let plain = !c.is_control();
        let escaped = (!plain).then(|| c.escape_default()).into_iter().flatten();
        plain.then_some(c).into_iter().chain(escaped)
    });
    escaped.take(256).collect()
}

/// What was read so far.
pub(super) struct Content {
    pub(super) cluster: Cluster,
    pub(super) settings: Settings,
    decisions: Vec<Decision>,
    recording: Vec<RecordedPass>,
    shapes: Vec<Arc<Shape>>,
    limits: Vec<Arc<Resources>>,
    owners: Vec<Arc<[Owner]>>,
    types: Vec<InstanceType>,
    pods: Vec<Pod>,
    requested: bool,
}

/// Returns the value with this number.
fn numbered<T: Clone>(all: &[T], number: u32, field: &'static str) -> Result<T, Problem> {
    let value = usize::try_from(number).ok().and_then(|at| all.get(at));
    value
        .cloned()
        .ok_or_else(|| (field, format!("unknown number {number}")))
}

/// Adds a value with the next number.
fn push<T>(all: &mut Vec<T>, number: u32, value: T) -> Result<(), Problem> {
    let next = all.len();
    if usize::try_from(number).ok() != Some(next) {
        return Err(("v.i", format!("must be {next}")));
    }
    all.push(value);
    Ok(())
}

impl Content {
    pub(super) fn new(cluster: Cluster, settings: Settings) -> Self {
        Self {
            cluster,
            settings,
            decisions: Vec::new(),
            recording: Vec::new(),
            shapes: Vec::new(),
            limits: Vec::new(),
            owners: Vec::new(),
            types: Vec::new(),
            pods: Vec::new(),
            requested: false,
        }
    }

    /// Adds the pods that were collected: many at once take linear time.
    pub(super) fn flush(&mut self) {
        self.cluster.insert_pods(std::mem::take(&mut self.pods));
    }

    pub(super) fn add(&mut self, line: Line) -> Result<(), Problem> {
        // Only what pods refer to stands between them.
        if !matches!(
            line,
            Line::Pods(_) | Line::Shapes(_) | Line::Limits(_) | Line::Owners(_)
        ) {
            self.flush();
        }
        match line {
            Line::Shapes(Indexed { i, v }) => push(&mut self.shapes, i, Arc::new(v))?,
            Line::Limits(Indexed { i, v }) => push(&mut self.limits, i, Arc::new(v))?,
            Line::Owners(Indexed { i, v }) => push(&mut self.owners, i, v.into())?,
            Line::Types(Indexed { i, v }) => push(&mut self.types, i, v)?,
            Line::Pods(row) => {
                let pod = self.pod(*row)?;
                self.pods.push(pod);
            }
            Line::Objects(object) => object.insert(&mut self.cluster)?,
            Line::Catalogue(row) => self.catalogue(row)?,
            Line::DaemonSets(row) => self.daemon_set(*row)?,
            Line::Marks(marks) => self.cluster.insert_marks(&marks),
            Line::Removed(row) => row
                .kind
                .remove(&mut self.cluster, &row.namespace, &row.name),
            Line::Passes(row) => self.pass(*row)?,
            Line::Requests(row) => self.request(*row)?,
            Line::Decisions(decision) => self.decisions.push(decision),
        }
        Ok(())
    }

    fn pod(&self, row: PodRow) -> Result<Pod, Problem> {
        Ok(Pod {
            shape: numbered(&self.shapes, row.i, "v.i")?,
            limits: numbered(&self.limits, row.limits, "v.limits")?,
            owners: numbered(&self.owners, row.owners, "v.owners")?,
            ..row.pod
        })
    }

    fn catalogue(&mut self, row: PoolTypes) -> Result<(), Problem> {
        let types = match (row.types, row.error) {
            (Some(numbers), None) => {
                let types = numbers
                    .into_iter()
                    .map(|number| numbered(&self.types, number, "v.types"));
                Ok(types.collect::<Result<_, _>>()?)
            }
            (None, Some(error)) => Err(error),
            _ => return Err(("v", "must have either `types` or `error`".to_owned())),
        };
        self.cluster.set_instance_types(&row.pool, types);
        Ok(())
    }

    fn daemon_set(&mut self, row: DaemonSetRow) -> Result<(), Problem> {
        let template = self.pod(row.template)?;
        let newest = row.newest.map(|newest| self.pod(newest)).transpose()?;
        if let Some(newest) = newest {
            self.cluster.insert_daemon_pod(&row.uid, newest);
        }
        self.cluster.insert_daemon_set(DaemonSet {
            namespace: row.namespace,
            name: row.name,
            uid: row.uid,
            template: Arc::new(template),
            template_has_affinity: row.template_has_affinity,
        });
        Ok(())
    }

    fn request(&mut self, row: Request) -> Result<(), Problem> {
        if std::mem::replace(&mut self.requested, true) {
            return Err(("v", "the settings are given twice".to_owned()));
        }
        self.settings = self.settings(row)?;
        Ok(())
    }

    fn settings(&self, row: Request) -> Result<Settings, Problem> {
        let pods = row.buffer_pods.into_iter();
        let pods = pods.map(|row| self.pod(row).map(Arc::new));
        let mut request = DisruptionRequest::at(row.policy.now);
        request.query.buffer_pods = pods.collect::<Result<_, _>>()?;
        request.policy = row.disruption;
        request.surroundings = row.surroundings;
        request.spot_to_spot = row.spot_to_spot;
        request.multi_node.max_replacements = row.max_replacements;
        request.max_commands = row.max_commands;
        request.unseen_pools = row.unseen_pools;
        request.cooling_down_pools = row.cooling_down_pools;
        request.static_headroom = row.static_headroom;
        let mut settings = Settings::new(row.policy, request);
        settings.gates = row.gates;
        settings.options = row.options;
        Ok(settings)
    }

    fn pass(&mut self, row: PassRow) -> Result<(), Problem> {
        if self.recording.len() >= MAX_PASSES {
            let problem = format!("a bundle has at most {MAX_PASSES} passes");
            return Err(("v", problem));
        }
        self.recording.push(RecordedPass {
            snapshot: self.cluster.snapshot(),
            settings: self.settings(row.request)?,
            nominated: row.nominated,
            consolidates: row.consolidates,
            decision: row.decision,
        });
        Ok(())
    }
}
