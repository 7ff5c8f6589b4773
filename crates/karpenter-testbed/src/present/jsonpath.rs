//! The JSONPath of printer columns.
//!
//! Supported: `.name`, `.name\.with\.dots`, `['name']`, `[0]`, `[*]` and `[?(@.path==literal)]`. A missing key selects nothing.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Index(usize),
    All,
    Equal(JsonPath, Value),
}

impl JsonPath {
    /// Parses a path such as `.status.conditions[?(@.type=="Ready")].status`; `None` if it uses another feature.
    pub fn parse(path: &str) -> Option<Self> {
        let mut rest = path.trim();
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let step;
            if let Some(test) = rest.strip_prefix("[?(@") {
                let (test, after) = test.split_once(")]")?;
                let (path, wanted) = test.split_once("==")?;
                step = Step::Equal(Self::parse(path)?, literal(wanted.trim())?);
                rest = after;
            } else if let Some(inside) = rest.strip_prefix('[') {
                let (inside, after) = inside.split_once(']')?;
                step = match literal(inside) {
                    _ if inside == "*" => Step::All,
                    Some(Value::String(name)) => Step::Field(name),
                    index => Step::Index(usize::try_from(index?.as_u64()?).ok()?),
                };
                rest = after;
            } else {
                let (name, after) = name(rest.strip_prefix('.')?);
                step = Step::Field(name);
                rest = after;
            }
            steps.push(step);
        }
        Some(Self(steps))
    }

    /// Returns the first value that the path selects.
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        first(&self.0, root)
    }
}

fn first<'a>(steps: &[Step], value: &'a Value) -> Option<&'a Value> {
    let Some((step, rest)) = steps.split_first() else {
        return Some(value);
    };
    let mut items = value.as_array().into_iter().flatten();
    match step {
        Step::Field(name) => first(rest, value.get(name)?),
        Step::Index(index) => first(rest, value.as_array()?.get(*index)?),
        Step::All => items.find_map(|item| first(rest, item)),
        Step::Equal(path, wanted) => items
            .filter(|item| path.first(item) == Some(wanted))
            .find_map(|item| first(rest, item)),
    }
}

/// Parses a quoted text, a number or a boolean.
fn literal(text: &str) -> Option<Value> {
    let quoted = text
        .strip_prefix('\'')
        .and_then(|text| text.strip_suffix('\''));
    match quoted {
        Some(text) => Some(text.into()),
        None => serde_json::from_str(text).ok(),
    }
}

/// Splits a name, in which a backslash escapes a character, from the rest of the path.
fn name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
            '.' | '[' => return (name, &text[at..]),
            _ => name.push(c),
        }
    }
    (name, "")
}
