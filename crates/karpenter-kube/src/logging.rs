//! Log lines in upstream's format: one JSON object per line with the keys `level`, `time`, `logger`, `message`, `commit`.
//!
//! Fields of the event follow under their own names; a field name may contain dashes and dots (`"provider-id" = …`).
//! Fields whose text is a JSON object or array (see [`object`]) are written as such, so that `"NodeClaim":{"name":"x"}`
//! is formatted as upstream's. The `logger` is the event's `logger` field or else its target. The span field `object` is
//! written under the kind in the span field `object.kind`; the code of an error (`error-code`), under the field in
//! `error-code.field`.
//!
//! UPSTREAM: pkg/operator/logging/logging.go

use std::io::Write;
use std::time::{Duration, Instant};
use std::{fmt, io};

use jiff::Timestamp;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Renders an object's name for a log field that is written as JSON rather than as a quoted text.
///
/// ```
/// let line = karpenter_kube::logging::object(None, "default-abcde");
/// assert_eq!(line, r#"{"name":"default-abcde"}"#);
/// ```
#[must_use]
pub fn object(namespace: Option<&str>, name: &str) -> String {
    let mut map = Map::new();
    if let Some(namespace) = namespace.filter(|n| !n.is_empty()) {
        map.insert("namespace".into(), namespace.into());
    }
    map.insert("name".into(), name.into());
    Value::Object(map).to_string()
}

/// Renders any serializable value as JSON, for log fields.
#[must_use]
pub fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Renders the first `max` names and the number of the others, as upstream shortens long lists.
#[must_use]
pub fn shortened<S: AsRef<str>>(names: &[S], max: usize) -> String {
    let head = names
        .iter()
        .take(max)
        .map(AsRef::as_ref)
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(max) {
        0 => head,
        more => format!("{head} and {more} other(s)"),
    }
}

/// A tracing layer that writes upstream's JSON lines.
pub struct JsonLines<W> {
    writer: W,
    commit: String,
    sampler: Mutex<Sampler>,
}

impl<W> JsonLines<W> {
    /// Creates a layer that writes to `writer` and stamps each line with the first seven digits of `commit`.
    pub fn new(writer: W, commit: &str) -> Self {
        Self {
            writer,
            commit: commit.chars().take(7).collect(),
            sampler: Mutex::new(Sampler::default()),
        }
    }
}

impl<W> fmt::Debug for JsonLines<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonLines")
            .field("commit", &self.commit)
            .finish_non_exhaustive()
    }
}

impl<S, W> Layer<S> for JsonLines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_new_span(
        &self,
        attrs: &tracing::span::Attributes<'_>,
        id: &tracing::Id,
        ctx: Context<'_, S>,
    ) {
        if let Some(span) = ctx.span(id) {
            let mut fields = Fields::default();
            attrs.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &tracing::Id, values: &tracing::span::Record<'_>, ctx: Context<'_, S>) {
        if let Some(span) = ctx.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let mut own = Fields::default();
        event.record(&mut own);
        let message = own
            .0
            .remove("message")
            .unwrap_or_else(|| Value::String(String::new()));
        let level = *event.metadata().level();
        let admitted = self
            .sampler
            .lock()
            .admit(level, &message.to_string(), Instant::now());
        if !admitted {
            return;
        }

        let mut inherited = Map::new();
        if let Some(scope) = ctx.event_scope(event) {
            for span in scope.from_root() {
                if let Some(fields) = span.extensions().get::<Fields>() {
                    inherited.extend(fields.0.clone());
                }
            }
        }
        inherited.extend(own.0);
        // Field names are constants; the object of a controller has one of many kinds.
        if let Some(Value::String(kind)) = inherited.remove("object.kind")
            && let Some(object) = inherited.remove("object")
        {
            inherited.entry(kind).or_insert(object);
        }
        if let Some(Value::String(name)) = inherited.remove("error-code.field")
            && let Some(code) = inherited.remove("error-code")
        {
            inherited.insert(name, code);
        }
        let logger = inherited
            .remove("logger")
            .or_else(|| {
                inherited
                    .get("controller")
                    .map(|c| format!("controller.{}", c.as_str().unwrap_or_default()).into())
            })
            .unwrap_or_else(|| event.metadata().target().into());

        let mut line = Map::new();
        line.insert("level".into(), level.as_str().into());
        line.insert("time".into(), format!("{:.3}", Timestamp::now()).into());
        line.insert("logger".into(), logger);
        if level >= Level::DEBUG
            && let (Some(file), Some(number)) = (event.metadata().file(), event.metadata().line())
        {
            line.insert("caller".into(), format!("{file}:{number}").into());
        }
        line.insert("message".into(), message);
        line.insert("commit".into(), self.commit.clone().into());
        line.extend(inherited);
        if let Ok(mut text) = serde_json::to_vec(&Value::Object(line)) {
            text.push(b'\n');
            // A closed log pipe must not stop the controllers.
            let _ = self
                .writer
                .make_writer_for(event.metadata())
                .write_all(&text);
        }
    }
}

#[derive(Debug, Default, Clone)]
struct Fields(Map<String, Value>);

impl Fields {
    fn insert(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        let structured = (value.starts_with('{') || value.starts_with('['))
            .then(|| serde_json::from_str::<Value>(value).ok())
            .flatten();
        self.insert(field, structured.unwrap_or_else(|| value.into()));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Zap's sampling: each second the first hundred lines of one level and message, then every hundredth.
#[derive(Debug, Default)]
struct Sampler {
    window: Option<Instant>,
    seen: FxHashMap<(Level, String), u64>,
}

impl Sampler {
    const FIRST: u64 = 100;
    const THEREAFTER: u64 = 100;

    fn admit(&mut self, level: Level, message: &str, now: Instant) -> bool {
        if self
            .window
            .is_none_or(|start| now.duration_since(start) >= Duration::from_secs(1))
        {
            self.window = Some(now);
            self.seen.clear();
        }
        let seen = self.seen.entry((level, message.to_owned())).or_insert(0);
        *seen += 1;
        *seen <= Self::FIRST || (*seen - Self::FIRST).is_multiple_of(Self::THEREAFTER)
    }
}

/// Destinations of log lines: standard output, standard error and files, as in the `log-output-paths` option.
#[derive(Debug)]
pub struct Outputs(Vec<Output>);

#[derive(Debug)]
enum Output {
    Stdout,
    Stderr,
    File(Mutex<std::fs::File>),
}

impl Outputs {
    /// Opens the comma-separated paths; `stdout` and `stderr` name the streams.
    ///
    /// # Errors
    /// When a file cannot be opened for appending.
    pub fn open(paths: &str) -> io::Result<Self> {
        let open = |path: &str| match path {
            "stdout" => Ok(Output::Stdout),
            "stderr" => Ok(Output::Stderr),
            file => std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(file)
                .map(|f| Output::File(Mutex::new(f))),
        };
        paths
            .split(',')
            .map(str::trim)
            .filter(|p| !p.is_empty())
            .map(open)
            .collect::<io::Result<Vec<_>>>()
            .map(Self)
    }
}

impl<'a> MakeWriter<'a> for Outputs {
    type Writer = &'a Outputs;
    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Outputs {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        for output in &self.0 {
            match output {
                Output::Stdout => io::stdout().lock().write_all(line)?,
                Output::Stderr => io::stderr().lock().write_all(line)?,
                Output::File(file) => file.lock().write_all(line)?,
            }
        }
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::prelude::*;

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);
    impl Write for Captured {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(buf);
            Ok(buf.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(emit: impl FnOnce()) -> Vec<Value> {
        let captured = Captured::default();
        let writer = captured.clone();
        let layer = JsonLines::new(move || writer.clone(), "0123456789abcdef");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), emit);
        let text = String::from_utf8(captured.0.lock().clone()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the call failed")]
    struct Refused(#[source] karpenter_core::provider::ErrorCode);

    #[test]
    fn an_error_of_a_reconciliation_is_logged_with_the_code_its_provider_gave() {
        use karpenter_core::provider::{CloudProviderError, ErrorCode};

        use crate::controller::ReconcileError;
        let refused = |code: &str| {
            let (field, code) = ("some-error-code", code.into());
            Box::new(Refused(ErrorCode { field, code }))
        };
        let failed = |code: &str| ReconcileError::Provider {
            action: "deleting instance",
            source: CloudProviderError::Other(refused(code)),
        };
        let create = ReconcileError::Provider {
            action: "launching nodeclaim",
            source: CloudProviderError::Create {
                reason: "LaunchFailed".into(),
                message: "no".into(),
                source: Some(refused("Throttled")),
            },
        };
        let several = [failed("Throttled"), failed("Denied"), failed("Denied")];
        let lines = lines(|| {
            failed("Denied").log(1);
            create.log(2);
            ReconcileError::Several(several.into()).log(3);
            ReconcileError::Internal("odd".into()).log(4);
        });
        let codes = lines.iter().map(|line| line["some-error-code"].as_str());
        let expected = [
            Some("Denied"),
            Some("Throttled"),
            Some("Throttled, Denied"),
            None,
        ];
        assert_eq!(codes.collect::<Vec<_>>(), expected);
        for (n, line) in lines.iter().enumerate() {
            assert_eq!(line["message"], "Reconciler error");
            assert_eq!(line["failures"], n + 1);
            assert_eq!(line["error-code"], Value::Null);
            assert_eq!(line["error-code.field"], Value::Null);
        }
        assert_eq!(lines[0]["error"], "deleting instance, the call failed");
    }

    /// Conformance: API-165
    #[test]
    fn a_line_has_upstreams_keys_and_the_fields_of_its_span() {
        let lines = lines(|| {
            let span = tracing::info_span!(
                "reconcile",
                controller = "nodeclaim.lifecycle",
                NodeClaim = object(None, "a")
            );
            let _entered = span.enter();
            tracing::info!("provider-id" = "kwok://a", count = 3, "launched nodeclaim");
        });
        let mut line = lines[0].clone();
        let time = line.as_object_mut().unwrap().remove("time").unwrap();
        assert_eq!(
            time.as_str().unwrap().len(),
            "2024-01-01T00:00:00.000Z".len()
        );
        assert_eq!(
            line,
            serde_json::json!({
                "level": "INFO", "logger": "controller.nodeclaim.lifecycle", "message": "launched nodeclaim", "commit": "0123456",
                "controller": "nodeclaim.lifecycle", "NodeClaim": {"name": "a"}, "provider-id": "kwok://a", "count": 3,
            })
        );
    }

    /// Conformance: API-167
    #[test]
    fn the_object_of_a_reconciliation_is_written_under_its_kind() {
        let lines = lines(|| {
            let pod = object(Some("shop"), "web");
            let span = tracing::info_span!("reconcile", object.kind = "Pod", object = pod);
            let _entered = span.enter();
            tracing::error!(error = "no", "Reconciler error");
            tracing::info!(Pod = object(None, "another"), "published event");
        });
        assert_eq!(
            lines[0]["Pod"],
            serde_json::json!({"namespace": "shop", "name": "web"})
        );
        assert!(lines[0].get("object").is_none() && lines[0].get("object.kind").is_none());
        assert_eq!(lines[1]["Pod"], serde_json::json!({"name": "another"}));
    }

    /// Conformance: API-166
    #[test]
    fn a_flood_of_one_message_is_sampled() {
        let mut sampler = Sampler::default();
        let now = Instant::now();
        let admitted = (0..1000)
            .filter(|_| sampler.admit(Level::INFO, "again", now))
            .count();
        assert_eq!(admitted, 109);
        assert!(sampler.admit(Level::INFO, "other", now));
        assert!(sampler.admit(Level::INFO, "again", now + Duration::from_secs(1)));
    }

    /// Conformance: API-167
    #[test]
    fn long_lists_are_shortened() {
        assert_eq!(shortened(&["a", "b"], 5), "a, b");
        assert_eq!(shortened(&["a", "b", "c"], 2), "a, b and 1 other(s)");
    }
}
