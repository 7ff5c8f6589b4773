//! The decision log: each record as a line of JSON.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use jiff::Timestamp;
use karpenter_decisions::record::DecisionRecord;
use serde::Serialize;

use crate::options::DecisionLog;

/// How many lines may wait for a slow destination; further ones are dropped.
const WAITING: usize = 1024;

/// Writes lines on a thread of its own: a slow disk or pipe never delays a pass.
#[derive(Debug)]
pub(super) struct Log {
    lines: SyncSender<String>,
}

/// A line of the log, with the keys of the other log lines.
#[derive(Serialize)]
struct Line<'a> {
    level: &'static str,
    time: Timestamp,
    logger: &'static str,
    message: &'static str,
    record: &'a DecisionRecord,
}

enum Destination {
    Stdout,
    File(File),
}

impl Destination {
    fn write(&mut self, line: &str) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().lock().write_all(line.as_bytes()),
            Self::File(file) => file.write_all(line.as_bytes()),
        }
    }
}

impl Log {
    /// Opens the log; a file that cannot be opened is a log line, and no log.
    pub(super) fn open(log: &DecisionLog) -> Option<Self> {
        let destination = match log {
            DecisionLog::None => return None,
            DecisionLog::Stdout => Destination::Stdout,
            DecisionLog::File(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                match file {
                    Ok(file) => Destination::File(file),
                    Err(error) => {
                        tracing::error!(logger = "decisions", path = %path.display(), %error, "cannot open the decision log");
                        return None;
                    }
                }
            }
        };
        let (lines, waiting) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name("decision-log".into());
        match thread.spawn(move || write_all(destination, &waiting)) {
            Ok(_) => Some(Self { lines }),
            Err(error) => {
                tracing::error!(logger = "decisions", %error, "cannot start the decision log");
                None
            }
        }
    }

    /// Writes a record, unless too many lines wait already.
    pub(super) fn write(&self, record: &DecisionRecord) {
        let line = Line {
            level: "INFO",
            time: record.at,
            logger: "decisions",
            message: "decided",
            record,
        };
        let Ok(mut line) = serde_json::to_string(&line) else {
            return;
        };
        line.push('\n');
        if let Err(TrySendError::Full(_)) = self.lines.try_send(line) {
            tracing::error!(logger = "decisions", id = %record.id, "the decision log is too slow, dropping a record");
        }
    }
}

fn write_all(mut destination: Destination, lines: &Receiver<String>) {
    let mut failing = false;
    for line in lines {
        let written = destination.write(&line);
        if let Err(error) = &written
            && !failing
        {
            tracing::error!(logger = "decisions", %error, "cannot write to the decision log");
        }
        failing = written.is_err();
    }
}
