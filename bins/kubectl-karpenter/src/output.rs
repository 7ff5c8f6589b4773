//! What is printed: tables, JSON and YAML. Names, labels and messages from a cluster are data: whatever a terminal would
//! interpret in them is escaped. Nothing is colored, so `NO_COLOR` holds without being read.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use console::{Term, measure_text_width, truncate_str};
use serde::Serialize;
use serde_json::Value;

/// Returns the text with control characters, and characters that change the direction or the lines of text, as `\u{1b}`.
///
/// ```
/// use kubectl_karpenter::output::escaped;
/// assert_eq!(escaped("web-\u{1b}[31m"), r"web-\u{1b}[31m");
/// assert_eq!(escaped("größe"), "größe");
/// ```
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_interpreted) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_interpreted(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

fn is_interpreted(c: char) -> bool {
    let is_direction = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_direction || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Returns the exit code of an answer: 2 for a finding, if `--exit-code` asks for it.
pub(crate) fn exit_code(asked: bool, found: bool) -> ExitCode {
    ExitCode::from(if asked && found { 2 } else { 0 })
}

/// Returns a number of an answer; 0 if it has none.
pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// Prints an error as one line.
pub fn error(message: &str) {
    let line: Vec<&str> = message.split_whitespace().collect();
    eprintln!("error: {}", escaped(&line.join(" ")));
}

/// Prints text to standard output.
///
/// # Errors
/// If it cannot be written; not if the reader of a pipe has ended.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Returns a value as JSON, with a line feed at the end.
///
/// # Errors
/// If it cannot be serialized.
pub fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(value).context("cannot serialize the answer")?;
    let mut safe = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        // Outside of strings only line feeds and spaces are left; inside, JSON's own escapes are equal to the characters.
        if c != '\n' && is_interpreted(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    safe.push('\n');
    Ok(safe)
}

/// Returns a value as YAML; as JSON, which is YAML, if it contains characters that a terminal would interpret.
///
/// # Errors
/// If it cannot be serialized.
pub fn yaml(value: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(value).context("cannot serialize the answer")?;
    if text.contains(|c| c != '\n' && is_interpreted(c)) {
        return json(value);
    }
    Ok(text)
}

/// Returns a whole number with commas: `3,412`.
pub(crate) fn grouped(number: impl ToString) -> String {
    let text = number.to_string();
    let (sign, digits) = text.split_at(text.len() - text.trim_start_matches('-').len());
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<Cow<'_, str>> = groups.map(String::from_utf8_lossy).collect();
    format!("{sign}{}", groups.join(","))
}

/// Returns a count with its noun: `1 pod`, `3 pods`.
pub(crate) fn plural(count: impl ToString, noun: &str) -> String {
    match grouped(count).as_str() {
        "1" => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Returns an age as kubectl does: `12s`, `41m`, `5d3h`.
pub(crate) fn age(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (8.., ..) => format!("{days}d"),
        (2..8, ..) => match hours % 24 {
            0 => format!("{days}d"),
            rest => format!("{days}d{rest}h"),
        },
        (_, 8.., _) => format!("{hours}h"),
        (_, 3..8, _) => match minutes % 60 {
            0 => format!("{hours}h"),
            rest => format!("{hours}h{rest}m"),
        },
        (.., 10..) => format!("{minutes}m"),
        (.., 2..10) => match seconds % 60 {
            0 => format!("{minutes}m"),
            rest => format!("{minutes}m{rest}s"),
        },
        _ => format!("{seconds}s"),
    }
}

/// How tables are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The columns of the terminal; `None` if the output is no terminal, where nothing is cut.
    pub width: Option<usize>,
    /// Whether the first line has the headers.
    pub headers: bool,
}

impl Layout {
    #[cfg(test)]
    pub(crate) const PIPED: Self = Self {
        width: None,
        headers: true,
    };

    /// Returns the layout for standard output.
    pub fn of_stdout(headers: bool) -> Self {
        let stdout = Term::stdout();
        let size = stdout.is_term().then(|| stdout.size_checked()).flatten();
        Self {
            width: size.map(|(_, columns)| usize::from(columns)),
            headers,
        }
    }
}

/// A table with columns as wide as their widest cell.
#[derive(Debug, Clone)]
pub struct Table {
    headers: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table without rows.
    pub fn new(headers: &[&'static str]) -> Self {
        Self {
            headers: headers.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; its cells are escaped. An empty cell is shown as `-`.
    pub fn row<'a>(&mut self, cells: impl IntoIterator<Item = Cow<'a, str>>) {
        let cells = cells.into_iter().map(|cell| match escaped(&cell) {
            empty if empty.is_empty() => "-".to_owned(),
            safe => safe.into_owned(),
        });
        self.rows.push(cells.collect());
    }

    /// Returns the table as text. Lines that are wider than the terminal are cut, never wrapped.
    pub fn render(&self, layout: Layout) -> String {
        let headers: Vec<String> = self
            .headers
            .iter()
            .map(|&header| header.to_owned())
            .collect();
        let lines: Vec<&Vec<String>> = layout
            .headers
            .then_some(&headers)
            .into_iter()
            .chain(&self.rows)
            .collect();
        let widths: Vec<usize> = (0..headers.len())
            .map(|column| {
                let cells = lines.iter().filter_map(|line| line.get(column));
                cells
                    .map(|cell| measure_text_width(cell))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for cells in lines {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                let padding = width.saturating_sub(measure_text_width(cell)) + 3;
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', padding));
            }
            let line = line.trim_end();
            match layout.width {
                Some(width) => text.push_str(&truncate_str(line, width, "…")),
                None => text.push_str(line),
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]0;owned\u{7}\u{9b}31m\r\n\u{202e}\u{2028}<script>";
    const PIPED: Layout = Layout::PIPED;

    fn is_safe(text: &str) -> bool {
        !text.contains(|c| c != '\n' && is_interpreted(c))
    }

    #[test]
    fn what_a_terminal_would_interpret_is_escaped_in_every_format() {
        assert_eq!(
            escaped(HOSTILE),
            r"a\u{1b}]0;owned\u{7}\u{9b}31m\u{d}\u{a}\u{202e}\u{2028}<script>"
        );
        let object = serde_json::json!({ "name": HOSTILE, "fine": "größe 東" });
        let (json, yaml) = (json(&object).unwrap(), yaml(&object).unwrap());
        assert!(is_safe(&json) && is_safe(&yaml), "{json}{yaml}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read, object, "the value is the same");
        let read: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(read, object);
        let mut table = Table::new(&["NAME"]);
        table.row([HOSTILE.into()]);
        let text = table.render(PIPED);
        assert!(is_safe(&text) && text.lines().count() == 2, "{text}");
    }

    #[test]
    fn counts_have_commas_and_ages_are_as_in_kubectl() {
        assert_eq!(grouped(-1_003_412), "-1,003,412");
        assert_eq!(
            [plural(1, "pod"), plural(999, "pod")],
            ["1 pod", "999 pods"]
        );
        for (seconds, text) in [
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (5 * 3600 + 60, "5h1m"),
            (8 * 3600 + 60, "8h"),
            (49 * 3600, "2d1h"),
            (8 * 86_400 + 3600, "8d"),
        ] {
            assert_eq!(age(seconds), text, "{seconds}");
        }
    }

    fn table() -> Table {
        let mut table = Table::new(&["NODEPOOL", "UNTIL", "WHY"]);
        table.row(["default".into(), "10:00".into(), "incident 42".into()]);
        table.row(["東京".into(), "".into(), "".into()]);
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_cells_and_lines_have_no_trailing_spaces() {
        assert_eq!(
            table().render(PIPED),
            "NODEPOOL   UNTIL   WHY\ndefault    10:00   incident 42\n東京       -       -\n"
        );
        let headless = Layout {
            headers: false,
            ..PIPED
        };
        assert_eq!(
            table().render(headless),
            "default   10:00   incident 42\n東京      -       -\n"
        );
    }

    #[test]
    fn lines_are_cut_to_the_terminal_and_never_when_piped() {
        let narrow = Layout {
            width: Some(20),
            ..PIPED
        };
        let text = table().render(narrow);
        assert!(text.lines().all(|line| measure_text_width(line) <= 20));
        assert_eq!(text.lines().nth(1), Some("default    10:00   …"));
        assert!(table().render(PIPED).contains("incident 42"));
    }
}
