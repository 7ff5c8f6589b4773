//! Benchmarks with several processes: the API server in one, the controllers in another, and the one that measures.
//!
//! The processes communicate in lines: commands on standard input, one JSON answer each on standard output. The cost of the
//! controllers is read from the kernel, so that it is theirs alone.

pub mod controllers;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use tokio::sync::mpsc;

/// Result of a step of a measurement.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Another process of this program.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program with other arguments.
    pub fn start(arguments: &[String]) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self {
            child,
            input,
            output,
        })
    }

    /// Returns the next answer.
    pub fn answer(&mut self) -> Outcome<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Sends a line and waits for the answer.
    pub fn ask(&mut self, command: &str) -> Outcome<Value> {
        let input = self.input.as_mut().ok_or("no input")?;
        writeln!(input, "{command}")?;
        input.flush()?;
        self.answer()
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_default()
    }

    /// Returns the resident memory in MiB.
    pub fn rss_mib(&self) -> f64 {
        self.memory("VmRSS:")
    }

    /// Returns the peak of the resident memory in MiB.
    pub fn peak_mib(&self) -> f64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, key: &str) -> f64 {
        let status = self.read("status");
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(f64::NAN) / 1024.0
    }

    /// Returns the CPU seconds used so far.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = self.read("stat");
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks = |at: usize| {
            let field = after_name.split_whitespace().nth(at);
            field.and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0)
        };
        // Fields 14 and 15 of proc(5), in hundredths of a second.
        (ticks(11) + ticks(12)) / 100.0
    }

    /// Asks the process to end, and waits until it has.
    pub fn end(mut self) {
        self.input = None;
        // It is killed below if that fails.
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn report(what: &Value) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}")?;
    out.flush()?;
    Ok(())
}

/// Returns the lines of standard input, until it ends.
pub fn commands() -> mpsc::UnboundedReceiver<String> {
    let (lines, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    commands
}

/// Runs a process, and ends it with an error if that fails.
pub fn serve<F: Future<Output = Outcome<()>>>(what: F) {
    let outcome = tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(what));
    if let Err(error) = outcome {
        eprintln!("a process of the measurement failed, {error}");
        std::process::exit(1);
    }
}
