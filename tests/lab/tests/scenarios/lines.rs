//! Captures the log lines of the controllers.

use std::io;
use std::io::Write;
use std::sync::Arc;

use karpenter_kube::logging::JsonLines;
use parking_lot::Mutex;
use serde_json::Value;
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::prelude::*;

/// Captures the lines that are logged while it exists, on the thread that created it.
pub struct Lines {
    written: Written,
    _taking: DefaultGuard,
    _other: Dispatch,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Captures the lines of a production log.
    pub fn taken() -> Self {
        let written = Written::default();
        let writer = written.clone();
        let ours = filter_fn(|metadata| metadata.target().starts_with("karpenter"));
        let lines = JsonLines::new(move || writer.clone(), "test");
        let lines = lines.with_filter(LevelFilter::INFO).with_filter(ours);
        let subscriber = tracing_subscriber::registry().with(lines);
        Self {
            written,
            _taking: tracing::subscriber::set_default(subscriber),
            // While a single dispatcher exists, tracing caches the interest of the dispatcher of whichever thread reaches a
            // callsite first. That can be the thread of another test, which has no subscriber.
            _other: Dispatch::new(tracing_subscriber::registry()),
        }
    }

    /// Returns the lines of a level so far.
    pub fn of(&self, level: &str) -> Vec<Value> {
        let text = String::from_utf8(self.written.0.lock().clone()).unwrap();
        let all = text.lines().map(|line| serde_json::from_str(line).unwrap());
        all.filter(|line: &Value| line["level"] == level).collect()
    }
}
