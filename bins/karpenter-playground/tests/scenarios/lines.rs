//! What the controllers log, taken down.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use karpenter_kube::logging::JsonLines;
use serde_json::Value;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::prelude::*;

/// The lines that are logged while it lives, on the thread that made it.
pub struct Lines {
    written: Written,
    _taking: DefaultGuard,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Takes down what a production log would show.
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
        }
    }

    /// The lines of a level so far.
    pub fn of(&self, level: &str) -> Vec<Value> {
        let text = String::from_utf8(self.written.0.lock().unwrap().clone()).unwrap();
        let all = text.lines().map(|line| serde_json::from_str(line).unwrap());
        all.filter(|line: &Value| line["level"] == level).collect()
    }
}
