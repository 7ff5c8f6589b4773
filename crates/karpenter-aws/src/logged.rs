//! The lines that a test logs.

use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::Dispatch;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the lines that `work` logs on this thread, debug messages included.
pub(crate) fn logged(work: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // While a single dispatcher exists, tracing caches the interest of the thread that reaches a callsite first. That can be
    // the thread of another test, which has no subscriber.
    let _other = Dispatch::new(tracing_subscriber::registry());
    tracing::subscriber::with_default(subscriber, work);
    let text = String::from_utf8_lossy(&log.0.lock()).into_owned();
    text.lines().map(str::to_owned).collect()
}
