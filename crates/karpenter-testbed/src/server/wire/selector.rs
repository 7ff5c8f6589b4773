//! Label and field selectors of requests: parsing with Kubernetes' messages, matching without reparsing objects.

use crate::selector::{Operator, Requirement, Selector};
use crate::server::wire::error::ApiError;
use crate::store::{Matcher, Object, Selectable};

/// Parses the label selector of a request (`a=b,c in (d,e),!f`).
///
/// # Errors
/// 400 with Kubernetes' wording.
fn parse_labels(text: &str) -> Result<Selector, ApiError> {
    let mut parser = Parser {
        tokens: tokens(text),
        at: 0,
    };
    parser
        .selector()
        .map_err(|why| ApiError::bad_request(format!("unable to parse requirement: {why}")))
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Sign(&'static str),
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Word(w) => w,
            Self::Sign(s) => s,
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut rest = text;
    'outer: while let Some(first) = rest.chars().next() {
        if first.is_whitespace() {
            rest = &rest[first.len_utf8()..];
            continue;
        }
        for sign in ["==", "!=", "=", "!", "(", ")", ",", ">", "<"] {
            if let Some(after) = rest.strip_prefix(sign) {
                out.push(Token::Sign(sign));
                rest = after;
                continue 'outer;
            }
        }
        let end = rest
            .find(|c: char| c.is_whitespace() || "=!(),><".contains(c))
            .unwrap_or(rest.len());
        out.push(Token::Word(rest[..end].to_owned()));
        rest = &rest[end..];
    }
    out
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", Token::text)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Selector, String> {
        let mut requirements = Vec::new();
        while self.at < self.tokens.len() {
            requirements.push(self.requirement()?);
            match self.next() {
                None => break,
                Some(Token::Sign(",")) if self.at < self.tokens.len() => {}
                Some(Token::Sign(",")) => {
                    return Err("found '', expected: identifier after ','".to_owned());
                }
                Some(other) => {
                    return Err(format!(
                        "found '{}', expected: ',' or 'end of string'",
                        other.text()
                    ));
                }
            }
        }
        Ok(requirements.into_iter().collect())
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        if self.peek() == "!" {
            self.at += 1;
            return Ok(Requirement::new(
                self.key()?,
                Operator::DoesNotExist,
                Vec::new(),
            ));
        }
        let key = self.key()?;
        match self.peek() {
            "" | "," => Ok(Requirement::new(key, Operator::Exists, Vec::new())),
            "=" | "==" => {
                self.at += 1;
                Ok(Requirement::new(key, Operator::In, vec![self.value()?]))
            }
            "!=" => {
                self.at += 1;
                Ok(Requirement::new(key, Operator::NotIn, vec![self.value()?]))
            }
            ">" | "<" => {
                let operator = if self.peek() == ">" {
                    Operator::Gt
                } else {
                    Operator::Lt
                };
                self.at += 1;
                let bound = self.value()?;
                if bound.parse::<i64>().is_err() {
                    return Err(format!(
                        "values[0][{key}]: Invalid value: \"{bound}\": for 'Gt', 'Lt' operators, the value must be an integer"
                    ));
                }
                Ok(Requirement::new(key, operator, vec![bound]))
            }
            "in" => {
                self.at += 1;
                Ok(Requirement::new(key, Operator::In, self.values()?))
            }
            "notin" => {
                self.at += 1;
                Ok(Requirement::new(key, Operator::NotIn, self.values()?))
            }
            other => Err(format!(
                "found '{other}', expected: in, notin, =, ==, !=, gt, lt"
            )),
        }
    }

    fn key(&mut self) -> Result<String, String> {
        match self.next() {
            Some(Token::Word(key)) => match crate::server::names::qualified_name(&key) {
                None => Ok(key),
                Some(why) => Err(format!("<nil>: Invalid value: \"{key}\": {why}")),
            },
            other => Err(format!(
                "found '{}', expected: identifier",
                other.as_ref().map_or("", Token::text)
            )),
        }
    }

    fn value(&mut self) -> Result<String, String> {
        let value = match self.tokens.get(self.at) {
            Some(Token::Word(w)) => {
                let w = w.clone();
                self.at += 1;
                w
            }
            _ => String::new(),
        };
        match crate::server::names::label_value(&value) {
            None => Ok(value),
            Some(why) => Err(format!("values[0]: Invalid value: \"{value}\": {why}")),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        if self.peek() != "(" {
            return Err(format!("found '{}' expected: '('", self.peek()));
        }
        self.at += 1;
        let mut values = vec![self.value()?];
        loop {
            match self.next() {
                Some(Token::Sign(",")) => values.push(self.value()?),
                Some(Token::Sign(")")) => return Ok(values),
                other => {
                    return Err(format!(
                        "found '{}', expected: ',', ')' or identifier",
                        other.as_ref().map_or("", Token::text)
                    ));
                }
            }
        }
    }
}

/// Label and field selectors of a request, for the selectable fields of a kind.
#[derive(Debug, Clone, Default)]
pub struct Selectors {
    labels: Selector,
    /// (field, value, whether equality is required)
    fields: Vec<(usize, String, bool)>,
}

impl Selectors {
    /// Parses both selectors.
    ///
    /// # Errors
    /// 400 for invalid syntax or an unsupported field.
    pub fn parse(labels: &str, fields: &str, selectable: &[Selectable]) -> Result<Self, ApiError> {
        let mut parsed = Vec::new();
        for (label, value, equal) in field_terms(fields)? {
            let index = selectable
                .iter()
                .position(|f| f.label == label)
                .ok_or_else(|| {
                    ApiError::bad_request(format!("field label not supported: {label}"))
                })?;
            parsed.push((index, value, equal));
        }
        Ok(Self {
            labels: parse_labels(labels)?,
            fields: parsed,
        })
    }

    /// Restricts the selector to one name, as for a watch on an object's own path. The name is the first selectable field.
    pub fn only_name(&mut self, name: &str) {
        self.fields.push((0, name.to_owned(), true));
    }
}

fn field_terms(text: &str) -> Result<Vec<(String, String, bool)>, ApiError> {
    let mut terms = Vec::new();
    let mut term = String::new();
    let mut pieces = Vec::new();
    let mut escaped = false;
    for c in text.chars() {
        match c {
            ',' if !escaped => pieces.push(std::mem::take(&mut term)),
            _ => term.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    pieces.push(term);
    for piece in pieces.iter().filter(|p| !p.is_empty()) {
        let (label, value, equal) = if let Some((l, v)) = piece.split_once("!=") {
            (l, v, false)
        } else if let Some((l, v)) = piece.split_once("==") {
            (l, v, true)
        } else if let Some((l, v)) = piece.split_once('=') {
            (l, v, true)
        } else {
            return Err(ApiError::bad_request(format!(
                "invalid selector: '{text}'; can't understand '{piece}'"
            )));
        };
        let value = value
            .replace("\\,", ",")
            .replace("\\=", "=")
            .replace("\\\\", "\\");
        terms.push((label.to_owned(), value, equal));
    }
    Ok(terms)
}

impl Matcher for Selectors {
    fn matches(&self, object: &Object) -> bool {
        self.fields
            .iter()
            .all(|(index, value, equal)| (object.field(*index) == value) == *equal)
            && self.labels.matches_with(|key| object.label(key))
    }

    fn is_everything(&self) -> bool {
        self.fields.is_empty() && self.labels.selects_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let parsed = parse_labels(selector).unwrap();
        parsed.matches_with(|k| labels.iter().find(|(l, _)| *l == k).map(|(_, v)| *v))
    }

    #[test]
    fn label_selectors_follow_the_grammar() {
        let labels = [("a", "1"), ("b.c/d", "x")];
        for yes in [
            "",
            "a",
            "a=1",
            "a==1,b.c/d",
            "a in (0, 1)",
            "a notin (2)",
            "!z",
            "z!=1",
            "a>0",
            "a<2",
        ] {
            assert!(selects(yes, &labels), "{yes}");
        }
        for no in [
            "z",
            "a=2",
            "a in (2)",
            "a notin (1)",
            "!a",
            "a!=1",
            "a>1",
            "z>0",
        ] {
            assert!(!selects(no, &labels), "{no}");
        }
    }

    #[test]
    fn a_broken_label_selector_is_refused_with_the_real_wording() {
        let error = parse_labels("a in").unwrap_err();
        assert_eq!(
            error.message,
            "unable to parse requirement: found '' expected: '('"
        );
        for broken in [
            "a=b,", "=", "a in (b", "a in b", "a b", "a>x", "a=b=c", "-a",
        ] {
            assert!(parse_labels(broken).is_err(), "{broken}");
        }
    }
}
