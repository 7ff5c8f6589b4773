//! The JSONPath of printer columns and scale subresources.
//!
//! Supported: `.name`, `.name\.with\.dots`, `['name']`, `[0]`, `[-1]`, `[*]`, `.*`, `[?(@.path OP literal)]` with
//! `== != < <= > >=`, `[?(@.path)]`. A missing key selects nothing.

use serde_json::Value;

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    Filter {
        path: JsonPath,
        test: Option<(Operator, Value)>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The reason why a path is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path `{path}` is not understood at byte {at}")]
pub struct PathError {
    path: String,
    at: usize,
}

impl JsonPath {
    /// Read a path such as `.status.conditions[?(@.type=="Ready")].status`; a surrounding `{}` is allowed.
    ///
    /// # Errors
    ///
    /// [`PathError`] if the path uses a feature outside of this subset.
    pub fn parse(path: &str) -> Result<Self, PathError> {
        let inner = path.trim();
        let inner = inner
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'))
            .unwrap_or(inner);
        let inner = inner.strip_prefix('$').unwrap_or(inner);
        let mut parser = Parser { text: inner, at: 0 };
        parser.steps().map(Self).ok_or_else(|| PathError {
            path: path.to_owned(),
            at: parser.at,
        })
    }

    /// Returns the values that the path selects, in document order.
    pub fn select<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![root];
        for step in &self.0 {
            found = found
                .into_iter()
                .flat_map(|value| step.select(value))
                .collect();
        }
        found
    }

    /// Returns the first value that the path selects.
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.select(root).into_iter().next()
    }
}

impl Step {
    fn select<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Field(name), Value::Object(fields)) => fields.get(name).into_iter().collect(),
            (Self::Index(index), Value::Array(items)) => {
                let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let index = if *index < 0 { length + index } else { *index };
                usize::try_from(index)
                    .ok()
                    .and_then(|index| items.get(index))
                    .into_iter()
                    .collect()
            }
            (Self::All, Value::Array(items)) => items.iter().collect(),
            (Self::All, Value::Object(fields)) => fields.values().collect(),
            (Self::Filter { path, test }, Value::Array(items)) => items
                .iter()
                .filter(|item| passes(path, test.as_ref(), item))
                .collect(),
            _ => Vec::new(),
        }
    }
}

fn passes(path: &JsonPath, test: Option<&(Operator, Value)>, item: &Value) -> bool {
    let Some(found) = path.first(item) else {
        return false;
    };
    let Some((operator, wanted)) = test else {
        return true;
    };
    let order = match (found, wanted) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    };
    match operator {
        Operator::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
        Operator::Unequal => order.is_none_or(std::cmp::Ordering::is_ne),
        Operator::Less => order.is_some_and(std::cmp::Ordering::is_lt),
        Operator::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
        Operator::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
        Operator::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn spaces(&mut self) {
        while self.eat(" ") {}
    }

    fn steps(&mut self) -> Option<Vec<Step>> {
        let steps = self.steps_until(|_| false)?;
        (self.at == self.text.len()).then_some(steps)
    }

    fn steps_until(&mut self, end: impl Fn(&str) -> bool) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        while !self.rest().is_empty() && !end(self.rest()) {
            if self.eat("[") {
                steps.push(self.bracket()?);
            } else if self.eat(".") {
                if self.eat("*") {
                    steps.push(Step::All);
                } else if !self.rest().starts_with('[') && !self.rest().is_empty() {
                    steps.push(Step::Field(self.name()?));
                }
            } else if steps.is_empty() {
                steps.push(Step::Field(self.name()?));
            } else {
                return None;
            }
        }
        Some(steps)
    }

    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        let mut chars = self.rest().char_indices().peekable();
        let mut end = self.rest().len();
        while let Some((index, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
                '.' | '[' | ']' | '=' | '!' | '<' | '>' | ' ' | ')' => {
                    end = index;
                    break;
                }
                _ => name.push(c),
            }
        }
        self.at += end;
        (!name.is_empty()).then_some(name)
    }

    fn bracket(&mut self) -> Option<Step> {
        if self.eat("*]") {
            return Some(Step::All);
        }
        if self.eat("?(") {
            return self.filter();
        }
        if self.rest().starts_with(['\'', '"']) {
            let name = self.quoted()?;
            return self.eat("]").then_some(Step::Field(name));
        }
        let close = self.rest().find(']')?;
        let index = self.rest()[..close].trim().parse().ok()?;
        self.at += close + 1;
        Some(Step::Index(index))
    }

    fn quoted(&mut self) -> Option<String> {
        let quote = self.rest().chars().next()?;
        let inner = &self.rest()[1..];
        let close = inner.find(quote)?;
        let text = inner[..close].to_owned();
        self.at += close + 2;
        Some(text)
    }

    fn filter(&mut self) -> Option<Step> {
        self.spaces();
        if !self.eat("@") {
            return None;
        }
        let path =
            JsonPath(self.steps_until(|rest| rest.starts_with([' ', '=', '!', '<', '>', ')']))?);
        self.spaces();
        let operators = [
            ("==", Operator::Equal),
            ("!=", Operator::Unequal),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let operator = operators
            .into_iter()
            .find(|(token, _)| self.eat(token))
            .map(|(_, operator)| operator);
        let test = match operator {
            None => None,
            Some(operator) => {
                self.spaces();
                let literal = if self.rest().starts_with(['\'', '"']) {
                    Value::String(self.quoted()?)
                } else {
                    let end = self.rest().find([' ', ')'])?;
                    let literal = serde_json::from_str(&self.rest()[..end]).ok()?;
                    self.at += end;
                    literal
                };
                self.spaces();
                Some((operator, literal))
            }
        };
        self.eat(")]").then_some(Step::Filter { path, test })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn first(path: &str, root: &Value) -> Option<Value> {
        JsonPath::parse(path).unwrap().first(root).cloned()
    }

    #[test]
    fn a_condition_is_found_by_its_type() {
        let root = json!({"status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]}});
        assert_eq!(
            first(r#".status.conditions[?(@.type=="Ready")].status"#, &root),
            Some(json!("True"))
        );
        assert_eq!(
            first(r#".status.conditions[?(@.type == 'A')].status"#, &root),
            Some(json!("False"))
        );
        assert_eq!(
            first(r#".status.conditions[?(@.type=="B")].status"#, &root),
            None
        );
    }

    #[test]
    fn fields_indices_and_wildcards_select() {
        let root = json!({"metadata": {"labels": {"karpenter.sh/nodepool": "x"}}, "list": [1, 2, 3], "a": {"b": {"c": 7}}});
        assert_eq!(
            first(r".metadata.labels.karpenter\.sh/nodepool", &root),
            Some(json!("x"))
        );
        assert_eq!(
            first(".metadata.labels['karpenter.sh/nodepool']", &root),
            Some(json!("x"))
        );
        assert_eq!(first("{.list[-1]}", &root), Some(json!(3)));
        assert_eq!(first(".a.b.c", &root), Some(json!(7)));
        assert_eq!(first(".a.x.c", &root), None);
        assert_eq!(JsonPath::parse(".list[*]").unwrap().select(&root).len(), 3);
        assert_eq!(
            JsonPath::parse(".list[?(@>=2)]")
                .unwrap()
                .select(&root)
                .len(),
            2
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for path in [".a[", ".a[x]", ".a[?(x)]", ".a]b"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
