//! Reading a bundle. Its text is untrusted: whatever it says, reading ends with a bundle or an error. Memory is bounded by the bytes
//! and the number of values that [`lines`](super::lines) reads: a few hundred bytes for each value at most.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use karpenter_core::cluster::{Cluster, DaemonSet};
use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::{Owner, Pod, PodKey, Shape};
use karpenter_core::resources::Resources;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::lines::{LineError, LineReader, MAX_BYTES, MAX_LINE, MAX_VALUES, MAX_VALUES_OF_LINE};
use super::recording::{self, MAX_PASSES, RecordedPass};
use super::rows::{
    Change, DaemonSetRow, Devices, Indexed, Line, Manifest, PassRow, PodRow, PoolTypes, Request,
    SECTIONS, Selector, Storage, Trailer,
};
use super::{Bundle, Decision, OLDEST, SCHEMA, Settings};

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
    /// A line is invalid.
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
        /// The number of the line.
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

/// Reads a bundle.
///
/// # Errors
/// Fails if the file is not a complete bundle that this version reads: with the line, the byte and the field of the problem.
pub fn read(file: impl Read) -> Result<Bundle, ReadError> {
    let lines = LineReader::new(file).map_err(|source| ReadError::Io { line: 0, source })?;
    Reader { lines }.bundle(false)
}

/// Reads what is whole of a damaged bundle: the lines before the first that cannot be read. [`Bundle::damage`] says why there are no
/// more.
///
/// # Errors
/// Fails if the file does not begin with the manifest of a bundle that this version reads, or if it is too large.
pub fn salvage(file: impl Read) -> Result<Bundle, ReadError> {
    let lines = LineReader::new(file).map_err(|source| ReadError::Io { line: 0, source })?;
    Reader { lines }.bundle(true)
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
    fn advance(&mut self) -> Result<(), ReadError> {
        let line = self.lines.number + 1;
        match self.lines.advance() {
            Ok(true) => Ok(()),
            Ok(false) | Err(LineError::Unfinished) => Err(ReadError::Truncated { line: line - 1 }),
            // The decompressor says so if the file ends within a block.
            Err(LineError::Io(source)) if source.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ReadError::Truncated { line: line - 1 })
            }
            Err(LineError::Io(source)) => Err(ReadError::Io { line, source }),
            Err(LineError::TooLong) => Err(ReadError::TooLarge {
                line,
                problem: format!("it is longer than {} MiB", MAX_LINE >> 20),
            }),
            Err(LineError::TooLarge) => Err(ReadError::TooLarge {
                line,
                problem: format!("the bundle has more than {} MiB", MAX_BYTES >> 20),
            }),
            Err(LineError::TooManyValues) => Err(ReadError::TooLarge {
                line,
                problem: format!(
                    "a line has more than {MAX_VALUES_OF_LINE} values, or the bundle more than {MAX_VALUES}"
                ),
            }),
        }
    }

    fn bundle(mut self, salvages: bool) -> Result<Bundle, ReadError> {
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
        let manifest: Manifest = self.json()?;
        if manifest.schema < OLDEST {
            return Err(self.invalid("schema", "must be 1 or 2"));
        }
        self.lines.accept();
        let cluster = Cluster::new(manifest.config.clone());
        let mut content = Content::new(cluster, Settings::at(manifest.at));
        let damage = match self.content(&mut content) {
            Err(ReadError::TooLarge { line, problem }) => {
                return Err(ReadError::TooLarge { line, problem });
            }
            Err(damage) if salvages => {
                // The pods of a section that does not end.
                content.flush();
                Some(damage.to_string())
            }
            read => read.map(|()| None)?,
        };
        Ok(Bundle {
            provider: manifest.provider,
            engine: manifest.engine,
            snapshot: content.cluster.with_epoch(manifest.epoch).snapshot(),
            settings: content.settings,
            decisions: content.decisions,
            recording: content.recording,
            redaction: manifest.redact,
            damage,
        })
    }

    /// Reads the sections and the trailer.
    fn content(&mut self, content: &mut Content) -> Result<(), ReadError> {
        let mut section = 0;
        loop {
            self.advance()?;
            if self.lines.line().starts_with(br#"{"kind":"#) {
                break;
            }
            let line: Line = self.json()?;
            if line.section() < section {
                let after = SECTIONS.get(section).copied().unwrap_or_default();
                return Err(self.invalid("s", &format!("comes after section {after}")));
            }
            if line.section() > section {
                content.ended(section);
            }
            section = line.section();
            content
                .add(line)
                .map_err(|(field, problem)| self.invalid(field, &problem))?;
            self.lines.accept();
        }
        content.ended(section);
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
        let line = self.lines.number;
        match self.lines.advance() {
            Ok(false) => Ok(()),
            Err(LineError::Io(source)) => Err(ReadError::Io { line, source }),
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

/// The field of a line with a problem.
pub(super) type Problem = (&'static str, String);

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

    /// Applies what was collected of a section that has ended.
    pub(super) fn ended(&mut self, section: usize) {
        if SECTIONS.get(section) == Some(&"pods") {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.cluster.insert_pods(std::mem::take(&mut self.pods));
    }

    pub(super) fn add(&mut self, line: Line) -> Result<(), Problem> {
        match line {
            Line::Shapes(Indexed { i, v }) => push(&mut self.shapes, i, Arc::new(v)),
            Line::Limits(Indexed { i, v }) => push(&mut self.limits, i, Arc::new(v)),
            Line::Owners(Indexed { i, v }) => push(&mut self.owners, i, v.into()),
            Line::Types(Indexed { i, v }) => push(&mut self.types, i, v),
            Line::Pods(row) => self.pod_line(*row),
            Line::Nodes(node) => {
                named(node.metadata.name.as_deref())?;
                self.cluster.insert_node(Arc::new(*node));
                Ok(())
            }
            Line::NodeClaims(claim) => {
                named(claim.metadata.name.as_deref())?;
                self.cluster.insert_node_claim(Arc::new(*claim));
                Ok(())
            }
            Line::NodePools(pool) => {
                named(pool.metadata.name.as_deref())?;
                self.cluster.apply_node_pool(&pool);
                Ok(())
            }
            Line::Overlays(overlay) => {
                self.cluster.apply_node_overlay(&overlay);
                Ok(())
            }
            Line::Catalogue(row) => self.catalogue(row),
            Line::DaemonSets(row) => self.daemon_set(*row),
            Line::Pdbs(budget) => {
                self.cluster.apply_pdb(&budget);
                Ok(())
            }
            Line::Selectors(row) => {
                self.selector(row);
                Ok(())
            }
            Line::Storage(row) => {
                self.storage(row);
                Ok(())
            }
            Line::Devices(row) => {
                match *row {
                    Devices::Slice(slice) => drop(self.cluster.apply_resource_slice(&slice)),
                    Devices::Claim(claim) => drop(self.cluster.apply_resource_claim(&claim)),
                    Devices::Class(class) => drop(self.cluster.apply_device_class(&class)),
                }
                Ok(())
            }
            Line::Marks(row) => {
                self.cluster.insert_marks(&row.into());
                Ok(())
            }
            Line::Requests(row) => self.request(*row),
            Line::Decisions(decision) => {
                self.decisions.push(decision);
                Ok(())
            }
            Line::Changes(change) => self.change(*change),
        }
    }

    fn pod(&self, row: PodRow) -> Result<Pod, Problem> {
        let shape = numbered(&self.shapes, row.i, "v.i")?;
        let limits = numbered(&self.limits, row.limits, "v.limits")?;
        let owners = numbered(&self.owners, row.owners, "v.owners")?;
        Ok(row.pod(shape, limits, owners))
    }

    fn pod_line(&mut self, row: PodRow) -> Result<(), Problem> {
        let pod = self.pod(row)?;
        if let Some(last) = self.pods.last()
            && (&last.key.namespace, &last.key.name) >= (&pod.key.namespace, &pod.key.name)
        {
            let problem = "pods must be sorted by namespace and name, each once";
            return Err(("v.k", problem.to_owned()));
        }
        self.pods.push(pod);
        Ok(())
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

    fn selector(&mut self, row: Selector) {
        match row {
            Selector::Service {
                namespace,
                name,
                selector,
            } => self
                .cluster
                .insert_service_selector(&namespace, &name, selector),
            Selector::Controller {
                kind,
                namespace,
                name,
                selector,
            } => self
                .cluster
                .insert_controller_selector(&kind, &namespace, &name, selector),
            Selector::Namespace { name, labels } => self.cluster.insert_namespace(&name, labels),
        }
    }

    fn storage(&mut self, row: Storage) {
        match row {
            Storage::Claim(claim) => self.cluster.insert_volume_claim(claim),
            Storage::Volume(volume) => self.cluster.insert_volume(volume),
            Storage::Class(class) => self.cluster.insert_storage_class(class),
            Storage::AttachLimits { node, drivers } => {
                self.cluster.insert_attach_limits(&node, drivers);
            }
            Storage::Attachment(attachment) => self.cluster.insert_volume_attachment(attachment),
        }
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

    fn change(&mut self, change: Change) -> Result<(), Problem> {
        match change {
            // Pods are sorted in their section only.
            Change::Set(Line::Pods(row)) => {
                let pod = self.pod(*row)?;
                self.cluster.insert_pod(pod);
                Ok(())
            }
            Change::Set(Line::Requests(_) | Line::Decisions(_) | Line::Changes(_)) => {
                Err(("v.set.s", "must be the section of an object".to_owned()))
            }
            Change::Set(line) => self.add(line),
            Change::Remove(removed) => {
                recording::remove(&mut self.cluster, &removed);
                Ok(())
            }
            Change::Pass(row) => {
                if self.recording.len() >= MAX_PASSES {
                    let problem = format!("a bundle has at most {MAX_PASSES} passes");
                    return Err(("v.pass", problem));
                }
                let PassRow {
                    decision,
                    request,
                    nominated,
                    consolidates,
                } = row;
                let settings = self.settings(request)?;
                let nominated = nominated.into_iter().map(|([namespace, name, uid], node)| {
                    let pod = PodKey {
                        namespace,
                        name,
                        uid,
                    };
                    (pod, node)
                });
                let pass = RecordedPass {
                    snapshot: self.cluster.snapshot(),
                    settings,
                    nominated: nominated.collect(),
                    consolidates,
                    decision,
                };
                self.recording.push(pass);
                Ok(())
            }
        }
    }
}

/// Checks that an object has a name.
fn named(name: Option<&str>) -> Result<(), Problem> {
    match name {
        Some(name) if !name.is_empty() => Ok(()),
        _ => Err(("v.metadata.name", "must not be empty".to_owned())),
    }
}
